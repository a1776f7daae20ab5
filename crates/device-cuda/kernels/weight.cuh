// How weights lie in memory, see src/weight.
//
// f32: rows one behind the other, `pitch` elements apart.
// bf16 and f16: [tile of 128 outputs][block of 64 inputs][128][64], each row of 128 bytes in the 128-byte swizzle: sixteen bytes at place c of row r are
// found at c ^ (r % 8). What a tile or a block has more than the weight is zero. `pitch` is the number of blocks.
// 8-bit floats: see f8_layout.cuh.
#pragma once
#include "args/views.h"
#include "f8_layout.cuh"

constexpr int TILE = 128;   // outputs
constexpr int BLOCK_K = 64; // inputs: 128 bytes, one swizzled row

constexpr uint32_t WEIGHT_F32 = 0, WEIGHT_BF16 = 1, WEIGHT_F16 = 2, WEIGHT_F8 = 3;

// The byte at which eight elements of a row begin, from a column that is a multiple of eight on.
__device__ __forceinline__ size_t tiled_offset(uint32_t row, uint32_t column, uint32_t blocks) {
    const uint32_t r = row % TILE, place = column % BLOCK_K / 8 ^ r % 8;
    return ((static_cast<size_t>(row / TILE) * blocks + column / BLOCK_K) * TILE + r) * (BLOCK_K * 2) + place * 16;
}

// The row of a weight in which row `row` of the matrix lies. Gate and up of a gated layer, `gated` rows each, take turns of eight rows, so that a thread that
// holds results of a row and of the one eight further on, as tensor cores leave them, has both.
__device__ __forceinline__ uint32_t packed_row(uint32_t row, uint32_t gated) {
    if (!gated) return row;
    const uint32_t own = row % gated;
    return own / 8 * 16 + own % 8 + row / gated * 8;
}

// One element of a weight. Neighbours in a row are neighbours in memory in groups of eight.
__device__ __forceinline__ float load_element(const RowSource& s, uint32_t row, uint32_t column) {
    if (s.kind == WEIGHT_F32) return reinterpret_cast<const float*>(s.data)[static_cast<size_t>(row) * s.pitch + column];
    if (s.kind == WEIGHT_F8) return f8_element(s.data, row, column, s.pitch);
    const uint8_t* at = s.data + tiled_offset(row, column / 8 * 8, s.pitch) + column % 8 * 2;
    return s.kind == WEIGHT_BF16 ? __bfloat162float(*reinterpret_cast<const bf16*>(at)) : __half2float(*reinterpret_cast<const __half*>(at));
}
