// Norm and rotation of queries and keys; keys and values go into the blocks.
//
//   head = head / rms(head) * weight, where there is a norm; then elements i and i + n are rotated by angle i, for i < n
//
// Queries f32 [token][head][head_dim], in place. Keys and values f32 [token][kv head][head_dim], to the blocks of `kv.cuh`. Angles f32 [token][2 n]: cosines, then sines.
//
// A warp per token and head: the heads of queries, then those of keys, each with its value. Bytes: queries twice, keys and values once and once as they are stored.
#include "kv.cuh"
#include "args/attention.h"

constexpr int WARPS = 4, MOST = 256;

extern "C" __global__ void __launch_bounds__(WARPS * 32) store_kv(const __grid_constant__ StoreKvArgs a) {
    __shared__ float heads[WARPS][MOST];
    enter();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.head_dim, row = blockIdx.x, queries = a.q.columns / dim, head = blockIdx.y * WARPS + warp;
    if (row >= live_rows(a.q) || head >= queries + static_cast<int>(a.kv.heads)) return;
    const bool is_query = head < queries;
    float* q = row_of(a.q, row) + head * dim;
    const float *from = is_query ? q : row_of(a.k, row) + (head - queries) * dim, *weight = is_query ? a.q_norm : a.k_norm;
    float* x = heads[warp];
    float squares = 0;
    for (int i = lane; i < dim; i += 32) {
        x[i] = from[i];
        squares = fmaf(x[i], x[i], squares);
    }
    if (weight) {
        const float scale = 1.0f / sqrtf(warp_sum(squares) / dim + a.eps);
        for (int i = lane; i < dim; i += 32) x[i] = x[i] * scale * weight[i];
    }
    __syncwarp();
    const int pairs = a.angles.columns / 2;
    const float* angles = row_of(a.angles, row);
    auto rotated = [&](int i) {
        if (i < pairs) return x[i] * angles[i] - x[i + pairs] * angles[i + pairs];
        if (i < 2 * pairs) return fmaf(x[i - pairs], angles[i], x[i] * angles[i - pairs]);
        return x[i];
    };
    if (is_query) {
        for (int i = lane; i < dim; i += 32) q[i] = rotated(i);
        return;
    }
    const TokenRow token = a.tables.tokens[row];
    const int32_t* table = kv_table(a.kv, a.tables, token, a.fault);
    const int block = table ? kv_block(a.kv, a.tables, table, token.position, a.fault) : -1;
    if (block < 0) return;
    const size_t first = kv_head(a.kv, block, head - queries);
    const float* value = row_of(a.v, row) + (head - queries) * dim;
    for (int i = lane; i < dim; i += 32) {
        const size_t at = first + kv_place(a.kv, token.position, i);
        kv_store(a.kv, a.kv.keys, at, rotated(i));
        kv_store(a.kv, a.kv.values, at, value[i]);
    }
}
