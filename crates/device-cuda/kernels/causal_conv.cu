// Depthwise causal convolution over time with SiLU.
//
//   out[t] = silu(bias + sum_j weight[j] x[t - (width - 1) + j]), taps ascending
//
// Inputs and outputs f32 [token][channel], taps f32 [channel][width]. A slot keeps raw inputs f32 [conv_inputs][channel] by position: enough for the window before any token that may
// come next, of those that are certain or may be taken back. A snapshot holds the `width - 1` inputs before its position.
//
// A thread block per request and some channels, which alone reads and writes these channels of the request's slot: it writes when it has read all it needs. A thread has a
// channel and every `strips`th run of eight tokens. Where a request may have many tokens and channels lie in fours, a thread has four, a warp a run, and several thread blocks share
// the runs: the first of them has the first run, and with it all that is about the slot. Bytes: inputs and outputs once.
#include "states.cuh"
#include "args/recurrence.h"

constexpr int THREADS = 256, RUN = 8;

__device__ __forceinline__ void load_four(float (&to)[4], const float* from) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// A run of tokens from `first` on, of four channels with four taps each.
__device__ __forceinline__ void convolve_four(const ConvArgs& a, const StateRow& row, int first, int channel, const float (&taps)[4][4], const float (&bias)[4]) {
    const int tokens = min(RUN, row.tokens - first);
    float x[RUN + 3][4];
#pragma unroll
    for (int i = 0; i < RUN + 3; i++) {
        const int token = first + i - 3;
        if (token >= 0 && i < tokens + 3) load_four(x[i], row_of(a.x, row.first_token + token) + channel);
    }
    // Before the first token is what the slot has kept.
    if (first == 0) {
#pragma unroll
        for (int i = 0; i < 3; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) x[i][c] = seen(a.x, a.states, row, row.start + i - 3, channel + c);
    }
    float* out = row_of(a.out, row.first_token + first) + channel;
#pragma unroll
    for (int i = 0; i < RUN; i++, out += a.out.stride) {
        float sum[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = bias[c];
#pragma unroll
            for (int j = 0; j < 4; j++) sum[c] = fmaf(taps[c][j], x[i + j][c], sum[c]);
        }
        if (i < tokens) *reinterpret_cast<float4*>(out) = make_float4(silu(sum[0]), silu(sum[1]), silu(sum[2]), silu(sum[3]));
    }
}

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
        float* out = row_of(a.out, row.first_token + first) + channel;
#pragma unroll
        for (int i = 0; i < RUN; i++, out += a.out.stride) {
            float sum = bias;
#pragma unroll
            for (int j = 0; j < Width; j++) sum = fmaf(taps[j], x[i + j], sum);
            if (i < tokens) *out = silu(sum);
        }
    }
}

// Inputs of a channel that a snapshot and later steps need, of every `strips`th position; the slot is written when all of the thread block have read.
__device__ __forceinline__ void save_inputs(const ConvArgs& a, const StateRow& row, int channel, int strip, int strips) {
    const StateView& s = a.states;
    const int before = s.conv_width - 1;
    if (row.snapshot_at > 0)
        for (int place = strip; place < before; place += strips)
            s.saved_inputs[(static_cast<size_t>(row.snapshot) * before + place) * s.conv_channels + channel] = seen(a.x, a.states, row, row.snapshot_at - before + place, channel);
}
__device__ __forceinline__ void leave_inputs(const ConvArgs& a, const StateRow& row, int channel, int strip, int strips) {
    const StateView& s = a.states;
    // Inputs of a snapshot that the request starts from are a part of it.
    const int room = s.conv_inputs, from = max(row.restore >= 0 ? max(row.start - static_cast<int>(s.conv_width) + 1, 0) : row.start, row.end - room);
    for (int position = from + strip; position < row.end; position += strips)
        s.inputs[(static_cast<size_t>(row.slot) * room + position % room) * s.conv_channels + channel] = seen(a.x, a.states, row, position, channel);
}

