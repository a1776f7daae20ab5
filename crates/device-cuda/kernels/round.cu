// Inputs of products, rounded to the type of the weight and laid out as product.cuh says. A thread makes sixteen bytes: eight neighbouring columns.
#include "args/product.h"
#include "rounded.cuh"

// `four(row, column)` gives four elements of a row; `rows` of them count, and the rest are zero.
template <bool Half, class Four> __device__ __forceinline__ void round_rows(const RoundArgs& a, int rows, int columns, Four four) {
    const int across = a.blocks * 8;
    const uint32_t work = (a.slots ? rows : a.strips * a.height) * across;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < work; i += gridDim.x * blockDim.x) {
        const int row = i / across, column = i % across * 8;
        uint2 low = make_uint2(0, 0), high = low;
        if (row < rows && column < columns) low = pack_four(four(row, column), Half), high = pack_four(four(row, column + 4), Half);
        *reinterpret_cast<uint4*>(a.to + rounded_offset(row, column, a.height, a.blocks)) = make_uint4(low.x, low.y, high.x, high.y);
    }
}

// Rows of a tensor or, for experts, the row of each slot.
template <bool Half> __device__ __forceinline__ void round_inputs(const RoundArgs& a) {
    enter();
    const int columns = a.x.columns;
    round_rows<Half>(a, a.slots ? *a.slots : live_rows(a.x), columns, [&](int row, int column) {
        const int from = a.rows ? a.rows[row] : row;
        return from < 0 ? make_float4(0, 0, 0, 0) : load_four(row_of(a.x, from), column, columns);
    });
}

// Rows of slots behind an activation.
template <bool Half, bool Gated> __device__ __forceinline__ void round_active(const RoundArgs& a) {
    enter();
    const int columns = Gated ? a.x.columns / 2 : a.x.columns;
    round_rows<Half>(a, *a.slots, columns, [&](int row, int column) {
        const float* x = row_of(a.x, row);
        const float4 first = load_four(x, column, columns);
        if constexpr (Gated) return each(first, load_four(x + columns, column, columns), [&](float g, float u) { return silu(g * a.gate_scale) * u; });
        else return each(first, [](float x) { const float p = fmaxf(x, 0.0f); return p * p; });
    });
}

#define ROUND(NAME, HALF)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) round_##NAME(const __grid_constant__ RoundArgs a) { round_inputs<HALF>(a); }           \
    extern "C" __global__ void __launch_bounds__(256) round_silu_##NAME(const __grid_constant__ RoundArgs a) { round_active<HALF, true>(a); } \
    extern "C" __global__ void __launch_bounds__(256) round_relu_##NAME(const __grid_constant__ RoundArgs a) { round_active<HALF, false>(a); }
ROUND(bf16, false)
ROUND(f16, true)
