// Rows of tensors, four elements at a time.
#pragma once
#include "step.cuh"

// Four neighbours from a column that is a multiple of four on; what lies past the row reads as zero. How a row is aligned changes no result.
__device__ __forceinline__ float4 load_four(const float* row, int column, int columns) {
    const float* at = row + column;
    if (column + 4 <= columns && (reinterpret_cast<uintptr_t>(at) & 15) == 0) return *reinterpret_cast<const float4*>(at);
    float4 v;
    v.x = column < columns ? at[0] : 0.0f;
    v.y = column + 1 < columns ? at[1] : 0.0f;
    v.z = column + 2 < columns ? at[2] : 0.0f;
    v.w = column + 3 < columns ? at[3] : 0.0f;
    return v;
}
__device__ __forceinline__ void store_four(float* row, int column, int columns, float4 v) {
    float* at = row + column;
    if (column + 4 <= columns && (reinterpret_cast<uintptr_t>(at) & 15) == 0) {
        *reinterpret_cast<float4*>(at) = v;
        return;
    }
    if (column < columns) at[0] = v.x;
    if (column + 1 < columns) at[1] = v.y;
    if (column + 2 < columns) at[2] = v.z;
    if (column + 3 < columns) at[3] = v.w;
}

// Four elements of a result. Where it is nowhere, nobody reads it: it was left where the next product looks for its inputs, too.
__device__ __forceinline__ void store_result(const Matrix& out, int row, int column, float4 v) {
    if (out.data) store_four(row_of(out, row), column, out.columns, v);
}

template <class F> __device__ __forceinline__ float4 each(float4 a, F f) { return make_float4(f(a.x), f(a.y), f(a.z), f(a.w)); }
template <class F> __device__ __forceinline__ float4 each(float4 a, float4 b, F f) { return make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)); }

__device__ __forceinline__ float add_squares(float4 v, float sum) { return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum)))); }

// A team is a warp or a whole thread block.
template <int Team> __device__ __forceinline__ float team_sum(float x) {
    if constexpr (Team == 32) return warp_sum(x);
    else return block_sum<Team>(x);
}
