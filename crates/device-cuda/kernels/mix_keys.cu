// What a Gated DeltaNet layer needs no state for, in steps of decodes and verify windows: the first of the two kernels of `mix.cu`, which says what they are. Convolution, keys and queries of unit
// length, values, dots with the keys of the chunk, factors.
//
// A thread block has a request and some of its groups, one after the other: as many as it takes for all work to be dealt out at once. A warp per vector of a group and run of tokens, then per four
// entries. It alone touches the convolution's inputs, and pieces of the product ahead. A token takes hundreds of instructions and a few hundred bytes per vector: what is about the request is
// found out once for all groups, and inputs and keys are read once for all tokens.
#include "mix_inputs.cuh"

constexpr int WARPS = 4, WINDOW = 1 + MAX_DRAFTS;
constexpr int QUARTERS = 4, ENTRIES = CHUNK / QUARTERS; // entries that a warp has at a time
constexpr int J = R / 32;                               // elements of a vector that a lane has
constexpr int BEFORE = TAPS - 1;
static_assert(ENTRIES == 4 && QUARTERS == WARPS);

// Of a group: queries, keys, then the values of its heads.
__device__ __forceinline__ int head_of(const MixArgs& a, int group, int member) {
    const int groups = a.states.groups;
    return a.tiled ? member * groups + group : group * (a.states.heads / groups) + member;
}
__device__ __forceinline__ int first_channel(const MixArgs& a, int group, int kind) {
    return kind == 0 ? a.queries + group * R : kind == 1 ? a.keys + group * R : a.values + head_of(a, group, kind - 2) * C;
}

// Where a request stands in the rings of its slot: divisions are dear.
struct Places {
    int input; // of the third position before the row
    int entry; // of the first position of the first token's chunk

    __device__ __forceinline__ void find(const StateView& s, const StateRow& row) {
        input = (row.start + s.conv_inputs - BEFORE) % s.conv_inputs, entry = row.start / CHUNK * CHUNK % s.entries;
    }
    // The input `i` positions behind the third before the row, fewer than there are places.
    __device__ __forceinline__ float* input_at(const StateView& s, const StateRow& row, int i) const {
        const int at = input + i, room = s.conv_inputs;
        return s.inputs + static_cast<size_t>(row.slot * room + (at < room ? at : at - room)) * s.conv_channels;
    }
    // The key `i` positions behind the first of the first token's chunk.
    __device__ __forceinline__ const float* key_at(const StateView& s, const StateRow& row, int group, int i) const {
        const int at = entry + i, room = s.entries;
        return s.keys + (static_cast<size_t>(row.slot * s.groups + group) * room + (at < room ? at : at - room)) * R;
    }
};

struct Memory {
    float k[WINDOW][R], q[WINDOW][R]; // of a group, by token
    StateRow row;
    Places places;
    int first, step; // groups of this thread block
    bool there, more;

    // By one thread: registers are short, and so is the time for what all would find out alike.
    __device__ __forceinline__ void find(const MixArgs& a, int item) {
        const int groups = a.states.groups, requests = request_rows(a.tables), blocks = gridDim.x, together = min(max((requests * groups + blocks - 1) / blocks, 1), groups);
        step = (groups + together - 1) / together;
        const int request = item / step;
        first = item % step, there = false, more = request < requests;
        if (!more || !state_row(a.states, a.tables, request, live_rows(a.out), row, a.fault)) return;
        // A window's entries and inputs have places of their own in the rings.
        there = row.is_short(a.states) && row.tokens <= WINDOW && row.tokens + BEFORE <= static_cast<int>(a.states.conv_inputs);
        if (there) places.find(a.states, row);
        else report(a.fault, RecordHeader::BAD_SLOT);
    }
};

