// In which order kernels of many tokens walk over the tiles of a product.
#pragma once
#include "product.cuh"

constexpr int BAND = 2048; // tokens

// The `item`-th tile in the order of work.
struct WideItem {
    int tile, strip;
    __device__ WideItem(const WideArgs& a, int item, int width, int strips) {
        if (a.experts) {
            strip = item / a.plan.tiles, tile = item % a.plan.tiles;
        } else {
            const int band = BAND / width, skipped = item / (band * a.plan.tiles) * band, here = min(band, strips - skipped), rest = item - skipped * a.plan.tiles;
            tile = rest / here, strip = skipped + rest % here;
        }
    }
};

// Strips with data: those of live tokens, or as many as the experts have.
template <int N> __device__ __forceinline__ int wide_strips(const WideArgs& a) { return a.experts ? *a.live : (live_rows(a.out) + N - 1) / N; }
