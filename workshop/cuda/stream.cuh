// Products of few tokens: y[t][m] = sum_k w[m][k] x[t][k], bound by reading the weight once.
//
// Weight: bf16, packed as [tile of 128 outputs][block of 64 inputs][128][64], each row of 128 bytes in the 128-byte swizzle: one bulk copy of 16 KB per block.
// Tokens: bf16, row-major [tokens][K], read by tensor copies of [N][64]; rows past the last token read as zero.
// Result: partial sums, f32, [tile * pieces + piece][N][128]; whoever consumes the product adds the pieces of a tile in ascending order (`finish` in products.cu).
//
// One thread block per worker of the plan (grid = plan.workers), two per SM. One producer thread feeds a ring of `Stages` blocks; two warpgroups of 64
// outputs each run wgmma with all N tokens on the wide side. Before `depend()` the ring is filled with weights. Bytes: 2 M K of weights, and N / 128 of that
// in tokens from L2.
#pragma once
#include "paceline.cuh"
#include "plan.cuh"
#include "wgmma.cuh"

template <int N> struct StreamShape {
    static constexpr int weight_bytes = TILE * BLOCK_K * 2;
    static constexpr int token_bytes = N * BLOCK_K * 2;
    static constexpr int stage_bytes = weight_bytes + token_bytes;
};

// Feeds the ring: weights first, as many as fit, then waits for the tokens.
template <int N, int Stages>
__device__ void stream_produce(const char* weight, const CUtensorMap* tokens, const Plan& plan, uint32_t ring, uint32_t full, uint32_t empty, bool pdl) {
    using Shape = StreamShape<N>;
    const uint32_t begin = plan.begin(blockIdx.x), end = plan.begin(blockIdx.x + 1);
    auto weights = [&](uint32_t unit, int stage) {
        barrier_expect(full + stage * 8, Shape::stage_bytes);
        bulk_load(ring + stage * Shape::stage_bytes, weight + static_cast<size_t>(unit) * Shape::weight_bytes, Shape::weight_bytes, full + stage * 8);
    };
    uint32_t block = begin % plan.blocks;
    auto activations = [&](int stage) {
        tensor_load(ring + stage * Shape::stage_bytes + Shape::weight_bytes, tokens, block * BLOCK_K, 0, full + stage * 8);
        if (++block == plan.blocks) block = 0;
    };
    const uint32_t ahead = min(begin + Stages, end);
    tensor_prefetch(tokens);
    for (uint32_t unit = begin; unit < ahead; unit++) weights(unit, unit - begin);
    if (pdl) depend();
    for (uint32_t unit = begin; unit < ahead; unit++) activations(unit - begin);
    int stage = 0, parity = 0;
    for (uint32_t unit = ahead; unit < end; unit++) {
        barrier_wait(empty + stage * 8, parity);
        weights(unit, stage);
        activations(stage);
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
}

// One warpgroup's part of a piece: 64 outputs x N tokens, f32, to [token][128].
template <int N> __device__ void store_piece(float* to, const float (&sum)[N / 2], int group) {
    const int thread = threadIdx.x % 128, row = group * 64 + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float* at = to + (j * 8 + column) * TILE + row;
        at[0] = sum[4 * j], at[TILE] = sum[4 * j + 1], at[8] = sum[4 * j + 2], at[TILE + 8] = sum[4 * j + 3];
    }
}

// Times of a kernel's first start, first wake-up behind the kernel ahead, and last end, for `TIMELINE`.
#ifdef TIMELINE
__device__ unsigned long long* timeline;
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#define STAMP(kernel, which) atomicMin(&timeline[(kernel) * 4 + which], nanoseconds())
#define STAMP_END(kernel) atomicMax(&timeline[(kernel) * 4 + 3], nanoseconds())
#else
#define STAMP(kernel, which)
#define STAMP_END(kernel)
#endif

template <int N, int Stages>
__global__ void __launch_bounds__(288) stream_product(const char* weight, const __grid_constant__ CUtensorMap tokens, float* pieces, Plan plan, int most, int pdl, int kernel = 0) {
    using Shape = StreamShape<N>;
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t ring = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 2);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) { STAMP(kernel, 0); }
    if (pdl) release_dependents();
    if (group == 2) {
        if (threadIdx.x == 256) stream_produce<N, Stages>(weight, &tokens, plan, ring, full, empty, pdl);
        return;
    }
    if (pdl) depend();
    if (threadIdx.x == 0) { STAMP(kernel, 1); }
    const uint32_t begin = plan.begin(blockIdx.x), end = plan.begin(blockIdx.x + 1);
    int stage = 0, parity = 0, behind = -1, tile = begin / plan.blocks;
    for (uint32_t unit = begin; unit < end; tile++) {
        const uint32_t stop = min(static_cast<uint32_t>(tile + 1) * plan.blocks, end);
        float sum[N / 2];
        int keep = 0;
        for (; unit < stop; unit++) {
            barrier_wait(full + stage * 8, parity);
            const uint32_t a = ring + stage * Shape::stage_bytes + group * 64 * 128, b = ring + stage * Shape::stage_bytes + Shape::weight_bytes;
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < BLOCK_K / 16; k++) {
                wgmma<N>(sum, operand(a + k * 32), operand(b + k * 32), keep);
                keep = 1;
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (behind >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + behind * 8);
            behind = stage;
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
        wgmma_wait<0>();
        const int piece = static_cast<int>(blockIdx.x) - plan.first(tile);
        store_piece<N>(pieces + (static_cast<long>(tile) * most + piece) * N * TILE, sum, group);
    }
    if (threadIdx.x == 0) { STAMP_END(kernel); }
}
