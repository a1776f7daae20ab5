// Element by element: additions and activations. A thread takes four neighbouring columns of a row: blockIdx.y says which, blockIdx.x the row. Results of
// activations are left where a product looks for its inputs too.
#include "args/dense.h"
#include "rounded.cuh"

__device__ __forceinline__ int own_column() { return (blockIdx.y * blockDim.x + threadIdx.x) * 4; }

extern "C" __global__ void add_rows(const __grid_constant__ AddArgs a) {
    enter();
    const int row = blockIdx.x, column = own_column(), columns = a.x.columns;
    if (row >= live_rows(a.x) || column >= columns) return;
    const float factor = a.gated ? a.scale * sigmoid(*row_of(a.gate, row)) : a.scale;
    float* acc = row_of(a.acc, row);
    const float4 x = load_four(row_of(a.x, row), column, columns), before = load_four(acc, column, columns);
    store_four(acc, column, columns, each(x, before, [&](float x, float before) { return __fmaf_rn(x, factor, before); }));
}

extern "C" __global__ void silu_gated(const __grid_constant__ ActivateArgs a) {
    enter();
    const int row = blockIdx.x, column = own_column(), columns = a.out.columns;
    if (row >= live_rows(a.x) || column >= columns) return;
    const float* x = row_of(a.x, row);
    const float4 gate = load_four(x, column, columns), up = load_four(x + columns, column, columns);
    const float4 y = each(gate, up, [&](float g, float u) { return silu(g * a.gate_scale) * u; });
    store_four(row_of(a.out, row), column, columns, y);
    store_rounded(a.rounded, row, column, y);
}

extern "C" __global__ void relu_squared(const __grid_constant__ ActivateArgs a) {
    enter();
    const int row = blockIdx.x, column = own_column(), columns = a.out.columns;
    if (row >= live_rows(a.x) || column >= columns) return;
    const float4 x = load_four(row_of(a.x, row), column, columns);
    const float4 y = each(x, [](float x) { const float p = fmaxf(x, 0.0f); return p * p; });
    store_four(row_of(a.out, row), column, columns, y);
    store_rounded(a.rounded, row, column, y);
}
