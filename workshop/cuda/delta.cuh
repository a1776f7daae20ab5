// The gated delta rule on a grid of 16 positions: decode, verify windows and prompts in one kernel.
//
//   u_t = beta_t (v_t - e^{d(t)} S'k_t - sum_{s<t} e^{d(s,t)} (k_s . k_t) u_s)      o_t = e^{d(t)} S'q_t + sum_{s<=t} e^{d(s,t)} (k_s . q_t) u_s
//   fold: S = e^{d(16)} S + sum_s e^{d(s,16)} k_s u_s'        d(s,t) = sum of g over s < r <= t, added from t downwards; d(t) the same from the boundary
//
// State: f32 [slot][value head][4 column groups][128 keys][32 columns], at the last boundary. Entries: k f32 [slot][key head][RING][128], u f32
// [slot][value head][RING][128], g f32 [slot][value head][RING], by position modulo RING. Tokens: k, q f32 [token][key head][128], unit length; v f32 [token][value
// head][128]; g, beta f32 [token][value head]. Result: o f32 [token][value head][128], entries, and the state where a boundary has become certain.
//
// Work item = (plan row, value head, C columns); persistent thread blocks. A producer warp fetches state, entries and tokens of the next items by bulk copies while
// the others compute. A product with the state is eight sums over sixteen keys each, by one warp each for 32 V columns, added in ascending order; a dot of two keys
// is by sixteen threads of eight elements; substitution is by column, entries ascending. C, V and the number of tokens in a row change who computes a value, never
// how, so that they change no bit. Bytes: the state once, read.
#pragma once
#include "paceline.cuh"

constexpr int D = 128, CHUNK = 16, RING = 32, KEY_GROUPS = 8, STAGES = 3;

struct DeltaRow {
    int slot, state_at, start, tokens, drafts, first_token;
};
struct DeltaArgs {
    float *state, *entry_k, *entry_u, *entry_g, *out;
    const float *k, *q, *v, *g, *beta;
    const DeltaRow* rows;
    int row_count, value_heads, key_heads, pdl;
};

// What the producer hands over for one chunk of one item.
template <int C, int MT> struct alignas(128) DeltaStage {
    float k[CHUNK][D];  // of entries, then of tokens
    float u[CHUNK][C];  // of entries; those of tokens are written by the substitution
    float q[MT][D];
    float v[MT][C];
    float g[CHUNK], beta[MT];
    int entries, tokens, token, slot, base, fold, store, head, part;
};
template <int C, int MT> struct alignas(128) DeltaMemory {
    float state[2][C / 32][D][32];
    DeltaStage<C, MT> stage[STAGES];
    float partial[KEY_GROUPS][8][C];
    float sums[8][C];                                        // S'k and S'q of four tokens
    float key_dot[2][CHUNK][MT], query_dot[2][CHUNK][MT];    // times the decay in between
    float between[2][CHUNK][MT], decay[2][MT], fold_decay[2][CHUNK + 1];
    uint64_t full[STAGES], empty[STAGES], state_full[2], state_empty[2];
};
template <int C, int V> constexpr int DELTA_THREADS = KEY_GROUPS * 32 * C / (32 * V);

// A barrier of those who compute.
template <int Threads> __device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory"); }

