// The end of a product that was left in pieces: pieces are added in ascending order, then bias and scale. Alone, or together with what follows: the addition to
// the residual stream and its norm, or an activation, by the same operations in the same order as those kernels have. What is likely to be the input of the
// next product is left where that looks for it too.
#include "norm.cuh"
#include "product.cuh"
#include "rounded.cuh"
#include "args/finish.h"

// Four neighbouring outputs of a token, which begin at row `row` of the weight. All pieces are asked for before the first is added.
__device__ __forceinline__ float4 finish_four(const FinishArgs& a, int token, int column, int row) {
    const int tile = row / TILE, count = last_worker(a.plan, tile) - first_worker(a.plan, tile) + 1;
    const float4* at = reinterpret_cast<const float4*>(a.pieces + (static_cast<size_t>(tile) * a.plan.pieces * a.width + token) * TILE + row % TILE);
    const uint32_t step = a.width * (TILE / 4);
    float4 part[PIECE_LIMIT];
#pragma unroll
    for (int piece = 0; piece < PIECE_LIMIT; piece++, at += step)
        if (piece < count) part[piece] = *at;
    float4 sum = part[0];
#pragma unroll
    for (int piece = 1; piece < PIECE_LIMIT; piece++)
        if (piece < count) sum = each(sum, part[piece], [](float a, float b) { return __fadd_rn(a, b); });
    const int outputs = a.outputs;
    if (a.bias) sum = each(sum, load_four(a.bias, column, outputs), [](float a, float b) { return a + b; });
    if (a.scale) sum = each(sum, load_four(a.scale, column, outputs), [](float a, float b) { return a * b; });
    return sum;
}

// A thread for four outputs, blockIdx.y for the token.
extern "C" __global__ void __launch_bounds__(128) finish_rows(const __grid_constant__ FinishRowsArgs a) {
    enter();
    const int token = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (token >= live_rows(a.out) || column >= a.out.columns) return;
    store_four(row_of(a.out, token), column, a.out.columns, finish_four(a.product, token, column, column));
}

extern "C" __global__ void __launch_bounds__(128) finish_silu_gated(const __grid_constant__ FinishRowsArgs a) {
    enter();
    const int token = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4, columns = a.out.columns;
    if (token >= live_rows(a.out) || column >= columns) return;
    const float4 gate = finish_four(a.product, token, column, packed_row(column, a.product.gated)), up = finish_four(a.product, token, columns + column, packed_row(columns + column, a.product.gated));
    const float4 active = each(gate, up, [&](float g, float u) { return silu(g * a.gate_scale) * u; });
    store_four(row_of(a.out, token), column, columns, active);
    store_rounded(a.rounded, token, column, active);
}

extern "C" __global__ void __launch_bounds__(128) finish_relu_squared(const __grid_constant__ FinishRowsArgs a) {
    enter();
    const int token = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (token >= live_rows(a.out) || column >= a.out.columns) return;
    const float4 active = each(finish_four(a.product, token, column, column), [](float x) { const float p = fmaxf(x, 0.0f); return p * p; });
    store_four(row_of(a.out, token), column, a.out.columns, active);
    store_rounded(a.rounded, token, column, active);
}

template <int Threads> __device__ __forceinline__ void finish_add_norm(const FinishAddNormArgs& a) {
    enter();
    if (blockIdx.x >= live_rows(a.norm.out)) return;
    add_and_norm<Threads, 1>(a.norm, blockIdx.x, [&](int column) { return finish_four(a.product, blockIdx.x, column, column); }, [&](int column, float4 x) { store_rounded(a.rounded, blockIdx.x, column, x); });
}
extern "C" __global__ void __launch_bounds__(256) finish_add_norm_256(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<256>(a); }
extern "C" __global__ void __launch_bounds__(512) finish_add_norm_512(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<512>(a); }
// Bound as if it had more threads: with 64 registers it can start beside a product that is ending.
extern "C" __global__ void __launch_bounds__(1024) finish_add_norm_768(const __grid_constant__ FinishAddNormArgs a) { finish_add_norm<768>(a); }
