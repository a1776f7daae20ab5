// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in two kernels, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`. Scratch in
// between: `RecurrenceScratch` and the convolution's values.
//
// `mix_keys`, in a file of its own, has all that needs no state. `mix_states` takes a head of a request, then the next, in batches of four tokens, while a warp of its own fetches what comes
// next. A warp has sixteen columns; of each, two threads have what it gives: one has S'k and finds u, the other S'q and the outputs. Bytes: the state once, read.
#include "mix.cuh"

// Eight warps compute, one more fetches: of the next item everything but the state while this one is at work, and weighs it. The state of the next item comes when this one's has been multiplied, chain by chain: each
// warp fetches its own columns.
constexpr int WARPS = C / 16, WORKERS = WARPS * 32, THREADS = WORKERS + 32;
constexpr int ROOM = R + 4;  // of a vector: so that lanes that read at a time meet few banks twice
constexpr int PLACES = 16;   // that are found at a time, a lane each
constexpr int FOUR_ROWS = 64; // numbers of sixteen columns
static_assert(R == C && STATE_TILE_ROWS == 32);
using Tile = StateTile<1>;

// Whose work a thread block is at, found out by one thread: divisions and tables are dear.
struct Place {
    StateRow row;
    int head, group;
    int entry; // of the position of the state, in the ring
    bool leads, there, more;