template <int C, int MT> __device__ void delta_produce(const DeltaArgs& a, DeltaMemory<C, MT>& m) {
    const int lane = threadIdx.x % 32, parts = D / C, work = a.row_count * a.value_heads * parts, group = a.value_heads / a.key_heads;
    int index = 0, states = 0;
    for (int item = blockIdx.x; item < work; item += gridDim.x) {
        const int part = item % parts, head = item / parts % a.value_heads, key_head = head / group;
        const DeltaRow row = a.rows[item / parts / a.value_heads];
        const int end = row.start + row.tokens, certain = end - row.drafts;
        const long of_head = static_cast<long>(row.slot) * a.value_heads + head;
        if (lane == 0) {
            const int s = states % 2;
            const uint32_t bar = shared_address(&m.state_full[s]);
            barrier_wait(shared_address(&m.state_empty[s]), (states / 2 & 1) ^ 1);
            barrier_expect(bar, sizeof m.state[s]);
            bulk_load(shared_address(&m.state[s]), a.state + (of_head * parts + part) * D * C, sizeof m.state[s], bar);
        }
        states++;
        for (int base = row.state_at; base < end; base += CHUNK, index++) {
            const int from = base > row.start ? base : row.start < base + CHUNK ? row.start : base + CHUNK;
            const int stop = end < base + CHUNK ? end : base + CHUNK, entries = from - base, tokens = stop - from, at = index % STAGES;
            DeltaStage<C, MT>& stage = m.stage[at];
            const uint32_t bar = shared_address(&m.full[at]);
            barrier_wait(shared_address(&m.empty[at]), (index / STAGES & 1) ^ 1);
            const long first = row.first_token + from - row.start, ring = of_head * RING + base % RING;
            if (lane == 0) {
                barrier_expect(bar, entries * (D + C) * 4 + tokens * (2 * D + C) * 4);
                if (entries) {
                    bulk_load(shared_address(stage.k), a.entry_k + ((static_cast<long>(row.slot) * a.key_heads + key_head) * RING + base % RING) * D, entries * D * 4, bar);
                    if (C == D) bulk_load(shared_address(stage.u), a.entry_u + ring * D, entries * D * 4, bar);
                }
                stage.entries = entries, stage.tokens = tokens, stage.token = static_cast<int>(first), stage.slot = row.slot, stage.base = base, stage.head = head, stage.part = part;
                stage.fold = base + CHUNK < end || base + CHUNK <= certain, stage.store = base + CHUNK <= certain;
            }
            __syncwarp();
            if (C < D && lane < entries) bulk_load(shared_address(stage.u[lane]), a.entry_u + (ring + lane) * D + part * C, C * 4, bar);
            if (lane < tokens) {
                const long kq = ((first + lane) * a.key_heads + key_head) * D;
                bulk_load(shared_address(stage.k[entries + lane]), a.k + kq, D * 4, bar);
                bulk_load(shared_address(stage.q[lane]), a.q + kq, D * 4, bar);
                bulk_load(shared_address(stage.v[lane]), a.v + ((first + lane) * a.value_heads + head) * D + part * C, C * 4, bar);
                stage.beta[lane] = a.beta[(first + lane) * a.value_heads + head];
            }
            if (lane < entries + tokens) stage.g[lane] = lane < entries ? a.entry_g[ring + lane] : a.g[(first + lane - entries) * a.value_heads + head];
            __syncwarp();
            if (lane == 0) barrier_arrive(bar);
        }
    }
}

// Decays between positions, and dots of every position of the chunk with each token. What depends on the state alone is not needed yet.
template <int C, int MT, int Threads> __device__ void delta_dots(DeltaMemory<C, MT>& m, const DeltaStage<C, MT>& stage, int side) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, entries = stage.entries, tokens = stage.tokens;
    // Lane s sums g from a token downwards to s + 1, lane 16 down to the boundary; the last round is the end of the chunk.
    const float g = lane < CHUNK && lane < entries + tokens ? stage.g[lane] : 0;
    for (int t = warp; t < tokens + stage.fold; t += Threads / 32) {
        const int at = t < tokens ? entries + t : CHUNK - 1, above = lane == CHUNK ? -1 : lane;
        float d = 0;
#pragma unroll
        for (int r = CHUNK - 1; r >= 0; r--) {
            const float x = __shfl_sync(~0u, g, r);
            if (r <= at && r > above) d += x;
        }
        const float factor = expf(d);
        if (t < tokens) {
            if (lane < CHUNK) m.between[side][lane][t] = factor;
            if (lane == CHUNK) m.decay[side][t] = factor;
        } else if (lane <= CHUNK) {
            m.fold_decay[side][lane == CHUNK ? 0 : lane + 1] = factor;
        }
    }
    const int j = threadIdx.x % 16;
    for (int pair = threadIdx.x / 16; pair < (entries + tokens) * tokens; pair += Threads / 16) {
        const int s = pair / tokens, t = pair % tokens;
        float a = 0, b = 0;
        if (s <= entries + t) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float4 e = *reinterpret_cast<const float4*>(&stage.k[s][half * 64 + j * 4]), k = *reinterpret_cast<const float4*>(&stage.k[entries + t][half * 64 + j * 4]), q = *reinterpret_cast<const float4*>(&stage.q[t][half * 64 + j * 4]);
                a = __fmaf_rn(e.w, k.w, __fmaf_rn(e.z, k.z, __fmaf_rn(e.y, k.y, __fmaf_rn(e.x, k.x, a))));
                b = __fmaf_rn(e.w, q.w, __fmaf_rn(e.z, q.z, __fmaf_rn(e.y, q.y, __fmaf_rn(e.x, q.x, b))));
            }
        }
        const unsigned half = 0xffffu << (threadIdx.x & 16);
