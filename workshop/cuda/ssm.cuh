// Mamba2 on a grid of 16 positions: decode, verify windows and prompts in three kernels, in the frame of `delta.cuh`.
//
//   y_t = e^{d(t)} S C_t + sum_{s<=t} e^{d(s,t)} (B_s . C_t) (dt x)_s + D x_t        fold: S = e^{d(16)} S + sum_s e^{d(s,16)} (dt x)_s B_s'
//   d(s,t) = sum of g = dt A over s < r <= t, added from t downwards; d(t) the same from the boundary
//
// State: f32 [slot][head][N = 128][P = 64], at the last boundary. Entries: B f32 [slot][group][RING][N], dt x f32 [slot][head][RING][P], g f32 [slot][head][RING], by position
// modulo RING. Tokens: B, C f32 [token][group][N]; x f32 [token][head][P]; dt, g f32 [token][head]. Dots: f32 [token][group][16], of a token's C with the B of its chunk.
// Result: y f32 [token][head][P], entries, and the state where a boundary has become certain.
//
// `ssm_dots` has a warp per token and group. `ssm_scan` has a thread block per plan row and head; a thread holds eight rows of N and four columns of P of the state. A product with
// the state is sixteen chains of FMA over eight rows: neighbours are added, then the eight pairs in ascending order. No token needs another's result, only its inputs: all of a chunk
// are computed at once. `ssm_keep` writes the entries that later steps need when nobody reads those of this step any more. Bytes: the state once, read.
#pragma once
#include "delta.cuh"

constexpr int N = 128, P = 64;

struct SsmArgs {
    float *state, *entry_b, *entry_x, *entry_g, *dots, *out;
    const float *b, *c, *x, *dt, *g, *skip;
    const DeltaRow* rows;
    const int* row_of; // of a token
    int row_count, tokens, most, heads, groups, pdl; // most: tokens of a row
};

__global__ void __launch_bounds__(128) ssm_dots(SsmArgs a) {
    if (a.pdl) release_dependents(), depend();
    const int lane = threadIdx.x % 32, work = a.tokens * a.groups;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < work; i += gridDim.x * blockDim.x / 32) {
        const int token = i / a.groups, group = i % a.groups;
        const DeltaRow row = a.rows[a.row_of[token]];
        const int position = row.start + token - row.first_token, base = position / CHUNK * CHUNK;
        const float4 c = reinterpret_cast<const float4*>(a.c + static_cast<long>(i) * N)[lane];
        const float* ring = a.entry_b + (static_cast<long>(row.slot) * a.groups + group) * RING * N;
        float4 other[CHUNK];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const int at = base + s;
            // A position of this step is read where its token is: nobody has written its entry yet.
            const float* from = at < row.start ? ring + at % RING * N : a.b + (static_cast<long>(row.first_token + at - row.start) * a.groups + group) * N;
            other[s] = at <= position ? reinterpret_cast<const float4*>(from)[lane] : make_float4(0, 0, 0, 0);
        }
        float kept = 0; // lane s keeps the dot with position s
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const float4 e = other[s];
            float x = __fmaf_rn(e.w, c.w, __fmaf_rn(e.z, c.z, __fmaf_rn(e.y, c.y, __fmul_rn(e.x, c.x))));
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, mask));
            if (lane == s) kept = x;
        }
        if (lane < CHUNK) a.dots[static_cast<long>(i) * CHUNK + lane] = kept;
    }
}

// Entries of the positions from the last certain boundary on, fewer than two chunks per row. Half a warp per position and head.
__global__ void __launch_bounds__(128) ssm_keep(SsmArgs a) {
    if (a.pdl) release_dependents(), depend();
    const int lane = threadIdx.x % 16, most = min(a.most, 2 * CHUNK), work = a.row_count * most * a.heads, shared_by = a.heads / a.groups;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 16; i < work; i += gridDim.x * blockDim.x / 16) {
        const int head = i % a.heads, group = head / shared_by;
        const DeltaRow row = a.rows[i / a.heads / most];
        const int end = row.start + row.tokens, position = max((end - row.drafts) / CHUNK * CHUNK, row.start) + i / a.heads % most;
        if (position >= end) continue;
        const long token = row.first_token + position - row.start, of_head = (static_cast<long>(row.slot) * a.heads + head) * RING + position % RING, of_group = (static_cast<long>(row.slot) * a.groups + group) * RING + position % RING;
        const float4 x = reinterpret_cast<const float4*>(a.x + (token * a.heads + head) * P)[lane];
        const float dt = a.dt[token * a.heads + head];
        reinterpret_cast<float4*>(a.entry_x + of_head * P)[lane] = make_float4(__fmul_rn(dt, x.x), __fmul_rn(dt, x.y), __fmul_rn(dt, x.z), __fmul_rn(dt, x.w));
        if (head % shared_by == 0)
            for (int j = lane; j < N / 4; j += 16) reinterpret_cast<float4*>(a.entry_b + of_group * N)[j] = reinterpret_cast<const float4*>(a.b + (token * a.groups + group) * N)[j];
        if (lane == 0) a.entry_g[of_head] = a.g[token * a.heads + head];
    }
}

