// Norm and rotation of queries and keys; keys and values go into the blocks.
//
//   head = head / rms(head) * weight, where there is a norm; then elements i and i + n are rotated by angle i, for i < n
//
// Queries f32 [token][head][head_dim], in place. Keys and values f32 [token][kv head][head_dim], to the blocks of `kv.cuh`. Angles f32 [token][2 n]: cosines, then sines.
//
// A warp per token and head: the heads of queries, then those of keys, each with its value; a lane has four neighbours of every 128 elements. Bytes: queries twice, keys and values once and
// once as they are stored.
#include "kv.cuh"
#include "rows.cuh"
#include "args/attention.h"

constexpr int WARPS = 4, MOST = 256, J = MOST / 128;

extern "C" __global__ void __launch_bounds__(WARPS * 32) store_kv(const __grid_constant__ StoreKvArgs a) {
    __shared__ __align__(16) float heads[WARPS][MOST];
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
    const float *from = is_query ? q : row_of(a.k, row) + (head - queries) * dim, *value = row_of(a.v, row) + (head - queries) * dim;
    const int pairs = a.angles.columns / 2;
    const float* angles = row_of(a.angles, row);
    float4 own[J], values[J] = {}, weights[J] = {};
    float cosines[J][4], sines[J][4];
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int c = lane * 4 + j * 128;
        own[j] = load_four(from, c, dim); // zero past the last
        if (!is_query) values[j] = load_four(value, c, dim);
        if (weight) weights[j] = load_four(weight, c, dim);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (c + e < 2 * pairs) {
                const int pair = c + e < pairs ? c + e : c + e - pairs;
                cosines[j][e] = angles[pair], sines[j][e] = angles[pairs + pair];
            }
    }
    if (block < 0) return;
    float* x = heads[warp];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < J; j++) squares = add_squares(own[j], squares);
    const float scale = weight ? 1.0f / sqrtf(warp_sum(squares) / dim + a.eps) : 1.0f;
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int c = lane * 4 + j * 128;
        if (weight) own[j] = each(own[j], weights[j], [&](float x, float w) { return x * scale * w; });
        if (c < dim) *reinterpret_cast<float4*>(x + c) = own[j];
    }
    __syncwarp();
    auto rotated = [&](int i, float own, float cosine, float sine) {
        if (i < pairs) return own * cosine - x[i + pairs] * sine;
        if (i < 2 * pairs) return fmaf(x[i - pairs], sine, own * cosine);
        return own;
    };
    const size_t first = kv_head(a.kv, block, is_query ? 0 : head - queries);
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int c = lane * 4 + j * 128;
        if (c >= dim) break;
        float y[4] = {own[j].x, own[j].y, own[j].z, own[j].w};
#pragma unroll
        for (int e = 0; e < 4; e++) y[e] = rotated(c + e, y[e], cosines[j][e], sines[j][e]);
        const float4 four = make_float4(y[0], y[1], y[2], y[3]);
        if (is_query) {
            store_four(q, c, dim, four);
        } else {
            kv_store_four(a.kv, a.kv.keys, first, position, c, four);
            kv_store_four(a.kv, a.kv.values, first, position, c, values[j]);
        }
    }
}
