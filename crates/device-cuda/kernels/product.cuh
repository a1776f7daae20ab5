// What kernels of products have in common.
//
// Weight: tiles, see weight.cuh; a block of 128 outputs x 64 inputs (128 of 8-bit floats) is 16 KB in one piece.
// Inputs: rounded to the weight's type (bf16 for 8-bit floats), by `round.cu` or by whatever made them, to [strip of N tokens][block of 64 inputs][N][64] in the same swizzle: a block is
// one piece too, and so are two. Columns past the last are zero. Rows without data may hold anything: a token's results come from its own row alone.
#pragma once
#include "args/product.h"
#include "kplan.cuh"
#include "rounded.cuh"

// Kinds of weights, which kernels are templates over: the inputs of a block, its bytes, and its room in a ring, whole kilobytes since tokens lie behind it. `strips_apart`: tokens of
// different strips are for different thread blocks, because there are no registers for more. `stages`: results leave by way of shared memory, see staged.cuh.
template <bool F16> struct Tiled {
    static constexpr int block = BLOCK_K, bytes = TILE * BLOCK_K * 2, room = bytes;
    static constexpr bool strips_apart = false, stages = true;
};
struct Scaled {
    static constexpr int block = F8_BLOCK, bytes = F8_BYTES, room = (F8_BYTES + 1023) / 1024 * 1024;
    static constexpr bool strips_apart = true, stages = false; // totals are in the way
};

// A stage of a ring: a block of a weight, and N tokens for it.
template <class Weight, int N> struct Stage {
    static constexpr int token_bytes = N * Weight::block * 2, bytes = Weight::room + token_bytes, loaded = Weight::bytes + token_bytes;
};

// What the results of an output go through, by the number that it has in the matrix. Made once for many of them, so that no load and no branch is between one and the next.
struct End {
    const bool biased, scaled;
    const float bias, scale;
    __device__ __forceinline__ End(const float* bias, const float* scale, uint32_t output) : biased(bias), scaled(scale), bias(bias ? bias[output] : 0), scale(scale ? scale[output] : 1) {}
    __device__ __forceinline__ float operator()(float sum) const {
        sum = biased ? sum + bias : sum;
        return scaled ? sum * scale : sum;
    }
};

// Which tokens of a strip have results that anybody wants, a bit for each: those of experts, whose strips may have slots without rows.
__device__ __forceinline__ uint32_t slots_taken(const WideArgs& a, int strip) { return a.slots ? a.slots[strip] : ~0u; }
__device__ __forceinline__ uint32_t slots_taken(const StreamArgs&, int) { return ~0u; }

// Stores the results of a warp: 16 rows of a weight from `first` on, N tokens of a strip; `value(j, q)` as tensor cores leave them: tokens 8 j + 2 (lane % 4) +
// q % 2, row lane / 4 + q / 2 * 8. Eight neighbouring outputs per token and store. Rows of gate and up become one result.
template <int N, class Args, class Value> __device__ __forceinline__ void store_results(const Args& a, int first, int strip, int live, Value value) {
    const int lane = threadIdx.x % 32, columns = a.out.columns, column = (a.gated ? first / 2 : first) + lane / 4, other = column + (a.gated ? columns : 8), last = (a.gated ? 2 : 1) * columns - 1;
    const End end(a.bias, a.scale, min(column, last)), other_end(a.bias, a.scale, min(other, last));
    const uint32_t taken = N <= 32 ? slots_taken(a, strip) : ~0u;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const int token = strip * N + j * 8 + lane % 4 * 2 + p;
            if (token >= live || column >= columns || (N <= 32 && !(taken >> (token - strip * N) & 1))) continue;
            float* out = row_of(a.out, token);
            const float x = end(value(j, p)), y = other_end(value(j, p + 2));
            if (a.gated) {
                const float active = silu(x * a.gate_scale) * y;
                if (a.out.data) out[column] = active;
                store_rounded_one(a.rounded, token, column, active);
            } else {
                out[column] = x;
                if (other < columns) out[other] = y;
            }
        }
}

