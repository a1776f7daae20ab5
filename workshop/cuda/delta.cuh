// The gated delta rule on a grid of 16 positions: decode, verify windows and prompts in one kernel.
//
//   u_t = beta_t (v_t - e^{d(t)} S'k_t - sum_{s<t} e^{d(s,t)} (k_s . k_t) u_s)      o_t = e^{d(t)} S'q_t + sum_{s<=t} e^{d(s,t)} (k_s . q_t) u_s
//   fold: S = e^{d(16)} S + sum_s e^{d(s,16)} k_s u_s'        d(s,t) = sum of g over s < r <= t, added from t downwards; d(t) the same from the boundary
//
// State: f32, at the last boundary, in the order in which threads hold it for mma: [slot][value head][tile of 8 columns][block of 16 keys][lane][4], where a lane
// holds column lane / 4 and keys 2 (lane % 4) + {0, 1, 8, 9}. Entries: k f32 [slot][key head][RING][128], u f32 [slot][value head][RING][128], g f32 [slot][value
// head][RING], by position modulo RING. Tokens: k, q f32 [token][key head][128], unit length; v f32 [token][value head][128]; g, beta f32 [token][value head].
// Result: o f32 [token][value head][128], entries, and the state where a boundary has become certain.
//
// Work item = (plan row, value head, C columns); persistent thread blocks. A producer warp fetches the next items by bulk copies. Products with the state, dots of keys
// and folds run on the tensor cores in f32 accuracy: x = high + low in tf32, high * high and the two mixed products in sums of their own. A row of such a product
// depends on that row alone. Substitution is by column, positions ascending, old and new alike. So the cut of a text into steps, C and MT change no bit.
// Bytes: the state once, read.
#pragma once
#include "paceline.cuh"

constexpr int D = 128, CHUNK = 16, RING = 32, STAGES = 3;
constexpr int ROW = D + 8; // floats of a vector in shared memory: eight more, so that rows begin in different banks

struct DeltaRow {
    int slot, state_at, start, tokens, drafts, first_token;
};
struct DeltaArgs {
    float *state, *entry_k, *entry_u, *entry_g, *out;
    const float *k, *q, *v, *g, *beta;
    const DeltaRow* rows;
    int row_count, value_heads, key_heads, pdl;
};

// --- f32 products on the tensor cores
struct Split {
    uint32_t high, low;
    __device__ explicit Split(float x) {
        high = __float_as_uint(x) & 0xffffe000u;
        low = __float_as_uint(x - __uint_as_float(high));
    }
};
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
struct Left { // 16 x 8
    uint32_t high[4], low[4];
    __device__ Left(float a0, float a1, float a2, float a3) {
        const Split s[4] = {Split(a0), Split(a1), Split(a2), Split(a3)};
#pragma unroll
        for (int i = 0; i < 4; i++) high[i] = s[i].high, low[i] = s[i].low;
    }
};
struct Right { // 8 x 8
    uint32_t high[2], low[2];
    __device__ Right(float b0, float b1) {
        const Split s[2] = {Split(b0), Split(b1)};
#pragma unroll
        for (int i = 0; i < 2; i++) high[i] = s[i].high, low[i] = s[i].low;
    }
};
struct Sum { // 16 x 8: rows lane / 4 and + 8, columns 2 (lane % 4) + {0, 1}
    float main[4] = {}, left[4] = {}, right[4] = {}; // three chains, since one waits for itself
    __device__ void add(const Left& a, const Right& b) {
        mma_tf32(main, a.high, b.high);
        mma_tf32(left, a.low, b.high);
        mma_tf32(right, a.high, b.low);
    }
    __device__ float value(int i) const { return __fadd_rn(main[i], __fadd_rn(left[i], right[i])); }
};

