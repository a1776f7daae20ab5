// The gated delta rule on a grid of 16 positions: decode, verify windows and prompts in three kernels.
//
//   u_t = beta_t (v_t - e^{d(t)} S'k_t - sum_{s<t} e^{d(s,t)} (k_s . k_t) u_s)      o_t = e^{d(t)} S'q_t + sum_{s<=t} e^{d(s,t)} (k_s . q_t) u_s
//   fold: S = e^{d(16)} S + sum_s e^{d(s,16)} k_s u_s'        d(s,t) = sum of g over s < r <= t, added from t downwards; d(t) the same from the boundary
//
// State: f32 [slot][value head][group of C columns][128 keys][C], at the last boundary. Entries: k f32 [slot][key head][RING][128], u f32 [slot][value head][RING][128], g
// f32 [slot][value head][RING], by position modulo RING. Tokens: k, q f32 [token][key head][128], unit length; v f32 [token][value head][128]; g, beta f32
// [token][value head]. Dots: f32 [token][key head][2][16], of a token's key and query with the keys of its chunk. Result: o f32 [token][value head][128], entries, and the
// state where a boundary has become certain.
//
// `delta_dots` has a warp per token and key head: dots do not depend on the state, so that prompts have all of theirs at once. `delta_rule` has a thread block per plan
// row, value head and C columns, several per SM; its eight warps hold the state in registers, sixteen keys each. A product with the state is eight chains of FMA over
// sixteen keys, added in ascending order; substitution is by column, positions ascending, old and new alike. The cut of a text into steps and C change who
// computes a value and never how. `delta_keep` writes the entries that later steps need, when nobody reads those of this step any more: the ring is by position, and a
// prompt that begins inside a chunk comes round to its own entries; two value heads share the keys of one head. (It belongs into the kernel behind, with the gated norm.)
// Bytes: the state once, read.
#pragma once
#include "paceline.cuh"

constexpr int D = 128, CHUNK = 16, RING = 32, GROUPS = 8;
constexpr int ROW = D + 4; // floats of a vector in shared memory

struct DeltaRow {
    int slot, state_at, start, tokens, drafts, first_token;
};
struct DeltaArgs {
    float *state, *entry_k, *entry_u, *entry_g, *dots, *u, *out; // u as out: of this step
    const float *k, *q, *v, *g, *beta;
    const DeltaRow* rows;
    const int* row_of; // of a token
    int row_count, tokens, most, value_heads, key_heads, pdl; // most: tokens of a row
};

__global__ void __launch_bounds__(128) delta_dots(DeltaArgs a) {
    if (a.pdl) release_dependents(), depend();
    const int lane = threadIdx.x % 32, work = a.tokens * a.key_heads;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < work; i += gridDim.x * blockDim.x / 32) {
        const int token = i / a.key_heads, head = i % a.key_heads;
        const DeltaRow row = a.rows[a.row_of[token]];
        const int position = row.start + token - row.first_token, base = position / CHUNK * CHUNK;
        const float4 k = reinterpret_cast<const float4*>(a.k + static_cast<long>(i) * D)[lane], q = reinterpret_cast<const float4*>(a.q + static_cast<long>(i) * D)[lane];
        const float* ring = a.entry_k + (static_cast<long>(row.slot) * a.key_heads + head) * RING * D;
        float4 other[CHUNK];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const int at = base + s;
            // A position of this step is read where its token is: another warp may not have written its entry yet.
            const float* from = at < row.start ? ring + at % RING * D : a.k + (static_cast<long>(row.first_token + at - row.start) * a.key_heads + head) * D;
            if (at <= position) other[s] = reinterpret_cast<const float4*>(from)[lane];
        }
        float keys = 0, queries = 0; // lane s keeps the dots with position s
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const float4 e = other[s];
            float x = __fmaf_rn(e.w, k.w, __fmaf_rn(e.z, k.z, __fmaf_rn(e.y, k.y, e.x * k.x))), y = __fmaf_rn(e.w, q.w, __fmaf_rn(e.z, q.z, __fmaf_rn(e.y, q.y, e.x * q.x)));
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask), y += __shfl_xor_sync(~0u, y, mask);
            if (lane == s && base + s <= position) keys = x, queries = y;
        }
        if (lane < CHUNK) a.dots[static_cast<long>(i) * 2 * CHUNK + lane] = keys, a.dots[static_cast<long>(i) * 2 * CHUNK + CHUNK + lane] = queries;
    }
}

