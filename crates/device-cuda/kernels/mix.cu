// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in two kernels, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`. Scratch in
// between: `RecurrenceScratch` and the convolution's values.
//
// `mix_keys` has all that needs no state: a thread block per request and group, of which many fit a multiprocessor; a warp per vector, then per four entries. It alone touches the convolution's
// inputs. `mix_states` takes a head of a request, then the next, in batches of four tokens; as soon as nothing is to be multiplied with a state any more, the next one is on its way. Two threads have a
// column: each multiplies half of the state's rows; then one has S'k and finds u, the other S'q and the outputs. Bytes: the state once, read.
#include "norm.cuh"
#include "recurrence.cuh"
#include "rounded.cuh"
#include "args/mix.h"

constexpr int R = 128, C = 128, TAPS = 4;
constexpr int CHAINS = 8, LINKS = R / CHAINS, HALF = CHAINS / 2; // a product with the state is eight chains over its rows, added in ascending order
constexpr int BATCH = 4;                                         // tokens at a time
static_assert(R == C);

// --- keys, queries, values and dots
namespace keys {
constexpr int THREADS = 128, WARPS = THREADS / 32, WINDOW = 1 + MAX_DRAFTS;
static_assert(CHUNK == 4 * WARPS);

struct Memory {
    float k[WINDOW][R], q[WINDOW][R];
};

// Of a group: queries, keys, then the values of its heads.
__device__ __forceinline__ int head_of(const MixArgs& a, int group, int member) {
    const int groups = a.states.groups;
    return a.tiled ? member * groups + group : group * (a.states.heads / groups) + member;
}
__device__ __forceinline__ int first_channel(const MixArgs& a, int group, int kind) {
    return kind == 0 ? a.queries + group * R : kind == 1 ? a.keys + group * R : a.values + head_of(a, group, kind - 2) * C;
}

// One vector of a token, by a warp. Its input stays for later steps, and with the first token those of a snapshot that the row starts from.
__device__ __forceinline__ void convolve(Memory& m, const MixArgs& a, const StateRow& row, int group, int t, int kind) {
    const StateView& s = a.states;
    const int first = first_channel(a, group, kind) + threadIdx.x % 32, token = row.first_token + t, room = s.conv_inputs;
    float input[TAPS][R / 32], x[R / 32];
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const float* from = place_seen(a.x, s, row, row.start + t + i - (TAPS - 1), first);
#pragma unroll
        for (int j = 0; j < R / 32; j++) input[i][j] = from ? from[j * 32] : 0;
    }
#pragma unroll
    for (int j = 0; j < R / 32; j++) {
        const float4 taps = *reinterpret_cast<const float4*>(a.taps + static_cast<size_t>(first + j * 32) * TAPS);
        float sum = a.bias ? a.bias[first + j * 32] : 0;
        sum = fmaf(taps.x, input[0][j], sum), sum = fmaf(taps.y, input[1][j], sum), sum = fmaf(taps.z, input[2][j], sum), sum = fmaf(taps.w, input[3][j], sum);
        x[j] = silu(sum);
    }
    if (kind < 2) {
        to_unit_length(x, kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
        store_vector(x, kind == 0 ? m.q[t] : m.k[t], R);
        store_vector(x, (kind == 0 ? a.unit_queries : a.unit_keys) + (static_cast<size_t>(token) * s.groups + group) * R, R);
    } else {
        store_vector(x, row_of(a.mixed, token) + first_channel(a, group, kind), C);
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const int position = row.start + t + i - (TAPS - 1);
        if (i < TAPS - 1 && (t > 0 || row.restore < 0 || position < 0)) continue;
        float* to = s.inputs + (static_cast<size_t>(row.slot) * room + position % room) * s.conv_channels + first;
#pragma unroll
        for (int j = 0; j < R / 32; j++) to[j * 32] = input[i][j];
    }
}
__device__ __forceinline__ void save_inputs(const MixArgs& a, const StateRow& row, int group) {
    const StateView& s = a.states;
    const int before = TAPS - 1, vectors = 2 + s.heads / s.groups;
#pragma unroll 1
    for (int i = threadIdx.x; i < before * vectors * R; i += THREADS) {
        const int place = i / (vectors * R), channel = first_channel(a, group, i / R % vectors) + i % R;
        s.saved_inputs[(static_cast<size_t>(row.snapshot) * before + place) * s.conv_channels + channel] = seen(a.x, s, row, row.snapshot_at - before + place, channel);
    }
}

// Dots of a token's key and query with the keys of its chunk. A warp has four entries and adds up their eight dots together: each step of the way halves their number, and each is the sum
// that `warp_sum` makes.
__device__ __forceinline__ void relate(const Memory& m, const MixArgs& a, const StateRow& row, int group, int t) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, position = row.start + t, base = position / CHUNK * CHUNK, first = base + threadIdx.x / 32 * 4;
    if (first > position) return;
    float part[8];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int at = min(first + e, position);
        const float* key = at < row.start ? ring_key(s, row, group, at) : m.k[at - row.start];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const float x = key[j * 32 + lane], k = m.k[t][j * 32 + lane], q = m.q[t][j * 32 + lane];
            part[e] = j ? fmaf(x, k, part[e]) : x * k, part[4 + e] = j ? fmaf(x, q, part[4 + e]) : x * q;
        }
    }
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = lane & 4 * half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = upper ? part[i + half] : part[i], other = upper ? part[i] : part[i + half];
            part[i] = mine + __shfl_xor_sync(0xffffffffu, other, 4 * half);
        }
    }
    part[0] += __shfl_xor_sync(0xffffffffu, part[0], 2), part[0] += __shfl_xor_sync(0xffffffffu, part[0], 1);
    float* dots = a.dots + (static_cast<size_t>(row.first_token + t) * s.groups + group) * 2 * CHUNK;
    if (lane % 4 == 0) dots[lane / 16 * CHUNK + first - base + lane / 4 % 4] = part[0];
}
} // namespace keys

