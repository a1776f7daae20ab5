// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in two kernels, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`. Scratch in
// between: `RecurrenceScratch` and the convolution's values.
//
// `mix_keys`, in a file of its own, has all that needs no state. `mix_states` takes a head of a request, then the next, in batches of four tokens. A batch passes from
// one group of warps to the next, so that several are under way: one warp fetches states and one all else; two weigh entries; eight multiply with the state, of which each has sixteen columns, and fold it;
// four find u and the outputs, a thread per column, and leave what later steps need. Bytes: the state once, read.
#include "mix.cuh"

constexpr int MULTIPLIERS = C / 16, ENDERS = C / 32, WEIGHERS = 2, FEEDERS = 2; // warps
// Threads: registers change hands between warpgroups, so that roles begin with one.
constexpr int FIRST_ENDER = MULTIPLIERS * 32, FIRST_WEIGHER = FIRST_ENDER + ENDERS * 32, FIRST_FEEDER = FIRST_WEIGHER + WEIGHERS * 32, THREADS = FIRST_FEEDER + FEEDERS * 32;
constexpr int STAGES = 3; // batches under way
constexpr int ROOM = R + 4; // of a vector: so that lanes that read at a time meet no bank twice, or few
static_assert(R == C && STATE_TILE_ROWS == 32 && ENDERS == BATCH && FIRST_ENDER % 128 == 0 && FIRST_WEIGHER % 128 == 0);
using Tile = StateTile<1>;

// A head of a request.
struct Item {
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
    // Batches of a chunk, also of one without tokens.
    __device__ __forceinline__ int batches(const Span& span) const { return max((span.tokens + BATCH - 1) / BATCH, 1); }
    __device__ int batches() const {
        int count = 0;
        if (there)
            for (int base = row.state_at; base < row.end; base += CHUNK) count += batches(Span(row, base));
        return count;
    }
};
// Some tokens of a chunk of an item, and what becomes of the state behind them.
struct Batch {
    int slot, head, group;
    int entry;          // of the chunk's first position, in the ring
    int entries, token; // that earlier steps left of the chunk, and the first token behind those
    int at, live;       // the batch's first token, counted from the chunk's first position, and how many there are
    int left;           // the first of the chunk's entries that no stored state contains
    int snapshot;       // the state behind the chunk is saved there, or -1
    int parity, told;   // in which the item's state will be there, and u of a chunk that is folded
    bool more, leads, carried, folded, stored; // whether there is one at all; what becomes of its keys and its state
    bool chained, goes_on, last;                // whether the chunk goes on behind it, and the item behind the chunk; the end of the item