#pragma unroll
        for (int mask = 8; mask; mask >>= 1) a += __shfl_xor_sync(half, a, mask), b += __shfl_xor_sync(half, b, mask);
        if (j == 0) m.key_dot[side][s][t] = a, m.query_dot[side][s][t] = b;
    }
}

// S'k and S'q of up to four tokens from `t`: sixteen keys per warp.
template <int C, int MT, int V, int Live> __device__ void delta_state_products(DeltaMemory<C, MT>& m, const DeltaStage<C, MT>& stage, const float (*state)[D][32], int t) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, keys = warp % KEY_GROUPS * 16, columns = warp / KEY_GROUPS * V;
    float sum[2 * Live][V] = {};
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        float s[4][V];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < V; c++) s[j][c] = state[columns + c][keys + i + j][lane];
#pragma unroll
        for (int r = 0; r < Live; r++) {
            const float4 k = *reinterpret_cast<const float4*>(&stage.k[stage.entries + t + r][keys + i]), q = *reinterpret_cast<const float4*>(&stage.q[t + r][keys + i]);
            const float ks[4] = {k.x, k.y, k.z, k.w}, qs[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < V; c++) sum[r][c] = __fmaf_rn(ks[j], s[j][c], sum[r][c]), sum[Live + r][c] = __fmaf_rn(qs[j], s[j][c], sum[Live + r][c]);
        }
    }
#pragma unroll
    for (int r = 0; r < Live; r++)
#pragma unroll
        for (int c = 0; c < V; c++) m.partial[keys / 16][r][(columns + c) * 32 + lane] = sum[r][c], m.partial[keys / 16][4 + r][(columns + c) * 32 + lane] = sum[Live + r][c];
}

// The eight sums of each product, in ascending order of keys; and the dots with their decays.
template <int C, int MT, int Threads> __device__ void delta_gather(DeltaMemory<C, MT>& m, const DeltaStage<C, MT>& stage, int t, int live, int side) {
    for (int i = threadIdx.x; i < 2 * live * C; i += Threads) {
        const int r = i / C < live ? i / C : i / C - live + 4, c = i % C;
        float part[KEY_GROUPS];
#pragma unroll
        for (int group = 0; group < KEY_GROUPS; group++) part[group] = m.partial[group][r][c];
        float total = part[0];
#pragma unroll
        for (int group = 1; group < KEY_GROUPS; group++) total = __fadd_rn(total, part[group]);
        m.sums[r][c] = total;
    }
    if (t == 0)
        for (int i = threadIdx.x; i < CHUNK * stage.tokens; i += Threads) {
            const int s = i / stage.tokens, r = i % stage.tokens;
            m.key_dot[side][s][r] *= m.between[side][s][r], m.query_dot[side][s][r] *= m.between[side][s][r];
        }
}

