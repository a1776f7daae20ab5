// Inputs of the convolution of a Gated DeltaNet layer: those of tokens before, and of this step's, which may still be in the pieces of the product ahead.
#pragma once
#include "pieces.cuh"
#include "recurrence.cuh"
#include "args/mix.h"

constexpr int R = 128, C = 128, TAPS = 4; // of a state; of the convolution
static_assert(R == TILE && C == TILE, "a vector is within a tile: one sum of pieces serves all of it");

// Inputs of the convolution at a position, every 32nd channel from `channel` on; zero before the sequence. `Pieced`: those of this step are in pieces.
template <bool Pieced> __device__ __forceinline__ void load_input(float (&x)[R / 32], const MixArgs& a, const StateRow& row, int position, int channel) {
    if constexpr (Pieced)
        if (position >= row.start) return Pieces(a.pieces, row.first_token + position - row.start, a.x_from + channel).spread(x);
    const float* from = place_seen(a.x, a.states, row, position, channel);
#pragma unroll
    for (int j = 0; j < R / 32; j++) x[j] = from ? from[j * 32] : 0;
}
// Asks for what earlier steps left of the inputs of a token, of the 128 channels from `first` on: before the wait, by a warp.
__device__ __forceinline__ void prefetch_inputs(const MixArgs& a, const StateRow& row, int position, int first) {
    const int lane = threadIdx.x % 32, at = position - 1 - lane / (R / 32);
    if (lane >= (TAPS - 1) * (R / 32) || at >= row.start) return;
    if (const float* from = place_seen(a.x, a.states, row, at, first + lane % (R / 32) * 32)) prefetch(from);
}
// One of them.
template <bool Pieced> __device__ __forceinline__ float input_at(const MixArgs& a, const StateRow& row, int position, int channel) {
    if constexpr (Pieced)
        if (position >= row.start) return Pieces(a.pieces, row.first_token + position - row.start, a.x_from + channel).one();
    return seen(a.x, a.states, row, position, channel);
}
template <bool Pieced> __device__ __forceinline__ float2 mix_factors(const MixArgs& a, int token, int head) {
    if constexpr (!Pieced) return factors<true>(a, token, head);
    const Pieces of_a(a.pieces, token, a.a_from + head), of_b(a.pieces, token, a.b_from + head);
    return delta_factors(a, head, of_a.one(), of_b.one());
}