    __device__ void find(const MixArgs& a, int item) {
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
// Of a head of a request, all but its state.
struct alignas(16) Stage {
    float k[CHUNK][ROOM]; // of entries, then of tokens
    float u[CHUNK][C];    // of entries, then of tokens
    // Of a batch:
    float q[BATCH][ROOM];
    float v[BATCH][C]; // then the outputs
    float gate[BATCH][C];
    float dots[BATCH][2][CHUNK]; // by token, of its key and its query, by entry
    float g[CHUNK], beta[CHUNK];
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots times the decay in between, by entry, then token
    float decay[BATCH];
    __device__ __forceinline__ Weights weights() { return {by_key, by_query, decay}; }
};
struct alignas(16) Memory {
    // By warp, by eights of rows, then rows 2t and rows 2t + 1 of an eight: of such four rows the first eight columns of all come before the others. Lanes that read, or write, at a time meet no bank twice.
    float state[WARPS][R * 16];
    Stage stages[2];
    float fold_decay[CHUNK + 4];
    Place places[2][PLACES]; // of a thread block's turns
    uint64_t stage_filled[2], stage_free[2], found; // the latter: places of as many turns
    __device__ __forceinline__ const Place& place(int turn) const { return places[turn / PLACES % 2][turn % PLACES]; }
};
static_assert(sizeof(Memory) == 115488); // what `src/ops/mix.rs` asks for

__device__ __forceinline__ void workers_meet() { meet(1, WORKERS); }
__device__ __forceinline__ int first_column() { return threadIdx.x / 32 * 16; }
// Which two threads have a column's sums: two lanes apart.
struct Pair {
    static __device__ __forceinline__ int column() { return first_column() + Tile::column() + threadIdx.x % 2; }
    static __device__ __forceinline__ bool has_key() { return !(threadIdx.x & 2); }
    static __device__ __forceinline__ int lane_of_key() { return threadIdx.x % 32 & ~2; }
};

// Some tokens of a chunk: the first of them in the chunk, how many, and where they stand among the entries.
struct Batch {
    int first, live, at;
    __device__ Batch(const Span& span, int first) : first(first), live(min(BATCH, span.tokens - first)), at(span.entries + first) {}
};

__device__ __forceinline__ float* matrix_of(const MixArgs& a, const Place& p, float* matrices, int index) { return matrices + (static_cast<size_t>(index) * a.states.heads + p.head) * R * C; }
__device__ __forceinline__ size_t ring_of(const MixArgs& a, const Place& p) { return (static_cast<size_t>(p.row.slot) * a.states.heads + p.head) * a.states.entries; }

// Asks for a chunk's entries, which earlier steps left: `warp` is one of `Warps` that do.
template <int Warps> __device__ __forceinline__ void fetch_entries(Stage& m, const MixArgs& a, const Place& p, const Span& span, int warp) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, c = lane * 4;
    const size_t ring = ring_of(a, p), keys = (static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries;
#pragma unroll 1
    for (int at = warp; at < span.entries; at += Warps) {
        const int place = p.entry_at(s, span.base + at);
        copy_async(&m.k[at][c], s.keys + (keys + place) * R + c);
        copy_async(&m.u[at][c], s.values + (ring + place) * C + c);
    }
    if (warp == 0 && lane < span.entries) copy_async_word(&m.g[lane], s.decays + ring + p.entry_at(s, span.base + lane));
}
// Asks for the keys and factors of a chunk's tokens.
template <int Warps> __device__ __forceinline__ void fetch_tokens(Stage& m, const MixArgs& a, const Place& p, const Span& span, int warp) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, c = lane * 4;
#pragma unroll 1
    for (int t = warp; t < span.tokens; t += Warps) copy_async(&m.k[span.entries + t][c], a.unit_keys + (static_cast<size_t>(span.token + t) * s.groups + p.group) * R + c);
    if (warp == 0 && lane < span.tokens) {
        const float* factors = a.factors + (static_cast<size_t>(span.token + lane) * s.heads + p.head) * 2;
        copy_async_word(&m.g[span.entries + lane], factors), copy_async_word(&m.beta[span.entries + lane], factors + 1);
    }
}
// Asks for a batch's queries, values, gates and dots.
template <int Warps> __device__ __forceinline__ void fetch_batch(Stage& m, const MixArgs& a, const Place& p, const Span& span, const Batch& b, int warp) {
    const int c = threadIdx.x % 32 * 4;
#pragma unroll 1
    for (int t = warp; t < b.live; t += Warps) {
        const int token = span.token + b.first + t;
        const size_t of_group = static_cast<size_t>(token) * a.states.groups + p.group;
        copy_async(&m.q[t][c], a.unit_queries + of_group * R + c);
        copy_async(&m.v[t][c], row_of(a.mixed, token) + a.values + p.head * C + c);
        copy_async(&m.gate[t][c], row_of(a.gate, token) + p.head * C + c);
        if (c < 2 * CHUNK) copy_async(&m.dots[t][0][0] + c, a.dots + of_group * 2 * CHUNK + c);
    }
}
// A state on its way: this warp's columns, a lane sixteen bytes of every eighth row. What is before a sequence is zero.
struct Coming {
    const float* from; // null if there is none
    bool zero;
    __device__ __forceinline__ Coming(const MixArgs& a, const Place& p) {
        const int lane = threadIdx.x % 32;
        const float* state = p.row.restore >= 0 ? matrix_of(a, p, a.states.saved_matrices, p.row.restore) : matrix_of(a, p, a.states.matrices, p.row.slot);
        from = p.there ? state + lane / 4 * C + first_column() + lane % 4 * 4 : nullptr, zero = p.row.state_at == 0;
    }
    // Asks for a chain of it: always a group of copies.
    __device__ __forceinline__ void fetch(Memory& m, int chain) const {
        const int lane = threadIdx.x % 32, row = lane / 4, quarter = lane % 4;
        const float* first = from + chain * STATE_TILE_ROWS * C;
        float* to = m.state[threadIdx.x / 32] + chain * STATE_TILE_ROWS * 16 + row % 2 * FOUR_ROWS + quarter / 2 * (FOUR_ROWS / 2) + row / 2 * 8 + quarter % 2 * 4;
        if (from && !zero)
#pragma unroll
            for (int j = 0; j < STATE_TILE_ROWS / 8; j++) copy_async(to + j * 2 * FOUR_ROWS, first + j * 8 * C);
        else if (from)
#pragma unroll
            for (int j = 0; j < STATE_TILE_ROWS / 8; j++) *reinterpret_cast<float4*>(to + j * 2 * FOUR_ROWS) = make_float4(0, 0, 0, 0);
        copies_commit();
    }
    __device__ __forceinline__ void fetch(Memory& m) const {
#pragma unroll 1
        for (int chain = 0; chain < CHAINS; chain++) fetch(m, chain);
    }
};

// The ninth warp: item by item, as far ahead as there is room. Of the first one, what earlier steps left is on its way before the wait. Places are found long before they are needed: nobody waits
// for tables.
__device__ __forceinline__ void feed(Memory& m, const MixArgs& a) {
    const int lane = threadIdx.x % 32;
    auto find = [&](int turn) {
        if (lane < PLACES) m.places[turn / PLACES % 2][lane].find(a, blockIdx.x + (turn + lane) * gridDim.x);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&m.found));
    };
    find(0);