    // The `number`th of an item.
    __device__ void set(const Item& i, int number, int room) {
        const StateRow& row = i.row;
        int base = row.state_at;
        while (number >= i.batches(Span(row, base))) number -= i.batches(Span(row, base)), base += CHUNK;
        const Span span(row, base);
        const int first = number * BATCH, place = i.entry + base - row.state_at;
        slot = row.slot, head = i.head, group = i.group, leads = i.leads, more = true;
        entry = place < room ? place : place - room, entries = span.entries, token = span.token;
        at = span.entries + first, live = max(min(BATCH, span.tokens - first), 0), left = first_left(row, span);
        const bool ends = first + BATCH >= span.tokens; // the chunk
        chained = !ends, folded = ends && folds(row, base), stored = folded && base + CHUNK == row.state_end;
        snapshot = folded && base + CHUNK == row.snapshot_at ? row.snapshot : -1;
        goes_on = base + CHUNK < row.end, last = ends && !goes_on;
        carried = first == 0 && row.restore >= 0 && base == row.state_at && row.state_end == row.state_at;
    }
    // Where an entry of the chunk is in the ring.
    __device__ __forceinline__ int entry_at(const StateView& s, int e) const {
        const int at = entry + e, room = s.entries;
        return at < room ? at : at - room;
    }
    __device__ __forceinline__ size_t ring(const StateView& s) const { return (static_cast<size_t>(slot) * s.heads + head) * s.entries; }
    __device__ __forceinline__ float* key_at(const StateView& s, int e) const { return s.keys + ((static_cast<size_t>(slot) * s.groups + group) * s.entries + entry_at(s, e)) * R; }
    // Where a key of the chunk is: where earlier steps left it, or where `mix_keys` did.
    __device__ __forceinline__ const float* key(const MixArgs& a, int e) const {
        return e < entries ? key_at(a.states, e) : a.unit_keys + (static_cast<size_t>(token + e - entries) * a.states.groups + group) * R;
    }
    __device__ __forceinline__ int first_token() const { return token + at - entries; }
};
struct alignas(16) Stage {
    float u[CHUNK][C]; // of entries, then of tokens
    // Of the batch:
    float k[BATCH][ROOM], q[BATCH][ROOM];               // queries, then outputs
    float dots[BATCH][2][CHUNK];                        // by token, of its key and its query, by entry
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots times the decay in between, by entry, then token
    float g[CHUNK], beta[BATCH], decay[BATCH], fold_decay[CHUNK + 4];
    Batch batch;
};
struct alignas(16) Memory {
    float state[R][C]; // eights of columns change places, see `swizzled`
    float sums[2 * BATCH][ROOM]; // S'k of a batch's tokens, then S'q
    float keys[2][CHUNK][STATE_TILE_ROWS]; // of a chunk that is folded, for a chain each in turn; columns change places as in a state, by entry
    Stage stages[STAGES];
    uint64_t filled[STAGES], weighed[STAGES], told[STAGES], free[STAGES], state_filled[CHAINS], state_free[CHAINS], keys_filled[2], keys_free[2], sums_filled, sums_free;
};
static_assert(sizeof(Memory) == 115104); // what `src/ops/mix.rs` asks for
// Where a column of a row of a state is: so that lanes that read at a time meet no bank twice. It is the same for all rows of a tile's lane.
__device__ __forceinline__ int swizzled(int row, int column) { return column ^ row / 2 % 4 * 8; }
__device__ __forceinline__ int first_column() { return threadIdx.x / 32 * 16; }
// This warp's tile of the state, from row `top` on, as a lane looks for it.
__device__ __forceinline__ float* tile_at(Memory& m, int top) { return m.state[top] + swizzled(2 * Tile::t(), first_column() + Tile::column()) - Tile::column(); }
__device__ __forceinline__ float* matrix_of(const MixArgs& a, int head, float* matrices, int index) { return matrices + (static_cast<size_t>(index) * a.states.heads + head) * R * C; }

// Stages in their turn: which, and the parity of the next fill.
struct Turn {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
// Waits for what the barrier of a turn, or of what has turns of its own, guards.
__device__ __forceinline__ void wait_for(uint64_t& barrier, uint32_t parity) { barrier_wait(shared_address(&barrier), parity); }
// Says that a warp is done with what the barrier guards.
__device__ __forceinline__ void done_with(uint64_t& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barrier));
}

