// Attention over paged keys and values for decode and verify windows, and for prompts where there is no wgmma. Formula and order of sums: `tiles.cuh`.
//
// Work item = (window of a request's tokens, kv head) and, where `partial` is given, one split of 512 positions: all tokens of the window and all heads of the group are rows of one product
// of 16 M rows. Persistent thread blocks. Eight warps: for scores each eight keys of the tile, for outputs each head_dim / 8 columns. From sm_90 on a producer warp keeps a
// ring of tiles full across items; before, the eight warps fetch a tile ahead where there is room for it.
//
// With `partial`: per token, head and split head_dim unnormalised outputs, and in `scale` a maximum and a sum, which `attend_merge` joins. Without, a thread block goes through all splits
// of its window. The arithmetic is the same. Bytes: keys and values once per window.
#include "tiles.cuh"

constexpr int CONSUMERS = 256, THREADS = CONSUMERS + (SM90 ? 32 : 0);

// Tiles that fit the shared memory of a thread block, which is 99 KB on Ada and on workstations; `src/ops/attention.rs` has the same.
template <int Dim, int M> constexpr int stages =
#if !SM90 || __CUDA_ARCH__ >= 1200
    Dim == 256 ? 1 : 2;
#else
    M == 1 ? (Dim == 256 ? 1 : Dim == 128 ? 2 : 3) : 2;
#endif

// Thread blocks per multiprocessor: windows of few keys are made of latencies, which another one's work hides.
template <int M> constexpr int together = SM90 && __CUDA_ARCH__ < 1200 && M == 1 ? 2 : 1;
// Whether queries are in registers.
template <int Dim, int M> constexpr bool own_queries = M == 1 && (together<M> == 1 || Dim == 64);

template <int Dim, int M> struct alignas(128) Memory {
    static constexpr int Stages = stages<Dim, M>;
    bf16 k[Stages][Dim / 64][KEYS][64], v[Stages][Dim / 64][KEYS][64];
    bf16 p[M * 16][KEYS + 8];
    bf16 q[M * 16][Dim + 8];     // where there are no registers for them
    float most[2][8][M * 16];    // of eight keys each
    float sums[2][8][M * 16][4]; // of pairs of keys
    uint64_t k_full[4], v_full[4], k_empty[4], v_empty[4];
};

__device__ __forceinline__ void consumers_together() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Where the keys of an item begin and end.
__device__ __forceinline__ int first_key(const Window& w) { return w.split * SPLIT; }
__device__ __forceinline__ int end_key(const AttentionArgs& a, const Window& w) { return a.partial ? min(w.end, (w.split + 1) * SPLIT) : w.end; }

#if SM90
template <int Dim, int M> __device__ void produce(const AttentionArgs& a, Memory<Dim, M>& m) {
    constexpr int Stages = Memory<Dim, M>::Stages;
    const int lane = threadIdx.x % 32, run = min(static_cast<int>(a.kv.block_size), KEYS), runs = KEYS / run, copies = runs * (Dim / 64);
    const bf16 *keys = reinterpret_cast<const bf16*>(a.kv.keys), *values = reinterpret_cast<const bf16*>(a.kv.values);
    Windows windows(a);
    int index = 0;
    bool waited = false;
    for (int item = blockIdx.x;; item += gridDim.x) {
        const Window w = windows.find(item);
        if (!w.there) break;
        for (int key = first_key(w), end = end_key(a, w); key < end; key += KEYS, index++) {
            if (!waited && key + KEYS > w.fresh) depend(), waited = true; // what earlier steps left needs no waiting
            const int stage = index % Stages, parity = (index / Stages & 1) ^ 1;
            size_t at = 0;
            if (lane < copies) at = run_at<Dim>(a, w, key + lane % runs * run, lane / runs);
            // Keys of a tile have been read before its values: they are asked for as soon as there is room.
            auto load = [&](const bf16* array, bf16 (&to)[Dim / 64][KEYS][64], uint64_t& empty, uint64_t& full) {
                const uint32_t bar = shared_address(&full);
                barrier_wait(shared_address(&empty), parity);
                if (lane == 0) barrier_expect(bar, sizeof to);
                __syncwarp();
                for (int copy = lane; copy < copies; copy += 32) {
                    const size_t from = copy < 32 ? at : run_at<Dim>(a, w, key + copy % runs * run, copy / runs);
                    bulk_load(shared_address(to[copy / runs][copy % runs * run]), array + from, run * 128, bar);
                }
            };
            load(keys, m.k[stage], m.k_empty[stage], m.k_full[stage]);
            load(values, m.v[stage], m.v_empty[stage], m.v_full[stage]);
        }
    }
    if (!waited) depend();
}
#else
// A tile by sixteen bytes per thread.
template <int Dim, int M> __device__ __forceinline__ void fetch(const AttentionArgs& a, Memory<Dim, M>& m, const Window& w, int key, int stage) {
    const bf16 *keys = reinterpret_cast<const bf16*>(a.kv.keys), *values = reinterpret_cast<const bf16*>(a.kv.values);
#pragma unroll 2
    for (int i = threadIdx.x; i < KEYS * Dim / 8; i += CONSUMERS) {
        const int chunk = i % 8, position = i / 8 % KEYS, piece = i / 8 / KEYS;
        const size_t at = run_at<Dim>(a, w, key + position, piece) + chunk * 8;
        copy_async(&m.k[stage][piece][position][chunk * 8], keys + at), copy_async(&m.v[stage][piece][position][chunk * 8], values + at);
    }
    copies_commit();
}
#endif

