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

// What the results of an output go through, by the number that it has in the matrix. Made once for many of them, so that no load and no branch is between one and the next.
struct End {
    const bool biased, scaled;
    const float bias, scale;
    __device__ __forceinline__ End(const float* bias, const float* scale, uint32_t output) : biased(bias), scaled(scale), bias(bias ? bias[output] : 0), scale(scale ? scale[output] : 1) {}
    __device__ __forceinline__ float operator()(float sum) const {
        sum = biased ? sum + bias : sum;
        return scaled ? sum * scale : sum;
    }
};

// Stores the results of a warp: 16 rows of a weight from `first` on, N tokens of a strip; `value(j, q)` as tensor cores leave them: tokens 8 j + 2 (lane % 4) +
// q % 2, row lane / 4 + q / 2 * 8. Eight neighbouring outputs per token and store. Rows of gate and up become one result.
template <int N, class Value> __device__ __forceinline__ void store_results(const WideArgs& a, int first, int strip, int live, Value value) {
    const int lane = threadIdx.x % 32, columns = a.out.columns, column = (a.gated ? first / 2 : first) + lane / 4, other = column + (a.gated ? columns : 8), last = (a.gated ? 2 : 1) * columns - 1;
    const End end(a.bias, a.scale, min(column, last)), other_end(a.bias, a.scale, min(other, last));
    const uint32_t taken = N <= 32 && a.slots ? a.slots[strip] : ~0u;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int token = strip * N + j * 8 + lane % 4 * 2 + p;
            if (token >= live || column >= columns || (N <= 32 && !(taken >> (token - strip * N) & 1))) continue;
            float* out = row_of(a.out, token);
            const float x = end(value(j, p)), y = other_end(value(j, p + 2));
            if (a.gated) {
                const float active = silu(x * a.gate_scale) * y;
                if (a.out.data) out[column] = active;
                store_rounded_one(a.rounded, token, column, active);
            } else {
                out[column] = x;
                if (other < columns) out[other] = y;
            }
        }
}
