// The states of Mamba2 layers in steps of decodes and verify windows: convolution and recurrence in two kernels, by the operations of `causal_conv.cu`, `recurrence.cuh` and `scan.cu` in their
// order, so that the bits are theirs. For states of 128 and 256 rows and convolutions of four taps; the gated norm, whose groups have many heads, follows.
//
// Inputs f32 [token][columns]: what the convolution reads, and dt. Result: f32 [token][head][columns]. Caches: `CudaStateCache`. Scratch in between: the convolution's values and queries, and
// dots f32 [token][group][16] of a query with the keys of its chunk.
//
// `space_keys`, in a file of its own, has all that needs no state, and leaves the entries of tokens. `space_states` takes 64 columns of a head of a request, or 32, then the next: two warps fetch states and
// another what else there is, as far ahead as there is room, and teams of warps take turns. A warp has sixteen columns to itself, from the products to what becomes of the
// state, so nobody waits for another. Bytes: the state once, read, and written when a chunk is full.
#include "recurrence.cuh"
#include "state_tile.cuh"
#include "args/space.h"

constexpr int BATCH = 4; // tokens whose queries are fetched ahead, and whose products are made at a time
using Tile = StateTile<1>;

// Whose work a team is at.
struct Place {
    StateRow row;
    int head, group, first; // column
    int entry;              // of the position of the state, in the ring
    bool there;

    __device__ __forceinline__ void find(const SpaceArgs& a, int item, int columns) {
        const StateView& s = a.states;
        const int parts = s.columns / columns, items = s.heads * parts;
        there = state_row(s, a.tables, item / items, live_rows(a.out), row, a.fault) && row.is_short(s);
        head = item % items / parts, first = item % parts * columns, group = head / (s.heads / s.groups), entry = row.state_at % s.entries;
    }
    // Where a position's entry is in the ring.
    __device__ __forceinline__ int entry_at(const StateView& s, int position) const {
        const int at = entry + position - row.state_at, room = s.entries;
        return at < room ? at : at - room;
    }
    __device__ __forceinline__ size_t ring(const StateView& s) const { return (static_cast<size_t>(row.slot) * s.heads + head) * s.entries; }
    __device__ __forceinline__ float* matrix(const StateView& s, float* matrices, int index) const {
        return matrices + (static_cast<size_t>(index) * s.heads + head) * s.rows * s.columns + first;
    }
    __device__ __forceinline__ const float* queries(const SpaceArgs& a, int token) const { return row_of(a.mixed, token) + a.queries + group * a.states.rows; }
    __device__ __forceinline__ const float* values(const SpaceArgs& a, int token) const { return row_of(a.mixed, token) + a.values + head * a.states.columns + first; }
    __device__ __forceinline__ const float* dots(const SpaceArgs& a, int token) const { return a.dots + (static_cast<size_t>(token) * a.states.groups + group) * CHUNK; }
};

// How a state of R rows is cut: C columns are a team's, sixteen a warp's. As many stages as there is memory for.
template <int R, int C> struct Cut {
    static constexpr int CHAINS = R / STATE_TILE_ROWS, WARPS = C / 16, TEAMS = R == 128 ? 16 / WARPS : 4, STAGES = R == 128 && C == 32 ? 10 : 5, FETCHERS = 2, WORKERS = TEAMS * WARPS * 32, THREADS = WORKERS + (1 + FETCHERS) * 32;

    struct alignas(128) Stage {
        float state[R][C];      // eights of columns change places within 128 bytes, see `swizzled`
        float u[CHUNK][C];      // of entries, then of tokens
        float q[BATCH][R + 8];  // of the first tokens
        float v[BATCH][C];
        float dots[BATCH][CHUNK];
        float g[CHUNK];
        float weights[WARPS][CHUNK + 1][BATCH]; // of a warp: the decay from the grid position, then dots times the decay in between, by entry, then token
        Place place;
    };
    struct alignas(128) Memory {
        Stage stages[STAGES];
        uint64_t filled[STAGES], free[STAGES];
    };
};

