// What a Gated DeltaNet layer needs no state for, in steps of decodes and verify windows: the first of the two kernels of `mix.cu`, which says what they are. Convolution, keys and queries of unit
// length, values, dots with the keys of the chunk, factors.
//
// A thread block per request and group, of which many fit a multiprocessor; a warp per vector of a token, then per token and four entries. It alone touches the convolution's inputs, and pieces of the
// product ahead. The host gives it as many warps as there is work for at a time.
#include "mix_inputs.cuh"

constexpr int MOST_THREADS = 256, WINDOW = 1 + MAX_DRAFTS;
constexpr int QUARTERS = 4, ENTRIES = CHUNK / QUARTERS; // entries that a warp has at a time
static_assert(ENTRIES == 4);

struct Memory {
    float k[WINDOW][R], q[WINDOW][R];
};

// Of a group: queries, keys, then the values of its heads.
__device__ __forceinline__ int head_of(const MixArgs& a, int group, int member) {
    const int groups = a.states.groups;
    return a.tiled ? member * groups + group : group * (a.states.heads / groups) + member;
}
__device__ __forceinline__ int first_channel(const MixArgs& a, int group, int kind) {
    return kind == 0 ? a.queries + group * R : kind == 1 ? a.keys + group * R : a.values + head_of(a, group, kind - 2) * C;
}

// One vector of a token, by a warp. Its input stays for later steps, and with the first token those of a snapshot that the row starts from.
template <bool Pieced> __device__ __forceinline__ void convolve(Memory& m, const MixArgs& a, const StateRow& row, int group, int t, int kind) {
    const StateView& s = a.states;
    const int first = first_channel(a, group, kind) + threadIdx.x % 32, token = row.first_token + t, room = s.conv_inputs;
    float input[TAPS][R / 32], x[R / 32];
#pragma unroll
    for (int i = 0; i < TAPS; i++) load_input<Pieced>(input[i], a, row, row.start + t + i - (TAPS - 1), first);
#pragma unroll
    for (int j = 0; j < R / 32; j++) {
        const float4 taps = *reinterpret_cast<const float4*>(a.taps + static_cast<size_t>(first + j * 32) * TAPS);
        float sum = a.bias ? a.bias[first + j * 32] : 0;
        sum = fmaf(taps.x, input[0][j], sum), sum = fmaf(taps.y, input[1][j], sum), sum = fmaf(taps.z, input[2][j], sum), sum = fmaf(taps.w, input[3][j], sum);
        x[j] = silu(sum);
    }
    if (kind < 2) {
        to_unit_length(x, kind == 0 ? 1.0f / sqrtf(static_cast<float>(R)) : 1.0f);
        store_vector(x, kind == 0 ? m.q[t] : m.k[t], R);
        store_vector(x, (kind == 0 ? a.unit_queries : a.unit_keys) + (static_cast<size_t>(token) * s.groups + group) * R, R);
    } else {
        store_vector(x, row_of(a.mixed, token) + first_channel(a, group, kind), C);
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const int position = row.start + t + i - (TAPS - 1);
        if (i < TAPS - 1 && (t > 0 || row.restore < 0 || position < 0)) continue;
        float* to = s.inputs + (static_cast<size_t>(row.slot) * room + position % room) * s.conv_channels + first;
#pragma unroll
        for (int j = 0; j < R / 32; j++) to[j * 32] = input[i][j];
    }
}
// The gate of a token and head, if it is still in pieces: `mix_states` reads it where it belongs.
__device__ __forceinline__ void finish_gate(const MixArgs& a, int token, int head) {
    float x[C / 32];
    Pieces(a.pieces, token, a.gate_from + head * C + threadIdx.x % 32).spread(x);
    store_vector(x, row_of(a.gate, token) + head * C, C);
}
template <bool Pieced> __device__ __forceinline__ void save_inputs(const MixArgs& a, const StateRow& row, int group) {
    const StateView& s = a.states;
    const int before = TAPS - 1, vectors = 2 + s.heads / s.groups;
#pragma unroll 1
    for (int i = threadIdx.x; i < before * vectors * R; i += blockDim.x) {
        const int place = i / (vectors * R), channel = first_channel(a, group, i / R % vectors) + i % R;
        s.saved_inputs[(static_cast<size_t>(row.snapshot) * before + place) * s.conv_channels + channel] = input_at<Pieced>(a, row, row.snapshot_at - before + place, channel);
    }
}

