// Keys and values in blocks: where an element is.
//
// A block holds its heads one behind the other, keys and values in arrays of their own. `KvView::layout` says how the elements of one head of a block are stored:
//   0  f32  [block_size][head_dim]
//   1  bf16 [block_size][head_dim]
//   2  bf16 [head_dim / 64][block_size][64], the eight sixteen-byte chunks of a position at chunk ^ (position % 8): 64 columns of a block are one bulk copy, eight positions lie in
//      different banks, and it is what wgmma reads. A block stays at its place in a text, so that its positions are known where it is shared, too.
#pragma once
#include "step.cuh"

constexpr int KV_F32 = 0, KV_BF16 = 1, KV_TILES = 2;

// The blocks of a token's request, in order of position; null where the token names no row of the tables.
__device__ __forceinline__ const int32_t* kv_table(const KvView& kv, const Tables& t, const TokenRow& token, int32_t* fault) {
    if (static_cast<uint32_t>(token.request) < t.request_bucket) {
        const uint32_t slot = t.requests[token.request].slot;
        if (slot < kv.table_rows) return t.block_table + static_cast<size_t>(slot) * t.blocks_per_request;
    }
    report(fault, RecordHeader::BAD_BLOCK);
    return nullptr;
}

// The block of a position, or -1.
__device__ __forceinline__ int kv_block(const KvView& kv, const Tables& t, const int32_t* table, int position, int32_t* fault) {
    const uint32_t index = static_cast<uint32_t>(position) / kv.block_size;
    if (position >= 0 && index < t.blocks_per_request) {
        const uint32_t block = table[index];
        if (block < kv.blocks) return static_cast<int>(block);
    }
    report(fault, RecordHeader::BAD_BLOCK);
    return -1;
}

// The first element of a head of a block.
__device__ __forceinline__ size_t kv_head(const KvView& kv, int block, int head) {
    return (static_cast<size_t>(block) * kv.heads + head) * kv.block_size * kv.head_dim;
}

// Element `i` of a position, counted from the first of its head of its block.
template <int Layout> __device__ __forceinline__ uint32_t kv_place(const KvView& kv, uint32_t position, uint32_t i) {
    const uint32_t offset = position % kv.block_size;
    if constexpr (Layout == KV_TILES) return (i / 64 * kv.block_size + offset) * 64 + ((i / 8 % 8) ^ (position % 8)) * 8 + i % 8;
    else return offset * kv.head_dim + i;
}
__device__ __forceinline__ uint32_t kv_place(const KvView& kv, uint32_t position, uint32_t i) {
    return kv.layout == KV_TILES ? kv_place<KV_TILES>(kv, position, i) : kv_place<KV_BF16>(kv, position, i);
}

// Elements of either array, by their number.
__device__ __forceinline__ void kv_store(const KvView& kv, uint8_t* array, size_t at, float x) {
    if (kv.layout == KV_F32) reinterpret_cast<float*>(array)[at] = x;
    else reinterpret_cast<bf16*>(array)[at] = __float2bfloat16_rn(x);
}
// Four neighbours of a position from element `i`, a multiple of four, on; those that there are. `first` is that of the head of the block.
__device__ __forceinline__ void kv_store_four(const KvView& kv, uint8_t* array, size_t first, int position, uint32_t i, float4 x) {
    const size_t at = first + kv_place(kv, position, i);
    if (kv.head_dim % 4 != 0) {
        const float elements[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j < kv.head_dim) kv_store(kv, array, at + j, elements[j]);
    } else if (kv.layout == KV_F32) *reinterpret_cast<float4*>(array + at * 4) = x;
    else *reinterpret_cast<uint2*>(array + at * 2) = make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}
template <int Layout> __device__ __forceinline__ float kv_load(const uint8_t* array, size_t at) {
    if constexpr (Layout == KV_F32) return reinterpret_cast<const float*>(array)[at];
    else return __bfloat162float(reinterpret_cast<const bf16*>(array)[at]);
}