// The rows of a product: row r is token r / group, head r % group. Of a thread: rows lane / 4 and lane / 4 + 8 of each sixteen, columns by warp.
template <int Dim, int M> struct Rows {
    static constexpr int Steps = Dim / 16, Tiles = Dim / 64; // products per score; column tiles of eight per warp
    static constexpr int Span = Tiles == 1 ? 2 : 1;          // groups of sixteen keys per load of values
    uint32_t q[own_queries<Dim, M> ? Steps : 1][4];
    float out[M][Tiles][4], most[M][2], sum[M][2];
    float total[M][Tiles][4], whole_most[M][2], whole_sum[M][2];

    __device__ __forceinline__ void begin_split() {
#pragma unroll
        for (int i = 0; i < M; i++) {
            most[i][0] = most[i][1] = -INFINITY, sum[i][0] = sum[i][1] = 0;
#pragma unroll
            for (int t = 0; t < Tiles * 4; t++) out[i][t / 4][t % 4] = 0;
        }
    }
    __device__ __forceinline__ void begin() {
        begin_split();
#pragma unroll
        for (int i = 0; i < M; i++) {
            whole_most[i][0] = whole_most[i][1] = -INFINITY, whole_sum[i][0] = whole_sum[i][1] = 0;
#pragma unroll
            for (int t = 0; t < Tiles * 4; t++) total[i][t / 4][t % 4] = 0;
        }
    }
    __device__ __forceinline__ void queries(const AttentionArgs& a, Memory<Dim, M>& m, const Window& w) {
        const int lane = threadIdx.x % 32, group = a.group, live = w.tokens * group;
        auto query = [&](int r) { return row_of(a.q, w.first_token + min(r, live - 1) / group) + (w.kv_head * group + r % group) * Dim; };
        if constexpr (own_queries<Dim, M>) {
            const float *low = query(lane / 4) + lane % 4 * 2, *high = query(lane / 4 + 8) + lane % 4 * 2;
#pragma unroll
            for (int s = 0; s < Steps; s++) {
                q[s][0] = pack(low[s * 16], low[s * 16 + 1]), q[s][1] = pack(high[s * 16], high[s * 16 + 1]);
                q[s][2] = pack(low[s * 16 + 8], low[s * 16 + 9]), q[s][3] = pack(high[s * 16 + 8], high[s * 16 + 9]);
            }
        } else {
            consumers_together(); // the item before is done with its own
            for (int i = threadIdx.x; i < M * 16 * Dim / 2; i += CONSUMERS) {
                const float* from = query(i / (Dim / 2)) + i % (Dim / 2) * 2;
                *reinterpret_cast<uint32_t*>(&m.q[i / (Dim / 2)][i % (Dim / 2) * 2]) = pack(from[0], from[1]);
            }
            consumers_together();
        }
    }
    // Scores of eight keys.
    __device__ __forceinline__ void scores(float (&s)[M][4], const Memory<Dim, M>& m, int stage) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < Steps; step += 2) {
            uint32_t b[4], left[4], right[4];
            load_matrices(b, shared_address(&m.k[stage][0][0][0] + chunk_at(warp * 8 + lane % 8, step * 2 + lane / 8)));
            if constexpr (own_queries<Dim, M>) {
                mma_bf16(s[0], q[step], b[0], b[1]), mma_bf16(s[0], q[step + 1], b[2], b[3]);
            } else {
#pragma unroll
                for (int i = 0; i < M; i++) {
                    load_matrices(left, shared_address(&m.q[i * 16 + lane % 16][step * 16 + lane / 16 * 8])), load_matrices(right, shared_address(&m.q[i * 16 + lane % 16][step * 16 + 16 + lane / 16 * 8]));
                    mma_bf16(s[i], left, b[0], b[1]), mma_bf16(s[i], right, b[2], b[3]);
                }
            }
        }
    }
    // Masks scores and leaves the maximum of eight keys.
    __device__ __forceinline__ void mask(float (&s)[M][4], Memory<Dim, M>& m, int side, int key, int start, int group) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int r = i * 16 + lane / 4 + j / 2 * 8, position = key + warp * 8 + lane % 4 * 2 + j % 2;
                s[i][j] = position <= start + r / group ? s[i][j] : -INFINITY;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = fmaxf(s[i][2 * half], s[i][2 * half + 1]);
                x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)), x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
                if (lane % 4 == 0) m.most[side][warp][i * 16 + half * 8 + lane / 4] = x;
            }
        }
    }
    // One maximum for the tile; exponents, rounded for the product with values.
    __device__ __forceinline__ void exponents(const float (&s)[M][4], float (&fade)[M][2], Memory<Dim, M>& m, int side, float factor) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = i * 16 + half * 8 + lane / 4;
                float x = most[i][half];
