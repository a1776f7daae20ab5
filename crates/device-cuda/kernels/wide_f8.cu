// Products of many tokens with weights of 8-bit floats, and those of experts: out[t][m] = (sum_k w[m][k] x[t][k] + bias[m]) * scale[m]. For Hopper; `plain_f8.cu` is for the
// others. f8.cuh has the law.
//
// Work is shared out as in `wide.cu`. Behind a cut of the plan the sum of the pieces so far waits in shared memory, a word per result and thread: registers hold a block's sums
// and a piece's, and operands.
#include "f8_wgmma.cuh"
#include "walk.cuh"

#if HOPPER
template <int N, int Stages> __device__ void wide_produce(const WideArgs& a, uint32_t base, uint32_t full, uint32_t empty) {
    depend();
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips;
    int stage = 0, parity = 1;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint8_t* weight = a.experts ? reinterpret_cast<const uint8_t*>(a.weights[a.experts[at.strip]]) : a.weight;
        for (uint32_t block = 0; block < a.plan.blocks; block++) {
            barrier_wait(empty + stage * 8, parity);
            const uint32_t to = base + stage * F8Stage<N>::bytes, bar = full + stage * 8;
            barrier_expect(bar, F8Stage<N>::token_bytes + F8_BYTES);
            bulk_load(to + F8Stage<N>::token_bytes, weight + (static_cast<size_t>(at.tile) * a.plan.blocks + block) * F8_BYTES, F8_BYTES, bar);
            bulk_load(to, a.inputs + (static_cast<size_t>(at.strip) * a.plan.blocks + block) * F8Stage<N>::token_bytes, F8Stage<N>::token_bytes, bar);
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
    }
}
#endif

template <int N, int Stages> __device__ __forceinline__ void wide_product(const WideArgs& a) {
#if HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 8);
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
    float* total = reinterpret_cast<float*>(memory + (base - shared_address(memory)) + Stages * F8Stage<N>::bytes) + threadIdx.x; // every 256th
    const int strips = wide_strips<N>(a), work = a.plan.tiles * strips, live = a.experts ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    int stage = 0, parity = 0;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const WideItem at(a, item, N, strips);
        const uint32_t start = at.tile * a.plan.blocks;
        float piece[N / 2];
        uint32_t block = 0;
        for (int worker = first_worker(a.plan, at.tile); block < a.plan.blocks; worker++) {
            const uint32_t stop = min(plan_begin(a.plan, worker + 1) - start, a.plan.blocks);
            const bool opening = block == 0;
#pragma unroll
            for (int i = 0; i < N / 2; i++) piece[i] = 0;
            for (; block < stop; block++) {
                barrier_wait(full + stage * 8, parity);
                const uint32_t x = base + stage * F8Stage<N>::bytes;
                f8_block<N>(piece, x, x + F8Stage<N>::token_bytes);
                if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage * 8); // for its warp, whose loads are behind it
                if (++stage == Stages) stage = 0, parity ^= 1;
            }
            if (opening && block == a.plan.blocks) break; // no cut, nothing to keep
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                if (!opening) piece[i] = __fadd_rn(total[i * 256], piece[i]);
                total[i * 256] = piece[i];
            }
        }
        store_results<N>(a, at.tile * TILE + threadIdx.x / 32 * 16, at.strip, live, [&](int j, int q) { return piece[4 * j + q]; });
    }
#endif
}

#define WIDE(N, STAGES) \
    extern "C" __global__ void __launch_bounds__(384, 1) wide_f8_##N(const __grid_constant__ WideArgs a) { wide_product<N, STAGES>(a); }
// The stages are those of src/ops/product.rs.
WIDE(8, 8)
WIDE(32, 7)
WIDE(128, 3)
