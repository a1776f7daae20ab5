// A Gated DeltaNet layer between its two products, for steps of decodes and verify windows: convolution, delta rule and gated norm in two kernels, by the operations of `causal_conv.cu`,
// `recurrence.cuh`, `scan.cu` and `norm.cu` in their order, so that the bits are theirs. For states of 128 x 128 and convolutions of four taps.
//
// Inputs f32 [token][columns]: what the convolution reads, the gate, a and b. Result: f32 rows, and where the next product looks for its inputs. Caches: `CudaStateCache`. Scratch in
// between: `RecurrenceScratch` and the convolution's values.
//
// `mix_keys`, in a file of its own, has all that needs no state. `mix_states` takes a head of a request, then the next, in batches of four tokens, while a warp of its own fetches what comes
// next. Two threads have a column: each multiplies half of the state's rows; then one has S'k and finds u, the other S'q and the outputs. Bytes: the state once, read.
#include "mix.cuh"

constexpr int HALF = CHAINS / 2;

// Eight warps compute, one more fetches: of the next item everything but the state while this one is at work, its state as soon as this one's has been multiplied.
constexpr int WARPS = 2 * C / 32, WORKERS = WARPS * 32, THREADS = WORKERS + 32;
constexpr int GAP = 4, SHIFT = 16; // between the halves of a vector and of the state: a warp reads both halves at once, from banks of their own

// Whose work a thread block is at, found out by one thread: divisions are dear.
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
    float k[CHUNK][R + GAP]; // of entries, then of tokens
    float u[CHUNK][C];       // of entries, then of tokens
    // Of a batch:
    float q[BATCH][R + GAP];
    float v[BATCH][C]; // then the outputs
    float gate[BATCH][C];
    float dots[BATCH][2][CHUNK]; // by token, of its key and its query, by entry
    float g[CHUNK], beta[CHUNK];
    Place place;
};
struct alignas(16) Memory {
    float state[R * C + SHIFT];
    Stage stages[2];
    float by_key[CHUNK][BATCH], by_query[CHUNK][BATCH]; // dots times the decay in between, by entry, then token
    float decay[BATCH];
    float norm[C];
    float fold_decay[CHUNK + 4];
    uint64_t stage_filled[2], stage_free[2], state_filled[HALF], state_free[HALF]; // of the state: by the chains that are computed together
};
static_assert(sizeof(Memory) == 113920); // what `src/ops/mix.rs` asks for

__device__ __forceinline__ void workers_meet() { meet(1, WORKERS); }
__device__ __forceinline__ int in_vector(int row) { return row + (row >= R / 2 ? GAP : 0); }
__device__ __forceinline__ int in_state(int row, int column) { return row * C + (row >= R / 2 ? SHIFT : 0) + column; }
// A column is two threads', sixteen lanes apart: the first has the upper half of its rows.
__device__ __forceinline__ int own_column() { return threadIdx.x / 32 * 16 + threadIdx.x % 16; }
__device__ __forceinline__ bool is_first() { return threadIdx.x % 32 < 16; }

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
        copy_async(&m.k[at][in_vector(c)], s.keys + (keys + place) * R + c);
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
    for (int t = warp; t < span.tokens; t += Warps) copy_async(&m.k[span.entries + t][in_vector(c)], a.unit_keys + (static_cast<size_t>(span.token + t) * s.groups + p.group) * R + c);
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
        copy_async(&m.q[t][in_vector(c)], a.unit_queries + of_group * R + c);
        copy_async(&m.v[t][c], row_of(a.mixed, token) + a.values + p.head * C + c);
        copy_async(&m.gate[t][c], row_of(a.gate, token) + p.head * C + c);
        if (c < 2 * CHUNK) copy_async(&m.dots[t][0][0] + c, a.dots + of_group * 2 * CHUNK + c);
    }
}
// Fetches the state, the rows of a chain of either half at a time, as soon as there is room; what is before a sequence is zero.
__device__ __forceinline__ void fetch_state(Memory& m, const MixArgs& a, const Place& p) {
    const int lane = threadIdx.x % 32;
    const float* from = p.row.restore >= 0 ? matrix_of(a, p, a.states.saved_matrices, p.row.restore) : matrix_of(a, p, a.states.matrices, p.row.slot);
#pragma unroll 1
    for (int chain = 0; chain < HALF; chain++) {
        constexpr int FLOATS = LINKS * C, BYTES = FLOATS * sizeof(float);
        const uint32_t filled = shared_address(&m.state_filled[chain]);
        float *upper = m.state + in_state(chain * LINKS, 0), *lower = m.state + in_state(R / 2 + chain * LINKS, 0);
        barrier_wait(shared_address(&m.state_free[chain]), p.parity ^ 1);
        if (p.row.state_at == 0) {
            for (int at = lane * 4; at < FLOATS; at += 32 * 4) *reinterpret_cast<float4*>(upper + at) = *reinterpret_cast<float4*>(lower + at) = make_float4(0, 0, 0, 0);
            stores_to_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(filled);
        } else if (lane == 0) {
            barrier_expect(filled, 2 * BYTES);
            bulk_load(shared_address(upper), from + chain * FLOATS, BYTES, filled);
            bulk_load(shared_address(lower), from + (HALF + chain) * FLOATS, BYTES, filled);
        }
    }
}

