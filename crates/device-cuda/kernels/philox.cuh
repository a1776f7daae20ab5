// Noise of a draw as a function of seed, position and token.
#pragma once
#include "paceline.cuh"

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): the bits of tokens 4 quad .. 4 quad + 3.
__device__ __forceinline__ uint4 random_bits(uint32_t position, uint32_t quad, uint2 key) {
    uint4 c = make_uint4(position, quad, 0, 0);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c.x, b = static_cast<uint64_t>(0xCD9E8D57u) * c.z;
        c = make_uint4(static_cast<uint32_t>(b >> 32) ^ c.y ^ key.x, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ c.w ^ key.y, static_cast<uint32_t>(a));
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return c;
}
// In (0, 1), spaced finely near 0, which is where the largest noise comes from.
__device__ __forceinline__ float uniform(uint32_t bits) { return fminf(__fmul_rn(__fadd_rn(__uint2float_rn(bits), 0.5f), 1.0f / 4294967296.0f), 1 - 0x1p-24f); }
__device__ __forceinline__ float gumbel(float w) { return -logf(-log1pf(-w)); }
