// Norm and rotation of queries and keys; keys and values go into the blocks.
//
//   head = head / rms(head) * weight, where there is a norm; then elements i and i + n are rotated by angle i, for i < n
//
// Queries f32 [token][head][head_dim], in place. Keys and values f32 [token][kv head][head_dim], to the blocks of `kv.cuh`. Angles f32 [token][2 n]: cosines, then sines.
//
// A warp per token and head: the heads of queries, then those of keys, each with its value. Bytes: queries twice, keys and values once and once as they are stored.
#include "kv.cuh"
#include "args/attention.h"

constexpr int WARPS = 4, MOST = 256, J = MOST / 32;

extern "C" __global__ void __launch_bounds__(WARPS * 32) store_kv(const __grid_constant__ StoreKvArgs a) {
    __shared__ float heads[WARPS][MOST];
    release_dependents();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.head_dim, row = blockIdx.x, queries = a.q.columns / dim, head = blockIdx.y * WARPS + warp;
    const bool is_query = head < queries;
    const float* weight = is_query ? a.q_norm : a.k_norm;
    if (weight && lane * 8 < dim) prefetch(weight + lane * 8);
    if (row >= live_rows(a.q) || head >= queries + static_cast<int>(a.kv.heads)) return depend();
    int block = 0, position = 0;
    if (!is_query) {
        const TokenRow token = a.tables.tokens[row];
        const int32_t* table = kv_table(a.kv, a.tables, token, a.fault);
        position = token.position, block = table ? kv_block(a.kv, a.tables, table, position, a.fault) : -1;
    }
    depend();
    // All that is read is asked for before the first of it is used.
    float* q = row_of(a.q, row) + head * dim;
    const float *from = is_query ? q : row_of(a.k, row) + (head - queries) * dim, *value = is_query ? from : row_of(a.v, row) + (head - queries) * dim;
    float own[J], values[J];
#pragma unroll
    for (int j = 0; j < J; j++)
        if (const int i = lane + j * 32; i < dim) own[j] = from[i], values[j] = value[i];
    if (block < 0) return;
    float* x = heads[warp];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < J; j++)
        if (lane + j * 32 < dim) squares = fmaf(own[j], own[j], squares);
    const float scale = weight ? 1.0f / sqrtf(warp_sum(squares) / dim + a.eps) : 1.0f;
#pragma unroll
    for (int j = 0; j < J; j++)
        if (const int i = lane + j * 32; i < dim) x[i] = weight ? own[j] * scale * weight[i] : own[j];
    __syncwarp();
    const int pairs = a.angles.columns / 2;
    const float* angles = row_of(a.angles, row);
    auto rotated = [&](int i) {
        if (i < pairs) return x[i] * angles[i] - x[i + pairs] * angles[i + pairs];
        if (i < 2 * pairs) return fmaf(x[i - pairs], angles[i], x[i] * angles[i - pairs]);
        return x[i];
    };
    const size_t first = kv_head(a.kv, block, is_query ? 0 : head - queries);
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int i = lane + j * 32;
        if (i >= dim) break;
        const float y = rotated(i);
        if (is_query) {
            q[i] = y;
        } else {
            const size_t at = first + kv_place(a.kv, position, i);
            kv_store(a.kv, a.kv.keys, at, y);
            kv_store(a.kv, a.kv.values, at, values[j]);
        }
    }
}
