// Recurrent layers of any shape: see `recurrence.cuh`. `keep` serves every layer, `relate` and `recur` what has no kernel of its own (`relate.cu`; `scan.cu`, `prompt.cu`).
//
// `recur` has 32 columns per thread block; eight warps hold the state in registers, `Rows` rows each, a lane a column. A product with the state is eight chains of FMA over
// rows ascending, added in ascending order; sums over entries are by column, positions ascending. Bytes: the state once, read.
#include "recurrence.cuh"

constexpr int WARPS = 8, C = 32, THREADS = WARPS * 32;

// --- what does not depend on the state
template <bool Delta, int J> __device__ __forceinline__ void relate(const RecurArgs& a) {
    constexpr int Batch = J > 4 ? 4 : 8; // keys that are on their way at a time
    enter();
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, token = item / s.groups, group = item % s.groups, rows = s.rows, tokens = live_rows(a.out);
    if (token >= tokens) return;
    StateRow row;
    if (!state_row(s, a.tables, a.tables.tokens[token].request, tokens, row, a.fault)) return;
    const int position = row.start + token - row.first_token, base = position / CHUNK * CHUNK;
    float k[J], q[J];
    load_vector(k, row_of(a.keys, token) + group * rows, rows);
    load_vector(q, row_of(a.queries, token) + group * rows, rows);
    if constexpr (Delta) {
        to_unit_length(k, 1), to_unit_length(q, 1.0f / sqrtf(static_cast<float>(rows)));
        store_vector(k, a.unit_keys + static_cast<size_t>(item) * rows, rows), store_vector(q, a.unit_queries + static_cast<size_t>(item) * rows, rows);
    }
    float by_key = 0, by_query = 0; // lane s keeps the dots with entry s
    for (int first = 0; first <= position - base; first += Batch) {
        float other[Batch][J];
#pragma unroll
        for (int i = 0; i < Batch; i++) {
            const int at = min(base + first + i, position);
            // A position of this step is read where its token is: nobody has written its entry yet.
            load_vector(other[i], at < row.start ? ring_key(s, row, group, at) : row_of(a.keys, row.first_token + at - row.start) + group * rows, rows);
        }
#pragma unroll
        for (int i = 0; i < Batch; i++) {
            if (Delta && min(base + first + i, position) >= row.start) to_unit_length(other[i], 1);
            const float x = Delta ? dot(other[i], k) : 0, y = dot(other[i], q);
            if (lane == first + i) by_key = x, by_query = y;
        }
    }
    float* dots = a.dots + static_cast<size_t>(item) * 2 * CHUNK;
    if (lane < CHUNK) dots[lane] = by_key, dots[CHUNK + lane] = by_query;
    const int members = s.heads / s.groups;
    for (int i = lane; i < members; i += 32) {
        const int head = a.tiled ? i * s.groups + group : group * members + i;
        reinterpret_cast<float2*>(a.factors)[static_cast<size_t>(token) * s.heads + head] = factors<Delta>(a, token, head);
    }
}

// --- entries that no stored state contains: a thread block per request and head
template <bool Delta> __device__ __forceinline__ void keep(const RecurArgs& a) {
    enter();
    const StateView& s = a.states;
    StateRow row;
    if (!state_row(s, a.tables, blockIdx.y, live_rows(a.out), row, a.fault)) return;
    const int head = blockIdx.x, group = group_of(a, head), columns = s.columns, rows = s.rows, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    if (a.leaves && row.is_short(s)) return; // they are there
    for (int position = max(row.start, row.state_end) + threadIdx.x / 32; position < row.end; position += warps) {
        const int token = row.first_token + position - row.start;
        const size_t place = ring_of_head(s, row, head, position), of_token = static_cast<size_t>(token) * s.heads + head;
        const float2 factor = reinterpret_cast<const float2*>(a.factors)[of_token];
        for (int c = lane; c < columns; c += 32) s.values[place * columns + c] = Delta ? a.entered[of_token * columns + c] : factor.y * row_of(a.values, token)[head * columns + c];
        if (lane == 0) s.decays[place] = factor.x;
        if (!leads(a, head)) continue;
        const float* key = Delta ? a.unit_keys + (static_cast<size_t>(token) * s.groups + group) * rows : row_of(a.keys, token) + group * rows;
        float* to = ring_key(s, row, group, position);
        for (int i = lane; i < rows; i += 32) to[i] = key[i];
    }
}

