// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in one kernel, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`.
//
// A thread block takes a head of a request, then the next, in batches of four tokens. A thread has a column of the state, all of it in registers: what it computes of u and of the outputs needs
// no other thread. Keys and queries are shared by the heads of a group; each head makes them itself, and the first of a group leaves them. Three thread blocks per multiprocessor hide
// each other's latencies. Bytes: the state once, read.
#include "norm.cuh"
#include "recurrence.cuh"
#include "rounded.cuh"
#include "args/mix.h"

constexpr int R = 128, C = 128, THREADS = C, WARPS = THREADS / 32, TAPS = 4;
constexpr int CHAINS = 8, LINKS = R / CHAINS; // a product with the state is eight chains over its rows, added in ascending order
constexpr int TOGETHER = SM90 ? 3 : 2;        // thread blocks per multiprocessor that registers are counted out for
constexpr int BATCH = 4;                      // tokens at a time
constexpr int CHANNELS = 2 * R + C;           // of the convolution, for a head
static_assert(R == C && WARPS == BATCH && CHUNK == 4 * WARPS);

// This thread's number, asked for where it is needed: with the state in them, registers are too few to keep what follows from it.
__device__ __forceinline__ int own() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

struct alignas(16) Memory {
    float k[CHUNK][R + 4]; // of entries, then of tokens
    float u[CHUNK][C];     // of entries, then of tokens; a thread sees its own column alone
    // Of a batch:
    float q[BATCH][R + 4];
    float v[BATCH][C]; // then the outputs
    float gate[BATCH][C];
    float inputs[BATCH + TAPS - 1][CHANNELS]; // of the convolution, by position
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots, then times the decay in between, by entry, then token
    float decay[BATCH];
    float sums[BATCH][2][C]; // S'k and S'q, decayed; a thread sees its own column alone
    // Of a head:
    float taps[CHANNELS][TAPS];
    float norm[C];
    float g[CHUNK], beta[CHUNK], fold_decay[CHUNK + 4];
};
static_assert(sizeof(Memory) == 4 * (CHUNK * (R + 4) + CHUNK * C + BATCH * (R + 4) + 4 * BATCH * C + (BATCH + 2 * TAPS - 1) * CHANNELS + 2 * CHUNK * BATCH + BATCH + C + 3 * CHUNK + 4)); // what `src/ops/mix.rs` asks for

// Whose work a thread block is at.
struct Place {
    const MixArgs& a;
    const StateRow& row;
    int head;
    __device__ __forceinline__ int group() const { return group_of(a, head); }
    __device__ __forceinline__ bool leads() const { return ::leads(a, head); }
};
// Some tokens of a chunk: the first of them in the chunk, how many, and where they stand among the entries.
struct Batch {
    int first, live, at;
    __device__ Batch(const Span& span, int first) : first(first), live(min(BATCH, span.tokens - first)), at(span.entries + first) {}
};

// The i-th channel of a head's convolution: of queries, of keys and of values, one after the other.
__device__ __forceinline__ int channel_of(const Place& p, int i) {
    const int kind = i / R;
    return kind == 0 ? p.a.queries + p.group() * R + i : kind == 1 ? p.a.keys + p.group() * R + i - R : p.a.values + p.head * C + i - 2 * R;
}

// Asks for a chunk's entries and for what the head needs in any batch.
__device__ __forceinline__ void fetch_chunk(Memory& m, const Place& p, const Span& span) {
    const StateView& s = p.a.states;
    const int entries = s.entries, turn = span.base % entries, thread = threadIdx.x, c = thread % 32 * 4;
    const float *keys = s.keys + (static_cast<size_t>(p.row.slot) * s.groups + p.group()) * entries * R, *values = s.values + (static_cast<size_t>(p.row.slot) * s.heads + p.head) * entries * C;
    auto place = [&](int at) { return turn + at < entries ? turn + at : turn + at - entries; }; // in a ring
#pragma unroll 1
    for (int at = thread / 32; at < span.entries; at += WARPS) copy_async(&m.k[at][c], keys + place(at) * R + c), copy_async(&m.u[at][c], values + place(at) * C + c);
    if (thread < span.entries) copy_async_word(&m.g[thread], s.decays + (static_cast<size_t>(p.row.slot) * s.heads + p.head) * entries + place(thread));
    if (thread < C / 4) copy_async(&m.norm[thread * 4], p.a.norm + thread * 4);
#pragma unroll 1
    for (int i = thread; i < CHANNELS; i += THREADS) copy_async(m.taps[i], p.a.taps + static_cast<size_t>(channel_of(p, i)) * TAPS);
}
// Asks for a batch's gates and inputs, with those before them that the taps reach.
__device__ __forceinline__ void fetch_batch(Memory& m, const Place& p, const Span& span, const Batch& b) {
    const int warp = threadIdx.x / 32, c = threadIdx.x % 32 * 4, from = span.base + b.at - (TAPS - 1);
    if (warp < b.live) copy_async(&m.gate[warp][c], row_of(p.a.gate, span.token + b.first + warp) + p.head * C + c);
#pragma unroll 1
    for (int j = warp; j < b.live + TAPS - 1; j += WARPS) {
        const float* input = place_seen(p.a.x, p.a.states, p.row, from + j, 0);
#pragma unroll 1
        for (int kind = 0; kind < 3; kind++) {
            const int at = kind * R + c;
            if (input) copy_async(&m.inputs[j][at], input + channel_of(p, at));
            else *reinterpret_cast<float4*>(&m.inputs[j][at]) = make_float4(0, 0, 0, 0);
        }
    }
}
// Log decays of a chunk's tokens, and what values are multiplied by.
__device__ __forceinline__ void weigh_tokens(Memory& m, const Place& p, const Span& span) {
    if (const int at = threadIdx.x - (THREADS - 32); at >= span.entries && at < span.entries + span.tokens) {
        const float2 factor = factors<true>(p.a, span.token + at - span.entries, p.head);
        m.g[at] = factor.x, m.beta[at] = factor.y;
    }
}

