// The states of recurrent layers of 128 or 256 rows: the middle one of the three kernels of `recurrence.cuh`.
//
// A thread block per head, C columns and some requests, one after the other; its eight warps hold the state in registers, `Rows` rows each, a lane every 32nd column. The next chunk is on its way while one is
// computed. A product with the state is eight chains of FMA over a warp's rows, added in ascending order, for `Batch` tokens at a time; substitution is by column, entries ascending,
// old and new alike. The cut of a text into steps, C and Batch change who computes a value and never how. Batch 4 and 64 columns leave room for several thread
// blocks per multiprocessor, which hide each other's latency; prompts have 16 and 32. Bytes: the state once, read.
#include "recurrence.cuh"

constexpr int WARPS = 8, THREADS = WARPS * 32;

// One chunk as it is fetched.
template <int Rows, int C> struct alignas(16) Chunk {
    float k[CHUNK][Rows * WARPS + 4]; // of entries, then of tokens
    float q[CHUNK][Rows * WARPS + 4];
    float u[CHUNK][C]; // of entries; those of tokens are written here
    float v[CHUNK][C];
    float dots[CHUNK][2][CHUNK]; // by token, of its key and its query, by entry; the latter then times the decay in between
    float g[CHUNK], beta[CHUNK];
};
template <int Rows, int C, int Batch> struct alignas(16) Memory {
    Chunk<Rows, C> chunk[2];
    float partial[WARPS][2 * Batch][C];
    float sums[2 * Batch][C];        // S'k, then S'q, by token
    float key_weight[CHUNK][CHUNK]; // dots of keys times the decay in between, by entry, then token
    float decay[CHUNK], fold_decay[CHUNK + 4];
};

template <bool Delta, int Rows, int C> __device__ __forceinline__ void fetch(const RecurArgs& a, Chunk<Rows, C>& chunk, const StateRow& row, const Span& span, int head, int part) {
    constexpr int R = Rows * WARPS;
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
template <bool Delta, int Rows, int C, int Batch> __device__ __forceinline__ void weigh(Memory<Rows, C, Batch>& m, Chunk<Rows, C>& chunk, const Span& span) {
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

// S'k and S'q of `Live` tokens from `t` on, at places from `at` on: this warp's rows.
template <bool Delta, int Rows, int C, int Batch, int Live>
__device__ __forceinline__ void products(Memory<Rows, C, Batch>& m, const Chunk<Rows, C>& chunk, const float (&state)[Rows][C / 32], int entries, int t, int at) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float by_key[Live][C / 32] = {}, by_query[Live][C / 32] = {};
#pragma unroll
    for (int i = 0; i < Rows; i += 4)
#pragma unroll
        for (int r = 0; r < Live; r++) {
            const float4 q = *reinterpret_cast<const float4*>(&chunk.q[t + r][warp * Rows + i]);
            const float qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < C / 32; c++) by_query[r][c] = __fmaf_rn(qs[j], state[i + j][c], by_query[r][c]);
            if constexpr (Delta) {
                const float4 k = *reinterpret_cast<const float4*>(&chunk.k[entries + t + r][warp * Rows + i]);
                const float ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C / 32; c++) by_key[r][c] = __fmaf_rn(ks[j], state[i + j][c], by_key[r][c]);
            }
        }
#pragma unroll
    for (int r = 0; r < Live; r++)
#pragma unroll
        for (int c = 0; c < C / 32; c++) {
            if constexpr (Delta) m.partial[warp][at + r][c * 32 + lane] = by_key[r][c];
            m.partial[warp][Batch + at + r][c * 32 + lane] = by_query[r][c];
        }
}