// Where a column of a row of a state is: so that lanes that read at a time meet no bank twice, and what lies in a line of memory is in a line of shared memory. It is the same
// for all rows of a tile's lane.
__device__ __forceinline__ int swizzled(int row, int column) { return column ^ row / 2 % 4 * 8; }

// How many items there are for this thread block, and which.
template <int C> __device__ __forceinline__ int turns(const SpaceArgs& a) {
    const int items = request_rows(a.tables) * a.states.heads * (a.states.columns / C);
    return (items - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
}

// Fetches states, as far ahead as there is room: what earlier steps have left. What is before a sequence is zero. A warp has every so many rows. Copies in bulk of rows this short would take
// longer: they come one after the other.
template <int R, int C> __device__ __forceinline__ void feed_states(typename Cut<R, C>::Memory& m, const SpaceArgs& a, int warp) {
    using Shape = Cut<R, C>;
    constexpr int PIECES = C / 4, ROWS = 32 / PIECES, TOGETHER = ROWS * Shape::FETCHERS, TURNS = 8 / TOGETHER; // of a row; rows of a warp at a time, of all; of eight rows
    const int lane = threadIdx.x % 32, all = turns<C>(a), columns = a.states.columns, row = warp * ROWS + lane / PIECES, column = lane % PIECES * 4;
    int place[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++) place[i] = (row + i * TOGETHER) * C + swizzled(row + i * TOGETHER, column);
    const float* own = nullptr;
    uint32_t there = 0; // by lane
#pragma unroll 1
    for (int turn = 0, stage = 0, round = 0; turn < all; turn++) {
        if (turn % 32 == 0) {
            Place p;
            p.there = false, own = nullptr;
            if (turn + lane < all) p.find(a, blockIdx.x + (turn + lane) * gridDim.x, C);
            there = __ballot_sync(~0u, p.there);
            if (p.there && p.row.state_at > 0) own = p.row.restore >= 0 ? p.matrix(a.states, a.states.saved_matrices, p.row.restore) : p.matrix(a.states, a.states.matrices, p.row.slot);
        }
        const float* from = reinterpret_cast<const float*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(own), turn % 32));
        float* to = &m.stages[stage].state[0][0];
        barrier_wait(shared_address(&m.free[stage]), (round & 1) ^ 1);
        if (from) {
            from += row * columns + column;
#pragma unroll 4
            for (int i = 0; i < R; i += 8)
#pragma unroll
                for (int turn = 0; turn < TURNS; turn++, from += TOGETHER * columns) copy_async(to + i * C + place[turn], from);
        } else if (there >> turn % 32 & 1) {
            for (int i = 0; i < R; i += 8)
                for (int turn = 0; turn < TURNS; turn++) *reinterpret_cast<float4*>(to + i * C + place[turn]) = make_float4(0, 0, 0, 0);
        }
        // What this lane has stored is there, and what it has asked for is when that has come.
        const uint32_t filled = shared_address(&m.filled[stage]);
        copies_arrive(filled), barrier_arrive(filled);
        if (++stage == Shape::STAGES) stage = 0, round++;
    }
    depend();
}

