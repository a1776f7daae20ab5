// Floats of eight bits: a sign, four bits of exponent, three of mantissa; all ones is not a number. As in crates/device/src/e4m3.rs.
#pragma once
#include <cstdint>

constexpr float E4M3_MAX = 448.0f;

// Bits moved to where f32 has them are the value times 2^-120, numbers without a leading one included.
__device__ __forceinline__ float e4m3_value(uint32_t code) {
    if ((code & 0x7f) == 0x7f) return __int_as_float(0x7fffffff);
    return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * __uint_as_float((127 + 120) << 23);
}

// The nearest, ties to even; what is larger than all becomes the largest.
__device__ __forceinline__ uint32_t e4m3_nearest(float value) {
    const float magnitude = fabsf(value);
    const uint32_t bits = __float_as_uint(magnitude);
    uint32_t code;
    if (magnitude != magnitude) code = 0x7f;
    else if (magnitude < 1.0f / 64.0f) code = __float2uint_rn(magnitude * 512.0f);
    else code = min(((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120u << 3), 0x7eu);
    return code | __float_as_uint(value) >> 31 << 7;
}