// u of `live` tokens from `t` on, a thread per column. An entry is added to all tokens behind it at a time, so that each token's sum is in order of entries and none waits for another's.
template <int Rows, int C, int Batch>
__device__ __forceinline__ void substitute(const Memory<Rows, C, Batch>& m, Chunk<Rows, C>& chunk, const Span& span, int t, int live) {
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

template <bool Delta, int Rows, int C, int Batch>
__device__ __forceinline__ void outputs(const RecurArgs& a, const Memory<Rows, C, Batch>& m, const Chunk<Rows, C>& chunk, const Span& span, int t, int live, int head, int part) {
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
template <bool Delta, int Rows, int C, int Batch>
__device__ __forceinline__ void run_tokens(const RecurArgs& a, Memory<Rows, C, Batch>& m, Chunk<Rows, C>& chunk, const float (&state)[Rows][C / 32], const Span& span, int t, int head, int part) {
    const int tokens = min(Batch, span.tokens - t);
#pragma unroll 1
    for (int at = 0; at < tokens;) {
        const int live = tokens - at;
        if (live >= 4) products<Delta, Rows, C, Batch, 4>(m, chunk, state, span.entries, t + at, at), at += 4;
        else if (live >= 2) products<Delta, Rows, C, Batch, 2>(m, chunk, state, span.entries, t + at, at), at += 2;
        else products<Delta, Rows, C, Batch, 1>(m, chunk, state, span.entries, t + at, at), at += 1;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x + (Delta ? 0 : Batch * C); i < 2 * Batch * C; i += THREADS) {
        if (i / C % Batch >= tokens) continue;
        float total = m.partial[0][i / C][i % C];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total = __fadd_rn(total, m.partial[w][i / C][i % C]);
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
template <int Rows, int C> __device__ __forceinline__ void leave(const RecurArgs& a, const Chunk<Rows, C>& chunk, const StateRow& row, const Span& span, int head, int part) {
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
        float* key = s.keys + static_cast<size_t>((row.slot * s.groups + group_of(a, head)) * s.entries + place) * (Rows * WARPS);
#pragma unroll 1
        for (int i = lane; i < Rows * WARPS; i += 32) key[i] = chunk.k[e][i];
    }
}

// u of a chunk's tokens, of other rows, for `keep`.
template <int Rows, int C> __device__ __forceinline__ void hand_over(const RecurArgs& a, const Chunk<Rows, C>& chunk, const Span& span, int head, int part) {
    const StateView& s = a.states;
#pragma unroll 1
    for (int i = threadIdx.x; i < span.tokens * C; i += THREADS)
        a.entered[(static_cast<size_t>(span.token + i / C) * s.heads + head) * s.columns + part * C + i % C] = chunk.u[span.entries + i / C][i % C];
}

// A full chunk goes into the state.
template <int Rows, int C> __device__ __forceinline__ void fold(float (&state)[Rows][C / 32], const Chunk<Rows, C>& chunk, const float* decay) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Rows; i++)
#pragma unroll
        for (int c = 0; c < C / 32; c++) state[i][c] *= decay[0];
#pragma unroll 1
    for (int s = 0; s < CHUNK; s++) {
        float u[C / 32];
#pragma unroll
        for (int c = 0; c < C / 32; c++) u[c] = decay[s + 1] * chunk.u[s][c * 32 + lane];
#pragma unroll
        for (int i = 0; i < Rows; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(&chunk.k[s][warp * Rows + i]);
            const float ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < C / 32; c++) state[i + j][c] = __fmaf_rn(ks[j], u[c], state[i + j][c]);
        }
    }
}

template <bool Delta, int Rows, int C, int Batch> __device__ __forceinline__ void scan_row(const RecurArgs& a, Memory<Rows, C, Batch>& m, const StateRow& row) {
    const StateView& s = a.states;
    const int columns = s.columns, parts = columns / C, part = blockIdx.x % parts, head = blockIdx.x / parts, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // This thread's part of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + ((static_cast<size_t>(index) * s.heads + head) * (Rows * WARPS) + warp * Rows) * columns + part * C + lane; };
    float state[Rows][C / 32];
    const float* from = row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot);
#pragma unroll
    for (int i = 0; i < Rows; i++)
#pragma unroll
        for (int c = 0; c < C / 32; c++) state[i][c] = row.state_at > 0 ? __ldcs(from + i * columns + c * 32) : 0;
    auto store = [&](float* to) {
        int stride = columns;
        asm volatile("" : "+r"(stride)); // computes places anew rather than keep them in registers all the time
#pragma unroll
        for (int i = 0; i < Rows; i++)
#pragma unroll
            for (int c = 0; c < C / 32; c++) to[i * stride + c * 32] = state[i][c];
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
            run_tokens<Delta>(a, m, chunk, state, span, t, head, part);
            if (t + Batch < span.tokens) __syncthreads(); // done with the sums
        }
        if (span.tokens == 0) __syncthreads(); // decays are there
        if (row.is_short(s)) leave(a, chunk, row, span, head, part);
        else if (Delta) hand_over(a, chunk, span, head, part);
        if (folds(row, base)) {
            fold(state, chunk, m.fold_decay);
            if (base + CHUNK == row.snapshot_at) store(place(s.saved_matrices, row.snapshot));
            if (base + CHUNK == row.state_end) store(place(s.matrices, row.slot));
        }
        __syncthreads(); // done with the chunk
    }
}

template <bool Delta, int Rows, int C, int Batch> __device__ __forceinline__ void scan(const RecurArgs& a) {
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
        if (there) scan_row<Delta>(a, *reinterpret_cast<Memory<Rows, C, Batch>*>(memory), row);
    }
}

// What `src/ops/recurrence.rs` asks for.
template <int Rows, int C, int Batch>
constexpr bool sized = sizeof(Memory<Rows, C, Batch>) == 4 * (2 * (2 * CHUNK * (Rows * WARPS + 4) + 2 * CHUNK * C + 2 * CHUNK * CHUNK + 2 * CHUNK) + (WARPS + 1) * 2 * Batch * C + CHUNK * CHUNK + 2 * CHUNK + 4);

// Thread blocks per multiprocessor that registers are counted out for.
constexpr int SEVERAL = __CUDA_ARCH__ >= 1000 ? 2 : 3;

#define SCAN(R, C, Batch, Blocks)                                                                                                                                                      \
    static_assert(sized<R / WARPS, C, Batch>);                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, Blocks) scan_delta_##R##_##C(const __grid_constant__ RecurArgs a) { scan<true, R / WARPS, C, Batch>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, Blocks) scan_space_##R##_##C(const __grid_constant__ RecurArgs a) { scan<false, R / WARPS, C, Batch>(a); }
SCAN(128, 64, 4, SEVERAL) SCAN(128, 32, 16, 2) SCAN(256, 64, 4, 1) SCAN(256, 32, 16, 1)