// --- what passes between producer and consumers
template <int C, int MT> struct alignas(128) DeltaStage {
    float k[CHUNK][ROW];   // of entries, then of tokens
    float u[CHUNK][C + 8]; // of entries; those of tokens are written by the substitution
    float q[MT][ROW];
    float v[MT][C + 8];
    float g[CHUNK], beta[MT];
    int entries, tokens, token, slot, base, fold, store, opens, closes, head, part;
};
template <int C, int MT> struct alignas(16) DeltaTerms {
    float key_sum[MT][C + 8], query_sum[MT][C + 8]; // S'k, S'q
    float key_dot[CHUNK][MT], query_dot[CHUNK][MT]; // times the decay in between
    float decay[MT], fold_decay[CHUNK + 1];
};
template <int C, int MT> struct alignas(128) DeltaMemory {
    float4 state[2][C / 8][D / 16][32];
    DeltaStage<C, MT> stage[STAGES];
    DeltaTerms<C, MT> terms[2]; // by turns: those who are ahead must not write what others still read
    uint64_t full[STAGES], empty[STAGES], state_full[2], state_empty[2];
};
// Warps for products with the state (8 columns and 8 tokens each) and for dots (8 tokens with keys, or with queries).
template <int C, int MT> constexpr int PRODUCT_WARPS = C / 8 * (MT / 8);
template <int C, int MT> constexpr int DELTA_THREADS = 32 * (PRODUCT_WARPS<C, MT> + 2 * (MT / 8));

template <int Threads> __device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory"); }

template <int C, int MT> __device__ void delta_produce(const DeltaArgs& a, DeltaMemory<C, MT>& m) {
    const int lane = threadIdx.x % 32, parts = D / C, work = a.row_count * a.value_heads * parts, group = a.value_heads / a.key_heads;
    int index = 0, states = 0;
    for (int item = blockIdx.x; item < work; item += gridDim.x, states++) {
        const int part = item % parts, head = item / parts % a.value_heads, key_head = head / group;
        const DeltaRow row = a.rows[item / parts / a.value_heads];
        const int end = row.start + row.tokens, certain = end - row.drafts;
        const long of_head = static_cast<long>(row.slot) * a.value_heads + head, of_key = static_cast<long>(row.slot) * a.key_heads + key_head;
        if (lane == 0) {
            const int s = states % 2;
            const uint32_t bar = shared_address(&m.state_full[s]);
            barrier_wait(shared_address(&m.state_empty[s]), (states / 2 & 1) ^ 1);
            barrier_expect(bar, sizeof m.state[s]);
            bulk_load(shared_address(&m.state[s]), a.state + (of_head * parts + part) * D * C, sizeof m.state[s], bar);
        }
        for (int base = row.state_at; base < end; base += CHUNK, index++) {
            const int from = min(max(base, row.start), base + CHUNK), stop = min(end, base + CHUNK), entries = from - base, tokens = stop - from, at = index % STAGES;
            const long first = row.first_token + from - row.start, ring = base % RING;
            DeltaStage<C, MT>& stage = m.stage[at];
            const uint32_t bar = shared_address(&m.full[at]);
            const float* g = lane < entries ? a.entry_g + of_head * RING + ring + lane : a.g + (first + lane - entries) * a.value_heads + head;
            const float decay = lane < entries + tokens ? *g : 0, beta = lane < tokens ? a.beta[(first + lane) * a.value_heads + head] : 0;
            barrier_wait(shared_address(&m.empty[at]), (index / STAGES & 1) ^ 1);
            if (lane == 0) {
                barrier_expect(bar, entries * (D + C) * 4 + tokens * (2 * D + C) * 4);
                stage.entries = entries, stage.tokens = tokens, stage.token = static_cast<int>(first), stage.slot = row.slot, stage.base = base, stage.head = head, stage.part = part;
                stage.fold = base + CHUNK < end || base + CHUNK <= certain, stage.store = base + CHUNK <= certain, stage.opens = base == row.state_at, stage.closes = base + CHUNK >= end;
            }
            __syncwarp();
            if (lane < entries) {
                bulk_load(shared_address(stage.k[lane]), a.entry_k + (of_key * RING + ring + lane) * D, D * 4, bar);
                bulk_load(shared_address(stage.u[lane]), a.entry_u + (of_head * RING + ring + lane) * D + part * C, C * 4, bar);
            }
            if (lane < tokens) {
                const long kq = ((first + lane) * a.key_heads + key_head) * D;
                bulk_load(shared_address(stage.k[entries + lane]), a.k + kq, D * 4, bar);
                bulk_load(shared_address(stage.q[lane]), a.q + kq, D * 4, bar);
                bulk_load(shared_address(stage.v[lane]), a.v + ((first + lane) * a.value_heads + head) * D + part * C, C * 4, bar);
                stage.beta[lane] = beta;
            }
            if (lane < CHUNK) stage.g[lane] = decay;
            barrier_arrive(bar); // every lane for what it has written; the copies count by their bytes
        }
    }
}

