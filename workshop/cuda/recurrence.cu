// The gated delta rule on the grid: against f64, the same bits however a text is cut into steps, and how fast.
#include "delta.cuh"
#include "harness.cuh"
#include <algorithm>
#include <cmath>
#include <vector>

constexpr int VALUE_HEADS = 32, KEY_HEADS = 16;
cudaStream_t stream;

template <int C, int MT> void run(const DeltaArgs& a) {
    launch(stream, delta_dots, std::min(2112, (a.tokens * KEY_HEADS + 3) / 4), 128, 0, a.pdl, a);
    // Thread blocks of a dependent launch take what room there is while the kernel ahead runs: few of them would end up two to an SM beside others with none.
    const bool spread = VALUE_HEADS * (D / C) * a.row_count <= 132;
    launch(stream, delta_rule<C, MT>, dim3(VALUE_HEADS * (D / C), a.row_count), 256, sizeof(DeltaMemory<C, MT>), a.pdl && !spread, a);
    launch(stream, delta_keep, std::min(2112, a.row_count * std::min(a.most, 2 * CHUNK) * VALUE_HEADS / 4), 128, 0, a.pdl, a);
}
// The state's layout has the columns of a thread block together, so that one number of columns serves all of a model's steps: 64.
void run(const DeltaArgs& a, int columns, int most) {
    if (columns == 128) {
        // Decode and verify windows alone: prompts need more shared memory than there is.
        if (most > 8) printf("128 columns take at most 8 tokens, not %d\n", most), exit(1);
        return most <= 4 ? run<128, 4>(a) : run<128, 8>(a);
    }
    if (columns == 64) return most <= 4 ? run<64, 4>(a) : run<64, 16>(a);
    return most <= 4 ? run<32, 4>(a) : run<32, 16>(a);
}

__global__ void fill(float* to, long count, uint32_t seed, float scale, float shift) {
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) to[i] = noise(seed, i) * scale + shift;
}
// States hold the same numbers whatever their columns are grouped by.
__host__ __device__ long state_index(long head, int columns, int i, int c) { return ((head * (D / columns) + c / columns) * D + i) * columns + c % columns; }
__global__ void fill_states(float* to, long heads, int columns) {
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < heads * D * D; i += static_cast<long>(gridDim.x) * blockDim.x)
        to[state_index(i / (D * D), columns, i / D % D, i % D)] = noise(6, i) * 0.1f;
}
__global__ void unit(float* x) { // one block of 128 per vector
    __shared__ float s[128];
    float* at = x + static_cast<long>(blockIdx.x) * D;
    s[threadIdx.x] = at[threadIdx.x] * at[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < D; i++) sum += s[i];
    at[threadIdx.x] *= rsqrtf(sum + 1e-6f);
}

struct Inputs {
    int slots, tokens;
    DeltaArgs a{};
    DeltaRow* rows;
    int* row_of;
    size_t state_count;