extern "C" __global__ void __launch_bounds__(keys::THREADS) mix_keys(const __grid_constant__ MixArgs a) {
    using namespace keys;
    __shared__ Memory m;
    enter();
    StateRow row;
    if (!state_row(a.states, a.tables, blockIdx.y, live_rows(a.out), row, a.fault)) return;
    // A window's entries and inputs have places of their own in the rings.
    if (!row.is_short(a.states) || row.tokens > WINDOW || row.tokens + TAPS - 1 > static_cast<int>(a.states.conv_inputs)) {
        report(a.fault, RecordHeader::BAD_SLOT);
        return;
    }
    const int group = blockIdx.x, members = a.states.heads / a.states.groups, vectors = 2 + members, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int i = warp; i < row.tokens * vectors; i += WARPS) convolve(m, a, row, group, i / vectors, i % vectors);
#pragma unroll 1
    for (int i = threadIdx.x; i < row.tokens * members; i += THREADS) {
        const int token = row.first_token + i / members, head = head_of(a, group, i % members);
        reinterpret_cast<float2*>(a.factors)[static_cast<size_t>(token) * a.states.heads + head] = factors<true>(a, token, head);
    }
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < row.tokens; t++) relate(m, a, row, group, t);
    if (row.snapshot_at > 0) save_inputs(a, row, group);
}

// --- states
constexpr int THREADS = 2 * C, WARPS = THREADS / 32;

struct alignas(16) Memory {
    float state[R][C];
    float k[CHUNK][R + 4]; // of entries, then of tokens
    float u[CHUNK][C];     // of entries, then of tokens
    // Of a batch:
    float q[BATCH][R + 4];
    float v[BATCH][C]; // then the outputs
    float gate[BATCH][C];
    float first_by_query[HALF][BATCH][C], last_by_key[HALF][BATCH][C]; // chains that the other thread of a column goes on from
    float dots[BATCH][2][CHUNK];                                       // by token, of its key and its query, by entry
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH];                // the same times the decay in between, by entry, then token
    float decay[BATCH];
    float norm[C];
    float g[CHUNK], beta[CHUNK], fold_decay[CHUNK + 4];
};
static_assert(sizeof(Memory) == 4 * (R * C + CHUNK * (R + 4) + CHUNK * C + BATCH * (R + 4) + (2 + CHAINS) * BATCH * C + 4 * CHUNK * BATCH + BATCH + C + 3 * CHUNK + 4)); // what `src/ops/mix.rs` asks for

