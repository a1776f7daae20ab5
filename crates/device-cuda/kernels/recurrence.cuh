// Linear recurrences on the grid of 16 positions: what the delta rule and Mamba2 have in common, in three kernels for decode, verify windows and prompts.
//
//   u_t = beta_t (v_t - e^{d(t)} S'k_t - sum_{s<t} e^{d(s,t)} (k_s . k_t) u_s)      o_t = e^{d(t)} S'q_t + sum_{s<=t} e^{d(s,t)} (k_s . q_t) u_s
//   fold: S = e^{d(15)} S + sum_s e^{d(s,15)} k_s u_s'        d(s,t) = sum of g over s < r <= t, added from t downwards; d(t) the same from the grid position on
//
// for the delta rule; for Mamba2 u_t = dt_t x_t, and D x_t is added to o_t. Caches: `CudaStateCache`. Tokens: keys, queries f32 [token][group][rows], values f32 [token][head][columns].
// Scratch, all f32: keys and queries of unit length [token][group][rows] (delta rule); dots [token][group][2][16] of a token's key and query with the keys of its chunk;
// factors [token][head][2], g and beta; u [token][head][columns] (delta rule).
//
// `relate` has a warp per token and group, or per chunk where there are many tokens: what does not depend on the state is there for all tokens of a prompt at once. `recur` (one of several) has a thread block per request, head and
// some columns, goes through chunks and leaves states and snapshots. `keep` writes the entries that later steps need, when nobody reads those of this step any more: the
// ring is by position, and a prompt that begins inside a chunk comes round to its own entries; heads share the keys of their group. Rows that are short enough for all their
// entries to have places of their own have none to wait for: where `leaves` says so, `recur` leaves theirs, and with 2 there are no other rows and no `keep`.
#pragma once
#include "states.cuh"
#include "args/recurrence.h"

constexpr int CHUNK = STATE_GRID;

template <class Args> __device__ __forceinline__ int group_of(const Args& a, int head) { return a.tiled ? head % a.states.groups : head / (a.states.heads / a.states.groups); }
// Whether the head is the one of its group that leaves its keys.
template <class Args> __device__ __forceinline__ bool leads(const Args& a, int head) { return a.tiled ? head < static_cast<int>(a.states.groups) : head % (a.states.heads / a.states.groups) == 0; }
__device__ __forceinline__ float* ring_key(const StateView& s, const StateRow& row, int group, int position) {
    return s.keys + ((static_cast<size_t>(row.slot) * s.groups + group) * s.entries + position % s.entries) * s.rows;
}
__device__ __forceinline__ size_t ring_of_head(const StateView& s, const StateRow& row, int head, int position) {
    return (static_cast<size_t>(row.slot) * s.heads + head) * s.entries + position % s.entries;
}

// A chunk of a row: its first position, how many entries earlier steps left, how many tokens of this step follow, and the first of those.
struct Span {
    int base, entries, tokens, token;
    __device__ Span(const StateRow& row, int base) : base(base) {
        const int from = min(max(base, row.start), base + CHUNK);
        entries = from - base, tokens = max(min(row.end, base + CHUNK) - from, 0), token = row.first_token + from - row.start;
    }
};
// Whether the state behind the chunk is needed: to be kept, or by tokens of this step.
__device__ __forceinline__ bool folds(const StateRow& row, int base) { return base + CHUNK <= row.state_end || base + CHUNK < row.end; }

// `e^d` from behind position `above` of a chunk to position `at`.
__device__ __forceinline__ float decay_between(const float (&g)[CHUNK], int above, int at) {
    float d = 0;
#pragma unroll
    for (int r = CHUNK - 1; r >= 0; r--) {
        const float x = g[r];
        d = r <= at && r > above ? d + x : d;
    }
    return expf(d);
}

// --- vectors of a warp: lane i has every 32nd element from i on
template <int J> __device__ __forceinline__ void load_vector(float (&x)[J], const float* from, int rows) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = j * 32 + threadIdx.x % 32;
        x[j] = i < rows ? from[i] : 0;
    }
}
template <int J> __device__ __forceinline__ void store_vector(const float (&x)[J], float* to, int rows) {
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = j * 32 + threadIdx.x % 32;
        if (i < rows) to[i] = x[j];
    }
}
template <int J> __device__ __forceinline__ float dot(const float (&x)[J], const float (&y)[J]) {
    float sum = x[0] * y[0];
#pragma unroll
    for (int j = 1; j < J; j++) sum = fmaf(x[j], y[j], sum);
    return warp_sum(sum);
}
template <int J> __device__ __forceinline__ void to_unit_length(float (&x)[J], float scale) {
    const float inverse = 1.0f / sqrtf(dot(x, x) + 1e-6f);
#pragma unroll
    for (int j = 0; j < J; j++) x[j] = x[j] * inverse * scale;
}

// Log decay, and what a value is multiplied by.
template <class Args> __device__ __forceinline__ float2 delta_factors(const Args& args, int head, float a, float b) {
    return make_float2(args.decay[head] * softplus(a + args.dt_bias[head]), sigmoid(b));
}
__device__ __forceinline__ float2 space_factors(float dt, float dt_bias, float decay, float least, float most) {
    dt = fminf(fmaxf(softplus(dt + dt_bias), least), most);
    return make_float2(dt * decay, dt);
}
template <bool Delta, class Args> __device__ __forceinline__ float2 factors(const Args& a, int token, int head) {
    if constexpr (Delta) return delta_factors(a, head, row_of(a.a, token)[head], row_of(a.b, token)[head]);
    else return space_factors(row_of(a.a, token)[head], a.dt_bias[head], a.decay[head], a.least, a.most);
}