#pragma unroll 1
    for (int turn = 0;; turn++) {
        Stage& stage = m.stages[turn % 2];
        const uint32_t filled = shared_address(&m.stage_filled[turn % 2]);
        if (turn % PLACES == PLACES / 2) find(turn + PLACES / 2);
        barrier_wait(shared_address(&m.stage_free[turn % 2]), (turn / 2 & 1) ^ 1);
        const Place& p = m.place(turn);
        const Span span(p.row, p.row.state_at);
        if (p.there) fetch_entries<1>(stage, a, p, span, 0);
        if (turn == 0) depend();
        if (p.there) {
            const Batch b(span, 0);
            fetch_tokens<1>(stage, a, p, span, 0);
            fetch_batch<1>(stage, a, p, span, b, 0);
            copies_commit(), copies_wait<0>();
            __syncwarp();
            for (int pair = lane; pair < (CHUNK + 1) * BATCH; pair += 32) weigh_pair(stage.weights(), stage.dots, stage.g, b.at, b.live, pair);
        }
        barrier_arrive(filled);
        if (!p.more) return;
    }
}

// Says that a warp is done with what the barrier guards.
__device__ __forceinline__ void done_with(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
}

// This lane's part of a chain.
__device__ __forceinline__ float* own_state(Memory& m, int chain) {
    return m.state[threadIdx.x / 32] + chain * STATE_TILE_ROWS * 16 + Tile::g() / 4 * (FOUR_ROWS / 2) + Tile::t() * 8 + Tile::g() % 4 * 2;
}
__device__ __forceinline__ void load_chain(Tile& tile, Memory& m, int chain) { tile.load_own(own_state(m, chain), 2 * FOUR_ROWS, FOUR_ROWS); }

// S'k of a batch's tokens for the one thread of a column, S'q for the other. If it is `last`, the state makes room for that of the next item.
__device__ __forceinline__ void products(Memory& m, const Stage& stage, const Batch& b, bool last, const MixArgs& a, const Place& after, float (&sum)[BATCH]) {
    const Coming next(a, after);
    const int token = min(Tile::g() % BATCH, b.live - 1);
    const float* vector = Tile::g() < BATCH ? stage.k[b.at + token] : stage.q[token];
    float total[4];
    if (!last) copies_wait<0>();
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        SplitSums sums[1][1];
        if (last) copies_wait<CHAINS - 1>(); // this chain is there; those behind it, and as many of the next item, may be on their way
        __syncwarp();
        load_chain(tile, m, chain);
        if (last) {
            __syncwarp();
            next.fetch(m, chain);
        }
        tile.multiply(sums, vector + chain * STATE_TILE_ROWS);
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = chain == 0 ? sums[0][0].total(i) : __fadd_rn(total[i], sums[0][0].total(i));
    }
    // A lane has two tokens of two columns: with its neighbour, all four of one.
    const bool second = threadIdx.x & 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float other = __shfl_xor_sync(0xffffffffu, second ? total[i] : total[2 + i], 1);
        sum[i] = second ? other : total[i], sum[2 + i] = second ? total[2 + i] : other;
    }
}

// u of a batch, and its outputs.
__device__ __forceinline__ void run_tokens(Memory& m, Stage& stage, const Batch& b, bool last, const MixArgs& a, const Place& after) {
    float sum[BATCH];
    products(m, stage, b, last, a, after, sum);
#pragma unroll
    for (int t = 0; t < BATCH; t++) sum[t] = stage.decay[t] * sum[t];
    add_entries<Pair>(sum, Pair::has_key() ? stage.by_key : stage.by_query, stage.u, stage.v, stage.beta + b.at, b.at, b.live);
}

// The gated norm of outputs, a warp per token.
__device__ __forceinline__ void finish(const Stage& stage, const MixArgs& a, const Place& p, const Span& span, const Batch& b) {
    const int t = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (t >= b.live) return;
    finish_token(a, span.token + b.first + t, p.head, stage.v[t], *reinterpret_cast<const float4*>(&stage.gate[t][c]), *reinterpret_cast<const float4*>(a.norm + c));
}

// The entries of a chunk's tokens that no stored state contains, a warp per entry.
__device__ __forceinline__ void leave(const Stage& stage, const MixArgs& a, const Place& p, const Span& span) {
    const StateView& s = a.states;
    const int c = threadIdx.x % 32 * 4;
#pragma unroll 1
    for (int e = first_left(p.row, span) + (WARPS - 1 - threadIdx.x / 32); e < span.entries + span.tokens; e += WARPS) {
        const int place = p.entry_at(s, span.base + e);
        float* key = p.leads ? s.keys + ((static_cast<size_t>(p.row.slot) * s.groups + p.group) * s.entries + place) * R : nullptr;
        leave_entry(s, ring_of(a, p) + place, stage.u[e], stage.g[e], key, *reinterpret_cast<const float4*>(&stage.k[e][c]));
    }
}

