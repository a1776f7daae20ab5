// States of 128 rows where a request may have many tokens: the middle one of the three kernels of `recurrence.cuh`, with the arithmetic of `scan.cu` to the last bit.
//
// A team of eight warps takes a head's 32 columns of a request, then others. Where there is room for two teams on a multiprocessor, they are one thread block: a second one has work only
// when every multiprocessor has some, which the hardware would not see to. Four warps hold the state in registers and do nothing but multiply and fold; four others fetch the next chunk, weigh dots, solve for u and write outputs meanwhile. So the way through a chunk is S'k, fold; u is solved for while S'q is computed.
//
//   state warps   S'k      S'q               fold                    S'k of the next chunk
//   other warps   weigh    sum S'k, solve    sum S'q, write outputs, fetch
//
// Two state warps share 16 columns: both hold all their rows, a lane a chain of 16 rows and four columns, so that what is read of a key serves 16 FMA. In products each has eight
// tokens; in the fold each has half of the rows of every chain, which it hands to the other through shared memory. Places in a chunk are positions behind its first one: entries,
// then tokens; what is computed for places that have no token is never looked at.
#include "recurrence.cuh"

constexpr int R = 128, C = 32, CHAINS = 8, CHAIN = R / CHAINS, HALF = 128;
// Teams of a thread block; `src/ops/recurrence.rs` has the same.
constexpr int TEAMS = __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000 ? 2 : 1;
__device__ __forceinline__ int team() { return threadIdx.x / (2 * HALF); }
__device__ __forceinline__ int member() { return threadIdx.x % (2 * HALF); }

struct alignas(16) Chunk {
    float k[CHUNK][R]; // rows in the order of `unit_place`
    float q[CHUNK][R];
    float v[CHUNK][C];                  // u of entries
    float dots[CHUNK][2][CHUNK];        // by place, of its key and its query, by entry; the latter then times the decay in between
    float key_weight[CHUNK][CHUNK];     // dots of keys times the decay in between, by entry, then place
    float g[CHUNK], beta[CHUNK];
    float decay[CHUNK];                 // from the grid position to a place
    float rest[CHUNK];                  // from a place to the end of the chunk
};
// Sums of one chain, by place and column; chains lie so that two of them meet no bank twice.
struct Products {
    float of[CHAINS][CHUNK * C + 16];
};
// What one part announces to the other, every thread of it, once per chunk: that a chunk is there; that products with keys, with queries are there; that u is; that
// products with queries have been read; that the state is done with a chunk; what each of three warps announces to those behind it, its u; and what each of the four warps
// with a state announces to the other one of its pair, the rows that it has folded.
enum Announcement { FETCHED, KEYS, QUERIES, VALUES, READ, DONE, SOLVED, FOLDED = SOLVED + 3, ANNOUNCEMENTS = FOLDED + 4 };
struct alignas(16) Memory {
    Chunk chunk[2];
    Products by_key, by_query;
    float4 shared_rows[2][CHAIN][32];
    float u[CHUNK][C], folded_u[CHUNK][C]; // the latter times the decay to the end of the chunk
    uint64_t announced[ANNOUNCEMENTS]; // barriers
    // The work at hand, read again where it is needed rather than kept in registers.
    StateRow row;
    int item; // the next
    int head, part;
    int turn; // of the row's chunk at position 0, see `turn_of`
    int turns; // of rows so far
    bool there, more;
};
static_assert(sizeof(Memory) == 97968); // `src/ops/recurrence.rs` asks for it, for every team

// Of a team, one thread of which may come later than the rest of its warp, and of its warps without a state.
__device__ __forceinline__ void team_meets() {
    __syncwarp();
    meet(1 + team(), 2 * HALF);
}
__device__ __forceinline__ void others_meet() { meet(1 + TEAMS + team(), HALF); }
__device__ __forceinline__ int again(const int& x) { return *static_cast<const volatile int*>(&x); }
// Chunks of a team have turns: that of a row's chunk. Read again where it is needed, rather than kept in a register.
__device__ __forceinline__ int turn_of(const Memory& m, int base) { return base / CHUNK + again(m.turn); }
__device__ __forceinline__ void announce(Memory& m, int what) { barrier_arrive(shared_address(&m.announced[what])); }
__device__ __forceinline__ void await(Memory& m, int what, int turn) { barrier_wait(shared_address(&m.announced[what]), turn & 1); }
// Where a row's four numbers from `4 * unit` on are: those that the eight chains read at a time are in different banks.
__device__ __forceinline__ int unit_place(int unit) { return (unit ^ unit >> 3) * 4; }
__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

