// The engine's own recurrence kernels on long prompts: `prompt.cu` gives the bits of `scan.cu` whatever the rows of a step are, and how fast both are.
// Built against crates/device-cuda/kernels:
//   nvcc -O3 -std=c++17 -fmad=false -arch=sm_90a -I ../../crates/device -I ../../crates/device-cuda/kernels -o prompts prompts.cu
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
#include "../../crates/device-cuda/kernels/recurrence.cuh"
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900 // kernels ask for it outside of functions
#define HOST
#endif
namespace general {
#include "../../crates/device-cuda/kernels/recurrence.cu"
}
namespace scans {
#include "../../crates/device-cuda/kernels/scan.cu"
}
namespace prompts {
#include "../../crates/device-cuda/kernels/prompt.cu"
}
namespace convolutions {
#include "../../crates/device-cuda/kernels/causal_conv.cu"
}
#ifdef HOST
#undef __CUDA_ARCH__
#endif

#ifdef EMULATED
#include "runtime.h"
template <class T> T* memory(size_t count) { return static_cast<T*>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256)); }
void wait() {}
template <class Args> void launch(void (*kernel)(Args), dim3 grid, int threads_, int shared, Args args) {
    static char* dynamic = static_cast<char*>(std::aligned_alloc(256, 256 << 10));
    threads = threads_, emu_dynamic = dynamic, gridDim = {grid.x, grid.y, grid.z}, blockDim = {static_cast<unsigned>(threads_), 1, 1}, body = [&] { kernel(args); };
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned z = 0; z < grid.z; z++)
            for (unsigned x = 0; x < grid.x; x++) std::memset(dynamic, 0xFF, 256 << 10), blockIdx = {x, y, z}, run_block();
}
#else
void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) printf("%s: %s\n", what, cudaGetErrorString(error)), exit(1);
}
#define CHECK(call) check(call, #call)
template <class T> T* memory(size_t count) {
    T* p;
    CHECK(cudaMallocManaged(&p, count * sizeof(T)));
    return p;
}
void wait() { CHECK(cudaDeviceSynchronize()); }
template <class Args> void launch(void (*kernel)(Args), dim3 grid, int threads, int shared, Args args) {
    if (shared > 48 << 10) CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<grid, threads, shared>>>(args);
    CHECK(cudaGetLastError());
}
#endif

uint64_t seed = 1;
uint32_t number() {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(seed >> 33);
}
int below(int end) { return static_cast<int>(number() % static_cast<uint32_t>(end)); }
float real() { return static_cast<float>(number() % (1 << 24)) * (2.0f / (1 << 24)) - 1; }

struct Shape {
    bool delta;
    int heads, groups, columns, drafts, slots, snapshots, tokens, requests;
};
// Caches, tensors and scratch of a layer. Two of the same shape and seed hold the same numbers.
struct Layer {
    Shape shape;
    RecurArgs a{};
    ConvArgs conv{};
    int32_t *live_tokens, *live_requests, *fault;
    TokenRow* tokens;
    RequestRow* requests;
    std::vector<std::pair<const char*, std::pair<float*, size_t>>> compared;

