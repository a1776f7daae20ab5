// Mamba2 on the grid: against f64, the same bits however a text is cut into steps, and how fast.
#include "harness.cuh"
#include "ssm.cuh"
#include <algorithm>
#include <cmath>
#include <vector>

constexpr int HEADS = 128, STATE_GROUPS = 8;
cudaStream_t stream;

template <int MT> void run(const SsmArgs& a) {
    launch(stream, ssm_dots, std::min(2112, (a.tokens * STATE_GROUPS + 3) / 4), 128, 0, a.pdl, a);
    // Thread blocks of a dependent launch take what room there is while the kernel ahead runs: few of them would end up two to an SM beside others with none.
    const bool spread = HEADS * a.row_count <= 132;
    launch(stream, ssm_scan<MT>, dim3(HEADS, a.row_count), 256, sizeof(SsmMemory<MT>), a.pdl && !spread, a);
    launch(stream, ssm_keep, std::min(2112, a.row_count * std::min(a.most, 2 * CHUNK) * HEADS / 8), 128, 0, a.pdl, a);
}
void run(const SsmArgs& a, bool wide = false) { a.most <= 4 && !wide ? run<4>(a) : run<16>(a); }

__global__ void fill(float* to, long count, uint32_t seed, float scale, float shift) {
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) to[i] = noise(seed, i) * scale + shift;
}
float* filled(long count, uint32_t seed, float scale, float shift) {
    float* p = device_memory<float>(count);
    fill<<<1024, 256, 0, stream>>>(p, count, seed, scale, shift);
    return p;
}
template <class T> std::vector<T> down(const T* p, size_t count) {
    std::vector<T> host(count);
    CHECK(cudaMemcpy(host.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

struct Inputs {
    int slots, tokens;
    SsmArgs a{};
    DeltaRow* rows;
    int* row_of;
    long state_count, entries_b, entries_x, entries_g;

    Inputs(int slots, int tokens) : slots(slots), tokens(tokens) {
        state_count = static_cast<long>(slots) * HEADS * N * P, entries_b = static_cast<long>(slots) * STATE_GROUPS * RING * N, entries_x = static_cast<long>(slots) * HEADS * RING * P, entries_g = static_cast<long>(slots) * HEADS * RING;
        const long vectors = static_cast<long>(tokens) * HEADS * P, keys = static_cast<long>(tokens) * STATE_GROUPS * N, numbers = static_cast<long>(tokens) * HEADS;
        a.state = device_memory<float>(state_count), a.out = device_memory<float>(vectors), a.dots = device_memory<float>(static_cast<long>(tokens) * STATE_GROUPS * CHUNK);
        a.entry_b = device_memory<float>(entries_b), a.entry_x = device_memory<float>(entries_x), a.entry_g = device_memory<float>(entries_g);
        a.b = filled(keys, 1, 1, 0), a.c = filled(keys, 2, 1, 0), a.x = filled(vectors, 3, 1, 0), a.dt = filled(numbers, 4, 0.4f, 0.45f), a.g = filled(numbers, 5, 0.2f, -0.2f), a.skip = filled(HEADS, 7, 1, 0);
        rows = device_memory<DeltaRow>(slots), a.rows = rows, row_of = device_memory<int>(tokens), a.row_of = row_of;
        a.heads = HEADS, a.groups = STATE_GROUPS;
    }
    ~Inputs() {
        for (const void* p : {(const void*)a.state, (const void*)a.out, (const void*)a.dots, (const void*)a.entry_b, (const void*)a.entry_x, (const void*)a.entry_g, (const void*)a.b, (const void*)a.c, (const void*)a.x, (const void*)a.dt, (const void*)a.g, (const void*)a.skip, (const void*)rows, (const void*)row_of}) cudaFree(const_cast<void*>(p));
    }
    // Entries and outputs that nobody has written are not numbers.
    void reset() {
        fill<<<1024, 256, 0, stream>>>(a.state, state_count, 6, 0.1f, 0);
        for (auto [p, n] : {std::pair{a.entry_b, entries_b}, {a.entry_x, entries_x}, {a.entry_g, entries_g}, {a.out, static_cast<long>(tokens) * HEADS * P}}) CHECK(cudaMemsetAsync(p, 0xff, n * 4, stream));
    }
    void set(const std::vector<DeltaRow>& plan) {
        std::vector<int> of;
        for (size_t i = 0; i < plan.size(); i++) of.insert(of.end(), plan[i].tokens, static_cast<int>(i));
        a.row_count = static_cast<int>(plan.size()), a.tokens = static_cast<int>(of.size()), a.most = 0;
        for (auto& row : plan) a.most = std::max(a.most, row.tokens);
        CHECK(cudaMemcpy(rows, plan.data(), plan.size() * sizeof(DeltaRow), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(row_of, of.data(), of.size() * 4, cudaMemcpyHostToDevice));
    }
    // A step whose first token is number `first` of the inputs; `wide`: with the kernel for many tokens, whatever their number.
    void step(const DeltaRow& row, bool wide, bool pdl, long first) {
        set({row});
        SsmArgs s = a;
        s.pdl = pdl, s.b += first * STATE_GROUPS * N, s.c += first * STATE_GROUPS * N, s.x += first * HEADS * P, s.dt += first * HEADS, s.g += first * HEADS, s.out += first * HEADS * P;
        run(s, wide);
        CHECK(cudaStreamSynchronize(stream));
    }
};

// A text of `length` tokens through one slot, cut by `cut(position) -> (tokens, drafts, accepted drafts)`: its outputs and the state at its last boundary.
template <class Cut> std::pair<std::vector<float>, std::vector<float>> told(Inputs& in, int length, bool wide, Cut cut) {
    in.reset();
    int at = 0, state_at = 0;
    while (at < length) {
        auto [tokens, drafts, accepted] = cut(at);
        tokens = std::min(tokens, length - at), drafts = std::min(drafts, tokens - 1), accepted = std::min(accepted, drafts);
        in.step({0, state_at, at, tokens, drafts, 0}, wide, at % 2, at);
        state_at = std::max(state_at, (at + tokens - drafts) / CHUNK * CHUNK);
        at += tokens - drafts + accepted;
    }
    // One more token that is certain: the state of every way is then at the same boundary.
    in.step({0, state_at, length, 1, 0, 0}, wide, false, length);
    return {down(in.a.out, static_cast<size_t>(length) * HEADS * P), down(in.a.state, in.state_count)};
}

void check(bool small) {
    const int length = small ? 48 : 96;
    Inputs in(1, length + 1);
    const auto plain = told(in, length, false, [](int) { return std::tuple(1, 0, 0); });
    // f64, token by token, of three heads.
    const auto b = down(in.a.b, length * STATE_GROUPS * N), c = down(in.a.c, length * STATE_GROUPS * N), x = down(in.a.x, length * HEADS * P), dt = down(in.a.dt, length * HEADS), g = down(in.a.g, length * HEADS), skip = down(in.a.skip, HEADS);
    double error = 0, size = 0, state_error = 0, state_size = 0;
    for (int h : {0, 77, 127}) {
        const int group = h / (HEADS / STATE_GROUPS);
        std::vector<double> S(N * P);
        for (int i = 0; i < N * P; i++) S[i] = noise(6, static_cast<long>(h) * N * P + i) * 0.1f;
        for (int t = 0; t < length; t++)
            for (int p = 0; p < P; p++) {
                const double in_x = x[(static_cast<long>(t) * HEADS + h) * P + p], fade = std::exp(double(g[t * HEADS + h]));
                double y = skip[h] * in_x;
                for (int n = 0; n < N; n++) {
                    double& s = S[n * P + p];
                    s = s * fade + dt[t * HEADS + h] * in_x * b[(t * STATE_GROUPS + group) * N + n], y += s * c[(t * STATE_GROUPS + group) * N + n];
                }
                const double got = plain.first[(static_cast<long>(t) * HEADS + h) * P + p];
                error += (got - y) * (got - y), size += y * y;
            }
        for (int i = 0; i < N * P; i++) {
            const double got = plain.second[static_cast<long>(h) * N * P + i];
            state_error += (got - S[i]) * (got - S[i]), state_size += S[i] * S[i];
        }
    }
    printf("against f64: output %.1e, state after %d tokens %.1e\n", std::sqrt(error / size), length, std::sqrt(state_error / state_size));
    expect(std::sqrt(error / size) < 1e-5 && std::sqrt(state_error / state_size) < 1e-5, "Mamba2 against f64");
    int cuts = 0, wrong = 0;
    for (bool wide : {false, true})
        for (int kind = 0; kind < 8; kind += small ? 3 : 1) {
            const auto other = told(in, length, wide, [&](int at) -> std::tuple<int, int, int> {
                switch (kind) {
                case 0: return {1, 0, 0};
                case 1: return {4, 3, 3};
                case 2: return {4, 3, static_cast<int>(noise(8, at) * 2 + 2)};
                case 3: return {16, 15, static_cast<int>(noise(9, at) * 8 + 8)};
                case 4: return {96, 0, 0};
                case 5: return {7, 0, 0};
                case 6: return at < 37 ? std::tuple(37, 0, 0) : std::tuple(8, 7, static_cast<int>(noise(10, at) * 4 + 4));
                default: return at < 16 ? std::tuple(5, 0, 0) : std::tuple(50, 0, 0);
                }
            });
            cuts++, wrong += other != plain;
            if (other != plain) printf("kind %d, %s: outputs %s, states %s\n", kind, wide ? "wide" : "narrow", other.first == plain.first ? "equal" : "differ", other.second == plain.second ? "equal" : "differ");
        }
    printf("%d of %d ways to cut a text give the same bits\n", cuts - wrong, cuts);
    expect(wrong == 0 && cuts > 0, "a cut changes bits");
}

int main(int argc, char**) {
    CHECK(cudaStreamCreate(&stream));
    check(argc > 1);
    if (argc > 1) return misses != 0;
    printf("us per layer, 128 heads of 64 x 128, 8 groups, entries 0 to 15 mixed (bytes of state over time in TB/s)\n");
    for (int batch : {1, 4, 16, 64, 256}) {
        // Layers take turns so that no state is found in the cache.
        const int layers = batch >= 256 ? 6 : 24;
        Inputs in(batch, batch * 16);
        float* states = filled(in.state_count * layers, 6, 0.1f, 0);
        for (auto [p, n] : {std::pair{in.a.entry_b, in.entries_b}, {in.a.entry_x, in.entries_x}, {in.a.entry_g, in.entries_g}}) fill<<<256, 256, 0, stream>>>(p, n, 11, 0.05f, p == in.a.entry_g ? -0.06f : 0);
        printf("batch %3d:", batch);
        for (int tokens : {1, 4, 8}) {
            std::vector<DeltaRow> plan;
            for (int b = 0; b < batch; b++) plan.push_back({b, 0, (b * 7 + 8) % 16, tokens, tokens - 1, b * tokens});
            in.set(plan);
            SsmArgs a = in.a;
            a.pdl = 1;
            const float us = graph_time(stream, [&] { for (int l = 0; l < layers; l++) a.state = states + l * in.state_count, run(a); }) / layers;
            printf("  %d tokens %.1f (%.2f)", tokens, us, in.state_count * 4 / us * 1e-6);
        }
        printf("\n");
        cudaFree(states);
    }
    printf("prompts, us per layer:");
    for (auto [count, length] : {std::pair{1, 1024}, {1, 8192}, {16, 2048}}) {
        Inputs in(count, count * length);
        in.reset();
        std::vector<DeltaRow> plan;
        for (int b = 0; b < count; b++) plan.push_back({b, 0, 0, length, 0, b * length});
        in.set(plan);
        SsmArgs a = in.a;
        a.pdl = 1;
        printf("  %d x %d %.0f", count, length, graph_time(stream, [&] { run(a); }, 3));
    }
    printf("\n");
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
