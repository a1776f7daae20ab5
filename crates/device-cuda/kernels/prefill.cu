// Attention over paged keys and values for many tokens of a request: prompts, on Hopper. Formula and order of sums: `tiles.cuh`, as `attend.cu`.
//
// `prefill_plan`, one thread block, lists the windows of requests that have more than `few` tokens, those that see most keys first, so that thread blocks end together: the number of
// windows, then from the fifth word on eight words each.
//
// Work item = (kv head, window of a request's tokens): 64 rows of (token, head of the group) for each of two or three warpgroups. Persistent thread blocks go through the list, forth and
// back. Scores are wgmma of queries and keys in shared memory, outputs wgmma of exponents in registers and
// values in shared memory. A warpgroup has the next tile's scores and this tile's outputs under way while it computes exponents. At a split's end its outputs go into the running
// total, for which there is no room in registers: it lives in a scratch that stays in L2, each thread its own words.
#include "tiles.cuh"
#include "wgmma.cuh"

constexpr int PLANNERS = 1024;
constexpr int TOGETHER = 8; // times eight columns that a thread writes at a time: a block of inputs of a product

#if HOPPER
// The window that begins with a token row; `there` if one does.
__device__ __forceinline__ Window window_at(const AttentionArgs& a, int row, int live, int& slot) {
    Window w;
    w.there = false;
    const TokenRow token = a.tables.tokens[row];
    if (token.request < 0 || token.request >= request_rows(a.tables)) return w;
    const RequestRow r = a.tables.requests[token.request];
    const int from = row - r.first_token, window = a.window;
    if (r.token_count <= a.few || from < 0 || from >= r.token_count || from % window != 0) return w;
    const int start = token.position - from, size = a.kv.block_size;
    if (r.token_count > live - r.first_token || start < 0 || start + r.token_count > static_cast<int>(a.tables.blocks_per_request) * size || static_cast<uint32_t>(r.slot) >= a.kv.table_rows) {
        report(a.fault, RecordHeader::BAD_BLOCK);
        return w;
    }
    w.first_token = row, w.tokens = min(window, r.token_count - from), w.start = token.position, w.end = w.start + w.tokens;
    w.last_block = (start + r.token_count - 1) / size, w.there = true, slot = r.slot;
    return w;
}

// Of eight rows from `first` on those that may begin a window, a bit each: all of their tables are asked for at a time.
__device__ __forceinline__ uint32_t beginnings(const AttentionArgs& a, int first, int end) {
    int request[8];
#pragma unroll
    for (int i = 0; i < 8; i++) request[i] = first + i < end ? a.tables.tokens[first + i].request : -1;
    int2 own[8]; // first token, and how many
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool there = request[i] >= 0 && request[i] < request_rows(a.tables);
        own[i] = there ? make_int2(a.tables.requests[request[i]].first_token, a.tables.requests[request[i]].token_count) : make_int2(0, 0);
    }
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (own[i].y > a.few && (first + i - own[i].x) % a.window == 0) found |= 1u << i;
    return found;
}

__device__ __forceinline__ void prefill_plan_body(const AttentionArgs& a) {
    constexpr int Bins = 256;
    __shared__ int longest, counts[Bins], places[Bins];
    enter();
    const int live = live_rows(a.q);
    if (threadIdx.x < Bins) counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) longest = 1;
    // Eight rows a thread, so that few have more than one window.
    uint32_t known = beginnings(a, threadIdx.x * 8, live);
    auto each_window = [&](auto see) {
        for (int first = threadIdx.x * 8; first < live; first += PLANNERS * 8)
            for (uint32_t left = first < PLANNERS * 8 ? known : beginnings(a, first, live); left; left &= left - 1) {
                int slot;
                const Window w = window_at(a, first + __ffs(left) - 1, live, slot);
                if (w.there) see(w, slot);
            }
    };
    __syncthreads();
    each_window([&](const Window& w, int) { atomicMax(&longest, w.end); });
    __syncthreads();
    // Which bin: the longest come first. Among equals any order will do, since no result depends on it.
    auto bin = [&](const Window& w) { return Bins - 1 - static_cast<int>(static_cast<int64_t>(w.end) * (Bins - 1) / longest); };
    each_window([&](const Window& w, int) { atomicAdd(&counts[bin(w)], 1); });
    __syncthreads();
    if (threadIdx.x < Bins) {
        int before = 0;
        for (int i = 0; i < static_cast<int>(threadIdx.x); i++) before += counts[i];
        places[threadIdx.x] = before;
        if (threadIdx.x == Bins - 1) a.list[0] = before + counts[Bins - 1];
    }
    __syncthreads();
    each_window([&](const Window& w, int slot) {
        int4* to = reinterpret_cast<int4*>(a.list) + 1 + 2 * atomicAdd(&places[bin(w)], 1);
        to[0] = make_int4(w.first_token, w.tokens, w.start, w.last_block), to[1] = make_int4(slot, 0, 0, 0);
    });
}

