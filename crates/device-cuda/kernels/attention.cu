// Attention over paged keys and values, for any head, block and element type: one product at a time.
//
//   o = sum_j softmax_j(scale q . k_j) v_j over positions j up to the query's own, times sigmoid(gate) where there is one
//
// Queries, gate, result: f32 [token][head][head_dim]. Keys and values: the blocks of `kv.cuh`.
//
// A thread block per token and head. Positions come in tiles of 64 from position 0 on. A warp has every eighth key of a tile, its lanes every 32nd element; a thread has a column
// of the result, to which values are added in order of position. A row's sums depend on its position alone. Bytes: keys and values once per token and head, from L2
// where heads share them.
#include "kv.cuh"
#include "args/attention.h"

constexpr int THREADS = 256, KEYS = 64, MOST = 256;

template <int Layout> __device__ __forceinline__ void attend_row(const AttentionArgs& a, const int32_t* table, int position, int row, int head) {
    __shared__ float q[MOST], scores[KEYS], weights[KEYS];
    __shared__ size_t heads[KEYS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.head_dim, column = threadIdx.x, kv = head / (a.q.columns / dim / a.kv.heads);
    if (column < dim) q[column] = row_of(a.q, row)[head * dim + column];
    float out = 0, most = -INFINITY, sum = 0;
    for (int first = 0; first <= position; first += KEYS) {
        const int count = min(KEYS, position + 1 - first);
        __syncthreads(); // the tile before is done with
        if (threadIdx.x < count) heads[threadIdx.x] = kv_head(a.kv, max(kv_block(a.kv, a.tables, table, first + threadIdx.x, a.fault), 0), kv);
        __syncthreads();
        for (int key = warp; key < count; key += THREADS / 32) {
            float dot = 0;
            for (int i = lane; i < dim; i += 32) dot = fmaf(q[i], kv_load<Layout>(a.kv.keys, heads[key] + kv_place<Layout>(a.kv, first + key, i)), dot);
            dot = warp_sum(dot);
            if (lane == 0) scores[key] = dot * a.scale;
        }
        __syncthreads();
        // Every warp for itself, all with the same result.
        const float low = lane < count ? scores[lane] : -INFINITY, high = lane + 32 < count ? scores[lane + 32] : -INFINITY;
        const float both = fmaxf(most, warp_max(fmaxf(low, high))), fade = expf(most - both), p_low = expf(low - both), p_high = expf(high - both);
        most = both, sum = fmaf(sum, fade, warp_sum(p_low + p_high));
        if (warp == 0) weights[lane] = p_low, weights[lane + 32] = p_high;
        __syncthreads();
        if (column < dim) {
            out *= fade;
#pragma unroll 4
            for (int key = 0; key < count; key++)
                out = fmaf(weights[key], kv_load<Layout>(a.kv.values, heads[key] + kv_place<Layout>(a.kv, first + key, column)), out);
        }
    }
    if (column >= dim) return;
    out /= sum;
    if (a.gate.data) out *= sigmoid(row_of(a.gate, row)[head * dim + column]);
    row_of(a.out, row)[head * dim + column] = out;
}

template <int Layout> __device__ __forceinline__ void attention(const AttentionArgs& a) {
    enter();
    const int row = blockIdx.x;
    if (row >= live_rows(a.q)) return;
    const TokenRow token = a.tables.tokens[row];
    const int32_t* table = kv_table(a.kv, a.tables, token, a.fault);
    if (table) attend_row<Layout>(a, table, token.position, row, blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_f32(const __grid_constant__ AttentionArgs a) { attention<KV_F32>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_bf16(const __grid_constant__ AttentionArgs a) { attention<KV_BF16>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_tiles(const __grid_constant__ AttentionArgs a) { attention<KV_TILES>(a); }
