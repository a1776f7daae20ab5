// How weights of 8-bit floats (e4m3), with a scale per row and 128 inputs, lie in memory.
//
// [tile of 128 outputs][block of 128 inputs] of 16,896 bytes: the codes in the order in which tensor cores take them, then the tile's 128 f32 scales.
// Codes: [16 rows][32 inputs][lane][16 bytes]; a lane's four words are, for each of two steps of 16 inputs, inputs 2 (lane % 4) + {0, 1} and the same + 8. A word has
// rows lane / 4 and lane / 4 + 8 of both inputs, one in either half. Of a half, the first row has bit 15 (sign) and bits 10..4 (the rest), where bf16 has them;
// the second has bit 11 (sign), bits 14..12 and bits 3..0.
#pragma once
#include "e4m3.cuh"

constexpr int F8_BLOCK = 128, F8_CODES = 128 * F8_BLOCK, F8_BYTES = F8_CODES + 128 * 4;

// The byte at which a tile's block begins.
__device__ __forceinline__ size_t f8_block_at(uint32_t row, uint32_t column, uint32_t blocks) { return (static_cast<size_t>(row / 128) * blocks + column / F8_BLOCK) * F8_BYTES; }

// The byte of a block at which the word with an element begins; odd columns are in its upper half.
__device__ __forceinline__ uint32_t f8_word_at(uint32_t row, uint32_t column) {
    const uint32_t step = column % F8_BLOCK / 16, lane = row % 8 * 4 + column % 8 / 2;
    return row % 128 / 16 * (16 * F8_BLOCK) + step / 2 * 512 + lane * 16 + step % 2 * 8 + column % 16 / 8 * 4;
}

// A code's bits in its half, for the first row of two or the second; and back.
__device__ __forceinline__ uint32_t f8_bits(uint32_t code, bool second) {
    const uint32_t sign = code >> 7, rest = code & 0x7f;
    return second ? sign << 11 | (rest >> 4) << 12 | (rest & 15) : sign << 15 | rest << 4;
}
__device__ __forceinline__ uint32_t f8_code(uint32_t half, bool second) {
    return second ? (half >> 11 & 1) << 7 | (half >> 12 & 7) << 4 | (half & 15) : (half >> 15 & 1) << 7 | (half >> 4 & 0x7f);
}

__device__ __forceinline__ float f8_element(const uint8_t* data, uint32_t row, uint32_t column, uint32_t blocks) {
    const uint8_t* block = data + f8_block_at(row, column, blocks);
    const uint32_t half = *reinterpret_cast<const uint16_t*>(block + f8_word_at(row, column) + column % 2 * 2);
    return e4m3_value(f8_code(half, row % 16 >= 8)) * reinterpret_cast<const float*>(block + F8_CODES)[row % 128];
}
