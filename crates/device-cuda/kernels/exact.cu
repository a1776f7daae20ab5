// Products with f32 weights: out[t][m] = (sum_k w[m][k] x[t][k] + bias[m]) * scale[m], each sum one chain of fused multiply-adds over ascending k from
// zero: bit for bit what the CPU computes.
//
// For experts, strips of rows have the weight of their own expert, and the row of each slot may be looked up.
//
// A thread block makes 64 outputs of 16 * Tokens rows of tokens: 16 x 16 threads, each with 4 outputs of `Tokens` rows in registers. 32 inputs at a time go
// through shared memory, transposed.
#include "args/dense.h"
#include "step.cuh"

constexpr int DEPTH = 32, WIDTH = 64;

template <int Tokens> __device__ void exact_product(const ExactArgs& a) {
    enter();
    constexpr int HEIGHT = 16 * Tokens;
    __shared__ float w[DEPTH][WIDTH + 1], x[DEPTH][HEIGHT + 1];
    const int live = live_rows(a.out), first = blockIdx.x * WIDTH, row = blockIdx.y * HEIGHT;
    if (row >= live) return;
    const float* weight = a.weights ? reinterpret_cast<const float*>(a.weights[blockIdx.y]) : a.weight;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16, inputs = a.x.columns;
    float sum[4][Tokens] = {};
    for (int k = 0; k < inputs; k += DEPTH) {
        for (int i = threadIdx.x; i < WIDTH * DEPTH; i += 256) {
            const int output = first + i / DEPTH, input = k + i % DEPTH;
            w[i % DEPTH][i / DEPTH] = output < a.out.columns && input < inputs ? weight[static_cast<size_t>(output) * a.pitch + input] : 0.0f;
        }
        for (int i = threadIdx.x; i < HEIGHT * DEPTH; i += 256) {
            const int t = row + i / DEPTH, input = k + i % DEPTH;
            const int from = t >= live ? -1 : a.rows ? a.rows[t] : t;
            x[i % DEPTH][i / DEPTH] = from >= 0 && input < inputs ? row_of(a.x, from)[input] : 0.0f;
        }
        __syncthreads();
        const int depth = min(DEPTH, inputs - k);
        for (int i = 0; i < depth; i++) {
            float wi[4], xi[Tokens];
#pragma unroll
            for (int m = 0; m < 4; m++) wi[m] = w[i][across + 16 * m];
#pragma unroll
            for (int t = 0; t < Tokens; t++) xi[t] = x[i][down + 16 * t];
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int t = 0; t < Tokens; t++) sum[m][t] = __fmaf_rn(wi[m], xi[t], sum[m][t]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = 0; t < Tokens; t++) {
        if (row + down + 16 * t >= live) continue;
        float* out = row_of(a.out, row + down + 16 * t);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int output = first + across + 16 * m;
            if (output >= a.out.columns) continue;
            float y = sum[m][t];
            if (a.bias) y += a.bias[output];
            if (a.scale) y *= a.scale[output];
            out[output] = y;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) exact_16(const __grid_constant__ ExactArgs a) { exact_product<1>(a); }
extern "C" __global__ void __launch_bounds__(256, 2) exact_64(const __grid_constant__ ExactArgs a) { exact_product<4>(a); }