// Entries of the positions from the last certain boundary on, fewer than two chunks per row. A warp per position and value head.
__global__ void __launch_bounds__(128) delta_keep(DeltaArgs a) {
    if (a.pdl) release_dependents(), depend();
    const int lane = threadIdx.x % 32, most = min(a.most, 2 * CHUNK), work = a.row_count * most * a.value_heads, group = a.value_heads / a.key_heads;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < work; i += gridDim.x * blockDim.x / 32) {
        const int head = i % a.value_heads;
        const DeltaRow row = a.rows[i / a.value_heads / most];
        const int end = row.start + row.tokens, position = max((end - row.drafts) / CHUNK * CHUNK, row.start) + i / a.value_heads % most;
        if (position >= end) continue;
        const long token = row.first_token + position - row.start, of_head = (static_cast<long>(row.slot) * a.value_heads + head) * RING + position % RING, of_key = (static_cast<long>(row.slot) * a.key_heads + head / group) * RING + position % RING;
        reinterpret_cast<float4*>(a.entry_u + of_head * D)[lane] = reinterpret_cast<const float4*>(a.u + (token * a.value_heads + head) * D)[lane];
        if (head % group == 0) reinterpret_cast<float4*>(a.entry_k + of_key * D)[lane] = reinterpret_cast<const float4*>(a.k + (token * a.key_heads + head / group) * D)[lane];
        if (lane == 0) a.entry_g[of_head] = a.g[token * a.value_heads + head];
    }
}

// One chunk of one item, as it is fetched; `MT` tokens at most.
template <int C, int MT> struct alignas(16) DeltaChunk {
    float k[CHUNK][ROW]; // of entries, then of tokens
    float u[CHUNK][C];   // of entries; those of tokens are written by the substitution
    float q[MT][ROW];
    float v[MT][C];
    float key_dot[MT][CHUNK], query_dot[MT][CHUNK]; // by token, then position
    float g[CHUNK], beta[MT];
};
template <int C, int MT> struct alignas(16) DeltaMemory {
    DeltaChunk<C, MT> chunk[2];
    float partial[GROUPS][2 * MT][C];
    float sums[2 * MT][C]; // S'k, then S'q, by token
    float decay[MT], fold_decay[CHUNK + 1];
};

// Where a chunk of a row begins and what is in it.
struct Span {
    int base, entries, tokens;
    long token; // its first one
    __device__ Span(const DeltaRow& row, int base) : base(base) {
        const int end = row.start + row.tokens, from = min(max(base, row.start), base + CHUNK);
        entries = from - base, tokens = min(end, base + CHUNK) - from, token = row.first_token + from - row.start;
    }
};

template <int C, int MT> __device__ void delta_fetch(const DeltaArgs& a, DeltaChunk<C, MT>& chunk, const DeltaRow& row, const Span& span, int head, int part) {
    const int key_head = head / (a.value_heads / a.key_heads), ring = span.base % RING, thread = threadIdx.x;
    const float* keys = a.entry_k + ((static_cast<long>(row.slot) * a.key_heads + key_head) * RING + ring) * D;
    const long of_head = (static_cast<long>(row.slot) * a.value_heads + head) * RING + ring;
    for (int i = thread; i < (span.entries + span.tokens) * (D / 4); i += 256) {
        const int at = i / (D / 4), c = i % (D / 4) * 4;
        copy_async(&chunk.k[at][c], at < span.entries ? keys + at * D + c : a.k + ((span.token + at - span.entries) * a.key_heads + key_head) * D + c);
    }
    for (int i = thread; i < span.tokens * (D / 4); i += 256) copy_async(&chunk.q[i / (D / 4)][i % (D / 4) * 4], a.q + ((span.token + i / (D / 4)) * a.key_heads + key_head) * D + i % (D / 4) * 4);
    for (int i = thread; i < span.entries * (C / 4); i += 256) copy_async(&chunk.u[i / (C / 4)][i % (C / 4) * 4], a.entry_u + (of_head + i / (C / 4)) * D + part * C + i % (C / 4) * 4);
    for (int i = thread; i < span.tokens * (C / 4); i += 256) copy_async(&chunk.v[i / (C / 4)][i % (C / 4) * 4], a.v + ((span.token + i / (C / 4)) * a.value_heads + head) * D + part * C + i % (C / 4) * 4);
    for (int i = thread; i < span.tokens * 8; i += 256) {
        const float* dots = a.dots + ((span.token + i / 8) * a.key_heads + key_head) * 2 * CHUNK + i % 8 * 4;
        copy_async(i % 8 < 4 ? &chunk.key_dot[i / 8][i % 8 * 4] : &chunk.query_dot[i / 8][i % 8 * 4 - CHUNK], dots);
    }
    if (thread < span.entries + span.tokens) copy_async_word(&chunk.g[thread], thread < span.entries ? a.entry_g + of_head + thread : a.g + (span.token + thread - span.entries) * a.value_heads + head);
    if (thread < span.tokens) copy_async_word(&chunk.beta[thread], a.beta + (span.token + thread) * a.value_heads + head);
    copies_commit();
}

