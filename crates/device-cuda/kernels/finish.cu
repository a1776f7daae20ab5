// The end of a product that was left in pieces: pieces are added in ascending order, then bias and scale. Alone, or together with what follows: the addition to
// the residual stream and its norm, or an activation, by the same operations in the same order as those kernels have. What is likely to be the input of the
// next product is left where that looks for it too.
#include "norm.cuh"
#include "pieces.cuh"
#include "product.cuh"
#include "rounded.cuh"
#include "args/finish.h"

// The four columns of a thread, behind those that the product has finished.
__device__ __forceinline__ int first_column(const FinishRowsArgs& a) { return a.first_column + (blockIdx.x * blockDim.x + threadIdx.x) * 4; }

// A thread for four outputs, blockIdx.y for the token. Pieces are asked for before it is known whether the token has data: a kernel this small is made of latencies.
template <class Then> __device__ __forceinline__ void finish_four(const FinishRowsArgs& a, Then then) {
    release_dependents();
    const int token = blockIdx.y, column = first_column(a);
    const Pieces outputs(a.product.sums, token, column);
    depend();
    const int live = live_rows(a.out);
    const float4 sum = outputs.four();
    if (token < live && column < a.out.columns) then(token, column, with_epilogue(a.product, sum, column));
}

extern "C" __global__ void __launch_bounds__(128) finish_rows(const __grid_constant__ FinishRowsArgs a) {
    finish_four(a, [&](int token, int column, float4 x) { store_four(row_of(a.out, token), column, a.out.columns, x); });
}

extern "C" __global__ void __launch_bounds__(128) finish_relu_squared(const __grid_constant__ FinishRowsArgs a) {
    finish_four(a, [&](int token, int column, float4 x) {
        const float4 active = each(x, [](float x) { const float p = fmaxf(x, 0.0f); return p * p; });
        store_result(a.out, token, column, active);
        store_rounded(a.rounded, token, column, active);
    });
}

extern "C" __global__ void __launch_bounds__(128) finish_silu_gated(const __grid_constant__ FinishRowsArgs a) {
    release_dependents();
    const int token = blockIdx.y, column = first_column(a), columns = a.out.columns;
    const Pieces gates(a.product.sums, token, packed_row(column, a.product.gated)), ups(a.product.sums, token, packed_row(columns + column, a.product.gated));
    depend();
    const int live = live_rows(a.out);
    const float4 gate = gates.four(), up = ups.four();
    if (token >= live || column >= columns) return;
    const float4 active = each(with_epilogue(a.product, gate, column), with_epilogue(a.product, up, columns + column), [&](float g, float u) { return silu(g * a.gate_scale) * u; });
    store_result(a.out, token, column, active);
    store_rounded(a.rounded, token, column, active);
}

// The same for many tokens: a thread has four outputs of `TOKENS` of them, since where pieces lie takes longer to find out than to add them up.
constexpr int TOKENS = 4;
template <class Then> __device__ __forceinline__ void finish_fours(const FinishRowsArgs& a, Then then) {
    release_dependents();
    const int first = blockIdx.y * TOKENS, column = first_column(a);
    const Pieces outputs(a.product.sums, first, column);
    depend();
    const int live = live_rows(a.out);
    float4 x[TOKENS];
    outputs.fours<2>(x, [](int i) { return i * TILE; });
    if (column >= a.out.columns) return;
#pragma unroll
    for (int i = 0; i < TOKENS; i++) x[i] = with_epilogue(a.product, x[i], column);
    const RoundedRun rounded(a.rounded, first, column);
#pragma unroll
    for (int i = 0; i < TOKENS; i++)
        if (first + i < live) then(first + i, column, x[i], [&](float4 y) { rounded.store(i, y); });
}

extern "C" __global__ void __launch_bounds__(128, 6) finish_rows_many(const __grid_constant__ FinishRowsArgs a) {
    finish_fours(a, [&](int token, int column, float4 x, auto) { store_four(row_of(a.out, token), column, a.out.columns, x); });
}

extern "C" __global__ void __launch_bounds__(128, 6) finish_relu_squared_many(const __grid_constant__ FinishRowsArgs a) {
    finish_fours(a, [&](int token, int column, float4 x, auto round) {
        const float4 active = each(x, [](float x) { const float p = fmaxf(x, 0.0f); return p * p; });
        store_result(a.out, token, column, active);
        round(active);
    });
}

