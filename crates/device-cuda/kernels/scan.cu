// The states of recurrent layers of 128 or 256 rows: the middle one of the three kernels of `recurrence.cuh`, with the arithmetic of `state_tile.cuh`.
//
// A thread block per head, 32 columns and some requests, one after the other; its eight warps hold the state in registers, a tile each. The next chunk is on its way while one is
// computed. Products with the state are made for `Batch` tokens at a time; substitution is by column, entries ascending, old and new alike. The cut of a text into steps and Batch change who
// computes a value and never how. Batch 4 leaves room for several thread blocks per multiprocessor, which hide each other's latency; prompts have 16. Bytes: the state once, read.
#include "recurrence.cuh"
#include "state_tile.cuh"

constexpr int WARPS = 8, THREADS = WARPS * 32, C = 32;

// How C columns of a state of R rows are cut: warps that have the same columns, one per chain, and how many sixteens of columns each of them has.
template <int R> struct Cut {
    static constexpr int CHAINS = R / STATE_TILE_ROWS, SIXTEENS = C * CHAINS / WARPS / 16;
    static_assert(SIXTEENS * 16 * WARPS == C * CHAINS);
    using Tile = StateTile<SIXTEENS>;
    static __device__ __forceinline__ int row() { return threadIdx.x / 32 % CHAINS * STATE_TILE_ROWS; }
    static __device__ __forceinline__ int column() { return threadIdx.x / 32 / CHAINS * SIXTEENS * 16; }
};

// One chunk as it is fetched.
template <int R> struct alignas(16) Chunk {
    float k[CHUNK][R + 8]; // of entries, then of tokens; lanes that read at a time meet no bank twice
    float q[CHUNK][R + 8];
    float u[CHUNK][C]; // of entries; those of tokens are written here
    float v[CHUNK][C];
    float dots[CHUNK][2][CHUNK]; // by token, of its key and its query, by entry; the latter then times the decay in between
    float g[CHUNK], beta[CHUNK];
};
template <int R, int Batch> struct alignas(16) Memory {
    Chunk<R> chunk[2];
    float partial[Cut<R>::CHAINS][2 * Batch][C + 4];
    float sums[2 * Batch][C];        // S'k, then S'q, by token
    float key_weight[CHUNK][CHUNK]; // dots of keys times the decay in between, by entry, then token
    float decay[CHUNK], fold_decay[CHUNK + 4];
};

template <bool Delta, int R> __device__ __forceinline__ void fetch(const RecurArgs& a, Chunk<R>& chunk, const StateRow& row, const Span& span, int head, int part) {
    const StateView& s = a.states;
    const int group = group_of(a, head), entries = s.entries, turn = span.base % entries, thread = threadIdx.x, columns = s.columns;
    auto place = [&](int at) { return turn + at < entries ? turn + at : turn + at - entries; }; // in a ring
    const float* ring_keys = s.keys + (static_cast<size_t>(row.slot) * s.groups + group) * entries * R;
    const size_t of_head = (static_cast<size_t>(row.slot) * s.heads + head) * entries;
    auto key = [&](int t) { return Delta ? a.unit_keys + (static_cast<size_t>(span.token + t) * s.groups + group) * R : row_of(a.keys, span.token + t) + group * R; };
    auto query = [&](int t) { return Delta ? a.unit_queries + (static_cast<size_t>(span.token + t) * s.groups + group) * R : row_of(a.queries, span.token + t) + group * R; };
    // Mamba2 needs keys for the fold alone, and to leave them.
    if (Delta || folds(row, span.base) || (part == 0 && leads(a, head)))
#pragma unroll 1
        for (int i = thread; i < (span.entries + span.tokens) * (R / 4); i += THREADS) {
            const int at = i / (R / 4), c = i % (R / 4) * 4;
            copy_async(&chunk.k[at][c], (at < span.entries ? ring_keys + place(at) * R : key(at - span.entries)) + c);
        }
#pragma unroll 1
    for (int i = thread; i < span.tokens * (R / 4); i += THREADS) copy_async(&chunk.q[i / (R / 4)][i % (R / 4) * 4], query(i / (R / 4)) + i % (R / 4) * 4);
#pragma unroll 1
    for (int i = thread; i < span.entries * (C / 4); i += THREADS) copy_async(&chunk.u[i / (C / 4)][i % (C / 4) * 4], s.values + (of_head + place(i / (C / 4))) * columns + part * C + i % (C / 4) * 4);
#pragma unroll 1
    for (int i = thread; i < span.tokens * (C / 4); i += THREADS) copy_async(&chunk.v[i / (C / 4)][i % (C / 4) * 4], row_of(a.values, span.token + i / (C / 4)) + head * columns + part * C + i % (C / 4) * 4);
    if (thread < span.tokens * 8) copy_async(&chunk.dots[thread / 8][0][0] + thread % 8 * 4, a.dots + (static_cast<size_t>(span.token + thread / 8) * s.groups + group) * 2 * CHUNK + thread % 8 * 4);
    const float* factors = a.factors + (static_cast<size_t>(span.token - span.entries + thread) * s.heads + head) * 2;
    if (thread < span.entries + span.tokens) copy_async_word(&chunk.g[thread], thread < span.entries ? s.decays + of_head + place(thread) : factors);
    if (thread >= span.entries && thread < span.entries + span.tokens) copy_async_word(&chunk.beta[thread - span.entries], factors + 1);
    copies_commit();
}

