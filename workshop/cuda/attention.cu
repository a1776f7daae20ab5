// Paged attention of decode and verify windows: against f64, the same bits in windows of any size, and how fast.
#include "attend.cuh"
#include "harness.cuh"
#include <algorithm>
#include <cmath>
#include <vector>

constexpr int DIM = 256, HEADS = 16, KV_HEADS = 4;
cudaStream_t stream;

__host__ __device__ float key_at(int slot, int head, int position, int i) { return rounded(noise(21 + slot, (static_cast<uint64_t>(position) * KV_HEADS + head) * DIM + i)); }
__host__ __device__ float value_at(int slot, int head, int position, int i) { return rounded(noise(1021 + slot, (static_cast<uint64_t>(position) * KV_HEADS + head) * DIM + i)); }
__host__ __device__ float query_at(int slot, int position, int head, int i) { return rounded(noise(2021 + slot, (static_cast<uint64_t>(position) * HEADS + head) * DIM + i) * 3); }

// Blocks of slots lie scattered: block b of slot s is (b * slots + s) * 7 modulo a number prime to it.
__global__ void fill_cache(bf16* keys, bf16* values, const int* tables, int slots, int blocks) {
    const long count = static_cast<long>(slots) * blocks * KV_HEADS * BLOCK * (DIM / 8);
    for (long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x; i < count; i += static_cast<long>(gridDim.x) * blockDim.x) {
        const int chunk = i % (DIM / 8), offset = i / (DIM / 8) % BLOCK, head = i / (DIM / 8) / BLOCK % KV_HEADS;
        const long place = i / (DIM / 8) / BLOCK / KV_HEADS;
        const int block = place % blocks, slot = place / blocks, position = block * BLOCK + offset;
        const long at = ((static_cast<long>(tables[slot * blocks + block]) * KV_HEADS + head) * BLOCK + offset) * DIM + (chunk ^ position % 8) * 8;
        for (int j = 0; j < 8; j++) keys[at + j] = __float2bfloat16_rn(key_at(slot, head, position, chunk * 8 + j)), values[at + j] = __float2bfloat16_rn(value_at(slot, head, position, chunk * 8 + j));
    }
}
__global__ void fill_queries(bf16* to, const AttendRow* rows, const int* row_of, int tokens) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < tokens * HEADS * DIM; i += gridDim.x * blockDim.x) {
        const int t = i / (HEADS * DIM);
        const AttendRow row = rows[row_of[t]];
        to[i] = __float2bfloat16_rn(query_at(row.slot, row.start + t - row.first_token, i / DIM % HEADS, i % DIM));
    }
}

struct Cache {
    int slots, blocks;
    bf16 *keys, *values, *q, *out;
    int *tables, *row_of;
    AttendRow* rows;
    AttendArgs a{};
    int tokens = 0;