#pragma unroll
                for (int w = 0; w < 8; w++) x = fmaxf(x, m.most[side][w][r]);
                const float base = x == -INFINITY ? 0 : __fmul_rn(x, factor); // a row that sees nothing of this tile
                fade[i][half] = exp2_approximate(__fsub_rn(__fmul_rn(most[i][half], factor), base));
                most[i][half] = x;
                const float p0 = exp2_approximate(__fmaf_rn(s[i][2 * half], factor, -base)), p1 = exp2_approximate(__fmaf_rn(s[i][2 * half + 1], factor, -base));
                *reinterpret_cast<uint32_t*>(&m.p[r][warp * 8 + lane % 4 * 2]) = pack(p0, p1);
                m.sums[side][warp][r][lane % 4] = __fadd_rn(p0, p1);
            }
    }
    __device__ __forceinline__ void add_sums(const float (&fade)[M][2], const Memory<Dim, M>& m, int side) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = i * 16 + half * 8 + lane / 4;
                float x = m.sums[side][0][r][lane % 4];
#pragma unroll
                for (int w = 1; w < 8; w++) x = __fadd_rn(x, m.sums[side][w][r][lane % 4]);
                x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1)), x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
                sum[i][half] = __fmaf_rn(sum[i][half], fade[i][half], x);
