// A Gated DeltaNet layer between its two products, for steps of few requests: what `mix_keys.cu` and `mix.cu` do in two kernels for many, in one, by the same operations in the same order.
//
// A thread block per request and head, of sixteen warps. Where states are few, nothing but latency counts: what the kernel reads is asked for at once, weights and what earlier steps left before the wait, and nothing goes through
// memory in between. Heads of a group each make its keys and queries; the first of them leaves them for later steps. The state is in registers: a warp has two chains
// of sixteen columns.
#include "mix.cuh"

constexpr int WARPS = 16, THREADS = WARPS * 32;
constexpr int KINDS = 3, MAKERS = WARPS / KINDS; // of vectors: query, key, value; tokens whose vectors are made at a time
constexpr int OWN = CHAINS * (C / 16) / WARPS; // chains of a warp, of sixteen columns
constexpr int ROOM = R + 8, SUMS = C + 4;    // of a vector, and of sums: so that lanes that read or write at a time meet no bank twice
static_assert(OWN * WARPS == CHAINS * (C / 16) && WARPS == CHUNK && R == C);

struct alignas(16) Memory {
    float k[CHUNK][ROOM], u[CHUNK][ROOM]; // of entries, then of tokens
    float q[CHUNK][ROOM];                 // of tokens
    float v[CHUNK][C];                    // of tokens, then their outputs
    float part[CHAINS][2 * BATCH][SUMS];                // products of a batch with keys, then with queries
    float dots[BATCH][2][CHUNK];                        // of a batch, by token, of its key and its query, by entry
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // those times the decay in between, by entry, then token
    float g[CHUNK], beta[CHUNK], decay[BATCH], fold_decay[CHUNK + 4];
};
static_assert(sizeof(Memory) == 52448); // what `src/ops/mix.rs` asks for

// This warp's part of the state: its chains, from the first on.
using Tile = StateTile<1>;
struct State {
    Tile tiles[OWN];
    static __device__ __forceinline__ int chain(int own) { return threadIdx.x / 32 % (CHAINS / OWN) * OWN + own; }
    static __device__ __forceinline__ int row(int own) { return chain(own) * STATE_TILE_ROWS; }
    static __device__ __forceinline__ int column() { return threadIdx.x / 32 / (CHAINS / OWN) * 16; }
};

// Which two threads have a column's sums: sixteen lanes apart.
struct Pair {
    static __device__ __forceinline__ int column() { return threadIdx.x / 32 * 16 + threadIdx.x % 16; }
    static __device__ __forceinline__ bool has_key() { return threadIdx.x % 32 < 16; }
    static __device__ __forceinline__ int lane_of_key() { return threadIdx.x % 16; }
};

// Whose work a thread block is at. In shared memory: registers are few.
struct Place {
    StateRow row;
    int head, group;
    bool leads, there;
};

// What a warp makes: one kind of vector, lane i every 32nd channel of it from `first` on.
struct Maker {
    int kind, first;
    __device__ __forceinline__ Maker(const MixArgs& a, const Place& p) {
        kind = threadIdx.x / 32 % KINDS;
        first = (kind == 0 ? a.queries + p.group * R : kind == 1 ? a.keys + p.group * R : a.values + p.head * C) + threadIdx.x % 32;
    }
    __device__ __forceinline__ const float* taps(const MixArgs& a, int j) const { return a.taps + static_cast<size_t>(first + j * 32) * TAPS; }
};

__device__ __forceinline__ float* place_of_state(const MixArgs& a, const Place& p, float* matrices, int index) {
    return matrices + (static_cast<size_t>(index) * a.states.heads + p.head) * R * C + State::column();
}
// What is before a sequence is zero.
__device__ __forceinline__ void load_state(State& state, const MixArgs& a, const Place& p) {
    if (p.row.state_at == 0) return;
    const float* from = p.row.restore >= 0 ? place_of_state(a, p, a.states.saved_matrices, p.row.restore) : place_of_state(a, p, a.states.matrices, p.row.slot);
#pragma unroll
    for (int own = 0; own < OWN; own++) state.tiles[own].load(from + State::row(own) * C, C);
}
__device__ __forceinline__ void store_state(const State& state, float* to) {
#pragma unroll
    for (int own = 0; own < OWN; own++) state.tiles[own].store(to + State::row(own) * C, C);
}
// Asks for what earlier steps left of a chunk, a warp per entry.
__device__ __forceinline__ void fetch_chunk(Memory& m, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int at = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (at < span.entries) {
        const size_t place = ring_of_head(s, p.row, p.head, span.base + at);
        copy_async(&m.k[at][c], ring_key(s, p.row, p.group, span.base + at) + c);
        copy_async(&m.u[at][c], s.values + place * C + c);
        if (c == 0) copy_async_word(&m.g[at], s.decays + place);
    }
    copies_commit();
}