// Where the inputs of all channels are that earlier steps left of one of the three positions before the row: in the ring, or in the snapshot that the row starts from.
__device__ __forceinline__ const float* inputs_before(const MixArgs& a, const StateRow& row, const Places& places, int i) {
    const StateView& s = a.states;
    return row.restore >= 0 ? s.saved_inputs + (static_cast<size_t>(row.restore) * BEFORE + i) * s.conv_channels : places.input_at(s, row, i);
}
// The input of a vector's convolution `i` positions behind the third before the row, from `channel` on; zero before the sequence. `now`: the pieces of the row's first token.
template <bool Pieced> __device__ __forceinline__ void load_near(float (&x)[J], const MixArgs& a, const StateRow& row, const Places& places, const Pieces& now, int i, int channel) {
    if constexpr (Pieced)
        if (i >= BEFORE) {
            Pieces pieces = now;
            pieces.at += (i - BEFORE) * TILE;
            return pieces.spread(x);
        }
    const float* from = i >= BEFORE ? row_of(a.x, row.first_token + i - BEFORE) : inputs_before(a, row, places, i);
    const bool there = row.start + i >= BEFORE;
#pragma unroll
    for (int j = 0; j < J; j++) x[j] = there ? from[channel + j * 32] : 0;
}

// Vectors of a token: what the convolution made of a query, a key or a value.
__device__ __forceinline__ void leave_vector(Memory& m, const MixArgs& a, float (&x)[J], int token, int place, int group, int kind, int channel) {
    if (kind < 2) {
        to_unit_length(x, kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
        store_vector(x, kind == 0 ? m.q[place] : m.k[place], R);
        store_vector(x, (kind == 0 ? a.unit_queries : a.unit_keys) + (static_cast<size_t>(token) * a.states.groups + group) * R, R);
    } else {
        store_vector(x, row_of(a.mixed, token) + channel, C);
    }
}

// One vector of a group, of all tokens, by a warp: to the places from `place` on. Inputs stay for later steps, and with them those of a snapshot that the row starts from.
template <bool Pieced, int Run> __device__ __forceinline__ void convolve(Memory& m, const MixArgs& a, int place, int group, int kind) {
    const StateView& s = a.states;
    const StateRow& row = m.row;
    const int lane = threadIdx.x % 32, channel = first_channel(a, group, kind), own = channel + lane;
    const Pieces now = Pieced ? Pieces(a.pieces, row.first_token, a.x_from + own) : Pieces();
#pragma unroll 1
    for (int t = 0; t < row.tokens; t += Run) {
        const int tokens = min(Run, row.tokens - t);
        float input[Run + BEFORE][J], x[Run][J];
#pragma unroll
        for (int i = 0; i < Run + BEFORE; i++)
            if (i < tokens + BEFORE) load_near<Pieced>(input[i], a, row, m.places, now, t + i, own);
#pragma unroll
        for (int i = 0; i < Run + BEFORE; i++)
            if (i < BEFORE ? t == 0 && row.restore >= 0 && row.start + i >= BEFORE : i < tokens + BEFORE) store_vector(input[i], m.places.input_at(s, row, t + i) + channel, R);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const float4 taps = *reinterpret_cast<const float4*>(a.taps + static_cast<size_t>(own + j * 32) * TAPS);
            const float bias = a.bias ? a.bias[own + j * 32] : 0;
#pragma unroll
            for (int i = 0; i < Run; i++) {
                if (i >= tokens) break;
                float sum = fmaf(taps.x, input[i][j], bias);
                sum = fmaf(taps.y, input[i + 1][j], sum), sum = fmaf(taps.z, input[i + 2][j], sum), sum = fmaf(taps.w, input[i + 3][j], sum);
                x[i][j] = silu(sum);
            }
        }
#pragma unroll
        for (int i = 0; i < Run; i++)
            if (i < tokens) leave_vector(m, a, x[i], row.first_token + t + i, place + t + i, group, kind, channel);
    }
}
// The gates of a head, if they are still in pieces: `mix_states` reads them where they belong.
template <int Run> __device__ __forceinline__ void finish_gates(const MixArgs& a, const StateRow& row, int head) {
    const Pieces first(a.pieces, row.first_token, a.gate_from + head * C + threadIdx.x % 32);
#pragma unroll 1
    for (int t = 0; t < row.tokens; t += Run) {
        float x[Run][C / 32];
#pragma unroll
        for (int i = 0; i < Run; i++) {
            Pieces pieces = first;
            pieces.at += (t + i) * TILE;
            if (t + i < row.tokens) pieces.spread(x[i]);
        }
#pragma unroll
        for (int i = 0; i < Run; i++)
            if (t + i < row.tokens) store_vector(x[i], row_of(a.gate, row.first_token + t + i) + head * C, C);
    }
}
template <bool Pieced> __device__ __forceinline__ void save_inputs(const MixArgs& a, const StateRow& row, int group) {
    const StateView& s = a.states;
    const int vectors = 2 + s.heads / s.groups;
#pragma unroll 1
    for (int i = threadIdx.x; i < BEFORE * vectors * R; i += blockDim.x) {
        const int place = i / (vectors * R), channel = first_channel(a, group, i / R % vectors) + i % R;
        s.saved_inputs[(static_cast<size_t>(row.snapshot) * BEFORE + place) * s.conv_channels + channel] = input_at<Pieced>(a, row, row.snapshot_at - BEFORE + place, channel);
    }
}

