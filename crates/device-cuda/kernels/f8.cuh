// Products with weights of 8-bit floats (f8_layout.cuh), multiplied as bf16, which holds them all.
//
// Law: y[m] = sum over pieces of K, ascending, of (sum over blocks, ascending, of fma(scale[m][block], dot, sum)), where dot is a chain of tensor-core products
// over the block's 128 inputs that starts at zero. All kernels of such a weight do that; its K plan is cut in blocks of 128.
#pragma once
#include "product.cuh"

constexpr int F8_STEPS = F8_BLOCK / 16;

// Codes whose bits are where bf16 has them are their value times 2^-120, also those without a leading one: bf16 keeps them.
__device__ __forceinline__ uint32_t f8_value(uint32_t bits) {
    uint32_t value;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(bits), "r"(0x7B807B80), "r"(0x80008000));
    return value;
}
__device__ __forceinline__ uint32_t f8_first(uint32_t word) { return f8_value(word & 0x87F087F0); }
__device__ __forceinline__ uint32_t f8_second(uint32_t word) { return f8_value((word << 4 & 0x80F080F0) | (word >> 4 & 0x07000700)); }

// This lane's codes of two steps, from shared memory, and the operands that they are.
__device__ __forceinline__ uint4 f8_load(uint32_t address) {
    uint4 codes;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w) : "r"(address) : "memory");
    return codes;
}
__device__ __forceinline__ void f8_operands(uint32_t (&a)[4], uint32_t (&b)[4], uint4 codes) {
    a[0] = f8_first(codes.x), a[1] = f8_second(codes.x), a[2] = f8_first(codes.y), a[3] = f8_second(codes.y);
    b[0] = f8_first(codes.z), b[1] = f8_second(codes.z), b[2] = f8_first(codes.w), b[3] = f8_second(codes.w);
}
// Where this lane's codes of a block begin, for 16 rows; steps come in pairs, 512 bytes apart.
__device__ __forceinline__ uint32_t f8_codes(uint32_t block, int sixteen) { return block + sixteen * 16 * F8_BLOCK + threadIdx.x % 32 * 16; }

// The scales of the two rows that a lane has of 16.
__device__ __forceinline__ float2 f8_scales(uint32_t block, int sixteen) {
    const uint32_t at = block + F8_CODES + (sixteen * 16 + threadIdx.x % 32 / 4) * 4;
    float2 scales;
    asm volatile("ld.shared.f32 %0, [%2]; ld.shared.f32 %1, [%2 + 32];" : "=f"(scales.x), "=f"(scales.y) : "r"(at) : "memory");
    return scales;
}
