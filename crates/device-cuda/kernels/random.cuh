// Matrices that nobody trained.
#pragma once
#include <cstdint>

// An element of a matrix that nobody trained: `random_element` of crates/device/src/weights.rs, bit for bit.
__device__ __forceinline__ float random_element(uint64_t seed, float width, uint64_t place) {
    uint64_t bits = seed ^ place * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
    bits ^= bits >> 31;
    return (static_cast<float>(bits >> 40) / 16777216.0f - 0.5f) * width;
}

// `random_scale` of crates/device/src/weights.rs.
__device__ __forceinline__ float random_scale(float width) { return __uint_as_float(__float_as_uint(width / 2.0f) & 0x7f800000) / 128.0f; }
