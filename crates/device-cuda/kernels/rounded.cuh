// Elements rounded to the type of a weight, laid out as product.cuh says.
#pragma once
#include "rows.cuh"
#include "weight.cuh"

// f16 ends at 65,504; what is larger becomes that. What is not a number stays so.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
    auto limit = [](float x) { return x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f); };
    const __half2 pair = __floats2half2_rn(limit(low), limit(high));
    return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint2 pack_four(float4 v, bool half) {
    return half ? make_uint2(pack_half(v.x, v.y), pack_half(v.z, v.w)) : make_uint2(pack(v.x, v.y), pack(v.z, v.w));
}

// The byte at which eight neighbouring columns begin.
__device__ __forceinline__ size_t rounded_offset(uint32_t row, uint32_t column, uint32_t height, uint32_t blocks) {
    const uint32_t r = row % height;
    return ((static_cast<size_t>(row / height) * blocks + column / BLOCK_K) * height + r) * (BLOCK_K * 2) + (column % BLOCK_K / 8 ^ r % 8) * 16;
}

// Leaves four columns of a result where the next product looks for its inputs, if there is such a place.
__device__ __forceinline__ void store_rounded(const RoundedRows& to, int row, int column, float4 v) {
    if (to.data) *reinterpret_cast<uint2*>(to.data + rounded_offset(row, column / 8 * 8, to.height, to.blocks) + column % 8 * 2) = pack_four(v, to.half);
}
__device__ __forceinline__ void store_rounded_pair(const RoundedRows& to, int row, int column, float x, float y) {
    if (to.data) *reinterpret_cast<uint32_t*>(to.data + rounded_offset(row, column / 8 * 8, to.height, to.blocks) + column % 8 * 2) = to.half ? pack_half(x, y) : pack(x, y);
}
__device__ __forceinline__ void store_rounded_one(const RoundedRows& to, int row, int column, float x) {
    if (to.data) *reinterpret_cast<uint16_t*>(to.data + rounded_offset(row, column / 8 * 8, to.height, to.blocks) + column % 8 * 2) = static_cast<uint16_t>(pack_four(make_float4(x, 0, 0, 0), to.half).x);
}

// Where four columns of rows that follow each other lie, from a row on that is a multiple of eight or less: found out once for all of them. Strips are whole multiples of that.
struct RoundedRun {
    uint8_t* at;
    uint32_t chunk, row;
    bool half;
    __device__ __forceinline__ RoundedRun(const RoundedRows& to, int first, int column) : at(to.data), chunk(column % BLOCK_K / 8), row(first % 8), half(to.half) {
        if (at) at += ((static_cast<size_t>(first / to.height) * to.blocks + column / BLOCK_K) * to.height + first % to.height) * (BLOCK_K * 2) + column % 8 * 2;
    }
    __device__ __forceinline__ void store(int i, float4 v) const {
        if (at) *reinterpret_cast<uint2*>(at + i * (BLOCK_K * 2) + (chunk ^ (row + i)) * 16) = pack_four(v, half);
    }
    // Of the first row, so many columns further on: whole blocks.
    __device__ __forceinline__ void store_across(uint32_t columns, uint32_t height, float4 v) const {
        if (at) *reinterpret_cast<uint2*>(at + static_cast<size_t>(columns / BLOCK_K) * height * (BLOCK_K * 2) + (chunk ^ row) * 16) = pack_four(v, half);
    }
};
