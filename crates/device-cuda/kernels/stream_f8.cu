// Products of few tokens with weights of 8-bit floats, bound by reading the weight once. For Hopper; `plain_f8.cu` is for the others. f8.cuh has the law.
//
// Result: partial sums, f32, [tile * pieces + piece][tokens][128], as `stream.cu` leaves them. Strip y of the grid has tokens N y and on.
//
// One thread block per worker of the plan and strip. One producer thread feeds a ring of `Stages` blocks by bulk copies, weights before `depend()`; two warpgroups of 64 outputs
// each turn codes into bf16 in registers, which wgmma takes as they are, and multiply a block's sum by the scales on the way to the piece's. Bytes: 1.03 M K.
#include "f8_wgmma.cuh"

#if HOPPER
template <int N, int Stages> __device__ void stream_produce(const StreamArgs& a, uint32_t ring, uint32_t full, uint32_t empty) {
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), ahead = min(begin + Stages, plan_begin(a.plan, blockIdx.x + 1));
    auto weights = [&](uint32_t unit, int stage) {
        barrier_expect(full + stage * 8, F8Stage<N>::token_bytes + F8_BYTES);
        bulk_load(ring + stage * F8Stage<N>::bytes + F8Stage<N>::token_bytes, a.weight + static_cast<size_t>(unit) * F8_BYTES, F8_BYTES, full + stage * 8);
    };
    uint32_t block = begin % a.plan.blocks;
    const uint8_t* inputs = a.inputs + static_cast<size_t>(blockIdx.y) * a.plan.blocks * F8Stage<N>::token_bytes;
    auto tokens = [&](int stage) {
        bulk_load(ring + stage * F8Stage<N>::bytes, inputs + static_cast<size_t>(block) * F8Stage<N>::token_bytes, F8Stage<N>::token_bytes, full + stage * 8);
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
#endif

template <int N, int Stages> __device__ __forceinline__ void stream_product(const StreamArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t ring = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 8);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (group == 2) {
        if constexpr (N == 128) registers_give<24>();
        if (threadIdx.x == 256) stream_produce<N, Stages>(a, ring, full, empty);
        return;
    }
    if constexpr (N == 128) registers_take<240>();
    depend();
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), last = plan_begin(a.plan, blockIdx.x + 1), end = *a.live > 0 ? last : min(begin + Stages, last);
    int stage = 0, parity = 0, tile = begin / a.plan.blocks;
    for (uint32_t unit = begin; unit < end; tile++) {
        const uint32_t stop = min((tile + 1) * a.plan.blocks, end);
        float piece[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) piece[i] = 0;
        for (; unit < stop; unit++) {
            barrier_wait(full + stage * 8, parity);
            const uint32_t x = ring + stage * F8Stage<N>::bytes, w = x + F8Stage<N>::token_bytes;
            f8_block<N>(piece, x, w);
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage * 8); // for its warp, whose loads are behind it
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
        const int number = static_cast<int>(blockIdx.x) - first_worker(a.plan, tile), width = N * gridDim.y;
        float* to = a.pieces + ((static_cast<size_t>(tile) * a.plan.pieces + number) * width + blockIdx.y * N) * TILE;
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float* at = to + (j * 8 + column) * TILE + row;
            at[0] = piece[4 * j], at[TILE] = piece[4 * j + 1], at[8] = piece[4 * j + 2], at[TILE + 8] = piece[4 * j + 3];
        }
    }
#endif
}

// A whole warpgroup produces where the others need its registers.
#define STREAM(N, STAGES) \
    extern "C" __global__ void __launch_bounds__(N == 128 ? 384 : 288) stream_f8_##N(const __grid_constant__ StreamArgs a) { stream_product<N, STAGES>(a); }
// The stages are those of src/ops/product.rs.
STREAM(8, 5)
STREAM(16, 5)
STREAM(32, 4)
STREAM(64, 3)
STREAM(128, 4)
