// Attention on the matrix units, over the blocks of `kv.cuh` in layout 2: what decode, verify windows and prompts have in common.
//
// The order of a sum is that of positions, cut at multiples of SPLIT, in tiles of KEYS: within a tile one maximum, then exponents, their sum (per lane over groups of eight keys
// ascending, then lanes), then products with values, 16 keys at a time ascending; splits are joined in ascending order. All of it depends on positions alone, so that a
// token has the same bits whether it comes with a prompt, alone or in a window.
#pragma once
#include "kv.cuh"
#include "rounded.cuh"
#include "args/attention.h"

constexpr int KEYS = 64, SPLIT = 512;

__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// A tile in shared memory: [head_dim / 64][KEYS][64], as blocks have it. Where sixteen-byte chunk `chunk` of a position is.
__device__ __forceinline__ int chunk_at(int position, int chunk) { return (chunk / 8 * KEYS + position) * 64 + (chunk % 8 ^ position % 8) * 8; }

// Some consecutive tokens of a request with the query heads of one key-value head.
struct Window {
    int table;               // where its request's blocks begin in the block table
    int first_token, tokens; // token rows
    int start, end;          // position of the first one; where the keys end
    int fresh;               // the first position whose key is of this step
    int last_block;          // of the request, in its table
    int kv_head, split;
    bool there;
};

// Goes through the windows of requests of `few` tokens at most in ascending order, `tokens` of each request at a time, one item per window (and split) and key-value head.
struct Windows {
    const AttentionArgs& a;
    int tokens, rows, live;
    int base = 0, before = 0; // the request rows looked at, and items per key-value head of those before them

    __device__ Windows(const AttentionArgs& a) : a(a), tokens(a.window), rows(request_rows(a.tables)), live(live_rows(a.q)) {}

    // A whole warp asks for the same item.
    __device__ Window find(int item) {
        const int lane = threadIdx.x % 32, wanted = item / static_cast<int>(a.kv.heads);
        Window w;
        for (w.there = false; base < rows; base += 32) {
            const int row = base + lane;
            int count = 0, splits = 1, start = 0;
            RequestRow r = {};
            if (row < rows) {
                r = a.tables.requests[row];
                if (r.token_count > 0 && r.token_count <= a.few) {
                    const bool holds = r.first_token >= 0 && r.token_count <= live && r.first_token <= live - r.token_count && static_cast<uint32_t>(r.slot) < a.kv.table_rows;
                    if (holds) start = a.tables.tokens[r.first_token].position;
                    if (holds && start >= 0 && start + r.token_count <= static_cast<int>(a.tables.blocks_per_request * a.kv.block_size)) {
                        splits = a.partial ? (start + r.token_count + SPLIT - 1) / SPLIT : 1;
                        count = (r.token_count + tokens - 1) / tokens * splits;
                    } else {
                        report(a.fault, RecordHeader::BAD_BLOCK);
                    }
                }
            }
            int upto = count;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(~0u, upto, step);
                if (lane >= step) upto += other;
            }
            const int all = __shfl_sync(~0u, upto, 31);
            if (wanted >= before + all) {
                before += all;
                continue;
            }
            const int owner = __ffs(__ballot_sync(~0u, before + upto > wanted)) - 1;
            const int place = __shfl_sync(~0u, wanted - before - (upto - count), owner);
            splits = __shfl_sync(~0u, splits, owner), start = __shfl_sync(~0u, start, owner);
            const int slot = __shfl_sync(~0u, r.slot, owner), first = __shfl_sync(~0u, r.first_token, owner), own = __shfl_sync(~0u, r.token_count, owner), from = place / splits * tokens;
            w.table = slot * a.tables.blocks_per_request;
            w.first_token = first + from, w.tokens = min(tokens, own - from), w.fresh = start, w.start = start + from, w.end = w.start + w.tokens;
            w.last_block = (start + own - 1) / static_cast<int>(a.kv.block_size), w.kv_head = item % static_cast<int>(a.kv.heads), w.split = place % splits, w.there = true;
            return w;
        }
        return w;
    }
};

// The place in a block's array of a run of `min(block_size, KEYS)` positions from `position` on, of 64 columns from `64 piece` on. What lies past the last block is never looked at,
// but must be numbers: the last block again.
template <int Dim> __device__ __forceinline__ size_t run_at(const AttentionArgs& a, const Window& w, int position, int piece) {
    const int size = a.kv.block_size, index = position >> (__ffs(size) - 1); // a power of two
    uint32_t block = a.tables.block_table[w.table + min(index, w.last_block)];
    if (block >= a.kv.blocks) {
        report(a.fault, RecordHeader::BAD_BLOCK);
        block = 0;
    }
    return static_cast<uint64_t>(block * a.kv.heads + w.kv_head) * static_cast<uint32_t>(size * Dim) + static_cast<uint32_t>((piece * size + (position & (size - 1))) * 64);
}

// The result of a pair of columns. `Rounded`: also where the next product looks for its inputs.
template <bool Rounded> __device__ __forceinline__ void write_pair(const AttentionArgs& a, int row, int column, float x, float y) {
    if (a.gate.data) {
        const float* gate = row_of(a.gate, row) + column;
        x *= sigmoid(gate[0]), y *= sigmoid(gate[1]);
    }
    float* to = row_of(a.out, row) + column;
    to[0] = x, to[1] = y;
    if constexpr (Rounded) store_rounded_pair(a.rounded, row, column, x, y);
}