#pragma unroll
                for (int t = 0; t < Tiles; t++) out[i][t][2 * half] *= fade[i][half], out[i][t][2 * half + 1] *= fade[i][half];
            }
    }
    // Products with values.
    __device__ __forceinline__ void values(const Memory<Dim, M>& m, int stage) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < KEYS / 16; step += Span) {
            uint32_t p[Span][M][4];
#pragma unroll
            for (int i = 0; i < Span * M; i++) load_matrices(p[i / M][i % M], shared_address(&m.p[i % M * 16 + lane % 16][(step + i / M) * 16 + lane / 16 * 8]));
#pragma unroll
            for (int t = 0; t < Tiles; t += 2) {
                // Matrices: (keys 0-7, columns 0-7), (keys 8-15, columns 0-7), then columns 8-15, or keys 16-31 where a warp has no more columns.
                uint32_t b[4];
                load_matrices_transposed(b, shared_address(&m.v[stage][0][0][0] + chunk_at(step * 16 + lane % (16 * Span), warp * Tiles + t + (Span == 1 ? lane / 16 : 0))));
#pragma unroll
                for (int i = 0; i < M; i++) {
                    mma_bf16(out[i][t], p[0][i], b[0], b[1]);
                    if constexpr (Span == 1) mma_bf16(out[i][t + 1], p[0][i], b[2], b[3]);
                    else mma_bf16(out[i][t], p[1][i], b[2], b[3]);
                }
            }
        }
    }
    // Joins a split to those before it, as `attend_merge`.
    __device__ __forceinline__ void merge(float factor) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float own = __fmul_rn(most[i][half], factor), both = fmaxf(whole_most[i][half], own), old = exp2_approximate(whole_most[i][half] - both), fresh = exp2_approximate(own - both);
                whole_sum[i][half] = __fmaf_rn(sum[i][half], fresh, __fmul_rn(whole_sum[i][half], old)), whole_most[i][half] = both;
#pragma unroll
                for (int t = 0; t < Tiles; t++)
#pragma unroll
                    for (int j = 2 * half; j < 2 * half + 2; j++) total[i][t][j] = __fmaf_rn(out[i][t][j], fresh, __fmul_rn(total[i][t][j], old));
            }
    }
    __device__ __forceinline__ void write(const AttentionArgs& a, const Window& w, float factor) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.group, live = w.tokens * group;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = i * 16 + half * 8 + lane / 4;
                if (r >= live) continue;
                const int row = w.first_token + r / group, head = w.kv_head * group + r % group;
                if (a.partial) {
                    const size_t at = (static_cast<size_t>(row) * (a.q.columns / Dim) + head) * a.splits + w.split;
                    if (warp == 0 && lane % 4 == 0) a.scales[at * 2] = __fmul_rn(most[i][half], factor), a.scales[at * 2 + 1] = sum[i][half];
#pragma unroll
                    for (int t = 0; t < Tiles; t++) *reinterpret_cast<float2*>(a.partial + at * Dim + (warp * Tiles + t) * 8 + lane % 4 * 2) = make_float2(out[i][t][2 * half], out[i][t][2 * half + 1]);
                } else {
                    const float share = __frcp_rn(whole_sum[i][half]);
#pragma unroll
                    for (int t = 0; t < Tiles; t++) write_pair<true>(a, row, head * Dim + (warp * Tiles + t) * 8 + lane % 4 * 2, __fmul_rn(total[i][t][2 * half], share), __fmul_rn(total[i][t][2 * half + 1], share));
                }
            }
    }
};

template <int Dim, int M> __device__ __forceinline__ void attend(const AttentionArgs& a) {
    constexpr int Stages = Memory<Dim, M>::Stages;
    extern __shared__ __align__(128) char memory[];
    auto& m = *reinterpret_cast<Memory<Dim, M>*>(memory);
#if SM90
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(shared_address(&m.k_full[i]), 1), barrier_init(shared_address(&m.v_full[i]), 1), barrier_init(shared_address(&m.k_empty[i]), CONSUMERS), barrier_init(shared_address(&m.v_empty[i]), CONSUMERS);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (threadIdx.x >= CONSUMERS) return produce(a, m);
#endif
    const float factor = __fmul_rn(1.44269504f, a.scale);
    Windows windows(a);
    int index = 0;
    for (int item = blockIdx.x;; item += gridDim.x) {
        const Window w = windows.find(item);
        if (item == blockIdx.x) depend();
        if (!w.there) return;
        const int end = end_key(a, w);
        if (first_key(w) >= end) continue;
        Rows<Dim, M> rows;
        rows.queries(a, m, w);
        rows.begin();
#if !SM90
        if (Stages > 1) fetch(a, m, w, first_key(w), index % Stages);
#endif
        for (int key = first_key(w); key < end; key += KEYS, index++) {
            const int stage = index % Stages, side = index % 2;
            float s[M][4] = {}, fade[M][2];
#if SM90
            barrier_wait(shared_address(&m.k_full[stage]), index / Stages & 1);
#else
            const int next = key + (Stages > 1 ? KEYS : 0);
            if (next < end) fetch(a, m, w, next, (index + Stages - 1) % Stages);
            if (Stages > 1 && next < end) copies_wait<1>();
            else copies_wait<0>();
            consumers_together();
#endif
            rows.scores(s, m, stage);
#if SM90
            barrier_arrive(shared_address(&m.k_empty[stage]));
#endif
            rows.mask(s, m, side, key, w.start, a.group);
            consumers_together();
            rows.exponents(s, fade, m, side, factor);
            consumers_together();
            rows.add_sums(fade, m, side);
#if SM90
            barrier_wait(shared_address(&m.v_full[stage]), index / Stages & 1);
#endif
            rows.values(m, stage);
#if SM90
            barrier_arrive(shared_address(&m.v_empty[stage]));
#else
            consumers_together(); // done with the tile
#endif
            if (!a.partial && ((key + KEYS) % SPLIT == 0 || key + KEYS >= end)) {
                rows.merge(factor);
                rows.begin_split();
            }
        }
        rows.write(a, w, factor);
    }
}

