// What a Mamba2 layer needs no state for, in steps of decodes and verify windows: the first of the two kernels of `space.cu`, which says what they are. Convolution, the entries of tokens, dots of
// queries with the keys of their chunk.
//
// A thread block per request and 1,024 channels of values, four of them a thread's, or a group's keys and queries, a warp every eighth key. Rows are short: all entries have places of their own
// in the rings, so those of tokens are left there at once, and `space_states` reads old and new alike. Weights and what earlier steps left are there before the wait. Bytes: what the
// convolution reads and makes, and the keys of a chunk.
#include "recurrence.cuh"
#include "rows.cuh"
#include "args/space.h"

constexpr int THREADS = 256, WARPS = THREADS / 32, TAPS = 4, BEFORE = TAPS - 1, WINDOW = 1 + MAX_DRAFTS;
constexpr int OWN = CHUNK / WARPS; // keys of a chunk that are a warp's

struct Taps {
    float4 taps;
    float bias;
    __device__ __forceinline__ Taps(const SpaceArgs& a, int channel) : taps(*reinterpret_cast<const float4*>(a.taps + static_cast<size_t>(channel) * TAPS)), bias(a.bias ? a.bias[channel] : 0) {}
    __device__ __forceinline__ float convolve(float x0, float x1, float x2, float x3) const {
        return silu(fmaf(taps.w, x3, fmaf(taps.z, x2, fmaf(taps.y, x1, fmaf(taps.x, x0, bias)))));
    }
};
__device__ __forceinline__ float* ring_input(const StateView& s, const StateRow& row, int position) {
    return s.inputs + (static_cast<size_t>(row.slot) * s.conv_inputs + position % s.conv_inputs) * s.conv_channels;
}

// Inputs of a thread's channels: those of the three positions before a token, and its own.
template <class Some> struct Inputs {
    const SpaceArgs& a;
    const StateRow& row;
    const int channel;
    Some x[TAPS];

    // What earlier steps left, and zero before a sequence.
    __device__ __forceinline__ Inputs(const SpaceArgs& a, const StateRow& row, int channel) : a(a), row(row), channel(channel) {
        const StateView& s = a.states;
#pragma unroll
        for (int i = 0; i < BEFORE; i++) {
            const int position = row.start + i - BEFORE;
            const float* from = row.restore >= 0 ? s.saved_inputs + (static_cast<size_t>(row.restore) * BEFORE + i) * s.conv_channels : ring_input(s, row, position);
            x[i] = position < 0 ? Some() : *reinterpret_cast<const Some*>(from + channel);
        }
    }
    __device__ __forceinline__ Some of_token(int t) const { return *reinterpret_cast<const Some*>(row_of(a.x, row.first_token + t) + channel); }
    __device__ __forceinline__ void leave(int position, Some input) const { *reinterpret_cast<Some*>(ring_input(a.states, row, position) + channel) = input; }
    // Goes through all tokens. `ask(t)` is about the next one, `run(t)` about the one whose inputs are there. They stay for later steps, and with them those of a snapshot that the row
    // starts from.
    template <class Ask, class Run> __device__ __forceinline__ void each_token(Ask ask, Run run) {
        x[BEFORE] = of_token(0);
        ask(0);
        if (row.restore >= 0)
#pragma unroll
            for (int i = 0; i < BEFORE; i++)
                if (row.start + i >= BEFORE) leave(row.start + i - BEFORE, x[i]);
#pragma unroll 1
        for (int t = 0;;) {
            leave(row.start + t, x[BEFORE]);
            run(t);
            if (++t == row.tokens) return;
#pragma unroll
            for (int i = 0; i < BEFORE; i++) x[i] = x[i + 1];
            x[BEFORE] = of_token(t);
            ask(t);
        }
    }
};
__device__ __forceinline__ void save_inputs(const SpaceArgs& a, const StateRow& row, int channel) {
    const StateView& s = a.states;
#pragma unroll 1
    for (int i = 0; i < BEFORE; i++)
        s.saved_inputs[(static_cast<size_t>(row.snapshot) * BEFORE + i) * s.conv_channels + channel] = seen(a.x, s, row, row.snapshot_at - BEFORE + i, channel);
}

