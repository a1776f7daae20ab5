// States of 128 rows where a request may have many tokens: the middle one of the three kernels of `recurrence.cuh`, with the arithmetic of `state_tile.cuh`.
//
// A thread block of 16 warps takes a head's 32 columns of a request, then others. Eight warps hold the state in registers, a chain of sixteen columns each, and do nothing but multiply and fold; four
// solve for u, and weigh dots while the state moves; four write outputs and fetch chunks. So the way through a chunk is S'k, u, fold, and all else is beside it.
//
//   state warps      S'k     S'q      fold               S'k of the next chunk
//   solving warps            u        weigh
//   other warps                       outputs, fetch
//
// Places in a chunk are positions behind its first one: entries, then tokens; what is computed for places that have no token is never looked at.
#include "recurrence.cuh"
#include "state_tile.cuh"

constexpr int R = 128, C = 32, CHAINS = R / STATE_TILE_ROWS;
constexpr int HOLDERS = CHAINS * (C / 16) * 32, SOLVERS = 128, OTHERS = 128, THREADS = HOLDERS + SOLVERS + OTHERS; // of a thread block
// Of a vector, of sums of one place, of values of one place: so that lanes that read or write at a time meet no bank twice.
constexpr int ROOM = R + 8, PLACE = C + 4, VALUE = C + 8;
using Tile = StateTile<1>;
// Places of chunks: outputs of one are written, one is at work or weighed, one is on its way.
constexpr int CHUNKS = 3;
struct alignas(16) Chunk {
    float k[CHUNK][ROOM];
    float q[CHUNK][ROOM];
    float v[CHUNK][C];                  // u of entries
    float dots[CHUNK][2][CHUNK];        // by place, of its key and its query, by entry; the latter then times the decay in between
    float key_weight[CHUNK][CHUNK];     // dots of keys times the decay in between, by entry, then place
    float g[CHUNK], beta[CHUNK];
    float decay[CHUNK];                 // from the grid position to a place
    float rest[CHUNK];                  // from a place to the end of the chunk
};
// What some warps announce to others, once per chunk: that a chunk is there; that products with keys are, and that the state is done with the chunk before; that products with queries are there;
// that u is; that products with queries and u have been read. Nobody may announce for a chunk what somebody still waits for of the one before: a barrier has no more than two phases. What may be
// ahead by more has a barrier per place of a chunk.
enum Announcement { FETCHED, KEYS = FETCHED + CHUNKS, QUERIES, VALUES, READ, ANNOUNCEMENTS };
struct alignas(16) Memory {
    Chunk chunk[CHUNKS];
    float by_key[CHAINS][CHUNK * PLACE], by_query[CHAINS][CHUNK * PLACE]; // products of a chain, by place and column
    float u[2][CHUNK][VALUE]; // of a chunk, and of the one before
    uint64_t announced[ANNOUNCEMENTS]; // barriers
    // The work at hand, read again where it is needed rather than kept in registers.
    StateRow row;
    int item; // the next
    int head, part;
    int turn; // of the row's chunk at position 0, see `turn_of`
    int turns; // of rows so far
    bool there, more;
};
static_assert(sizeof(Memory) == 92032); // `src/ops/recurrence.rs` asks for it

__device__ __forceinline__ int again(const int& x) { return *static_cast<const volatile int*>(&x); }
// Chunks of a thread block have turns: that of a row's chunk. Read again where it is needed, rather than kept in a register.
__device__ __forceinline__ int turn_of(const Memory& m, int base) { return base / CHUNK + again(m.turn); }
__device__ __forceinline__ Chunk& chunk_of(Memory& m, int turn) { return m.chunk[turn % CHUNKS]; }
__device__ __forceinline__ void announce(Memory& m, int what) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&m.announced[what]));
}
__device__ __forceinline__ void await(Memory& m, int what, int turn) { barrier_wait(shared_address(&m.announced[what]), turn & 1); }
__device__ __forceinline__ void announce_chunk(Memory& m, int what, int turn) { announce(m, what + turn % CHUNKS); }
__device__ __forceinline__ void await_chunk(Memory& m, int what, int turn) { await(m, what + turn % CHUNKS, turn / CHUNKS); }
__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

// --- warps that hold the state
// What a warp has of the state: a chain, and the first of sixteen columns.
__device__ __forceinline__ int own_chain() { return threadIdx.x / 32 % CHAINS; }
__device__ __forceinline__ int own_row() { return own_chain() * STATE_TILE_ROWS; }
__device__ __forceinline__ int own_column() { return threadIdx.x / 32 / CHAINS * 16; }