// Queries and keys of unit length, and values: a warp per vector.
__device__ __forceinline__ void convolve(Memory& m, const Place& p, const Batch& b) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < 3 * b.live; i += WARPS) {
        const int kind = i % 3, t = i / 3;
        float x[R / 32];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const int at = kind * R + j * 32 + lane;
            const float4 taps = *reinterpret_cast<const float4*>(m.taps[at]);
            const float* input = &m.inputs[t][at];
            float sum = p.a.bias ? p.a.bias[channel_of(p, at)] : 0;
            sum = fmaf(taps.x, input[0], sum), sum = fmaf(taps.y, input[CHANNELS], sum), sum = fmaf(taps.z, input[2 * CHANNELS], sum), sum = fmaf(taps.w, input[3 * CHANNELS], sum);
            x[j] = silu(sum);
        }
        if (kind < 2) to_unit_length(x, kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
        store_vector(x, kind == 0 ? m.q[t] : kind == 1 ? m.k[b.at + t] : m.v[t], R);
    }
}
// What later steps need of the inputs, and of a snapshot they start from. Nobody reads what is written here: rows are short enough for that.
__device__ __forceinline__ void leave_inputs(const Memory& m, const Place& p, const Span& span, const Batch& b) {
    const StateView& s = p.a.states;
    const int c = threadIdx.x % 32 * 4, room = s.conv_inputs, from = p.row.restore >= 0 && b.first == 0 && span.base + span.entries == p.row.start ? 0 : TAPS - 1;
#pragma unroll 1
    for (int j = from + threadIdx.x / 32; j < b.live + TAPS - 1; j += WARPS) {
        const int position = span.base + b.at - (TAPS - 1) + j;
        if (position < 0) continue;
        float* to = s.inputs + (static_cast<size_t>(p.row.slot) * room + position % room) * s.conv_channels;
        for (int kind = p.leads() ? 0 : 2; kind < 3; kind++) *reinterpret_cast<float4*>(to + channel_of(p, kind * R + c)) = *reinterpret_cast<const float4*>(&m.inputs[j][kind * R + c]);
    }
}
__device__ __forceinline__ void save_inputs(const Place& p) {
    const StateView& s = p.a.states;
    const int before = TAPS - 1;
#pragma unroll 1
    for (int i = threadIdx.x + (p.leads() ? 0 : 2 * R); i < before * CHANNELS; i += THREADS) {
        const int place = i / CHANNELS, channel = channel_of(p, i % CHANNELS);
        if (i % CHANNELS >= 2 * R || p.leads())
            s.saved_inputs[(static_cast<size_t>(p.row.snapshot) * before + place) * s.conv_channels + channel] = seen(p.a.x, s, p.row, p.row.snapshot_at - before + place, channel);
    }
}