// Warpgroups that compute; one more feeds them.
template <int Dim> constexpr int prefill_groups = Dim == 256 ? 2 : 3;
template <int Dim> struct alignas(1024) PrefillMemory {
    static constexpr int Stages = Dim == 256 ? 2 : 4;
    bf16 q[prefill_groups<Dim>][Dim / 64][64][64];
    bf16 k[Stages][Dim / 64][KEYS][64], v[Stages][Dim / 64][KEYS][64];
    uint64_t k_full[Stages], v_full[Stages], k_empty[Stages], v_empty[Stages];
};

// Goes through the items of a thread block: forth in even rounds and back in odd ones.
struct PrefillItems {
    const AttentionArgs& a;
    int round = 0;
    __device__ PrefillItems(const AttentionArgs& a) : a(a) {}
    __device__ bool next(Window& w) {
        const int heads = a.kv.heads, blocks = gridDim.x, work = a.list[0] * heads;
        while (round * blocks < work) {
            const int item = round * blocks + (round % 2 ? blocks - 1 - static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x));
            round++;
            if (item >= work) continue;
            const int4* from = reinterpret_cast<const int4*>(a.list) + 1 + 2 * (item / heads);
            const int4 low = from[0], high = from[1];
            w.first_token = low.x, w.tokens = low.y, w.start = low.z, w.end = low.z + low.y, w.last_block = low.w, w.kv_head = item % heads;
            w.table = high.x * a.tables.blocks_per_request;
            return true;
        }
        return false;
    }
};

template <int Dim> __device__ void prefill_produce(const AttentionArgs& a, PrefillMemory<Dim>& m) {
    constexpr int Stages = PrefillMemory<Dim>::Stages;
    const int lane = threadIdx.x % 32, run = min(static_cast<int>(a.kv.block_size), KEYS), shift = 7 - __ffs(run); // 2^shift runs are a tile
    PrefillItems items(a);
    Window w;
    for (int index = 0; items.next(w);) {
        for (int key = 0; key < w.end; key += KEYS, index++) {
            const int stage = index % Stages, parity = (index / Stages & 1) ^ 1;
            auto load = [&](uint64_t& empty, uint64_t& full, bf16 (&to)[Dim / 64][KEYS][64], const uint8_t* array) {
                const uint32_t bar = shared_address(&full);
                barrier_wait(shared_address(&empty), parity);
                if (lane == 0) barrier_expect(bar, sizeof to);
                __syncwarp();
#pragma unroll 1
                for (int copy = lane; copy < Dim / 64 << shift; copy += 32) {
                    const int piece = copy >> shift, offset = (copy - (piece << shift)) * run;
                    bulk_load(shared_address(to[piece][offset]), reinterpret_cast<const bf16*>(array) + run_at<Dim>(a, w, key + offset, piece), run * 128, bar);
                }
            };
            load(m.k_empty[stage], m.k_full[stage], m.k[stage], a.kv.keys);
            load(m.v_empty[stage], m.v_full[stage], m.v[stage], a.kv.values);
        }
    }
}

