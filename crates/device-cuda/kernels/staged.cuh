// The end of a product of many tokens on Hopper: results leave by way of shared memory, in parts, while the next tile is multiplied.
//
// Tensor cores leave eight neighbouring outputs of a token in eight lanes. In shared memory a token's outputs lie side by side, and bulk copies take them away. Two warpgroups stage what
// they have, sixteen tokens at a time; a warp beside them copies a tile when all of it is there, and says when there is room for the next. Rows are padded so that a warp's stores meet no
// bank twice.
#pragma once
#include "product.cuh"

constexpr int PARTS = 8, PART = 128 / PARTS;                                     // of a tile's tokens, and tokens of a part
constexpr int STAGED_ROW = TILE * 4 + 16, STAGED_GATED_ROW = TILE / 2 * 4 + 16;  // bytes of a row
enum StagingBarrier { STAGED = 1, ROOM = 2 };                                    // ROOM + 1: that of the second warpgroup

#if SM90
// Whether whole rows of results can be copied in units of sixteen bytes.
__device__ __forceinline__ bool can_stage(const WideArgs& a) {
    return (reinterpret_cast<uintptr_t>(a.out.data) | a.out.stride * 4 | a.out.columns * 4) % 16 == 0 && (!a.rounded.data || a.rounded.height == 128);
}

// Where a tile is on its way out as the next product looks for it: a block of 64 columns, in one piece.
__device__ __forceinline__ char* staged_rounded(char* staging) { return staging + 128 * STAGED_GATED_ROW; }

// --- the warps that have results
__device__ __forceinline__ void await_room() { meet(ROOM + threadIdx.x / 128, 128 + 32); }
__device__ __forceinline__ void announce_staged() {
    stores_to_async();
    announce(STAGED, 256 + 32);
}

// Rows of gate and up become one result, of two tokens.
__device__ __forceinline__ void stage_gated(const WideArgs& a, char* staging, int row, int t, bool exists, const float (&gate)[2], const float (&up)[2]) {
    float active[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        active[p] = silu(gate[p] * a.gate_scale) * up[p];
        asm volatile("" : "+f"(active[p])); // or it would be computed behind a branch
        active[p] = exists ? active[p] : 0;
        *(reinterpret_cast<float*>(staging + (t + p) * STAGED_GATED_ROW) + row) = active[p];
    }
    const uint32_t both = pack_four(make_float4(active[0], active[1], 0, 0), a.rounded.half).x;
#pragma unroll
    for (int p = 0; p < 2; p++) *reinterpret_cast<uint16_t*>(staged_rounded(staging) + rounded_offset(t + p, row / 8 * 8, 128, 1) + row % 8 * 2) = static_cast<uint16_t>(both >> p * 16);
}

// Stages the results of the tokens of a part; `value(j, q)` as for `store_results`. There is no branch per result: tensor cores would have to wait not for the instructions but for each of
// them to wait for the one before.
template <int Part, class Value> __device__ __forceinline__ void stage_part(const WideArgs& a, char* staging, int tile, Value value) {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread)); // computes places anew rather than keep them in registers all the time
    const int row = thread / 32 * (a.gated ? 8 : 16) + thread % 32 / 4, columns = a.out.columns, last = (a.gated ? 2 : 1) * columns - 1;
    const int output = tile * (a.gated ? TILE / 2 : TILE) + row;
    // Past the last output there is neither bias nor scale.
    const End end(a.bias, a.scale, min(output, last)), other_end(a.bias, a.scale, min(output + (a.gated ? columns : 8), last));
    if (Part == 0) await_room();
#pragma unroll
    for (int j = Part * (PART / 8); j < (Part + 1) * (PART / 8); j++) {
        const int t = j * 8 + thread % 4 * 2;
        const float x[2] = {end(value(j, 0)), end(value(j, 1))}, y[2] = {other_end(value(j, 2)), other_end(value(j, 3))};
        if (a.gated) {
            stage_gated(a, staging, row, t, output < columns, x, y);
        } else {
#pragma unroll
            for (int p = 0; p < 2; p++) {
                float* to = reinterpret_cast<float*>(staging + (t + p) * STAGED_ROW) + row;
                to[0] = x[p], to[8] = y[p];
            }
        }
    }
    if (Part == PARTS - 1) announce_staged();
}

// --- the warp that copies
__device__ __forceinline__ void announce_room() {
    announce(ROOM, 128 + 32);
    announce(ROOM + 1, 128 + 32);
}
// Copies a tile when it is there.
__device__ __forceinline__ void copy_staged(const WideArgs& a, char* staging, int tile, int strip, int live) {
    const int width = a.gated ? TILE / 2 : TILE, pitch = a.gated ? STAGED_GATED_ROW : STAGED_ROW, columns = min(width, static_cast<int>(a.out.columns) - tile * width);
    meet(STAGED, 256 + 32);
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < 128; t += 32) {
        const int token = strip * 128 + t;
        if (token < live && columns > 0 && a.out.data) bulk_store(row_of(a.out, token) + tile * width, shared_address(staging + t * pitch), columns * 4);
    }
    if (a.rounded.data && threadIdx.x % 32 == 0 && static_cast<uint32_t>(tile) < a.rounded.blocks)
        bulk_store(a.rounded.data + rounded_offset(strip * 128, tile * BLOCK_K, 128, a.rounded.blocks), shared_address(staged_rounded(staging)), 128 * BLOCK_K * 2);
    bulk_stores_commit();
    bulk_stores_read();
}
#endif