// One vector of a token. Its input stays for later steps, and with the row's first token those of a snapshot that it starts from.
__device__ __forceinline__ void make_vector(Memory& m, const MixArgs& a, const Place& p, const Maker& maker, const Span& span, int t) {
    const StateView& s = a.states;
    const int position = span.base + span.entries + t, room = s.conv_inputs;
    float input[TAPS][R / 32], x[R / 32];
#pragma unroll
    for (int i = 0; i < TAPS; i++) load_input<false>(input[i], a, p.row, position + i - (TAPS - 1), maker.first);
#pragma unroll
    for (int j = 0; j < R / 32; j++) {
        float sum = a.bias ? a.bias[maker.first + j * 32] : 0;
        const float4 taps = *reinterpret_cast<const float4*>(maker.taps(a, j));
        sum = fmaf(taps.x, input[0][j], sum), sum = fmaf(taps.y, input[1][j], sum), sum = fmaf(taps.z, input[2][j], sum), sum = fmaf(taps.w, input[3][j], sum);
        x[j] = silu(sum);
    }
    if (maker.kind < 2) to_unit_length(x, maker.kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
    store_vector(x, maker.kind == 0 ? m.q[t] : maker.kind == 1 ? m.k[span.entries + t] : m.v[t], R);
    if (maker.kind < 2 && !p.leads) return;
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const int at = position + i - (TAPS - 1);
        if (i < TAPS - 1 && (position > p.row.start || p.row.restore < 0 || at < 0)) continue;
        float* to = s.inputs + (static_cast<size_t>(p.row.slot) * room + at % room) * s.conv_channels + maker.first;
#pragma unroll
        for (int j = 0; j < R / 32; j++) to[j * 32] = input[i][j];
    }
}
// The inputs of a snapshot: those of this head, and by the first of a group those of its keys and queries.
__device__ __forceinline__ void save_inputs(const MixArgs& a, const Place& p, const Maker& maker) {
    const StateView& s = a.states;
    const int before = TAPS - 1, place = threadIdx.x / 32 / KINDS;
    if (place >= before || (maker.kind < 2 && !p.leads)) return;
#pragma unroll
    for (int j = 0; j < R / 32; j++) {
        const int channel = maker.first + j * 32;
        s.saved_inputs[(static_cast<size_t>(p.row.snapshot) * before + place) * s.conv_channels + channel] = seen(a.x, s, p.row, p.row.snapshot_at - before + place, channel);
    }
}

// Dots of a batch's keys and queries with the keys of the chunk: a warp per entry.
__device__ __forceinline__ void relate(Memory& m, const Span& span, int first, int live) {
    const int entry = threadIdx.x / 32;
    float key[R / 32], k[R / 32], q[R / 32];
    load_vector(key, m.k[entry], R);
#pragma unroll 1
    for (int t = 0; t < live; t++) {
        const int at = span.entries + first + t;
        if (entry > at) continue;
        load_vector(k, m.k[at], R), load_vector(q, m.q[first + t], R);
        const float by_key = dot(key, k), by_query = dot(key, q);
        if (threadIdx.x % 32 == 0) m.dots[t][0][entry] = by_key, m.dots[t][1][entry] = by_query;
    }
}
// Chains of S'k and of S'q, of a batch's tokens from `first` on.
__device__ __forceinline__ void products(Memory& m, const State& state, const Span& span, int first, int live) {
    const int token = first + min(Tile::g() % BATCH, live - 1);
    const float* vector = Tile::g() < BATCH ? m.k[span.entries + token] : m.q[token];
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        SplitSums sums[1][1];
        state.tiles[own].multiply(sums, vector + State::row(own));
#pragma unroll
        for (int e = 0; e < 2; e++) Tile::write(&m.part[State::chain(own)][2 * Tile::t() + e][State::column() + Tile::column()], sums[0], e);
    }
}
// u of a batch, and its outputs.
__device__ __forceinline__ void run_tokens(Memory& m, int at, int first, int live) {
    const int c = Pair::column(), kind = Pair::has_key() ? 0 : BATCH;
    float sum[BATCH];
#pragma unroll
    for (int t = 0; t < BATCH; t++) { // what is past the last token is never looked at
        float total = m.part[0][kind + t][c];
#pragma unroll
        for (int chain = 1; chain < CHAINS; chain++) total = __fadd_rn(total, m.part[chain][kind + t][c]);
        sum[t] = m.decay[t] * total;
    }
    add_entries<Pair>(sum, Pair::has_key() ? m.by_key : m.by_query, m.u, m.v + first, m.beta + at, at, live);
}

// The entries of a chunk's tokens that no stored state contains, a warp per entry.
__device__ __forceinline__ void leave(const Memory& m, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int e = threadIdx.x / 32;
    if (e < first_left(p.row, span) || e >= span.entries + span.tokens) return;
    float* key = p.leads ? ring_key(s, p.row, p.group, span.base + e) : nullptr;
    leave_entry(s, ring_of_head(s, p.row, p.head, span.base + e), m.u[e], m.g[e], key, *reinterpret_cast<const float4*>(&m.k[e][threadIdx.x % 32 * 4]));
}