// --- warps that fetch
// Asks for a chunk's entries, which earlier steps left.
__device__ __forceinline__ void fetch_entries(Stage& m, const MixArgs& a) {
    const StateView& s = a.states;
    const Batch& b = m.batch;
    const int lane = threadIdx.x % 32, c = lane * 4, entries = b.entries, before = static_cast<int>(s.entries) - b.entry; // the end of the ring
    const size_t ring = b.ring(s);
    const float* values = s.values + (ring + b.entry) * C + c;
#pragma unroll 4
    for (int e = 0; e < min(entries, before); e++) copy_async(&m.u[e][c], values + e * C);
    values -= static_cast<size_t>(s.entries) * C;
#pragma unroll 4
    for (int e = before; e < entries; e++) copy_async(&m.u[e][c], values + e * C);
    if (lane < entries) copy_async_word(&m.g[lane], s.decays + ring + b.entry_at(s, lane));
    if (!b.folded) return;
    for (int i = lane; i < entries * (R / 32); i += 32) prefetch(b.key_at(s, i / (R / 32)) + i % (R / 32) * 32);
}
// Asks for what is about a batch's tokens, and for the decays of all tokens of the chunk up to there.
__device__ __forceinline__ void fetch_tokens(Stage& m, const MixArgs& a) {
    const StateView& s = a.states;
    const Batch& b = m.batch;
    const int lane = threadIdx.x % 32, c = lane * 4, before = b.at - b.entries, live = b.live; // tokens
    const size_t of_group = static_cast<size_t>(b.token + before) * s.groups + b.group, apart = s.groups;
    const float *k = a.unit_keys + of_group * R + c, *q = a.unit_queries + of_group * R + c, *dots = a.dots + of_group * 2 * CHUNK + c;
#pragma unroll 1 // or the warps that fetch have not registers enough
    for (int t = 0; t < BATCH; t++, k += apart * R, q += apart * R, dots += apart * 2 * CHUNK) {
        if (t >= live) break;
        copy_async(&m.k[t][c], k), copy_async(&m.q[t][c], q);
        if (c < 2 * CHUNK) copy_async(&m.dots[t][0][0] + c, dots);
    }
    if (lane >= before + live) return;
    const float* factors = a.factors + (static_cast<size_t>(b.token + lane) * s.heads + b.head) * 2;
    copy_async_word(&m.g[b.entries + lane], factors);
    if (lane >= before) copy_async_word(&m.beta[lane - before], factors + 1);
}
// Batch by batch, as far ahead as there is room. A lane finds an item each, of as many: nobody waits for tables then. Of the first batch, what earlier steps left is on its way before the wait.
__device__ __forceinline__ void feed(Memory& m, const MixArgs& a) {
    const int lane = threadIdx.x % 32;
    Turn turn;
    Item item;
    uint32_t states = 0, folds = 0; // parities: of states so far, and of chunks that were folded, a bit per stage
    bool began = false;
    // What a lane has stored is there, and what it has asked for is when that has come.
    auto sent = [&] {
        const uint32_t filled = shared_address(&m.filled[turn.stage]);
        copies_arrive(filled), barrier_arrive(filled), turn.next();
    };
#pragma unroll 1
    for (int first = blockIdx.x;; first += 32 * gridDim.x) {
        item.find(a, first + lane * gridDim.x);
        const int count = item.batches();
        const uint32_t there = __ballot_sync(~0u, item.there);
        const bool more = __all_sync(~0u, item.more);
#pragma unroll 1
        for (uint32_t left = there; left; left &= left - 1) {
            const int own = __ffs(left) - 1, batches = __shfl_sync(~0u, count, own);
#pragma unroll 1
            for (int number = 0; number < batches; number++) {
                Stage& stage = m.stages[turn.stage];
                wait_for(m.free[turn.stage], turn.parity ^ 1);
                if (lane == own) stage.batch.set(item, number, a.states.entries), stage.batch.parity = states, stage.batch.told = folds >> turn.stage & 1;
                __syncwarp();
                folds ^= stage.batch.folded << turn.stage;
                fetch_entries(stage, a);
                if (!began) depend(), began = true;
                fetch_tokens(stage, a);
                sent();
            }
            states ^= 1;
        }
        if (!more) break;
    }
    if (!began) depend();
    wait_for(m.free[turn.stage], turn.parity ^ 1);
    if (lane == 0) m.stages[turn.stage].batch.more = false;
    sent();
}

// Fetches a state, chain by chain, as soon as there is room; what is before a sequence, at null, is zero.
__device__ __forceinline__ void fetch_state(Memory& m, const float* from, int parity) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int chain = 0; chain < CHAINS; chain++) {
        const uint32_t filled = shared_address(&m.state_filled[chain]);
        wait_for(m.state_free[chain], parity ^ 1);
        float* to = m.state[chain * STATE_TILE_ROWS];
        if (from) {
            const float* rows = from + chain * STATE_TILE_ROWS * C + lane * 4;
#pragma unroll
            for (int r = 0; r < STATE_TILE_ROWS; r++) copy_async(to + r * C + swizzled(r, lane * 4), rows + r * C);
        } else {
            for (int r = 0; r < STATE_TILE_ROWS; r++) *reinterpret_cast<float4*>(to + r * C + lane * 4) = make_float4(0, 0, 0, 0);
        }
        copies_arrive(filled), barrier_arrive(filled);
    }
}
// State by state. What it reads earlier steps have left.
__device__ __forceinline__ void feed_states(Memory& m, const MixArgs& a) {
    const int lane = threadIdx.x % 32;
    const float* own = nullptr;
    uint32_t there = 0, more = 0; // by lane
    int states = 0;               // fetched
#pragma unroll 1
    for (int item = 0;; item++) {
        if (item % 32 == 0) {
            Item i;
            i.find(a, blockIdx.x + (item + lane) * gridDim.x);
            there = __ballot_sync(~0u, i.there), more = __ballot_sync(~0u, i.more), own = nullptr;
            if (i.there && i.row.state_at > 0) own = i.row.restore >= 0 ? matrix_of(a, i.head, a.states.saved_matrices, i.row.restore) : matrix_of(a, i.head, a.states.matrices, i.row.slot);
        }
        const float* from = reinterpret_cast<const float*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(own), item % 32));
        if (!(more >> item % 32 & 1)) return depend();
        if (there >> item % 32 & 1) fetch_state(m, from, states++ & 1);
    }
}