// Dots of a token's key and query with the keys of its chunk. A warp has four entries and adds up their eight dots together: each step of the way halves their number, and each is the sum
// that `warp_sum` makes.
__device__ __forceinline__ void relate(const Memory& m, const MixArgs& a, const StateRow& row, int group, int t, int quarter) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, position = row.start + t, base = position / CHUNK * CHUNK, first = base + quarter * ENTRIES;
    if (first > position) return;
    float part[8];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int at = min(first + e, position);
        const float* key = at < row.start ? ring_key(s, row, group, at) : m.k[at - row.start];
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            const float x = key[j * 32 + lane], k = m.k[t][j * 32 + lane], q = m.q[t][j * 32 + lane];
            part[e] = j ? fmaf(x, k, part[e]) : x * k, part[4 + e] = j ? fmaf(x, q, part[4 + e]) : x * q;
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
    float* dots = a.dots + (static_cast<size_t>(row.first_token + t) * s.groups + group) * 2 * CHUNK;
    if (lane % 4 == 0) dots[lane / 16 * CHUNK + first - base + lane / 4 % 4] = part[0];
}

__device__ __forceinline__ void prefetch_weights(const MixArgs& a, int group) {
    constexpr int LINE = 128 / (TAPS * sizeof(float)); // channels whose taps are a line of memory
    const int members = a.states.heads / a.states.groups;
    for (int i = threadIdx.x; i < (2 + members) * R / LINE; i += blockDim.x) prefetch(a.taps + static_cast<size_t>(first_channel(a, group, i / (R / LINE)) + i % (R / LINE) * LINE) * TAPS);
    if (threadIdx.x < members) prefetch(a.dt_bias + head_of(a, group, threadIdx.x)), prefetch(a.decay + head_of(a, group, threadIdx.x));
}

// Keys that earlier steps left of the first token's chunk.
__device__ __forceinline__ void prefetch_keys(const MixArgs& a, const StateRow& row, int group) {
    constexpr int LINES = R * sizeof(float) / 128;
    const int base = row.start / CHUNK * CHUNK;
    for (int i = threadIdx.x; i < (row.start - base) * LINES; i += blockDim.x) prefetch(ring_key(a.states, row, group, base + i / LINES) + i % LINES * 32);
}

template <bool Pieced> __device__ __forceinline__ void mix_keys_of(const MixArgs& a) {
    __shared__ Memory m;
    release_dependents();
    prefetch_weights(a, blockIdx.x);
    StateRow row;
    if (!state_row(a.states, a.tables, blockIdx.y, live_rows(a.out), row, a.fault)) return depend();
    // A window's entries and inputs have places of their own in the rings.
    if (!row.is_short(a.states) || row.tokens > WINDOW || row.tokens + TAPS - 1 > static_cast<int>(a.states.conv_inputs)) {
        report(a.fault, RecordHeader::BAD_SLOT);
        return depend();
    }
    const int group = blockIdx.x, members = a.states.heads / a.states.groups, vectors = 2 + members, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int all = vectors + (Pieced ? members : 0);
    if (warp < vectors) prefetch_inputs(a, row, row.start, first_channel(a, group, warp)); // of the first token; others have fewer, and the same
    prefetch_keys(a, row, group);
    depend();
#pragma unroll 1
    for (int i = warp; i < row.tokens * all; i += warps) {
        const int t = i / all, kind = i % all;
        if (kind < vectors) convolve<Pieced>(m, a, row, group, t, kind);
        else if constexpr (Pieced) finish_gate(a, row.first_token + t, head_of(a, group, kind - vectors));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < row.tokens * members; i += blockDim.x) {
        const int token = row.first_token + i / members, head = head_of(a, group, i % members);
        reinterpret_cast<float2*>(a.factors)[static_cast<size_t>(token) * a.states.heads + head] = mix_factors<Pieced>(a, token, head);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < row.tokens * QUARTERS; i += warps) relate(m, a, row, group, i / QUARTERS, i % QUARTERS);
    if (row.snapshot_at > 0) save_inputs<Pieced>(a, row, group);
}
extern "C" __global__ void __launch_bounds__(MOST_THREADS) mix_keys(const __grid_constant__ MixArgs a) { mix_keys_of<false>(a); }
// For few tokens, with more registers.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2) mix_keys_pieced(const __grid_constant__ MixArgs a) { mix_keys_of<true>(a); }