    Inputs(int slots, int tokens) : slots(slots), tokens(tokens) {
        state_count = static_cast<size_t>(slots) * VALUE_HEADS * D * D;
        const long vectors = static_cast<long>(tokens) * VALUE_HEADS * D, keys = static_cast<long>(tokens) * KEY_HEADS * D;
        a.state = device_memory<float>(state_count), a.out = device_memory<float>(vectors), a.u = device_memory<float>(vectors);
        a.entry_k = device_memory<float>(static_cast<long>(slots) * KEY_HEADS * RING * D), a.entry_u = device_memory<float>(static_cast<long>(slots) * VALUE_HEADS * RING * D);
        a.entry_g = device_memory<float>(static_cast<long>(slots) * VALUE_HEADS * RING);
        float *k = device_memory<float>(keys), *q = device_memory<float>(keys), *v = device_memory<float>(vectors), *g = device_memory<float>(tokens * VALUE_HEADS), *beta = device_memory<float>(tokens * VALUE_HEADS);
        fill<<<1024, 256, 0, stream>>>(k, keys, 1, 1, 0), fill<<<1024, 256, 0, stream>>>(q, keys, 2, 1, 0), fill<<<1024, 256, 0, stream>>>(v, vectors, 3, 1, 0);
        fill<<<1024, 256, 0, stream>>>(g, tokens * VALUE_HEADS, 4, 0.2f, -0.2f), fill<<<1024, 256, 0, stream>>>(beta, tokens * VALUE_HEADS, 5, 0.5f, 0.5f);
        unit<<<tokens * KEY_HEADS, D, 0, stream>>>(k), unit<<<tokens * KEY_HEADS, D, 0, stream>>>(q);
        a.k = k, a.q = q, a.v = v, a.g = g, a.beta = beta;
        a.value_heads = VALUE_HEADS, a.key_heads = KEY_HEADS;
        rows = device_memory<DeltaRow>(slots), a.rows = rows, row_of = device_memory<int>(tokens), a.row_of = row_of;
        a.dots = device_memory<float>(static_cast<long>(tokens + 1) * KEY_HEADS * 2 * CHUNK);
    }
    void reset(int columns) {
        fill_states<<<1024, 256, 0, stream>>>(a.state, static_cast<long>(slots) * VALUE_HEADS, columns);
        for (auto [p, n] : {std::pair{a.entry_k, static_cast<long>(slots) * KEY_HEADS * RING * D}, {a.entry_u, static_cast<long>(slots) * VALUE_HEADS * RING * D}, {a.entry_g, static_cast<long>(slots) * VALUE_HEADS * RING}})
            CHECK(cudaMemsetAsync(p, 0xff, n * 4, stream));
        CHECK(cudaMemsetAsync(a.out, 0xff, static_cast<long>(tokens) * VALUE_HEADS * D * 4, stream));
    }
    void set(const std::vector<DeltaRow>& plan) {
        std::vector<int> of(tokens, 0);
        a.tokens = a.most = 0;
        for (auto& row : plan) a.most = std::max(a.most, row.tokens);
        for (size_t i = 0; i < plan.size(); i++)
            for (int t = 0; t < plan[i].tokens; t++) of[a.tokens++] = static_cast<int>(i);
        a.row_count = static_cast<int>(plan.size());
        CHECK(cudaMemcpy(rows, plan.data(), plan.size() * sizeof(DeltaRow), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(row_of, of.data(), of.size() * 4, cudaMemcpyHostToDevice));
    }
    // A step whose first token is number `first` of the inputs.
    void step(const std::vector<DeltaRow>& plan, int columns, bool pdl, long first) {
        int most = 0;
        for (auto& row : plan) most = std::max(most, row.tokens);
        set(plan);
        DeltaArgs b = a;
        b.pdl = pdl, b.k += first * KEY_HEADS * D, b.q += first * KEY_HEADS * D, b.v += first * VALUE_HEADS * D, b.g += first * VALUE_HEADS, b.beta += first * VALUE_HEADS, b.out += first * VALUE_HEADS * D, b.u += first * VALUE_HEADS * D;
        run(b, columns, most);
        CHECK(cudaStreamSynchronize(stream));
    }
};
template <class T> std::vector<T> down(const T* p, size_t count) {
    std::vector<T> host(count);
    CHECK(cudaMemcpy(host.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

// A text of `length` tokens through one slot, cut by `cut(position) -> (tokens, drafts, accepted drafts)`.
template <class Cut> std::pair<std::vector<float>, std::vector<float>> told(Inputs& in, int length, int columns, Cut cut) {
    in.reset(columns);
    int at = 0, state_at = 0;
    while (at < length) {
        auto [tokens, drafts, accepted] = cut(at);
        tokens = std::min(tokens, length - at), drafts = std::min(drafts, tokens - 1), accepted = std::min(accepted, drafts);
        in.step({{0, state_at, at, tokens, drafts, 0}}, columns, at % 2, at);
        state_at = std::max(state_at, (at + tokens - drafts) / CHUNK * CHUNK);
        at += tokens - drafts + accepted;
    }
    // One more token that is certain: the state of every way is then at the same boundary.
    in.step({{0, state_at, length, 1, 0, 0}}, columns, false, length);
    auto state = down(in.a.state, static_cast<size_t>(VALUE_HEADS) * D * D), sorted = state;
    for (long i = 0; i < VALUE_HEADS * D * D; i++) sorted[i] = state[state_index(i / (D * D), columns, i / D % D, i % D)];
    return {down(in.a.out, static_cast<size_t>(length) * VALUE_HEADS * D), sorted};
}

void check(Inputs& in, bool small) {
    const int length = 96;
    auto plain = told(in, length, 64, [](int) { return std::tuple(1, 0, 0); });
    // f64, token by token, of two heads.
    auto k = down(in.a.k, static_cast<size_t>(length) * KEY_HEADS * D), q = down(in.a.q, static_cast<size_t>(length) * KEY_HEADS * D), v = down(in.a.v, static_cast<size_t>(length) * VALUE_HEADS * D), g = down(in.a.g, length * VALUE_HEADS), beta = down(in.a.beta, length * VALUE_HEADS);
    double error = 0, size = 0, state_error = 0, state_size = 0;
    for (int h : {0, 13, 31}) {
        std::vector<double> S(D * D);
        for (int i = 0; i < D; i++)
            for (int c = 0; c < D; c++) S[i * D + c] = noise(6, (static_cast<long>(h) * D + i) * D + c) * 0.1f;
        for (int t = 0; t < length; t++) {
            const float *kt = &k[(t * KEY_HEADS + h / 2) * D], *qt = &q[(t * KEY_HEADS + h / 2) * D], *vt = &v[(static_cast<long>(t) * VALUE_HEADS + h) * D];
            const double decay = std::exp(double(g[t * VALUE_HEADS + h]));
            for (int c = 0; c < D; c++) {
                double dot = 0, o = 0;
                for (int i = 0; i < D; i++) S[i * D + c] *= decay, dot += S[i * D + c] * kt[i];
                const double u = beta[t * VALUE_HEADS + h] * (vt[c] - dot);
                for (int i = 0; i < D; i++) S[i * D + c] += kt[i] * u, o += S[i * D + c] * qt[i];
                const double got = plain.first[(static_cast<long>(t) * VALUE_HEADS + h) * D + c];
                error += (got - o) * (got - o), size += o * o;
            }
        }
        for (int i = 0; i < D; i++)
            for (int c = 0; c < D; c++) {
                const double got = plain.second[(static_cast<long>(h) * D + i) * D + c], want = S[i * D + c];
                state_error += (got - want) * (got - want), state_size += want * want;
            }
    }
    printf("against f64: output %.1e, state after %d tokens %.1e\n", std::sqrt(error / size), length, std::sqrt(state_error / state_size));
    expect(std::sqrt(error / size) < 1e-5 && std::sqrt(state_error / state_size) < 1e-5, "recurrence against f64");
    int cuts = 0, wrong = 0;
    for (int columns : {32, 64, 128})
        for (int kind = 0; kind < (columns == 128 ? 4 : 8); kind += small ? 3 : 1) {
            auto other = told(in, length, columns, [&](int at) -> std::tuple<int, int, int> {
                switch (kind) {
                case 0: return {1, 0, 0};
                case 1: return {4, 3, 3};
                case 2: return {4, 3, static_cast<int>(noise(8, at) * 2 + 2)};
                case 3: return columns == 128 ? std::tuple(8, 7, static_cast<int>(noise(9, at) * 4 + 4)) : std::tuple(16, 15, static_cast<int>(noise(9, at) * 8 + 8));
                case 4: return {96, 0, 0};
                case 5: return {7, 0, 0};
                case 6: return at < 37 ? std::tuple(37, 0, 0) : std::tuple(8, 7, static_cast<int>(noise(10, at) * 4 + 4));
                default: return at < 16 ? std::tuple(5, 0, 0) : std::tuple(50, 0, 0);
                }
            });
            cuts++;
            if (other != plain) {
                wrong++;
                size_t n = 0, first = SIZE_MAX;
                for (size_t i = 0; i < plain.first.size(); i++)
                    if (plain.first[i] != other.first[i] && !(n++)) first = i;
                printf("columns %d, kind %d: %zu outputs differ, the first of token %zu; states %s\n", columns, kind, n, first / (VALUE_HEADS * D), plain.second == other.second ? "equal" : "differ");
            }
        }
    printf("%d of %d ways to cut a text give the same bits\n", cuts - wrong, cuts);
    expect(wrong == 0, "a cut changes bits");
}

int main(int argc, char** argv) {
    CHECK(cudaStreamCreate(&stream));
    {
        Inputs in(1, 128);
        check(in, argc > 1);
    }
    if (argc > 1) return misses != 0;
    // Layers take turns so that no state is found in the cache.
    printf("us per layer, 32 value heads, entries 0 to 15 mixed (bytes of state over time in TB/s)\n");
    for (int batch : {1, 4, 16, 64, 256}) {
        const int layers = batch >= 256 ? 6 : 24;
        Inputs in(batch, batch * 16);
        float* states = device_memory<float>(in.state_count * layers);
        fill<<<1024, 256, 0, stream>>>(states, in.state_count * layers, 6, 0.1f, 0);
        for (auto [p, n] : {std::pair{in.a.entry_k, static_cast<long>(batch) * KEY_HEADS * RING * D}, {in.a.entry_u, static_cast<long>(batch) * VALUE_HEADS * RING * D}, {in.a.entry_g, static_cast<long>(batch) * VALUE_HEADS * RING}}) fill<<<256, 256, 0, stream>>>(p, n, 11, 0.05f, p == in.a.entry_g ? -0.06f : 0);
        printf("batch %3d:", batch);
        for (int columns : {32, 64, 128})
            for (int tokens : {1, 4, 8}) {
                std::vector<DeltaRow> plan;
                for (int b = 0; b < batch; b++) plan.push_back({b, 0, (b * 7 + 8) % 16, tokens, tokens - 1, b * tokens});
                in.set(plan);
                DeltaArgs a = in.a;
                a.pdl = 1;
                const float us = graph_time(stream, [&] { for (int l = 0; l < layers; l++) a.state = states + l * in.state_count, run(a, columns, tokens); }) / layers;
                printf("  %dx%d %.1f (%.2f)", columns, tokens, us, in.state_count * 4 / us * 1e-6);
            }
        printf("\n");
        cudaFree(states);
    }
    printf("prompts, us per layer:");
    for (auto [count, length] : {std::pair{1, 1024}, {1, 8192}, {16, 2048}}) {
        Inputs in(count, count * length);
        in.reset(32);
        std::vector<DeltaRow> plan;
        for (int b = 0; b < count; b++) plan.push_back({b, 0, 0, length, 0, b * length});
        in.set(plan);
        DeltaArgs a = in.a;
        a.pdl = 1;
        for (int columns : {32, 64}) printf("  %d x %d (%d columns) %.0f", count, length, columns, graph_time(stream, [&] { run(a, columns, 16); }, 3));
    }
    printf("\n");
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
