// RMS norms: alone, behind an addition to the residual stream, and by groups with a gate. A thread block per row, or, for small groups of columns, a warp per
// group. Results are left where a product looks for its inputs too.
#include "norm.cuh"
#include "rounded.cuh"

template <int Threads> __device__ __forceinline__ void norm_row(const NormArgs& a) {
    enter();
    const int row = blockIdx.x, columns = a.x.columns;
    if (row >= live_rows(a.x)) return;
    const float* x = row_of(a.x, row);
    float* out = row_of(a.out, row);
    auto load = [&](int c) { return load_four(x, c, columns); };
    norm_columns<Threads>(columns, a.eps, load, load, [&](int c, float4 x, float factor) {
        const float4 y = scaled(x, factor, load_four(a.weight, c, columns));
        store_four(out, c, columns, y);
        store_rounded(a.rounded, row, c, y);
    });
}

template <int Threads> __device__ __forceinline__ void add_norm_row(const AddNormArgs& a) {
    enter();
    const int row = blockIdx.x;
    if (row >= live_rows(a.delta)) return;
    const float* delta = row_of(a.delta, row);
    add_and_norm<Threads>(a.norm, row, [&](int c) { return load_four(delta, c, a.delta.columns); }, [&](int c, float4 y) { store_rounded(a.rounded, row, c, y); });
}

// The `item`-th group: groups of a row one behind the other.
template <int Team> __device__ __forceinline__ void gated_group(const GatedNormArgs& a, int item) {
    const int groups = a.x.columns / a.group, row = item / groups, first = item % groups * a.group, columns = a.group;
    if (row >= live_rows(a.x)) return;
    const float *x = row_of(a.x, row) + first, *gate = row_of(a.gate, row) + first, *weight = a.weight_per_column ? a.weight + first : a.weight;
    auto store = [&](int c, float4 y) {
        if (a.out.data) store_four(row_of(a.out, row) + first, c, columns, y);
        store_rounded(a.rounded, row, first + c, y);
    };
    auto plain = [&](int c) { return load_four(x, c, columns); };
    auto gated = [&](int c, float4 x) { return each(x, load_four(gate, c, columns), [](float x, float g) { return x * silu(g); }); };
    if (!a.weight) {
        for (int c = threadIdx.x % Team * 4; c < columns; c += Team * 4) store(c, gated(c, plain(c)));
    } else if (a.gate_first) {
        auto value = [&](int c) { return gated(c, plain(c)); };
        norm_columns<Team>(columns, a.eps, value, value, [&](int c, float4 x, float factor) { store(c, scaled(x, factor, load_four(weight, c, columns))); });
    } else {
        norm_columns<Team>(columns, a.eps, plain, plain, [&](int c, float4 x, float factor) { store(c, gated(c, scaled(x, factor, load_four(weight, c, columns)))); });
    }
}

#define NORMS(THREADS)                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_##THREADS(const __grid_constant__ NormArgs a) { norm_row<THREADS>(a); }         \
    extern "C" __global__ void __launch_bounds__(THREADS) add_rms_norm_##THREADS(const __grid_constant__ AddNormArgs a) { add_norm_row<THREADS>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) gated_norm_##THREADS(const __grid_constant__ GatedNormArgs a) {           \
        enter();                                                                                                                                   \
        gated_group<THREADS>(a, blockIdx.x);                                                                                                       \
    }
NORMS(256)
NORMS(512)
NORMS(768)

extern "C" __global__ void __launch_bounds__(256) gated_norm_32(const __grid_constant__ GatedNormArgs a) {
    enter();
    gated_group<32>(a, blockIdx.x * 8 + threadIdx.x / 32);
}

// The same for groups of 128 columns with one weight for all and the gate behind the norm, where rows lie in fours: a warp has `GROUPS` neighbours of a row, and all that it reads is under way at a
// time, gates too.
constexpr int GROUPS = 4, GROUP = 128;
extern "C" __global__ void __launch_bounds__(256, 4) gated_norm_128(const __grid_constant__ GatedNormArgs a) {
    release_dependents();
    const int runs = a.x.columns / (GROUPS * GROUP), item = blockIdx.x * 8 + threadIdx.x / 32, row = item / runs, lane = threadIdx.x % 32, first = item % runs * (GROUPS * GROUP) + lane * 4;
    const float4 weight = *reinterpret_cast<const float4*>(a.weight + lane * 4);
    depend();
    if (row >= static_cast<int>(a.x.bucket)) return;
    const int live = live_rows(a.x);
    const float *x = row_of(a.x, row) + first, *gate = row_of(a.gate, row) + first;
    float4 own[GROUPS], gates[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) own[i] = *reinterpret_cast<const float4*>(x + i * GROUP), gates[i] = *reinterpret_cast<const float4*>(gate + i * GROUP);
    if (row >= live) return;
    float* out = row_of(a.out, row) + first;
    const RoundedRun rounded(a.rounded, row, first);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const float factor = 1.0f / sqrtf(warp_sum(add_squares(own[i], 0)) / static_cast<float>(GROUP) + a.eps);
        const float4 y = each(scaled(own[i], factor, weight), gates[i], [](float x, float g) { return x * silu(g); });
        if (a.out.data) *reinterpret_cast<float4*>(out + i * GROUP) = y;
        rounded.store_across(i * GROUP, a.rounded.height, y);
    }
}

// `add_rms_norm_768` for many rows of up to 3,072 columns that lie in fours: two thread blocks per multiprocessor go through them, and the next row is under way while one is at work.
extern "C" __global__ void __launch_bounds__(768, 2) add_rms_norm_many_768(const __grid_constant__ AddNormArgs a) {
    release_dependents();
    const int columns = a.norm.residual.columns, own = threadIdx.x * 4;
    const bool has = own < columns;
    const float4 zero = make_float4(0, 0, 0, 0), weight = has ? *reinterpret_cast<const float4*>(a.norm.weight + own) : zero;
    depend();
    const int live = live_rows(a.delta);
    float4 delta = zero, before = zero;
    auto ask = [&](int row) {
        if (!has || row >= live) return;
        delta = *reinterpret_cast<const float4*>(row_of(a.delta, row) + own), before = *reinterpret_cast<const float4*>(row_of(a.norm.residual, row) + own);
    };
    ask(blockIdx.x);
#pragma unroll 1
    for (int row = blockIdx.x; row < live; row += gridDim.x) {
        const float4 x = each(delta, before, [&](float d, float r) { return __fmaf_rn(d, a.norm.scale, r); });
        ask(row + gridDim.x);
        if (has) *reinterpret_cast<float4*>(row_of(a.norm.residual, row) + own) = x;
        const float factor = 1.0f / sqrtf(block_sum<768>(add_squares(x, 0)) / static_cast<float>(columns) + a.norm.eps);
        if (!has) continue;
        const float4 y = scaled(x, factor, weight);
        if (a.norm.out.data) *reinterpret_cast<float4*>(row_of(a.norm.out, row) + own) = y;
        store_rounded(a.rounded, row, own, y);
    }
}