// Dots times the decay in between, a thread per pair; decays from the boundary and to the end of the chunk.
template <int C, int MT> __device__ void delta_decays(DeltaMemory<C, MT>& m, DeltaChunk<C, MT>& chunk, const Span& span) {
    auto decay = [&](int above, int at) {
        float d = 0;
#pragma unroll
        for (int r = CHUNK - 1; r >= 0; r--) {
            const float g = chunk.g[r];
            d = r <= at && r > above ? d + g : d;
        }
        return expf(d);
    };
    for (int i = threadIdx.x; i < MT * CHUNK; i += 256) {
        const int t = i / CHUNK, s = i % CHUNK, at = span.entries + t;
        const bool counts = t < span.tokens && s <= at;
        const float factor = decay(s, at);
        chunk.key_dot[t][s] = counts ? factor * chunk.key_dot[t][s] : 0, chunk.query_dot[t][s] = counts ? factor * chunk.query_dot[t][s] : 0;
    }
    if (threadIdx.x < MT) m.decay[threadIdx.x] = decay(-1, span.entries + threadIdx.x);
    if (threadIdx.x >= 64 && threadIdx.x <= 64 + CHUNK) m.fold_decay[threadIdx.x - 64] = decay(static_cast<int>(threadIdx.x) - 65, CHUNK - 1);
}

// S'k and S'q of `Live` tokens from `t`: this warp's sixteen keys.
template <int C, int MT, int Live> __device__ void delta_products(DeltaMemory<C, MT>& m, const DeltaChunk<C, MT>& chunk, const float (&state)[16][C / 32], int entries, int t) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[2 * Live][C / 32] = {};
#pragma unroll
    for (int i = 0; i < 16; i += 4)
#pragma unroll
        for (int r = 0; r < Live; r++) {
            const float4 k = *reinterpret_cast<const float4*>(&chunk.k[entries + t + r][warp * 16 + i]), q = *reinterpret_cast<const float4*>(&chunk.q[t + r][warp * 16 + i]);
            const float ks[4] = {k.x, k.y, k.z, k.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < C / 32; c++) sum[r][c] = __fmaf_rn(ks[j], state[i + j][c], sum[r][c]), sum[Live + r][c] = __fmaf_rn(qs[j], state[i + j][c], sum[Live + r][c]);
        }
#pragma unroll
    for (int r = 0; r < Live; r++)
#pragma unroll
        for (int c = 0; c < C / 32; c++) m.partial[warp][t + r][c * 32 + lane] = sum[r][c], m.partial[warp][MT + t + r][c * 32 + lane] = sum[Live + r][c];
}

// u of every token, a thread per column.
template <int C, int MT> __device__ void delta_substitute(const DeltaArgs& a, DeltaMemory<C, MT>& m, DeltaChunk<C, MT>& chunk, const Span& span, float* to) {
    const int c = threadIdx.x;
    float u[CHUNK];
#pragma unroll
    for (int s = 0; s < CHUNK; s++) {
        const float x = chunk.u[s][c];
        u[s] = s < span.entries ? x : 0; // a product with it changes nothing
    }
    for (int t = 0; t < span.tokens; t++) {
        float sum = m.decay[t] * m.sums[t][c];
#pragma unroll
        for (int s = 0; s < CHUNK; s += 4) {
            const float4 d = *reinterpret_cast<const float4*>(&chunk.key_dot[t][s]);
            sum = __fmaf_rn(d.x, u[s], sum), sum = __fmaf_rn(d.y, u[s + 1], sum), sum = __fmaf_rn(d.z, u[s + 2], sum), sum = __fmaf_rn(d.w, u[s + 3], sum);
        }
        const float own = chunk.beta[t] * (chunk.v[t][c] - sum);
#pragma unroll
        for (int s = 0; s < CHUNK; s++) u[s] = s == span.entries + t ? own : u[s];
        chunk.u[span.entries + t][c] = own;
        to[static_cast<long>(t) * a.value_heads * D] = own;
    }
}