// For weights in which gate and up take turns of eight rows: both are in one tile.
extern "C" __global__ void __launch_bounds__(128, 6) finish_silu_gated_many(const __grid_constant__ FinishRowsArgs a) {
    release_dependents();
    const int first = blockIdx.y * TOKENS, column = first_column(a), columns = a.out.columns;
    const Pieces both(a.product.sums, first, packed_row(min(column, columns - 4), a.product.gated)); // past the last column up would be past the tile
    depend();
    const int live = live_rows(a.out);
    float4 x[2 * TOKENS];
    both.fours<1>(x, [](int i) { return i / 2 * TILE + i % 2 * 8; });
    if (column >= columns) return;
#pragma unroll
    for (int i = 0; i < 2 * TOKENS; i++) x[i] = with_epilogue(a.product, x[i], i % 2 * columns + column);
    const RoundedRun rounded(a.rounded, first, column);
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
        if (first + i >= live) break;
        const float4 active = each(x[2 * i], x[2 * i + 1], [&](float g, float u) { return silu(g * a.gate_scale) * u; });
        store_result(a.out, first + i, column, active);
        rounded.store(i, active);
    }
}

template <int Threads> __device__ __forceinline__ void finish_add_norm(const FinishAddNormArgs& a) {
    release_dependents();
    const int row = blockIdx.x, columns = a.norm.residual.columns, own = threadIdx.x * 4;
    float* residual = row_of(a.norm.residual, row);
    const Pieces outputs(a.product.sums, row, own);
    const float4 zero = make_float4(0, 0, 0, 0), weight = own < columns ? load_four(a.norm.weight, own, columns) : zero;
    depend();
    const int live = live_rows(a.norm.out);
    auto added = [&](float4 sum, float4 before, int c) { return each(with_epilogue(a.product, sum, c), before, [&](float d, float r) { return __fmaf_rn(d, a.norm.scale, r); }); };
    float4 x = zero;
    if (own < columns) {
        const float4 before = load_four(residual, own, columns); // on its way beside the pieces
        x = added(outputs.four(), before, own);
    }
    if (row >= live) return;
    auto first = [&](int c) {
        const float4 sum = c == own ? x : added(Pieces(a.product.sums, row, c).four(), load_four(residual, c, columns), c);
        store_four(residual, c, columns, sum);
        return sum;
    };
    norm_columns<Threads, 1>(columns, a.norm.eps, first, [&](int c) { return load_four(residual, c, columns); }, [&](int c, float4 x, float factor) {
        const float4 y = scaled(x, factor, c == own ? weight : load_four(a.norm.weight, c, columns));
        store_result(a.norm.out, row, c, y);
        store_rounded(a.rounded, row, c, y);
    });
}
extern "C" __global__ void __launch_bounds__(256, 3) finish_add_norm_256(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<256>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) finish_add_norm_512(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<512>(a); }
// Bound as if it had more threads where kernels start early: with 72 registers it can start beside a product that is ending.
extern "C" __global__ void __launch_bounds__(SM90 ? 896 : 768) finish_add_norm_768(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<768>(a); }

// The same where there are more rows than multiprocessors: two thread blocks on each, of which one adds up while the other waits for what it has asked for. So that registers suffice for two, a
// thread has four columns and no more, all rows lie in fours, and five pieces are under way at a time.
extern "C" __global__ void __launch_bounds__(768, 2) finish_add_norm_many_768(const __grid_constant__ FinishAddNormArgs a) {
    release_dependents();
    const int row = blockIdx.x, columns = a.norm.residual.columns, own = threadIdx.x * 4;
    const Pieces outputs(a.product.sums, row, own);
    if (own < columns && own % 32 == 0) prefetch(a.norm.weight + own);
    depend();
    const int live = live_rows(a.norm.out);
    float4* residual = reinterpret_cast<float4*>(row_of(a.norm.residual, row) + own);
    float4 x = make_float4(0, 0, 0, 0);
    if (own < columns) {
        float4 sum[1];
        const float4 before = *residual; // on its way beside the pieces
        outputs.fours<4>(sum, [](int) { return 0; });
        x = each(with_epilogue(a.product, sum[0], own), before, [&](float d, float r) { return __fmaf_rn(d, a.norm.scale, r); });
        if (row < live) *residual = x;
    }
    if (row >= live) return;
    const float factor = 1.0f / sqrtf(block_sum<768>(add_squares(x, 0)) / static_cast<float>(columns) + a.norm.eps);
    if (own >= columns) return;
    const float4 y = scaled(x, factor, load_four(a.norm.weight, own, columns));
    store_result(a.norm.out, row, own, y);
    store_rounded(a.rounded, row, own, y);
}
