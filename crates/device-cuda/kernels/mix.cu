// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in one kernel, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`.
//
// A thread block takes a head of a request, then the next, in batches of four tokens. The state is on its way to shared memory while keys, queries and their dots are made. Two threads have a column:
// each multiplies half of the state's rows; then one has S'k and finds u, the other S'q and the outputs. Keys and queries are shared by the heads of a group; each head makes them itself, and the
// first of a group leaves them. Two thread blocks per multiprocessor hide each other's latencies. Bytes: the state once, read.
#include "norm.cuh"
#include "recurrence.cuh"
#include "rounded.cuh"
#include "args/mix.h"

constexpr int R = 128, C = 128, THREADS = 2 * C, WARPS = THREADS / 32, TAPS = 4;
constexpr int CHAINS = 8, LINKS = R / CHAINS, HALF = CHAINS / 2; // a product with the state is eight chains over its rows, added in ascending order
constexpr int BATCH = 4;                                         // tokens at a time
constexpr int CHANNELS = 2 * R + C;                              // of the convolution, for a head
static_assert(R == C && CHUNK == 2 * WARPS);

struct alignas(16) Memory {
    float state[R][C];
    float k[CHUNK][R + 4]; // of entries, then of tokens
    float u[CHUNK][C];     // of entries, then of tokens
    // Of a batch:
    float q[BATCH][R + 4];
    float v[BATCH][C]; // then the outputs
    float gate[BATCH][C];
    union {
        struct {
            float inputs[BATCH + TAPS - 1][CHANNELS]; // of the convolution, by position
            float taps[CHANNELS][TAPS];
        };
        struct {
            float first_by_query[HALF][BATCH][C], last_by_key[HALF][BATCH][C]; // chains that the other thread of a column goes on from
        };
    };
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots, then times the decay in between, by entry, then token
    float decay[BATCH];
    float norm[C];
    float g[CHUNK], beta[CHUNK], fold_decay[CHUNK + 4];
};
static_assert(sizeof(Memory) == 4 * (R * C + CHUNK * (R + 4) + CHUNK * C + BATCH * (R + 4) + 2 * BATCH * C + (BATCH + 2 * TAPS - 1) * CHANNELS + 2 * CHUNK * BATCH + BATCH + C + 3 * CHUNK + 4)); // what `src/ops/mix.rs` asks for

// Whose work a thread block is at, found out by one thread: divisions are dear.
struct Place {
    StateRow row;
    int head, group;
    int entry, input; // of the position of the state and of the first token, in their rings
    int item;
    bool leads, there, more;

    __device__ void find(const MixArgs& a) {
        const StateView& s = a.states;
        there = false, more = item < request_rows(a.tables) * static_cast<int>(s.heads);
        if (!more) return;
        there = state_row(s, a.tables, item / s.heads, live_rows(a.out), row, a.fault);
        if (!there) return;
        // A window's entries and inputs have places of their own in the rings.
        if (!row.is_short(s) || row.tokens + TAPS - 1 > static_cast<int>(s.conv_inputs)) there = false, report(a.fault, RecordHeader::BAD_SLOT);
        head = item % s.heads, group = group_of(a, head), leads = ::leads(a, head), entry = row.state_at % s.entries, input = row.start % s.conv_inputs;
    }
    // Where a position's entry and its input are in their rings.
    __device__ __forceinline__ int entry_at(const StateView& s, int position) const {
        const int at = entry + position - row.state_at, room = s.entries;
        return at < room ? at : at - room;
    }
    __device__ __forceinline__ int input_at(const StateView& s, int position) const {
        const int at = input + position - row.start, room = s.conv_inputs;
        return at < 0 ? at + room : at < room ? at : at - room;
    }
};
// Some tokens of a chunk: the first of them in the chunk, how many, and where they stand among the entries.
struct Batch {
    int first, live, at;
    __device__ Batch(const Span& span, int first) : first(first), live(min(BATCH, span.tokens - first)), at(span.entries + first) {}
};

// The i-th channel of a head's convolution: of queries, of keys and of values, one after the other.
__device__ __forceinline__ int channel_of(const MixArgs& a, const Place& p, int i) {
    return i < R ? a.queries + p.group * R + i : i < 2 * R ? a.keys + p.group * R + i - R : a.values + p.head * C + i - 2 * R;
}
__device__ __forceinline__ float* matrix_of(const MixArgs& a, const Place& p, float* matrices, int index) { return matrices + (static_cast<size_t>(index) * a.states.heads + p.head) * R * C; }
__device__ __forceinline__ size_t ring_of(const MixArgs& a, const Place& p) { return (static_cast<size_t>(p.row.slot) * a.states.heads + p.head) * a.states.entries; }

