// What `mix.cu` and `mix_few.cu` do alike with a batch of tokens; where it lies in shared memory is theirs to say.
#pragma once
#include "mix_inputs.cuh"
#include "norm.cuh"
#include "rounded.cuh"
#include "state_tile.cuh"

constexpr int CHAINS = R / STATE_TILE_ROWS; // of a product with the state, added in ascending order
constexpr int BATCH = 4;                    // tokens at a time: their keys and queries are the eight vectors of an instruction

// Dots times the decay in between, by entry, then token, and decays from the grid position.
struct Weights {
    float (*by_key)[BATCH], (*by_query)[BATCH], *decay;
};
// Of tokens from entry `at` on; a thread per pair.
__device__ __forceinline__ void weigh(const Weights& w, const float (*dots)[2][CHUNK], const float (&g)[CHUNK], int at, int live) {
    const int s = threadIdx.x / BATCH, t = threadIdx.x % BATCH;
    if (s < CHUNK && t < live && s <= at + t) {
        const float factor = decay_between(g, s, at + t);
        w.by_key[s][t] = factor * dots[t][0][s], w.by_query[s][t] = factor * dots[t][1][s];
    }
    if (s == CHUNK && t < live) w.decay[t] = decay_between(g, -1, at + t);
}

// u of a batch's tokens, by the thread of a column that has S'k, and their outputs, by the one that has S'q (`Pair`): `sum` is that times the decay; entries are added in order, old and new alike.
// `u` is by entry, `v` and `beta` by token. What is past the last token is never looked at.
template <class Pair, int Room>
__device__ __forceinline__ void add_entries(float (&sum)[BATCH], const float (*weights)[BATCH], float (*u)[Room], float (*v)[C], const float* beta, int at, int live) {
    const int c = Pair::column();
    auto add = [&](int s, float u, int from) {
        const float4 w = *reinterpret_cast<const float4*>(weights[s]);
        if (from <= 0) sum[0] = __fmaf_rn(w.x, u, sum[0]);
        if (from <= 1) sum[1] = __fmaf_rn(w.y, u, sum[1]);
        if (from <= 2) sum[2] = __fmaf_rn(w.z, u, sum[2]);
        sum[3] = __fmaf_rn(w.w, u, sum[3]);
    };
#pragma unroll 4
    for (int s = 0; s < at; s++) add(s, u[s][c], 0);
#pragma unroll
    for (int t = 0; t < BATCH; t++) {
        if (t >= live) break;
        const float own = __shfl_sync(0xffffffffu, beta[t] * (v[t][c] - sum[t]), Pair::lane_of_key());
        add(at + t, own, t);
        __syncwarp(); // both have read the value
        if (Pair::has_key()) u[at + t][c] = own;
        else v[t][c] = sum[t];
    }
}

// The gated norm of a token's outputs, by a warp.
__device__ __forceinline__ void finish_token(const MixArgs& a, int token, int head, const float* outputs, float4 gate, float4 weight) {
    const int c = threadIdx.x % 32 * 4;
    const float4 x = *reinterpret_cast<const float4*>(outputs + c);
    const float factor = 1.0f / sqrtf(warp_sum(add_squares(x, 0)) / static_cast<float>(C) + a.eps);
    const float4 y = each(scaled(x, factor, weight), gate, [](float x, float g) { return x * silu(g); });
    store_four(row_of(a.out, token), head * C + c, a.out.columns, y);
    store_rounded(a.rounded, token, head * C + c, y);
}

// Leaves an entry at its place in the ring of a head, and its key, if there is one to leave, at its place in that of the group: by a warp.
__device__ __forceinline__ void leave_entry(const StateView& s, size_t at, const float* u, float g, float* key, float4 k) {
    const int c = threadIdx.x % 32 * 4;
    *reinterpret_cast<float4*>(s.values + at * C + c) = *reinterpret_cast<const float4*>(u + c);
    if (c == 0) s.decays[at] = g;
    if (key) *reinterpret_cast<float4*>(key + c) = k;
}
// The first entry of a chunk that no stored state contains.
__device__ __forceinline__ int first_left(const StateRow& row, const Span& span) { return max(max(row.start, row.state_end) - span.base, span.entries); }
