// RMS norms of rows. A thread takes every `Team`-th group of four neighbours, so the order of a sum follows from the number of columns alone: the host
// chooses `Team` by it. The first `Kept` groups of a thread stay in registers; what there is more of is asked for again. That changes no order.
#pragma once
#include "args/dense.h"
#include "rows.cuh"

__device__ __forceinline__ float4 scaled(float4 x, float factor, float4 weight) {
    return each(x, weight, [&](float x, float w) { return x * factor * w; });
}

// `first(c)` gives the elements at column c for the first time, `again(c)` a second time; `store(c, x, factor)` takes them with what they are multiplied by.
template <int Team, int Kept = 2, class First, class Again, class Store> __device__ __forceinline__ void norm_columns(int columns, float eps, First first, Again again, Store store) {
    const int lane = threadIdx.x % Team;
    float4 kept[Kept];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Kept; i++) {
        const int c = (lane + i * Team) * 4;
        kept[i] = c < columns ? first(c) : make_float4(0, 0, 0, 0);
        sum = add_squares(kept[i], sum);
    }
    for (int c = (lane + Kept * Team) * 4; c < columns; c += Team * 4) sum = add_squares(first(c), sum);
    const float factor = 1.0f / sqrtf(team_sum<Team>(sum) / static_cast<float>(columns) + eps);
#pragma unroll
    for (int i = 0; i < Kept; i++)
        if (const int c = (lane + i * Team) * 4; c < columns) store(c, kept[i], factor);
    for (int c = (lane + Kept * Team) * 4; c < columns; c += Team * 4) store(c, again(c), factor);
}

// residual += delta * scale; out = norm(residual). `delta(c)` gives four elements; `also(c, x)` sees the results.
template <int Team, int Kept = 2, class Delta, class Also> __device__ __forceinline__ void add_and_norm(const ResidualNormArgs& a, int row, Delta delta, Also also) {
    const int columns = a.residual.columns;
    float* residual = row_of(a.residual, row);
    auto first = [&](int c) {
        const float4 sum = each(delta(c), load_four(residual, c, columns), [&](float d, float r) { return __fmaf_rn(d, a.scale, r); });
        store_four(residual, c, columns, sum);
        return sum;
    };
    norm_columns<Team, Kept>(columns, a.eps, first, [&](int c) { return load_four(residual, c, columns); }, [&](int c, float4 x, float factor) {
        const float4 y = scaled(x, factor, load_four(a.weight, c, columns));
        store_result(a.out, row, c, y);
        also(c, y);
    });
}