// The ninth warp: item by item, as far ahead as there is room. Of the first one, what earlier steps left is on its way before the wait.
__device__ __forceinline__ void feed(Memory& m, const MixArgs& a) {
    int states = 0; // fetched
#pragma unroll 1
    for (int turn = 0, item = blockIdx.x;; turn++, item += gridDim.x) {
        Stage& stage = m.stages[turn % 2];
        const uint32_t filled = shared_address(&m.stage_filled[turn % 2]);
        barrier_wait(shared_address(&m.stage_free[turn % 2]), (turn / 2 & 1) ^ 1);
        if (threadIdx.x % 32 == 0) stage.place.find(a, item), stage.place.turn = turn, stage.place.parity = states & 1;
        __syncwarp();
        const Place& p = stage.place;
        const Span span(p.row, p.row.state_at);
        if (p.there) fetch_entries<1>(stage, a, span, 0);
        if (turn == 0) {
            if (p.there) fetch_state(m, a, p);
            depend();
        }
        if (p.there) {
            fetch_tokens<1>(stage, a, span, 0);
            fetch_batch<1>(stage, a, span, Batch(span, 0), 0);
            copies_commit();
            if (turn > 0) fetch_state(m, a, p);
            states++;
            copies_wait<0>();
        }
        barrier_arrive(filled);
        if (!p.more) return;
    }
}

// Says that a thread is done with what the barrier guards.
__device__ __forceinline__ void done_with(uint64_t& barrier) { barrier_arrive(shared_address(&barrier)); }

