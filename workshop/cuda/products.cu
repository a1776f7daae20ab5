// Products with a K plan: right, the same bits at any number of tokens, and how fast. nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a products.cu
#include "harness.cuh"
#include "wide.cuh"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

struct Weight {
    const char* name;
    int outputs, inputs;
};
// Qwen3.5-4B; outputs padded to 128.
const Weight WEIGHTS[] = {{"in", 12416, 2560}, {"qkv", 10240, 2560}, {"out", 2560, 4096}, {"up", 18432, 2560}, {"down", 2560, 9216}, {"head", 248320, 2560}};
constexpr int MOST_TOKENS = 8192, MOST_INPUTS = 9216;
int WORKERS = 132;

__host__ __device__ float weight_at(int outputs, int inputs, int m, int k) { return rounded(noise(outputs * 31 + inputs, static_cast<uint64_t>(m) * inputs + k)); }
__host__ __device__ float token_at(int t, int k) { return rounded(noise(77, static_cast<uint64_t>(t) * MOST_INPUTS + k) * 0.25f); }

__global__ void pack_weight(bf16* to, int outputs, int inputs) {
    const long count = static_cast<long>(outputs) * inputs / 8;
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) {
        const int m = static_cast<int>(i / (inputs / 8)), c = static_cast<int>(i % (inputs / 8)), block = c / 8, chunk = c % 8, row = m % TILE;
        bf16* at = to + ((static_cast<long>(m / TILE) * (inputs / BLOCK_K) + block) * TILE + row) * BLOCK_K + (chunk ^ row % 8) * 8;
        for (int j = 0; j < 8; j++) at[j] = __float2bfloat16_rn(weight_at(outputs, inputs, m, c * 8 + j));
    }
}
__global__ void fill_tokens(bf16* to, int tokens, int inputs) {
    const long count = static_cast<long>(tokens) * inputs;
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) to[i] = __float2bfloat16_rn(token_at(i / inputs, i % inputs));
}
// Stands for the kernel that consumes a product: adds the pieces, writes tokens of the next product. A warp per tile and token.
__global__ void finish(const float* pieces, Plan plan, int most, int width, int tokens, bf16* to, float* exact, int stride, int pdl, int kernel = 0) {
    if (threadIdx.x == 0) { STAMP(kernel, 0); }
    if (pdl) release_dependents(), depend();
    if (threadIdx.x == 0) { STAMP(kernel, 1); }
    const int outputs = plan.tiles * TILE, lane = threadIdx.x % 32;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < plan.tiles * tokens; i += gridDim.x * blockDim.x / 32) {
        const int tile = i % plan.tiles, t = i / plan.tiles, count = plan.last(tile) - plan.first(tile) + 1, output = tile * TILE + lane * 4;
        const float4* at = reinterpret_cast<const float4*>(pieces + (static_cast<long>(tile) * most * width + t) * TILE) + lane;
        float4 part[PIECE_LIMIT];
#pragma unroll
        for (int piece = 0; piece < PIECE_LIMIT; piece++)
            if (piece < count) part[piece] = at[static_cast<long>(piece) * width * TILE / 4];
        float4 sum = part[0];
#pragma unroll
        for (int piece = 1; piece < PIECE_LIMIT; piece++)
            if (piece < count) sum.x = __fadd_rn(sum.x, part[piece].x), sum.y = __fadd_rn(sum.y, part[piece].y), sum.z = __fadd_rn(sum.z, part[piece].z), sum.w = __fadd_rn(sum.w, part[piece].w);
        if (exact) *reinterpret_cast<float4*>(exact + static_cast<long>(t) * outputs + output) = sum;
        if (output < stride) *reinterpret_cast<uint2*>(to + static_cast<long>(t) * stride + output) = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
    }
    if (threadIdx.x == 0) { STAMP_END(kernel); }
}
__global__ void differences(const float* a, const float* b, long count, unsigned long long* out) {
    unsigned long long n = 0;
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) n += __float_as_uint(a[i]) != __float_as_uint(b[i]);
    if (n) atomicAdd(out, n);
}

cudaStream_t stream;
bf16 *tokens, *result;
float* pieces;
Plan plan_of(const Weight& w) { return {w.outputs / TILE, w.inputs / BLOCK_K, WORKERS}; }
int width_of(int count) { return count <= 8 ? 8 : count <= 16 ? 16 : count <= 32 ? 32 : count <= 64 ? 64 : count <= 128 ? 128 : 256; }