// One chunk of one item, as it is fetched; `MT` tokens at most.
template <int MT> struct alignas(16) SsmChunk {
    float b[CHUNK][N]; // where the chunk is folded
    float u[CHUNK][P]; // dt x: of entries, then of tokens
    float c[MT][N];
    float x[MT][P];
    float dot[MT][CHUNK]; // by token, then position
    float g[CHUNK], dt[MT];
};
template <int MT> struct alignas(16) SsmMemory {
    SsmChunk<MT> chunk[2];
    float partial[8][MT][P];  // by warp
    float weight[CHUNK][MT];  // of positions in the outputs of tokens: dots times decay
    float decay[MT], fold_decay[CHUNK + 1];
};

template <int MT> __device__ void ssm_fetch(const SsmArgs& a, SsmChunk<MT>& chunk, const DeltaRow& row, const Span& span, int head, bool folds) {
    const int group = head / (a.heads / a.groups), ring = span.base % RING, thread = threadIdx.x;
    const long of_head = (static_cast<long>(row.slot) * a.heads + head) * RING + ring;
    if (folds) {
        const float* ring_b = a.entry_b + ((static_cast<long>(row.slot) * a.groups + group) * RING + ring) * N;
        for (int i = thread; i < CHUNK * (N / 4); i += 256) {
            const int at = i / (N / 4), j = i % (N / 4) * 4;
            copy_async(&chunk.b[at][j], at < span.entries ? ring_b + at * N + j : a.b + ((span.token + at - span.entries) * a.groups + group) * N + j);
        }
    }
    for (int i = thread; i < span.tokens * (N / 4); i += 256) copy_async(&chunk.c[i / (N / 4)][i % (N / 4) * 4], a.c + ((span.token + i / (N / 4)) * a.groups + group) * N + i % (N / 4) * 4);
    for (int i = thread; i < span.entries * (P / 4); i += 256) copy_async(&chunk.u[i / (P / 4)][i % (P / 4) * 4], a.entry_x + (of_head + i / (P / 4)) * P + i % (P / 4) * 4);
    for (int i = thread; i < span.tokens * (P / 4); i += 256) copy_async(&chunk.x[i / (P / 4)][i % (P / 4) * 4], a.x + ((span.token + i / (P / 4)) * a.heads + head) * P + i % (P / 4) * 4);
    for (int i = thread; i < span.tokens * (CHUNK / 4); i += 256) copy_async(&chunk.dot[i / 4][i % 4 * 4], a.dots + ((span.token + i / 4) * a.groups + group) * CHUNK + i % 4 * 4);
    if (thread < span.entries + span.tokens) copy_async_word(&chunk.g[thread], thread < span.entries ? a.entry_g + of_head + thread : a.g + (span.token + thread - span.entries) * a.heads + head);
    if (thread >= 32 && thread < 32 + span.tokens) copy_async_word(&chunk.dt[thread - 32], a.dt + (span.token + thread - 32) * a.heads + head);
    copies_commit();
}

// dt x of tokens; dots times the decay in between, a thread per pair; decays from the boundary and to the end of the chunk.
template <int MT> __device__ void ssm_decays(SsmMemory<MT>& m, SsmChunk<MT>& chunk, const Span& span) {
    auto decay = [&](int above, int at) {
        float d = 0;
#pragma unroll
        for (int r = CHUNK - 1; r >= 0; r--) {
            const float g = chunk.g[r];
            d = r <= at && r > above ? __fadd_rn(d, g) : d;
        }
        return expf(d);
    };
    for (int i = threadIdx.x; i < span.tokens * P; i += 256) chunk.u[span.entries + i / P][i % P] = __fmul_rn(chunk.dt[i / P], chunk.x[i / P][i % P]);
    for (int i = threadIdx.x; i < span.tokens * CHUNK; i += 256) {
        const int t = i / CHUNK, s = i % CHUNK, at = span.entries + t;
        if (s <= at) m.weight[s][t] = __fmul_rn(decay(s, at), chunk.dot[t][s]);
    }
    if (threadIdx.x < span.tokens) m.decay[threadIdx.x] = decay(-1, span.entries + threadIdx.x);
    if (threadIdx.x >= 64 && threadIdx.x <= 64 + CHUNK) m.fold_decay[threadIdx.x - 64] = decay(static_cast<int>(threadIdx.x) - 65, CHUNK - 1);
}

__device__ __forceinline__ void fma_four(float4& to, float x, const float4& y) { to.x = __fmaf_rn(x, y.x, to.x), to.y = __fmaf_rn(x, y.y, to.y), to.z = __fmaf_rn(x, y.z, to.z), to.w = __fmaf_rn(x, y.w, to.w); }