// Asks for the state.
__device__ __forceinline__ void fetch_state(Memory& m, const MixArgs& a, const Place& p) {
    const float* from = p.row.restore >= 0 ? matrix_of(a, p, a.states.saved_matrices, p.row.restore) : matrix_of(a, p, a.states.matrices, p.row.slot);
#pragma unroll
    for (int i = 0; i < R * C / 4 / THREADS; i++) {
        const int at = (i * THREADS + threadIdx.x) * 4;
        if (p.row.state_at > 0) copy_async(&m.state[0][0] + at, from + at);
        else *reinterpret_cast<float4*>(&m.state[0][0] + at) = make_float4(0, 0, 0, 0);
    }
    copies_commit();
}
// Asks for a chunk's entries, and log decays of its tokens, with what values are multiplied by.
__device__ __forceinline__ void fetch_chunk(Memory& m, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int thread = threadIdx.x, c = thread % 32 * 4;
    const size_t ring = ring_of(a, p), keys = (static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries;
#pragma unroll 1
    for (int at = thread / 32; at < span.entries; at += WARPS) {
        const int place = p.entry_at(s, span.base + at);
        copy_async(&m.k[at][c], s.keys + (keys + place) * R + c), copy_async(&m.u[at][c], s.values + (ring + place) * C + c);
    }
    if (thread < span.entries) copy_async_word(&m.g[thread], s.decays + ring + p.entry_at(s, span.base + thread));
    if (thread < C / 4) copy_async(&m.norm[thread * 4], a.norm + thread * 4);
    if (const int at = thread - (THREADS - 32); at >= span.entries && at < span.entries + span.tokens) {
        const float2 factor = factors<true>(a, span.token + at - span.entries, p.head);
        m.g[at] = factor.x, m.beta[at] = factor.y;
    }
}
// Asks for a batch's gates, taps and inputs, with those before them that the taps reach.
__device__ __forceinline__ void fetch_batch(Memory& m, const MixArgs& a, const Place& p, const Span& span, const Batch& b) {
    const StateView& s = a.states;
    const StateRow& row = p.row;
    const int warp = threadIdx.x / 32, c = threadIdx.x % 32 * 4, position = span.base + b.at - (TAPS - 1) + warp;
    if (warp < b.live) copy_async(&m.gate[warp][c], row_of(a.gate, span.token + b.first + warp) + p.head * C + c);
    for (int i = threadIdx.x; i < CHANNELS; i += THREADS) copy_async(m.taps[i], a.taps + static_cast<size_t>(channel_of(a, p, i)) * TAPS);
    if (warp >= b.live + TAPS - 1) return;
    const float* from = position >= row.start ? row_of(a.x, row.first_token + position - row.start)
                        : row.restore >= 0    ? s.saved_inputs + (static_cast<size_t>(row.restore) * (TAPS - 1) + position + TAPS - 1 - row.start) * s.conv_channels
                                              : s.inputs + (static_cast<size_t>(row.slot) * s.conv_inputs + p.input_at(s, position)) * s.conv_channels;
#pragma unroll
    for (int kind = 0; kind < 3; kind++) {
        float* to = &m.inputs[warp][kind * R + c];
        if (position >= 0) copy_async(to, from + channel_of(a, p, kind * R + c));
        else *reinterpret_cast<float4*>(to) = make_float4(0, 0, 0, 0); // before the sequence
    }
}

// Queries and keys of unit length, and values: a warp per vector.
__device__ __forceinline__ void convolve(Memory& m, const MixArgs& a, const Place& p, const Batch& b) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < 3 * b.live; i += WARPS) {
        const int t = i / 3, kind = i - 3 * t;
        float x[R / 32];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const int at = kind * R + j * 32 + lane;
            const float4 taps = *reinterpret_cast<const float4*>(m.taps[at]);
            const float* input = &m.inputs[t][at];
            float sum = a.bias ? a.bias[channel_of(a, p, at)] : 0;
            sum = fmaf(taps.x, input[0], sum), sum = fmaf(taps.y, input[CHANNELS], sum), sum = fmaf(taps.z, input[2 * CHANNELS], sum), sum = fmaf(taps.w, input[3 * CHANNELS], sum);
            x[j] = silu(sum);
        }
        if (kind < 2) to_unit_length(x, kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
        store_vector(x, kind == 0 ? m.q[t] : kind == 1 ? m.k[b.at + t] : m.v[t], R);
    }
}
// What later steps need of the inputs, and of a snapshot they start from. Nobody reads what is written here: rows are short enough for that.
__device__ __forceinline__ void leave_inputs(const Memory& m, const MixArgs& a, const Place& p, const Span& span, const Batch& b) {
    const StateView& s = a.states;
    const int j = threadIdx.x / 32, c = threadIdx.x % 32 * 4, position = span.base + b.at - (TAPS - 1) + j;
    const bool restored = p.row.restore >= 0 && position >= 0 && span.base + b.at == p.row.start;
    if (j >= b.live + TAPS - 1 || (j < TAPS - 1 && !restored)) return;
    float* to = s.inputs + (static_cast<size_t>(p.row.slot) * s.conv_inputs + p.input_at(s, position)) * s.conv_channels;
    for (int kind = p.leads ? 0 : 2; kind < 3; kind++) *reinterpret_cast<float4*>(to + channel_of(a, p, kind * R + c)) = *reinterpret_cast<const float4*>(&m.inputs[j][kind * R + c]);
}
__device__ __forceinline__ void save_inputs(const MixArgs& a, const Place& p) {
    const StateView& s = a.states;
    const int before = TAPS - 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < before * CHANNELS; i += THREADS) {
        const int place = i / CHANNELS, channel = channel_of(a, p, i % CHANNELS);
        if (i % CHANNELS >= 2 * R || p.leads) s.saved_inputs[(static_cast<size_t>(p.row.snapshot) * before + place) * s.conv_channels + channel] = seen(a.x, s, p.row, p.row.snapshot_at - before + place, channel);
    }
}