// Behind a chunk: the state is kept as it is, taken further, or both.
__device__ __forceinline__ void move_state(State& state, Memory& m, const MixArgs& a, const Place& p, int base) {
    const StateRow& row = p.row;
    if (row.restore >= 0 && base == row.state_at && row.state_end == row.state_at) store_state(state, place_of_state(a, p, a.states.matrices, row.slot));
    if (!folds(row, base)) return;
    if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(m.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
    __syncthreads();
#pragma unroll
    for (int own = 0; own < OWN; own++) {
        Tile& tile = state.tiles[own];
        auto keep = [&](float* matrices, int index) { tile.store(place_of_state(a, p, matrices, index) + State::row(own) * C, C); };
        Tile::Keys keys;
        keys.load(&m.k[0][State::row(own)], ROOM);
        tile.fold(m.fold_decay[0], &m.u[0][State::column()], ROOM, [&](int entry) { return m.fold_decay[entry + 1]; }, keys);
        if (base + CHUNK == row.snapshot_at) keep(a.states.saved_matrices, row.snapshot);
        if (base + CHUNK == row.state_end) keep(a.states.matrices, row.slot);
        __syncthreads(); // one after the other: registers are few; done with the chunk
    }
}

__device__ __forceinline__ void run_batch(Memory& m, const State& state, const MixArgs& a, const Place& p, const Span& span, int first) {
    const int live = min(BATCH, span.tokens - first), at = span.entries + first, t = threadIdx.x / 32, token = span.token + first + t;
    float4 gate = make_float4(0, 0, 0, 0), norm = gate;
    if (t < live) {
        const int c = threadIdx.x % 32 * 4;
        gate = *reinterpret_cast<const float4*>(row_of(a.gate, token) + p.head * C + c);
        norm = *reinterpret_cast<const float4*>(a.norm + c);
    }
    relate(m, span, first, live);
    products(m, state, span, first, live);
    __syncthreads();
    weigh({m.by_key, m.by_query, m.decay}, m.dots, m.g, at, live);
    __syncthreads();
    if (threadIdx.x < 2 * C) run_tokens(m, at, first, live);
    __syncthreads();
    if (t < live) finish_token(a, token, p.head, m.v[first + t], gate, norm);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) mix_few(const __grid_constant__ MixArgs a) {
    extern __shared__ __align__(16) char memory[];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    release_dependents();
    __shared__ Place p;
    const StateRow& row = p.row;
    if (threadIdx.x == 0) p.head = blockIdx.x, p.group = group_of(a, blockIdx.x), p.leads = leads(a, blockIdx.x);
    __syncthreads();
    const Maker maker(a, p);
    for (int j = 0; j < R / 32; j++) prefetch(maker.taps(a, j));
    prefetch(a.norm + threadIdx.x % 32 * 4), prefetch(a.dt_bias + p.head), prefetch(a.decay + p.head);
    if (threadIdx.x == 0) p.there = state_row(a.states, a.tables, blockIdx.y, live_rows(a.out), p.row, a.fault);
    __syncthreads();
    if (!p.there) return depend();
    // A window's entries and inputs have places of their own in the rings.
    if (!row.is_short(a.states) || row.tokens > 1 + MAX_DRAFTS || row.tokens + TAPS - 1 > static_cast<int>(a.states.conv_inputs)) {
        report(a.fault, RecordHeader::BAD_SLOT);
        return depend();
    }
    State state;
    load_state(state, a, p);
    fetch_chunk(m, a, p, Span(row, row.state_at));
    prefetch_inputs(a, row, row.start + threadIdx.x / 32 / KINDS, maker.first - threadIdx.x % 32);
    depend();
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        const Span span(row, base);
        const int warp = threadIdx.x / 32;
        if (base > row.state_at) fetch_chunk(m, a, p, span);
#pragma unroll 1
        for (int t = warp / KINDS; t < span.tokens && warp < MAKERS * KINDS; t += MAKERS) make_vector(m, a, p, maker, span, t);
        if (const int t = THREADS - 1 - threadIdx.x; t < span.tokens) {
            const float2 factor = factors<true>(a, span.token + t, p.head);
            m.g[span.entries + t] = factor.x, m.beta[span.entries + t] = factor.y;
        }
        copies_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int first = 0; first < span.tokens; first += BATCH) {
            run_batch(m, state, a, p, span, first);
            if (first + BATCH < span.tokens) __syncthreads(); // done with the batch
        }
        leave(m, a, p, span);
        move_state(state, m, a, p, base);
    }
    if (row.snapshot_at > 0) save_inputs(a, p, maker);
}