    float* numbers(const char* name, size_t count, float scale, float shift) {
        float* p = memory<float>(count);
        const size_t some = std::min<size_t>(count, (1 << 20) + 7); // and again
        for (size_t i = 0; i < some; i++) p[i] = real() * scale + shift;
        for (size_t i = some; i < count; i += some) std::memcpy(p + i, p, std::min(some, count - i) * 4);
        if (name) compared.push_back({name, {p, count}});
        return p;
    }
    Layer(Shape s) : shape(s) {
        seed = 1;
        const size_t T = s.tokens, wide = static_cast<size_t>(s.heads) * s.columns, keys = static_cast<size_t>(s.groups) * 128;
        const uint32_t entries = 16 + 2 * s.drafts;
        live_tokens = memory<int32_t>(1), live_requests = memory<int32_t>(1), fault = memory<int32_t>(1), tokens = memory<TokenRow>(T), requests = memory<RequestRow>(s.requests);
        *fault = 0;
        auto matrix = [&](float* data, size_t columns) { return Matrix{data, live_tokens, static_cast<uint32_t>(columns), static_cast<uint32_t>(columns), static_cast<uint32_t>(T)}; };
        a.keys = matrix(numbers(nullptr, T * keys, 1, 0), keys), a.queries = matrix(numbers(nullptr, T * keys, 1, 0), keys), a.values = matrix(numbers(nullptr, T * wide, 1, 0), wide);
        a.a = matrix(numbers(nullptr, T * s.heads, 1, 0), s.heads), a.b = matrix(numbers(nullptr, T * s.heads, 2, 0), s.heads), a.out = matrix(numbers("outputs", T * wide, 1, 0), wide);
        a.decay = numbers(nullptr, s.heads, 0.2f, -0.21f), a.dt_bias = numbers(nullptr, s.heads, 1, 0), a.skip = numbers(nullptr, s.heads, 1, 0), a.least = 0, a.most = 1e30f;
        a.unit_keys = memory<float>(T * keys), a.unit_queries = memory<float>(T * keys), a.dots = memory<float>(T * s.groups * 32), a.factors = memory<float>(T * s.heads * 2), a.entered = memory<float>(T * wide);
        StateView& v = a.states;
        v.matrices = numbers("states", s.slots * wide * 128, 0.1f, 0), v.keys = numbers("keys", s.slots * keys * entries, 0.1f, 0), v.values = numbers("values", s.slots * wide * entries, 1, 0);
        v.decays = numbers("decays", static_cast<size_t>(s.slots) * s.heads * entries, 0.1f, -0.1f), v.saved_matrices = numbers("snapshots", s.snapshots * wide * 128, 0.1f, 0);
        v.slots = s.slots, v.snapshots = s.snapshots, v.heads = s.heads, v.groups = s.groups, v.rows = 128, v.columns = s.columns, v.entries = entries;
        a.tables = Tables{tokens, requests, nullptr, nullptr, live_tokens, live_requests, nullptr, static_cast<uint32_t>(T), static_cast<uint32_t>(s.requests), 0, 0, 0};
        a.tiled = 0, a.leaves = 1, a.fault = fault;
        const size_t channels = 2 * keys + wide;
        v.conv_channels = static_cast<uint32_t>(channels), v.conv_width = 4, v.conv_inputs = 2 * s.drafts + 4;
        v.inputs = numbers("inputs", s.slots * channels * v.conv_inputs, 1, 0), v.saved_inputs = numbers("saved inputs", s.snapshots * channels * 3, 1, 0);
        conv.x = matrix(numbers(nullptr, T * channels, 1, 0), channels), conv.out = matrix(numbers("convolved", T * channels, 1, 0), channels);
        conv.weight = numbers(nullptr, channels * 4, 1, 0), conv.bias = s.drafts ? numbers(nullptr, channels, 1, 0) : nullptr;
        conv.states = v, conv.tables = a.tables, conv.strips = 8, conv.fault = fault;
    }
    void set(const std::vector<RequestRow>& rows, const std::vector<int>& starts) {
        wait();
        *live_requests = static_cast<int32_t>(rows.size()), *live_tokens = 0;
        for (size_t i = 0; i < rows.size(); i++) {
            requests[i] = rows[i], requests[i].first_token = *live_tokens;
            for (int t = 0; t < rows[i].token_count; t++) tokens[(*live_tokens)++] = TokenRow{0, starts[i] + t, static_cast<int32_t>(i)};
        }
    }
    void convolve(bool fast, int pieces) {
        const unsigned channels = conv.states.conv_channels, rows = shape.requests;
        if (fast) launch<ConvArgs>(convolutions::causal_conv_prompt, dim3((channels + 127) / 128, rows, pieces), 256, 0, conv);
        else launch<ConvArgs>(convolutions::causal_conv_4, dim3((channels + 31) / 32, rows), 256, 0, conv);
    }
    void relate() {
        const unsigned blocks = (static_cast<size_t>(*live_tokens) * shape.groups + 3) / 4;
        launch<RecurArgs>(shape.delta ? general::relate_delta_128 : general::relate_space_128, dim3(blocks), 128, 0, a);
    }
    void through(bool fast, int rows, int more = 0) {
        const dim3 grid(shape.heads * shape.columns / 32, rows);
        if (fast) launch<RecurArgs>(shape.delta ? prompts::prompt_delta_128 : prompts::prompt_space_128, grid, 256, sizeof(prompts::Memory) + more, a);
        else launch<RecurArgs>(shape.delta ? scans::scan_delta_128_32 : scans::scan_space_128_32, grid, 256, sizeof(scans::Memory<16, 32, 16>), a);
    }
    void keep() { launch<RecurArgs>(shape.delta ? general::keep_delta : general::keep_space, dim3(shape.heads, shape.requests), 128, 0, a); }
    void step(bool fast, int rows) { convolve(fast, rows), relate(), through(fast, rows), keep(), wait(); }
};