// Dots of entries with the keys and queries of a batch's tokens. A warp has four entries and adds up the eight dots of a token together: each step of the way halves their number, and each is
// the sum that `warp_sum` makes.
__device__ __forceinline__ void relate(Memory& m, const Batch& b) {
    const int lane = own() % 32, first = own() / 32 * 4;
    if (first >= b.at + b.live) return;
#pragma unroll 1
    for (int t = 0; t < b.live; t++) {
        float part[8];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const float k = m.k[b.at + t][j * 32 + lane], q = m.q[t][j * 32 + lane];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float key = m.k[first + e][j * 32 + lane];
                part[e] = j ? fmaf(key, k, part[e]) : key * k, part[4 + e] = j ? fmaf(key, q, part[4 + e]) : key * q;
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
        if (const int e = first + lane / 4 % 4; lane % 4 == 0 && e <= b.at + t) (lane < 16 ? m.by_key : m.by_query)[e][t] = part[0];
    }
}
// Dots times the decay in between, a thread per pair; decays from the grid position.
__device__ __forceinline__ void weigh(Memory& m, const Batch& b) {
    const int thread = threadIdx.x, s = thread / BATCH % CHUNK, t = thread % BATCH;
    if (thread < CHUNK * BATCH && t < b.live && s <= b.at + t) {
        const float factor = decay_between(m.g, s, b.at + t);
        m.by_key[s][t] = factor * m.by_key[s][t], m.by_query[s][t] *= factor;
    }
    if (const int i = thread - CHUNK * BATCH; i >= 0 && i < b.live) m.decay[i] = decay_between(m.g, -1, b.at + i);
}

// S'k and S'q of a batch's token: this thread's column.
__device__ __forceinline__ float2 products(const float (&state)[R], const float* key, const float* query) {
    float2 total;
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) {
        float by_key = 0, by_query = 0;
#pragma unroll
        for (int i = chain * LINKS; i < (chain + 1) * LINKS; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(key + i), q = *reinterpret_cast<const float4*>(query + i);
            by_key = __fmaf_rn(k.x, state[i], by_key), by_key = __fmaf_rn(k.y, state[i + 1], by_key), by_key = __fmaf_rn(k.z, state[i + 2], by_key), by_key = __fmaf_rn(k.w, state[i + 3], by_key);
            by_query = __fmaf_rn(q.x, state[i], by_query), by_query = __fmaf_rn(q.y, state[i + 1], by_query), by_query = __fmaf_rn(q.z, state[i + 2], by_query), by_query = __fmaf_rn(q.w, state[i + 3], by_query);
        }
        total = chain ? make_float2(__fadd_rn(total.x, by_key), __fadd_rn(total.y, by_query)) : make_float2(by_key, by_query);
    }
    return total;
}

// u and the outputs of a batch: entries are added in order, old and new alike. What is past the last token is never looked at.
__device__ __forceinline__ void run_tokens(Memory& m, const float (&state)[R], const Batch& b) {
    const int c = threadIdx.x;
    float sum[BATCH], out[BATCH];
#pragma unroll 1
    for (int i = 0; i < b.live; i++) {
        const float2 both = products(state, m.k[b.at + i], m.q[i]);
        m.sums[i][0][c] = m.decay[i] * both.x, m.sums[i][1][c] = m.decay[i] * both.y;
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) sum[i] = m.sums[i][0][c], out[i] = m.sums[i][1][c];
#pragma unroll 1
    for (int s = 0; s < b.at; s++) {
        const float u = m.u[s][c];
        const float4 k = *reinterpret_cast<const float4*>(m.by_key[s]), q = *reinterpret_cast<const float4*>(m.by_query[s]);
        sum[0] = __fmaf_rn(k.x, u, sum[0]), sum[1] = __fmaf_rn(k.y, u, sum[1]), sum[2] = __fmaf_rn(k.z, u, sum[2]), sum[3] = __fmaf_rn(k.w, u, sum[3]);
        out[0] = __fmaf_rn(q.x, u, out[0]), out[1] = __fmaf_rn(q.y, u, out[1]), out[2] = __fmaf_rn(q.z, u, out[2]), out[3] = __fmaf_rn(q.w, u, out[3]);
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        if (i >= b.live) break;
        const float u = m.beta[b.at + i] * (m.v[i][c] - sum[i]);
        m.u[b.at + i][c] = u;
#pragma unroll
        for (int j = i; j < BATCH; j++) {
            if (j > i) sum[j] = __fmaf_rn(m.by_key[b.at + i][j], u, sum[j]);
            out[j] = __fmaf_rn(m.by_query[b.at + i][j], u, out[j]);
        }
        m.v[i][c] = out[i];
    }
}

// The gated norm of outputs, a warp per token.
__device__ __forceinline__ void finish(const Memory& m, const Place& p, const Span& span, const Batch& b) {
    const int i = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (i >= b.live) return;
    const float4 x = *reinterpret_cast<const float4*>(&m.v[i][c]), gate = *reinterpret_cast<const float4*>(&m.gate[i][c]);
    const float factor = 1.0f / sqrtf(warp_sum(add_squares(x, 0)) / static_cast<float>(C) + p.a.eps);
    const float4 y = each(scaled(x, factor, *reinterpret_cast<const float4*>(&m.norm[c])), gate, [](float x, float g) { return x * silu(g); });
    const int token = span.token + b.first + i, column = p.head * C + c;
    store_four(row_of(p.a.out, token), column, p.a.out.columns, y);
    store_rounded(p.a.rounded, token, column, y);
}