// S'k and S'q of eight tokens for eight columns: rows 0-7 of the left side are keys of tokens, 8-15 their queries.
template <int C, int MT> __device__ void delta_state_products(DeltaTerms<C, MT>& m, const DeltaStage<C, MT>& stage, const float4 (*state)[D / 16][32], int tile, int first) {
    const int lane = threadIdx.x % 32, token = first + lane / 4, pair = lane % 4 * 2;
    // A row past the last token is some other vector of the stage: rows do not mix, and its sums go nowhere.
    const float *k = stage.k[min(stage.entries + token, CHUNK - 1)] + pair, *q = stage.q[token] + pair;
    Sum sum;
#pragma unroll
    for (int block = 0; block < D / 16; block++) {
        const float4 s = state[tile][block][lane];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 x = *reinterpret_cast<const float2*>(k + block * 16 + half * 8), y = *reinterpret_cast<const float2*>(q + block * 16 + half * 8);
            sum.add(Left(x.x, y.x, x.y, y.y), half == 0 ? Right(s.x, s.y) : Right(s.z, s.w));
        }
    }
    if (token < stage.tokens) {
        *reinterpret_cast<float2*>(&m.key_sum[token][tile * 8 + pair]) = make_float2(sum.value(0), sum.value(1));
        *reinterpret_cast<float2*>(&m.query_sum[token][tile * 8 + pair]) = make_float2(sum.value(2), sum.value(3));
    }
}

// Dots of all sixteen positions with keys or queries of eight tokens, times the decay in between; and the decays from the boundary.
template <int C, int MT> __device__ void delta_dots(DeltaTerms<C, MT>& m, const DeltaStage<C, MT>& stage, int first, bool queries) {
    const int lane = threadIdx.x % 32, row = lane / 4, pair = lane % 4 * 2, entries = stage.entries;
    const float *low = stage.k[row] + pair, *high = stage.k[row + 8] + pair, *right = (queries ? stage.q[first + row] : stage.k[min(entries + first + row, CHUNK - 1)]) + pair;
    Sum sum;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float2 x = *reinterpret_cast<const float2*>(low + i * 8), y = *reinterpret_cast<const float2*>(high + i * 8), z = *reinterpret_cast<const float2*>(right + i * 8);
        sum.add(Left(x.x, y.x, x.y, y.y), Right(z.x, z.y));
    }
    float g[CHUNK];
#pragma unroll
    for (int r = 0; r < CHUNK; r++) g[r] = stage.g[r];
    auto decay = [&](int above, int at) {
        float d = 0;
#pragma unroll
        for (int r = CHUNK - 1; r >= 0; r--) d = r <= at && r > above ? d + g[r] : d;
        return expf(d);
    };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int s = row + i / 2 * 8, t = first + pair + i % 2;
        if (t < stage.tokens && s <= entries + t) (queries ? m.query_dot : m.key_dot)[s][t] = decay(s, entries + t) * sum.value(i);
    }
    if (!queries && lane < 8 && first + lane < stage.tokens) m.decay[first + lane] = decay(-1, entries + first + lane);
    if (queries && first == 0 && stage.fold && lane <= CHUNK) m.fold_decay[lane] = decay(lane - 1, CHUNK - 1);
}

