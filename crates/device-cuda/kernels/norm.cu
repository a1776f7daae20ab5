// RMS norms: alone, behind an addition to the residual stream, and by groups with a gate.
//
// A thread block per row, or, for small groups of columns, a warp per group. A thread takes every 256th (32nd) group of four neighbours, so the order of a sum
// follows from the number of columns alone. Rows are read twice; the second time they come from the first-level cache.
#include "args/dense.h"
#include "rows.cuh"

constexpr int THREADS = 256;

template <int Team, class Value> __device__ __forceinline__ float inverse_rms(int columns, float eps, Value value) {
    float sum = 0;
    for (int c = threadIdx.x % Team * 4; c < columns; c += Team * 4) sum = add_squares(value(c), sum);
    return 1.0f / sqrtf(team_sum<Team>(sum) / static_cast<float>(columns) + eps);
}

__device__ __forceinline__ float4 scaled(float4 x, float factor, float4 weight) {
    return each(x, weight, [&](float x, float w) { return x * factor * w; });
}

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ NormArgs a) {
    enter();
    const int row = blockIdx.x, columns = a.x.columns;
    if (row >= live_rows(a.x)) return;
    const float* x = row_of(a.x, row);
    float* out = row_of(a.out, row);
    const float factor = inverse_rms<THREADS>(columns, a.eps, [&](int c) { return load_four(x, c, columns); });
    for (int c = threadIdx.x * 4; c < columns; c += THREADS * 4) store_four(out, c, columns, scaled(load_four(x, c, columns), factor, load_four(a.weight, c, columns)));
}

extern "C" __global__ void __launch_bounds__(THREADS) add_rms_norm(const __grid_constant__ AddNormArgs a) {
    enter();
    const int row = blockIdx.x, columns = a.delta.columns;
    if (row >= live_rows(a.delta)) return;
    const float* delta = row_of(a.delta, row);
    float *residual = row_of(a.residual, row), *out = row_of(a.out, row);
    const float factor = inverse_rms<THREADS>(columns, a.eps, [&](int c) {
        const float4 sum = each(load_four(delta, c, columns), load_four(residual, c, columns), [&](float d, float r) { return __fmaf_rn(d, a.scale, r); });
        store_four(residual, c, columns, sum);
        return sum;
    });
    for (int c = threadIdx.x * 4; c < columns; c += THREADS * 4) store_four(out, c, columns, scaled(load_four(residual, c, columns), factor, load_four(a.weight, c, columns)));
}

// The `item`-th group: groups of a row one behind the other.
template <int Team> __device__ __forceinline__ void gated_group(const GatedNormArgs& a, int item) {
    const int groups = a.x.columns / a.group, row = item / groups, first = item % groups * a.group, columns = a.group;
    if (row >= live_rows(a.x)) return;
    const float *x = row_of(a.x, row) + first, *gate = row_of(a.gate, row) + first, *weight = a.weight_per_column ? a.weight + first : a.weight;
    float* out = row_of(a.out, row) + first;
    auto gated = [&](int c, float4 x) { return each(x, load_four(gate, c, columns), [](float x, float g) { return x * silu(g); }); };
    if (!a.weight) {
        for (int c = threadIdx.x % Team * 4; c < columns; c += Team * 4) store_four(out, c, columns, gated(c, load_four(x, c, columns)));
    } else if (a.gate_first) {
        const float factor = inverse_rms<Team>(columns, a.eps, [&](int c) {
            const float4 y = gated(c, load_four(x, c, columns));
            store_four(out, c, columns, y);
            return y;
        });
        for (int c = threadIdx.x % Team * 4; c < columns; c += Team * 4) store_four(out, c, columns, scaled(load_four(out, c, columns), factor, load_four(weight, c, columns)));
    } else {
        const float factor = inverse_rms<Team>(columns, a.eps, [&](int c) { return load_four(x, c, columns); });
        for (int c = threadIdx.x % Team * 4; c < columns; c += Team * 4) store_four(out, c, columns, gated(c, scaled(load_four(x, c, columns), factor, load_four(weight, c, columns))));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gated_norm_warps(const __grid_constant__ GatedNormArgs a) {
    enter();
    gated_group<32>(a, blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
}
extern "C" __global__ void __launch_bounds__(THREADS) gated_norm_blocks(const __grid_constant__ GatedNormArgs a) {
    enter();
    gated_group<THREADS>(a, blockIdx.x);
}
