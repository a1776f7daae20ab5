// Elements as files store them: plain types, and the blocks of GGUF. Element by element, since this runs once per weight.
#pragma once
#include "e4m3.cuh"
#include "paceline.cuh"

// In the order of `DType::ALL`.
enum StoredType : uint32_t { STORED_F32, STORED_F16, STORED_BF16, STORED_Q4_0, STORED_Q4_1, STORED_Q5_0, STORED_Q5_1, STORED_Q8_0, STORED_Q4_K, STORED_Q5_K, STORED_Q6_K, STORED_Q2_K, STORED_Q3_K, STORED_IQ4_NL, STORED_IQ4_XS, STORED_F8_E4M3 };

// 8-bit floats come in blocks of 128 behind the scale of each (src/weight/load.rs).
constexpr uint32_t SCALE_BLOCK = 128, SCALED_BYTES = 4 + SCALE_BLOCK;

// Numbers of two bytes and of four, at any address.
__device__ __forceinline__ float stored_half(const uint8_t* at) { return __half2float(__ushort_as_half(static_cast<uint16_t>(at[0] | at[1] << 8))); }
__device__ __forceinline__ uint32_t stored_word(const uint8_t* at) { return at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24; }

// The low nibbles of sixteen bytes, then the high ones.
__device__ __forceinline__ int stored_nibble(const uint8_t* bytes, int index) { return index < 16 ? bytes[index] & 15 : bytes[index - 16] >> 4; }

// Scale and minimum of a group of 32 in Q4_K and Q5_K: six bits each, in twelve bytes.
__device__ __forceinline__ void six_bit_scales(const uint8_t* bytes, int group, int& scale, int& min) {
    if (group < 4) {
        scale = bytes[group] & 63, min = bytes[group + 4] & 63;
    } else {
        const int last = bytes[group + 4];
        scale = (last & 15) | (bytes[group - 4] >> 6) << 4, min = (last >> 4) | (bytes[group] >> 6) << 4;
    }
}

__device__ inline float stored_of_k(const uint8_t* block, int index, bool five) {
    int scale, min;
    six_bit_scales(block + 4, index / 32, scale, min);
    const uint8_t byte = block[(five ? 48 : 16) + index / 64 * 32 + index % 32];
    int code = index % 64 < 32 ? byte & 15 : byte >> 4;
    if (five) code |= (block[16 + index % 32] >> (index / 32) & 1) << 4;
    return __fmaf_rn(stored_half(block) * scale, static_cast<float>(code), -(stored_half(block + 2) * min));
}

// Four bits of each code in the first 128 bytes, two bits in the next 64, then sixteen scales and the scale of those.
__device__ inline float stored_of_six_bits(const uint8_t* block, int index) {
    const int half = index / 128, quarter = index % 128 / 32, at = index % 32;
    const int low = block[half * 64 + quarter % 2 * 32 + at], top = block[128 + half * 32 + at];
    const int code = ((quarter < 2 ? low & 15 : low >> 4) | (top >> (quarter * 2) & 3) << 4) - 32;
    return stored_half(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + index / 16])) * static_cast<float>(code);
}

// Two bits of each code: four runs of 32 codes in 32 bytes.
__device__ __forceinline__ int stored_two_bits(const uint8_t* bytes, int index) { return bytes[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3; }

// Sixteen scales and minima of four bits, the codes, and what both are multiplied by.
__device__ inline float stored_of_two_bits(const uint8_t* block, int index) {
    const int scales = block[index / 16], code = stored_two_bits(block + 16, index);
    return __fmaf_rn(stored_half(block + 80) * static_cast<float>(scales & 15), static_cast<float>(code), -(stored_half(block + 82) * static_cast<float>(scales >> 4)));
}

// The third bits, two bits of each code, sixteen scales of six bits (four in eight bytes, two in the next four) and the scale of those.
__device__ inline float stored_of_three_bits(const uint8_t* block, int index) {
    const int group = index / 16, code = stored_two_bits(block + 32, index) + (block[index % 32] >> (index / 32) & 1) * 4 - 4;
    const int scale = ((block[96 + group % 8] >> (group / 8 * 4) & 15) | (block[104 + group % 4] >> (group / 4 * 2) & 3) << 4) - 32;
    return stored_half(block + 108) * static_cast<float>(scale) * static_cast<float>(code);
}

// What the codes of IQ4 stand for.
__device__ __forceinline__ float non_linear(int code) {
    constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return static_cast<float>(values[code]);
}

// The scale of eight scales, two bits of each, four bits of each, and the codes of each.
__device__ inline float stored_of_non_linear(const uint8_t* block, int index) {
    const int group = index / 32;
    const int scale = ((block[4 + group / 2] >> (group % 2 * 4) & 15) | (block[2 + group / 4] >> (group % 4 * 2) & 3) << 4) - 32;
    return stored_half(block) * static_cast<float>(scale) * non_linear(stored_nibble(block + 8 + group * 16, index % 32));
}

// The element at a column of a stored row.
__device__ inline float stored_element(uint32_t type, const uint8_t* row, uint32_t column) {
    const int index = column % 32;
    const uint32_t block = column / 32;
    switch (type) {
    case STORED_F32: return reinterpret_cast<const float*>(row)[column];
    case STORED_F16: return __half2float(reinterpret_cast<const __half*>(row)[column]);
    case STORED_BF16: return __bfloat162float(reinterpret_cast<const bf16*>(row)[column]);
    case STORED_Q4_0: return row += block * 18, stored_half(row) * static_cast<float>(stored_nibble(row + 2, index) - 8);
    case STORED_Q4_1: return row += block * 20, __fmaf_rn(stored_half(row), static_cast<float>(stored_nibble(row + 4, index)), stored_half(row + 2));
    case STORED_Q5_0: return row += block * 22, stored_half(row) * static_cast<float>(static_cast<int>(stored_nibble(row + 6, index) | (stored_word(row + 2) >> index & 1) << 4) - 16);
    case STORED_Q5_1: return row += block * 24, __fmaf_rn(stored_half(row), static_cast<float>(stored_nibble(row + 8, index) | (stored_word(row + 4) >> index & 1) << 4), stored_half(row + 2));
    case STORED_Q8_0: return row += block * 34, stored_half(row) * static_cast<float>(static_cast<int8_t>(row[2 + index]));
    case STORED_Q4_K: return stored_of_k(row + column / 256 * 144, column % 256, false);
    case STORED_Q5_K: return stored_of_k(row + column / 256 * 176, column % 256, true);
    case STORED_Q2_K: return stored_of_two_bits(row + column / 256 * 84, column % 256);
    case STORED_Q3_K: return stored_of_three_bits(row + column / 256 * 110, column % 256);
    case STORED_IQ4_NL: return row += block * 18, stored_half(row) * non_linear(stored_nibble(row + 2, index));
    case STORED_IQ4_XS: return stored_of_non_linear(row + column / 256 * 136, column % 256);
    case STORED_F8_E4M3: return row += column / SCALE_BLOCK * SCALED_BYTES, e4m3_value(row[4 + column % SCALE_BLOCK]) * *reinterpret_cast<const float*>(row);
    default: return stored_of_six_bits(row + column / 256 * 210, column % 256);
    }
}