// u of every token, a thread per column.
template <int C, int MT> __device__ void delta_substitute(const DeltaArgs& a, DeltaTerms<C, MT>& m, DeltaStage<C, MT>& stage, int c) {
    const int entries = stage.entries, tokens = stage.tokens;
    float* to = a.entry_u + (static_cast<long>(stage.slot) * a.value_heads + stage.head) * RING * D + stage.part * C + c;
    for (int t = 0; t < tokens; t += 4) {
        // Everything is fetched at once; what lies past the end is not used.
        float sum[4], u[CHUNK];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) u[s] = stage.u[s][c];
#pragma unroll
        for (int r = 0; r < 4; r++) sum[r] = m.decay[t + r] * m.key_sum[t + r][c];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const float4 d = *reinterpret_cast<const float4*>(&m.key_dot[s][t]);
            const bool counts = s < entries + t;
            sum[0] = counts ? __fmaf_rn(d.x, u[s], sum[0]) : sum[0], sum[1] = counts ? __fmaf_rn(d.y, u[s], sum[1]) : sum[1];
            sum[2] = counts ? __fmaf_rn(d.z, u[s], sum[2]) : sum[2], sum[3] = counts ? __fmaf_rn(d.w, u[s], sum[3]) : sum[3];
        }
        float own[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (t + r >= tokens) break;
#pragma unroll
            for (int p = 0; p < r; p++) sum[r] = __fmaf_rn(m.key_dot[entries + t + p][t + r], own[p], sum[r]);
            own[r] = stage.beta[t + r] * (stage.v[t + r][c] - sum[r]);
            stage.u[entries + t + r][c] = own[r];
            to[(stage.base + entries + t + r) % RING * D] = own[r];
        }
    }
}

template <int C, int MT, int Threads> __device__ void delta_outputs(const DeltaArgs& a, const DeltaTerms<C, MT>& m, const DeltaStage<C, MT>& stage) {
    float* to = a.out + (static_cast<long>(stage.token) * a.value_heads + stage.head) * D + stage.part * C;
    for (int i = threadIdx.x; i < stage.tokens * C; i += Threads) {
        const int t = i / C, c = i % C;
        float sum = m.decay[t] * m.query_sum[t][c];
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            const float next = __fmaf_rn(m.query_dot[s][t], stage.u[s][c], sum);
            sum = s <= stage.entries + t ? next : sum;
        }
        to[static_cast<long>(t) * a.value_heads * D + c] = sum;
    }
}

// The chunk is full: its entries go into the state, and the state to memory if they are certain. Left side: sixteen columns by position; right: keys.
template <int C, int MT> __device__ void delta_fold(const DeltaArgs& a, const DeltaTerms<C, MT>& m, const DeltaStage<C, MT>& stage, float4 (*state)[D / 16][32], int tile, int part, int parts) {
    const int lane = threadIdx.x % 32, row = lane / 4, at = lane % 4;
    float4* to = reinterpret_cast<float4*>(a.state + ((static_cast<long>(stage.slot) * a.value_heads + stage.head) * (D / C) + stage.part) * D * C);
    auto u = [&](int position, int column) { return m.fold_decay[position + 1] * stage.u[position][tile * 8 + column]; };
    const Left left[2] = {Left(u(at, row), u(at, row + 8), u(at + 4, row), u(at + 4, row + 8)), Left(u(at + 8, row), u(at + 8, row + 8), u(at + 12, row), u(at + 12, row + 8))};
    const float whole = m.fold_decay[0];
    for (int block = part; block < D / 16; block += parts) {
        Sum sum[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int step = 0; step < 2; step++) sum[half].add(left[step], Right(stage.k[step * 8 + at][block * 16 + half * 8 + row], stage.k[step * 8 + at + 4][block * 16 + half * 8 + row]));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 x = state[tile + i][block][lane];
            x.x = __fmaf_rn(whole, x.x, sum[0].value(2 * i)), x.y = __fmaf_rn(whole, x.y, sum[0].value(2 * i + 1));
            x.z = __fmaf_rn(whole, x.z, sum[1].value(2 * i)), x.w = __fmaf_rn(whole, x.w, sum[1].value(2 * i + 1));
            state[tile + i][block][lane] = x;
            if (stage.store) to[((tile + i) * (D / 16) + block) * 32 + lane] = x;
        }
    }
}