// u and o of up to four tokens from `t`: a thread per column for either, positions ascending.
template <int C, int MT, int Threads> __device__ void delta_substitute(const DeltaArgs& a, DeltaMemory<C, MT>& m, DeltaStage<C, MT>& stage, int t, int live, int side) {
    const int before = stage.entries + t, c = threadIdx.x % C, half = threadIdx.x / C;
    const auto& dot = half == 0 ? m.key_dot[side] : m.query_dot[side];
    const long of_head = static_cast<long>(stage.slot) * a.value_heads + stage.head;
    float sum[4], u[CHUNK];
    if (half < 2) {
#pragma unroll
        for (int r = 0; r < 4; r++) sum[r] = r < live ? m.decay[side][t + r] * m.sums[half * 4 + r][c] : 0;
#pragma unroll
        for (int s = 0; s < CHUNK; s++) u[s] = s < before ? stage.u[s][c] : 0;
#pragma unroll
        for (int s = 0; s < CHUNK; s++)
            if (s < before) {
                const float4 d = *reinterpret_cast<const float4*>(&dot[s][t]);
                sum[0] = __fmaf_rn(d.x, u[s], sum[0]), sum[1] = __fmaf_rn(d.y, u[s], sum[1]), sum[2] = __fmaf_rn(d.z, u[s], sum[2]), sum[3] = __fmaf_rn(d.w, u[s], sum[3]);
            }
    }
    if (half == 0) {
        float own[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (r >= live) break;
#pragma unroll
            for (int p = 0; p < r; p++) sum[r] = __fmaf_rn(dot[before + p][t + r], own[p], sum[r]);
            own[r] = stage.beta[t + r] * (stage.v[t + r][c] - sum[r]);
            stage.u[before + r][c] = own[r];
            a.entry_u[(of_head * RING + (stage.base + before + r) % RING) * D + stage.part * C + c] = own[r];
        }
    }
    together<Threads>();
    if (half == 1) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (r >= live) break;
#pragma unroll
            for (int p = 0; p <= r; p++) sum[r] = __fmaf_rn(dot[before + p][t + r], stage.u[before + p][c], sum[r]);
            a.out[(static_cast<long>(stage.token + t + r) * a.value_heads + stage.head) * D + stage.part * C + c] = sum[r];
        }
    }
}

// The chunk is full: its entries go into the state, and to memory if they are certain.
template <int C, int MT, int Threads> __device__ void delta_fold(const DeltaArgs& a, DeltaMemory<C, MT>& m, const DeltaStage<C, MT>& stage, float (*state)[D][32], int side) {
    float* to = a.state + ((static_cast<long>(stage.slot) * a.value_heads + stage.head) * (D / C) + stage.part) * D * C;
    for (int i = threadIdx.x; i < C * D / 8; i += Threads) {
        const int keys = i / C * 8, c = i % C;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = m.fold_decay[side][0] * state[c / 32][keys + j][c % 32];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const float u = m.fold_decay[side][s + 1] * stage.u[s][c];
            const float4 k = *reinterpret_cast<const float4*>(&stage.k[s][keys]), l = *reinterpret_cast<const float4*>(&stage.k[s][keys + 4]);
            x[0] = __fmaf_rn(k.x, u, x[0]), x[1] = __fmaf_rn(k.y, u, x[1]), x[2] = __fmaf_rn(k.z, u, x[2]), x[3] = __fmaf_rn(k.w, u, x[3]);
            x[4] = __fmaf_rn(l.x, u, x[4]), x[5] = __fmaf_rn(l.y, u, x[5]), x[6] = __fmaf_rn(l.z, u, x[6]), x[7] = __fmaf_rn(l.w, u, x[7]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            state[c / 32][keys + j][c % 32] = x[j];
            if (stage.store) to[(c / 32 * D + keys + j) * 32 + c % 32] = x[j];
        }
    }
    together<Threads>();
}