// --- warps that weigh entries
// Fetches the keys of a chunk that is folded, every other chain.
__device__ __forceinline__ void fetch_keys(Memory& m, const MixArgs& a, const Batch& b, int own) {
    constexpr int PIECES = STATE_TILE_ROWS / 4; // of an entry's part
    const int lane = threadIdx.x % 32, c = lane % PIECES * 4;
    const uint32_t filled = shared_address(&m.keys_filled[own]);
#pragma unroll 1
    for (int chain = own; chain < CHAINS; chain += 2) {
        wait_for(m.keys_free[own], chain / 2 ^ 1);
#pragma unroll
        for (int e = lane / PIECES; e < CHUNK; e += 32 / PIECES) copy_async(&m.keys[own][e][c ^ e % 4 * 8], b.key(a, e) + chain * STATE_TILE_ROWS + c);
        copies_arrive(filled), barrier_arrive(filled);
    }
}
__device__ __forceinline__ void weigh_batches(Memory& m, const MixArgs& a) {
    const int thread = threadIdx.x - FIRST_WEIGHER;
    depend();
#pragma unroll 1
    for (Turn turn;; turn.next()) {
        Stage& stage = m.stages[turn.stage];
        wait_for(m.filled[turn.stage], turn.parity);
        if (!stage.batch.more) return;
#pragma unroll 1
        for (int i = thread; i < PAIRS; i += WEIGHERS * 32) weigh({stage.by_key, stage.by_query, stage.decay}, stage.dots, stage.g, stage.batch.at, stage.batch.live, i);
        if (stage.batch.folded && thread <= CHUNK) stage.fold_decay[thread] = decay_between(stage.g, thread - 1, CHUNK - 1);
        done_with(m.weighed[turn.stage]);
        if (stage.batch.folded) fetch_keys(m, a, stage.batch, thread / 32);
    }
}

// --- warps that multiply
// S'k and S'q of a batch's tokens.
__device__ __forceinline__ void products(Memory& m, const Stage& stage, bool frees_state, uint32_t parity) {
    const Batch& b = stage.batch;
    const int token = min(Tile::g() % BATCH, b.live - 1);
    const float* vector = Tile::g() < BATCH ? stage.k[token] : stage.q[token];
    float total[4];
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        SplitSums sums[1][1];
        wait_for(m.state_filled[chain], b.parity);
        tile.load(tile_at(m, chain * STATE_TILE_ROWS), C);
        if (frees_state) done_with(m.state_free[chain]);
        tile.multiply(sums, vector + chain * STATE_TILE_ROWS);
#pragma unroll
        for (int i = 0; i < 4; i++) total[i] = chain == 0 ? sums[0][0].total(i) : __fadd_rn(total[i], sums[0][0].total(i));
    }
    wait_for(m.sums_free, parity ^ 1);