// --- warps that hold the state
struct Lane {
    int half, side, chain, column; // of 16 columns; of tokens and of rows; the first of four columns
    int unit[CHAIN / 4];           // where the chain's rows are in a vector
    __device__ __forceinline__ Lane() {
        const int warp = member() / 32, lane = threadIdx.x % 32;
        half = warp / 2, side = warp % 2;
        // Lanes that read the same of a key are two apart, those that read the same of u one: the memory serves such pairs at once.
        chain = (lane & 1) | (lane >> 2 & 6), column = half * 16 + (lane >> 1 & 3) * 4;
#pragma unroll
        for (int i = 0; i < CHAIN / 4; i++) unit[i] = unit_place(chain * (CHAIN / 4) + i);
    }
};

// Products of the state with the vectors of this warp's eight places: this lane's chain.
__device__ __forceinline__ void multiply(const float (&state)[CHAIN][4], const float (*vectors)[R], Products& to, const Lane& lane, const Span& span) {
    if (span.entries >= lane.side * 8 + 8 || span.entries + span.tokens <= lane.side * 8) return; // no token among them
#pragma unroll
    for (int four = 0; four < 8; four += 4) {
        const int first = lane.side * 8 + four;
        float sum[4][4] = {};
#pragma unroll
        for (int i = 0; i < CHAIN; i += 4)
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float4 x = load4(&vectors[first + t][lane.unit[i / 4]]);
                const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) sum[t][c] = __fmaf_rn(xs[j], state[i + j][c], sum[t][c]);
            }
#pragma unroll
        for (int t = 0; t < 4; t++) store4(&to.of[lane.chain][(first + t) * C + lane.column], make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]));
    }
}

// A full chunk goes into the state: this warp's rows of every chain.
template <int Side> __device__ __forceinline__ void fold(float (&state)[CHAIN][4], const Memory& m, const Chunk& chunk, const Lane& lane) {
    constexpr int From = Side * CHAIN / 2;
    const float decay = chunk.decay[CHUNK - 1];
#pragma unroll
    for (int i = From; i < From + CHAIN / 2; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) state[i][c] *= decay;
#pragma unroll 8
    for (int s = 0; s < CHUNK; s++) {
        const float4 u = load4(&m.folded_u[s][lane.column]);
#pragma unroll
        for (int i = From; i < From + CHAIN / 2; i += 4) {
            const float4 k = load4(&chunk.k[s][lane.unit[i / 4]]);
            const float ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                state[i + j][0] = __fmaf_rn(ks[j], u.x, state[i + j][0]), state[i + j][1] = __fmaf_rn(ks[j], u.y, state[i + j][1]);
                state[i + j][2] = __fmaf_rn(ks[j], u.z, state[i + j][2]), state[i + j][3] = __fmaf_rn(ks[j], u.w, state[i + j][3]);
            }
        }
    }
}
// Each warp of a pair leaves the rows that it has folded, and takes those of the other.
template <int Side> __device__ __forceinline__ void leave_rows(const float (&state)[CHAIN][4], Memory& m, const Lane& lane) {
    constexpr int Own = Side * CHAIN / 2;
#pragma unroll
    for (int i = Own; i < Own + CHAIN / 2; i++) m.shared_rows[lane.half][i][threadIdx.x % 32] = make_float4(state[i][0], state[i][1], state[i][2], state[i][3]);
}
template <int Side> __device__ __forceinline__ void take_rows(float (&state)[CHAIN][4], const Memory& m, const Lane& lane) {
    constexpr int Other = CHAIN / 2 - Side * CHAIN / 2;
#pragma unroll
    for (int i = Other; i < Other + CHAIN / 2; i++) {
        const float4 x = m.shared_rows[lane.half][i][threadIdx.x % 32];
        state[i][0] = x.x, state[i][1] = x.y, state[i][2] = x.z, state[i][3] = x.w;
    }
}
// This warp's rows of the state of a slot or a snapshot.
template <int Side> __device__ __forceinline__ void store(const float (&state)[CHAIN][4], float* to, int columns) {
    asm volatile("" : "+r"(columns)); // computes places anew rather than keep them in registers all the time
#pragma unroll
    for (int i = Side * CHAIN / 2; i < (Side + 1) * CHAIN / 2; i++) store4(to + i * columns, make_float4(state[i][0], state[i][1], state[i][2], state[i][3]));
}