// Entries of keys are written once per key head, of decays once per value head; by the threads that have no column.
template <int C, int MT, int Threads> __device__ void delta_keep_entries(const DeltaArgs& a, const DeltaStage<C, MT>& stage) {
    const int group = a.value_heads / a.key_heads, at = stage.base + stage.entries, thread = threadIdx.x - C;
    if (stage.part != 0) return;
    if (stage.head % group == 0) {
        float* to = a.entry_k + (static_cast<long>(stage.slot) * a.key_heads + stage.head / group) * RING * D;
        for (int i = thread; i < stage.tokens * D; i += Threads) to[(at + i / D) % RING * D + i % D] = stage.k[stage.entries + i / D][i % D];
    }
    if (thread < stage.tokens) a.entry_g[(static_cast<long>(stage.slot) * a.value_heads + stage.head) * RING + (at + thread) % RING] = stage.g[stage.entries + thread];
}

// Cycles of each phase, added up by one thread, for `PHASES`.
#ifdef PHASES
__device__ unsigned long long phases[8];
#define PHASE(which)                                                                      \
    if (threadIdx.x == 0 && blockIdx.x == 5) {                                            \
        const long long now = clock64();                                                  \
        phases[which] += static_cast<unsigned long long>(now - clock_);                   \
        clock_ = now;                                                                     \
    }
#else
#define PHASE(which)
#endif

template <int C, int MT> __global__ void __launch_bounds__(DELTA_THREADS<C, MT> + 32, 1) delta_rule(DeltaArgs a) {
    constexpr int Threads = DELTA_THREADS<C, MT>, Products = PRODUCT_WARPS<C, MT>;
    extern __shared__ __align__(128) char memory[];
    auto& m = *reinterpret_cast<DeltaMemory<C, MT>*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&m.full[i]), 33), barrier_init(shared_address(&m.empty[i]), Threads);
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&m.state_full[i]), 1), barrier_init(shared_address(&m.state_empty[i]), Threads);
        barrier_init_fence();
    }
    __syncthreads();
    if (a.pdl) release_dependents(), depend();
    if (threadIdx.x >= Threads) return delta_produce<C, MT>(a, m);
    const int warp = threadIdx.x / 32, tile = warp % (C / 8), eight = warp / (C / 8); // of a product warp
    const int work = a.row_count * a.value_heads * (D / C);
    int index = 0, states = 0;
#ifdef PHASES
    long long clock_ = clock64();
#endif
    for (int item = blockIdx.x; item < work; item += gridDim.x, states++) {
        float4(*state)[D / 16][32] = m.state[states % 2];
        for (bool more = true; more; index++) {
            DeltaStage<C, MT>& stage = m.stage[index % STAGES];
            DeltaTerms<C, MT>& terms = m.terms[index % 2];
            PHASE(0)
            barrier_wait(shared_address(&m.full[index % STAGES]), index / STAGES & 1);
            PHASE(1)
            if (warp >= Products) {
                const int first = (warp - Products) / 2 * 8;
                if (first < stage.tokens || (first == 0 && stage.fold)) delta_dots<C, MT>(terms, stage, first, (warp - Products) % 2);
            }
            if (stage.opens) barrier_wait(shared_address(&m.state_full[states % 2]), states / 2 & 1);
            PHASE(2)
            if (warp < Products && eight * 8 < stage.tokens) delta_state_products<C, MT>(terms, stage, state, tile, eight * 8);
            PHASE(3)
            together<Threads>();
            PHASE(4)
            if (threadIdx.x < C) delta_substitute<C, MT>(a, terms, stage, threadIdx.x);
            else delta_keep_entries<C, MT, Threads - C>(a, stage);
            PHASE(5)
            together<Threads>();
            delta_outputs<C, MT, Threads>(a, terms, stage);
            PHASE(6)
            if (stage.fold) {
                if (warp < Products) delta_fold<C, MT>(a, terms, stage, state, warp % (C / 16) * 2, warp / (C / 16), MT / 4);
                together<Threads>();
            }
            more = !stage.closes;
            barrier_arrive(shared_address(&m.empty[index % STAGES]));
            PHASE(7)
        }
        barrier_arrive(shared_address(&m.state_empty[states % 2]));
    }
}