#pragma unroll
    for (int e = 0; e < 2; e++) *reinterpret_cast<float2*>(&m.sums[2 * Tile::t() + e][first_column() + Tile::column()]) = make_float2(total[e], total[2 + e]);
    done_with(m.sums_filled);
}
// Behind a chunk: the state is kept as it is, taken further, or both. Keys come from where earlier steps and `mix_keys` left them: few chunks are folded.
__device__ __forceinline__ void move_state(Memory& m, const Stage& stage, const MixArgs& a, uint64_t& told) {
    const Batch& b = stage.batch;
    const StateView& s = a.states;
    Tile::Gains gains;
    if (b.folded) {
        wait_for(told, b.told);
        gains.load(&stage.u[0][first_column()], C, [&](int entry) { return stage.fold_decay[entry + 1]; });
    }
#pragma unroll 1
    for (int chain = 0; chain < CHAINS; chain++) {
        Tile tile;
        const int top = chain * STATE_TILE_ROWS;
        auto keep = [&](float* matrices, int index) { tile.store(matrix_of(a, b.head, matrices, index) + top * C + first_column(), C); };
        wait_for(m.state_filled[chain], b.parity);
        tile.load(tile_at(m, top), C);
        if (b.carried) keep(s.matrices, b.slot);
        if (!b.folded) continue;
        Tile::Keys keys;
        wait_for(m.keys_filled[chain % 2], chain / 2);
        const float* key = m.keys[chain % 2][Tile::t()];
#pragma unroll
        for (int j = 0; j < STATE_TILE_ROWS / 8; j++)
#pragma unroll
            for (int four = 0; four < 4; four++) keys.b[j][four] = key[four * 4 * STATE_TILE_ROWS + (8 * j + Tile::g() ^ Tile::t() * 8)];
        done_with(m.keys_free[chain % 2]);
        tile.add<2>(0, stage.fold_decay[0], gains, keys);
        if (b.snapshot >= 0) keep(s.saved_matrices, b.snapshot);
        if (b.stored) keep(s.matrices, b.slot);
        if (b.goes_on) tile.store(tile_at(m, top), C); // the next chunk multiplies with it: this warp's columns
    }
    __syncwarp();
}
__device__ __forceinline__ void multiply_batches(Memory& m, const MixArgs& a) {
    uint32_t sums = 0; // parity
    depend();
#pragma unroll 1
    for (Turn turn;; turn.next()) {
        const Stage& stage = m.stages[turn.stage];
        const Batch& b = stage.batch;
        wait_for(m.filled[turn.stage], turn.parity);
        if (!b.more) return;
        const bool moves = b.carried || b.folded, frees = b.last && !moves && b.live > 0;
        if (b.live > 0) products(m, stage, frees, sums), sums ^= 1;
        if (moves) move_state(m, stage, a, m.told[turn.stage]);
        if (b.last && !frees)
            for (uint64_t& free : m.state_free) done_with(free);
        done_with(m.free[turn.stage]);
    }
}

// --- warps that find u and the outputs
// By the thread of a column: entries are added in order, old and new alike.
__device__ __forceinline__ void add_entries(Stage& m, float (&key)[BATCH], float (&query)[BATCH], const float (&v)[BATCH], int c) {
    const int at = m.batch.at, live = m.batch.live;
    auto add = [&](int s, float u, int from) {
        const float4 k = *reinterpret_cast<const float4*>(m.by_key[s]), q = *reinterpret_cast<const float4*>(m.by_query[s]);
        const float by_key[BATCH] = {k.x, k.y, k.z, k.w}, by_query[BATCH] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int t = 0; t < BATCH; t++) {
            if (t >= from) query[t] = __fmaf_rn(by_query[t], u, query[t]);
            if (t > from) key[t] = __fmaf_rn(by_key[t], u, key[t]);
        }
    };
#pragma unroll 4
    for (int s = 0; s < at; s++) add(s, m.u[s][c], -1);
#pragma unroll
    for (int t = 0; t < BATCH; t++) {
        if (t >= live) break;
        const float own = m.beta[t] * (v[t] - key[t]);
        add(at + t, own, t);
        m.u[at + t][c] = own, m.q[t][c] = query[t];
    }
}
// What later steps need of a token, by a warp.
__device__ __forceinline__ void leave(const Stage& m, const MixArgs& a, int t) {
    const Batch& b = m.batch;
    const int e = b.at + t;
    if (e < b.left) return;
    float* key = b.leads ? b.key_at(a.states, e) : nullptr;
    leave_entry(a.states, b.ring(a.states) + b.entry_at(a.states, e), m.u[e], m.g[e], key, *reinterpret_cast<const float4*>(&m.k[t][threadIdx.x % 32 * 4]));
}
// `next` is the stage of the batch behind.
__device__ __forceinline__ void end_batch(Memory& m, Stage& stage, Stage& next, const MixArgs& a, float4 norm, uint64_t& told, uint32_t parity) {
    const Batch& b = stage.batch;
    const int c = threadIdx.x - FIRST_ENDER, own = c / 32, token = b.first_token();
    float v[BATCH], key[BATCH], query[BATCH];
    float4 gate = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int t = 0; t < BATCH; t++) v[t] = t < b.live ? row_of(a.mixed, token + t)[a.values + b.head * C + c] : 0;
    if (own < b.live) gate = *reinterpret_cast<const float4*>(row_of(a.gate, token + own) + b.head * C + c % 32 * 4);
    wait_for(m.sums_filled, parity);
