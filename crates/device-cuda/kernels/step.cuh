// What kernels of a step have in common: rows of tensors, tables, the error word, the clock.
#pragma once
#include "args/views.h"

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Rows that carry data.
__device__ __forceinline__ int live_rows(const int32_t* live, uint32_t bucket) { return min(max(*live, 0), static_cast<int>(bucket)); }
__device__ __forceinline__ int live_rows(const Matrix& m) { return live_rows(m.live, m.bucket); }
__device__ __forceinline__ float* row_of(const Matrix& m, int row) { return m.data + static_cast<size_t>(row) * m.stride; }
__device__ __forceinline__ int token_rows(const Tables& t) { return live_rows(t.live_tokens, t.token_bucket); }
__device__ __forceinline__ int request_rows(const Tables& t) { return live_rows(t.live_requests, t.request_bucket); }
__device__ __forceinline__ int logits_rows(const Tables& t) { return live_rows(t.live_logits, t.logits_bucket); }

// Names what is wrong; the first one counts. `fault` is the device's error word, which the step's record brings to the host.
__device__ __forceinline__ void report(int32_t* fault, int32_t what) { atomicCAS(fault, 0, what); }

// Nanoseconds of the device's clock.
__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

// --- sums over a warp or a thread block, in an order that depends on neither the row nor the grid
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}
// All threads of the block call it and get the sum. `Threads` is a multiple of 32.
template <int Threads> __device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[Threads / 32];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Threads / 32; i++) sum += parts[i];
    return sum;
}

// --- functions of one number, the same in every kernel
// One over a number that is not below one; within a unit in the last place. A division would branch, which keeps neighbours from being computed side by side.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