// Fetches all else: entries of the first chunk, those of tokens among them, and what is about its first tokens. A lane finds a place each, of as many items: nobody waits for tables then.
template <int R, int C> __device__ __forceinline__ void feed(typename Cut<R, C>::Memory& m, const SpaceArgs& a) {
    constexpr int STAGES = Cut<R, C>::STAGES;
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, all = turns<C>(a), columns = s.columns;
    Place own;
#pragma unroll 1
    for (int turn = 0, at_stage = 0, round = 0; turn < all; turn++) {
        if (turn % 32 == 0 && turn + lane < all) own.find(a, blockIdx.x + (turn + lane) * gridDim.x, C);
        auto& stage = m.stages[at_stage];
        const uint32_t filled = shared_address(&m.filled[at_stage]);
        barrier_wait(shared_address(&m.free[at_stage]), (round & 1) ^ 1);
        if (lane == turn % 32) stage.place = own;
        __syncwarp();
        const Place& p = stage.place;
        const Span span(p.row, p.row.state_at);
        const int known = p.there ? span.entries + span.tokens : 0, tokens = min(span.tokens, BATCH);
        const size_t ring = p.ring(s);
        auto entries = [&](int from, int to) {
            const int c = lane % (C / 4) * 4;
#pragma unroll 2
            for (int at = from + lane / (C / 4); at < to; at += 32 / (C / 4)) copy_async(&stage.u[at][c], s.values + (ring + p.entry_at(s, p.row.state_at + at)) * columns + p.first + c);
            if (lane >= from && lane < to) copy_async_word(&stage.g[lane], s.decays + ring + p.entry_at(s, p.row.state_at + lane));
        };
        if (turn == 0) {
            entries(0, min(span.entries, known));
            depend();
            entries(span.entries, known);
        } else {
            entries(0, known);
        }
        if (p.there) {
#pragma unroll 1
            for (int t = 0; t < tokens; t++) {
                const int token = span.token + t, c = lane * 4;
#pragma unroll
                for (int i = 0; i < R; i += 128) copy_async(&stage.q[t][i + c], p.queries(a, token) + i + c);
                if (c < C) copy_async(&stage.v[t][c], p.values(a, token) + c);
                else if (c - C < CHUNK) copy_async(&stage.dots[t][c - C], p.dots(a, token) + c - C);
            }
        }
        copies_arrive(filled), barrier_arrive(filled); // as above
        if (++at_stage == STAGES) at_stage = 0, round++;
    }
    depend();
}

// Of lane i of a warp, `e^d` from behind entry i - 1 to place `at`; `g` by lane.
__device__ __forceinline__ float decay_to(float g, int at) {
    const int above = static_cast<int>(threadIdx.x % 32) - 1;
    float d = 0;
#pragma unroll
    for (int r = CHUNK - 1; r >= 0; r--) {
        const float x = __shfl_sync(~0u, g, r);
        d = r <= at && r > above ? d + x : d;
    }
    return expf(d);
}