// A product of up to 256 tokens; returns the width of its pieces.
void stream_it(const Weight& w, const char* packed, const bf16* x, int count, bool pdl, int variant = 0, int kernel = 0) {
    const Plan plan = plan_of(w);
    auto go = [&](auto width, auto stages) {
        constexpr int N = decltype(width)::value, S = decltype(stages)::value;
        launch(stream, stream_product<N, S>, plan.workers, 288, 1024 + S * StreamShape<N>::stage_bytes, pdl, packed, tensor_map(x, w.inputs, count, N), pieces, plan, plan.most_pieces(), int(pdl), kernel);
    };
#define W(n) std::integral_constant<int, n>()
    switch (width_of(count) + variant * 1000) {
    case 8: return go(W(8), W(6));
    case 1008: return go(W(8), W(4));
    case 2008: return go(W(8), W(9));
    case 3008: return go(W(8), W(12));
    case 16: return go(W(16), W(5));
    case 32: return go(W(32), W(5));
    case 64: return go(W(64), W(4));
    case 1064: return go(W(64), W(6));
    case 2064: return go(W(64), W(9));
    case 128: return go(W(128), W(6));
    default: return go(W(256), W(4));
    }
}
template <int N, int S> void wide_it(const Weight& w, const char* packed, const bf16* x, int count, float* exact, bool pdl) {
    const Plan plan = plan_of(w);
    const int work = plan.tiles * ((count + N - 1) / N);
    launch(stream, wide_product<N, S>, std::min(work, 132), 384, wide_memory<N, S>(), pdl, packed, tensor_map(x, w.inputs, count, N), result, exact, plan, count, int(pdl));
}

