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
// The `i`th pair of an entry and a token of a batch, whose tokens are entries from `at` on; behind all entries, the grid position.
constexpr int PAIRS = (CHUNK + 1) * BATCH;
__device__ __forceinline__ void weigh(const Weights& w, const float (*dots)[2][CHUNK], const float (&g)[CHUNK], int at, int live, int i) {
    const int s = i / BATCH, t = i % BATCH;
    if (s < CHUNK && t < live && s <= at + t) {
        const float factor = decay_between(g, s, at + t);
        w.by_key[s][t] = factor * dots[t][0][s], w.by_query[s][t] = factor * dots[t][1][s];
    }
    if (s == CHUNK && t < live) w.decay[t] = decay_between(g, -1, at + t);
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