// S'k of a batch's tokens, of which there are up to `Live`, for the first thread of a column, S'q for the second: each runs the chains over its half of the rows for both, and they swap.
template <int Live> __device__ __forceinline__ void products(Memory& m, const Stage& stage, const Batch& b, bool frees_state, float (&sum)[BATCH]) {
    const bool first = is_first();
    const int top = first ? 0 : R / 2;
    const float *state = m.state + in_state(top, own_column()), *k = &stage.k[b.at][in_vector(top)], *q = &stage.q[0][in_vector(top)];
    float later[HALF][Live];
#pragma unroll
    for (int chain = 0; chain < HALF; chain++) {
        float by_key[Live] = {}, by_query[Live] = {};
        barrier_wait(shared_address(&m.state_filled[chain]), stage.place.parity);
#pragma unroll (Live > 2 ? 1 : 2)
        for (int i = chain * LINKS; i < (chain + 1) * LINKS; i += 4) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = state[(i + j) * C];
#pragma unroll
            for (int t = 0; t < Live; t++) {
                const float4 kt = *reinterpret_cast<const float4*>(k + t * (R + GAP) + i), qt = *reinterpret_cast<const float4*>(q + t * (R + GAP) + i);
                by_key[t] = __fmaf_rn(kt.x, x[0], by_key[t]), by_key[t] = __fmaf_rn(kt.y, x[1], by_key[t]), by_key[t] = __fmaf_rn(kt.z, x[2], by_key[t]), by_key[t] = __fmaf_rn(kt.w, x[3], by_key[t]);
                by_query[t] = __fmaf_rn(qt.x, x[0], by_query[t]), by_query[t] = __fmaf_rn(qt.y, x[1], by_query[t]), by_query[t] = __fmaf_rn(qt.z, x[2], by_query[t]), by_query[t] = __fmaf_rn(qt.w, x[3], by_query[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < Live; t++) {
            const float mine = first ? by_key[t] : by_query[t], other = __shfl_xor_sync(0xffffffffu, first ? by_query[t] : by_key[t], 16);
            const float sooner = first ? mine : other;
            sum[t] = chain == 0 ? sooner : __fadd_rn(sum[t], sooner);
            later[chain][t] = first ? other : mine;
        }
        if (frees_state) done_with(m.state_free[chain]);
    }
#pragma unroll
    for (int t = 0; t < Live; t++)
#pragma unroll
        for (int chain = 0; chain < HALF; chain++) sum[t] = __fadd_rn(sum[t], later[chain][t]);
}

// u of a batch, and its outputs.
__device__ __forceinline__ void run_tokens(Memory& m, Stage& stage, const Batch& b, bool frees_state) {
    float sum[BATCH] = {};
    if (b.live == 1) products<1>(m, stage, b, frees_state, sum);
    else if (b.live == 2) products<2>(m, stage, b, frees_state, sum);
    else products<BATCH>(m, stage, b, frees_state, sum);
#pragma unroll
    for (int t = 0; t < BATCH; t++) sum[t] = m.decay[t] * sum[t];
    add_entries(sum, is_first() ? m.by_key : m.by_query, stage.u, stage.v, stage.beta + b.at, own_column(), b.at, b.live);
}

// The gated norm of outputs, a warp per token.
__device__ __forceinline__ void finish(const Memory& m, const Stage& stage, const MixArgs& a, const Span& span, const Batch& b) {
    const int t = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    if (t >= b.live) return;
    finish_token(a, span.token + b.first + t, stage.place.head, stage.v[t], *reinterpret_cast<const float4*>(&stage.gate[t][c]), *reinterpret_cast<const float4*>(&m.norm[c]));
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
        leave_entry(s, ring_of(a, p) + place, stage.u[e], stage.g[e], key, *reinterpret_cast<const float4*>(&stage.k[e][in_vector(c)]));
    }
}

// A full chunk goes into the state: a warp has 32 rows of 64 columns, a thread two columns, sixteen rows at a time, so that what is read of a key serves eight FMA.
__device__ __forceinline__ void fold(Memory& m, const Stage& stage) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    asm volatile("" : "+r"(warp), "+r"(lane)); // what follows from them is computed here: registers are few
    const int c = warp / 4 * 64 + lane * 2;
#pragma unroll 1
    for (int top = warp % 4 * 32, end = top + 32; top < end; top += 16) {
        float* at = m.state + in_state(top, c);
        const float* key = &stage.k[0][in_vector(top)];
        float2 state[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            state[i] = *reinterpret_cast<const float2*>(at + i * C);
            state[i].x *= m.fold_decay[0], state[i].y *= m.fold_decay[0];
        }
#pragma unroll 2
        for (int s = 0; s < CHUNK; s++) {
            const float2 u = *reinterpret_cast<const float2*>(&stage.u[s][c]);
            const float x = m.fold_decay[s + 1] * u.x, y = m.fold_decay[s + 1] * u.y;
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const float4 k = *reinterpret_cast<const float4*>(key + s * (R + GAP) + i);
                state[i].x = __fmaf_rn(k.x, x, state[i].x), state[i].y = __fmaf_rn(k.x, y, state[i].y);
                state[i + 1].x = __fmaf_rn(k.y, x, state[i + 1].x), state[i + 1].y = __fmaf_rn(k.y, y, state[i + 1].y);
                state[i + 2].x = __fmaf_rn(k.z, x, state[i + 2].x), state[i + 2].y = __fmaf_rn(k.z, y, state[i + 2].y);
                state[i + 3].x = __fmaf_rn(k.w, x, state[i + 3].x), state[i + 3].y = __fmaf_rn(k.w, y, state[i + 3].y);
            }
        }
#pragma unroll
        for (int i = 0; i < 16; i++) *reinterpret_cast<float2*>(at + i * C) = state[i];
    }
}
__device__ __forceinline__ void store_state(const Memory& m, float* to) {
    int at = threadIdx.x * 4;
    asm volatile("" : "+r"(at)); // as above
#pragma unroll 4
    for (; at < R * C; at += WORKERS * 4) *reinterpret_cast<float4*>(to + at) = *reinterpret_cast<const float4*>(m.state + in_state(at / C, at % C));
}

// Behind a chunk: the state is kept as it is, taken further, or both. The state is there.
__device__ __forceinline__ void move_state(Memory& m, const Stage& stage, const MixArgs& a, int base, bool carried, bool folded) {
    const Place& p = stage.place;
    const StateRow& row = p.row;
    if (threadIdx.x <= CHUNK) m.fold_decay[threadIdx.x] = decay_between(stage.g, static_cast<int>(threadIdx.x) - 1, CHUNK - 1);
    workers_meet();
    if (carried) store_state(m, matrix_of(a, p, a.states.matrices, row.slot)), workers_meet();
    if (!folded) return;
    fold(m, stage);
    workers_meet();
    if (base + CHUNK == row.snapshot_at) store_state(m, matrix_of(a, p, a.states.saved_matrices, row.snapshot));
    if (base + CHUNK == row.state_end) store_state(m, matrix_of(a, p, a.states.matrices, row.slot));
    workers_meet(); // before the next chunk multiplies or another state comes
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
            finish(m, stage, a, span, b);
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
        for (int i = 0; i < 2; i++) barrier_init(shared_address(&m.stage_filled[i]), 32), barrier_init(shared_address(&m.stage_free[i]), WORKERS);
        for (int i = 0; i < HALF; i++) barrier_init(shared_address(&m.state_filled[i]), 1), barrier_init(shared_address(&m.state_free[i]), WORKERS);
        barrier_init_fence();
    }
    if (threadIdx.x < C) m.norm[threadIdx.x] = a.norm[threadIdx.x];
    __syncthreads();
    release_dependents();
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