    Cache(int slots, int length) : slots(slots), blocks((length + BLOCK - 1) / BLOCK) {
        const size_t count = static_cast<size_t>(slots) * blocks * KV_HEADS * BLOCK * DIM;
        keys = device_memory<bf16>(count), values = device_memory<bf16>(count), tables = device_memory<int>(slots * blocks);
        std::vector<int> table(slots * blocks);
        for (int s = 0; s < slots; s++)
            for (int b = 0; b < blocks; b++) table[s * blocks + b] = b * slots + (s + b) % slots;
        CHECK(cudaMemcpy(tables, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
        fill_cache<<<2048, 256, 0, stream>>>(keys, values, tables, slots, blocks);
        a.splits = (length + SPLIT - 1) / SPLIT;
        const int most = 16 * slots;
        q = device_memory<bf16>(static_cast<size_t>(most) * HEADS * DIM), out = device_memory<bf16>(static_cast<size_t>(most) * HEADS * DIM), row_of = device_memory<int>(most), rows = device_memory<AttendRow>(slots);
        a.partial = device_memory<float>(static_cast<size_t>(most) * HEADS * a.splits * DIM), a.scale = device_memory<float>(static_cast<size_t>(most) * HEADS * a.splits * 2);
        a.q = q, a.keys = keys, a.values = values, a.tables = tables, a.rows = rows, a.heads = HEADS, a.kv_heads = KV_HEADS, a.blocks_per_slot = blocks;
    }
    ~Cache() {
        for (void* p : {(void*)keys, (void*)values, (void*)q, (void*)out, (void*)tables, (void*)row_of, (void*)rows, (void*)a.partial, (void*)a.scale}) cudaFree(p);
    }
    void plan(std::vector<AttendRow> list) {
        std::vector<int> of;
        a.items = 0;
        for (size_t i = 0; i < list.size(); i++) {
            list[i].first_token = static_cast<int>(of.size()), list[i].first_item = a.items;
            a.items += (list[i].start + list[i].tokens + SPLIT - 1) / SPLIT;
            of.insert(of.end(), list[i].tokens, static_cast<int>(i));
        }
        a.row_count = static_cast<int>(list.size()), tokens = static_cast<int>(of.size());
        CHECK(cudaMemcpy(rows, list.data(), list.size() * sizeof(AttendRow), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(row_of, of.data(), of.size() * 4, cudaMemcpyHostToDevice));
        fill_queries<<<512, 256, 0, stream>>>(q, rows, row_of, tokens);
    }
    template <int M> void go(bool pdl) {
        constexpr int stages = M == 1 ? 3 : 2;
        a.pdl = pdl;
        launch(stream, attend<DIM, M, stages>, std::min(132, a.items * KV_HEADS), 288, sizeof(AttendMemory<DIM, M, stages>), pdl, a);
        launch(stream, attend_merge<DIM>, std::min(528, tokens * HEADS / 4 + 1), 128, 0, pdl, a, out, (const int*)row_of, tokens);
    }
    void run(int window, bool pdl) { window <= 4 ? go<1>(pdl) : go<2>(pdl); }
    std::vector<bf16> result() {
        std::vector<bf16> host(static_cast<size_t>(tokens) * HEADS * DIM);
        CHECK(cudaMemcpyAsync(host.data(), out, host.size() * 2, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        return host;
    }
};

void check(bool small) {
    const int length = 1200, slots = 3;
    Cache cache(slots, length);
    // Windows of one token, at places around tiles and splits, of slot 1.
    std::vector<int> places = {0, 1, 15, 16, 63, 64, 100, 510, 511, 512, 513, 1023, 1024, 1150};
    if (small) places = {1, 64, 513};
    double error = 0, size = 0;
    int compared = 0, wrong = 0;
    for (int at : places) {
        cache.plan({{1, at, 1}});
        CHECK(cudaMemset(cache.out, 0xff, cache.tokens * HEADS * DIM * 2));
        cache.run(1, false);
        auto alone = cache.result();
        for (int h : {0, 5, 15}) {
            std::vector<double> score(at + 1);
            double most = -1e300, sum = 0;
            for (int j = 0; j <= at; j++) {
                double dot = 0;
                for (int i = 0; i < DIM; i++) dot += double(query_at(1, at, h, i)) * key_at(1, h / 4, j, i);
                score[j] = dot / 16, most = std::max(most, score[j]);
            }
            for (auto& x : score) sum += x = std::exp(x - most);
            for (int i = 0; i < DIM; i += 17) {
                double want = 0;
                for (int j = 0; j <= at; j++) want += score[j] / sum * value_at(1, h / 4, j, i);
                const double got = __bfloat162float(alone[h * DIM + i]);
                error += (got - want) * (got - want), size += want * want;
            }
        }
        // The same token as one of a window of 2 to 8, in a batch with others.
        for (int window : {2, 3, 4, 5, 8})
            for (int back = 0; back < window; back++) {
                const int start = at - back;
                if (start < 0) continue;
                cache.plan({{0, 700 + at % 30, 4}, {1, start, window}, {2, 40, std::min(window, 4)}});
                CHECK(cudaMemset(cache.out, 0xff, cache.tokens * HEADS * DIM * 2));
                cache.run(window, back % 2);
                auto other = cache.result();
                compared++;
                wrong += !std::equal(alone.begin(), alone.end(), other.begin() + (4 + back) * HEADS * DIM, [](bf16 a, bf16 b) { return __bfloat16_as_ushort(a) == __bfloat16_as_ushort(b); });
            }
    }
    printf("against f64: %.1e; %d of %d windows give the bits of one token alone\n", std::sqrt(error / size), compared - wrong, compared);
    expect(std::sqrt(error / size) < 4e-3 && wrong == 0, "attention");
}

int main(int argc, char**) {
    CHECK(cudaStreamCreate(&stream));
    check(argc > 1);
    if (argc > 1) return misses != 0;
    printf("us per layer, attention and merge (TB/s of keys and values)\n");
    for (int length : {256, 1024, 8192, 32768})
        for (int batch : {1, 16, 64}) {
            const double bytes = static_cast<double>(batch) * length * KV_HEADS * DIM * 4;
            if (bytes > 20e9) continue;
            Cache cache(batch, length + 16);
            printf("context %5d, batch %2d:", length, batch);
            for (int window : {1, 4, 8}) {
                std::vector<AttendRow> rows;
                for (int b = 0; b < batch; b++) rows.push_back({b, length - window, window});
                cache.plan(rows);
                // Where all of it fits the cache, the cache is what is measured.
                const int rounds = bytes > 2e9 ? 2 : 8;
                const float us = graph_time(stream, [&] { for (int i = 0; i < rounds; i++) cache.run(window, true); }, 7) / rounds;
                printf("  %d tokens %.1f (%.2f)", window, us, bytes / us * 1e-6);
            }
            printf("%s\n", bytes < 60e6 ? "  from L2" : "");
        }
    CHECK(cudaStreamSynchronize(stream));
    printf(misses ? "%d MISSES\n" : "all hold\n", misses);
    return misses != 0;
}