template <int Width> __device__ __forceinline__ void causal_conv(const ConvArgs& a) {
    enter();
    StateRow row;
    if (!state_row(a.states, a.tables, blockIdx.y, live_rows(a.x), row, a.fault)) return;
    const int strips = a.strips, lanes = THREADS / strips, strip = threadIdx.x / lanes, channel = blockIdx.x * lanes + threadIdx.x % lanes;
    const bool there = channel < static_cast<int>(a.states.conv_channels);
    if (there) {
        for (int first = strip * RUN; first < row.tokens; first += strips * RUN) convolve<Width>(a, row, first, channel);
        save_inputs(a, row, channel, strip, strips);
    }
    __syncthreads();
    if (there) leave_inputs(a, row, channel, strip, strips);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) causal_conv_4(const __grid_constant__ ConvArgs a) { causal_conv<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) causal_conv_any(const __grid_constant__ ConvArgs a) { causal_conv<0>(a); }

// Thread blocks beside each other in a grid, which have the channels of one of them for a request of few tokens: eight, or what is left at the end.
constexpr int BESIDE = 8;
// Those of 32 requests from `first` on that are a thread block's, a bit each: of a request of many tokens some runs, if there are as many; of the others, which lie beside each other and mostly
// have one token, every so many, with all channels of the thread blocks beside it.
__device__ __forceinline__ uint32_t own_requests(const Tables& t, int first) {
    const int request = first + threadIdx.x % 32, tokens = request < request_rows(t) ? t.requests[request].token_count : 0;
    const int runs_before = blockIdx.z * (THREADS / 32) * RUN, beside = min(BESIDE, gridDim.x - blockIdx.x / BESIDE * BESIDE), shares = gridDim.y * gridDim.z * beside;
    const bool own = tokens > RUN ? request % gridDim.y == blockIdx.y && tokens > runs_before : request % shares == (blockIdx.y * gridDim.z + blockIdx.z) * beside + blockIdx.x % BESIDE;
    return __ballot_sync(~0u, own && tokens > 0);
}

// What is about the slot, of `Channels` channels from `first` on that are the thread's, with others of its thread block where `strips` of them share a channel.
template <int Channels> __device__ __forceinline__ void keep_inputs(const ConvArgs& a, const StateRow& row, int first, int strip, int strips) {
    const int channels = a.states.conv_channels;
    if (first < channels) {
#pragma unroll 1
        for (int c = 0; c < Channels; c++) save_inputs(a, row, first + c, strip, strips);
    }
    __syncthreads();
    if (first < channels) {
#pragma unroll 1
        for (int c = 0; c < Channels; c++) leave_inputs(a, row, first + c, strip, strips);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) causal_conv_prompt(const __grid_constant__ ConvArgs a) {
    constexpr int Warps = THREADS / 32, Channels = 128; // of a thread block and a request of many tokens
    static_assert(BESIDE * Channels == THREADS * 4);
    enter();
    const int channels = a.states.conv_channels;
#pragma unroll 1
    for (int base = 0; base < request_rows(a.tables); base += 32)
#pragma unroll 1
        for (uint32_t left = own_requests(a.tables, base); left; left &= left - 1) {
            __shared__ StateRow row; // registers are short
            __shared__ bool there;
            __syncthreads();
            if (threadIdx.x == 0) there = state_row(a.states, a.tables, base + __ffs(left) - 1, live_rows(a.x), row, a.fault);
            __syncthreads();
            if (!there) continue;
            const bool few = row.tokens <= RUN;
            const int channel = few ? blockIdx.x / BESIDE * BESIDE * Channels + threadIdx.x * 4 : blockIdx.x * Channels + threadIdx.x % 32 * 4, run = few ? 0 : blockIdx.z * Warps + threadIdx.x / 32;
            if (channel < channels) {
                float taps[4][4], bias[4] = {};
#pragma unroll
                for (int c = 0; c < 4; c++) load_four(taps[c], a.weight + (channel + c) * 4);
                if (a.bias) load_four(bias, a.bias + channel);
#pragma unroll 1
                for (int first = run * RUN; first < row.tokens; first += gridDim.z * Warps * RUN) convolve_four(a, row, first, channel, taps, bias);
            }
            if (few) keep_inputs<4>(a, row, channel, 0, 1);
            else if (blockIdx.z == 0) keep_inputs<1>(a, row, blockIdx.x * Channels + threadIdx.x % Channels, threadIdx.x / Channels, THREADS / Channels);
        }
}
