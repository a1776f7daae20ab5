// Packing weights of 8-bit floats: stored rows become rows of a weight as f8_layout.cuh has it.
//
// A warp makes the 128 elements of a row and a block, four per lane. Elements and scales of files stay as they are; other types get a scale that takes the largest of the
// 128 to the largest there is, and are rounded to nearest even. Words are shared by two rows, so bits are added to memory that was zero.
#include "args/weight.h"
#include "random.cuh"
#include "stored.cuh"
#include "weight.cuh"

// Stores four neighbouring codes of a row, from a column that is a multiple of four on.
__device__ __forceinline__ void store_codes(uint8_t* data, uint32_t blocks, uint32_t row, uint32_t column, const uint32_t (&code)[4]) {
    const bool second = row % 16 >= 8;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        uint32_t* word = reinterpret_cast<uint32_t*>(data + f8_block_at(row, column, blocks) + f8_word_at(row, column + j));
        atomicOr(word, f8_bits(code[j], second) | f8_bits(code[j + 1], second) << 16);
    }
}

// Stores the scale of a row and a block. False if there is something that is not finite.
__device__ __forceinline__ bool store_scale(uint8_t* data, uint32_t blocks, uint32_t row, uint32_t block, float scale, const uint32_t (&code)[4]) {
    uint8_t* at = data + f8_block_at(row, block * F8_BLOCK, blocks) + F8_CODES;
    if (threadIdx.x % 32 == 0) reinterpret_cast<float*>(at)[row % TILE] = scale;
    bool finite = isfinite(scale);
#pragma unroll
    for (int j = 0; j < 4; j++) finite &= (code[j] & 0x7f) != 0x7f;
    return finite;
}

// Goes through the rows and blocks of a weight, a warp for each: `make(row, block, column)`, a lane's first column.
template <class Make> __device__ __forceinline__ void each_block(uint32_t rows, uint32_t blocks, Make make) {
    const uint32_t work = rows * blocks, warps = gridDim.x * blockDim.x / 32;
    for (uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < work; i += warps) make(i / blocks, i % blocks, i % blocks * F8_BLOCK + threadIdx.x % 32 * 4);
}

extern "C" __global__ void pack_scaled(const __grid_constant__ PackArgs a) {
    enter();
    each_block(a.rows, a.pitch, [&](uint32_t from, uint32_t block, uint32_t column) {
        const uint8_t* stored = a.stored + static_cast<size_t>(from) * a.stored_bytes;
        const uint32_t row = a.first_row + from, packed = packed_row(row, a.gated);
        uint32_t code[4];
        float scale;
        bool finite = true;
        if (a.stored_type == STORED_F8_E4M3) {
            const uint8_t* at = stored + block * SCALED_BYTES;
            scale = *reinterpret_cast<const float*>(at);
#pragma unroll
            for (int j = 0; j < 4; j++) code[j] = at[4 + column % F8_BLOCK + j];
        } else {
            float value[4], largest = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) value[j] = stored_element(a.stored_type, stored, column + j), largest = fmaxf(largest, fabsf(value[j])), finite &= isfinite(value[j]);
#pragma unroll
            for (int step = 16; step; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
            scale = largest < E4M3_MAX * 1.17549435e-38f ? 0.0f : __fdiv_rn(largest, E4M3_MAX);
#pragma unroll
            for (int j = 0; j < 4; j++) code[j] = scale > 0 ? e4m3_nearest(__fdiv_rn(value[j], scale)) : 0;
        }
        store_codes(a.data, a.pitch, packed, column, code);
        if (!store_scale(a.data, a.pitch, packed, block, scale, code) || !finite) atomicMin(a.not_finite, row);
    });
}

extern "C" __global__ void random_scaled(const __grid_constant__ RandomArgs a) {
    enter();
    each_block(a.rows, a.pitch, [&](uint32_t from, uint32_t block, uint32_t column) {
        const uint64_t stored = a.picked ? a.picked[from] : from;
        const uint32_t packed = packed_row(a.first_row + from, a.gated);
        const float scale = random_scale(a.width);
        uint32_t code[4];
#pragma unroll
        for (int j = 0; j < 4; j++) code[j] = e4m3_nearest(random_element(a.seed, a.width, stored * a.columns + column + j) / scale);
        store_codes(a.data, a.pitch, packed, column, code);
        store_scale(a.data, a.pitch, packed, block, scale, code);
    });
}