// A game of random steps on both: prompts in pieces, windows of drafts of which some are taken back, snapshots and returns to them.
bool same(Shape shape, int steps, int most) {
    Layer plain(shape), fast(shape);
    seed = 77;
    std::vector<int> at(shape.slots), state_at(shape.slots), saved(shape.snapshots, -1), saved_of(shape.snapshots, -1);
    for (int step = 0; step < steps; step++) {
        std::vector<RequestRow> rows;
        std::vector<int> starts;
        int room = shape.tokens;
        for (int slot = 0; slot < shape.slots && static_cast<int>(rows.size()) < shape.requests; slot++) {
            if (below(4) == 0 || room == 0) continue;
            int restore = 0;
            if (below(6) == 0)
                for (int i = 0; i < shape.snapshots; i++)
                    if (saved_of[i] == slot) restore = i + 1, at[slot] = state_at[slot] = saved[i];
            const int count = std::min(room, 1 + below(below(3) == 0 ? 4 : most)), drafts = below(std::min(count, shape.drafts + 1)), end = at[slot] + count;
            RequestRow r{};
            r.slot = slot, r.token_count = count, r.drafts = drafts, r.state_at = state_at[slot], r.restore = restore;
            r.state_end = std::max(state_at[slot], (end - drafts) / 16 * 16);
            if (r.state_end > r.state_at && below(2) == 0) {
                const int i = below(shape.snapshots);
                r.snapshot = i, r.snapshot_at = r.state_at + 16 * (1 + below((r.state_end - r.state_at) / 16));
                if (restore != i + 1 && std::none_of(rows.begin(), rows.end(), [&](const RequestRow& other) { return other.snapshot_at > 0 && other.snapshot == i; }) &&
                    std::none_of(rows.begin(), rows.end(), [&](const RequestRow& other) { return other.restore == i + 1; }))
                    saved[i] = r.snapshot_at, saved_of[i] = slot;
                else r.snapshot_at = 0;
            }
            starts.push_back(at[slot]), rows.push_back(r), room -= count;
            at[slot] = end - drafts + below(drafts + 1), state_at[slot] = r.state_end;
        }
        const int grid_rows = 1 + below(shape.requests);
        plain.set(rows, starts), fast.set(rows, starts), plain.step(false, grid_rows), fast.step(true, grid_rows);
        if (*plain.fault || *fast.fault) return printf("step %d: fault %d and %d\n", step, *plain.fault, *fast.fault), false;
        for (size_t i = 0; i < plain.compared.size(); i++) {
            auto [p, count] = plain.compared[i].second;
            const float* q = fast.compared[i].second.first;
            if (!std::memcmp(p, q, count * 4)) continue;
            size_t first = 0, differ = 0;
            for (size_t j = count; j-- > 0;)
                if (std::memcmp(p + j, q + j, 4)) first = j, differ++;
            printf("step %d: %zu %s differ, the first at %zu: %g, %g\n", step, differ, plain.compared[i].first, first, p[first], q[first]);
            for (size_t r = 0; r < rows.size(); r++) printf("  slot %d from %d, %d tokens, state %d to %d, restore %d, snapshot at %d\n", rows[r].slot, starts[r], rows[r].token_count, rows[r].state_at, rows[r].state_end, rows[r].restore, rows[r].snapshot_at);
            return false;
        }
    }
    return true;
}

#ifndef EMULATED
float time_of(const std::function<void()>& work, int rounds = 5) {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a)), CHECK(cudaEventCreate(&b));
    float best = 1e30f;
    for (int i = 0; i < rounds; i++) {
        CHECK(cudaEventRecord(a)), work(), CHECK(cudaEventRecord(b)), CHECK(cudaEventSynchronize(b));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b)), best = std::min(best, ms);
    }
    return best * 1e3f;
}
void times(const char* name, bool delta, int heads, int groups, int columns) {
    for (auto prompt : {std::pair{1, 1024}, {1, 8192}, {16, 2048}}) {
        const int count = prompt.first, length = prompt.second;
        Layer layer({delta, heads, groups, columns, 3, count, 1, count * length, count});
        std::vector<RequestRow> rows;
        for (int i = 0; i < count; i++) {
            RequestRow r{};
            r.slot = i, r.token_count = length, r.state_end = length;
            rows.push_back(r);
        }
        layer.set(rows, std::vector<int>(count, 0));
        layer.step(true, count), layer.step(false, count);
        const float relate = time_of([&] { layer.relate(); }), keep = time_of([&] { layer.keep(); });
        printf("%s, %d x %d, us: relate %.0f, scan %.0f, prompt %.0f (%.0f one per multiprocessor), keep %.0f, convolution %.0f, in pieces", name, count, length, relate, time_of([&] { layer.through(false, count); }), time_of([&] { layer.through(true, count); }), time_of([&] { layer.through(true, count, 32 << 10); }), keep, time_of([&] { layer.convolve(false, 1); }));
        for (int pieces : {1, 4, 9, 18}) printf(" %d: %.0f", pieces, time_of([&] { layer.convolve(true, pieces); }));
        printf("\n");
        fflush(stdout);
    }
}
#endif

int main(int argc, char** argv) {
    bool holds = true;
    const int steps = argc > 1 ? atoi(argv[1]) : 30;
    for (bool delta : {true, false})
        for (int drafts : {0, 3, 15})
            for (int most : {20, 100}) {
                const bool same_ = same({delta, 4, 2, 64, drafts, 3, 2, 200, 3}, steps, most);
                printf("%s, %d drafts, up to %d tokens: %s\n", delta ? "delta rule" : "state space", drafts, most, same_ ? "the same bits" : "MISS"), fflush(stdout);
                holds &= same_;
            }
#ifndef EMULATED
    times("delta rule, 32 heads of 128 x 128 on 16", true, 32, 16, 128);
    times("state space, 128 heads of 128 x 64 on 8", false, 128, 8, 64);
#endif
    printf(holds ? "all hold\n" : "MISSES\n");
    return !holds;
}