// Dots of a token's key and query with four keys of its chunk, eight that are added up together: each step of the way halves their number, and each is the sum that `warp_sum` makes.
__device__ __forceinline__ float eight_dots(const float (&keys)[ENTRIES][J], const float* k, const float* q) {
    const int lane = threadIdx.x % 32;
    float part[2 * ENTRIES];
#pragma unroll
    for (int j = 0; j < J; j++) {
        const float own_k = k[j * 32 + lane], own_q = q[j * 32 + lane];
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            const float x = keys[e][j];
            part[e] = j ? fmaf(x, own_k, part[e]) : x * own_k, part[4 + e] = j ? fmaf(x, own_q, part[4 + e]) : x * own_q;
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
    return part[0];
}

// Dots of all tokens with a quarter of their chunks' keys, by a warp.
__device__ __forceinline__ void relate(const Memory& m, const MixArgs& a, int place, int group, int quarter) {
    const StateView& s = a.states;
    const StateRow& row = m.row;
    const int lane = threadIdx.x % 32, chunk = row.start / CHUNK * CHUNK;
#pragma unroll 1
    for (int t = 0; t < row.tokens;) {
        const int base = (row.start + t) / CHUNK * CHUNK, end = min(base + CHUNK, row.end), first = base + quarter * ENTRIES; // of tokens of one chunk
        float keys[ENTRIES][J];
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            const int at = min(first + e, end - 1);
            if (at < row.start) load_vector(keys[e], m.places.key_at(s, row, group, at - chunk), R);
            else load_vector(keys[e], m.k[place + at - row.start], R);
        }
#pragma unroll 1
        for (; t < end - row.start; t++) {
            if (first > row.start + t) continue;
            const float dot = eight_dots(keys, m.k[place + t], m.q[place + t]);
            float* dots = a.dots + (static_cast<size_t>(row.first_token + t) * s.groups + group) * 2 * CHUNK;
            if (lane % 4 == 0) dots[lane / 16 * CHUNK + first - base + lane / 4 % 4] = dot;
        }
    }
}

// Taps of a group, and what its heads have.
__device__ __forceinline__ void prefetch_weights(const MixArgs& a, int group) {
    constexpr int LINE = 128 / (TAPS * sizeof(float)); // channels whose taps are a line of memory
    const int members = a.states.heads / a.states.groups;
    for (int i = threadIdx.x; i < (2 + members) * R / LINE; i += blockDim.x) prefetch(a.taps + static_cast<size_t>(first_channel(a, group, i / (R / LINE)) + i % (R / LINE) * LINE) * TAPS);
    if (threadIdx.x < members) prefetch(a.dt_bias + head_of(a, group, threadIdx.x)), prefetch(a.decay + head_of(a, group, threadIdx.x));
}