template <int C, int MT> __global__ void __launch_bounds__(256, MT == 4 && C < 128 ? 3 : 2) delta_rule(DeltaArgs a) {
    extern __shared__ __align__(16) char memory[];
    auto& m = *reinterpret_cast<DeltaMemory<C, MT>*>(memory);
    constexpr int Parts = D / C, Columns = C / 32;
    const int part = blockIdx.x % Parts, head = blockIdx.x / Parts, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (a.pdl) release_dependents(), depend();
    const DeltaRow row = a.rows[blockIdx.y];
    const long of_head = static_cast<long>(row.slot) * a.value_heads + head;
    float* home = a.state + (of_head * Parts + part) * D * C + warp * 16 * C + lane;
    float state[16][Columns];
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int c = 0; c < Columns; c++) state[i][c] = __ldcs(home + i * C + c * 32);
    const int end = row.start + row.tokens, certain = end - row.drafts;
    delta_fetch<C, MT>(a, m.chunk[0], row, Span(row, row.state_at), head, part);
    for (int base = row.state_at, side = 0; base < end; base += CHUNK, side ^= 1) {
        const Span span(row, base);
        DeltaChunk<C, MT>& chunk = m.chunk[side];
        if (base + CHUNK < end) delta_fetch<C, MT>(a, m.chunk[side ^ 1], row, Span(row, base + CHUNK), head, part), copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
        delta_decays<C, MT>(m, chunk, span);
        for (int t = 0; t < span.tokens; t += 4) {
            const int live = span.tokens - t;
            if (live == 1) delta_products<C, MT, 1>(m, chunk, state, span.entries, t);
            else if (live == 2) delta_products<C, MT, 2>(m, chunk, state, span.entries, t);
            else if (live == 3) delta_products<C, MT, 3>(m, chunk, state, span.entries, t);
            else delta_products<C, MT, 4>(m, chunk, state, span.entries, t);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * MT * C; i += 256) {
            if (i / C % MT >= span.tokens) continue;
            float x[GROUPS];
#pragma unroll
            for (int group = 0; group < GROUPS; group++) x[group] = m.partial[group][i / C][i % C];
            float total = x[0];
#pragma unroll
            for (int group = 1; group < GROUPS; group++) total = __fadd_rn(total, x[group]);
            m.sums[i / C][i % C] = total;
        }
        __syncthreads();
        if (threadIdx.x < C) delta_substitute<C, MT>(a, m, chunk, span, a.u + (span.token * a.value_heads + head) * D + part * C + threadIdx.x);
        __syncthreads();
        for (int i = threadIdx.x; i < span.tokens * C; i += 256) {
            const int t = i / C, c = i % C;
            float sum = m.decay[t] * m.sums[MT + t][c];
#pragma unroll
            for (int s = 0; s < CHUNK; s += 4) {
                const float4 d = *reinterpret_cast<const float4*>(&chunk.query_dot[t][s]);
                const float ds[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float next = __fmaf_rn(ds[j], chunk.u[s + j][c], sum);
                    sum = s + j <= span.entries + t ? next : sum;
                }
            }
            a.out[((span.token + t) * a.value_heads + head) * D + part * C + c] = sum;
        }
        if (base + CHUNK < end || base + CHUNK <= certain) {
            // The chunk is full: its entries go into the state.
#pragma unroll
            for (int i = 0; i < 16; i++)
#pragma unroll
                for (int c = 0; c < Columns; c++) state[i][c] *= m.fold_decay[0];
#pragma unroll 4
            for (int s = 0; s < CHUNK; s++) {
                float u[Columns];
#pragma unroll
                for (int c = 0; c < Columns; c++) u[c] = m.fold_decay[s + 1] * chunk.u[s][c * 32 + lane];
#pragma unroll
                for (int i = 0; i < 16; i += 4) {
                    const float4 k = *reinterpret_cast<const float4*>(&chunk.k[s][warp * 16 + i]);
                    const float ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int c = 0; c < Columns; c++) state[i + j][c] = __fmaf_rn(ks[j], u[c], state[i + j][c]);
                }
            }
            // Of a prompt's boundaries only the last one is kept.
            if (base + CHUNK == certain / CHUNK * CHUNK)
#pragma unroll
                for (int i = 0; i < 16; i++)
#pragma unroll
                    for (int c = 0; c < Columns; c++) home[i * C + c * 32] = state[i][c];
        }
        __syncthreads();
    }
}
