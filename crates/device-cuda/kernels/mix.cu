// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in two kernels, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`. Scratch in
// between: `RecurrenceScratch` and the convolution's values.
//
// `mix_keys`, in a file of its own, has all that needs no state. `mix_states` takes a head of a request, then the next, in batches of four tokens, while two warps of their own fetch what comes
// next. A warp that computes has sixteen columns; of each, two threads have what it gives: one has S'k and finds u, the other S'q and the outputs. Bytes: the state once, read.
#include "mix.cuh"

// Eight warps compute. A ninth fetches of the next item everything but the state while this one is at work, a tenth its state as soon as this one's has been multiplied, chain by chain.
constexpr int WARPS = C / 16, WORKERS = WARPS * 32, THREADS = WORKERS + 2 * 32;
constexpr int ROOM = R + 4; // of a vector: so that lanes that read at a time meet no bank twice, or few
// Rows of a state lie in pairs, one copy each, so far apart that lanes that read at a time meet no bank twice.
constexpr int PAIR = 2 * C + 8;
static_assert(R == C && STATE_TILE_ROWS == 32);
using Tile = StateTile<1>;

// Whose work a thread block is at, found out by one thread: divisions and tables are dear.
struct Place {
    StateRow row;
    int head, group;
    int entry;  // of the position of the state, in the ring
    int turn;   // of the thread block
    int parity; // in which the state will be there
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
    Place place;
};
struct alignas(16) Memory {
    float state[R / 2][PAIR];
    Stage stages[2];
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots times the decay in between, by entry, then token
    float decay[BATCH];
    float fold_decay[CHUNK + 4];
    uint64_t stage_filled[2], stage_free[2], state_filled[CHAINS], state_free[CHAINS];
};
static_assert(sizeof(Memory) == 115392); // what `src/ops/mix.rs` asks for
__device__ __forceinline__ float* row_of_state(Memory& m, int row) { return &m.state[row / 2][row % 2 * C]; }

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
template <int Warps> __device__ __forceinline__ void fetch_entries(Stage& m, const MixArgs& a, const Span& span, int warp) {
    const Place& p = m.place;
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
template <int Warps> __device__ __forceinline__ void fetch_tokens(Stage& m, const MixArgs& a, const Span& span, int warp) {
    const Place& p = m.place;
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
template <int Warps> __device__ __forceinline__ void fetch_batch(Stage& m, const MixArgs& a, const Span& span, const Batch& b, int warp) {
    const Place& p = m.place;
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
// The ninth warp: item by item, as far ahead as there is room. Of the first one, what earlier steps left is on its way before the wait. A lane finds a place each, of as many items: nobody waits
// for tables then.
__device__ __forceinline__ void feed(Memory& m, const MixArgs& a) {
    const int lane = threadIdx.x % 32;
    Place own;
    int states = 0; // so far
#pragma unroll 1
    for (int turn = 0;; turn++) {
        if (turn % 32 == 0) own.find(a, blockIdx.x + (turn + lane) * gridDim.x);
        Stage& stage = m.stages[turn % 2];
        const uint32_t filled = shared_address(&m.stage_filled[turn % 2]);
        barrier_wait(shared_address(&m.stage_free[turn % 2]), (turn / 2 & 1) ^ 1);
        if (lane == turn % 32) own.turn = turn, own.parity = states & 1, stage.place = own;
        __syncwarp();
        const Place& p = stage.place;
        const Span span(p.row, p.row.state_at);
        if (p.there) fetch_entries<1>(stage, a, span, 0);
        if (turn == 0) depend();
        if (p.there) {
            fetch_tokens<1>(stage, a, span, 0);
            fetch_batch<1>(stage, a, span, Batch(span, 0), 0);
        }
        states += p.there;
        const bool more = p.more;
        // What this lane has stored is there, and what it has asked for is when that has come.
        copies_arrive(filled), barrier_arrive(filled);
        if (!more) return;
    }
}

// Fetches a state, chain by chain, a lane two rows, as soon as there is room; what is before a sequence, at null, is zero.
__device__ __forceinline__ void fetch_state(Memory& m, const float* from, int parity) {
    constexpr int PAIRS = STATE_TILE_ROWS / 2, BYTES = 2 * C * sizeof(float);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int chain = 0; chain < CHAINS; chain++) {
        const uint32_t filled = shared_address(&m.state_filled[chain]);
        barrier_wait(shared_address(&m.state_free[chain]), parity ^ 1);
        if (from) {
            const int pair = chain * PAIRS + lane;
            if (lane == 0) barrier_expect(filled, PAIRS * BYTES);
            __syncwarp();
            if (lane < PAIRS) bulk_load(shared_address(m.state[pair]), from + pair * 2 * C, BYTES, filled);
        } else {
            float* row = row_of_state(m, chain * STATE_TILE_ROWS + lane);
            for (int at = 0; at < C; at += 4) *reinterpret_cast<float4*>(row + at) = make_float4(0, 0, 0, 0);
            stores_to_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(filled);
        }
    }
}
// The tenth warp: state by state. What it reads earlier steps have left.
__device__ __forceinline__ void feed_states(Memory& m, const MixArgs& a) {
    const int lane = threadIdx.x % 32;
    const float* own = nullptr;
    uint32_t there = 0, more = 0; // by lane
    int states = 0;               // fetched
#pragma unroll 1
    for (int turn = 0;; turn++) {
        if (turn % 32 == 0) {
            Place p;
            p.find(a, blockIdx.x + (turn + lane) * gridDim.x);
            there = __ballot_sync(~0u, p.there), more = __ballot_sync(~0u, p.more), own = nullptr;
            if (p.there && p.row.state_at > 0) own = p.row.restore >= 0 ? matrix_of(a, p, a.states.saved_matrices, p.row.restore) : matrix_of(a, p, a.states.matrices, p.row.slot);
        }
        const float* from = reinterpret_cast<const float*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(own), turn % 32));
        if (!(more >> turn % 32 & 1)) return depend();
        if (there >> turn % 32 & 1) fetch_state(m, from, states++ & 1);
    }
}

