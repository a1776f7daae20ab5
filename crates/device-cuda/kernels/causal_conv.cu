// Depthwise causal convolution over time with SiLU.
//
//   out[t] = silu(bias + sum_j weight[j] x[t - (width - 1) + j]), taps ascending
//
// Inputs and outputs f32 [token][channel], taps f32 [channel][width]. A slot keeps raw inputs f32 [conv_inputs][channel] by position: enough for the window before any token that may
// come next, of those that are certain or may be taken back. A snapshot holds the `width - 1` inputs before its position.
//
// A thread block per request and some channels, which alone reads and writes these channels of the request's slot: it writes when it has read all it needs. A thread has a
// channel and every `strips`th run of eight tokens. Bytes: inputs and outputs once.
#include "states.cuh"
#include "args/recurrence.h"

constexpr int THREADS = 256, RUN = 8;

// A run of tokens from `first` on. `Width` 0: any.
template <int Width> __device__ __forceinline__ void convolve(const ConvArgs& a, const StateRow& row, int first, int channel) {
    const float bias = a.bias ? a.bias[channel] : 0;
    const int tokens = min(RUN, row.tokens - first);
    if constexpr (Width == 0) {
        const int width = a.states.conv_width;
        for (int i = 0; i < tokens; i++) {
            float sum = bias;
            for (int j = 0; j < width; j++) sum = fmaf(a.weight[static_cast<size_t>(channel) * width + j], seen(a.x, a.states, row, row.start + first + i + j - (width - 1), channel), sum);
            row_of(a.out, row.first_token + first + i)[channel] = silu(sum);
        }
    } else {
        float taps[Width], x[RUN + Width - 1];
#pragma unroll
        for (int j = 0; j < Width; j++) taps[j] = a.weight[static_cast<size_t>(channel) * Width + j];
#pragma unroll
        for (int i = 0; i < RUN + Width - 1; i++) x[i] = i < tokens + Width - 1 ? seen(a.x, a.states, row, row.start + first + i - (Width - 1), channel) : 0;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            float sum = bias;
#pragma unroll
            for (int j = 0; j < Width; j++) sum = fmaf(taps[j], x[i + j], sum);
            if (i < tokens) row_of(a.out, row.first_token + first + i)[channel] = silu(sum);
        }
    }
}

template <int Width> __device__ __forceinline__ void causal_conv(const ConvArgs& a) {
    enter();
    StateRow row;
    if (!state_row(a.states, a.tables, blockIdx.y, live_rows(a.x), row, a.fault)) return;
    const StateView& s = a.states;
    const int lanes = THREADS / a.strips, strip = threadIdx.x / lanes, channel = blockIdx.x * lanes + threadIdx.x % lanes, before = s.conv_width - 1;
    const bool there = channel < static_cast<int>(s.conv_channels);
    if (there) {
        for (int first = strip * RUN; first < row.tokens; first += a.strips * RUN) convolve<Width>(a, row, first, channel);
        if (row.snapshot_at > 0)
            for (int place = strip; place < before; place += a.strips)
                s.saved_inputs[(static_cast<size_t>(row.snapshot) * before + place) * s.conv_channels + channel] = seen(a.x, a.states, row, row.snapshot_at - before + place, channel);
    }
    __syncthreads();
    if (!there) return;
    // What later steps need; inputs of a snapshot are a part of it.
    const int room = s.conv_inputs, from = max(row.restore >= 0 ? max(row.start - before, 0) : row.start, row.end - room);
    for (int position = from + strip; position < row.end; position += a.strips)
        s.inputs[(static_cast<size_t>(row.slot) * room + position % room) * s.conv_channels + channel] = seen(a.x, a.states, row, position, channel);
}

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv_4(const __grid_constant__ ConvArgs a) { causal_conv<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS) causal_conv_any(const __grid_constant__ ConvArgs a) { causal_conv<0>(a); }
