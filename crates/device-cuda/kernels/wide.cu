// Products of many tokens: out[t][m] = (sum_k w[m][k] x[t][k] + bias[m]) * scale[m], bound by the tensor cores; and those of experts, each strip of N rows with
// the weight of its own expert. For Hopper; `plain.cu` is for the others.
//
// One persistent thread block per SM walks tiles of 128 outputs x N tokens over all of K: in bands of tokens that stay in L2, token tiles innermost; experts
// strip by strip. The plan's cuts are stops on the way: at each the sum so far is added to a running total and starts at zero again, which is what
// whoever adds up pieces does. Two warpgroups of 64 outputs; a third feeds the ring and gives its registers away. Beside the ring, results of 128 tokens are on their way out, or totals of
// 8-bit floats wait.
#include "staged.cuh"
#include "sums.cuh"
#include "walk.cuh"

#if HOPPER
// Feeds the ring, tile after tile.
template <class Weight, int N, int Stages> __device__ void wide_produce(const WideArgs& a, uint32_t base, uint32_t full, uint32_t empty) {
    using Part = Stage<Weight, N>;
    depend();
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips;
    int stage = 0, parity = 1;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint8_t* weight = a.experts ? reinterpret_cast<const uint8_t*>(a.weights[a.experts[at.strip]]) : a.weight;
        for (uint32_t block = 0; block < a.plan.blocks; block++) {
            barrier_wait(empty + stage * 8, parity);
            const uint32_t to = base + stage * Part::bytes, bar = full + stage * 8;
            barrier_expect(bar, Part::loaded);
            bulk_load(to, weight + (static_cast<size_t>(at.tile) * a.plan.blocks + block) * Weight::bytes, Weight::bytes, bar);
            bulk_load(to + Weight::room, a.inputs + (static_cast<size_t>(at.strip) * a.plan.blocks + block) * Part::token_bytes, Part::token_bytes, bar);
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
    }
}

// Adds a piece to the total. That of a weight of 8-bit floats waits in shared memory for the next piece, a word per result and thread: registers hold a block's sums and a piece's, and
// operands.
template <bool F16, int N> __device__ __forceinline__ void add_piece(const Sums<Tiled<F16>, N>& piece, float (&total)[N / 2], float*, bool opening, bool) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i] = opening ? piece.value[i] : __fadd_rn(total[i], piece.value[i]);
}
template <int N> __device__ __forceinline__ void add_piece(const Sums<Scaled, N>& piece, float (&total)[N / 2], float* waiting, bool opening, bool last) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        total[i] = opening ? piece.value[i] : __fadd_rn(waiting[i * 256], piece.value[i]);
        if (!last) waiting[i * 256] = total[i];
    }
}
#endif

template <class Weight, int N, int Stages> __device__ __forceinline__ void wide_product(const WideArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, Sums<Weight, N>::readers);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (group == 2) {
        registers_give<24>();
        if (threadIdx.x == 256) wide_produce<Weight, N, Stages>(a, base, full, empty);
        return;
    }
    registers_take<240>();
    depend();
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips, live = a.experts ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    char* beside = memory + (base - shared_address(memory)) + Stages * Stage<Weight, N>::bytes;
    float* waiting = reinterpret_cast<float*>(beside) + threadIdx.x;
    const bool stages = Weight::stages && N == 128 && can_stage(a);
    Reader<Weight, N, Stages> reader = {base, full, empty, group};
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint32_t start = at.tile * a.plan.blocks;
        float total[N / 2];
        uint32_t block = 0;
        for (int worker = first_worker(a.plan, at.tile); block < a.plan.blocks; worker++) {
            const uint32_t stop = min(plan_begin(a.plan, worker + 1) - start, a.plan.blocks);
            const bool opening = block == 0;
            Sums<Weight, N> piece;
            for (; block < stop; block++) piece.add(reader);
            piece.end();
            piece.leave(reader);
            add_piece(piece, total, waiting, opening, block == a.plan.blocks);
        }
        auto value = [&](int j, int q) { return total[4 * j + q]; };
        if constexpr (Weight::stages && N == 128) {
            if (stages) {
                stage_results(a, beside, at.tile, at.strip, live, value);
                continue;
            }
        }
        store_results<N>(a, at.tile * TILE + threadIdx.x / 32 * 16, at.strip, live, value);
    }
    if (stages && threadIdx.x % 128 < 32) bulk_stores_wait();
#endif
}

#define WIDE(NAME, WEIGHT, N, STAGES, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_##NAME##_##N(const __grid_constant__ WideArgs a) { wide_product<WEIGHT, N, STAGES>(a); }
#define TILED(KERNEL, N, STAGES, THREADS) KERNEL(bf16, Tiled<false>, N, STAGES, THREADS) KERNEL(f16, Tiled<true>, N, STAGES, THREADS)
#define SCALED(KERNEL, N, STAGES, THREADS) KERNEL(f8, Scaled, N, STAGES, THREADS)
// Stages and threads are those of src/ops/widths.rs.
TILED(WIDE, 8, 10, 384)
TILED(WIDE, 32, 8, 384)
TILED(WIDE, 128, 4, 384)
SCALED(WIDE, 8, 8, 384)
SCALED(WIDE, 32, 7, 384)
SCALED(WIDE, 128, 3, 384)