// Whose work a thread block is at, found out by one thread: divisions are dear.
struct Place {
    StateRow row;
    int item, head, group;
    int entry; // of the position of the state, in the ring
    bool leads, there, more;

    __device__ void find(const MixArgs& a) {
        const StateView& s = a.states;
        there = false, more = item < request_rows(a.tables) * static_cast<int>(s.heads);
        if (!more) return;
        there = state_row(s, a.tables, item / s.heads, live_rows(a.out), row, a.fault) && row.is_short(s);
        head = item % s.heads, group = group_of(a, head), leads = ::leads(a, head), entry = row.state_at % s.entries;
    }
    // Where a position's entry is in the ring.
    __device__ __forceinline__ int entry_at(const StateView& s, int position) const {
        const int at = entry + position - row.state_at, room = s.entries;
        return at < room ? at : at - room;
    }
};
// Some tokens of a chunk: the first of them in the chunk, how many, and where they stand among the entries.
struct Batch {
    int first, live, at;
    __device__ Batch(const Span& span, int first) : first(first), live(min(BATCH, span.tokens - first)), at(span.entries + first) {}
};

__device__ __forceinline__ float* matrix_of(const MixArgs& a, const Place& p, float* matrices, int index) { return matrices + (static_cast<size_t>(index) * a.states.heads + p.head) * R * C; }
__device__ __forceinline__ size_t ring_of(const MixArgs& a, const Place& p) { return (static_cast<size_t>(p.row.slot) * a.states.heads + p.head) * a.states.entries; }

