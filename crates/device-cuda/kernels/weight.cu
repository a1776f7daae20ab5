// Packing weights: stored rows, as they lie in a file, become rows of a weight.
//
// A thread makes eight neighbouring elements: sixteen bytes of a tile, or 32 bytes of an f32 row. Rounding is to nearest even. What is not finite,
// before or after rounding, is found here, by its row.
#include "args/weight.h"
#include "stored.cuh"
#include "weight.cuh"

extern "C" __global__ void pack_rows(const __grid_constant__ PackArgs a) {
    enter();
    const uint32_t groups = (a.columns + 7) / 8;
    const size_t work = static_cast<size_t>(a.rows) * groups;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < work; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        const uint32_t from = static_cast<uint32_t>(i / groups), column = static_cast<uint32_t>(i % groups) * 8, row = a.first_row + from;
        const uint8_t* stored = a.stored + static_cast<size_t>(from) * a.stored_bytes;
        float value[8];
        bool finite = true;
        __align__(16) uint16_t half[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            value[j] = column + j < a.columns ? stored_element(a.stored_type, stored, column + j) : 0.0f;
            float kept = value[j];
            if (a.kind == WEIGHT_BF16) {
                const bf16 rounded = __float2bfloat16_rn(kept);
                half[j] = __bfloat16_as_ushort(rounded), kept = __bfloat162float(rounded);
            } else if (a.kind == WEIGHT_F16) {
                const __half rounded = __float2half_rn(kept);
                half[j] = __half_as_ushort(rounded), kept = __half2float(rounded);
            }
            finite &= isfinite(kept);
        }
        if (!finite) atomicMin(a.not_finite, row);
        if (a.kind == WEIGHT_F32) {
            float* to = reinterpret_cast<float*>(a.data) + static_cast<size_t>(row) * a.pitch + column;
            for (int j = 0; j < 8 && column + j < a.pitch; j++) to[j] = value[j];
        } else {
            *reinterpret_cast<uint4*>(a.data + tiled_offset(row, column, a.pitch)) = *reinterpret_cast<const uint4*>(half);
        }
    }
}
