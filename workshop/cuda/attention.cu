// Paged attention of decode, verify windows and prompts: against f64, the same bits however tokens come, and how fast.
#include "harness.cuh"
#include "prefill.cuh"
#include <algorithm>
#include <cmath>
#include <vector>

cudaStream_t stream;

__host__ __device__ float key_at(int slot, int head, int position, int i) { return rounded(noise(21 + slot, (static_cast<uint64_t>(position) * 64 + head) * 256 + i)); }
__host__ __device__ float value_at(int slot, int head, int position, int i) { return rounded(noise(1021 + slot, (static_cast<uint64_t>(position) * 64 + head) * 256 + i)); }
__host__ __device__ float query_at(int slot, int position, int head, int i) { return rounded(noise(2021 + slot, (static_cast<uint64_t>(position) * 64 + head) * 256 + i) * 3); }

template <int Dim> __global__ void fill_cache(bf16* keys, bf16* values, const int* tables, int slots, int blocks, int kv_heads) {
    const long count = static_cast<long>(slots) * blocks * kv_heads * BLOCK * (Dim / 8);
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) {
        const int chunk = i % (Dim / 8), offset = i / (Dim / 8) % BLOCK, head = i / (Dim / 8) / BLOCK % kv_heads;
        const long place = i / (Dim / 8) / BLOCK / kv_heads;
        const int block = place % blocks, slot = place / blocks, position = block * BLOCK + offset;
        const long at = (static_cast<long>(tables[slot * blocks + block]) * kv_heads + head) * BLOCK * Dim + chunk_at<Dim>(offset, chunk);
        for (int j = 0; j < 8; j++) keys[at + j] = __float2bfloat16_rn(key_at(slot, head, position, chunk * 8 + j)), values[at + j] = __float2bfloat16_rn(value_at(slot, head, position, chunk * 8 + j));
    }
}
template <int Dim> __global__ void fill_queries(bf16* to, const AttendRow* rows, const int* row_of, int tokens, int heads) {
    for (long i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<long>(tokens) * heads * Dim; i += gridDim.x * blockDim.x) {
        const int t = static_cast<int>(i / (heads * Dim));
        const AttendRow row = rows[row_of[t]];
        to[i] = __float2bfloat16_rn(query_at(row.slot, row.start + t - row.first_token, i / Dim % heads, i % Dim));
    }
}

