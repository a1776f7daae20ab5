// What kernels of products have in common.
//
// Weight: tiles, see weight.cuh; a block of 128 outputs x 64 inputs is 16 KB in one piece.
// Inputs: rounded to the weight's type by `round.cu` to [strip of N tokens][block of 64 inputs][N][64] in the same swizzle: a block is one piece too. Rows
// without data and columns past the last are zero.
#pragma once
#include "args/product.h"
#include "kplan.cuh"
#include "step.cuh"

constexpr int WEIGHT_BYTES = TILE * BLOCK_K * 2;

template <int N> struct Stage {
    static constexpr int token_bytes = N * BLOCK_K * 2, bytes = WEIGHT_BYTES + token_bytes;
};

// One result: outputs `row` of a weight for one token, out of `total`.
__device__ __forceinline__ float finished(float sum, const float* bias, const float* scale, uint32_t output) {
    if (bias) sum += bias[output];
    if (scale) sum *= scale[output];
    return sum;
}