// Entries of keys are written once per key head, of decays once per value head.
template <int C, int MT, int Threads> __device__ void delta_keep_entries(const DeltaArgs& a, const DeltaStage<C, MT>& stage) {
    const int group = a.value_heads / a.key_heads;
    const long slot = stage.slot, at = stage.base + stage.entries;
    if (stage.part != 0) return;
    if (stage.head % group == 0)
        for (int i = threadIdx.x; i < stage.tokens * D; i += Threads)
            a.entry_k[((slot * a.key_heads + stage.head / group) * RING + (at + i / D) % RING) * D + i % D] = stage.k[stage.entries + i / D][i % D];
    if (threadIdx.x < stage.tokens) a.entry_g[(slot * a.value_heads + stage.head) * RING + (at + threadIdx.x) % RING] = stage.g[stage.entries + threadIdx.x];
}

// Cycles of each phase, added up by one thread, for `PHASES`.
#ifdef PHASES
__device__ unsigned long long phases[8];
#define PHASE(which)                                                                             \
    if (threadIdx.x == 0 && blockIdx.x == 5) {                                                   \
        const long long now = clock64();                                                         \
        atomicAdd(&phases[which], static_cast<unsigned long long>(now - clock_));                \
        clock_ = now;                                                                            \
    }
#else
#define PHASE(which)
#endif

template <int C, int MT, int V> __global__ void __launch_bounds__(DELTA_THREADS<C, V> + 32, 1) delta_rule(DeltaArgs a) {
    constexpr int Threads = DELTA_THREADS<C, V>;
    extern __shared__ __align__(128) char memory[];
    auto& m = *reinterpret_cast<DeltaMemory<C, MT>*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&m.full[i]), 2), barrier_init(shared_address(&m.empty[i]), Threads / 32);
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&m.state_full[i]), 1), barrier_init(shared_address(&m.state_empty[i]), Threads / 32);
        barrier_init_fence();
    }
    __syncthreads();
    if (a.pdl) release_dependents(), depend();
    if (threadIdx.x >= Threads) return delta_produce<C, MT>(a, m);
    const int work = a.row_count * a.value_heads * (D / C);
    int index = 0, states = 0;
#ifdef PHASES
    long long clock_ = clock64();
#endif
    for (int item = blockIdx.x; item < work; item += gridDim.x, states++) {
        const DeltaRow row = a.rows[item / (D / C) / a.value_heads];
        float(*state)[D][32] = m.state[states % 2];
        for (int base = row.state_at; base < row.start + row.tokens; base += CHUNK, index++) {
            DeltaStage<C, MT>& stage = m.stage[index % STAGES];
            const int side = index % 2;
            PHASE(0)
            barrier_wait(shared_address(&m.full[index % STAGES]), index / STAGES & 1);
            PHASE(1)
            delta_dots<C, MT, Threads>(m, stage, side);
            PHASE(2)
            if (base == row.state_at) barrier_wait(shared_address(&m.state_full[states % 2]), states / 2 & 1);
            PHASE(3)
            for (int t = 0; t < stage.tokens; t += 4) {
                const int live = min(4, stage.tokens - t);
                if (live == 1) delta_state_products<C, MT, V, 1>(m, stage, state, t);
                else if (live == 2) delta_state_products<C, MT, V, 2>(m, stage, state, t);
                else if (live == 3) delta_state_products<C, MT, V, 3>(m, stage, state, t);
                else delta_state_products<C, MT, V, 4>(m, stage, state, t);
                together<Threads>();
                PHASE(4)
                delta_gather<C, MT, Threads>(m, stage, t, live, side);
                together<Threads>();
                PHASE(5)
                delta_substitute<C, MT, Threads>(a, m, stage, t, live, side);
                PHASE(6)
            }
            if (stage.tokens == 0) together<Threads>(); // the decays of the fold
            if (stage.fold) delta_fold<C, MT, Threads>(a, m, stage, state, side);
            delta_keep_entries<C, MT, Threads>(a, stage);
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&m.empty[index % STAGES]));
            PHASE(7)
        }
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&m.state_empty[states % 2]));
    }
}