// One warpgroup's 64 rows of an item. Index 0 and 1 of pairs: row lane / 4 of a warp's sixteen, and that + 8.
template <int Dim> struct PrefillRows {
    float out[Dim / 2], scores[KEYS / 2];
    float most[2], sum[2], fade[2], whole_most[2], whole_sum[2];
    uint32_t p[KEYS / 16][4]; // exponents as the left side of a product
    int position[2], lowest;                       // of tokens; of all of the warpgroup

    __device__ __forceinline__ void score(uint32_t q, uint32_t k) {
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < Dim / 16; step++) {
            const uint32_t at = step / 4 * (KEYS * 128) + step % 4 * 32;
            wgmma<KEYS>(scores, operand(q + at), operand(k + at), step > 0);
        }
        wgmma_commit();
    }
    __device__ __forceinline__ void output(uint32_t v, int keep) {
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            wgmma_values<Dim>(out, p[step], operand_by_rows(v + step * 16 * 128, KEYS * 128), keep);
            keep = 1;
        }
        wgmma_commit();
    }
    // Exponents in place of a tile of scores, their sum in the order of `attend`.
    __device__ __forceinline__ void exponents(int key, float factor) {
        const int lane = threadIdx.x % 32;
        if (key + KEYS - 1 > lowest)
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++)
                if (key + i / 4 * 8 + lane % 4 * 2 + i % 2 > position[i / 2 % 2]) scores[i] = -INFINITY;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = most[half];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) x = fmaxf(x, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)), x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
            const float base = x == -INFINITY ? 0 : __fmul_rn(x, factor); // a row that sees nothing of this tile
            fade[half] = exp2_approximate(__fsub_rn(__fmul_rn(most[half], factor), base)), most[half] = x;
            float pairs = 0;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                float* at = &scores[4 * j + 2 * half];
                at[0] = exp2_approximate(__fmaf_rn(at[0], factor, -base)), at[1] = exp2_approximate(__fmaf_rn(at[1], factor, -base));
                pairs = j == 0 ? __fadd_rn(at[0], at[1]) : __fadd_rn(pairs, __fadd_rn(at[0], at[1]));
            }
            pairs = __fadd_rn(pairs, __shfl_xor_sync(~0u, pairs, 1)), pairs = __fadd_rn(pairs, __shfl_xor_sync(~0u, pairs, 2));
            sum[half] = __fmaf_rn(sum[half], fade[half], pairs);
        }
    }
    // Rounds the exponents for the product with values. The product before is done with its own.
    __device__ __forceinline__ void round() {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) p[i / 4][i % 4] = pack(scores[2 * i], scores[2 * i + 1]);
        regained(p); // here, and not between two products under way, which would make one wait for the other
    }
    // Joins a split to those before it, as `attend_merge`; behind the last one gives the outputs to `write(base, half, x)`, some times eight columns from 8 `base` on at a time.
    // `before`: the first eight of the total.
    template <class Write> __device__ __forceinline__ void merge(bool first, bool last, float factor, float4* total, float4 (&before)[8], Write write) {
        float old[2], fresh[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float own = __fmul_rn(most[half], factor), both = fmaxf(whole_most[half], own);
            old[half] = exp2_approximate(whole_most[half] - both), fresh[half] = exp2_approximate(own - both);
            whole_sum[half] = __fmaf_rn(sum[half], fresh[half], __fmul_rn(whole_sum[half], old[half])), whole_most[half] = both;
        }
        // Eight are under way at a time: each makes room for the one eight further on.
#pragma unroll
        for (int i = 0; i < Dim / 8; i++) {
            float* x = &out[4 * i];
            float4& own = before[i % 8];
            x[0] = __fmaf_rn(x[0], fresh[0], __fmul_rn(own.x, old[0])), x[1] = __fmaf_rn(x[1], fresh[0], __fmul_rn(own.y, old[0]));
            x[2] = __fmaf_rn(x[2], fresh[1], __fmul_rn(own.z, old[1])), x[3] = __fmaf_rn(x[3], fresh[1], __fmul_rn(own.w, old[1]));
            if (!first && i + 8 < Dim / 8) own = total[(i + 8) * 128];
        }
        if (last) {
            const float share[2] = {__frcp_rn(whole_sum[0]), __frcp_rn(whole_sum[1])};
#pragma unroll
            for (int i = 0; i < Dim / 2; i++) out[i] = __fmul_rn(out[i], share[i / 2 % 2]);
            regained(out); // here, and not one by one
#pragma unroll
            for (int i = 0; i < Dim / 4; i += TOGETHER) {
                const int base = i / (2 * TOGETHER) * TOGETHER, half = i / TOGETHER % 2;
                write(base, half, &out[4 * base + 2 * half]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < Dim / 8; i++) total[i * 128] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    }
};

// Writes what a thread has of `TOGETHER` times eight columns of a row, from `at` on: pairs four elements apart in `x`. All gates are asked for before the first result is stored: a
// load behind a store has to wait for it. They are a block of what the next product reads, too.
static_assert(TOGETHER * 8 == BLOCK_K);
__device__ __forceinline__ void write_together(const AttentionArgs& a, int row, int at, const float* x) {
    float2 gates[TOGETHER] = {};
    if (a.gate.data) {
        const float* from = row_of(a.gate, row) + at;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) gates[i] = *reinterpret_cast<const float2*>(from + i * 8);
    }
    float* to = row_of(a.out, row) + at;
    const size_t rounded = rounded_offset(row, at / BLOCK_K * BLOCK_K, a.rounded.height, a.rounded.blocks) + at % 8 * 2; // in the first of eight chunks
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        float2 y = make_float2(x[4 * i], x[4 * i + 1]);
        if (a.gate.data) y.x *= sigmoid(gates[i].x), y.y *= sigmoid(gates[i].y);
        *reinterpret_cast<float2*>(to + i * 8) = y;
        if (a.rounded.data) *reinterpret_cast<uint32_t*>(a.rounded.data + (rounded ^ i * 16)) = a.rounded.half ? pack_half(y.x, y.y) : pack(y.x, y.y);
    }
}

