// Products of many tokens: out[t][m] = (sum_k w[m][k] x[t][k] + bias[m]) * scale[m], bound by the tensor cores; and those of experts, each strip of N rows with
// the weight of its own expert. For Hopper; `plain.cu` is for the others.
//
// One persistent thread block per SM walks tiles of 128 outputs x N tokens over all of K: in bands of tokens that stay in L2, token tiles innermost; experts
// strip by strip. The plan's cuts are stops on the way: at each the sum so far is added to a running total in registers and starts at zero again, which is what
// whoever adds up pieces does. Two warpgroups of 64 outputs; a third feeds the ring and gives its registers away.
#include "walk.cuh"
#include "wgmma.cuh"

#if HOPPER
// Feeds the ring, tile after tile.
template <int N, int Stages> __device__ void wide_produce(const WideArgs& a, uint32_t base, uint32_t full, uint32_t empty) {
    depend();
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips;
    int stage = 0, parity = 1;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint8_t* weight = a.experts ? reinterpret_cast<const uint8_t*>(a.weights[a.experts[at.strip]]) : a.weight;
        for (uint32_t block = 0; block < a.plan.blocks; block++) {
            barrier_wait(empty + stage * 8, parity);
            const uint32_t to = base + stage * Stage<N>::bytes, bar = full + stage * 8;
            barrier_expect(bar, Stage<N>::bytes);
            bulk_load(to, weight + (static_cast<size_t>(at.tile) * a.plan.blocks + block) * WEIGHT_BYTES, WEIGHT_BYTES, bar);
            bulk_load(to + WEIGHT_BYTES, a.inputs + (static_cast<size_t>(at.strip) * a.plan.blocks + block) * Stage<N>::token_bytes, Stage<N>::token_bytes, bar);
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
    }
}
#endif

template <int N, int Stages, bool Half> __device__ __forceinline__ void wide_product(const WideArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 2);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (group == 2) {
        registers_give<24>();
        if (threadIdx.x == 256) wide_produce<N, Stages>(a, base, full, empty);
        return;
    }
    registers_take<240>();
    depend();
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips, live = a.experts ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    int stage = 0, parity = 0;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint32_t start = at.tile * a.plan.blocks;
        float total[N / 2];
        uint32_t block = 0;
        for (int worker = first_worker(a.plan, at.tile); block < a.plan.blocks; worker++) {
            const uint32_t stop = min(plan_begin(a.plan, worker + 1) - start, a.plan.blocks);
            const bool opening = block == 0;
            float sum[N / 2];
            int keep = 0, behind = -1;
            for (; block < stop; block++) {
                barrier_wait(full + stage * 8, parity);
                const uint32_t w = base + stage * Stage<N>::bytes + group * 64 * 128, x = base + stage * Stage<N>::bytes + WEIGHT_BYTES;
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
            if (behind >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + behind * 8);
#pragma unroll
            for (int i = 0; i < N / 2; i++) total[i] = opening ? sum[i] : __fadd_rn(total[i], sum[i]);
        }
        store_results<N>(a, at.tile * TILE + threadIdx.x / 32 * 16, at.strip, live, [&](int j, int q) { return total[4 * j + q]; });
    }
#endif
}

#define WIDE(N, STAGES)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(384, 1) wide_bf16_##N(const __grid_constant__ WideArgs a) { wide_product<N, STAGES, false>(a); } \
    extern "C" __global__ void __launch_bounds__(384, 1) wide_f16_##N(const __grid_constant__ WideArgs a) { wide_product<N, STAGES, true>(a); }
// The stages are those of src/ops/product.rs.
WIDE(8, 10)
WIDE(32, 8)
WIDE(128, 5)