// Dots times the decay in between, a thread per pair; decays from the grid position and to the end of the chunk; u of Mamba2.
template <bool Delta, int R, int Batch> __device__ __forceinline__ void weigh(Memory<R, Batch>& m, Chunk<R>& chunk, const Span& span) {
    const int thread = threadIdx.x, t = thread / CHUNK, s = thread % CHUNK, at = span.entries + t;
    if (t < span.tokens) {
        const float factor = decay_between(chunk.g, s, at);
        if (Delta) m.key_weight[s][t] = factor * chunk.dots[t][0][s];
        if (s <= at) chunk.dots[t][1][s] *= factor;
    }
    if (thread < span.tokens) m.decay[thread] = decay_between(chunk.g, -1, span.entries + thread);
    if (thread >= 64 && thread <= 64 + CHUNK) m.fold_decay[thread - 64] = decay_between(chunk.g, thread - 65, CHUNK - 1);
    if constexpr (!Delta)
        for (int i = thread; i < span.tokens * C; i += THREADS) chunk.u[span.entries + i / C][i % C] = chunk.beta[i / C] * chunk.v[i / C][i % C];
}

// S'k and S'q of `Batch` tokens from `t` on: this warp's chain and columns. Eights of vectors: of few tokens, keys and queries are one; of many, keys come first. Of Mamba2 there are queries only.
// Vectors of no token are whatever is there, and never looked at.
template <bool Delta, int R, int Batch>
__device__ __forceinline__ void products(Memory<R, Batch>& m, const Chunk<R>& chunk, const typename Cut<R>::Tile& tile, int entries, int t) {
    using Tile = typename Cut<R>::Tile;
    constexpr int M = Cut<R>::SIXTEENS, FEW = Batch < 8;
    const int g = Tile::g(), chain = threadIdx.x / 32 % Cut<R>::CHAINS, c = Cut<R>::column();
#pragma unroll 1
    for (int first = Delta || FEW ? 0 : Batch; first < (FEW ? 8 : 2 * Batch); first += 8) {
        const int n = first + g, own = min(t + n % Batch, CHUNK - 1);
        SplitSums sums[1][M];
        tile.multiply(sums, (Delta && n < Batch ? chunk.k[min(entries + own, CHUNK - 1)] : chunk.q[own]) + Cut<R>::row());
#pragma unroll
        for (int e = 0; e < 2; e++) Tile::write(&m.partial[chain][first + 2 * Tile::t() + e][c + Tile::column()], sums[0], e);
    }
}

// u of `live` tokens from `t` on, a thread per column. An entry is added to all tokens behind it at a time, so that each token's sum is in order of entries and none waits for another's.
template <int R, int Batch>
__device__ __forceinline__ void substitute(const Memory<R, Batch>& m, Chunk<R>& chunk, const Span& span, int t, int live) {
    const int c = threadIdx.x, first = span.entries + t;
    float sum[Batch];
#pragma unroll
    for (int i = 0; i < Batch; i++) sum[i] = m.decay[t + i] * m.sums[i][c]; // what is past the last token is never looked at
#pragma unroll 1
    for (int s = 0; s < first; s++) {
        const float u = chunk.u[s][c];
#pragma unroll
        for (int i = 0; i < Batch; i += 4) {
            const float4 w = *reinterpret_cast<const float4*>(&m.key_weight[s][t + i]);
            sum[i] = __fmaf_rn(w.x, u, sum[i]), sum[i + 1] = __fmaf_rn(w.y, u, sum[i + 1]), sum[i + 2] = __fmaf_rn(w.z, u, sum[i + 2]), sum[i + 3] = __fmaf_rn(w.w, u, sum[i + 3]);
        }
    }
#pragma unroll
    for (int i = 0; i < Batch; i++) {
        if (i >= live) break;
        const float own = chunk.beta[t + i] * (chunk.v[t + i][c] - sum[i]);
        chunk.u[first + i][c] = own;
#pragma unroll
        for (int j = i / 4 * 4; j < Batch; j += 4) {
            const float4 w = *reinterpret_cast<const float4*>(&m.key_weight[first + i][t + j]);
            const float ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (j + n > i) sum[j + n] = __fmaf_rn(ws[n], own, sum[j + n]);
        }
    }
}

