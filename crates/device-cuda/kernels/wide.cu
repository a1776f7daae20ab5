// Products of many tokens: out[t][m] = (sum_k w[m][k] x[t][k] + bias[m]) * scale[m], bound by the tensor cores; and those of experts, each strip of N rows with
// the weight of its own expert. For Hopper; `plain.cu` is for the others.
//
// One persistent thread block per SM walks tiles of 128 outputs x N tokens over all of K: in bands of tokens that stay in L2, token tiles innermost; experts
// strip by strip. The plan's cuts are stops on the way: at each the sum so far is added to a running total and starts at zero again, which is what
// whoever adds up pieces does. Two warpgroups of 64 outputs; a third feeds the ring, takes results away and gives its registers away. Beside the ring, results of 128 tokens are on their way
// out (flow.cuh), or totals of 8-bit floats wait.
#include "flow.cuh"
#include "whole.cuh"

#if HOPPER
// Strips of inputs that are multiplied with at a time.
template <int N> constexpr int INPUT_STRIPS = N > 128 ? N / 128 : 1;

// Feeds the ring, tile after tile.
template <class Weight, int N, int Stages> __device__ void wide_produce(const WideArgs& a, uint32_t base, uint32_t full, uint32_t empty) {
    using Part = Stage<Weight, N>;
    auto weight_of = [&](int strip) { return a.weights ? reinterpret_cast<const uint8_t*>(a.weights[strip]) : a.weight; };
    auto tile_of = [&](const uint8_t* weight, const WideItem& at) { return weight + static_cast<size_t>(at.tile) * a.plan.blocks * Weight::bytes; };
    auto load_weights = [&](const uint8_t* tile, uint32_t block, int stage, int halves) {
        barrier_expect(full + stage * 8, Weight::bytes + Part::token_bytes / INPUT_STRIPS<N> * halves);
        bulk_load(base + stage * Part::bytes, tile + static_cast<size_t>(block) * Weight::bytes, Weight::bytes, full + stage * 8);
    };
    int ahead = 0; // blocks whose weights have been asked for
    if (a.early)
        for (WideWalk<N> walk(a); ahead < Stages && walk.there(); walk.advance()) {
            const uint8_t* tile = tile_of(weight_of(walk.at().strip), walk.at());
            for (uint32_t block = 0; ahead < Stages && block < a.plan.blocks; block++) load_weights(tile, block, ahead++, INPUT_STRIPS<N>);
        }
    depend();
    const int strips = wide_strips<(N < 128 ? N : 128)>(a);
    int stage = 0, parity = 1;
    const uint8_t* weight = weight_of(a.weights ? blockIdx.x / a.plan.tiles : 0); // on its way beside the number of strips
    for (WideWalk<N> walk(a); walk.there(); walk.advance()) {
        const WideItem at = walk.at();
        if (walk.item != static_cast<int>(blockIdx.x)) weight = weight_of(at.strip);
        const int halves = min(INPUT_STRIPS<N>, strips - at.strip * INPUT_STRIPS<N>); // strips of inputs that are there
        const uint8_t *tile = tile_of(weight, at), *inputs = a.inputs + static_cast<size_t>(a.together ? 0 : at.strip) * a.plan.blocks * Part::token_bytes;
        for (uint32_t block = 0; block < a.plan.blocks; block++) {
            if (ahead > 0) {
                ahead--;
            } else {
                barrier_wait(empty + stage * 8, parity);
                load_weights(tile, block, stage, halves);
            }
            const uint32_t to = base + stage * Part::bytes + Weight::room, bar = full + stage * 8;
            if constexpr (N <= 128) {
                bulk_load(to, inputs + static_cast<size_t>(block) * Part::token_bytes, Part::token_bytes, bar);
            } else {
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (half < halves) bulk_load(to + half * Part::token_bytes / 2, a.inputs + ((at.strip * 2 + half) * static_cast<size_t>(a.plan.blocks) + block) * (Part::token_bytes / 2), Part::token_bytes / 2, bar);
            }
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

// Tile after tile, with a stop at every cut and every end: for whatever does not flow, see flow.cuh.
template <class Weight, int N, int Stages> __device__ __forceinline__ void multiply(const WideArgs& a, Reader<Weight, N, Stages> ring, float* waiting, int live) {
    for (WideWalk<N> walk(a); walk.there(); walk.advance()) {
        const WideItem at = walk.at();
        float total[N / 2];
        uint32_t block = 0;
        for (int worker = opening_worker(a.plan, at.tile); block < a.plan.blocks; worker++) {
            const uint32_t stop = piece_end(a.plan, at.tile, worker);
            const bool opening = block == 0;
            Sums<Weight, N> piece;
            for (; block < stop; block++) piece.add(ring);
            piece.end();
            piece.leave(ring);
            add_piece(piece, total, waiting, opening, block == a.plan.blocks);
        }
        store_results<N>(a, at.tile * TILE + threadIdx.x / 32 * 16, at.strip, live, [&](int j, int q) { return total[4 * j + q]; });
    }
}
#endif

template <class Weight, int N, int Stages> __device__ __forceinline__ void wide_product(const WideArgs& a) {
#if HOPPER
    constexpr bool flows = Weight::stages && N == 128, whole = N == 256;
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); // the same for a warp, as the compiler then knows: operands are computed once per warp
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, Sums<Weight, N>::readers);
        barrier_init_fence();
    }
    __syncthreads();
    if (!a.weights) release_dependents();
    char* beside = memory + (base - shared_address(memory)) + Stages * Stage<Weight, N>::bytes;
    const bool staged = flows && can_stage(a);
    if (group == 2) {
        registers_give<flows || whole ? 40 : 24>();
        const int warp = threadIdx.x / 32 % 4;
        if (warp == 0 && threadIdx.x % 32 == 0) wide_produce<Weight, N, Stages>(a, base, full, empty);
        if constexpr (flows) {
            if (warp == 1 && staged) depend(), copy_flowing(a, beside);
        }
        if constexpr (whole) {
            if (warp == 1 && leaves_rounded(a)) depend(), copy_whole(a, beside);
        }
        return;
    }
    registers_take<flows || whole ? 232 : 240>();
    depend();
    if (a.weights) release_dependents(); // what is ahead of this has ended: the kernel behind may read strips before it waits
    const int live = a.weights ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    const Reader<Weight, N, Stages> ring = {base, full, empty, group};
    if constexpr (flows) {
        if (staged) return multiply_flowing(a, ring, beside);
    }
    if constexpr (whole) multiply_whole(a, ring, beside, live);
    else multiply(a, ring, reinterpret_cast<float*>(beside) + threadIdx.x, live);
#endif
}

#define WIDE(NAME, WEIGHT, N, STAGES, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_##NAME##_##N(const __grid_constant__ WideArgs a) { wide_product<WEIGHT, N, STAGES>(a); }
#define TILED(KERNEL, N, STAGES, THREADS) KERNEL(bf16, Tiled<false>, N, STAGES, THREADS) KERNEL(f16, Tiled<true>, N, STAGES, THREADS)
#define SCALED(KERNEL, N, STAGES, THREADS) KERNEL(f8, Scaled, N, STAGES, THREADS)
// Stages and threads are those of src/ops/widths.rs.
TILED(WIDE, 8, 10, 384)
TILED(WIDE, 16, 10, 384)
TILED(WIDE, 32, 8, 384)
TILED(WIDE, 128, 4, 384)
TILED(WIDE, 256, 4, 384)
SCALED(WIDE, 8, 8, 384)
SCALED(WIDE, 16, 8, 384)
SCALED(WIDE, 32, 7, 384)
SCALED(WIDE, 128, 3, 384)