template <bool Delta> __device__ __forceinline__ void hold_state(const RecurArgs& a, Memory& m, const StateRow& row) {
    const StateView& s = a.states;
    const Lane lane;
    const int columns = s.columns;
    // This lane's part of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + ((static_cast<size_t>(index) * s.heads + again(m.head)) * R + lane.chain * CHAIN) * columns + again(m.part) * C + lane.column; };
    auto keep = [&](const float (&state)[CHAIN][4], float* to) { lane.side ? store<1>(state, to, columns) : store<0>(state, to, columns); };
    float state[CHAIN][4] = {};
    if (row.state_at > 0) {
        const float* from = row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot);
#pragma unroll
        for (int i = 0; i < CHAIN; i++) {
            const float4 x = load4(from + i * columns);
            state[i][0] = x.x, state[i][1] = x.y, state[i][2] = x.z, state[i][3] = x.w;
        }
    }
    if (row.restore >= 0 && row.state_end == row.state_at) keep(state, place(s.matrices, row.slot));
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        const Chunk& chunk = m.chunk[turn_of(m, base) & 1];
        const Span span(row, base);
        await(m, FETCHED, turn_of(m, base));
        if constexpr (Delta) {
            multiply(state, chunk.k, m.by_key, lane, span);
            announce(m, KEYS);
        }
        await(m, READ, turn_of(m, base) - 1);
        multiply(state, chunk.q, m.by_query, lane, span);
        announce(m, QUERIES);
        await(m, VALUES, turn_of(m, base));
        const bool folded = folds(row, base);
        if (folded) lane.side ? (fold<1>(state, m, chunk, lane), leave_rows<1>(state, m, lane)) : (fold<0>(state, m, chunk, lane), leave_rows<0>(state, m, lane));
        announce(m, FOLDED + lane.half * 2 + lane.side); // of every chunk, so that turns count them
        await(m, FOLDED + lane.half * 2 + !lane.side, turn_of(m, base));
        if (folded) {
            lane.side ? take_rows<1>(state, m, lane) : take_rows<0>(state, m, lane);
            if (base + CHUNK == row.snapshot_at) keep(state, place(s.saved_matrices, row.snapshot));
            if (base + CHUNK == row.state_end) keep(state, place(s.matrices, row.slot));
        }
        announce(m, DONE);
    }
}

// --- the other warps
// What tokens before this step left of a chunk.
__device__ __forceinline__ void fetch_entries(const RecurArgs& a, Chunk& chunk, const StateRow& row, const Span& span, int thread, int head, int group, int part) {
    const StateView& s = a.states;
#pragma unroll 1
    for (int i = thread; i < span.entries * (R / 4); i += HALF) copy_async(&chunk.k[i / (R / 4)][unit_place(i % (R / 4))], ring_key(s, row, group, span.base + i / (R / 4)) + i % (R / 4) * 4);
    const int at = thread / 8, piece = thread % 8 * 4;
    if (at < span.entries) copy_async(&chunk.v[at][piece], s.values + ring_of_head(s, row, head, span.base + at) * s.columns + part * C + piece);
    if (thread < span.entries) copy_async_word(&chunk.g[thread], s.decays + ring_of_head(s, row, head, span.base + thread));
}
template <bool Delta> __device__ __forceinline__ void fetch(const RecurArgs& a, Chunk& chunk, const StateRow& row, const Span& span, int thread, int head, int group, int part) {
    const StateView& s = a.states;
    const int warp = thread / 32, lane = thread % 32, end = span.entries + span.tokens, first = span.token - span.entries;
    if (span.entries > 0) fetch_entries(a, chunk, row, span, thread, head, group, part);
    // A warp has a vector, a lane four numbers of it.
    const size_t stride = Delta ? s.groups * R : a.keys.stride, query_stride = Delta ? s.groups * R : a.queries.stride;
    const float* key = (Delta ? a.unit_keys : a.keys.data) + (first + warp) * static_cast<ptrdiff_t>(stride) + group * R + lane * 4;
    const float* query = (Delta ? a.unit_queries : a.queries.data) + (first + warp) * static_cast<ptrdiff_t>(query_stride) + group * R + lane * 4;
    const int to = unit_place(lane);
#pragma unroll
    for (int i = 0; i < CHUNK; i += HALF / 32, key += HALF / 32 * stride, query += HALF / 32 * query_stride) {
        const int at = i + warp;
        if (at >= span.entries && at < end) copy_async(&chunk.k[at][to], key), copy_async(&chunk.q[at][to], query);
    }
    // Eight threads have the values and dots of a place.
    const int at = thread / 8, piece = thread % 8 * 4;
    if (at >= span.entries && at < end) {
        copy_async(&chunk.v[at][piece], row_of(a.values, first + at) + head * s.columns + part * C + piece);
        copy_async(&chunk.dots[at][0][piece], a.dots + (static_cast<size_t>(first + at) * s.groups + group) * 2 * CHUNK + piece);
    }
    if (thread >= span.entries && thread < end) {
        const float* factors = a.factors + (static_cast<size_t>(first + thread) * s.heads + head) * 2;
        copy_async_word(&chunk.g[thread], factors), copy_async_word(&chunk.beta[thread], factors + 1);
    }
    copies_commit();
}

