// What kernels of products have in common.
//
// Weight: tiles, see weight.cuh; a block of 128 outputs x 64 inputs (128 of 8-bit floats) is 16 KB in one piece.
// Inputs: rounded to the weight's type (bf16 for 8-bit floats), by `round.cu` or by whatever made them, to [strip of N tokens][block of 64 inputs][N][64] in the same swizzle: a block is
// one piece too, and so are two. Columns past the last are zero. Rows without data may hold anything: a token's results come from its own row alone.
#pragma once
#include "args/product.h"
#include "kplan.cuh"
#include "rounded.cuh"

// Kinds of weights, which kernels are templates over: the inputs of a block, its bytes, and its room in a ring, whole kilobytes since tokens lie behind it. `strips_apart`: tokens of
// different strips are for different thread blocks, because there are no registers for more. `stages`: results leave by way of shared memory, see staged.cuh.
template <bool F16> struct Tiled {
    static constexpr int block = BLOCK_K, bytes = TILE * BLOCK_K * 2, room = bytes;
    static constexpr bool strips_apart = false, stages = true;
};
struct Scaled {
    static constexpr int block = F8_BLOCK, bytes = F8_BYTES, room = (F8_BYTES + 1023) / 1024 * 1024;
    static constexpr bool strips_apart = true, stages = false; // totals are in the way
};

// A stage of a ring: a block of a weight, and N tokens for it.
template <class Weight, int N> struct Stage {
    static constexpr int token_bytes = N * Weight::block * 2, bytes = Weight::room + token_bytes, loaded = Weight::bytes + token_bytes;
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