void check(const Weight& w, const char* packed, int most) {
    const Plan plan = plan_of(w);
    float *all = device_memory<float>(static_cast<long>(most) * w.outputs), *some = device_memory<float>(static_cast<long>(most) * w.outputs);
    auto* count = device_memory<unsigned long long>(1);
    fill_tokens<<<1024, 256, 0, stream>>>(tokens, most, w.inputs);
    CHECK(cudaMemsetAsync(all, 0xff, sizeof(float) * most * w.outputs, stream));
    wide_it<160, 4>(w, packed, tokens, most, all, false);
    std::vector<float> host(static_cast<long>(most) * w.outputs);
    CHECK(cudaMemcpyAsync(host.data(), all, host.size() * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    double error = 0, size = 0;
    for (int i = 0; i < 400; i++) {
        const int t = i == 0 ? most - 1 : rand() % most, m = i == 0 ? w.outputs - 1 : rand() % w.outputs;
        double sum = 0;
        for (int k = 0; k < w.inputs; k++) sum += double(weight_at(w.outputs, w.inputs, m, k)) * token_at(t, k);
        const double got = host[static_cast<long>(t) * w.outputs + m];
        error += (got - sum) * (got - sum), size += sum * sum;
    }
    const double relative = std::sqrt(error / size);
    expect(relative < 2e-4, "product against f64");
    printf("%-5s %6d x %4d, %d pieces at most: error %.1e;", w.name, w.outputs, w.inputs, plan.most_pieces(), relative);
    for (int live : {1, 2, 3, 8, 17, 64, 100, 255, -128, -777}) {
        const int used = abs(live);
        CHECK(cudaMemsetAsync(some, 0xff, sizeof(float) * most * w.outputs, stream));
        CHECK(cudaMemsetAsync(count, 0, 8, stream));
        if (live < 0) {
            wide_it<128, 5>(w, packed, tokens, used > most ? most : used, some, true);
        } else {
            CHECK(cudaMemsetAsync(pieces, 0xff, static_cast<size_t>(plan.tiles) * plan.most_pieces() * 256 * TILE * 4, stream));
            stream_it(w, packed, tokens, live, live % 2);
            finish<<<264, 256, 0, stream>>>(pieces, plan, plan.most_pieces(), width_of(live), live, result, some, 0, 0, 0);
        }
        const int compared = used > most ? most : used;
        differences<<<1024, 256, 0, stream>>>(all, some, static_cast<long>(compared) * w.outputs, count);
        unsigned long long different;
        CHECK(cudaMemcpyAsync(&different, count, 8, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        printf(" %d%s:%llu", used, live < 0 ? "w" : "", different);
        expect(different == 0, "bits differ with the number of tokens");
    }
    printf(" values differ\n");
    cudaFree(all), cudaFree(some), cudaFree(count);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1;
    if (argc > 2) WORKERS = atoi(argv[2]);
    CHECK(cudaStreamCreate(&stream));
    tokens = device_memory<bf16>(static_cast<long>(MOST_TOKENS) * MOST_INPUTS);
    result = device_memory<bf16>(static_cast<long>(MOST_TOKENS) * 18432);
    pieces = device_memory<float>(static_cast<size_t>(1940) * 8 * 256 * TILE);
    // Weights are spread over enough copies that none is found in the cache.
    size_t bytes = 0;
    for (auto& w : WEIGHTS) bytes = std::max(bytes, static_cast<size_t>(w.outputs) * w.inputs * 2);
    const size_t pool = static_cast<size_t>(8) << 30;
    char* packed = device_memory<char>(pool);
    if (brief && !strcmp(argv[1], "small")) {
        const Weight small = {"small", 1280, 1024};
        pack_weight<<<256, 256, 0, stream>>>(reinterpret_cast<bf16*>(packed), small.outputs, small.inputs);
        check(small, packed, 300);
        return misses != 0;
    }
    for (auto& w : WEIGHTS) {
        const size_t one = static_cast<size_t>(w.outputs) * w.inputs * 2;
        if (brief && argc > 3) break;
        const int copies = brief ? 1 : static_cast<int>(std::min<size_t>(pool / one, w.outputs > 100000 ? 2 : 24));
        for (int i = 0; i < copies; i++) pack_weight<<<2048, 256, 0, stream>>>(reinterpret_cast<bf16*>(packed + i * one), w.outputs, w.inputs);
        check(w, packed, w.outputs > 100000 ? 512 : 2048);
        if (brief) continue;
        fill_tokens<<<1024, 256, 0, stream>>>(tokens, MOST_TOKENS, w.inputs);
        for (int workers : {132, 264}) {
            WORKERS = workers;
            printf("  %d workers, TB/s:", workers);
            for (auto pair : {std::pair{8, 0}, {8, 1}, {8, 2}, {8, 3}, {16, 0}, {32, 0}, {64, 0}, {64, 1}, {64, 2}}) {
                const int count = pair.first, variant = pair.second;
                const float us = graph_time(stream, [&] { for (int i = 0; i < copies; i++) stream_it(w, packed + i * one, tokens, count, true, variant); });
                printf("  %d.%d: %.2f", count, variant, one * copies / us * 1e-6);
            }
            printf("\n");
        }
        WORKERS = 132;
        printf("  TFLOP/s:");
        for (int count : {128, 256}) {
            const float us = graph_time(stream, [&] { for (int i = 0; i < copies; i++) stream_it(w, packed + i * one, tokens, count, true); });
            printf("  stream %d: %.0f", count, 1e-6 * one * count * copies / us);
        }
        if (w.outputs < 100000)
            for (int count : {128, 256, 512, 1024, 2048, 8192}) {
                const float a = graph_time(stream, [&] { for (int i = 0; i < 4; i++) wide_it<128, 5>(w, packed + i * one, tokens, count, nullptr, true); });
                const float b = graph_time(stream, [&] { for (int i = 0; i < 4; i++) wide_it<160, 4>(w, packed + i * one, tokens, count, nullptr, true); });
                printf("  wide %d: %.0f / %.0f", count, 4e-6 * one * count / a, 4e-6 * one * count / b);
            }
        printf("\n");
    }
    if (!brief || argc > 3) {
        // The products of 32 layers, each followed by what consumes it.
        const int order[] = {0, 2, 3, 4};
        for (int workers : {132, 264})
        for (int count : {4, 16, 64})
            for (int pdl = 0; pdl < 2; pdl++) {
                WORKERS = workers;
                size_t read = 0;
                auto record = [&] {
                    size_t at = 0;
                    read = 0;
                    for (int layer = 0; layer < 32; layer++)
                        for (int i = 0; i < 4; i++) {
                            const Weight& w = WEIGHTS[order[i]];
                            const Weight& next = WEIGHTS[order[(i + 1) % 4]];
                            const Plan plan = plan_of(w);
                            stream_it(w, packed + at, tokens, count, pdl, 0, 2 * (layer * 4 + i));
                            launch(stream, finish, std::min(528, plan.tiles * count / 4 + 1), 128, 0, pdl, (const float*)pieces, plan, plan.most_pieces(), width_of(count), count, tokens, (float*)nullptr, next.inputs, pdl, 2 * (layer * 4 + i) + 1);
                            at += static_cast<size_t>(w.outputs) * w.inputs * 2, read += static_cast<size_t>(w.outputs) * w.inputs * 2;
                        }
                };
#ifdef TIMELINE
                static unsigned long long* times = device_memory<unsigned long long>(1024);
                CHECK(cudaMemcpyToSymbol(timeline, &times, 8));
                record();
                CHECK(cudaStreamSynchronize(stream));
                std::vector<unsigned long long> seen(1024);
                for (int i = 0; i < 1024; i++) seen[i] = i % 4 == 3 ? 0 : ~0ull;
                CHECK(cudaMemcpy(times, seen.data(), 8192, cudaMemcpyHostToDevice));
                graph_time(stream, record, 1);
                CHECK(cudaMemcpy(times, seen.data(), 8192, cudaMemcpyHostToDevice));
                cudaGraph_t graph; cudaGraphExec_t program;
                CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)); record(); CHECK(cudaStreamEndCapture(stream, &graph)); CHECK(cudaGraphInstantiate(&program, graph, 0));
                CHECK(cudaGraphLaunch(program, stream)); CHECK(cudaStreamSynchronize(stream));
                CHECK(cudaMemcpy(seen.data(), times, 8192, cudaMemcpyDeviceToHost));
                for (int i = 80; i < 97; i++) printf("  kernel %d (%s): start %.2f, awake %.2f, end %.2f us\n", i, i % 2 ? "sum" : WEIGHTS[order[i / 2 % 4]].name, (seen[i * 4] - seen[320]) * 1e-3, (seen[i * 4 + 1] - seen[320]) * 1e-3, (seen[i * 4 + 3] - seen[320]) * 1e-3);
#endif
                const float us = graph_time(stream, record);
                printf("32 layers of products and sums, %d workers, %d tokens, PDL %d: %.3f ms, %.2f TB/s of %.2f GB\n", WORKERS, count, pdl, us * 1e-3, read / us * 1e-6, read * 1e-9);
            }
    }
    CHECK(cudaStreamSynchronize(stream));
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
