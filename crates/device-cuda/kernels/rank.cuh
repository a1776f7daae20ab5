// The order of tokens as one number: comparing ranks is all that selection does.
#pragma once
#include "paceline.cuh"

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int ID_BITS = 23;

// Larger is more likely; equal logits by id, lower ids first. Zero for nothing, more than any for what is not a number or infinite.
constexpr uint64_t NOT_A_NUMBER = ~0ull;
__device__ __forceinline__ uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
    return bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
__device__ __forceinline__ uint64_t ranked(float x, int id) { return static_cast<uint64_t>(ordered(x)) << ID_BITS | ((1u << ID_BITS) - 1 - id); }
__device__ __forceinline__ uint64_t checked_rank(float x, int id) { return x < INFINITY ? x > -INFINITY ? ranked(x, id) : 0 : NOT_A_NUMBER; }
__device__ __forceinline__ bool is_rank(uint64_t rank) { return rank != 0 && rank != NOT_A_NUMBER; }
__device__ __forceinline__ int id_of(uint64_t rank) { return (1 << ID_BITS) - 1 - static_cast<int>(rank & ((1u << ID_BITS) - 1)); }
__device__ __forceinline__ float logit_of(uint64_t rank) {
    const uint32_t key = static_cast<uint32_t>(rank >> ID_BITS);
    return __uint_as_float(key ^ (key >> 31 ? 1u << 31 : ~0u));
}
__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