// Asks for the state.
__device__ __forceinline__ void fetch_state(Memory& m, const MixArgs& a, const Place& p) {
    const float* from = p.row.restore >= 0 ? matrix_of(a, p, a.states.saved_matrices, p.row.restore) : matrix_of(a, p, a.states.matrices, p.row.slot);
#pragma unroll 4
    for (int i = 0; i < R * C / 4 / THREADS; i++) {
        const int at = (i * THREADS + threadIdx.x) * 4;
        if (p.row.state_at > 0) copy_async(&m.state[0][0] + at, from + at);
        else *reinterpret_cast<float4*>(&m.state[0][0] + at) = make_float4(0, 0, 0, 0);
    }
    copies_commit();
}
// Asks for a chunk's entries, keys and factors.
__device__ __forceinline__ void fetch_chunk(Memory& m, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int thread = threadIdx.x, c = thread % 32 * 4;
    const size_t ring = ring_of(a, p), keys = (static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries;
#pragma unroll 1
    for (int at = thread / 32; at < span.entries + span.tokens; at += WARPS) {
        const int place = p.entry_at(s, span.base + at);
        const bool old = at < span.entries;
        copy_async(&m.k[at][c], (old ? s.keys + (keys + place) * R : a.unit_keys + (static_cast<size_t>(span.token + at - span.entries) * s.groups + p.group) * R) + c);
        if (old) copy_async(&m.u[at][c], s.values + (ring + place) * C + c);
    }
    if (thread < span.entries + span.tokens) {
        const float* factors = a.factors + (static_cast<size_t>(span.token + thread - span.entries) * s.heads + p.head) * 2;
        copy_async_word(&m.g[thread], thread < span.entries ? s.decays + ring + p.entry_at(s, span.base + thread) : factors);
        if (thread >= span.entries) copy_async_word(&m.beta[thread], factors + 1);
    }
    if (thread >= THREADS - C / 4) copy_async(&m.norm[c], a.norm + c);
}
// Asks for a batch's queries, values, gates and dots.
__device__ __forceinline__ void fetch_batch(Memory& m, const MixArgs& a, const Place& p, const Span& span, const Batch& b) {
    const int warp = threadIdx.x / 32, c = threadIdx.x % 32 * 4, t = warp % BATCH, token = span.token + b.first + t;
    if (t >= b.live) return;
    const size_t of_group = static_cast<size_t>(token) * a.states.groups + p.group;
    if (warp < BATCH) {
        copy_async(&m.q[t][c], a.unit_queries + of_group * R + c);
        copy_async(&m.v[t][c], row_of(a.mixed, token) + a.values + p.head * C + c);
    } else {
        copy_async(&m.gate[t][c], row_of(a.gate, token) + p.head * C + c);
        if (c < 2 * CHUNK) copy_async(&m.dots[t][0][0] + c, a.dots + of_group * 2 * CHUNK + c);
    }
}

// Dots times the decay in between, a thread per pair; decays from the grid position.
__device__ __forceinline__ void weigh(Memory& m, const Batch& b) {
    const int thread = threadIdx.x, s = thread / BATCH, t = thread % BATCH;
    if (s < CHUNK && t < b.live && s <= b.at + t) {
        const float factor = decay_between(m.g, s, b.at + t);
        m.by_key[s][t] = factor * m.dots[t][0][s], m.by_query[s][t] = factor * m.dots[t][1][s];
    }
    if (s == CHUNK && t < b.live) m.decay[t] = decay_between(m.g, -1, b.at + t);
}

// Chains of S'k and S'q of a batch's tokens, of which there are up to `Live`: this thread's half of its column. One kind is kept, the other left for the other thread.
template <int Live> __device__ __forceinline__ void products(Memory& m, const Batch& b, float (&kept)[HALF][BATCH]) {
    const int c = threadIdx.x % C;
    const bool lower = threadIdx.x < C;
#pragma unroll
    for (int chain = 0; chain < HALF; chain++) {
        float by_key[Live] = {}, by_query[Live] = {};
        const int first = (lower ? chain : chain + HALF) * LINKS;
#pragma unroll 2
        for (int i = 0; i < LINKS; i += 4) {
            float state[4];
#pragma unroll
            for (int j = 0; j < 4; j++) state[j] = m.state[first + i + j][c];
#pragma unroll
            for (int t = 0; t < Live; t++) {
                const float4 k = *reinterpret_cast<const float4*>(&m.k[b.at + t][first + i]), q = *reinterpret_cast<const float4*>(&m.q[t][first + i]);
                by_key[t] = __fmaf_rn(k.x, state[0], by_key[t]), by_key[t] = __fmaf_rn(k.y, state[1], by_key[t]), by_key[t] = __fmaf_rn(k.z, state[2], by_key[t]), by_key[t] = __fmaf_rn(k.w, state[3], by_key[t]);
                by_query[t] = __fmaf_rn(q.x, state[0], by_query[t]), by_query[t] = __fmaf_rn(q.y, state[1], by_query[t]), by_query[t] = __fmaf_rn(q.z, state[2], by_query[t]),
                by_query[t] = __fmaf_rn(q.w, state[3], by_query[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < Live; t++) {
            kept[chain][t] = lower ? by_key[t] : by_query[t];
            (lower ? m.first_by_query : m.last_by_key)[chain][t][c] = lower ? by_query[t] : by_key[t];
        }
        asm volatile("" ::: "memory"); // what the next chain reads is not asked for before: registers are few
    }
}

// u of a batch, by the first thread of a column, and its outputs, by the second: entries are added in order, old and new alike. What is past the last token is never looked at.
__device__ __forceinline__ void run_tokens(Memory& m, const Batch& b) {
    const int c = threadIdx.x % C;
    const bool lower = threadIdx.x < C;
    float chains[HALF][BATCH] = {}, sum[BATCH] = {};
    if (b.live == 1) products<1>(m, b, chains);
    else if (b.live == 2) products<2>(m, b, chains);
    else products<BATCH>(m, b, chains);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < BATCH; t++) {
        sum[t] = lower ? chains[0][t] : m.first_by_query[0][t][c];
#pragma unroll
        for (int chain = 1; chain < CHAINS; chain++) {
            const bool own = lower == (chain < HALF);
            sum[t] = __fadd_rn(sum[t], own ? chains[chain % HALF][t] : (lower ? m.last_by_key : m.first_by_query)[chain % HALF][t][c]);
        }
        sum[t] = m.decay[t] * sum[t];
        if (t + 1 >= b.live) break;
    }
    const float(*weights)[BATCH] = lower ? m.by_key : m.by_query;
#pragma unroll 2
    for (int s = 0; s < b.at; s++) {
        const float u = m.u[s][c];
        const float4 w = *reinterpret_cast<const float4*>(weights[s]);
        sum[0] = __fmaf_rn(w.x, u, sum[0]), sum[1] = __fmaf_rn(w.y, u, sum[1]), sum[2] = __fmaf_rn(w.z, u, sum[2]), sum[3] = __fmaf_rn(w.w, u, sum[3]);
    }
    if (lower) {
#pragma unroll
        for (int t = 0; t < BATCH; t++) {
            if (t >= b.live) break;
            const float u = m.beta[b.at + t] * (m.v[t][c] - sum[t]);
            m.u[b.at + t][c] = u;
#pragma unroll
            for (int j = t + 1; j < BATCH; j++) sum[j] = __fmaf_rn(weights[b.at + t][j], u, sum[j]);
        }
    }
    __syncthreads();
    if (!lower) {
#pragma unroll
        for (int t = 0; t < BATCH; t++) {
            if (t >= b.live) break;
#pragma unroll
            for (int j = 0; j <= t; j++) sum[t] = __fmaf_rn(weights[b.at + j][t], m.u[b.at + j][c], sum[t]);
            m.v[t][c] = sum[t];
        }
    }
}

// The gated norm of outputs, a warp per token.
__device__ __forceinline__ void finish(const Memory& m, const MixArgs& a, const Place& p, const Span& span, const Batch& b) {
    const int t = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (t >= b.live) return;
    const float4 x = *reinterpret_cast<const float4*>(&m.v[t][c]), gate = *reinterpret_cast<const float4*>(&m.gate[t][c]);
    const float factor = 1.0f / sqrtf(warp_sum(add_squares(x, 0)) / static_cast<float>(C) + a.eps);
    const float4 y = each(scaled(x, factor, *reinterpret_cast<const float4*>(&m.norm[c])), gate, [](float x, float g) { return x * silu(g); });
    const int token = span.token + b.first + t, column = p.head * C + c;
    store_four(row_of(a.out, token), column, a.out.columns, y);
    store_rounded(a.rounded, token, column, y);
}

// The entries of a chunk's tokens that no stored state contains, a warp per entry.
__device__ __forceinline__ void leave(const Memory& m, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int c = threadIdx.x % 32 * 4;
#pragma unroll 1
    for (int e = max(max(p.row.start, p.row.state_end) - span.base, span.entries) + threadIdx.x / 32; e < span.entries + span.tokens; e += WARPS) {
        const int place = p.entry_at(s, span.base + e);
        const size_t at = ring_of(a, p) + place;
        *reinterpret_cast<float4*>(s.values + at * C + c) = *reinterpret_cast<const float4*>(&m.u[e][c]);
        if (c == 0) s.decays[at] = m.g[e];
        if (p.leads) *reinterpret_cast<float4*>(s.keys + ((static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries + place) * R + c) = *reinterpret_cast<const float4*>(&m.k[e][c]);
    }
}

// A full chunk goes into the state: a thread has half of a column, a chain's rows at a time.
__device__ __forceinline__ void fold(Memory& m) {
    const int c = threadIdx.x % C;
#pragma unroll 1
    for (int first = threadIdx.x / C * (R / 2), end = first + R / 2; first < end; first += LINKS) {
        float state[LINKS];
#pragma unroll
        for (int i = 0; i < LINKS; i++) state[i] = m.state[first + i][c] * m.fold_decay[0];
#pragma unroll 2
        for (int s = 0; s < CHUNK; s++) {
            const float u = m.fold_decay[s + 1] * m.u[s][c];
#pragma unroll
            for (int i = 0; i < LINKS; i += 4) {
                const float4 k = *reinterpret_cast<const float4*>(&m.k[s][first + i]);
                state[i] = __fmaf_rn(k.x, u, state[i]), state[i + 1] = __fmaf_rn(k.y, u, state[i + 1]), state[i + 2] = __fmaf_rn(k.z, u, state[i + 2]), state[i + 3] = __fmaf_rn(k.w, u, state[i + 3]);
            }
        }
#pragma unroll
        for (int i = 0; i < LINKS; i++) m.state[first + i][c] = state[i];
    }
}
__device__ __forceinline__ void store_state(const Memory& m, float* to) {
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < R * C; at += THREADS * 4) *reinterpret_cast<float4*>(to + at) = *reinterpret_cast<const float4*>(&m.state[0][0] + at);
}

// The next row is found by a thread that has nothing else to do, in three steps, so that it need not wait for what the step before has asked for.
__device__ __forceinline__ int ask(const int32_t* p) {
    int x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
struct Scout {
    int first_token;

    __device__ static bool is_here() { return threadIdx.x == THREADS - 1; }
    __device__ void ask_for_request(const MixArgs& a, int item) {
        if (is_here()) first_token = ask(&a.tables.requests[min(item / a.states.heads, a.tables.request_bucket - 1)].first_token);
    }
    __device__ void ask_for_token(const MixArgs& a) const {
        if (is_here()) ask(&a.tables.tokens[min(max(first_token, 0), static_cast<int>(a.tables.token_bucket) - 1)].position);
    }
    __device__ void find(const MixArgs& a, Place& next, int item) const {
        if (is_here()) next.item = item, next.find(a);
    }
};

// A row whose state has been asked for; asks for that of the next.
__device__ __forceinline__ void mix_row(Memory& m, const MixArgs& a, const Place& p, Place& next) {
    const StateView& s = a.states;
    const StateRow& row = p.row;
    Scout scout;
    scout.ask_for_request(a, p.item + gridDim.x);
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        asm volatile("" : "+r"(base)); // what follows from it is computed anew: registers are few
        const Span span(row, base);
        fetch_chunk(m, a, p, span);
        if (span.tokens > 0) fetch_batch(m, a, p, span, Batch(span, 0));
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        const bool last = base + CHUNK >= row.end;
#pragma unroll 1
        for (int first = 0; first < span.tokens; first += BATCH) {
            const Batch b(span, first);
            if (first > 0) fetch_batch(m, a, p, span, b), copies_commit(), copies_wait<0>(), __syncthreads();
            weigh(m, b);
            if (last) scout.ask_for_token(a);
            __syncthreads();
            run_tokens(m, b);
            __syncthreads();
            finish(m, a, p, span, b);
            if (last && first + BATCH >= span.tokens) scout.find(a, next, p.item + gridDim.x);
            __syncthreads(); // done with the batch
        }
        const bool carried = row.restore >= 0 && base == row.state_at && row.state_end == row.state_at, folded = folds(row, base);
        if (last && !carried && !folded && next.there) fetch_state(m, a, next);
        leave(m, a, p, span);
        if (carried || folded) {
            if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(m.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
            __syncthreads();
            if (carried) store_state(m, matrix_of(a, p, s.matrices, row.slot)), __syncthreads();
            if (folded) {
                fold(m);
                __syncthreads();
                if (base + CHUNK == row.snapshot_at) store_state(m, matrix_of(a, p, s.saved_matrices, row.snapshot));
                if (base + CHUNK == row.state_end) store_state(m, matrix_of(a, p, s.matrices, row.slot));
            }
            __syncthreads(); // done with the state
            if (last && next.there) fetch_state(m, a, next);
        }
        __syncthreads(); // done with the chunk
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) mix_states(const __grid_constant__ MixArgs a) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Place places[2];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    enter();
    if (threadIdx.x == 0) places[0].item = blockIdx.x, places[0].find(a);
    __syncthreads();
    if (places[0].there) fetch_state(m, a, places[0]);
#pragma unroll 1
    for (int turn = 0; places[turn].more; turn ^= 1) {
        Place& next = places[turn ^ 1];
        if (places[turn].there) mix_row(m, a, places[turn], next);
        else {
            if (threadIdx.x == 0) next.item = places[turn].item + gridDim.x, next.find(a);
            __syncthreads();
            if (next.there) fetch_state(m, a, next);
        }
        __syncthreads();
    }
}