template <int Dim> struct Cache {
    int slots, blocks, heads, kv_heads, splits;
    bf16 *keys, *values, *q = nullptr, *out = nullptr;
    int *tables, *row_of = nullptr;
    AttendRow* rows = nullptr;
    float *partial = nullptr, *scale = nullptr;
    float4* totals;
    int2* list = nullptr;
    std::vector<AttendRow> plan_rows;
    int tokens = 0;

    Cache(int slots, int length, int heads = 16, int kv_heads = 4) : slots(slots), blocks((length + BLOCK - 1) / BLOCK), heads(heads), kv_heads(kv_heads), splits((length + SPLIT - 1) / SPLIT) {
        const size_t count = static_cast<size_t>(slots) * blocks * kv_heads * BLOCK * Dim;
        keys = device_memory<bf16>(count), values = device_memory<bf16>(count), tables = device_memory<int>(slots * blocks);
        // Blocks of slots lie scattered.
        std::vector<int> table(slots * blocks);
        for (int s = 0; s < slots; s++)
            for (int b = 0; b < blocks; b++) table[s * blocks + b] = b * slots + (s + b) % slots;
        CHECK(cudaMemcpy(tables, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
        fill_cache<Dim><<<2048, 256, 0, stream>>>(keys, values, tables, slots, blocks, kv_heads);
        totals = device_memory<float4>(132 * prefill_groups<Dim> * (Dim / 8) * 128);
    }
    ~Cache() {
        for (void* p : {(void*)keys, (void*)values, (void*)q, (void*)out, (void*)tables, (void*)row_of, (void*)rows, (void*)partial, (void*)scale, (void*)totals, (void*)list}) cudaFree(p);
    }
    // Memory for the splits of decode is taken where it is wanted: that of a prompt would be large.
    void plan(std::vector<AttendRow> list, bool decode) {
        std::vector<int> of;
        for (size_t i = 0; i < list.size(); i++) list[i].first_token = static_cast<int>(of.size()), of.insert(of.end(), list[i].tokens, static_cast<int>(i));
        plan_rows = list, tokens = static_cast<int>(of.size());
        for (void* p : {(void*)q, (void*)out, (void*)row_of, (void*)rows, (void*)partial, (void*)scale}) cudaFree(p);
        const size_t vectors = static_cast<size_t>(tokens) * heads;
        q = device_memory<bf16>(vectors * Dim), out = device_memory<bf16>(vectors * Dim), row_of = device_memory<int>(tokens), rows = device_memory<AttendRow>(list.size());
        partial = device_memory<float>(decode ? vectors * splits * Dim : 1), scale = device_memory<float>(decode ? vectors * splits * 2 : 1);
        CHECK(cudaMemcpy(row_of, of.data(), of.size() * 4, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(rows, list.data(), list.size() * sizeof(AttendRow), cudaMemcpyHostToDevice));
        fill_queries<Dim><<<512, 256, 0, stream>>>(q, rows, row_of, tokens, heads);
        CHECK(cudaMemsetAsync(out, 0xff, vectors * Dim * 2, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    AttendArgs decode_args() {
        AttendArgs a{};
        for (auto& row : plan_rows) row.first_item = a.items, a.items += (row.start + row.tokens + SPLIT - 1) / SPLIT;
        CHECK(cudaMemcpy(rows, plan_rows.data(), plan_rows.size() * sizeof(AttendRow), cudaMemcpyHostToDevice));
        a.q = q, a.keys = keys, a.values = values, a.tables = tables, a.rows = rows, a.partial = partial, a.scale = scale, a.row_count = static_cast<int>(plan_rows.size()), a.heads = heads, a.kv_heads = kv_heads, a.blocks_per_slot = blocks, a.splits = splits;
        return a;
    }
    PrefillArgs prompt_args() {
        PrefillArgs a{};
        const int step = prefill_tokens<Dim>(heads, kv_heads);
        std::vector<int2> items;
        for (size_t i = 0; i < plan_rows.size(); i++)
            for (int token = 0; token < plan_rows[i].tokens; token += step) items.push_back({static_cast<int>(i), token});
        auto end = [&](int2 x) { return plan_rows[x.x].start + std::min(x.y + step, plan_rows[x.x].tokens); };
        std::sort(items.begin(), items.end(), [&](int2 x, int2 y) { return end(x) > end(y); });
        cudaFree(list), list = device_memory<int2>(items.size());
        CHECK(cudaMemcpy(list, items.data(), items.size() * sizeof(int2), cudaMemcpyHostToDevice));
        a.items = static_cast<int>(items.size()), a.list = list;
        a.q = q, a.keys = keys, a.values = values, a.tables = tables, a.rows = rows, a.to = out, a.totals = totals, a.heads = heads, a.kv_heads = kv_heads, a.blocks_per_slot = blocks;
        return a;
    }
    template <int M> void decode(AttendArgs a, bool pdl) {
        constexpr int stages = M == 1 ? 3 : 2;
        a.pdl = pdl;
        launch(stream, attend<Dim, M, stages>, std::min(132, a.items * kv_heads), 288, sizeof(AttendMemory<Dim, M, stages>), pdl, a);
        launch(stream, attend_merge<Dim>, std::min(528, tokens * heads / 4 + 1), 128, 0, pdl, a, out, (const int*)row_of, tokens);
    }
    void decode(const AttendArgs& a, int window, bool pdl) { window * (heads / kv_heads) <= 16 ? decode<1>(a, pdl) : decode<2>(a, pdl); }
    void prompt(PrefillArgs a, bool pdl) {
        a.pdl = pdl;
        launch(stream, prefill<Dim>, std::min(132, a.items * kv_heads), 128 * (prefill_groups<Dim> + 1), sizeof(PrefillMemory<Dim>) + 1024, pdl, a);
    }
    std::vector<uint16_t> result() {
        std::vector<uint16_t> host(static_cast<size_t>(tokens) * heads * Dim);
        CHECK(cudaMemcpyAsync(host.data(), out, host.size() * 2, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        return host;
    }
};

// Of one token's output, against f64.
template <int Dim> std::pair<double, double> against_exact(const Cache<Dim>& cache, const uint16_t* got, int slot, int at, int h) {
    std::vector<double> score(at + 1);
    double most = -1e300, sum = 0, error = 0, size = 0;
    const int kv_head = h / (cache.heads / cache.kv_heads);
    for (int j = 0; j <= at; j++) {
        double dot = 0;
        for (int i = 0; i < Dim; i++) dot += double(query_at(slot, at, h, i)) * key_at(slot, kv_head, j, i);
        score[j] = dot / std::sqrt(double(Dim)), most = std::max(most, score[j]);
    }
    for (auto& x : score) sum += x = std::exp(x - most);
    for (int i = 0; i < Dim; i += 17) {
        double want = 0;
        for (int j = 0; j <= at; j++) want += score[j] / sum * value_at(slot, kv_head, j, i);
        const double have = __bfloat162float(__ushort_as_bfloat16(got[h * Dim + i]));
        error += (have - want) * (have - want), size += want * want;
    }
    return {error, size};
}

// Windows of one token, at places around tiles and splits, of slot 1; then the same token as one of a window of 2 to 8, in a batch with others.
template <int Dim> void check_windows(bool small) {
    Cache<Dim> cache(3, 1200);
    std::vector<int> places = {0, 1, 15, 16, 63, 64, 100, 510, 511, 512, 513, 1023, 1024, 1150};
    if (small) places = {64, 513};
    double error = 0, size = 0;
    int compared = 0, wrong = 0;
    const int vector = cache.heads * Dim;
    for (int at : places) {
        cache.plan({{1, at, 1}}, true);
        cache.decode(cache.decode_args(), 1, false);
        const auto alone = cache.result();
        for (int h : {0, 5, 15}) {
            auto [e, s] = against_exact(cache, alone.data(), 1, at, h);
            error += e, size += s;
        }
        for (int window : small ? std::vector<int>{3, 8} : std::vector<int>{2, 3, 4, 5, 8})
            for (int back = 0; back < window; back += small ? window - 1 : 1) {
                if (at < back) continue;
                cache.plan({{0, 700 + at % 30, 4}, {1, at - back, window}, {2, 40, std::min(window, 4)}}, true);
                cache.decode(cache.decode_args(), window, back % 2);
                const auto other = cache.result();
                compared++, wrong += !std::equal(alone.begin(), alone.end(), other.begin() + (4 + back) * vector);
            }
    }
    printf("%d wide: against f64 %.1e; %d of %d windows give the bits of one token alone\n", Dim, std::sqrt(error / size), compared - wrong, compared);
    expect(std::sqrt(error / size) < 4e-3 && wrong == 0 && compared > 0, "attention of windows");
}

// Every token of a text alone by decode, then the text as prompts cut in many ways, beside other rows.
template <int Dim> void check_prompts(int heads, int kv_heads, bool small) {
    const int length = small ? 530 : 1700;
    Cache<Dim> cache(3, length, heads, kv_heads);
    const int vector = heads * Dim;
    std::vector<AttendRow> each;
    for (int at = 0; at < length; at++) each.push_back({1, at, 1});
    cache.plan(each, true);
    cache.decode(cache.decode_args(), 1, false);
    const auto alone = cache.result();
    const auto [error, size] = against_exact(cache, &alone[static_cast<size_t>(length - 5) * vector], 1, length - 5, heads - 1);
    std::vector<std::vector<int>> cuts = {{length}, {1, length}, {37, 64, 511, 512, length}, {128, 513, length}, {513, 514, 515, 590, length}};
    if (small) cuts = {{length}, {37, 511, length}};
    std::vector<int> random;
    for (int at = 0; at < length;) random.push_back(at = std::min(length, at + 1 + static_cast<int>((noise(5, at) + 1) * 90)));
    if (!small) cuts.push_back(random);
    size_t compared = 0, wrong = 0;
    for (size_t kind = 0; kind < cuts.size(); kind++) {
        // All pieces are rows of one step: keys are there already, and what a token sees is a matter of its position.
        std::vector<AttendRow> list = {{0, 300, 40}};
        int at = 0;
        for (int to : cuts[kind]) list.push_back({1, at, to - at}), at = to;
        list.push_back({2, 0, 70});
        cache.plan(list, false);
        cache.prompt(cache.prompt_args(), kind % 2);
        const auto other = cache.result();
        for (int t = 0; t < length; t++) compared++, wrong += !std::equal(&alone[static_cast<size_t>(t) * vector], &alone[static_cast<size_t>(t + 1) * vector], &other[static_cast<size_t>(t + 40) * vector]);
    }
    printf("%d wide, %d heads on %d: against f64 %.1e; %zu of %zu tokens of prompts give the bits of decode\n", Dim, heads, kv_heads, std::sqrt(error / size), compared - wrong, compared);
    expect(std::sqrt(error / size) < 4e-3 && wrong == 0 && compared > 0, "attention of prompts");
}

template <int Dim> void time_prompts(int heads, int kv_heads) {
    for (auto [count, length] : {std::pair{1, 1024}, {1, 8192}, {16, 2048}, {1, 32768}}) {
        Cache<Dim> cache(count, length, heads, kv_heads);
        std::vector<AttendRow> list;
        for (int i = 0; i < count; i++) list.push_back({i, 0, length});
        cache.plan(list, false);
        const auto a = cache.prompt_args();
        CHECK(cudaStreamSynchronize(stream));
        const float us = graph_time(stream, [&] { for (int i = 0; i < 3; i++) cache.prompt(a, true); }, 5) / 3;
        printf("%d wide, %d heads on %d, %d x %d: %.0f us (%.0f TFLOP/s)\n", Dim, heads, kv_heads, count, length, us, 4.0 * Dim * heads * count * length * (length + 1.0) / 2 / us * 1e-6);
    }
}

void time_windows() {
    constexpr int Dim = 256;
    printf("us per layer, attention and merge (TB/s of keys and values)\n");
    for (int length : {256, 1024, 8192, 32768})
        for (int batch : {1, 16, 64}) {
            const double bytes = static_cast<double>(batch) * length * 4 * Dim * 4;
            if (bytes > 20e9) continue;
            Cache<Dim> cache(batch, length + 16);
            printf("context %5d, batch %2d:", length, batch);
            for (int window : {1, 4, 8}) {
                std::vector<AttendRow> list;
                for (int b = 0; b < batch; b++) list.push_back({b, length - window, window});
                cache.plan(list, true);
                const auto a = cache.decode_args();
                CHECK(cudaStreamSynchronize(stream));
                // Where all of it fits the cache, the cache is what is measured.
                const int rounds = bytes > 2e9 ? 2 : 8;
                const float us = graph_time(stream, [&] { for (int i = 0; i < rounds; i++) cache.decode(a, window, true); }, 7) / rounds;
                printf("  %d tokens %.1f (%.2f)", window, us, bytes / us * 1e-6);
            }
            printf("%s\n", bytes < 60e6 ? "  from L2" : "");
        }
}

int main(int argc, char**) {
    const bool small = argc > 1;
    CHECK(cudaStreamCreate(&stream));
    check_windows<256>(small), check_windows<128>(small), check_windows<64>(small);
    check_prompts<256>(16, 4, small), check_prompts<128>(28, 4, small), check_prompts<64>(8, 8, small);
    if (!small) check_prompts<128>(16, 2, small), check_prompts<256>(8, 1, small), check_prompts<64>(14, 2, small);
    if (small) return misses != 0;
    time_prompts<256>(16, 4), time_prompts<128>(32, 8), time_prompts<64>(32, 8);
    time_windows();
    CHECK(cudaStreamSynchronize(stream));
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
