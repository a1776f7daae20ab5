// Attention over paged keys and values, for decode and verify windows.
//
//   o = sum_j softmax_j(q . k_j / sqrt(D)) v_j over positions j up to the query's own
//
// Keys and values: bf16 [block][kv head][D / 64][16 positions][64], sixteen-byte chunk c of the eight of a position kept at c ^ (position % 8): a block of a head is one bulk copy,
// eight positions lie in different banks, and a piece of 64 columns is what wgmma reads (`prefill.cuh`). Queries: bf16 [token][head][D]. Block tables: [slot][blocks]. Result: per token, head and split a maximum, a sum and D
// unnormalised outputs in f32, which `attend_merge` joins and writes as bf16 [token][head][D].
//
// The order of a sum is that of positions, cut at multiples of SPLIT = 512, in tiles of KEYS = 64: within a tile one maximum, then exponents, their sum (per lane over groups of
// eight keys ascending, then lanes), then products with values, 16 keys at a time ascending; splits are joined in ascending order. All of it depends on positions alone.
//
// Work item = (plan row, kv head, split): all tokens of the row and all heads of the group are rows of one product of 16 M rows. Persistent thread blocks; a producer warp
// keeps a ring of tiles full across items. Eight warps: for scores each eight keys of the tile, for outputs each D / 8 columns. Bytes: keys and values once.
#pragma once
#include "paceline.cuh"

constexpr int KEYS = 64, SPLIT = 512, BLOCK = 16;

struct AttendRow {
    int slot, start, tokens, first_token, first_item; // items of rows before this one, per kv head
};
struct AttendArgs {
    const bf16 *q, *keys, *values;
    const int* tables;
    const AttendRow* rows;
    float *partial, *scale; // [token][head][split][D] and [..][2]: maximum and sum
    int row_count, items, heads, kv_heads, blocks_per_slot, splits, pdl;
};

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

// Where chunk `chunk` of a position is, in a tile of blocks one behind the other.
template <int Dim> __host__ __device__ __forceinline__ int chunk_at(int position, int chunk) {
    return ((position / BLOCK * (Dim / 64) + chunk / 8) * BLOCK + position % BLOCK) * 64 + (chunk % 8 ^ position % 8) * 8;
}

template <int Dim, int M, int Stages> struct alignas(128) AttendMemory {
    bf16 k[Stages][KEYS * Dim], v[Stages][KEYS * Dim];
    bf16 p[M * 16][KEYS + 8];
    bf16 q[M > 1 ? M * 16 : 1][Dim + 8]; // where they are too many for registers
    float most[2][8][M * 16];      // of eight keys each
    float sums[2][8][M * 16][4];   // of pairs of keys
    uint64_t k_full[Stages], v_full[Stages], empty[Stages];
};

// Which row and split an item is: rows are few, so a warp looks at them all.
__device__ __forceinline__ int attend_row(const AttendArgs& a, int item) {
    int found = 0;
    for (int base = 0; base < a.row_count; base += 32) {
        const int row = base + threadIdx.x % 32;
        const unsigned before = __ballot_sync(~0u, row < a.row_count && a.rows[row].first_item <= item);
        if (!before) break;
        found = base + 31 - __clz(before);
    }
    return found;
}

template <int Dim, int M, int Stages> __device__ void attend_produce(const AttendArgs& a, AttendMemory<Dim, M, Stages>& m) {
    const int lane = threadIdx.x % 32;
    int index = 0;
    for (int item = blockIdx.x; item < a.items * a.kv_heads; item += gridDim.x) {
        const int kv_head = item % a.kv_heads;
        const AttendRow row = a.rows[attend_row(a, item / a.kv_heads)];
        const int split = item / a.kv_heads - row.first_item, end = min(row.start + row.tokens, (split + 1) * SPLIT), last = (row.start + row.tokens - 1) / BLOCK;
        for (int key = split * SPLIT; key < end; key += KEYS, index++) {
            const int stage = index % Stages;
            const uint32_t k_bar = shared_address(&m.k_full[stage]), v_bar = shared_address(&m.v_full[stage]);
            // What lies past the last block is never looked at, but must be numbers: the last block again.
            const int block = lane < 8 ? a.tables[row.slot * a.blocks_per_slot + min(key / BLOCK + lane % 4, last)] : 0;
            barrier_wait(shared_address(&m.empty[stage]), (index / Stages & 1) ^ 1);
            if (lane == 0) barrier_expect(k_bar, sizeof m.k[stage]), barrier_expect(v_bar, sizeof m.v[stage]);
            __syncwarp();
            const long at = (static_cast<long>(block) * a.kv_heads + kv_head) * BLOCK * Dim;
            if (lane < 4) bulk_load(shared_address(&m.k[stage][lane * BLOCK * Dim]), a.keys + at, BLOCK * Dim * 2, k_bar);
            else if (lane < 8) bulk_load(shared_address(&m.v[stage][lane % 4 * BLOCK * Dim]), a.values + at, BLOCK * Dim * 2, v_bar);
        }
    }
}

