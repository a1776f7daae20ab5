// Products of few tokens: y[t][m] = sum_k w[m][k] x[t][k], bound by reading the weight once. For Hopper; `plain.cu` is for the others.
//
// Result: partial sums, f32, [piece of a tile][tokens][128]; `finish.cu` adds the pieces of a tile in ascending order. Of tiles that are not cut, if asked for, results.
//
// One thread block per worker of the plan (and per strip of tokens, with 8-bit floats). A producer thread feeds a ring of `Stages` blocks by bulk copies; two warpgroups of 64 outputs each run wgmma
// with all tokens on the wide side. Before `depend()` the ring is filled with weights, and it is as large as it pays to be: what it holds is read while the kernels between two products run,
// which are all latency. Bytes: 2 M K of weights (1.03 M K of 8-bit floats), and tokens / 128 of that in tokens from L2.
// In a step without tokens the ring is emptied and nothing else is read.
#include "sums.cuh"

#if HOPPER
// Nanoseconds from one block of weights to the next while the kernels ahead run, per thread block that there is: together they are as fast as the memory is. All at once they would stand in the way
// of what those read.
constexpr float PACE = 3.8f;

// How many tokens are multiplied: as few as hold those that are there, of `Most` that the program is made for. A draft forward has a fraction of its step's.
template <int Most> __device__ __forceinline__ int tokens_for(int live) {
    int tokens = Most;
    while (tokens > 8 && 2 * live <= tokens) tokens /= 2;
    return tokens;
}
// Those of this thread block, which has a strip of its own where strips are apart.
template <class Weight, int Most> __device__ __forceinline__ int live_here(const StreamArgs& a) { return *a.live - (Weight::strips_apart ? Most * static_cast<int>(blockIdx.y) : 0); }

// The ring in shared memory: by stage weights, then tokens, and a barrier for either end. A stage is there when both are.
template <class Weight, int Most> struct Ring {
    using Part = Stage<Weight, Most>;
    uint32_t data, full, empty;

    __device__ __forceinline__ void weights(const StreamArgs& a, uint32_t unit, int stage) const {
        barrier_expect(full + stage * 8, Weight::bytes);
        bulk_load_once(data + stage * Part::bytes, a.weight + static_cast<size_t>(unit) * Weight::bytes, Weight::bytes, full + stage * 8);
    }
    // The first `count` tokens. Inputs come in strips, of which this takes a part or all.
    __device__ __forceinline__ void tokens(const StreamArgs& a, uint32_t block, int stage, int count) const {
        constexpr int height = Most < 128 ? Most : 128, halves = Weight::block / BLOCK_K, row = BLOCK_K * 2;
        const uint32_t first = Weight::strips_apart ? blockIdx.y : 0, bytes = min(count, height) * row;
        barrier_expect(full + stage * 8, count * Weight::block * 2);
#pragma unroll
        for (int strip = 0; strip < Most / height; strip++)
#pragma unroll
            for (int half = 0; half < halves; half++)
                if (strip * height < count)
                    bulk_load(data + stage * Part::bytes + Weight::room + (strip * halves + half) * bytes, a.inputs + (((first + strip) * static_cast<size_t>(a.plan.blocks) + block) * halves + half) * height * row, bytes, full + stage * 8);
    }
};

// Feeds the ring: weights first, as many as fit, then what comes with its tokens.
template <class Weight, int Most, int Stages> __device__ void stream_produce(const StreamArgs& a, const Ring<Weight, Most>& ring, const Share& share, uint32_t ahead, const volatile int& awake) {
    const uint64_t start = nanoseconds();
    const uint32_t pace = PACE * gridDim.x;
    for (uint32_t i = 0; i < ahead; i++) {
        while (!awake && nanoseconds() < start + i * pace) {}
        ring.weights(a, share.unit(i), i);
    }
    depend();
    const int live = live_here<Weight, Most>(a), count = tokens_for<Most>(live);
    const uint32_t end = live > 0 ? share.count : ahead;
    int stage = 0, parity = 0;
    for (uint32_t i = ahead; i < end; i++) {
        const uint32_t unit = share.unit(i), block = unit % a.plan.blocks;
        barrier_wait(ring.empty + stage * 8, parity);
        ring.weights(a, unit, stage);
        ring.tokens(a, block, stage, count);
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
}

// The tokens that go with the weights that are there first: the producer may still be at those.
template <class Weight, int Most> __device__ void stream_join(const StreamArgs& a, const Ring<Weight, Most>& ring, const Share& share, uint32_t ahead, volatile int& awake) {
    depend();
    awake = 1;
    const int count = tokens_for<Most>(live_here<Weight, Most>(a));
    for (uint32_t i = 0; i < ahead; i++) ring.tokens(a, share.unit(i) % a.plan.blocks, i, count);
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

// Multiplies all blocks of a share with the tokens that are there, N of them.
template <class Weight, int Most, int N, int Stages> __device__ __forceinline__ void stream_multiply(const StreamArgs& a, Reader<Weight, Most, Stages>& ring, const Share& share, uint32_t end, int live) {
    if constexpr (N > 8)
        if (2 * live <= N) return stream_multiply<Weight, Most, N / 2, Stages>(a, ring, share, end, live);
    for (uint32_t i = 0; i < end;) {
        const uint32_t unit = share.unit(i), tile = unit / a.plan.blocks, stop = min(i + (tile + 1) * a.plan.blocks - unit, end);
        Sums<Weight, N> sums;
        for (; i < stop; i++) sums.add(ring);
        sums.end();
        if constexpr (!Weight::strips_apart) {
            if (a.finishes && is_whole(a.plan, tile)) {
                store_sums<N>(a, tile * TILE + threadIdx.x / 32 * 16, 0, live_rows(a.out), sums.value);
                continue;
            }
        }
        const uint32_t piece = is_whole(a.plan, tile) ? 0 : blockIdx.x - first_worker(a.plan, tile);
        const uint32_t width = Weight::strips_apart ? Most * gridDim.y : Most, first = Weight::strips_apart ? Most * blockIdx.y : 0;
        store_piece<N>(a.pieces + (piece_place(a.plan, tile, piece) * width + first) * TILE, sums.value, ring.group);
    }
}
#endif

template <class Weight, int Most, int Stages> __device__ __forceinline__ void stream_product(const StreamArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t full = shared_address(barriers);
    const Ring<Weight, Most> ring = {(shared_address(memory) + 1023) & ~1023u, full, full + Stages * 8};
    const int group = threadIdx.x / 128;
    __shared__ int awake; // the kernels ahead have ended
    if (threadIdx.x == 0) {
        awake = 0;
        for (int i = 0; i < Stages; i++) barrier_init(ring.full + i * 8, 2), barrier_init(ring.empty + i * 8, Sums<Weight, Most>::readers);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    const Share share(a.plan, blockIdx.x);
    const uint32_t ahead = min(static_cast<uint32_t>(Stages), share.count);
    if (group == 2) {
        if constexpr (Sums<Weight, Most>::short_of_registers) registers_give<40>();
        if (threadIdx.x == 256) stream_produce<Weight, Most, Stages>(a, ring, share, ahead, awake);
        if (threadIdx.x == 288) stream_join<Weight, Most>(a, ring, share, ahead, awake);
        return;
    }
    if constexpr (Sums<Weight, Most>::short_of_registers) registers_take<232>();
    depend();
    const int live = live_here<Weight, Most>(a);
    Reader<Weight, Most, Stages> reader = {ring.data, ring.full, ring.empty, group};
    stream_multiply<Weight, Most, Most, Stages>(a, reader, share, live > 0 ? share.count : ahead, live);
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
