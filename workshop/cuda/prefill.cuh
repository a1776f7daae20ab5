// Attention over paged keys and values for many tokens of a row: prompts. The same formula, layouts, tiles, splits and sums as `attend.cuh`, so that a token has the same bits
// whether it comes with a prompt, alone or in a window.
//
// Work item = (plan row, kv head, tile of tokens): 64 rows of (token, head of the group) for each of two or three warpgroups. Persistent thread blocks go through a list of items
// from the longest on, forth and back, so that all end together. Scores are wgmma of queries and keys in shared memory, outputs wgmma of exponents in registers and values in
// shared memory. A warpgroup has the next tile's scores and this tile's outputs under way while it computes exponents. At a split's end its outputs go into the running
// total, for which there is no room in registers: it lives in a scratch that stays in L2, each thread its own words.
#pragma once
#include "attend.cuh"
#include "wgmma.cuh"

struct PrefillArgs {
    const bf16 *q, *keys, *values;
    const int* tables;
    const AttendRow* rows;
    const int2* list; // of items: row and first token, those that end at the highest position first
    bf16* to;
    float4* totals; // [thread block][warpgroup][Dim / 8][128]
    int items, heads, kv_heads, blocks_per_slot, pdl;
};

// Warpgroups that compute; one more feeds them.
template <int Dim> constexpr int prefill_groups = Dim == 256 ? 2 : 3;
// Tokens of an item; up to 128 heads may share a kv head.
template <int Dim> __host__ __device__ constexpr int prefill_tokens(int heads, int kv_heads) { return 64 * prefill_groups<Dim> / (heads / kv_heads); }

template <int Dim> struct alignas(1024) PrefillMemory {
    static constexpr int Stages = Dim == 256 ? 2 : 4;
    bf16 q[prefill_groups<Dim>][Dim / 64][64][64];
    bf16 k[Stages][Dim / 64][KEYS][64], v[Stages][Dim / 64][KEYS][64];
    uint64_t k_full[Stages], v_full[Stages], k_empty[Stages], v_empty[Stages];
};

// The item of a round: forth in even ones and back in odd ones.
struct PrefillItem {
    AttendRow row;
    int kv_head, token, end; // the row's token that it begins with; where its keys end
    bool there;
    __device__ PrefillItem(const PrefillArgs& a, int round, int tokens) {
        const int item = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        there = item < a.items * a.kv_heads;
        if (!there) return;
        const int2 place = a.list[item / a.kv_heads];
        kv_head = item % a.kv_heads, row = a.rows[place.x], token = place.y, end = row.start + min(token + tokens, row.tokens);
    }
};