// --- tokens and states
template <int Rows> struct alignas(16) Memory {
    float k[CHUNK][Rows * WARPS + 4]; // of entries, then of tokens
    float q[CHUNK][Rows * WARPS + 4];
    float u[CHUNK][C];                                    // of entries, then of tokens
    float v[CHUNK][C];
    float key_weight[CHUNK][CHUNK], query_weight[CHUNK][CHUNK]; // by token, then entry
    float partial[WARPS][2 * CHUNK][C];
    float sums[2 * CHUNK][C]; // S'k, then S'q, by token
    float g[CHUNK], beta[CHUNK], decay[CHUNK], fold_decay[CHUNK + 1];
};

template <bool Delta, int Rows> __device__ __forceinline__ void load_chunk(const RecurArgs& a, Memory<Rows>& m, const StateRow& row, const Span& span, int head, int first_column) {
    const StateView& s = a.states;
    const int group = group_of(a, head), rows = s.rows, columns = s.columns;
    const size_t width = static_cast<size_t>(s.groups) * rows;
#pragma unroll 2
    for (int i = threadIdx.x; i < CHUNK * Rows * WARPS; i += THREADS) {
        const int at = i / (Rows * WARPS), r = i % (Rows * WARPS), token = span.token + at - span.entries;
        float k = 0, q = 0;
        if (r < rows && at < span.entries) k = ring_key(s, row, group, span.base + at)[r];
        if (r < rows && at >= span.entries && at < span.entries + span.tokens) {
            k = Delta ? a.unit_keys[token * width + group * rows + r] : row_of(a.keys, token)[group * rows + r];
            q = Delta ? a.unit_queries[token * width + group * rows + r] : row_of(a.queries, token)[group * rows + r];
        }
        m.k[at][r] = k;
        if (at >= span.entries) m.q[at - span.entries][r] = q;
    }
#pragma unroll 2
    for (int i = threadIdx.x; i < CHUNK * C; i += THREADS) {
        const int at = i / C, c = first_column + i % C, token = span.token + at - span.entries;
        float value = 0;
        if (c < columns && at < span.entries) value = s.values[ring_of_head(s, row, head, span.base + at) * columns + c];
        m.u[at][i % C] = value;
        if (at >= span.entries) m.v[at - span.entries][i % C] = c < columns && at < span.entries + span.tokens ? row_of(a.values, token)[head * columns + c] : 0;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < span.tokens * 2 * CHUNK; i += THREADS) {
        const float dot = a.dots[(static_cast<size_t>(span.token + i / (2 * CHUNK)) * s.groups + group) * 2 * CHUNK + i % (2 * CHUNK)];
        (i / CHUNK % 2 ? m.query_weight : m.key_weight)[i / (2 * CHUNK)][i % CHUNK] = dot;
    }
    if (threadIdx.x < CHUNK) {
        const int at = threadIdx.x;
        float2 factor = make_float2(0, 0);
        if (at < span.entries) factor.x = s.decays[ring_of_head(s, row, head, span.base + at)];
        else if (at < span.entries + span.tokens) factor = reinterpret_cast<const float2*>(a.factors)[static_cast<size_t>(span.token + at - span.entries) * s.heads + head];
        m.g[at] = factor.x;
        if (at >= span.entries) m.beta[at - span.entries] = factor.y;
    }
}

