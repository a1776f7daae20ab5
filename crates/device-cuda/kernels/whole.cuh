// How two warpgroups multiply tiles whose sums are not cut, for weights of 16 bits and strips of 256 tokens: no total is needed beside a sum, and registers are enough for twice the tokens. Weights then
// come from L2 half as often, and tensor cores read less of shared memory for what they do.
//
// Results leave before the next tile begins. While those of one warpgroup do, the other one multiplies what the ring holds: they are not kept in step.
#pragma once
#include "staged.cuh"
#include "sums.cuh"
#include "walk.cuh"

#if HOPPER
// Whether results are those of a gated activation and are wanted rounded alone: these go by way of shared memory.
__device__ __forceinline__ bool leaves_rounded(const WideArgs& a) { return a.gated && a.rounded.data && !a.out.data && a.rounded.height == 128; }

// Leaves what gate and up become in shared memory, [strip of 128 tokens][128][64 columns].
__device__ __forceinline__ void stage_whole(const WideArgs& a, char* staging, int tile, const float (&sums)[128]) {
    const ResultPlace place(true, a.out.columns, tile * TILE + threadIdx.x / 32 * 16, 0);
    const bool exists = place.column < static_cast<int>(a.out.columns), half = a.rounded.half;
    const uint32_t chunk = place.column % BLOCK_K / 8;
    char* to = staging + place.column % 8 * 2;
    await_room();
    gated_results<256>(a, place, sums, [&](int j, const float (&active)[2]) {
        uint32_t both = half ? pack_half(active[0], active[1]) : pack(active[0], active[1]);
        both = exists ? both : 0;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t t = place.token + p;
            *reinterpret_cast<uint16_t*>(to + (j * 8 + t) * (BLOCK_K * 2) + (chunk ^ t) * 16) = static_cast<uint16_t>(both >> p * 16);
        }
    });
    announce_staged();
}

// Tile after tile.
template <bool F16, int Stages> __device__ __forceinline__ void multiply_whole(const WideArgs& a, Reader<Tiled<F16>, 256, Stages> ring, char* staging, int live) {
    const bool staged = leaves_rounded(a);
    for (WideWalk<256> walk(a); walk.there(); walk.advance()) {
        const WideItem at = walk.at();
        Sums<Tiled<F16>, 256> sums;
        for (uint32_t block = 0; block < a.plan.blocks; block++) sums.add(ring);
        sums.end();
        sums.leave(ring);
        if (staged) stage_whole(a, staging, at.tile, sums.value);
        else store_sums<256>(a, at.tile * TILE + threadIdx.x / 32 * 16, at.strip * 256, live, sums.value);
    }
}

// The warp that takes rounded results away: those of a strip are one piece.
__device__ __forceinline__ void copy_whole(const WideArgs& a, char* staging) {
    constexpr uint32_t bytes = 128 * BLOCK_K * 2;
    const int strips = wide_strips<128>(a);
    for (WideWalk<256> walk(a); walk.there(); walk.advance()) {
        const WideItem at = walk.at();
        announce_room();
        meet(STAGED, 256 + 32);
        const int half = threadIdx.x % 32, strip = at.strip * 2 + half;
        if (half < 2 && strip < strips && static_cast<uint32_t>(at.tile) < a.rounded.blocks)
            bulk_store(a.rounded.data + rounded_offset(strip * 128, at.tile * BLOCK_K, 128, a.rounded.blocks), shared_address(staging + half * bytes), bytes);
        bulk_stores_commit();
        bulk_stores_read();
        __syncwarp();
    }
    bulk_stores_wait();
}
#endif
