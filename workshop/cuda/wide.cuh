// Products of many tokens: y[t][m] = sum_k w[m][k] x[t][k], bound by the tensor cores.
//
// Operands as in `stream.cuh`. Result: bf16 (and f32 for tests), row-major [tokens][M].
//
// One persistent thread block per SM walks tiles of 128 outputs x N tokens over all of K; in bands of tokens that stay in L2, token tiles innermost. The
// plan's cuts are stops on the way: at each the sum so far is added to a running total in registers and starts at zero again, which is what whoever adds up pieces does.
// Two warpgroups of 64 outputs; a third feeds the ring and gives its registers away. Results leave through shared memory, 256 bytes per token.
#pragma once
#include "stream.cuh"

template <int N, int Stages> constexpr int wide_memory() { return 1024 + Stages * StreamShape<N>::stage_bytes + N * (TILE + 8) * 2; }

// Rounds 64 x N totals of each warpgroup to bf16 and writes them as rows of tokens.
template <int N> __device__ void wide_store(bf16* to, float* exact, const float (&total)[N / 2], uint32_t staging, const char* staged, int outputs, int tile, int token, int tokens) {
    constexpr int stride = (TILE + 8) * 2;
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, group = threadIdx.x / 128;
    const int row = group * 64 + warp * 16;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        // Matrices: (rows 0-7, tokens 0-7), (rows 8-15, tokens 0-7), then tokens 8-15.
        const uint32_t at = staging + (j * 16 + lane / 16 * 8 + lane % 8) * stride + (row + lane / 8 % 2 * 8) * 2;
        store_transposed(at, pack(total[8 * j], total[8 * j + 1]), pack(total[8 * j + 2], total[8 * j + 3]), pack(total[8 * j + 4], total[8 * j + 5]), pack(total[8 * j + 6], total[8 * j + 7]));
    }
    if (exact) {
        const int r = tile * TILE + row + lane / 4, column = lane % 4 * 2;
        for (int j = 0; j < N / 8; j++)
            for (int q = 0; q < 4; q++)
                if (int t = token + j * 8 + column + q % 2; t < tokens) exact[static_cast<long>(t) * outputs + r + q / 2 * 8] = total[4 * j + q];
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    for (int i = threadIdx.x; i < N * (TILE / 8); i += 256) {
        const int t = i / (TILE / 8), c = i % (TILE / 8);
        if (token + t < tokens)
            *reinterpret_cast<uint4*>(to + static_cast<long>(token + t) * outputs + tile * TILE + c * 8) = *reinterpret_cast<const uint4*>(staged + t * stride + c * 16);
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

constexpr int BAND = 2048; // tokens

// The `item`-th tile in the order of work.
struct WideItem {
    int tile, token;
    __device__ WideItem(int item, int tiles, int width, int tokens) {
        const int band = BAND / width, strips = (tokens + width - 1) / width, skipped = item / (band * tiles) * band, here = min(band, strips - skipped), rest = item - skipped * tiles;
        tile = rest / here, token = (skipped + rest % here) * width;
    }
};

// Feeds the ring, tile after tile.
template <int N, int Stages>
__device__ void wide_produce(const char* weight, const CUtensorMap* map, const Plan& plan, uint32_t base, uint32_t full, uint32_t empty, int tokens, bool pdl) {
    using Shape = StreamShape<N>;
    const int strips = (tokens + N - 1) / N, work = plan.tiles * strips;
    int stage = 0, parity = 1;
    tensor_prefetch(map);
    if (pdl) depend();
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const auto [tile, token] = WideItem(item, plan.tiles, N, tokens);
        for (int block = 0; block < plan.blocks; block++) {
            barrier_wait(empty + stage * 8, parity);
            const uint32_t at = base + stage * Shape::stage_bytes, bar = full + stage * 8;
            barrier_expect(bar, Shape::stage_bytes);
            bulk_load(at, weight + (static_cast<long>(tile) * plan.blocks + block) * Shape::weight_bytes, Shape::weight_bytes, bar);
            tensor_load(at + Shape::weight_bytes, map, block * BLOCK_K, token, bar);
            if (++stage == Stages) stage = 0, parity ^= 1;
        }
    }
}

template <int N, int Stages>
__global__ void __launch_bounds__(384, 1) wide_product(const char* weight, const __grid_constant__ CUtensorMap map, bf16* to, float* exact, Plan plan, int tokens, int pdl) {
    using Shape = StreamShape<N>;
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * Stages];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u, full = shared_address(barriers), empty = full + Stages * 8;
    const uint32_t staging = base + Stages * Shape::stage_bytes;
    const char* staged = memory + (staging - shared_address(memory));
    const int group = threadIdx.x / 128, strips = (tokens + N - 1) / N, work = plan.tiles * strips;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, 2);
        barrier_init_fence();
    }
    __syncthreads();
    if (pdl) release_dependents();
    if (group == 2) {
        registers_give<24>();
        if (threadIdx.x == 256) wide_produce<N, Stages>(weight, &map, plan, base, full, empty, tokens, pdl);
    } else {
        registers_take<240>();
        if (pdl) depend();
        int stage = 0, parity = 0;
        for (int item = blockIdx.x; item < work; item += gridDim.x) {
            const auto [tile, token] = WideItem(item, plan.tiles, N, tokens);
            const uint32_t start = static_cast<uint32_t>(tile) * plan.blocks;
            float total[N / 2];
            int block = 0;
            for (int worker = plan.first(tile); block < plan.blocks; worker++) {
                const int stop = min(plan.begin(worker + 1) - start, static_cast<uint32_t>(plan.blocks));
                const bool opening = block == 0;
                float sum[N / 2];
                int keep = 0, behind = -1;
                for (; block < stop; block++) {
                    barrier_wait(full + stage * 8, parity);
                    const uint32_t a = base + stage * Shape::stage_bytes + group * 64 * 128, b = base + stage * Shape::stage_bytes + Shape::weight_bytes;
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
                if (behind >= 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + behind * 8);
#pragma unroll
                for (int i = 0; i < N / 2; i++) total[i] = opening ? sum[i] : __fadd_rn(total[i], sum[i]);
            }
            wide_store<N>(to, exact, total, staging, staged, plan.tiles * TILE, tile, token, tokens);
        }
    }
}
