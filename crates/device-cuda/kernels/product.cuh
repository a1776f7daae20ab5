// What kernels of products have in common.
//
// Weight: tiles, see weight.cuh; a block of 128 outputs x 64 inputs is 16 KB in one piece.
// Inputs: rounded to the weight's type, by `round.cu` or by whatever made them, to [strip of N tokens][block of 64 inputs][N][64] in the same swizzle: a block is
// one piece too. Columns past the last are zero. Rows without data may hold anything: a token's results come from its own row alone.
#pragma once
#include "args/product.h"
#include "kplan.cuh"
#include "rounded.cuh"

constexpr int WEIGHT_BYTES = TILE * BLOCK_K * 2;

template <int N> struct Stage {
    static constexpr int token_bytes = N * BLOCK_K * 2, bytes = WEIGHT_BYTES + token_bytes;
};

// One result, by the number that its output has in the matrix.
__device__ __forceinline__ float finished(float sum, const float* bias, const float* scale, uint32_t output) {
    if (bias) sum += bias[output];
    if (scale) sum *= scale[output];
    return sum;
}

// Stores the results of a warp: 16 rows of a weight from `first` on, N tokens of a strip; `value(j, q)` as tensor cores leave them: tokens 8 j + 2 (lane % 4) +
// q % 2, row lane / 4 + q / 2 * 8. Eight neighbouring outputs per token and store. Rows of gate and up become one result.
template <int N, class Value> __device__ __forceinline__ void store_results(const WideArgs& a, int first, int strip, int live, Value value) {
    const int lane = threadIdx.x % 32, own = lane / 4, columns = a.out.columns;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int token = strip * N + j * 8 + lane % 4 * 2 + p;
            if (token >= live) continue;
            float* out = row_of(a.out, token);
            if (a.gated) {
                const int column = first / 2 + own;
                if (column >= columns) continue;
                const float gate = finished(value(j, p), a.bias, a.scale, column), up = finished(value(j, p + 2), a.bias, a.scale, columns + column);
                const float y = silu(gate * a.gate_scale) * up;
                out[column] = y;
                store_rounded_one(a.rounded, token, column, y);
            } else {
#pragma unroll
                for (int q = 0; q < 2; q++)
                    if (const int column = first + own + q * 8; column < columns) out[column] = finished(value(j, p + q * 2), a.bias, a.scale, column);
            }
        }
}
