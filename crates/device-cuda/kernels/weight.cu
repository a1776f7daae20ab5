// Packing weights: stored rows, as they lie in a file, become rows of a weight.
//
// A thread makes eight neighbouring elements: sixteen bytes of a tile, or 32 bytes of an f32 row. Rounding is to nearest even. What is not finite,
// before or after rounding, is found here, by its row.
#include "args/weight.h"
#include "random.cuh"
#include "stored.cuh"
#include "weight.cuh"

// Eight neighbouring elements of a row, rounded to the weight's type and stored. False if one of them is not finite then.
__device__ bool store_elements(uint8_t* data, uint32_t kind, uint32_t pitch, uint32_t row, uint32_t column, const float (&value)[8]) {
    bool finite = true;
    __align__(16) uint16_t half[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float kept = value[j];
        if (kind == WEIGHT_BF16) {
            const bf16 rounded = __float2bfloat16_rn(kept);
            half[j] = __bfloat16_as_ushort(rounded), kept = __bfloat162float(rounded);
        } else if (kind == WEIGHT_F16) {
            const __half rounded = __float2half_rn(kept);
            half[j] = __half_as_ushort(rounded), kept = __half2float(rounded);
        }
        finite &= isfinite(kept);
    }
    if (kind == WEIGHT_F32) {
        float* to = reinterpret_cast<float*>(data) + static_cast<size_t>(row) * pitch + column;
        for (int j = 0; j < 8 && column + j < pitch; j++) to[j] = value[j];
    } else {
        *reinterpret_cast<uint4*>(data + tiled_offset(row, column, pitch)) = *reinterpret_cast<const uint4*>(half);
    }
    return finite;
}

extern "C" __global__ void pack_rows(const __grid_constant__ PackArgs a) {
    enter();
    const uint32_t groups = (a.columns + 7) / 8;
    const size_t work = static_cast<size_t>(a.rows) * groups;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < work; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        const uint32_t from = static_cast<uint32_t>(i / groups), column = static_cast<uint32_t>(i % groups) * 8, row = a.first_row + from;
        const uint8_t* stored = a.stored + static_cast<size_t>(from) * a.stored_bytes;
        float value[8];
#pragma unroll
        for (int j = 0; j < 8; j++) value[j] = column + j < a.columns ? stored_element(a.stored_type, stored, column + j) : 0.0f;
        if (!store_elements(a.data, a.kind, a.pitch, packed_row(row, a.gated), column, value)) atomicMin(a.not_finite, row);
    }
}

// A random number as an element of the type that it is stored in.
__device__ __forceinline__ float random_stored(const RandomArgs& a, float x) {
    switch (a.stored_type) {
    case STORED_BF16: return __bfloat162float(__float2bfloat16_rn(x));
    case STORED_F16: return __half2float(__float2half_rn(x));
    case STORED_F8_E4M3: return e4m3_value(e4m3_nearest(x / random_scale(a.width))) * random_scale(a.width);
    default: return x;
    }
}

extern "C" __global__ void random_rows(const __grid_constant__ RandomArgs a) {
    enter();
    const uint32_t groups = (a.columns + 7) / 8;
    const size_t work = static_cast<size_t>(a.rows) * groups;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < work; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        const uint32_t from = static_cast<uint32_t>(i / groups), column = static_cast<uint32_t>(i % groups) * 8;
        const uint64_t stored = a.picked ? a.picked[from] : from;
        float value[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float x = column + j < a.columns ? random_element(a.seed, a.width, stored * a.columns + column + j) : 0.0f;
            value[j] = random_stored(a, x);
        }
        store_elements(a.data, a.kind, a.pitch, packed_row(a.first_row + from, a.gated), column, value);
    }
}
