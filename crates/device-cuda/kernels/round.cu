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

template <bool Half> __device__ void round_inputs(const RoundArgs& a) {
    enter();
    const int live = live_rows(a.x), across = a.blocks * 8;
    const uint32_t work = a.strips * a.height * across;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < work; i += gridDim.x * blockDim.x) {
        const int row = i / across, column = i % across * 8, block = column / BLOCK_K, r = row % a.height;
        uint4 to = make_uint4(0, 0, 0, 0);
        if (row < live && column < a.x.columns) {
            const float* x = row_of(a.x, row);
            to = packed<Half>(load_four(x, column, a.x.columns), load_four(x, column + 4, a.x.columns));
        }
        const size_t at = (static_cast<size_t>(row / a.height) * a.blocks + block) * a.height + r;
        *reinterpret_cast<uint4*>(a.to + at * (BLOCK_K * 2) + ((column % BLOCK_K / 8) ^ r % 8) * 16) = to;
    }
}

extern "C" __global__ void __launch_bounds__(256) round_bf16(const __grid_constant__ RoundArgs a) { round_inputs<false>(a); }
extern "C" __global__ void __launch_bounds__(256) round_f16(const __grid_constant__ RoundArgs a) { round_inputs<true>(a); }
