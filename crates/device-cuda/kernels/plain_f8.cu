// Products with weights of 8-bit floats through mma.sync, for architectures without wgmma: the same partial sums and results as `stream_f8.cu` and `wide_f8.cu`, bit for bit. f8.cuh has
// the law.
//
// Eight warps of 16 outputs each; all threads fill a ring of `Stages` blocks by copies of sixteen bytes.
#include "f8.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The place of sixteen bytes of tokens in a block of 64 inputs.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) { return row * 128 + (chunk ^ row % 8) * 16; }

// Adds a block's products, times the scales, to the piece of a warp: piece[j] holds outputs (lane / 4, + 8) of tokens 8 j + 2 (lane % 4) + {0, 1}.
template <int N> __device__ __forceinline__ void multiply(float (&piece)[N / 8][4], uint32_t x, uint32_t w) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t codes = f8_codes(w, warp);
    float dot[N / 8][4] = {};
#pragma unroll
    for (int step = 0; step < F8_STEPS; step += 2) {
        uint32_t first[4], second[4], b[4];
        f8_operands(first, second, codes + step / 2 * 512);
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            load_matrices(b, x + step / 4 * N * 128 + swizzled(j * 8 + lane % 8, step % 4 * 2 + lane / 8));
            mma(dot[j], first, b[0], b[1]);
            mma(dot[j], second, b[2], b[3]);
        }
    }
    const float2 scales = f8_scales(w, warp);
#pragma unroll
    for (int i = 0; i < N / 2; i++) piece[i / 4][i % 4] = __fmaf_rn(i % 4 < 2 ? scales.x : scales.y, dot[i / 4][i % 4], piece[i / 4][i % 4]);
}

// The blocks `unit` to `end` of a weight go by: each is multiplied, and behind each `flush(unit)` sees the piece.
template <int N, int Stages, class Flush>
__device__ __forceinline__ void walk(const uint8_t* weight, const uint8_t* inputs, uint32_t blocks, uint32_t unit, uint32_t end, float (&piece)[N / 8][4], Flush flush) {
    extern __shared__ __align__(128) char ring[];
    uint32_t next = unit, block = unit % blocks;
    int to = 0, from = 0;
    auto fetch = [&] {
        if (next < end) {
            char* at = ring + to * F8Stage<N>::bytes;
            const uint8_t *w = weight + static_cast<size_t>(next) * F8_BYTES, *x = inputs + static_cast<size_t>(block) * F8Stage<N>::token_bytes;
            for (int i = threadIdx.x; i < F8_BYTES / 16; i += THREADS) copy_async(at + F8Stage<N>::token_bytes + i * 16, w + i * 16);
            for (int i = threadIdx.x; i < F8Stage<N>::token_bytes / 16; i += THREADS) copy_async(at + i * 16, x + i * 16);
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
        const uint32_t at = shared_address(ring) + from * F8Stage<N>::bytes;
        multiply<N>(piece, at, at + F8Stage<N>::token_bytes);
        if (++from == Stages) from = 0;
        flush(unit);
    }
    copies_wait<0>();
}

template <int N> __device__ __forceinline__ void clear(float (&piece)[N / 8][4]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) piece[i / 4][i % 4] = 0;
}

// Partial sums of one worker's share.
template <int N, int Stages> __device__ __forceinline__ void plain_pieces(const StreamArgs& a) {
    enter();
    const uint32_t begin = plan_begin(a.plan, blockIdx.x), end = plan_begin(a.plan, blockIdx.x + 1);
    if (*a.live <= 0) return;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    uint32_t tile = begin / a.plan.blocks, stop = min((tile + 1) * a.plan.blocks, end);
    float piece[N / 8][4];
    clear<N>(piece);
    walk<N, Stages>(a.weight, a.inputs, a.plan.blocks, begin, end, piece, [&](uint32_t unit) {
        if (unit + 1 != stop) return;
        const int number = static_cast<int>(blockIdx.x) - first_worker(a.plan, tile);
        float* to = a.pieces + (static_cast<size_t>(tile) * a.plan.pieces + number) * N * TILE;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float* at = to + (j * 8 + column) * TILE + row;
            at[0] = piece[j][0], at[TILE] = piece[j][1], at[8] = piece[j][2], at[TILE + 8] = piece[j][3];
        }
        clear<N>(piece);
        tile++, stop = min((tile + 1) * a.plan.blocks, end);
    });
}

// Finished results of one tile and one strip.
template <int N, int Stages> __device__ __forceinline__ void plain_totals(const WideArgs& a) {
    enter();
    const int tile = blockIdx.x, strip = blockIdx.y, live = a.experts ? static_cast<int>(a.out.bucket) : live_rows(a.out);
    if (strip >= (a.experts ? *a.live : (live + N - 1) / N)) return;
    const uint8_t* weight = a.experts ? reinterpret_cast<const uint8_t*>(a.weights[a.experts[strip]]) : a.weight;
    const uint32_t begin = tile * a.plan.blocks, end = begin + a.plan.blocks;
    int worker = first_worker(a.plan, tile);
    uint32_t stop = min(plan_begin(a.plan, worker + 1), end);
    bool opening = true;
    float piece[N / 8][4], total[N / 8][4];
    clear<N>(piece), clear<N>(total);
    walk<N, Stages>(weight, a.inputs + static_cast<size_t>(strip) * a.plan.blocks * F8Stage<N>::token_bytes, a.plan.blocks, begin, end, piece, [&](uint32_t unit) {
        if (unit + 1 != stop) return;
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i / 4][i % 4] = opening ? piece[i / 4][i % 4] : __fadd_rn(total[i / 4][i % 4], piece[i / 4][i % 4]);
        opening = false;
        clear<N>(piece);
        worker++, stop = min(plan_begin(a.plan, worker + 1), end);
    });
    store_results<N>(a, tile * TILE + threadIdx.x / 32 * 16, strip, live, [&](int j, int q) { return total[j][q]; });
}

#define PIECES(N, STAGES) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) pieces_f8_##N(const __grid_constant__ StreamArgs a) { plain_pieces<N, STAGES>(a); }
#define TOTALS(N, STAGES) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) totals_f8_##N(const __grid_constant__ WideArgs a) { plain_totals<N, STAGES>(a); }
// The stages are those of src/ops/product.rs.
PIECES(8, 4)
PIECES(16, 4)
PIECES(32, 3)
PIECES(64, 2)
TOTALS(8, 4)
TOTALS(32, 3)
TOTALS(64, 2)