// A warp's sixteen columns of an item.
template <int R, int C> struct Warp {
    using Stage = typename Cut<R, C>::Stage;
    const SpaceArgs& a;
    Stage& stage;
    const int warp; // of the team

    __device__ __forceinline__ int first() const { return warp * 16; }
    __device__ __forceinline__ int column() const { return first() + Tile::column(); }
    // This warp's tile from row `top` on, as a lane looks for it.
    __device__ __forceinline__ float* tile_at(int top) const {
        int thread = threadIdx.x;
        asm volatile("" : "+r"(thread)); // the place is computed anew rather than kept: registers are few
        return stage.state[top] + swizzled(thread % 4 * 2, first() + thread % 32 / 4 * 2) - thread % 32 / 4 * 2;
    }
    __device__ __forceinline__ float (&weights() const)[CHUNK + 1][BATCH] { return stage.weights[warp]; }

    // S'q of the tokens that `vector` belongs to: chains in ascending order.
    __device__ __forceinline__ void products(float (&total)[4], const float* vector) const {
#pragma unroll 2
        for (int chain = 0; chain < Cut<R, C>::CHAINS; chain++) {
            Tile tile;
            SplitSums sums[1][1];
            tile.load(tile_at(chain * STATE_TILE_ROWS), C);
            tile.multiply(sums, vector + chain * STATE_TILE_ROWS);
#pragma unroll
            for (int i = 0; i < 4; i++) total[i] = chain == 0 ? sums[0][0].total(i) : __fadd_rn(total[i], sums[0][0].total(i));
        }
    }

    // Tokens of a chunk, from the `from`th on: `near` says that what is about them has been fetched. A lane has two of them, and two columns.
    __device__ __forceinline__ void run_tokens(const Span& span, int from, int live, float g, bool near) const {
        const Place& p = stage.place;
        const int lane = threadIdx.x % 32, at = span.entries + from, token = span.token + from;
        auto& w = weights();
        __syncwarp(); // weights before have been read
#pragma unroll 1
        for (int t = 0; t < live; t++) {
            const float* dots = near ? stage.dots[t] : p.dots(a, token + t);
            const float decay = decay_to(g, at + t);
            if (lane <= CHUNK) w[lane][t] = lane == 0 ? decay : decay * dots[lane - 1]; // what is behind the token is never looked at
        }
        const int vector = min(Tile::g() % BATCH, live - 1);
        float total[4];
        products(total, near ? stage.q[vector] : p.queries(a, token + vector));
        __syncwarp();
        const int own = Tile::t() % (BATCH / 2) * 2;
        float sum[2][2]; // by token, then column
        const float2 decay = *reinterpret_cast<const float2*>(&w[0][own]);
#pragma unroll
        for (int i = 0; i < 2; i++) sum[0][i] = decay.x * total[2 * i], sum[1][i] = decay.y * total[2 * i + 1];
        auto add = [&](int s, int behind) {
            const float2 u = *reinterpret_cast<const float2*>(&stage.u[s][column()]), weight = *reinterpret_cast<const float2*>(&w[s + 1][own]);
            if (own >= behind) sum[0][0] = __fmaf_rn(weight.x, u.x, sum[0][0]), sum[0][1] = __fmaf_rn(weight.x, u.y, sum[0][1]);
            if (own + 1 >= behind) sum[1][0] = __fmaf_rn(weight.y, u.x, sum[1][0]), sum[1][1] = __fmaf_rn(weight.y, u.y, sum[1][1]);
        };
#pragma unroll 4
        for (int s = 0; s < at; s++) add(s, 0);
#pragma unroll 1
        for (int t = 0; t < live; t++) add(at + t, t);
        const float skip = a.skip[p.head];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (Tile::t() >= BATCH / 2 || own + e >= live) break;
            const float2 v = *reinterpret_cast<const float2*>((near ? stage.v[own + e] : p.values(a, token + own + e)) + column());
            *reinterpret_cast<float2*>(row_of(a.out, token + own + e) + p.head * a.states.columns + p.first + column()) = make_float2(__fmaf_rn(skip, v.x, sum[e][0]), __fmaf_rn(skip, v.y, sum[e][1]));
        }
    }

    // The entries of a later chunk of the row: u of this warp's columns, and g by lane.
    __device__ __forceinline__ float fetch_entries(const Span& span) const {
        const Place& p = stage.place;
        const StateView& s = a.states;
        const int lane = threadIdx.x % 32, known = span.entries + span.tokens;
        __syncwarp(); // those before have been read
#pragma unroll 1
        for (int i = lane; i < known * 4; i += 32)
            *reinterpret_cast<float4*>(&stage.u[i / 4][first() + i % 4 * 4]) = *reinterpret_cast<const float4*>(s.values + (p.ring(s) + p.entry_at(s, span.base + i / 4)) * s.columns + p.first + first() + i % 4 * 4);
        __syncwarp();
        return lane < known ? s.decays[p.ring(s) + p.entry_at(s, span.base + lane)] : 0;
    }

    // The state is the one of a snapshot, and stays where it is.
    __device__ __forceinline__ void carry() const {
        const Place& p = stage.place;
#pragma unroll 1
        for (int top = 0; top < R; top += STATE_TILE_ROWS) {
            Tile tile;
            tile.load(tile_at(top), C);
            tile.store(p.matrix(a.states, a.states.matrices, p.row.slot) + top * a.states.columns + first(), a.states.columns);
        }
    }

    // A full chunk goes into the state.
    __device__ __forceinline__ void fold(int base, float g) const {
        const Place& p = stage.place;
        const StateView& s = a.states;
        const int lane = threadIdx.x % 32, columns = s.columns;
        auto& w = weights();
        __syncwarp(); // weights before have been read
        const float decay = decay_to(g, CHUNK - 1);
        if (lane <= CHUNK) w[lane][0] = decay;
        __syncwarp();
#pragma unroll 1
        for (int top = 0; top < R; top += STATE_TILE_ROWS) {
            Tile tile;
            Tile::Keys keys;
#pragma unroll
            for (int four = 0; four < 4; four++) {
                const float* key = s.keys + ((static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries + p.entry_at(s, base + four * 4 + Tile::t())) * R + top + Tile::g();
#pragma unroll
                for (int j = 0; j < STATE_TILE_ROWS / 8; j++) keys.b[j][four] = key[8 * j];
            }
            tile.load(tile_at(top), C);
            tile.fold(w[0][0], &stage.u[0][first()], C, [&](int entry) { return w[entry + 1][0]; }, keys);
            auto keep = [&](float* matrices, int index) { tile.store(p.matrix(s, matrices, index) + top * columns + first(), columns); };
            if (base + CHUNK == p.row.snapshot_at) keep(s.saved_matrices, p.row.snapshot);
            if (base + CHUNK == p.row.state_end) keep(s.matrices, p.row.slot);
            if (base + CHUNK < p.row.end) tile.store(tile_at(top), C); // the next chunk multiplies with it
        }
    }

    __device__ __forceinline__ void run() const {
        const StateRow& row = stage.place.row;
        const int lane = threadIdx.x % 32;
        float g = lane < CHUNK ? stage.g[lane] : 0;
        if (row.restore >= 0 && row.state_end == row.state_at) carry();
#pragma unroll 1
        for (int base = row.state_at; base < row.end; base += CHUNK) {
            const Span span(row, base);
            const bool first_chunk = base == row.state_at;
            if (!first_chunk) g = fetch_entries(span);
#pragma unroll 1
            for (int from = 0; from < span.tokens; from += BATCH) run_tokens(span, from, min(BATCH, span.tokens - from), g, first_chunk && from == 0);
            if (folds(row, base)) fold(base, g);
            __syncwarp();
        }
    }
};