// Dots times the decay in between; decays from the grid position and to the end of the chunk.
template <int Rows> __device__ __forceinline__ void weigh(Memory<Rows>& m, const Span& span) {
#pragma unroll 1
    for (int i = threadIdx.x; i < span.tokens * CHUNK; i += THREADS) {
        const int t = i / CHUNK, s = i % CHUNK;
        if (s > span.entries + t) continue;
        const float decay = decay_between(m.g, s, span.entries + t);
        m.key_weight[t][s] *= decay, m.query_weight[t][s] *= decay;
    }
    if (threadIdx.x < span.tokens) m.decay[threadIdx.x] = decay_between(m.g, -1, span.entries + threadIdx.x);
    if (threadIdx.x >= 64 && threadIdx.x <= 64 + CHUNK) m.fold_decay[threadIdx.x - 64] = decay_between(m.g, static_cast<int>(threadIdx.x) - 65, CHUNK - 1);
}

// S'k and S'q of a chunk's tokens: this warp's rows.
template <bool Delta, int Rows> __device__ __forceinline__ void products(Memory<Rows>& m, const float (&state)[Rows], const Span& span) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int t = 0; t < span.tokens; t++) {
        float by_key = 0, by_query = 0;
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            if constexpr (Delta) by_key = fmaf(m.k[span.entries + t][warp * Rows + i], state[i], by_key);
            by_query = fmaf(m.q[t][warp * Rows + i], state[i], by_query);
        }
        m.partial[warp][t][lane] = by_key, m.partial[warp][CHUNK + t][lane] = by_query;
    }
}

template <bool Delta, int Rows> __device__ __forceinline__ void outputs(const RecurArgs& a, Memory<Rows>& m, const Span& span, int head, int first_column) {
    const int columns = a.states.columns;
#pragma unroll 1
    for (int i = threadIdx.x; i < span.tokens * C; i += THREADS) {
        const int t = i / C, c = i % C;
        float sum = m.decay[t] * m.sums[CHUNK + t][c];
#pragma unroll 4
        for (int s = 0; s <= span.entries + t; s++) sum = fmaf(m.query_weight[t][s], m.u[s][c], sum);
        if constexpr (!Delta) sum = fmaf(a.skip[head], m.v[t][c], sum);
        if (first_column + c < columns) row_of(a.out, span.token + t)[head * columns + first_column + c] = sum;
    }
}

// u of every token: of the delta rule a thread per column, one token behind the other.
template <bool Delta, int Rows> __device__ __forceinline__ void enter_values(const RecurArgs& a, Memory<Rows>& m, const Span& span, int head, int first_column) {
    const int columns = a.states.columns, c = threadIdx.x;
    if constexpr (!Delta) {
        for (int i = threadIdx.x; i < span.tokens * C; i += THREADS) m.u[span.entries + i / C][i % C] = m.beta[i / C] * m.v[i / C][i % C];
    } else if (c < C) {
#pragma unroll 1
        for (int t = 0; t < span.tokens; t++) {
            float sum = m.decay[t] * m.sums[t][c];
#pragma unroll 4
            for (int s = 0; s < span.entries + t; s++) sum = fmaf(m.key_weight[t][s], m.u[s][c], sum);
            const float u = m.beta[t] * (m.v[t][c] - sum);
            m.u[span.entries + t][c] = u;
            if (first_column + c < columns) a.entered[(static_cast<size_t>(span.token + t) * a.states.heads + head) * columns + first_column + c] = u;
        }
    }
}