__device__ __forceinline__ void consumers_together() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

template <int Dim, int M, int Stages> __global__ void __launch_bounds__(288, 1) attend(AttendArgs a) {
    extern __shared__ __align__(128) char memory[];
    auto& m = *reinterpret_cast<AttendMemory<Dim, M, Stages>*>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Stages; i++) barrier_init(shared_address(&m.k_full[i]), 1), barrier_init(shared_address(&m.v_full[i]), 1), barrier_init(shared_address(&m.empty[i]), 256);
        barrier_init_fence();
    }
    __syncthreads();
    if (a.pdl) release_dependents(), depend();
    if (threadIdx.x >= 256) return attend_produce<Dim, M, Stages>(a, m);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.kv_heads;
    const float factor = 1.44269504f * rsqrtf(static_cast<float>(Dim));
    constexpr int Steps = Dim / 16, Tiles = Dim / 64; // products per score; column tiles of eight per warp
    constexpr int Span = Tiles == 1 ? 2 : 1;           // groups of sixteen keys per load of values
    int index = 0;
    for (int item = blockIdx.x; item < a.items * a.kv_heads; item += gridDim.x) {
        const int kv_head = item % a.kv_heads;
        const AttendRow row = a.rows[attend_row(a, item / a.kv_heads)];
        const int split = item / a.kv_heads - row.first_item, end = min(row.start + row.tokens, (split + 1) * SPLIT), live = row.tokens * group;
        // Row r of the product: token r / group, head r % group.
        auto query = [&](int r) { return a.q + (static_cast<long>(row.first_token + min(r, live - 1) / group) * a.heads + kv_head * group + r % group) * Dim; };
        uint32_t q[Steps][4];
        if constexpr (M == 1) {
            const bf16 *low = query(lane / 4) + lane % 4 * 2, *high = query(lane / 4 + 8) + lane % 4 * 2;
#pragma unroll
            for (int s = 0; s < Steps; s++) {
                q[s][0] = *reinterpret_cast<const uint32_t*>(low + s * 16), q[s][1] = *reinterpret_cast<const uint32_t*>(high + s * 16);
                q[s][2] = *reinterpret_cast<const uint32_t*>(low + s * 16 + 8), q[s][3] = *reinterpret_cast<const uint32_t*>(high + s * 16 + 8);
            }
        } else {
            consumers_together(); // the item before is done with its own
            for (int i = threadIdx.x; i < M * 16 * Dim / 8; i += 256) *reinterpret_cast<uint4*>(&m.q[i / (Dim / 8)][i % (Dim / 8) * 8]) = *reinterpret_cast<const uint4*>(query(i / (Dim / 8)) + i % (Dim / 8) * 8);
            consumers_together();
        }
        float out[M][Tiles][4] = {}, most[M][2], sum[M][2] = {};
#pragma unroll
        for (int i = 0; i < M; i++) most[i][0] = most[i][1] = -INFINITY;
        for (int key = split * SPLIT; key < end; key += KEYS, index++) {
            const int stage = index % Stages, parity = index / Stages & 1, side = index % 2;
            // Scores of eight keys.
            float s[M][4] = {};
            barrier_wait(shared_address(&m.k_full[stage]), parity);
#pragma unroll
            for (int step = 0; step < Steps; step += 2) {
                uint32_t b[4], left[4], right[4];
                load_matrices(b, shared_address(&m.k[stage][chunk_at<Dim>(warp * 8 + lane % 8, step * 2 + lane / 8)]));
                if constexpr (M == 1) {
                    mma_bf16(s[0], q[step], b[0], b[1]), mma_bf16(s[0], q[step + 1], b[2], b[3]);
                } else {
#pragma unroll
                    for (int i = 0; i < M; i++) {
                        load_matrices(left, shared_address(&m.q[i * 16 + lane % 16][step * 16 + lane / 16 * 8])), load_matrices(right, shared_address(&m.q[i * 16 + lane % 16][step * 16 + 16 + lane / 16 * 8]));
                        mma_bf16(s[i], left, b[0], b[1]), mma_bf16(s[i], right, b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < M; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int r = i * 16 + lane / 4 + j / 2 * 8, position = key + warp * 8 + lane % 4 * 2 + j % 2;
                    s[i][j] = position <= row.start + r / group ? s[i][j] : -INFINITY;
                }
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float x = fmaxf(s[i][2 * half], s[i][2 * half + 1]);
                    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1)), x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
                    if (lane % 4 == 0) m.most[side][warp][i * 16 + half * 8 + lane / 4] = x;
                }
            }
            consumers_together();
            // One maximum for the tile; exponents, rounded for the product with values.
            float fade[M][2];
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int r = i * 16 + half * 8 + lane / 4;
                    float x = most[i][half];
#pragma unroll
                    for (int w = 0; w < 8; w++) x = fmaxf(x, m.most[side][w][r]);
                    const float base = x == -INFINITY ? 0 : __fmul_rn(x, factor); // a row that sees nothing of this tile
                    fade[i][half] = exp2_approximate(__fsub_rn(__fmul_rn(most[i][half], factor), base));
                    most[i][half] = x;
                    const float p0 = exp2_approximate(__fmaf_rn(s[i][2 * half], factor, -base)), p1 = exp2_approximate(__fmaf_rn(s[i][2 * half + 1], factor, -base));
                    *reinterpret_cast<uint32_t*>(&m.p[r][warp * 8 + lane % 4 * 2]) = pack(p0, p1);
                    m.sums[side][warp][r][lane % 4] = __fadd_rn(p0, p1);
                }
            consumers_together();
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int r = i * 16 + half * 8 + lane / 4;
                    float x = m.sums[side][0][r][lane % 4];