template <int R, int C> __device__ __forceinline__ void space_states(const SpaceArgs& a) {
    using Shape = Cut<R, C>;
    constexpr int STAGES = Shape::STAGES;
    extern __shared__ __align__(128) char memory[];
    auto& m = *reinterpret_cast<typename Shape::Memory*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&m.filled[i]), (1 + Shape::FETCHERS) * 2 * 32), barrier_init(shared_address(&m.free[i]), Shape::WARPS);
        barrier_init_fence();
    }
    __syncthreads();
    release_dependents();
    if (const int warp = (static_cast<int>(threadIdx.x) - Shape::WORKERS) / 32 - 1; warp >= 0) return feed_states<R, C>(m, a, warp);
    if (threadIdx.x >= Shape::WORKERS) return feed<R, C>(m, a);
    const int warp = threadIdx.x / 32 % Shape::WARPS, team = threadIdx.x / 32 / Shape::WARPS, all = turns<C>(a);
    depend();
#pragma unroll 1
    for (int turn = team; turn < all; turn += Shape::TEAMS) {
        auto& stage = m.stages[turn % STAGES];
        barrier_wait(shared_address(&m.filled[turn % STAGES]), turn / STAGES & 1);
        if (stage.place.there) Warp<R, C>{a, stage, warp}.run();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&m.free[turn % STAGES]));
    }
}

// What `src/ops/space.rs` asks for.
static_assert(sizeof(Cut<128, 64>::Memory) == 208128 && sizeof(Cut<128, 32>::Memory) == 221696 && sizeof(Cut<256, 32>::Memory) == 203008);

#if HOPPER // others have too little shared memory or too few registers for it
#define RUN(R, C) space_states<R, C>(a)
#else
#define RUN(R, C)
#endif
#define SPACE(R, C) \
    extern "C" __global__ void __launch_bounds__(Cut<R, C>::THREADS, 1) space_states_##R##_##C(const __grid_constant__ SpaceArgs a) { RUN(R, C); }
SPACE(128, 64) SPACE(128, 32) SPACE(256, 32)