// Places of a thread's results among those of its warp: 16 rows of a weight from `first` on, tokens from `token` on.
struct ResultPlace {
    int column, other, token; // the outputs of its two rows, and its first token; of gate and up the one output that both become, and the number of up
    __device__ __forceinline__ ResultPlace(uint32_t gated, int columns, int first, int from) {
        int thread = threadIdx.x;
        asm volatile("" : "+r"(thread)); // computes places anew rather than keep them in registers all the time
        column = (gated ? first / 2 : first) + thread % 32 / 4, other = column + (gated ? columns : 8), token = from + thread % 4 * 2;
    }
};

// What becomes of gate and up, of two tokens for each `j`: `leave(j, active)`. Without bias, scale and branches in the most frequent case.
template <int N, class Args, class Leave> __device__ __forceinline__ void gated_results(const Args& a, const ResultPlace& place, const float (&sums)[N / 2], Leave leave) {
    auto all = [&](auto gate_end, auto up_end) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float active[2];
#pragma unroll
            for (int p = 0; p < 2; p++) {
                active[p] = silu(gate_end(sums[4 * j + p]) * a.gate_scale) * up_end(sums[4 * j + p + 2]);
                asm volatile("" : "+f"(active[p])); // or it would be computed behind a branch
            }
            leave(j, active);
        }
    };
    auto as_is = [](float x) { return x; };
    const int last = 2 * a.out.columns - 1;
    if (a.bias || a.scale) all(End(a.bias, a.scale, min(place.column, last)), End(a.bias, a.scale, min(place.other, last)));
    else all(as_is, as_is);
}

// The results of a warp to where they are wanted, N tokens of a sum; as `store_results`, with little to compute for each. Rounded ones lie in strips of N tokens or more, or of 128.
template <int N, class Args> __device__ __forceinline__ void store_sums(const Args& a, int first, int from, int live, const float (&sums)[N / 2]) {
    const ResultPlace place(a.gated, a.out.columns, first, from);
    const int columns = a.out.columns;
    const bool exists = place.column < columns, other = place.other < columns;
    const uint32_t stride = a.out.stride;
    float* out = row_of(a.out, place.token) + place.column;
    if (a.gated) {
        constexpr uint32_t row = BLOCK_K * 2, strip = 128;
        const uint32_t chunk = place.column % BLOCK_K / 8;
        const RoundedRows& rounded = a.rounded;
        uint8_t* to = rounded.data + rounded_offset(place.token / 8 * 8, place.column / BLOCK_K * BLOCK_K, rounded.height, rounded.blocks) + place.column % 8 * 2;
        gated_results<N>(a, place, sums, [&](int j, const float (&active)[2]) {
            const uint32_t both = rounded.half ? pack_half(active[0], active[1]) : pack(active[0], active[1]);
            if (j > 0) to += 8 * row + (j * 8 % strip == 0 ? (static_cast<size_t>(rounded.blocks) - 1) * strip * row : 0), out += 8 * stride;
            asm volatile("" : "+l"(to), "+l"(out)); // one place after the other, rather than all of them in registers
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint32_t t = place.token % 8 + p;
                if (place.token + j * 8 + p >= live || !exists) continue;
                if (a.out.data) out[p * stride] = active[p];
                if (rounded.data) *reinterpret_cast<uint16_t*>(to + t * row + (chunk ^ t) * 16) = static_cast<uint16_t>(both >> p * 16);
            }
        });
        return;
    }
    auto all = [&](auto end, auto other_end) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (j > 0) out += 8 * stride;
            asm volatile("" : "+l"(out)); // one place after the other, rather than all of them in registers
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const float x = end(sums[4 * j + p]), y = other_end(sums[4 * j + p + 2]);
                const bool wanted = place.token + j * 8 + p < live;
                if (wanted && exists) out[p * stride] = x;
                if (wanted && other) out[p * stride + 8] = y;
            }
        }
    };
    auto as_is = [](float x) { return x; };
    if (a.bias || a.scale) all(End(a.bias, a.scale, min(place.column, columns - 1)), End(a.bias, a.scale, min(place.other, columns - 1)));
    else all(as_is, as_is);
}