// Joins the splits of a token and head in ascending order. A warp each.
template <int Dim> __device__ __forceinline__ void attend_merge(const AttentionArgs& a) {
    enter();
    const int lane = threadIdx.x % 32, heads = a.q.columns / Dim, item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = item / heads;
    if (row >= live_rows(a.q)) return;
    const TokenRow token = a.tables.tokens[row];
    // Requests of many tokens are `prefill`'s: it has written their rows.
    if (token.request < 0 || token.request >= request_rows(a.tables) || a.tables.requests[token.request].token_count > a.few) return;
    const int count = min(token.position / SPLIT + 1, static_cast<int>(a.splits));
    float most = -INFINITY, sum = 0, out[Dim / 32] = {};
    for (int split = 0; split < count; split++) {
        const size_t at = static_cast<size_t>(item) * a.splits + split;
        const float theirs = a.scales[at * 2], both = fmaxf(most, theirs), old = exp2_approximate(most - both), fresh = exp2_approximate(theirs - both);
        sum = __fmaf_rn(a.scales[at * 2 + 1], fresh, __fmul_rn(sum, old)), most = both;
#pragma unroll
        for (int j = 0; j < Dim / 64; j++) {
            const float2 x = *reinterpret_cast<const float2*>(a.partial + at * Dim + j * 64 + lane * 2);
            out[2 * j] = __fmaf_rn(x.x, fresh, __fmul_rn(out[2 * j], old)), out[2 * j + 1] = __fmaf_rn(x.y, fresh, __fmul_rn(out[2 * j + 1], old));
        }
    }
    const float share = __frcp_rn(sum);
#pragma unroll
    for (int j = 0; j < Dim / 64; j++) write_pair<true>(a, row, item % heads * Dim + j * 64 + lane * 2, __fmul_rn(out[2 * j], share), __fmul_rn(out[2 * j + 1], share));
}

// What `src/ops/attention.rs` asks for.
template <int Dim, int M> constexpr bool sized = sizeof(Memory<Dim, M>) == (stages<Dim, M> * 2 * KEYS * Dim * 2 + M * 16 * (KEYS + 8 + Dim + 8) * 2 + 2 * 8 * M * 16 * 5 * 4 + 128 + 127) / 128 * 128;

#define ATTEND(Dim, M)                                                                                                                                  \
    static_assert(sized<Dim, M>);                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, together<M>) attend_##Dim##_##M(const __grid_constant__ AttentionArgs a) { attend<Dim, M>(a); }
ATTEND(64, 1) ATTEND(64, 2) ATTEND(128, 1) ATTEND(128, 2) ATTEND(256, 1) ATTEND(256, 2)
#define MERGE(Dim)                                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) attend_merge_##Dim(const __grid_constant__ AttentionArgs a) { attend_merge<Dim>(a); }
MERGE(64) MERGE(128) MERGE(256)
