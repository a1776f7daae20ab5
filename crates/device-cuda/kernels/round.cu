// Inputs of products, rounded to the type of the weight and laid out as product.cuh says. A thread makes sixteen bytes: eight neighbouring columns.
#include "args/product.h"
#include "rows.cuh"
#include "weight.cuh"

// f16 ends at 65,504; what is larger becomes that. What is not a number stays so.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
    auto limit = [](float x) { return x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f); };
    const __half2 pair = __floats2half2_rn(limit(low), limit(high));
    return *reinterpret_cast<const uint32_t*>(&pair);
}

template <bool Half> __device__ __forceinline__ uint4 packed(float4 a, float4 b) {
    if constexpr (Half) return make_uint4(pack_half(a.x, a.y), pack_half(a.z, a.w), pack_half(b.x, b.y), pack_half(b.z, b.w));
    else return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
}

// `four(row, column)` gives four elements of a row; `rows` of them count, and the rest are zero.
template <bool Half, class Four> __device__ __forceinline__ void round_rows(const RoundArgs& a, int rows, int columns, Four four) {
    const int across = a.blocks * 8;
    const uint32_t work = (a.slots ? rows : a.strips * a.height) * across;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < work; i += gridDim.x * blockDim.x) {
        const int row = i / across, column = i % across * 8, block = column / BLOCK_K, r = row % a.height;
        uint4 to = make_uint4(0, 0, 0, 0);
        if (row < rows && column < columns) to = packed<Half>(four(row, column), four(row, column + 4));
        const size_t at = (static_cast<size_t>(row / a.height) * a.blocks + block) * a.height + r;
        *reinterpret_cast<uint4*>(a.to + at * (BLOCK_K * 2) + ((column % BLOCK_K / 8) ^ r % 8) * 16) = to;
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