// Dots of entries with the keys and queries of a batch's tokens. A warp has two entries and adds up the four dots of a token together: each step of the way halves their number, and each is
// the sum that `warp_sum` makes.
__device__ __forceinline__ void relate(Memory& m, const Batch& b) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 2;
    if (first >= b.at + b.live) return;
    float keys[2][R / 32];
    load_vector(keys[0], m.k[first], R), load_vector(keys[1], m.k[first + 1], R);
#pragma unroll 1
    for (int t = 0; t < b.live; t++) {
        float part[4];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const float k = m.k[b.at + t][j * 32 + lane], q = m.q[t][j * 32 + lane];
#pragma unroll
            for (int e = 0; e < 2; e++) part[e] = j ? fmaf(keys[e][j], k, part[e]) : keys[e][j] * k, part[2 + e] = j ? fmaf(keys[e][j], q, part[2 + e]) : keys[e][j] * q;
        }
#pragma unroll
        for (int half = 2; half > 0; half /= 2) {
            const bool upper = lane & 8 * half;
#pragma unroll
            for (int i = 0; i < half; i++) {
                const float mine = upper ? part[i + half] : part[i], other = upper ? part[i] : part[i + half];
                part[i] = mine + __shfl_xor_sync(0xffffffffu, other, 8 * half);
            }
        }
#pragma unroll
        for (int distance = 4; distance > 0; distance /= 2) part[0] += __shfl_xor_sync(0xffffffffu, part[0], distance);
        if (const int e = first + lane / 8 % 2; lane % 8 == 0 && e <= b.at + t) (lane < 16 ? m.by_key : m.by_query)[e][t] = part[0];
    }
}
// Dots times the decay in between, a thread per pair; decays from the grid position.
__device__ __forceinline__ void weigh(Memory& m, const Batch& b) {
    const int thread = threadIdx.x, s = thread / BATCH, t = thread % BATCH;
    if (s < CHUNK && t < b.live && s <= b.at + t) {
        const float factor = decay_between(m.g, s, b.at + t);
        m.by_key[s][t] = factor * m.by_key[s][t], m.by_query[s][t] *= factor;
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

__device__ __forceinline__ void mix_row(Memory& m, const MixArgs& a, const Place& p) {
    const StateView& s = a.states;
    const StateRow& row = p.row;
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        asm volatile("" : "+r"(base)); // what follows from it is computed anew
        const Span span(row, base);
        fetch_chunk(m, a, p, span);
        if (span.tokens > 0) fetch_batch(m, a, p, span, Batch(span, 0));
        copies_commit();
        if (base == row.state_at) fetch_state(m, a, p), copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < span.tokens; first += BATCH) {
            const Batch b(span, first);
            if (first > 0) fetch_batch(m, a, p, span, b), copies_commit(), copies_wait<0>(), __syncthreads();
            convolve(m, a, p, b);
            leave_inputs(m, a, p, span, b);
            __syncthreads();
            relate(m, b);
            __syncthreads();
            weigh(m, b);
            copies_wait<0>(); // the state
            __syncthreads();
            run_tokens(m, b);
            __syncthreads();
            finish(m, a, p, span, b);
            __syncthreads(); // done with the batch
        }
        leave(m, a, p, span);
        const bool carried = row.restore >= 0 && base == row.state_at && row.state_end == row.state_at, folded = folds(row, base);
        if (threadIdx.x <= CHUNK && folded) m.fold_decay[threadIdx.x] = decay_between(m.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
        copies_wait<0>();
        __syncthreads();
        if (carried) store_state(m, matrix_of(a, p, s.matrices, row.slot)), __syncthreads();
        if (folded) {
            fold(m);
            __syncthreads();
            if (base + CHUNK == row.snapshot_at) store_state(m, matrix_of(a, p, s.saved_matrices, row.snapshot));
            if (base + CHUNK == row.state_end) store_state(m, matrix_of(a, p, s.matrices, row.slot));
        }
        __syncthreads(); // done with the chunk
    }
    if (row.snapshot_at > 0) save_inputs(a, p);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) mix_delta(const __grid_constant__ MixArgs a) {
    extern __shared__ __align__(16) char memory[];
    __shared__ Place place;
    enter();
    if (threadIdx.x == 0) place.item = blockIdx.x, place.find(a);
    __syncthreads();
#pragma unroll 1
    while (place.more) {
        if (place.there) mix_row(*reinterpret_cast<Memory*>(memory), a, place);
        __syncthreads(); // done with the row
        if (threadIdx.x == 0) place.item += gridDim.x, place.find(a);
        __syncthreads();
    }
}