template <int Dim> __device__ void prefill_produce(const PrefillArgs& a, PrefillMemory<Dim>& m) {
    constexpr int Stages = PrefillMemory<Dim>::Stages, Pieces = KEYS / BLOCK * (Dim / 64); // of 64 columns of a block
    const int lane = threadIdx.x % 32, work = a.items * a.kv_heads;
    int index = 0;
    for (int round = 0; round * gridDim.x < work; round++) {
        const PrefillItem own(a, round, prefill_tokens<Dim>(a.heads, a.kv_heads));
        if (!own.there) continue;
        const int last = (own.row.start + own.row.tokens - 1) / BLOCK, piece = lane / 4;
        // What lies past the last block is never looked at, but must be numbers: the last block again.
        auto block_of = [&](int key) { return a.tables[own.row.slot * a.blocks_per_slot + min(key / BLOCK + lane % 4, last)]; };
        int block, next = block_of(0);
        for (int key = 0; key < own.end; key += KEYS, index++) {
            const int stage = index % Stages, parity = (index / Stages & 1) ^ 1;
            block = next, next = block_of(key + KEYS);
            const long at = ((static_cast<long>(block) * a.kv_heads + own.kv_head) * (Dim / 64) + piece) * BLOCK * 64;
            auto load = [&](uint64_t& empty, uint64_t& full, bf16 (&to)[Dim / 64][KEYS][64], const bf16* from) {
                barrier_wait(shared_address(&empty), parity);
                if (lane == 0) barrier_expect(shared_address(&full), sizeof to);
                __syncwarp();
                if (lane < Pieces) bulk_load(shared_address(to[piece][lane % 4 * BLOCK]), from + at, BLOCK * 64 * 2, shared_address(&full));
            };
            load(m.k_empty[stage], m.k_full[stage], m.k[stage], a.keys);
            load(m.v_empty[stage], m.v_full[stage], m.v[stage], a.values);
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
    // Joins a split to those before it, as `attend_merge`; behind the last one gives the outputs to `write(column, half, pair)`.
    template <class Write> __device__ __forceinline__ void merge(bool first, bool last, float factor, float4* total, Write write) {
        float old[2], fresh[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float own = __fmul_rn(most[half], factor), both = fmaxf(whole_most[half], own);
            old[half] = exp2_approximate(whole_most[half] - both), fresh[half] = exp2_approximate(own - both);
            whole_sum[half] = __fmaf_rn(sum[half], fresh[half], __fmul_rn(whole_sum[half], old[half])), whole_most[half] = both;
        }
        // Eight at a time, so that one wait for memory serves them all.
#pragma unroll
        for (int base = 0; base < Dim / 8; base += 8) {
            float4 before[8] = {};
            if (!first)
#pragma unroll
                for (int i = 0; i < 8; i++) before[i] = total[(base + i) * 128];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float* x = &out[4 * (base + i)];
                x[0] = __fmaf_rn(x[0], fresh[0], __fmul_rn(before[i].x, old[0])), x[1] = __fmaf_rn(x[1], fresh[0], __fmul_rn(before[i].y, old[0]));
                x[2] = __fmaf_rn(x[2], fresh[1], __fmul_rn(before[i].z, old[1])), x[3] = __fmaf_rn(x[3], fresh[1], __fmul_rn(before[i].w, old[1]));
            }
        }
        if (last) {
            const float share[2] = {__frcp_rn(whole_sum[0]), __frcp_rn(whole_sum[1])};
#pragma unroll
            for (int i = 0; i < Dim / 4; i++) write(i / 2 * 8, i % 2, pack(__fmul_rn(out[2 * i], share[i % 2]), __fmul_rn(out[2 * i + 1], share[i % 2])));
            return;
        }
#pragma unroll
        for (int i = 0; i < Dim / 8; i++) total[i * 128] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    }
};

template <int Dim> __device__ void prefill_consume(const PrefillArgs& a, PrefillMemory<Dim>& m) {
    constexpr int Stages = PrefillMemory<Dim>::Stages;
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32, shared_by = a.heads / a.kv_heads, tokens = prefill_tokens<Dim>(a.heads, a.kv_heads), work = a.items * a.kv_heads;
    const float factor = 1.44269504f * rsqrtf(static_cast<float>(Dim));
    const uint32_t q = shared_address(m.q[group]);
    auto together = [&] { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); };
    auto release = [&](uint64_t& bar) { if (thread == 0) barrier_arrive(shared_address(&bar)); };
    int index = 0;
    for (int round = 0; round * gridDim.x < work; round++) {
        const PrefillItem own(a, round, tokens);
        if (!own.there) continue;
        const int live = min(tokens, own.row.tokens - own.token); // tokens
        // Row r of the product: token r / shared_by, head r % shared_by; those past the last token see what that one sees.
        const long first = (static_cast<long>(own.row.first_token) + own.token) * a.heads + own.kv_head * shared_by;
        auto place = [&](int r) { return (first + static_cast<long>(min(r / shared_by, live - 1)) * a.heads + r % shared_by) * Dim; };
        together(); // the item before is done with its queries
        constexpr int Loads = Dim / 16, Stride = 128 / (Dim / 8); // of sixteen bytes per thread; rows from one to the next
        uint4 loaded[Loads];
        const int own_row = thread / (Dim / 8), chunk = thread % (Dim / 8);
#pragma unroll
        for (int i = 0; i < Loads; i++) loaded[i] = *reinterpret_cast<const uint4*>(a.q + place(group * 64 + own_row + i * Stride) + chunk * 8);
#pragma unroll
        for (int i = 0; i < Loads; i++) *reinterpret_cast<uint4*>(&m.q[group][chunk / 8][own_row + i * Stride][(chunk % 8 ^ (own_row + i * Stride) % 8) * 8]) = loaded[i];
        stores_to_async();
        together();
        PrefillRows<Dim> rows;
        const int r = group * 64 + thread / 32 * 16 + lane / 4;
        rows.lowest = own.row.start + own.token + min(group * 64 / shared_by, live - 1);
#pragma unroll
        for (int half = 0; half < 2; half++) rows.position[half] = own.row.start + own.token + min((r + half * 8) / shared_by, live - 1), rows.whole_most[half] = -INFINITY, rows.whole_sum[half] = 0;
        bf16* const to[2] = {a.to + place(r) + lane % 4 * 2, a.to + place(r + 8) + lane % 4 * 2};
        const bool written[2] = {r / shared_by < live, (r + 8) / shared_by < live};
        auto write = [&](int column, int half, uint32_t pair) {
            if (written[half]) *reinterpret_cast<uint32_t*>(to[half] + column) = pair;
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
            wgmma_wait<0>();
            regained(rows.out);
            release(m.v_empty[index % Stages]);
            index++;
            rows.merge(begin == 0, end == own.end, factor, a.totals + ((static_cast<long>(blockIdx.x) * prefill_groups<Dim> + group) * (Dim / 8)) * 128 + thread, write);
        }
    }
}

template <int Dim> __global__ void __launch_bounds__(128 * (prefill_groups<Dim> + 1), 1) prefill(PrefillArgs a) {
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
    if (a.pdl) release_dependents(), depend();
    constexpr int First = 128 * prefill_groups<Dim>; // thread that feeds
    if (threadIdx.x >= First) {
        registers_give<prefill_groups<Dim> == 2 ? 24 : 32>();
        if (threadIdx.x < First + 32) prefill_produce<Dim>(a, m);
    } else {
        registers_take<prefill_groups<Dim> == 2 ? 240 : 160>();
        prefill_consume<Dim>(a, m);
    }
}
