// Products by mma.sync, for GPUs without wgmma: the same sums over the same plan as `stream.cu` (partial sums, a thread block per worker) and `wide.cu` (running
// totals, a thread block per tile and strip). On Hopper both ways give the same bits.
//
// Eight warps of 16 outputs x N tokens; blocks go through a ring of copies of sixteen bytes per thread.
#include "f8.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
template <bool F16> __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The place of sixteen bytes in a block.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) { return row * 128 + (chunk ^ row % 8) * 16; }

// Adds a block to the sums of a warp: sum[j] holds outputs (lane / 4, + 8) of tokens 8 j + 2 (lane % 4) + {0, 1}, as wgmma has them.
template <int N, bool F16> __device__ __forceinline__ void multiply(Tiled<F16>, float (&sum)[N / 8][4], uint32_t weights, uint32_t tokens) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t a[4][4], b[4];
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices(a[k], weights + swizzled(warp * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            load_matrices(b, tokens + swizzled(j * 8 + lane % 8, k * 2 + lane / 8));
            mma<F16>(sum[j], a[k], b[0], b[1]);
            mma<F16>(sum[j], a[k + 1], b[2], b[3]);
        }
}
// The same with 8-bit floats: a block's products are multiplied by its scales.
template <int N> __device__ __forceinline__ void multiply(Scaled, float (&sum)[N / 8][4], uint32_t weights, uint32_t tokens) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t codes = f8_codes(weights, warp);
    float dot[N / 8][4] = {};
#pragma unroll
    for (int step = 0; step < F8_STEPS; step += 2) {
        uint32_t first[4], second[4], b[4];
        f8_operands(first, second, f8_load(codes + step / 2 * 512));
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            load_matrices(b, tokens + step / 4 * N * 128 + swizzled(j * 8 + lane % 8, step % 4 * 2 + lane / 8));
            mma<false>(dot[j], first, b[0], b[1]);
            mma<false>(dot[j], second, b[2], b[3]);
        }
    }
    const float2 scales = f8_scales(weights, warp);
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i / 4][i % 4] = __fmaf_rn(i % 4 < 2 ? scales.x : scales.y, dot[i / 4][i % 4], sum[i / 4][i % 4]);
}

// The blocks `unit` to `end` of a weight go by: each is multiplied, and behind each `flush(unit)` sees the sums.
template <class Weight, int N, int Stages, class Flush>
__device__ __forceinline__ void walk(const uint8_t* weight, const uint8_t* inputs, uint32_t blocks, uint32_t unit, uint32_t end, float (&sum)[N / 8][4], Flush flush) {
    using Part = Stage<Weight, N>;
    constexpr uint32_t rounds = Weight::bytes / 16 / THREADS, rest = Weight::bytes / 16 % THREADS;
    extern __shared__ __align__(128) char ring[];
    uint32_t next = unit, block = unit % blocks;
    int to = 0, from = 0;
    auto fetch = [&] {
        if (next < end) {
            char* at = ring + to * Part::bytes;
            const uint8_t *w = weight + static_cast<size_t>(next) * Weight::bytes, *x = inputs + static_cast<size_t>(block) * Part::token_bytes;
#pragma unroll
            for (uint32_t i = 0; i < rounds; i++) copy_async(at + (threadIdx.x + i * THREADS) * 16, w + (threadIdx.x + i * THREADS) * 16);
            if constexpr (rest > 0)
                if (threadIdx.x < rest) copy_async(at + (threadIdx.x + rounds * THREADS) * 16, w + (threadIdx.x + rounds * THREADS) * 16);
            for (int i = threadIdx.x; i < Part::token_bytes / 16; i += THREADS) copy_async(at + Weight::room + i * 16, x + i * 16);
            if (++block == blocks) block = 0;
        }
        next++;
        if (++to == Stages) to = 0;
        copies_commit();
    };
    for (int i = 0; i < Stages - 1; i++) fetch();
    for (; unit < end; unit++) {
        copies_wait<Stages - 2>();
        __syncthreads();
        fetch();
        const uint32_t at = shared_address(ring) + from * Part::bytes;
        multiply<N>(Weight{}, sum, at, at + Weight::room);
        if (++from == Stages) from = 0;
        flush(unit);
    }
    copies_wait<0>();
}

template <int N> __device__ __forceinline__ void clear(float (&sum)[N / 8][4]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i / 4][i % 4] = 0;
}

