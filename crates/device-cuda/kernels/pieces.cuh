// A product that was left in pieces, see kplan.cuh: whoever reads a result adds its pieces up, in ascending order. [piece][token][128 outputs], f32.
#pragma once
#include "kplan.cuh"
#include "rows.cuh"

// The pieces of a result, or of some beside it within a tile. Where they are depends on shapes alone: it is found out before the wait.
struct Pieces {
    const float* at;
    uint32_t step;
    int count;

    Pieces() = default;
    __device__ __forceinline__ Pieces(const PieceRows& p, int token, int output) {
        const int tile = min(output / TILE, static_cast<int>(p.plan.tiles) - 1);
        count = piece_count(p.plan, tile), step = p.width * TILE;
        at = p.data + (piece_place(p.plan, tile, 0) * p.width + token) * TILE + output % TILE;
    }
    // Four neighbours. All pieces are asked for before the first is added.
    __device__ __forceinline__ float4 four() const {
        float4 part[PIECE_LIMIT];
#pragma unroll
        for (int piece = 0; piece < PIECE_LIMIT; piece++)
            if (piece < count) part[piece] = *reinterpret_cast<const float4*>(at + piece * step);
        float4 sum = part[0];
#pragma unroll
        for (int piece = 1; piece < PIECE_LIMIT; piece++)
            if (piece < count) sum = each(sum, part[piece], [](float a, float b) { return __fadd_rn(a, b); });
        return sum;
    }
    // Four neighbours each of `N` results of the same tile, `offset(i)` elements from the first. The first piece and `Together` more are asked for at a time: a thread that has many results has
    // little room for each.
    template <int Together, int N, class Offset> __device__ __forceinline__ void fours(float4 (&sum)[N], Offset offset) const {
        auto load = [&](int piece, int i) { return *reinterpret_cast<const float4*>(at + piece * step + offset(i)); };
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = load(0, i);
#pragma unroll 1
        for (int first = 1; first < count; first += Together) {
            float4 part[Together][N];
#pragma unroll
            for (int piece = 0; piece < Together; piece++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (first + piece < count) part[piece][i] = load(first + piece, i);
#pragma unroll
            for (int piece = 0; piece < Together; piece++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (first + piece < count) sum[i] = each(sum[i], part[piece][i], [](float a, float b) { return __fadd_rn(a, b); });
        }
    }
    // Every 32nd, as a warp's lanes have them. Most tiles of a layer have few pieces: those are asked for together.
    template <int J> __device__ __forceinline__ void spread(float (&x)[J]) const {
        constexpr int Together = 3;
        float part[Together][J];
#pragma unroll
        for (int piece = 0; piece < Together; piece++)
#pragma unroll
            for (int j = 0; j < J; j++)
                if (piece < count) part[piece][j] = at[piece * step + j * 32];
#pragma unroll
        for (int j = 0; j < J; j++) x[j] = part[0][j];
#pragma unroll
        for (int piece = 1; piece < Together; piece++)
#pragma unroll
            for (int j = 0; j < J; j++)
                if (piece < count) x[j] = __fadd_rn(x[j], part[piece][j]);
#pragma unroll 1
        for (int piece = Together; piece < count; piece++)
#pragma unroll
            for (int j = 0; j < J; j++) x[j] = __fadd_rn(x[j], at[piece * step + j * 32]);
    }
    __device__ __forceinline__ float one() const {
        float x[1];
        spread(x);
        return x[0];
    }
};

// What becomes of the sum of four neighbouring outputs.
__device__ __forceinline__ float4 with_epilogue(const PiecedProduct& product, float4 sum, int column) {
    const int outputs = product.outputs;
    if (product.bias) sum = each(sum, load_four(product.bias, column, outputs), [](float a, float b) { return a + b; });
    if (product.scale) sum = each(sum, load_four(product.scale, column, outputs), [](float a, float b) { return a * b; });
    return sum;
}
