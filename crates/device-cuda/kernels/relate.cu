// What does not depend on the state, where a request may have many tokens: `relate` of `recurrence.cu` for 128 rows, to the last bit.
//
// A warp per run of tokens of the step and group: a chunk's where there are many tokens, and a few where most may be those of requests with one. It takes the chunks whose first token of this step
// is among them: their keys stay in its registers, so that each is brought to unit length once, and the dots of a token with all of them are summed over lanes together. Queries are on their way
// while those before are at work. Bytes: keys and queries once, and what is left of them.
#include "recurrence.cuh"

constexpr int R = 128, J = R / 32, WARPS = 4, AHEAD = 4;
// Thread blocks per multiprocessor that registers are counted out for.
constexpr int BLOCKS = SM90 ? 4 : 3;

// Sums 2 `Half` numbers of every lane over all lanes. With 32: lane i gets the sum of number i. Level by level the same pairs as `warp_sum` has, so the same bits; each level halves what
// is left to add.
template <int Half = 16> __device__ __forceinline__ float sums_by_lane(float (&x)[2 * CHUNK]) {
    const bool upper = threadIdx.x & Half;
#pragma unroll
    for (int i = 0; i < Half; i++) {
        const float kept = upper ? x[i + Half] : x[i], given = upper ? x[i] : x[i + Half];
        x[i] = kept + __shfl_xor_sync(~0u, given, Half);
    }
    if constexpr (Half > 1) return sums_by_lane<Half / 2>(x);
    else return x[0];
}

// This lane's part of a dot, as `dot` begins it.
__device__ __forceinline__ float part_of_dot(const float (&x)[J], const float (&y)[J]) {
    float sum = x[0] * y[0];
#pragma unroll
    for (int j = 1; j < J; j++) sum = fmaf(x[j], y[j], sum);
    return sum;
}

// Of a warp.
struct alignas(16) Memory {
    float keys[CHUNK][R], queries[AHEAD][R];
};

// The chunk that `token` is in, from there on.
template <bool Delta> __device__ __forceinline__ void relate_chunk(const RecurArgs& a, const StateRow& row, int token, int group, Memory& m) {
    const StateView& s = a.states;
    const int lane = threadIdx.x % 32, position = row.start + token - row.first_token;
    const Span span(row, position / CHUNK * CHUNK);
    const int end = span.entries + span.tokens, first = span.token - span.entries;
    __syncwarp(); // the chunk before has been read
    auto ask = [&](int at) {
        if (at < end) copy_async(m.queries[at % AHEAD] + lane * 4, row_of(a.queries, first + at) + group * R + lane * 4);
        copies_commit();
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) ask(span.entries + i);
    float keys[CHUNK][J];
#pragma unroll
    for (int e = 0; e < CHUNK; e++)
        // A position of this step is read where its token is: nobody has written its entry yet.
        load_vector(keys[e], e < span.entries ? ring_key(s, row, group, span.base + e) : row_of(a.keys, first + e) + group * R, e < end ? R : 0);
#pragma unroll
    for (int e = 0; e < CHUNK; e++) {
        if (Delta && e >= span.entries && e < end) {
            to_unit_length(keys[e], 1);
            store_vector(keys[e], a.unit_keys + (static_cast<size_t>(first + e) * s.groups + group) * R, R);
        }
        store_vector(keys[e], m.keys[e], R);
    }
#pragma unroll 1
    for (int at = span.entries; at < end; at++) {
        const size_t item = static_cast<size_t>(first + at) * s.groups + group;
        float key[J], query[J], dots[2 * CHUNK];
        copies_wait<AHEAD - 1>();
        __syncwarp();
        load_vector(query, m.queries[at % AHEAD], R);
        __syncwarp();
        ask(at + AHEAD);
        if constexpr (Delta) {
            load_vector(key, m.keys[at], R); // what this lane has stored
            to_unit_length(query, 1.0f / sqrtf(static_cast<float>(R)));
            store_vector(query, a.unit_queries + item * R, R);
        }
#pragma unroll
        for (int e = 0; e < CHUNK; e++) dots[e] = Delta ? part_of_dot(keys[e], key) : 0, dots[CHUNK + e] = part_of_dot(keys[e], query);
        a.dots[item * 2 * CHUNK + lane] = sums_by_lane(dots);
    }
    const int members = s.heads / s.groups;
    for (int i = lane; i < span.tokens * members; i += 32) {
        const int head = a.tiled ? i % members * s.groups + group : group * members + i % members, of = span.token + i / members;
        reinterpret_cast<float2*>(a.factors)[static_cast<size_t>(of) * s.heads + head] = factors<Delta>(a, of, head);
    }
}

template <bool Delta> __device__ __forceinline__ void relate_prompt(const RecurArgs& a) {
    __shared__ Memory memory[WARPS];
    enter();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, item = blockIdx.x * WARPS + warp, groups = a.states.groups, group = item % groups, tokens = live_rows(a.out);
    // The first token of a request's row, and one at a grid position, begin a chunk.
    const int run = a.run, first = item / groups * run, own = first + lane;
    bool begins = false;
    if (lane < run && own < tokens) {
        const TokenRow& token = a.tables.tokens[own];
        begins = token.position % CHUNK == 0 || (token.request >= 0 && token.request < request_rows(a.tables) && a.tables.requests[token.request].first_token == own);
    }
    for (uint32_t left = __ballot_sync(~0u, begins); left; left &= left - 1) {
        const int token = first + __ffs(left) - 1;
        StateRow row;
        if (state_row(a.states, a.tables, a.tables.tokens[token].request, tokens, row, a.fault)) relate_chunk<Delta>(a, row, token, group, memory[warp]);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) relate_prompt_delta_128(const __grid_constant__ RecurArgs a) { relate_prompt<true>(a); }
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) relate_prompt_space_128(const __grid_constant__ RecurArgs a) { relate_prompt<false>(a); }
