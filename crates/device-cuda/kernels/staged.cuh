// The end of a product of many tokens on Hopper: results leave by way of shared memory.
//
// Tensor cores leave eight neighbouring outputs of a token in eight lanes, and stored from there a tile of 128 x 128 keeps its thread block from the next one for a fifth of the time
// that it took. In shared memory a token's outputs lie side by side, and bulk copies take them away while the next tile is multiplied. Rows are padded so that a warp's stores meet no bank
// twice.
#pragma once
#include "product.cuh"

constexpr int STAGED = 256, STAGED_ROW = TILE * 4 + 16; // threads that stage; bytes of a row

#if SM90
// Whether whole rows of results can be copied in units of sixteen bytes.
__device__ __forceinline__ bool can_stage(const WideArgs& a) {
    return (reinterpret_cast<uintptr_t>(a.out.data) | a.out.stride * 4 | a.out.columns * 4) % 16 == 0 && (!a.rounded.data || a.rounded.height == 128);
}

// What was staged for the tile before has been copied. All threads that stage call it, and may stage again then.
__device__ __forceinline__ void staging_free() {
    if (threadIdx.x % 128 < 32) bulk_stores_read();
    meet(2, STAGED);
}
__device__ __forceinline__ void staged() {
    stores_to_async();
    meet(2, STAGED);
}

// Copies the first `columns` numbers of every row of live tokens to column `first` of the results: two warps, a lane per token.
__device__ __forceinline__ void copy_rows(const WideArgs& a, const char* staging, int pitch, int strip, int live, int first, int columns) {
    const int warp = threadIdx.x / 32;
    if (warp % 4) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = warp * 16 + i * 32 + threadIdx.x % 32, token = strip * 128 + t;
        if (token < live && columns > 0) bulk_store(row_of(a.out, token) + first, shared_address(staging + t * pitch), columns * 4);
    }
}

// Stores the results of a tile, of a strip of 128 tokens: `value` as for `store_results`.
template <class Value> __device__ __forceinline__ void stage_results(const WideArgs& a, char* staging, int tile, int strip, int live, Value value) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * 16 + lane / 4, columns = a.out.columns;
    staging_free();
    auto each_token = [&](auto store) {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int p = 0; p < 2; p++) store(j, p, j * 8 + lane % 4 * 2 + p);
    };
    if (!a.gated) {
        each_token([&](int j, int p, int t) {
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const int own = row + q * 8, output = min(tile * TILE + own, columns - 1); // past the last there is neither bias nor scale
                *reinterpret_cast<float*>(staging + t * STAGED_ROW + own * 4) = finished(value(j, p + q * 2), a.bias, a.scale, output);
            }
        });
        staged();
        copy_rows(a, staging, STAGED_ROW, strip, live, tile * TILE, min(TILE, columns - tile * TILE));
    } else {
        // Rows of gate and up become one result: half as many, also as the next product looks for them, a block of 64 columns in one piece.
        constexpr int Pitch = TILE * 2 + 16;
        char* rounded = staging + 128 * Pitch;
        const int own = warp * 8 + lane / 4, column = min(tile * (TILE / 2) + own, columns - 1);
        each_token([&](int j, int p, int t) {
            const float gate = finished(value(j, p), a.bias, a.scale, column), up = finished(value(j, p + 2), a.bias, a.scale, columns + column);
            const float y = tile * (TILE / 2) + own < columns ? silu(gate * a.gate_scale) * up : 0;
            *reinterpret_cast<float*>(staging + t * Pitch + own * 4) = y;
            *reinterpret_cast<uint16_t*>(rounded + rounded_offset(t, own / 8 * 8, 128, 1) + own % 8 * 2) = static_cast<uint16_t>(pack_four(make_float4(y, 0, 0, 0), a.rounded.half).x);
        });
        staged();
        copy_rows(a, staging, Pitch, strip, live, tile * (TILE / 2), min(TILE / 2, columns - tile * (TILE / 2)));
        if (a.rounded.data && threadIdx.x == 0 && static_cast<uint32_t>(tile) < a.rounded.blocks)
            bulk_store(a.rounded.data + rounded_offset(strip * 128, tile * BLOCK_K, 128, a.rounded.blocks), shared_address(rounded), 128 * BLOCK_K * 2);
    }
    if (threadIdx.x % 128 < 32) bulk_stores_commit();
}
#endif