// What earlier steps left, of a group: keys of the first token's chunk, and the inputs before it.
__device__ __forceinline__ void prefetch_left(const MixArgs& a, const StateRow& row, const Places& places, int group) {
    constexpr int LINES = R * sizeof(float) / 128;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, entries = row.start % CHUNK;
    for (int i = threadIdx.x; i < entries * LINES; i += blockDim.x) prefetch(places.key_at(a.states, row, group, i / LINES) + i % LINES * 32);
    if (warp < 2 + static_cast<int>(a.states.heads / a.states.groups) && lane < BEFORE * LINES && row.start + lane / LINES >= BEFORE)
        prefetch(inputs_before(a, row, places, lane / LINES) + first_channel(a, group, warp) + lane % LINES * 32);
}

// Factors of the heads of all groups of this thread block, by threads of its last warps, which have the least to do.
template <bool Pieced> __device__ __forceinline__ void leave_factors(const Memory& m, const MixArgs& a) {
    const int groups = a.states.groups, members = a.states.heads / groups, own = (groups - m.first + m.step - 1) / m.step * members;
#pragma unroll 1
    for (int i = blockDim.x - 1 - threadIdx.x; i < m.row.tokens * own; i += blockDim.x) {
        const int token = m.row.first_token + i / own, head = head_of(a, m.first + i % own / members * m.step, i % members);
        reinterpret_cast<float2*>(a.factors)[static_cast<size_t>(token) * a.states.heads + head] = mix_factors<Pieced>(a, token, head);
    }
}

// All groups of this thread block, `Run` tokens at a time.
template <bool Pieced, int Run> __device__ __forceinline__ void mix_groups(Memory& m, const MixArgs& a) {
    const int groups = a.states.groups, members = a.states.heads / groups, vectors = 2 + members, all = vectors + (Pieced ? members : 0), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const bool half = m.row.tokens <= WINDOW / 2; // then groups take turns in two halves of the memory
    int place = 0;
#pragma unroll 1
    for (int group = m.first; group < groups; group += m.step) {
#pragma unroll 1
        for (int i = warp; i < all; i += warps) {
            if (i < vectors) convolve<Pieced, Run>(m, a, place, group, i);
            else if constexpr (Pieced) finish_gates<Run>(a, m.row, head_of(a, group, i - vectors));
        }
        __syncthreads();
        if (warp < QUARTERS) relate(m, a, place, group, warp);
        if (m.row.snapshot_at > 0) save_inputs<Pieced>(a, m.row, group);
        if (half) place = WINDOW / 2 - place;
        else __syncthreads(); // keys and queries have been read
    }
}

template <bool Pieced, int Run> __device__ __forceinline__ void mix_keys_of(const MixArgs& a) {
    __shared__ Memory m;
    release_dependents();
    const int groups = a.states.groups;
    if (blockIdx.x < groups) prefetch_weights(a, blockIdx.x); // all requests have the same
#pragma unroll 1
    for (int item = blockIdx.x;; item += gridDim.x) {
        if (threadIdx.x == 0) m.find(a, item);
        __syncthreads();
        if (m.there)
            for (int group = m.first; group < groups; group += m.step) prefetch_left(a, m.row, m.places, group);
        depend();
        if (!m.more) return;
        if (m.there) {
            leave_factors<Pieced>(m, a);
            mix_groups<Pieced, Run>(m, a);
        }
        __syncthreads(); // what was found has been read
    }
}
// Thread blocks per multiprocessor are what `src/ops/mix.rs` counts on.
extern "C" __global__ void __launch_bounds__(32 * WARPS, HOPPER ? 6 : 5) mix_keys(const __grid_constant__ MixArgs a) { mix_keys_of<false, 4>(a); }
// For few tokens, with more registers, and warps for gates that are in pieces.
extern "C" __global__ void __launch_bounds__(48 * WARPS, HOPPER ? 3 : 2) mix_keys_pieced(const __grid_constant__ MixArgs a) { mix_keys_of<true, 2>(a); }