// Its products with the vectors of all places.
__device__ __forceinline__ void multiply(const Tile& tile, const float (*vectors)[ROOM], float (*to)[CHUNK * PLACE]) {
    SplitSums sums[2][1];
    tile.multiply(sums, &vectors[Tile::g()][own_row()], 8 * ROOM);
#pragma unroll
    for (int i = 0; i < 4; i++) Tile::write(&to[own_chain()][(i / 2 * 8 + 2 * Tile::t() + i % 2) * PLACE + own_column() + Tile::column()], sums[i / 2], i % 2);
}

template <bool Delta> __device__ __forceinline__ void hold_state(const RecurArgs& a, Memory& m, const StateRow& row) {
    const StateView& s = a.states;
    // This warp's part of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + ((static_cast<size_t>(index) * s.heads + again(m.head)) * R + own_row()) * s.columns + again(m.part) * C + own_column(); };
    Tile tile;
    if (row.state_at > 0) tile.load(row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot), s.columns);
    if (row.restore >= 0 && row.state_end == row.state_at) tile.store(place(s.matrices, row.slot), s.columns);
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        const Chunk& chunk = chunk_of(m, turn_of(m, base));
        await_chunk(m, FETCHED, turn_of(m, base));
        if constexpr (Delta) multiply(tile, chunk.k, m.by_key);
        announce(m, KEYS);
        await(m, READ, turn_of(m, base) - 1);
        multiply(tile, chunk.q, m.by_query);
        announce(m, QUERIES);
        const bool folded = folds(row, base);
        Tile::Keys keys;
        if (folded) keys.load(&chunk.k[0][own_row()], ROOM);
        await(m, VALUES, turn_of(m, base));
        if (folded) {
            tile.fold(chunk.decay[CHUNK - 1], &m.u[turn_of(m, base) & 1][0][own_column()], VALUE, [&](int entry) { return chunk.rest[entry]; }, keys);
            if (base + CHUNK == row.snapshot_at) tile.store(place(s.saved_matrices, row.snapshot), s.columns);
            if (base + CHUNK == row.state_end) tile.store(place(s.matrices, row.slot), s.columns);
        }
    }
}

// --- warps that weigh and solve for u
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

// u of a chunk: a warp has eight columns, a lane four places of one. Lanes of a column solve one after the other: a lane for its own places, then what it has found goes to those behind it. Sums are in
// order of entries.
struct Solver {
    int column, first;         // of the thread
    float weight[CHUNK][4];    // of entries, for its places
    float decay[4], beta[4], v[4];

    __device__ __forceinline__ Solver(int thread) : column(thread / 32 * 8 + thread % 8), first(thread % 32 / 8 * 4) {}
    // What is there before products are.
    __device__ __forceinline__ void load(const Chunk& chunk) {
        unpack(decay, &chunk.decay[first]), unpack(beta, &chunk.beta[first]);
#pragma unroll
        for (int s = 0; s < CHUNK; s++) unpack(weight[s], &chunk.key_weight[s][first]);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = chunk.v[first + i][column];
    }
    __device__ __forceinline__ void solve(const float (*products)[CHUNK * PLACE], float (*values)[VALUE], int entries) const {
        float sum[4], u[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float total = products[0][(first + i) * PLACE + column];
#pragma unroll
            for (int w = 1; w < CHAINS; w++) total = __fadd_rn(total, products[w][(first + i) * PLACE + column]);
            sum[i] = decay[i] * total;
        }
#pragma unroll
        for (int four = 0; four < CHUNK; four += 4) {
            // Of the lane whose places these are; what others find here is nothing.
            float own[4];
#pragma unroll
            for (int i = 0; i < 4; i++) own[i] = sum[i];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u[i] = four + i < entries ? v[i] : beta[i] * (v[i] - own[i]);
#pragma unroll
                for (int j = i + 1; j < 4; j++) own[j] = __fmaf_rn(weight[four + i][j], u[i], own[j]);
            }
            if (first == four)
#pragma unroll
                for (int i = 0; i < 4; i++) values[four + i][column] = u[i];
            if (four + 4 == CHUNK) break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float found = __shfl_sync(~0u, u[i], four / 4 * 8 + threadIdx.x % 8);
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] = __fmaf_rn(weight[four + i][j], found, sum[j]);
            }
        }
    }

  private:
    static __device__ __forceinline__ void unpack(float (&to)[4], const float* from) {
        const float4 x = load4(from);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
};
__device__ __forceinline__ void solvers_meet() { meet(1, SOLVERS); }

