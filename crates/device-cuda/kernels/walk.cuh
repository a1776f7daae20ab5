// In which order kernels of many tokens walk over the tiles of a product.
#pragma once
#include "product.cuh"

constexpr int BAND = 2048; // tokens

// Strips with data: those of live tokens, or as many as the experts have.
template <int N> __device__ __forceinline__ int wide_strips(const WideArgs& a) { return a.weights ? *a.live : (live_rows(a.out) + N - 1) / N; }

struct WideItem {
    int tile, strip;
};

// The tiles of a thread block, in the order of work, of those that the kernel is to multiply with.
template <int N> struct WideWalk {
    const WideArgs& a;
    const int strips, work;
    int item = blockIdx.x;
    __device__ __forceinline__ explicit WideWalk(const WideArgs& a) : a(a), strips(wide_strips<N>(a)), work(a.tiles * strips) {}
    __device__ __forceinline__ bool there() const { return item < work; }
    __device__ __forceinline__ void advance() { item += gridDim.x; }
    __device__ __forceinline__ WideItem at() const {
        const int tiles = a.tiles, first = a.first_tile;
        if (a.weights) return {item % tiles, item / tiles};
        constexpr int Band = BAND / N;
        const int skipped = item / (Band * tiles) * Band, here = min(Band, strips - skipped), rest = item - skipped * tiles;
        return {first + rest / here, skipped + rest % here};
    }
};