// Dots times the decay in between, a thread per place and two entries; decays from the grid position and to the end of the chunk. Sums run from the place downwards, so that each is
// one step of the next.
template <bool Delta> __device__ __forceinline__ void weigh(Chunk& chunk, int thread) {
    const int at = thread / 8, s = thread % 8 * 2;
    float g[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; i += 4) {
        const float4 x = load4(&chunk.g[i]);
        g[i] = x.x, g[i + 1] = x.y, g[i + 2] = x.z, g[i + 3] = x.w;
    }
    float d = 0;
#pragma unroll
    for (int r = CHUNK - 1; r >= 2; r--)
        if (r <= at && r > s + 1) d = d + g[r];
    const float second = expf(d);
    if (s + 1 <= at) d = d + chunk.g[s + 1];
    const float first = expf(d);
    if constexpr (Delta) {
        const float2 dots = *reinterpret_cast<const float2*>(&chunk.dots[at][0][s]);
        chunk.key_weight[s][at] = first * dots.x, chunk.key_weight[s + 1][at] = second * dots.y;
    }
    if (s <= at) chunk.dots[at][1][s] *= first;
    if (s + 1 <= at) chunk.dots[at][1][s + 1] *= second;
    if (at == CHUNK - 1) chunk.rest[s] = first, chunk.rest[s + 1] = second;
    if (s == 0) chunk.decay[at] = expf(d + g[0]);
}

// A product with the state, of one place and four columns: chains in ascending order.
__device__ __forceinline__ float4 total(const Products& products, int thread) {
    float4 sum = load4(&products.of[0][thread * 4]);
#pragma unroll
    for (int w = 1; w < CHAINS; w++) {
        const float4 x = load4(&products.of[w][thread * 4]);
        sum.x = __fadd_rn(sum.x, x.x), sum.y = __fadd_rn(sum.y, x.y), sum.z = __fadd_rn(sum.z, x.z), sum.w = __fadd_rn(sum.w, x.w);
    }
    return sum;
}
__device__ __forceinline__ float4 times(float x, float4 y) { return make_float4(x * y.x, x * y.y, x * y.z, x * y.w); }

// u of the delta rule: a warp has four places, a thread a column of them. Sums are in order of entries: those of the warps before, as soon as they are there, then the warp's own.
template <bool Entries>
__device__ __forceinline__ void solve_own(float (&u)[4], float (&sum)[4], const float (&v)[4], const float (&beta)[4], const float (&weight)[3][4], int entries) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u[i] = beta[i] * (v[i] - sum[i]);
        if (Entries && i < entries) u[i] = v[i];