// Behind a chunk: the state is kept as it is, taken further, or both. The state is there.
__device__ __forceinline__ void move_state(Memory& m, const Stage& stage, const MixArgs& a, const Place& p, int base, bool carried, bool folded) {
    const StateRow& row = p.row;
    if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(stage.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
    workers_meet();
#pragma unroll 1
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        const int top = chain * STATE_TILE_ROWS;
        auto keep = [&](float* matrices, int index) { tile.store(matrix_of(a, p, matrices, index) + top * C + first_column(), C); };
        load_chain(tile, m, chain);
        if (carried) keep(a.states.matrices, row.slot);
        if (!folded) continue;
        Tile::Keys keys;
        keys.load(&stage.k[0][top], ROOM);
        tile.fold(m.fold_decay[0], &stage.u[0][first_column()], C, [&](int entry) { return m.fold_decay[entry + 1]; }, keys);
        if (base + CHUNK == row.snapshot_at) keep(a.states.saved_matrices, row.snapshot);
        if (base + CHUNK == row.state_end) keep(a.states.matrices, row.slot);
        if (base + CHUNK < row.end) tile.store_own(own_state(m, chain), 2 * FOUR_ROWS, FOUR_ROWS); // the next chunk multiplies with it: this warp's columns
    }
    workers_meet(); // done with decays and the chunk
}

// A row whose first chunk and batch have been fetched and weighed. When its state is done with, that of the next item is fetched.
__device__ __forceinline__ void mix_row(Memory& m, Stage& stage, const MixArgs& a, const Place& p, const Place& after) {
    const StateRow& row = p.row;
    const int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        asm volatile("" : "+r"(base)); // what follows from it is computed anew: registers are few
        const Span span(row, base);
        const bool last = base + CHUNK >= row.end, carried = row.restore >= 0 && base == row.state_at && row.state_end == row.state_at, folded = folds(row, base);
        bool freed = false;
#pragma unroll 1
        for (int first = 0; first < max(span.tokens, 1); first += BATCH) {
            const Batch b(span, first);
            if (first > 0 || base > row.state_at) {
                if (first == 0) fetch_entries<WARPS>(stage, a, p, span, warp), fetch_tokens<WARPS>(stage, a, p, span, warp);
                fetch_batch<WARPS>(stage, a, p, span, b, warp);
                copies_commit(), copies_wait<0>(), workers_meet();
                if (b.live > 0) weigh(stage.weights(), stage.dots, stage.g, b.at, b.live);
                workers_meet();
            }
            if (b.live <= 0) break;
            freed = last && !carried && !folded && first + BATCH >= span.tokens;
            run_tokens(m, stage, b, freed, a, after);
            workers_meet();
            finish(stage, a, p, span, b);
            if (!last || first + BATCH < span.tokens) workers_meet(); // done with the batch
        }
        leave(stage, a, p, span);
        if (carried || folded) {
            copies_wait<0>();
            __syncwarp();
            move_state(m, stage, a, p, base, carried, folded);
        }
        if (!last) workers_meet(); // done with the chunk
        else if (!freed) {
            __syncwarp();
            Coming(a, after).fetch(m);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) mix_states(const __grid_constant__ MixArgs a) {
#if SM90 && __CUDA_ARCH__ < 1200 // whose thread blocks have too little shared memory
    extern __shared__ __align__(16) char memory[];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&m.stage_filled[i]), 32), barrier_init(shared_address(&m.stage_free[i]), WARPS);
        barrier_init(shared_address(&m.found), 1);
        barrier_init_fence();
    }
    if (threadIdx.x < C / 32) prefetch(a.norm + threadIdx.x * 32);
    __syncthreads();
    release_dependents();
    if (threadIdx.x >= WORKERS) return feed(m, a);
    auto place = [&](int turn) -> const Place& {
        if (turn % PLACES == 0) barrier_wait(shared_address(&m.found), turn / PLACES & 1);
        return m.place(turn);
    };
    Coming(a, place(0)).fetch(m);
    depend();
#pragma unroll 1
    for (int turn = 0; m.place(turn).more; turn++) {
        Stage& stage = m.stages[turn % 2];
        const Place& p = m.place(turn);
        const Place& after = place(turn + 1);
        barrier_wait(shared_address(&m.stage_filled[turn % 2]), turn / 2 & 1);
        if (p.there) mix_row(m, stage, a, p, after);
        else Coming(a, after).fetch(m);
        done_with(m.stage_free[turn % 2]);
    }
#endif
}
