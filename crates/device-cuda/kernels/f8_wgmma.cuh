// A block of 8-bit weights on Hopper's tensor cores.
#pragma once
#include "f8.cuh"
#include "wgmma.cuh"

#if HOPPER
// Adds a block's products, times the scales, to the piece of a warpgroup: 64 outputs x N tokens. Tokens at `x`, codes and scales at `w`. All of it has been read when this returns.
template <int N> __device__ __forceinline__ void f8_block(float (&piece)[N / 2], uint32_t x, uint32_t w) {
    const int sixteen = threadIdx.x / 32;
    const uint32_t codes = f8_codes(w, sixteen);
    uint32_t operands[F8_STEPS][4];
    float dot[N / 2];
#pragma unroll
    for (int step = 0; step < F8_STEPS; step += 2) f8_operands(operands[step], operands[step + 1], codes + step / 2 * 512);
    const float2 scales = f8_scales(w, sixteen);
    regained(operands);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < F8_STEPS; step++) wgmma_weights<N>(dot, operands[step], operand(x + step / 4 * N * 128 + step % 4 * 32), step > 0);
    wgmma_commit();
    wgmma_wait<0>();
    regained(dot);
#pragma unroll
    for (int i = 0; i < N / 2; i++) piece[i] = __fmaf_rn(i % 4 < 2 ? scales.x : scales.y, dot[i], piece[i]);
    __syncwarp();
}
#endif