#pragma unroll
        for (int j = i + 1; j < 4; j++) sum[j] = __fmaf_rn(weight[i][j], u[i], sum[j]);
    }
}
__device__ __forceinline__ void unpack(float (&to)[4], const float* from) {
    const float4 x = load4(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
__device__ __forceinline__ void solve(Memory& m, const Chunk& chunk, const Span& span, int thread, int turn) {
    const int warp = thread / 32, c = thread % 32, first = warp * 4;
    float sum[4], v[4], u[4], decay[4], beta[4], rest[4], own[3][4];
    unpack(decay, &chunk.decay[first]), unpack(beta, &chunk.beta[first]), unpack(rest, &chunk.rest[first]);
#pragma unroll
    for (int i = 0; i < 3; i++) unpack(own[i], &chunk.key_weight[first + i][first]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] = m.by_key.of[0][(first + i) * C + c];
#pragma unroll
        for (int w = 1; w < CHAINS; w++) sum[i] = __fadd_rn(sum[i], m.by_key.of[w][(first + i) * C + c]);
        sum[i] = decay[i] * sum[i], v[i] = chunk.v[first + i][c];
    }
#pragma unroll 1
    for (int before = 0; before < warp; before++) {
        float weight[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) unpack(weight[i], &chunk.key_weight[before * 4 + i][first]);
        await(m, SOLVED + before, turn);
#pragma unroll
        for (int i = 0; i < 4; i++) u[i] = m.u[before * 4 + i][c];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] = __fmaf_rn(weight[i][j], u[i], sum[j]);
    }
    if (first >= span.entries) solve_own<false>(u, sum, v, beta, own, 0);
    else solve_own<true>(u, sum, v, beta, own, span.entries - first);
#pragma unroll
    for (int i = 0; i < 4; i++) m.u[first + i][c] = u[i];
    if (warp < HALF / 32 - 1) announce(m, SOLVED + warp);
#pragma unroll
    for (int i = 0; i < 4; i++) m.folded_u[first + i][c] = rest[i] * u[i];
}

template <bool Delta> __device__ __forceinline__ void find_values(Memory& m, const Chunk& chunk, const Span& span, int thread, int turn) {
    if constexpr (Delta) {
        await(m, KEYS, turn);
        solve(m, chunk, span, thread, turn);
    } else {
        const int at = thread / 8;
        float4 u = load4(&chunk.v[0][thread * 4]);
        if (at >= span.entries) u = times(chunk.beta[at], u);
        store4(&m.u[0][thread * 4], u), store4(&m.folded_u[0][thread * 4], times(chunk.rest[at], u));
    }
    announce(m, VALUES);
}

// One place and four columns.
template <bool Delta> __device__ __forceinline__ void write_outputs(const RecurArgs& a, const Memory& m, const Chunk& chunk, const Span& span, int thread, int head, int part) {
    const int at = thread / 8, c = thread % 8 * 4;
    if (at < span.entries || at >= span.entries + span.tokens) return;
    float4 sum = times(chunk.decay[at], total(m.by_query, thread));
#pragma unroll 1
    for (int s = 0; s <= at; s += 4) {
        const float4 weight = load4(&chunk.dots[at][1][s]);
        const float weights[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 u = load4(&m.u[s + j][c]);
            if (s + j <= at) sum.x = __fmaf_rn(weights[j], u.x, sum.x), sum.y = __fmaf_rn(weights[j], u.y, sum.y), sum.z = __fmaf_rn(weights[j], u.z, sum.z), sum.w = __fmaf_rn(weights[j], u.w, sum.w);
        }
    }
    if constexpr (!Delta) {
        const float skip = a.skip[head];
        const float4 v = load4(&chunk.v[at][c]);
        sum.x = __fmaf_rn(skip, v.x, sum.x), sum.y = __fmaf_rn(skip, v.y, sum.y), sum.z = __fmaf_rn(skip, v.z, sum.z), sum.w = __fmaf_rn(skip, v.w, sum.w);
    }
    store4(row_of(a.out, span.token + at - span.entries) + head * a.states.columns + part * C + c, sum);
}