// Partial sums of one worker's share.
template <class Weight, int N, int Stages> __device__ __forceinline__ void plain_pieces(const StreamArgs& a) {
    enter();
    const Share share(a.plan, blockIdx.x);
    if (*a.live <= 0) return;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    float sum[N / 8][4];
    clear<N>(sum);
#pragma unroll 1
    for (int cut = 0; cut < 2; cut++) { // whole tiles, then the share of the others
        const uint32_t begin = cut ? share.behind : share.first, end = begin + (cut ? share.count - share.whole : share.whole);
        uint32_t tile = begin / a.plan.blocks, stop = min((tile + 1) * a.plan.blocks, end);
        __syncthreads();
        walk<Weight, N, Stages>(a.weight, a.inputs, a.plan.blocks, begin, end, sum, [&](uint32_t unit) {
            if (unit + 1 != stop) return;
            if (!cut && a.finishes) {
                store_results<N>(a, tile * TILE + threadIdx.x / 32 * 16, 0, live_rows(a.out), [&](int j, int q) { return sum[j][q]; });
                clear<N>(sum);
                tile++, stop = min((tile + 1) * a.plan.blocks, end);
                return;
            }
            const uint32_t piece = cut ? blockIdx.x - first_worker(a.plan, tile) : 0;
            float* to = a.pieces + piece_place(a.plan, tile, piece) * N * TILE;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                float* at = to + (j * 8 + column) * TILE + row;
                at[0] = sum[j][0], at[TILE] = sum[j][1], at[8] = sum[j][2], at[TILE + 8] = sum[j][3];
            }
            clear<N>(sum);
            tile++, stop = min((tile + 1) * a.plan.blocks, end);
        });
    }
}

// Finished results of one tile and one strip.
template <class Weight, int N, int Stages> __device__ __forceinline__ void plain_totals(const WideArgs& a) {
    if (a.weights) depend(), release_dependents(); // as `wide.cu` does
    else enter();
    const int tile = a.first_tile + blockIdx.x, strip = blockIdx.y, live = a.weights ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    if (strip >= (a.weights ? *a.live : (live + N - 1) / N)) return;
    const uint8_t* weight = a.weights ? reinterpret_cast<const uint8_t*>(a.weights[strip]) : a.weight;
    const uint32_t begin = tile * a.plan.blocks, end = begin + a.plan.blocks;
    int worker = opening_worker(a.plan, tile);
    uint32_t stop = begin + piece_end(a.plan, tile, worker);
    bool opening = true;
    float sum[N / 8][4], total[N / 8][4];
    clear<N>(sum), clear<N>(total);
    walk<Weight, N, Stages>(weight, a.inputs + static_cast<size_t>(a.together ? 0 : strip) * a.plan.blocks * Stage<Weight, N>::token_bytes, a.plan.blocks, begin, end, sum, [&](uint32_t unit) {
        if (unit + 1 != stop) return;
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i / 4][i % 4] = opening ? sum[i / 4][i % 4] : __fadd_rn(total[i / 4][i % 4], sum[i / 4][i % 4]);
        opening = false;
        clear<N>(sum);
        worker++, stop = begin + piece_end(a.plan, tile, worker);
    });
    store_results<N>(a, tile * TILE + threadIdx.x / 32 * 16, strip, live, [&](int j, int q) { return total[j][q]; });
}

#define PIECES(NAME, WEIGHT, N, STAGES, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) pieces_##NAME##_##N(const __grid_constant__ StreamArgs a) { plain_pieces<WEIGHT, N, STAGES>(a); }
#define TOTALS(NAME, WEIGHT, N, STAGES, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) totals_##NAME##_##N(const __grid_constant__ WideArgs a) { plain_totals<WEIGHT, N, STAGES>(a); }
#define TILED(KERNEL, N, STAGES, THREADS) KERNEL(bf16, Tiled<false>, N, STAGES, THREADS) KERNEL(f16, Tiled<true>, N, STAGES, THREADS)
#define SCALED(KERNEL, N, STAGES, THREADS) KERNEL(f8, Scaled, N, STAGES, THREADS)
// Stages and threads are those of src/ops/widths.rs.
TILED(PIECES, 8, 4, 256)
TILED(PIECES, 16, 4, 256)
TILED(PIECES, 32, 4, 256)
TILED(PIECES, 64, 4, 256)
SCALED(PIECES, 8, 4, 256)
SCALED(PIECES, 16, 4, 256)
SCALED(PIECES, 32, 3, 256)
SCALED(PIECES, 64, 2, 256)
TILED(TOTALS, 8, 4, 256)
TILED(TOTALS, 16, 4, 256)
TILED(TOTALS, 32, 4, 256)
TILED(TOTALS, 64, 4, 256)
SCALED(TOTALS, 8, 4, 256)
SCALED(TOTALS, 16, 4, 256)
SCALED(TOTALS, 32, 3, 256)
SCALED(TOTALS, 64, 2, 256)