// The entries of a chunk's tokens that no stored state contains.
__device__ __forceinline__ void leave(const Memory& m, const Place& p, const Span& span) {
    const StateView& s = p.a.states;
    const int c = threadIdx.x;
#pragma unroll 1
    for (int e = max(max(p.row.start, p.row.state_end) - span.base, span.entries); e < span.entries + span.tokens; e++) {
        const int place = (span.base + e) % s.entries;
        const size_t of_head = (static_cast<size_t>(p.row.slot) * s.heads + p.head) * s.entries + place;
        s.values[of_head * C + c] = m.u[e][c];
        if (c == 0) s.decays[of_head] = m.g[e];
        if (p.leads()) s.keys[((static_cast<size_t>(p.row.slot) * s.groups + p.group()) * s.entries + place) * R + c] = m.k[e][c];
    }
}

// A full chunk goes into the state.
__device__ __forceinline__ void fold(float (&state)[R], const Memory& m) {
#pragma unroll
    for (int i = 0; i < R; i++) state[i] *= m.fold_decay[0];
#pragma unroll 1
    for (int s = 0; s < CHUNK; s++) {
        const float u = m.fold_decay[s + 1] * m.u[s][threadIdx.x];
#pragma unroll
        for (int i = 0; i < R; i += 4) {
            const float4 k = *reinterpret_cast<const float4*>(&m.k[s][i]);
            state[i] = __fmaf_rn(k.x, u, state[i]), state[i + 1] = __fmaf_rn(k.y, u, state[i + 1]), state[i + 2] = __fmaf_rn(k.z, u, state[i + 2]), state[i + 3] = __fmaf_rn(k.w, u, state[i + 3]);
        }
    }
}

__device__ __forceinline__ void mix_row(Memory& m, const Place& p) {
    const StateView& s = p.a.states;
    const StateRow& row = p.row;
    // This thread's column of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + (static_cast<size_t>(index) * s.heads + p.head) * R * C + threadIdx.x; };
    float state[R];
    auto store = [&](float* to) {
        int stride = C;
        asm volatile("" : "+r"(stride)); // computes places anew rather than keep them in registers all the time
#pragma unroll
        for (int i = 0; i < R; i++) to[i * stride] = state[i];
    };
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        const Span span(row, base);
        fetch_chunk(m, p, span);
        if (span.tokens > 0) fetch_batch(m, p, span, Batch(span, 0));
        copies_commit();
        weigh_tokens(m, p, span);
        if (base == row.state_at) {
            const float* from = row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot);
#pragma unroll
            for (int i = 0; i < R; i++) state[i] = base > 0 ? __ldcs(from + i * C) : 0;
        }
        copies_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < span.tokens; first += BATCH) {
            const Batch b(span, first);
            if (first > 0) fetch_batch(m, p, span, b), copies_commit(), copies_wait<0>(), __syncthreads();
            convolve(m, p, b);
            leave_inputs(m, p, span, b);
            __syncthreads();
            relate(m, b);
            __syncthreads();
            weigh(m, b);
            __syncthreads();
            run_tokens(m, state, b);
            __syncthreads();
            finish(m, p, span, b);
            __syncthreads(); // done with the batch
        }
        leave(m, p, span);
        if (row.restore >= 0 && base == row.state_at && row.state_end == row.state_at) store(place(s.matrices, row.slot));
        if (folds(row, base)) {
            if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(m.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
            __syncthreads();
            fold(state, m);
            if (base + CHUNK == row.snapshot_at) store(place(s.saved_matrices, row.snapshot));
            if (base + CHUNK == row.state_end) store(place(s.matrices, row.slot));
        }
        __syncthreads(); // done with the chunk
    }
    if (row.snapshot_at > 0) save_inputs(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) mix_delta(const __grid_constant__ MixArgs a) {
    extern __shared__ __align__(16) char memory[];
    __shared__ StateRow row; // read again where it is needed, rather than kept in registers
    __shared__ bool there;
    enter();
#pragma unroll 1
    for (int item = blockIdx.x; item < request_rows(a.tables) * static_cast<int>(a.states.heads); item += gridDim.x) {
        if (threadIdx.x == 0) {
            there = state_row(a.states, a.tables, item / a.states.heads, live_rows(a.out), row, a.fault);
            // A window's entries and inputs have places of their own in the rings.
            if (there && (!row.is_short(a.states) || row.tokens + TAPS - 1 > static_cast<int>(a.states.conv_inputs))) there = false, report(a.fault, RecordHeader::BAD_SLOT);
        }
        __syncthreads();
        const int head = item % a.states.heads;
        if (there) mix_row(*reinterpret_cast<Memory*>(memory), Place{a, row, head});
        __syncthreads(); // done with the row
    }
}