// The entries of a chunk's tokens that no stored state contains: those of short rows go into the rings, u of others to `keep`.
template <bool Delta> __device__ __forceinline__ void leave(const RecurArgs& a, const Memory& m, const Chunk& chunk, const StateRow& row, const Span& span, int thread, int head, int part) {
    const StateView& s = a.states;
    const int first = max(max(row.start, row.state_end) - span.base, span.entries), end = span.entries + span.tokens, at = thread / 8, piece = thread % 8 * 4, columns = s.columns;
    if (first >= end) return;
    const bool is_short = row.is_short(s);
    if (at >= first && at < end && (is_short || Delta)) {
        const size_t of_token = static_cast<size_t>(span.token + at - span.entries) * s.heads + head;
        float* to = is_short ? s.values + ring_of_head(s, row, head, span.base + at) * columns : a.entered + of_token * columns;
        store4(to + part * C + piece, load4(&m.u[at][piece]));
    }
    if (!is_short || part != 0) return;
    if (thread >= first && thread < end) s.decays[ring_of_head(s, row, head, span.base + thread)] = chunk.g[thread];
    if (!leads(a, head)) return;
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll 1
    for (int e = first + warp; e < end; e += HALF / 32) store4(ring_key(s, row, group_of(a, head), span.base + e) + lane * 4, load4(&chunk.k[e][unit_place(lane)]));
}

template <bool Delta> __device__ __forceinline__ void help(const RecurArgs& a, Memory& m, const StateRow& row, int head, int part) {
    const int thread = member() - HALF, group = group_of(a, head);
    int turn = turn_of(m, row.state_at);
    fetch<Delta>(a, m.chunk[turn & 1], row, Span(row, row.state_at), thread, head, group, part);
    copies_wait<0>();
    announce(m, FETCHED);
    others_meet();
    for (int base = row.state_at; base < row.end; base += CHUNK, turn++) {
        Chunk& chunk = m.chunk[turn & 1];
        const Span span(row, base);
        const bool more = base + CHUNK < row.end;
        if (more) fetch<Delta>(a, m.chunk[~turn & 1], row, Span(row, base + CHUNK), thread, head, group, part);
        weigh<Delta>(chunk, thread);
        others_meet(); // decays and weights are there
        find_values<Delta>(m, chunk, span, thread, turn);
        if (more) copies_wait<0>(), announce(m, FETCHED); // products with keys have been read, too
        others_meet();                                    // u is there
        await(m, QUERIES, turn);
        write_outputs<Delta>(a, m, chunk, span, thread, head, part);
        announce(m, READ);
        leave<Delta>(a, m, chunk, row, span, thread, head, part);
        await(m, DONE, turn);
        others_meet(); // done with the chunk, and the next one is there for all
    }
}

// A team's next item: a part of a head of a request. By one thread.
__device__ __forceinline__ void find_work(const RecurArgs& a, Memory& m) {
    const int item = m.item, parts = a.states.columns / C, states = a.states.heads * parts, request = item / states;
    m.item += TEAMS * gridDim.x;
    if (m.there) m.turns += (m.row.end - m.row.state_at + CHUNK - 1) / CHUNK;
    m.more = request < request_rows(a.tables), m.there = m.more && state_row(a.states, a.tables, request, live_rows(a.out), m.row, a.fault);
    if (!m.there) return;
    if (a.leaves == 2 && !m.row.is_short(a.states)) report(a.fault, RecordHeader::BAD_SLOT);
    m.head = item % states / parts, m.part = item % parts, m.turn = m.turns - m.row.state_at / CHUNK;
}

template <bool Delta> __device__ __forceinline__ void prompt(const RecurArgs& a) {
    extern __shared__ __align__(16) char memory[];
    Memory& m = reinterpret_cast<Memory*>(memory)[team()];
    if (member() < ANNOUNCEMENTS) barrier_init(shared_address(&m.announced[member()]), member() < SOLVED ? HALF : 32), barrier_init_fence();
    if (member() == 0) m.there = false, m.turns = 0, m.item = team() * gridDim.x + blockIdx.x;
    enter();
    while (true) {
        team_meets();
        if (member() == 0) find_work(a, m);
        team_meets();
        if (!m.more) return;
        if (!m.there) continue;
        if (member() < HALF) hold_state<Delta>(a, m, m.row);
        else help<Delta>(a, m, m.row, m.head, m.part);
    }
}

extern "C" __global__ void __launch_bounds__(2 * HALF * TEAMS, 1) prompt_delta_128(const __grid_constant__ RecurArgs a) { prompt<true>(a); }
extern "C" __global__ void __launch_bounds__(2 * HALF * TEAMS, 1) prompt_space_128(const __grid_constant__ RecurArgs a) { prompt<false>(a); }