template <bool Delta, int R, int Batch>
__device__ __forceinline__ void outputs(const RecurArgs& a, const Memory<R, Batch>& m, const Chunk<R>& chunk, const Span& span, int t, int live, int head, int part) {
#pragma unroll 1
    for (int i = threadIdx.x; i < live * C; i += THREADS) {
        const int own = t + i / C, c = i % C;
        float sum = m.decay[own] * m.sums[Batch + i / C][c];
#pragma unroll
        for (int s = 0; s < CHUNK; s += 4) {
            const float4 d = *reinterpret_cast<const float4*>(&chunk.dots[own][1][s]);
            const float ds[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float next = __fmaf_rn(ds[j], chunk.u[s + j][c], sum);
                sum = s + j <= span.entries + own ? next : sum;
            }
        }
        if constexpr (!Delta) sum = __fmaf_rn(a.skip[head], chunk.v[own][c], sum);
        row_of(a.out, span.token + own)[head * a.states.columns + part * C + c] = sum;
    }
}

// Up to `Batch` tokens of a chunk from `t` on.
template <bool Delta, int R, int Batch>
__device__ __forceinline__ void run_tokens(const RecurArgs& a, Memory<R, Batch>& m, Chunk<R>& chunk, const typename Cut<R>::Tile& tile, const Span& span, int t, int head, int part) {
    const int tokens = min(Batch, span.tokens - t);
    products<Delta>(m, chunk, tile, span.entries, t);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x + (Delta ? 0 : Batch * C); i < 2 * Batch * C; i += THREADS) {
        if (i / C % Batch >= tokens) continue;
        float total = m.partial[0][i / C][i % C];
#pragma unroll
        for (int chain = 1; chain < Cut<R>::CHAINS; chain++) total = __fadd_rn(total, m.partial[chain][i / C][i % C]);
        m.sums[i / C][i % C] = total;
    }
    __syncthreads();
    if constexpr (Delta) {
        if (threadIdx.x < C) substitute(m, chunk, span, t, tokens);
        __syncthreads();
    }
    outputs<Delta>(a, m, chunk, span, t, tokens, head, part);
}

// The entries of a chunk's tokens that no stored state contains, of a row whose entries have places of their own in the rings.
template <int R> __device__ __forceinline__ void leave(const RecurArgs& a, const Chunk<R>& chunk, const StateRow& row, const Span& span, int head, int part) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, first = max(max(row.start, row.state_end) - span.base, span.entries);
#pragma unroll 1
    for (int e = first + threadIdx.x / 32; e < span.entries + span.tokens; e += WARPS) {
        const int place = (span.base + e) % s.entries;
        const size_t of_head = (row.slot * s.heads + head) * s.entries + place;
#pragma unroll 1
        for (int c = lane; c < C; c += 32) s.values[of_head * s.columns + part * C + c] = chunk.u[e][c];
        if (part != 0) continue;
        if (lane == 0) s.decays[of_head] = chunk.g[e];
        if (!leads(a, head)) continue;
        float* key = s.keys + static_cast<size_t>((row.slot * s.groups + group_of(a, head)) * s.entries + place) * R;
#pragma unroll 1
        for (int i = lane; i < R; i += 32) key[i] = chunk.k[e][i];
    }
}

// u of a chunk's tokens, of other rows, for `keep`.
template <int R> __device__ __forceinline__ void hand_over(const RecurArgs& a, const Chunk<R>& chunk, const Span& span, int head, int part) {
    const StateView& s = a.states;
#pragma unroll 1
    for (int i = threadIdx.x; i < span.tokens * C; i += THREADS)
        a.entered[(static_cast<size_t>(span.token + i / C) * s.heads + head) * s.columns + part * C + i % C] = chunk.u[span.entries + i / C][i % C];
}