template <bool Delta> __device__ __forceinline__ void find_values(Memory& m, const StateRow& row) {
    const int thread = threadIdx.x - HOLDERS;
    auto prepare = [&](int turn) {
        await_chunk(m, FETCHED, turn);
        weigh<Delta>(chunk_of(m, turn), thread);
        solvers_meet();
    };
    Solver solver(thread);
    int turn = turn_of(m, row.state_at);
    prepare(turn);
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK, turn++) {
        const int entries = Span(row, base).entries;
        const Chunk& chunk = chunk_of(m, turn);
        float(*u)[VALUE] = m.u[turn & 1];
        if constexpr (Delta) solver.load(chunk);
        await(m, KEYS, turn);
        if constexpr (Delta) solver.solve(m.by_key, u, entries);
        else
            for (int at = thread; at < CHUNK * C; at += SOLVERS) u[at / C][at % C] = at / C < entries ? chunk.v[0][at] : chunk.beta[at / C] * chunk.v[0][at];
        await(m, READ, turn - 1); // whoever reads values of the chunk before has waited for them
        announce(m, VALUES);
        if (base + CHUNK < row.end) prepare(turn + 1);
    }
}

// --- warps that fetch and write outputs
// What tokens before this step left of a chunk.
__device__ __forceinline__ void fetch_entries(const RecurArgs& a, Chunk& chunk, const StateRow& row, const Span& span, int thread, int head, int group, int part) {
    const StateView& s = a.states;
#pragma unroll 1
    for (int i = thread; i < span.entries * (R / 4); i += OTHERS) copy_async(&chunk.k[i / (R / 4)][i % (R / 4) * 4], ring_key(s, row, group, span.base + i / (R / 4)) + i % (R / 4) * 4);
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
#pragma unroll
    for (int i = 0; i < CHUNK; i += OTHERS / 32, key += OTHERS / 32 * stride, query += OTHERS / 32 * query_stride) {
        const int at = i + warp;
        if (at >= span.entries && at < end) copy_async(&chunk.k[at][lane * 4], key), copy_async(&chunk.q[at][lane * 4], query);
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
}

// A product with the state, of one place and four columns: chains in ascending order.
__device__ __forceinline__ float4 total(const float (*chains)[CHUNK * PLACE], int place, int column) {
    float4 sum = load4(&chains[0][place * PLACE + column]);
#pragma unroll
    for (int w = 1; w < CHAINS; w++) {
        const float4 x = load4(&chains[w][place * PLACE + column]);
        sum.x = __fadd_rn(sum.x, x.x), sum.y = __fadd_rn(sum.y, x.y), sum.z = __fadd_rn(sum.z, x.z), sum.w = __fadd_rn(sum.w, x.w);
    }
    return sum;
}
__device__ __forceinline__ float4 times(float x, float4 y) { return make_float4(x * y.x, x * y.y, x * y.z, x * y.w); }

// One place and four columns.
template <bool Delta> __device__ __forceinline__ void write_outputs(const RecurArgs& a, const Memory& m, const Chunk& chunk, const float (*u)[VALUE], const Span& span, int thread, int head, int part) {
    const int at = thread / 8, c = thread % 8 * 4;
    if (at < span.entries || at >= span.entries + span.tokens) return;
    float4 sum = times(chunk.decay[at], total(m.by_query, at, c));
#pragma unroll 1
    for (int s = 0; s <= at; s += 4) {
        const float4 weight = load4(&chunk.dots[at][1][s]);
        const float weights[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 x = load4(&u[s + j][c]);
            if (s + j <= at) sum.x = __fmaf_rn(weights[j], x.x, sum.x), sum.y = __fmaf_rn(weights[j], x.y, sum.y), sum.z = __fmaf_rn(weights[j], x.z, sum.z), sum.w = __fmaf_rn(weights[j], x.w, sum.w);
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
template <bool Delta> __device__ __forceinline__ void leave(const RecurArgs& a, const float (*u)[VALUE], const Chunk& chunk, const StateRow& row, const Span& span, int thread, int head, int part) {
    const StateView& s = a.states;
    const int first = max(max(row.start, row.state_end) - span.base, span.entries), end = span.entries + span.tokens, at = thread / 8, piece = thread % 8 * 4, columns = s.columns;
    if (first >= end) return;
    const bool is_short = row.is_short(s);
    if (at >= first && at < end && (is_short || Delta)) {
        const size_t of_token = static_cast<size_t>(span.token + at - span.entries) * s.heads + head;
        float* to = is_short ? s.values + ring_of_head(s, row, head, span.base + at) * columns : a.entered + of_token * columns;
        store4(to + part * C + piece, load4(&u[at][piece]));
    }
    if (!is_short || part != 0) return;
    if (thread >= first && thread < end) s.decays[ring_of_head(s, row, head, span.base + thread)] = chunk.g[thread];
    if (!leads(a, head)) return;
    const int warp = thread / 32, lane = thread % 32;
#pragma unroll 1
    for (int e = first + warp; e < end; e += OTHERS / 32) store4(ring_key(s, row, group_of(a, head), span.base + e) + lane * 4, load4(&chunk.k[e][lane * 4]));
}

template <bool Delta> __device__ __forceinline__ void finish(const RecurArgs& a, Memory& m, const StateRow& row, int head, int part) {
    const int thread = threadIdx.x - HOLDERS - SOLVERS, group = group_of(a, head);
    // Of positions behind the row there is nothing to fetch.
    auto bring = [&](int base, int turn) {
        if (base < row.end) fetch<Delta>(a, chunk_of(m, turn), row, Span(row, base), thread, head, group, part);
        copies_commit();
    };
    auto take = [&](int base, int turn) {
        if (base >= row.end) return;
        copies_wait<0>();
        announce_chunk(m, FETCHED, turn);
    };
    int turn = turn_of(m, row.state_at);
    bring(row.state_at, turn), take(row.state_at, turn), bring(row.state_at + CHUNK, turn + 1);
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK, turn++) {
        const Span span(row, base);
        const Chunk& chunk = chunk_of(m, turn);
        const float(*u)[VALUE] = m.u[turn & 1];
        take(base + CHUNK, turn + 1);
        await(m, VALUES, turn);
        leave<Delta>(a, u, chunk, row, span, thread, head, part);
        await(m, QUERIES, turn);
        write_outputs<Delta>(a, m, chunk, u, span, thread, head, part);
        announce(m, READ);
        bring(base + 2 * CHUNK, turn + 2); // where the chunk before was, which nobody reads any more
    }
}

// The next item: a part of a head of a request. By one thread.
__device__ __forceinline__ void find_work(const RecurArgs& a, Memory& m) {
    const int item = m.item, parts = a.states.columns / C, states = a.states.heads * parts, request = item / states;
    m.item += gridDim.x;
    if (m.there) m.turns += (m.row.end - m.row.state_at + CHUNK - 1) / CHUNK;
    m.more = request < request_rows(a.tables), m.there = m.more && state_row(a.states, a.tables, request, live_rows(a.out), m.row, a.fault);
    if (!m.there) return;
    if (a.leaves == 2 && !m.row.is_short(a.states)) report(a.fault, RecordHeader::BAD_SLOT);
    m.head = item % states / parts, m.part = item % parts, m.turn = m.turns - m.row.state_at / CHUNK;
}

template <bool Delta> __device__ __forceinline__ void prompt(const RecurArgs& a) {
    extern __shared__ __align__(16) char memory[];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    const int warp = threadIdx.x / 32;
    if (const int what = threadIdx.x; what < ANNOUNCEMENTS) {
        const int warps = (what == KEYS || what == QUERIES ? HOLDERS : what == VALUES ? SOLVERS : OTHERS) / 32;
        barrier_init(shared_address(&m.announced[what]), warps), barrier_init_fence();
    }
    if (threadIdx.x == 0) m.there = false, m.turns = 0, m.item = blockIdx.x;
    enter();
    while (true) {
        __syncthreads();
        if (threadIdx.x == 0) find_work(a, m);
        __syncthreads();
        if (!m.more) return;
        if (!m.there) continue;
        if (warp < HOLDERS / 32) hold_state<Delta>(a, m, m.row);
        else if (warp < (HOLDERS + SOLVERS) / 32) find_values<Delta>(m, m.row);
        else finish<Delta>(a, m, m.row, m.head, m.part);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prompt_delta_128(const __grid_constant__ RecurArgs a) { prompt<true>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) prompt_space_128(const __grid_constant__ RecurArgs a) { prompt<false>(a); }