#pragma unroll
    for (int t = 0; t < BATCH; t++) key[t] = stage.decay[t] * m.sums[t][c], query[t] = stage.decay[t] * m.sums[BATCH + t][c]; // what is past the last token is never looked at
    done_with(m.sums_free);
    add_entries(stage, key, query, v, c);
    if (b.folded) done_with(told);
    if (b.chained)
        for (int e = b.entries; e < b.at + b.live; e++) next.u[e][c] = stage.u[e][c];
    meet(1, ENDERS * 32);
    if (own >= b.live) return;
    finish_token(a, token + own, b.head, stage.q[own], gate, norm);
    leave(stage, a, own);
}
__device__ __forceinline__ void end_batches(Memory& m, const MixArgs& a) {
    const float4 norm = *reinterpret_cast<const float4*>(a.norm + threadIdx.x % 32 * 4);
    uint32_t sums = 0;
    depend();
#pragma unroll 1
    for (Turn turn;;) {
        const int at = turn.stage;
        Stage& stage = m.stages[at];
        wait_for(m.filled[at], turn.parity);
        if (!stage.batch.more) return;
        wait_for(m.weighed[at], turn.parity);
        turn.next();
        if (stage.batch.live > 0) end_batch(m, stage, m.stages[turn.stage], a, norm, m.told[at], sums), sums ^= 1;
        else if (stage.batch.folded) done_with(m.told[at]);
        done_with(m.free[at]);
    }
}

#if HOPPER
constexpr int TOGETHER = 2;
#else
constexpr int TOGETHER = 1; // registers cannot change hands
#endif
extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) mix_states(const __grid_constant__ MixArgs a) {
#if SM90 && __CUDA_ARCH__ < 1200 // whose thread blocks have too little shared memory
    extern __shared__ __align__(16) char memory[];
    Memory& m = *reinterpret_cast<Memory*>(memory);
    if (threadIdx.x == 0) {
        auto init = [](uint64_t& barrier, int arrivals) { barrier_init(shared_address(&barrier), arrivals); };
        for (int i = 0; i < STAGES; i++) init(m.filled[i], 2 * 32), init(m.weighed[i], WEIGHERS), init(m.told[i], ENDERS), init(m.free[i], MULTIPLIERS + ENDERS);
        for (int i = 0; i < CHAINS; i++) init(m.state_filled[i], 2 * 32), init(m.state_free[i], MULTIPLIERS);
        for (int i = 0; i < 2; i++) init(m.keys_filled[i], 2 * 32), init(m.keys_free[i], MULTIPLIERS);
        init(m.sums_filled, MULTIPLIERS), init(m.sums_free, ENDERS);
        barrier_init_fence();
    }
    if (threadIdx.x < C / 32) prefetch(a.norm + threadIdx.x * 32);
    __syncthreads();
    release_dependents();
    if (threadIdx.x >= FIRST_WEIGHER) {
        if constexpr (HOPPER) registers_give<48>();
        if (threadIdx.x >= FIRST_FEEDER + 32) return feed_states(m, a);
        return threadIdx.x >= FIRST_FEEDER ? feed(m, a) : weigh_batches(m, a);
    }
    if (threadIdx.x >= FIRST_ENDER) {
        if constexpr (HOPPER) registers_give<48>();
        return end_batches(m, a);
    }
    if constexpr (HOPPER) registers_take<80>();
    multiply_batches(m, a);
#endif
}