template <bool Delta, int R, int Batch> __device__ __forceinline__ void scan_row(const RecurArgs& a, Memory<R, Batch>& m, const StateRow& row) {
    const StateView& s = a.states;
    const int columns = s.columns, parts = columns / C, part = blockIdx.x % parts, head = blockIdx.x / parts;
    // This warp's part of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + ((static_cast<size_t>(index) * s.heads + head) * R + Cut<R>::row()) * columns + part * C + Cut<R>::column(); };
    typename Cut<R>::Tile tile;
    if (row.state_at > 0) tile.load(row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot), columns);
    auto store = [&](float* to) {
        int stride = columns;
        asm volatile("" : "+r"(stride)); // computes places anew rather than keep them in registers all the time
        tile.store(to, stride);
    };
    if (row.restore >= 0 && row.state_end == row.state_at) store(place(s.matrices, row.slot));
    // The first round has nothing but the chunk behind it to fetch.
    for (int base = row.state_at - CHUNK, side = 1; base < row.end; base += CHUNK, side ^= 1) {
        const Span span(row, base);
        auto& chunk = m.chunk[side];
        if (base + CHUNK < row.end) fetch<Delta>(a, m.chunk[side ^ 1], row, Span(row, base + CHUNK), head, part), copies_wait<1>();
        else copies_wait<0>();
        if (base < row.state_at) continue;
        __syncthreads();
        weigh<Delta>(m, chunk, span);
        for (int t = 0; t < span.tokens; t += Batch) {
            run_tokens<Delta>(a, m, chunk, tile, span, t, head, part);
            if (t + Batch < span.tokens) __syncthreads(); // done with the sums
        }
        if (span.tokens == 0) __syncthreads(); // decays are there
        if (row.is_short(s)) leave(a, chunk, row, span, head, part);
        else if (Delta) hand_over(a, chunk, span, head, part);
        if (folds(row, base)) {
            typename Cut<R>::Tile::Keys keys;
            keys.load(&chunk.k[0][Cut<R>::row()], R + 8);
            tile.fold(m.fold_decay[0], &chunk.u[0][Cut<R>::column()], C, [&](int entry) { return m.fold_decay[entry + 1]; }, keys);
            if (base + CHUNK == row.snapshot_at) store(place(s.saved_matrices, row.snapshot));
            if (base + CHUNK == row.state_end) store(place(s.matrices, row.slot));
        }
        __syncthreads(); // done with the chunk
    }
}

template <bool Delta, int R, int Batch> __device__ __forceinline__ void scan(const RecurArgs& a) {
    extern __shared__ __align__(16) char memory[];
    enter();
    const int tokens = live_rows(a.out), requests = request_rows(a.tables);
    __shared__ StateRow row; // read again where it is needed, rather than kept in registers
    __shared__ bool there;
    for (int request = blockIdx.y; request < requests; request += gridDim.y) {
        __syncthreads();
        if (threadIdx.x == 0) there = state_row(a.states, a.tables, request, tokens, row, a.fault);
        __syncthreads();
        if (there && a.leaves == 2 && !row.is_short(a.states)) report(a.fault, RecordHeader::BAD_SLOT);
        if (there) scan_row<Delta>(a, *reinterpret_cast<Memory<R, Batch>*>(memory), row);
    }
}

// What `src/ops/recurrence.rs` asks for.
template <int R, int Batch>
constexpr bool sized = sizeof(Memory<R, Batch>) == 4 * (2 * (2 * CHUNK * (R + 8) + 2 * CHUNK * C + 2 * CHUNK * CHUNK + 2 * CHUNK) + R / STATE_TILE_ROWS * 2 * Batch * (C + 4) + 2 * Batch * C + CHUNK * CHUNK + 2 * CHUNK + 4);

// Thread blocks per multiprocessor that registers are counted out for.
constexpr int SEVERAL = __CUDA_ARCH__ >= 1000 ? 2 : SM90 ? 4 : 3;
#define SCAN(R, Batch, Blocks)                                                                                                                                       \
    static_assert(sized<R, Batch>);                                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, Blocks) scan_delta_##R##_##Batch(const __grid_constant__ RecurArgs a) { scan<true, R, Batch>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, Blocks) scan_space_##R##_##Batch(const __grid_constant__ RecurArgs a) { scan<false, R, Batch>(a); }
SCAN(128, 4, SEVERAL) SCAN(128, 16, 2) SCAN(256, 4, 1) SCAN(256, 16, 1)