template <int Dim> __device__ void prefill_consume(const AttentionArgs& a, PrefillMemory<Dim>& m) {
    constexpr int Stages = PrefillMemory<Dim>::Stages;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32, shared_by = a.group;
    const float factor = __fmul_rn(1.44269504f, a.scale);
    const uint32_t q = shared_address(m.q[group]);
    auto together = [&] { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); };
    auto release = [&](uint64_t& bar) { if (thread == 0) barrier_arrive(shared_address(&bar)); };
    PrefillItems items(a);
    Window own;
    for (int index = 0; items.next(own);) {
        // Row r of the product: token r / shared_by, head r % shared_by; those past the last token see what that one sees.
        auto token = [&](int r) { return min(r / shared_by, own.tokens - 1); };
        auto column = [&](int r) { return (own.kv_head * shared_by + r % shared_by) * Dim; };
        together(); // the item before is done with its queries
        constexpr int Loads = Dim / 16, Stride = 128 / (Dim / 8); // of eight elements per thread; rows from one to the next
        const int own_row = thread / (Dim / 8), chunk = thread % (Dim / 8);
#pragma unroll 4
        for (int i = 0; i < Loads; i++) {
            const int row = own_row + i * Stride;
            const float* from = row_of(a.q, own.first_token + token(group * 64 + row)) + column(group * 64 + row) + chunk * 8;
            const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
            *reinterpret_cast<uint4*>(&m.q[group][chunk / 8][row][(chunk % 8 ^ row % 8) * 8]) = make_uint4(pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y), pack(high.z, high.w));
        }
        stores_to_async();
        together();
        PrefillRows<Dim> rows;
        const int r = group * 64 + thread / 32 * 16 + lane / 4;
        rows.lowest = own.start + token(group * 64);