// S C of a chunk's tokens: this warp's sixteen rows.
template <int MT> __device__ __forceinline__ void ssm_products(SsmMemory<MT>& m, const SsmChunk<MT>& chunk, const float4 (&state)[8], int tokens) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp * 16 + lane / 16 * 8;
#pragma unroll
    for (int t = 0; t < MT; t++) {
        if (t >= tokens) break;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 c = *reinterpret_cast<const float4*>(&chunk.c[t][first + i]);
            fma_four(sum, c.x, state[i]), fma_four(sum, c.y, state[i + 1]), fma_four(sum, c.z, state[i + 2]), fma_four(sum, c.w, state[i + 3]);
        }
        sum.x = __fadd_rn(sum.x, __shfl_xor_sync(~0u, sum.x, 16)), sum.y = __fadd_rn(sum.y, __shfl_xor_sync(~0u, sum.y, 16));
        sum.z = __fadd_rn(sum.z, __shfl_xor_sync(~0u, sum.z, 16)), sum.w = __fadd_rn(sum.w, __shfl_xor_sync(~0u, sum.w, 16));
        if (lane < 16) *reinterpret_cast<float4*>(&m.partial[warp][t][lane * 4]) = sum;
    }
}
// Outputs of a chunk: a thread has one column of a quarter of the tokens.
template <int MT> __device__ __forceinline__ void ssm_outputs(const SsmArgs& a, SsmMemory<MT>& m, const SsmChunk<MT>& chunk, const Span& span, int head) {
    constexpr int Own = MT / 4;
    const int c = threadIdx.x % P, t = threadIdx.x / P * Own;
    if (t >= span.tokens) return;
    const float skip = a.skip[head];
    float sum[Own];
#pragma unroll
    for (int j = 0; j < Own; j++) {
        sum[j] = m.partial[0][t + j][c];
#pragma unroll
        for (int w = 1; w < 8; w++) sum[j] = __fadd_rn(sum[j], m.partial[w][t + j][c]);
        sum[j] = __fmul_rn(m.decay[t + j], sum[j]);
    }
#pragma unroll 4
    for (int s = 0; s < span.entries + min(t + Own, span.tokens); s++) {
        const float u = chunk.u[s][c];
#pragma unroll
        for (int j = 0; j < Own; j++)
            if (s <= span.entries + t + j) sum[j] = __fmaf_rn(m.weight[s][t + j], u, sum[j]);
    }
#pragma unroll
    for (int j = 0; j < Own; j++)
        if (t + j < span.tokens) a.out[((span.token + t + j) * a.heads + head) * P + c] = __fmaf_rn(skip, chunk.x[t + j][c], sum[j]);
}

template <int MT> __global__ void __launch_bounds__(256, MT == 4 ? 3 : 2) ssm_scan(SsmArgs a) {
    extern __shared__ __align__(16) char memory[];
    auto& m = *reinterpret_cast<SsmMemory<MT>*>(memory);
    const int head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp * 16 + lane / 16 * 8;
    if (a.pdl) release_dependents(), depend();
    const DeltaRow row = a.rows[blockIdx.y];
    float4* home = reinterpret_cast<float4*>(a.state + ((static_cast<long>(row.slot) * a.heads + head) * N + first) * P) + lane % 16;
    float4 state[8];
#pragma unroll
    for (int i = 0; i < 8; i++) state[i] = __ldcs(home + i * (P / 4));
    const int end = row.start + row.tokens, certain = end - row.drafts;
    auto folds = [&](int base) { return base + CHUNK < end || base + CHUNK <= certain; };
    ssm_fetch<MT>(a, m.chunk[0], row, Span(row, row.state_at), head, folds(row.state_at));
    for (int base = row.state_at, side = 0; base < end; base += CHUNK, side ^= 1) {
        const Span span(row, base);
        SsmChunk<MT>& chunk = m.chunk[side];
        if (base + CHUNK < end) ssm_fetch<MT>(a, m.chunk[side ^ 1], row, Span(row, base + CHUNK), head, folds(base + CHUNK)), copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
        ssm_decays<MT>(m, chunk, span);
        ssm_products<MT>(m, chunk, state, span.tokens);
        __syncthreads();
        ssm_outputs<MT>(a, m, chunk, span, head);
        if (folds(base)) {
            // The chunk is full: its entries go into the state.
            const float old = m.fold_decay[0];
#pragma unroll
            for (int i = 0; i < 8; i++) state[i] = make_float4(__fmul_rn(state[i].x, old), __fmul_rn(state[i].y, old), __fmul_rn(state[i].z, old), __fmul_rn(state[i].w, old));
#pragma unroll 4
            for (int s = 0; s < CHUNK; s++) {
                float4 u = *reinterpret_cast<const float4*>(&chunk.u[s][lane % 16 * 4]);
                const float by = m.fold_decay[s + 1];
                u = make_float4(__fmul_rn(by, u.x), __fmul_rn(by, u.y), __fmul_rn(by, u.z), __fmul_rn(by, u.w));
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    const float4 b = *reinterpret_cast<const float4*>(&chunk.b[s][first + i]);
                    fma_four(state[i], b.x, u), fma_four(state[i + 1], b.y, u), fma_four(state[i + 2], b.z, u), fma_four(state[i + 3], b.w, u);
                }
            }
            // Of a prompt's boundaries only the last one is kept.
            if (base + CHUNK == certain / CHUNK * CHUNK)
#pragma unroll
                for (int i = 0; i < 8; i++) home[i * (P / 4)] = state[i];
        }
        __syncthreads();
    }
}