// Says that a warp is done with what the barrier guards.
__device__ __forceinline__ void done_with(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
}

// S'k of a batch's tokens for the one thread of a column, S'q for the other.
__device__ __forceinline__ void products(Memory& m, const Stage& stage, const Batch& b, bool frees_state, float (&sum)[BATCH]) {
    const int token = min(Tile::g() % BATCH, b.live - 1);
    const float* vector = Tile::g() < BATCH ? stage.k[b.at + token] : stage.q[token];
    float total[4];
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        SplitSums sums[1][1];
        barrier_wait(shared_address(&m.state_filled[chain]), stage.place.parity);
        tile.load(row_of_state(m, chain * STATE_TILE_ROWS) + first_column(), PAIR / 2, C);
        if (frees_state) done_with(m.state_free[chain]);
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
__device__ __forceinline__ void run_tokens(Memory& m, Stage& stage, const Batch& b, bool frees_state) {
    float sum[BATCH];
    products(m, stage, b, frees_state, sum);
#pragma unroll
    for (int t = 0; t < BATCH; t++) sum[t] = m.decay[t] * sum[t];
    add_entries<Pair>(sum, Pair::has_key() ? m.by_key : m.by_query, stage.u, stage.v, stage.beta + b.at, b.at, b.live);
}

// The gated norm of outputs, a warp per token.
__device__ __forceinline__ void finish(const Stage& stage, const MixArgs& a, const Span& span, const Batch& b) {
    const int t = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (t >= b.live) return;
    finish_token(a, span.token + b.first + t, stage.place.head, stage.v[t], *reinterpret_cast<const float4*>(&stage.gate[t][c]), *reinterpret_cast<const float4*>(a.norm + c));
}

// The entries of a chunk's tokens that no stored state contains, a warp per entry.
__device__ __forceinline__ void leave(const Stage& stage, const MixArgs& a, const Span& span) {
    const Place& p = stage.place;
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
__device__ __forceinline__ void move_state(Memory& m, const Stage& stage, const MixArgs& a, int base, bool carried, bool folded) {
    const Place& p = stage.place;
    const StateRow& row = p.row;
    if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(stage.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
    workers_meet();
#pragma unroll 1
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        const int top = chain * STATE_TILE_ROWS;
        auto keep = [&](float* matrices, int index) { tile.store(matrix_of(a, p, matrices, index) + top * C + first_column(), C); };
        tile.load(row_of_state(m, top) + first_column(), PAIR / 2, C);
        if (carried) keep(a.states.matrices, row.slot);
        if (!folded) continue;
        Tile::Keys keys;
        keys.load(&stage.k[0][top], ROOM);
        tile.fold(m.fold_decay[0], &stage.u[0][first_column()], C, [&](int entry) { return m.fold_decay[entry + 1]; }, keys);
        if (base + CHUNK == row.snapshot_at) keep(a.states.saved_matrices, row.snapshot);
        if (base + CHUNK == row.state_end) keep(a.states.matrices, row.slot);
        if (base + CHUNK < row.end) tile.store(row_of_state(m, top) + first_column(), PAIR / 2, C); // the next chunk multiplies with it: this warp's columns
    }
    workers_meet(); // done with decays and the chunk
}

// A row whose first chunk and batch have been fetched.
__device__ __forceinline__ void mix_row(Memory& m, Stage& stage, const MixArgs& a) {
    const StateRow& row = stage.place.row;
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
                if (first == 0) fetch_entries<WARPS>(stage, a, span, warp), fetch_tokens<WARPS>(stage, a, span, warp);
                fetch_batch<WARPS>(stage, a, span, b, warp);
                copies_commit(), copies_wait<0>(), workers_meet();
            }
            if (b.live <= 0) break;
            weigh({m.by_key, m.by_query, m.decay}, stage.dots, stage.g, b.at, b.live);
            workers_meet();
            freed = last && !carried && !folded && first + BATCH >= span.tokens;
            run_tokens(m, stage, b, freed);
            workers_meet();
            finish(stage, a, span, b);
            if (!last || first + BATCH < span.tokens) workers_meet(); // done with the batch
        }
        leave(stage, a, span);
        if (carried || folded) {
            for (uint64_t& filled : m.state_filled) barrier_wait(shared_address(&filled), stage.place.parity);
            move_state(m, stage, a, base, carried, folded);
        }
        if (!last) workers_meet(); // done with the chunk
        else if (!freed) {
            stores_to_async();
            for (uint64_t& free : m.state_free) done_with(free);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) mix_states(const __grid_constant__ MixArgs a) {
#if SM90 && __CUDA_ARCH__ < 1200 // whose thread blocks have too little shared memory
    extern __shared__ __align__(16) char memory[];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&m.stage_filled[i]), 2 * 32), barrier_init(shared_address(&m.stage_free[i]), WARPS);
        for (int i = 0; i < CHAINS; i++) barrier_init(shared_address(&m.state_filled[i]), 1), barrier_init(shared_address(&m.state_free[i]), WARPS);
        barrier_init_fence();
    }
    if (threadIdx.x < C / 32) prefetch(a.norm + threadIdx.x * 32);
    __syncthreads();
    release_dependents();
    if (threadIdx.x >= WORKERS + 32) return feed_states(m, a);
    if (threadIdx.x >= WORKERS) return feed(m, a);
    depend();
#pragma unroll 1
    for (int turn = 0;; turn++) {
        Stage& stage = m.stages[turn % 2];
        barrier_wait(shared_address(&m.stage_filled[turn % 2]), turn / 2 & 1);
        if (!stage.place.more) break;
        if (stage.place.there) mix_row(m, stage, a);
        turn = stage.place.turn; // which it is: there is no register to keep it in
        done_with(m.stage_free[turn % 2]);
    }
#endif
}