template <bool Delta, int Rows> __device__ __forceinline__ void recur(const RecurArgs& a) {
    extern __shared__ __align__(16) char memory[];
    auto& m = *reinterpret_cast<Memory<Rows>*>(memory);
    enter();
    const StateView& s = a.states;
    StateRow row;
    if (!state_row(s, a.tables, blockIdx.y, live_rows(a.out), row, a.fault)) return;
    const int parts = (s.columns + C - 1) / C, head = blockIdx.x / parts, first_column = blockIdx.x % parts * C, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool there = first_column + lane < static_cast<int>(s.columns);
    // This thread's part of the state of a slot or a snapshot.
    auto place = [&](float* matrices, int index) { return matrices + ((static_cast<size_t>(index) * s.heads + head) * s.rows + warp * Rows) * s.columns + first_column + lane; };
    auto owns = [&](int i) { return there && warp * Rows + i < static_cast<int>(s.rows); };
    float state[Rows];
    const float* from = row.restore >= 0 ? place(s.saved_matrices, row.restore) : place(s.matrices, row.slot);
#pragma unroll
    for (int i = 0; i < Rows; i++) state[i] = row.state_at > 0 && owns(i) ? from[static_cast<size_t>(i) * s.columns] : 0;
    auto store = [&](float* to) {
#pragma unroll
        for (int i = 0; i < Rows; i++)
            if (owns(i)) to[static_cast<size_t>(i) * s.columns] = state[i];
    };
    if (row.restore >= 0 && row.state_end == row.state_at) store(place(s.matrices, row.slot));
    for (int base = row.state_at; base < row.end; base += CHUNK) {
        const Span span(row, base);
        __syncthreads(); // the chunk before is done with
        load_chunk<Delta>(a, m, row, span, head, first_column);
        __syncthreads();
        weigh(m, span);
        products<Delta>(m, state, span);
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < 2 * CHUNK * C; i += THREADS) {
            const int r = i / C, c = i % C;
            if (r % CHUNK >= span.tokens) continue;
            float sum = m.partial[0][r][c];
#pragma unroll
            for (int w = 1; w < WARPS; w++) sum += m.partial[w][r][c];
            m.sums[r][c] = sum;
        }
        __syncthreads();
        enter_values<Delta>(a, m, span, head, first_column);
        __syncthreads();
        outputs<Delta>(a, m, span, head, first_column);
        if (!folds(row, base)) continue;
        // The chunk is full: its entries go into the state.
#pragma unroll
        for (int i = 0; i < Rows; i++) state[i] *= m.fold_decay[0];
#pragma unroll 2
        for (int e = 0; e < CHUNK; e++) {
            const float u = m.fold_decay[e + 1] * m.u[e][lane];
#pragma unroll
            for (int i = 0; i < Rows; i++) state[i] = fmaf(m.k[e][warp * Rows + i], u, state[i]);
        }
        if (base + CHUNK == row.snapshot_at) store(place(s.saved_matrices, row.snapshot));
        if (base + CHUNK == row.state_end) store(place(s.matrices, row.slot));
    }
}

// What `src/ops/recurrence.rs` asks for.
template <int Rows> constexpr bool sized = sizeof(Memory<Rows>) == 4 * (2 * CHUNK * (Rows * WARPS + 4) + 2 * CHUNK * C + (WARPS + 1) * 2 * CHUNK * C + 2 * CHUNK * CHUNK + 4 * CHUNK + 4);
static_assert(sized<4> && sized<8> && sized<16> && sized<32>);

#define RELATE(J)                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128) relate_delta_##J(const __grid_constant__ RecurArgs a) { relate<true, J / 32>(a); } \
    extern "C" __global__ void __launch_bounds__(128) relate_space_##J(const __grid_constant__ RecurArgs a) { relate<false, J / 32>(a); }
RELATE(32) RELATE(64) RELATE(128) RELATE(256)
#define RECUR(R)                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) recur_delta_##R(const __grid_constant__ RecurArgs a) { recur<true, R / WARPS>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) recur_space_##R(const __grid_constant__ RecurArgs a) { recur<false, R / WARPS>(a); }
RECUR(32) RECUR(64) RECUR(128) RECUR(256)
extern "C" __global__ void __launch_bounds__(128) keep_delta(const __grid_constant__ RecurArgs a) { keep<true>(a); }
extern "C" __global__ void __launch_bounds__(128) keep_space(const __grid_constant__ RecurArgs a) { keep<false>(a); }
