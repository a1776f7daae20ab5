// Products of few tokens: y[t][m] = sum_k w[m][k] x[t][k], bound by reading the weight once. For Hopper; `plain.cu` is for the others.
//
// Result: partial sums, f32, [tile * pieces + piece][N][128]; `finish.cu` adds the pieces of a tile in ascending order.
//
// One thread block per worker of the plan. One producer thread feeds a ring of `Stages` blocks by bulk copies; two warpgroups of 64 outputs each run wgmma
// with all N tokens on the wide side. Before `depend()` the ring is filled with weights. Bytes: 2 M K of weights, and N / 128 of that in tokens from L2.
// In a step without tokens the ring is emptied and nothing else is read.
#include "product.cuh"
#include "wgmma.cuh"

#if HOPPER
// Feeds the ring: weights first, as many as fit, then waits for the tokens.
template <int N, int Stages> __device__ void stream_produce(const StreamArgs& a, uint32_t ring, uint32_t full, uint32_t empty) {
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), ahead = min(begin + Stages, plan_begin(a.plan, blockIdx.x + 1));
    auto weights = [&](uint32_t unit, int stage) {
        barrier_expect(full + stage * 8, Stage<N>::bytes);
        bulk_load(ring + stage * Stage<N>::bytes, a.weight + static_cast<size_t>(unit) * WEIGHT_BYTES, WEIGHT_BYTES, full + stage * 8);
    };
    uint32_t block = begin % a.plan.blocks;
    constexpr int height = N < 128 ? N : 128, strip_bytes = height * BLOCK_K * 2; // inputs come in strips
    auto tokens = [&](int stage) {
#pragma unroll
        for (int strip = 0; strip < N / height; strip++)
            bulk_load(ring + stage * Stage<N>::bytes + WEIGHT_BYTES + strip * strip_bytes, a.inputs + (static_cast<size_t>(strip) * a.plan.blocks + block) * strip_bytes, strip_bytes, full + stage * 8);
        if (++block == a.plan.blocks) block = 0;
    };
    for (uint32_t unit = begin; unit < ahead; unit++) weights(unit, unit - begin);
    depend();
    for (uint32_t unit = begin; unit < ahead; unit++) tokens(unit - begin);
    const uint32_t end = *a.live > 0 ? plan_begin(a.plan, blockIdx.x + 1) : ahead;
    int stage = 0, parity = 0;
    for (uint32_t unit = ahead; unit < end; unit++) {
        barrier_wait(empty + stage * 8, parity);
        weights(unit, stage);
        tokens(stage);
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
#endif

template <int N, int Stages, bool Half> __device__ __forceinline__ void stream_product(const StreamArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t ring = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 2);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (group == 2) {
        if (threadIdx.x == 256) stream_produce<N, Stages>(a, ring, full, empty);
        return;
    }
    depend();
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), last = plan_begin(a.plan, blockIdx.x + 1), end = *a.live > 0 ? last : min(begin + Stages, last);
    int stage = 0, parity = 0, behind = -1, tile = begin / a.plan.blocks;
    for (uint32_t unit = begin; unit < end; tile++) {
        const uint32_t stop = min((tile + 1) * a.plan.blocks, end);
        float sum[N / 2];
        int keep = 0;
        for (; unit < stop; unit++) {
            barrier_wait(full + stage * 8, parity);
            const uint32_t w = ring + stage * Stage<N>::bytes + group * 64 * 128, x = ring + stage * Stage<N>::bytes + WEIGHT_BYTES;
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < BLOCK_K / 16; k++) {
                wgmma<N, Half>(sum, operand(w + k * 32), operand(x + k * 32), keep);
                keep = 1;
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (behind >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + behind * 8);
            behind = stage;
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
        wgmma_wait<0>();
        regained(sum);
        const int piece = static_cast<int>(blockIdx.x) - first_worker(a.plan, tile);
        store_piece<N>(a.pieces + (static_cast<size_t>(tile) * a.plan.pieces + piece) * N * TILE, sum, group);
    }
#endif
}

#define STREAM(N, STAGES)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(288) stream_bf16_##N(const __grid_constant__ StreamArgs a) { stream_product<N, STAGES, false>(a); } \
    extern "C" __global__ void __launch_bounds__(288) stream_f16_##N(const __grid_constant__ StreamArgs a) { stream_product<N, STAGES, true>(a); }
// The stages are those of src/ops/product.rs.
STREAM(8, 6)
STREAM(16, 5)
STREAM(32, 5)
STREAM(64, 4)
STREAM(128, 6)
STREAM(256, 4)