#pragma unroll
        for (int half = 0; half < 2; half++) rows.position[half] = own.start + token(r + half * 8), rows.whole_most[half] = -INFINITY, rows.whole_sum[half] = 0;
        auto write = [&](int base, int half, const float* x) {
            int to = r + half * 8;
            asm volatile("" : "+r"(to)); // computes places anew rather than keep them in registers all the time
            if (to / shared_by < own.tokens) write_together(a, own.first_token + to / shared_by, column(to) + base * 8 + lane % 4 * 2, x);
        };
        for (int begin = 0; begin < own.end; begin += SPLIT) {
            const int end = min(begin + SPLIT, own.end);
            rows.most[0] = rows.most[1] = -INFINITY, rows.sum[0] = rows.sum[1] = 0;
            auto wait_for = [&](uint64_t (&full)[Stages], int i) { barrier_wait(shared_address(&full[i % Stages]), i / Stages & 1); };
            wait_for(m.k_full, index);
            rows.score(q, shared_address(m.k[index % Stages]));
            wgmma_wait<0>();
            regained(rows.scores);
            release(m.k_empty[index % Stages]);
            rows.exponents(begin, factor);
            rows.round();
            int keep = 0;
            for (int key = begin + KEYS; key < end; key += KEYS, index++) {
                wait_for(m.k_full, index + 1);
                rows.score(q, shared_address(m.k[(index + 1) % Stages]));
                wait_for(m.v_full, index);
                rows.output(shared_address(m.v[index % Stages]), keep);
                keep = 1;
                wgmma_wait<1>();
                regained(rows.scores);
                release(m.k_empty[(index + 1) % Stages]);
                rows.exponents(key, factor);
                // Never so, but the assembler does not know: what is asked for is computed here, while the outputs are under way, and not moved behind the wait.
                if (fminf(rows.sum[0], rows.sum[1]) < 0) __nanosleep(0);
                wgmma_wait<0>();
                regained(rows.out);
                // Where no row of the warp has found a larger score, there is nothing to fade.
                if (__any_sync(~0u, rows.fade[0] != 1 || rows.fade[1] != 1))
#pragma unroll
                    for (int i = 0; i < Dim / 2; i++) rows.out[i] *= rows.fade[i / 2 % 2];
                release(m.v_empty[index % Stages]);
                rows.round();
            }
            wait_for(m.v_full, index);
            rows.output(shared_address(m.v[index % Stages]), keep);
            // Of the total, as much as there is room for now that scores are done with.
            float4 *total = reinterpret_cast<float4*>(a.totals) + ((static_cast<size_t>(blockIdx.x) * prefill_groups<Dim> + group) * (Dim / 8)) * 128 + thread, before[8] = {};
            if (begin > 0)
#pragma unroll
                for (int i = 0; i < 8; i++) before[i] = total[i * 128];
            wgmma_wait<0>();
            regained(rows.out);
            release(m.v_empty[index % Stages]);
            index++;
            rows.merge(begin == 0, end == own.end, factor, total, before, write);
        }
    }
}

template <int Dim> __device__ __forceinline__ void prefill(const AttentionArgs& a) {
    extern __shared__ char memory[];
    auto& m = *reinterpret_cast<PrefillMemory<Dim>*>(memory + (-shared_address(memory) & 1023));
    if (threadIdx.x == 0) {
        for (int i = 0; i < PrefillMemory<Dim>::Stages; i++) {
            barrier_init(shared_address(&m.k_full[i]), 1), barrier_init(shared_address(&m.v_full[i]), 1);
            barrier_init(shared_address(&m.k_empty[i]), prefill_groups<Dim>), barrier_init(shared_address(&m.v_empty[i]), prefill_groups<Dim>);
        }
        barrier_init_fence();
    }
    __syncthreads();
    enter();
    constexpr int First = 128 * prefill_groups<Dim>; // thread that feeds
    if (threadIdx.x >= First) {
        registers_give<prefill_groups<Dim> == 2 ? 40 : 32>();
        if (threadIdx.x < First + 32) prefill_produce<Dim>(a, m);
    } else {
        registers_take<prefill_groups<Dim> == 2 ? 232 : 160>();
        prefill_consume<Dim>(a, m);
    }
}

// What `src/ops/attention.rs` asks for.
template <int Dim> constexpr bool sized = sizeof(PrefillMemory<Dim>) == (prefill_groups<Dim> * 64 * Dim * 2 + PrefillMemory<Dim>::Stages * 2 * KEYS * Dim * 2 + 1024);
static_assert(sized<64> && sized<128> && sized<256>);
#define PREFILL(Dim) \
    extern "C" __global__ void __launch_bounds__(128 * (prefill_groups<Dim> + 1), 1) prefill_##Dim(const __grid_constant__ AttentionArgs a) { prefill<Dim>(a); }
#else
__device__ __forceinline__ void prefill_plan_body(const AttentionArgs&) {}
// Elsewhere `attend` has prompts, too.
#define PREFILL(Dim) extern "C" __global__ void prefill_##Dim(const __grid_constant__ AttentionArgs) {}
#endif
PREFILL(64) PREFILL(128) PREFILL(256)
extern "C" __global__ void __launch_bounds__(PLANNERS, 1) prefill_plan(const __grid_constant__ AttentionArgs a) { prefill_plan_body(a); }
