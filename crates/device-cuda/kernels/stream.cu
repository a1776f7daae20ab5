// Products of few tokens: y[t][m] = sum_k w[m][k] x[t][k], bound by reading the weight once. For Hopper; `plain.cu` is for the others.
//
// Result: partial sums, f32, [tile * pieces + piece][tokens][128]; `finish.cu` adds the pieces of a tile in ascending order.
//
// One thread block per worker of the plan (and per strip of N tokens, with 8-bit floats). A producer thread feeds a ring of `Stages` blocks by bulk copies; two warpgroups of 64 outputs each run wgmma
// with all N tokens on the wide side. Before `depend()` the ring is filled with weights, and it is as large as it pays to be: what it holds is read while the kernels between two products run,
// which are all latency. Bytes: 2 M K of weights (1.03 M K of 8-bit floats), and N / 128 of that in tokens from L2.
// In a step without tokens the ring is emptied and nothing else is read.
#include "sums.cuh"

#if HOPPER
// Nanoseconds from one block of weights to the next while the kernels ahead run: as fast as the memory is. All at once they would stand in the way of what those read.
constexpr uint64_t PACE = 500;

// The ring in shared memory: by stage weights, then tokens, and a barrier for either end.
template <class Weight, int N> struct Ring {
    using Part = Stage<Weight, N>;
    uint32_t data, full, empty;

    __device__ __forceinline__ void weights(const StreamArgs& a, uint32_t unit, int stage) const {
        barrier_expect(full + stage * 8, Part::loaded);
        bulk_load(data + stage * Part::bytes, a.weight + static_cast<size_t>(unit) * Weight::bytes, Weight::bytes, full + stage * 8);
    }
    __device__ __forceinline__ void tokens(const StreamArgs& a, uint32_t block, int stage) const {
        constexpr int height = N < 128 ? N : 128, bytes = height * Weight::block * 2; // inputs come in strips
        const uint32_t first = Weight::strips_apart ? blockIdx.y : 0;
#pragma unroll
        for (int strip = 0; strip < N / height; strip++)
            bulk_load(data + stage * Part::bytes + Weight::room + strip * bytes, a.inputs + (static_cast<size_t>(first + strip) * a.plan.blocks + block) * bytes, bytes, full + stage * 8);
    }
};

// Feeds the ring: weights first, as many as fit, then what comes with its tokens.
template <class Weight, int N, int Stages> __device__ void stream_produce(const StreamArgs& a, const Ring<Weight, N>& ring, uint32_t begin, uint32_t ahead) {
    const uint64_t start = nanoseconds();
    for (uint32_t unit = begin; unit < ahead; unit++) {
        while (nanoseconds() < start + (unit - begin) * PACE) {}
        ring.weights(a, unit, unit - begin);
    }
    depend();
    const uint32_t end = *a.live > 0 ? plan_begin(a.plan, blockIdx.x + 1) : ahead;
    uint32_t block = ahead % a.plan.blocks;
    int stage = 0, parity = 0;
    for (uint32_t unit = ahead; unit < end; unit++) {
        barrier_wait(ring.empty + stage * 8, parity);
        ring.weights(a, unit, stage);
        ring.tokens(a, block, stage);
        if (++block == a.plan.blocks) block = 0;
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
}

// The tokens that go with the weights that are there first: the producer may still be at those.
template <class Weight, int N> __device__ void stream_join(const StreamArgs& a, const Ring<Weight, N>& ring, uint32_t begin, uint32_t ahead) {
    uint32_t block = begin % a.plan.blocks;
    depend();
    for (uint32_t unit = begin; unit < ahead; unit++) {
        ring.tokens(a, block, unit - begin);
        if (++block == a.plan.blocks) block = 0;
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

template <class Weight, int N, int Stages> __device__ __forceinline__ void stream_product(const StreamArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t full = shared_address(barriers);
    const Ring<Weight, N> ring = {(shared_address(memory) + 1023) & ~1023u, full, full + Stages * 8};
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(ring.full + i * 8, 1), barrier_init(ring.empty + i * 8, Sums<Weight, N>::readers);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), last = plan_begin(a.plan, blockIdx.x + 1), ahead = min(begin + Stages, last);
    if (group == 2) {
        if constexpr (Sums<Weight, N>::short_of_registers) registers_give<40>();
        if (threadIdx.x == 256) stream_produce<Weight, N, Stages>(a, ring, begin, ahead);
        if (threadIdx.x == 288) stream_join<Weight, N>(a, ring, begin, ahead);
        return;
    }
    if constexpr (Sums<Weight, N>::short_of_registers) registers_take<232>();
    depend();
    const uint32_t end = *a.live > 0 ? last : ahead;
    Reader<Weight, N, Stages> reader = {ring.data, ring.full, ring.empty, group};
    int tile = begin / a.plan.blocks;
    for (uint32_t unit = begin; unit < end; tile++) {
        const uint32_t stop = min((tile + 1) * a.plan.blocks, end);
        Sums<Weight, N> sums;
        for (; unit < stop; unit++) sums.add(reader);
        sums.end();
        const int piece = static_cast<int>(blockIdx.x) - first_worker(a.plan, tile);
        const uint32_t width = Weight::strips_apart ? N * gridDim.y : N, first = Weight::strips_apart ? N * blockIdx.y : 0;
        store_piece<N>(a.pieces + ((static_cast<size_t>(tile) * a.plan.pieces + piece) * width + first) * TILE, sums.value, group);
    }
#endif
}

#define STREAM(NAME, WEIGHT, N, STAGES, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) stream_##NAME##_##N(const __grid_constant__ StreamArgs a) { stream_product<WEIGHT, N, STAGES>(a); }
#define TILED(KERNEL, N, STAGES, THREADS) KERNEL(bf16, Tiled<false>, N, STAGES, THREADS) KERNEL(f16, Tiled<true>, N, STAGES, THREADS)
#define SCALED(KERNEL, N, STAGES, THREADS) KERNEL(f8, Scaled, N, STAGES, THREADS)
// Stages and threads are those of src/ops/widths.rs: two warpgroups, and the warps that feed them, a whole group where its registers are needed.
TILED(STREAM, 8, 9, 320)
TILED(STREAM, 16, 8, 320)
TILED(STREAM, 32, 8, 320)
TILED(STREAM, 64, 6, 320)
TILED(STREAM, 128, 6, 320)
TILED(STREAM, 256, 4, 320)
SCALED(STREAM, 8, 8, 320)
SCALED(STREAM, 16, 7, 320)
SCALED(STREAM, 32, 6, 320)
SCALED(STREAM, 64, 4, 320)
SCALED(STREAM, 128, 4, 384)