#pragma unroll
                    for (int w = 1; w < 8; w++) x = __fadd_rn(x, m.sums[side][w][r][lane % 4]);
                    x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1)), x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
                    sum[i][half] = __fmaf_rn(sum[i][half], fade[i][half], x);
#pragma unroll
                    for (int t = 0; t < Tiles; t++) out[i][t][2 * half] *= fade[i][half], out[i][t][2 * half + 1] *= fade[i][half];
                }
            barrier_wait(shared_address(&m.v_full[stage]), parity);
#pragma unroll
            for (int step = 0; step < KEYS / 16; step += Span) {
                uint32_t p[Span][M][4];
#pragma unroll
                for (int i = 0; i < Span * M; i++) load_matrices(p[i / M][i % M], shared_address(&m.p[i % M * 16 + lane % 16][(step + i / M) * 16 + lane / 16 * 8]));
#pragma unroll
                for (int t = 0; t < Tiles; t += 2) {
                    // Matrices: (keys 0-7, columns 0-7), (keys 8-15, columns 0-7), then columns 8-15, or keys 16-31 where a warp has no more columns.
                    uint32_t b[4];
                    load_matrices_transposed(b, shared_address(&m.v[stage][chunk_at<Dim>(step * 16 + lane % (16 * Span), warp * Tiles + t + (Span == 1 ? lane / 16 : 0))]));
#pragma unroll
                    for (int i = 0; i < M; i++) {
                        mma_bf16(out[i][t], p[0][i], b[0], b[1]);
                        if constexpr (Span == 1) mma_bf16(out[i][t + 1], p[0][i], b[2], b[3]);
                        else mma_bf16(out[i][t], p[1][i], b[2], b[3]);
                    }
                }
            }
            barrier_arrive(shared_address(&m.empty[stage]));
        }
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = i * 16 + half * 8 + lane / 4;
                if (r >= live) continue;
                const long at = (static_cast<long>(row.first_token + r / group) * a.heads + kv_head * group + r % group) * a.splits + split;
                if (warp == 0 && lane % 4 == 0) a.scale[at * 2] = __fmul_rn(most[i][half], factor), a.scale[at * 2 + 1] = sum[i][half];
#pragma unroll
                for (int t = 0; t < Tiles; t++) *reinterpret_cast<float2*>(a.partial + at * Dim + (warp * Tiles + t) * 8 + lane % 4 * 2) = make_float2(out[i][t][2 * half], out[i][t][2 * half + 1]);
            }
    }
}

// Joins the splits of a token and head in ascending order. A warp each.
template <int Dim> __global__ void attend_merge(AttendArgs a, bf16* to, const int* row_of, int tokens) {
    if (a.pdl) release_dependents(), depend();
    const int lane = threadIdx.x % 32;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < tokens * a.heads; i += gridDim.x * blockDim.x / 32) {
        const AttendRow row = a.rows[row_of[i / a.heads]];
        const int position = row.start + i / a.heads - row.first_token, count = position / SPLIT + 1;
        float most = -INFINITY, sum = 0, out[Dim / 32] = {};
        for (int split = 0; split < count; split++) {
            const long at = static_cast<long>(i) * a.splits + split;
            const float theirs = a.scale[at * 2], both = fmaxf(most, theirs), old = exp2_approximate(most - both), fresh = exp2_approximate(theirs - both);
            sum = __fmaf_rn(a.scale[at * 2 + 1], fresh, sum * old), most = both;
#pragma unroll
            for (int j = 0; j < Dim / 32; j++) out[j] = __fmaf_rn(a.partial[at * Dim + j * 32 + lane], fresh, out[j] * old);
        }
        const float share = __frcp_rn(sum);
#pragma unroll
        for (int j = 0; j < Dim / 32; j++) to[static_cast<long>(i) * Dim + j * 32 + lane] = __float2bfloat16_rn(__fmul_rn(out[j], share));
    }
}