// Four values of all tokens: they are left for the outputs, and times the step of their head as entries.
template <class Find> __device__ __forceinline__ void run_values(const SpaceArgs& a, const StateRow& row, int at, Find find) {
    const StateView& s = a.states;
    const int first = min(at, static_cast<int>(s.heads * s.columns) - 4); // of the last thread block's last threads: nobody leaves before all have met
    const int channel = a.values + first, columns = s.columns, head = first / columns, column = first % columns;
    const Taps taps[4] = {Taps(a, channel), Taps(a, channel + 1), Taps(a, channel + 2), Taps(a, channel + 3)};
    const float dt_bias = a.dt_bias[head], decay = a.decay[head];
    if (!find() || first < at) return depend();
    Inputs<float4> inputs(a, row, channel);
    float dt = 0;
    depend();
    inputs.each_token([&](int t) { dt = row_of(a.dt, row.first_token + t)[head]; },
                      [&](int t) {
                          const float4(&x)[TAPS] = inputs.x;
                          const float4 y = make_float4(taps[0].convolve(x[0].x, x[1].x, x[2].x, x[3].x), taps[1].convolve(x[0].y, x[1].y, x[2].y, x[3].y),
                                                       taps[2].convolve(x[0].z, x[1].z, x[2].z, x[3].z), taps[3].convolve(x[0].w, x[1].w, x[2].w, x[3].w));
                          const float2 factor = space_factors(dt, dt_bias, decay, a.least, a.most);
                          const size_t place = ring_of_head(s, row, head, row.start + t);
                          *reinterpret_cast<float4*>(row_of(a.mixed, row.first_token + t) + channel) = y;
                          *reinterpret_cast<float4*>(s.values + place * columns + column) = each(y, [&](float y) { return factor.y * y; });
                          if (column == 0) s.decays[place] = factor.x;
                      });
    if (row.snapshot_at > 0)
#pragma unroll 1
        for (int c = 0; c < 4; c++) save_inputs(a, row, channel + c);
}

template <int R> struct Memory {
    float k[WINDOW][R], q[WINDOW][R]; // by token
};
// A group: keys, queries and their dots.
template <int R> __device__ __forceinline__ void run_group(Memory<R>& m, const SpaceArgs& a, const StateRow& row, int group) {
    const StateView& s = a.states;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = row.start / CHUNK * CHUNK;
    float left[OWN][R / 32];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int at = chunk + warp + i * WARPS;
        load_vector(left[i], ring_key(s, row, group, at), at < row.start ? R : 0);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * R; i += THREADS) {
        const bool is_key = i < R;
        const int at = i % R, channel = (is_key ? a.keys : a.queries) + group * R + at;
        const Taps taps(a, channel);
        Inputs<float> inputs(a, row, channel);
        depend();
        inputs.each_token([](int) {},
                          [&](int t) {
                              const float(&x)[TAPS] = inputs.x;
                              const float y = taps.convolve(x[0], x[1], x[2], x[3]);
                              (is_key ? m.k : m.q)[t][at] = y;
                              (is_key ? ring_key(s, row, group, row.start + t) + at : row_of(a.mixed, row.first_token + t) + channel)[0] = y;
                          });
        if (row.snapshot_at > 0) save_inputs(a, row, channel);
    }
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < row.tokens; t++) {
        const int position = row.start + t, base = position / CHUNK * CHUNK;
        float query[R / 32];
        load_vector(query, m.q[t], R);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int entry = warp + i * WARPS, at = base + entry;
            if (at > position) continue;
            float own[R / 32];
            load_vector(own, m.k[max(at - row.start, 0)], R);
#pragma unroll
            for (int j = 0; j < R / 32; j++) own[j] = at < row.start ? left[i][j] : own[j];
            const float sum = dot(own, query);
            if (lane == 0) a.dots[(static_cast<size_t>(row.first_token + t) * s.groups + group) * CHUNK + entry] = sum;
        }
    }
}

template <int R> __device__ __forceinline__ void space_keys(const SpaceArgs& a) {
    __shared__ Memory<R> m;
    release_dependents();
    const StateView& s = a.states;
    const int groups = s.groups, first = (static_cast<int>(blockIdx.x) - groups) * THREADS * 4 + threadIdx.x * 4;
    __shared__ StateRow row; // registers are short
    __shared__ bool there;
    // By one thread, while others ask for weights.
    auto find = [&] {
        if (threadIdx.x == 0) {
            there = state_row(s, a.tables, blockIdx.y, live_rows(a.out), row, a.fault);
            // A window's entries and inputs have places of their own in the rings.
            if (there && (!row.is_short(s) || row.tokens > WINDOW || row.tokens + BEFORE > static_cast<int>(s.conv_inputs))) there = false, report(a.fault, RecordHeader::BAD_SLOT);
        }
        __syncthreads();
        return there;
    };
    if (blockIdx.x < groups) {
        if (!find()) return depend();
        run_group(m, a, row, blockIdx.x);
    } else {
        run_values(a, row, first, find);
    }
}

#if HOPPER // where `space_states` is
#define RUN(R) space_keys<R>(a)
#else
#define RUN(R)
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 3) space_keys_128(const __grid_constant__ SpaceArgs a) { RUN(128); }
extern "C" __global__ void __launch_bounds__(THREADS, 3) space_keys_256(const __grid_constant__ SpaceArgs a) { RUN(256); }
