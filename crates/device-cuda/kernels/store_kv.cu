// Norm and rotation of queries and keys; keys and values go into the blocks.
//
//   head = head / rms(head) * weight, where there is a norm; then elements i and i + n are rotated by angle i, for i < n
//
// Queries f32 [token][head][head_dim], in place. Keys and values f32 [token][kv head][head_dim], to the blocks of `kv.cuh`. Angles f32 [token][2 n]: cosines, then sines.
//
// A warp per token and head: the heads of queries, then those of keys, each with its value; a lane has four neighbours of every 128 elements. Where all lies in fours, a warp has several heads of
// its token and asks for the next while it is at one: a head takes far fewer instructions then. Bytes: queries twice, keys and values once and once as they are stored.
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

// Four elements of a head, rotated: those from `c` on, which is a multiple of four, as `pairs` is. `x` has all of the head.
__device__ __forceinline__ float4 rotated_four(const float* x, int c, int pairs, float4 own, float4 cosine, float4 sine) {
    if (c >= 2 * pairs) return own;
    const bool first = c < pairs;
    const float4 other = *reinterpret_cast<const float4*>(x + (first ? c + pairs : c - pairs));
    auto turn = [&](float own, float other, float cosine, float sine) { return first ? own * cosine - other * sine : fmaf(other, sine, own * cosine); };
    return make_float4(turn(own.x, other.x, cosine.x, sine.x), turn(own.y, other.y, cosine.y, sine.y), turn(own.z, other.z, cosine.z, sine.z), turn(own.w, other.w, cosine.w, sine.w));
}

// What a lane has of a head, and of the value that goes with a key.
template <int J> struct Head {
    float4 x[J], value[J];
    __device__ __forceinline__ void load(const StoreKvArgs& a, int row, int head, int queries) {
        const int c = threadIdx.x % 32 * 4, key = head - queries;
        const float* from = key < 0 ? row_of(a.q, row) + head * J * 128 : row_of(a.k, row) + key * J * 128;
#pragma unroll
        for (int j = 0; j < J; j++) {
            x[j] = *reinterpret_cast<const float4*>(from + c + j * 128);
            if (key >= 0) value[j] = *reinterpret_cast<const float4*>(row_of(a.v, row) + key * J * 128 + c + j * 128);
        }
    }
};

// Cosines and sines of a lane's elements, zero where none are turned.
template <int J> struct Turn {
    float4 cosine[J], sine[J];
    __device__ __forceinline__ Turn(const Matrix& angles, int row) {
        const int pairs = angles.columns / 2;
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int c = threadIdx.x % 32 * 4 + j * 128, pair = c < pairs ? c : c - pairs;
            const float* at = row_of(angles, row) + pair;
            cosine[j] = sine[j] = make_float4(0, 0, 0, 0);
            if (c < 2 * pairs) cosine[j] = *reinterpret_cast<const float4*>(at), sine[j] = *reinterpret_cast<const float4*>(at + pairs);
        }
    }
};

// Heads of 128 or 256 elements. All rows lie in fours, and the angles of a half of the elements that are turned are a multiple of four.
template <int J> __device__ __forceinline__ void store_heads(const StoreKvArgs& a) {
    __shared__ __align__(16) float heads[WARPS][J * 128];
    release_dependents();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, queries = a.q.columns / (J * 128), all = queries + a.kv.heads, step = gridDim.y * WARPS, pairs = a.angles.columns / 2;
    int head = blockIdx.y * WARPS + warp;
    if (a.q_norm && lane < J * 4) prefetch(a.q_norm + lane * 32), prefetch(a.k_norm + lane * 32);
    if (row >= live_rows(a.q) || head >= all) return depend();
    int block = -1, position = 0;
    if (head + (all - 1 - head) / step * step >= queries) {
        const TokenRow token = a.tables.tokens[row];
        const int32_t* table = kv_table(a.kv, a.tables, token, a.fault);
        position = token.position, block = table ? kv_block(a.kv, a.tables, table, position, a.fault) : -1;
    }
    depend();
    Head<J> next;
    next.load(a, row, head, queries);
    const Turn<J> turn(a.angles, row);
    float* x = heads[warp];
#pragma unroll 1
    for (; head < all; head += step) {
        Head<J> own = next;
        if (head + step < all) next.load(a, row, head + step, queries);
        const bool is_query = head < queries;
        if (a.q_norm) {
            const float* weight = is_query ? a.q_norm : a.k_norm;
            float squares = 0;
#pragma unroll
            for (int j = 0; j < J; j++) squares = add_squares(own.x[j], squares);
            const float scale = 1.0f / sqrtf(warp_sum(squares) / (J * 128) + a.eps);
#pragma unroll
            for (int j = 0; j < J; j++) own.x[j] = each(own.x[j], *reinterpret_cast<const float4*>(weight + lane * 4 + j * 128), [&](float x, float w) { return x * scale * w; });
        }
        __syncwarp(); // the head before has been read
#pragma unroll
        for (int j = 0; j < J; j++) *reinterpret_cast<float4*>(x + lane * 4 + j * 128) = own.x[j];
        __syncwarp();
        const size_t first = kv_head(a.kv, block, is_query ? 0 : head - queries);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int c = lane * 4 + j * 128;
            const float4 y = rotated_four(x, c, pairs, own.x[j], turn.cosine[j], turn.sine[j]);
            if (is_query) {
                *reinterpret_cast<float4*>(row_of(a.q, row) + head * J * 128 + c) = y;
            } else if (block >= 0) {
                kv_store_four(a.kv, a.kv.keys, first, position, c, y);
                kv_store_four(a.kv, a.kv.values, first, position, c, own.value[j]);
            }
        }
    }
}
extern "C" __global__ void __launch_bounds__(WARPS * 32, 6) store_kv_128(const __grid_constant__ StoreKvArgs a) { store_heads<1>(a); }
extern "C" __global__ void __launch_bounds__(WARPS * 32, 6) store_kv_256(const __grid_constant__ StoreKvArgs a) { store_heads<2>(a); }
