// Boundary states on tensor cores: a tile of 32 rows and 16 `M` columns in the registers of a warp.
//
// TF32 instructions give f32 accuracy: a number is the sum of its first 11 bits and the rest, and of the four products of two such sums the smallest is left out, 2^-20 of the whole. What is
// added up: chains of 32 rows each, three sums per chain, chains in ascending order; a fold adds up what entries say by itself, so that the state is rounded
// once. A result depends on its own row and column alone, wherever they stand in an instruction: so every kernel that goes this way gives the same bits.
//
// In an instruction, the state's columns are rows of A: lane l has columns g = l / 4 and g + 8 of each 16. Of eight rows it has 2t and 2t + 1, t = l % 4, which are columns t and t + 4 of A in
// products, and columns 2t and 2t + 1 of the result in folds: what a fold leaves is where products look for it. Columns of a lane lie side by side in memory.
#pragma once
#include "paceline.cuh"

constexpr int STATE_TILE_ROWS = 32; // of a chain

struct Split {
    uint32_t high, low;
};
__device__ __forceinline__ Split split(float x) {
    const uint32_t high = __float_as_uint(x) & 0xffffe000u;
    return {high, __float_as_uint(__fsub_rn(x, __uint_as_float(high)))}; // the instruction ignores the last 13 bits
}
__device__ __forceinline__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Sums of products: first bits by first bits, and either's first bits by the rest of the other. Three, so that instructions have something else to wait for than each other.
struct SplitSums {
    float main[4] = {}, right[4] = {}, left[4] = {};
    __device__ __forceinline__ void add(const Split (&a)[4], Split b0, Split b1) {
        multiply_add(right, a[0].high, a[1].high, a[2].high, a[3].high, b0.low, b1.low);
        multiply_add(left, a[0].low, a[1].low, a[2].low, a[3].low, b0.high, b1.high);
        multiply_add(main, a[0].high, a[1].high, a[2].high, a[3].high, b0.high, b1.high);
    }
    __device__ __forceinline__ float total(int i) const { return __fadd_rn(main[i], __fadd_rn(right[i], left[i])); }
};

// Numbers of a lane that lie side by side: columns g and g + 8 of a sixteen, then of the next.
__device__ __forceinline__ void load_side_by_side(float (&x)[2], const float* from) {
    const float2 y = *reinterpret_cast<const float2*>(from);
    x[0] = y.x, x[1] = y.y;
}
__device__ __forceinline__ void load_side_by_side(float (&x)[4], const float* from) {
    const float4 y = *reinterpret_cast<const float4*>(from);
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}
__device__ __forceinline__ void store_side_by_side(float* to, const float (&x)[2]) { *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]); }
__device__ __forceinline__ void store_side_by_side(float* to, const float (&x)[4]) { *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]); }

template <int M> struct StateTile {
    float x[STATE_TILE_ROWS / 8][M][4] = {}; // by eight rows and sixteen columns: column g, then g + 8, of rows 2t and 2t + 1

    static __device__ __forceinline__ int g() { return threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ int t() { return threadIdx.x % 4; }
    // The first column of a lane.
    static __device__ __forceinline__ int column() { return g() * 2 * M; }

    // Rows are `stride` apart; in pairs of rows the second one may be nearer.
    __device__ __forceinline__ void load(const float* from, size_t stride) { load(from, stride, stride); }
    __device__ __forceinline__ void load(const float* from, size_t stride, size_t second) {
        from += 2 * t() * stride + column();
#pragma unroll
        for (int r = 0; r < STATE_TILE_ROWS / 4; r++) {
            float y[2 * M];
            load_side_by_side(y, from + r / 2 * 8 * stride + r % 2 * second);
#pragma unroll
            for (int i = 0; i < 2 * M; i++) x[r / 2][i / 2][i % 2 * 2 + r % 2] = y[i];
        }
    }
    __device__ __forceinline__ void store(float* to, size_t stride) const { store(to, stride, stride); }
    __device__ __forceinline__ void store(float* to, size_t stride, size_t second) const {
        to += 2 * t() * stride + column();
#pragma unroll
        for (int r = 0; r < STATE_TILE_ROWS / 4; r++) {
            float y[2 * M];
#pragma unroll
            for (int i = 0; i < 2 * M; i++) y[i] = x[r / 2][i / 2][i % 2 * 2 + r % 2];
            store_side_by_side(to + r / 2 * 8 * stride + r % 2 * second, y);
        }
    }

    // One chain of the products with `N` eights of vectors. Of the n-th eight lane l has number l / 4, from the tile's first row on, at `vectors` and n times `apart` behind that. `sums[n][i]` gets
    // columns g (0, 1) and g + 8 (2, 3) of sixteen i with vectors 2t and 2t + 1.
    template <int N> __device__ __forceinline__ void multiply(SplitSums (&sums)[N][M], const float* vectors, int apart = 0) const {
#pragma unroll
        for (int j = 0; j < STATE_TILE_ROWS / 8; j++) {
            Split b[N][2];
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float2 y = *reinterpret_cast<const float2*>(vectors + n * apart + 8 * j + 2 * t());
                b[n][0] = split(y.x), b[n][1] = split(y.y);
            }
#pragma unroll
            for (int i = 0; i < M; i++) {
                const Split a[4] = {split(x[j][i][0]), split(x[j][i][2]), split(x[j][i][1]), split(x[j][i][3])};
#pragma unroll
                for (int n = 0; n < N; n++) sums[n][i].add(a, b[n][0], b[n][1]);
            }
        }
    }

    // Sums of products with vector 2t + `e` of an eight, for this lane's columns.
    static __device__ __forceinline__ void write(float* to, const SplitSums (&sums)[M], int e) {
        float y[2 * M];
#pragma unroll
        for (int i = 0; i < 2 * M; i++) y[i] = sums[i / 2].total(i % 2 * 2 + e);
        store_side_by_side(to, y);
    }

    // What a fold needs of the keys of a full chunk: by entry, `stride` apart, from the tile's first row on.
    struct Keys {
        float b[STATE_TILE_ROWS / 8][4]; // by eight rows: row g, of entries t, t + 4, t + 8, t + 12
        __device__ __forceinline__ void load(const float* keys, int stride) {
            const float* own = keys + t() * stride + g();
#pragma unroll
            for (int j = 0; j < STATE_TILE_ROWS / 8; j++)
#pragma unroll
                for (int four = 0; four < 4; four++) b[j][four] = own[four * 4 * stride + 8 * j];
        }
    };
    // A full chunk goes into the state. `decay`: that of the state. `values`: u by entry, `stride` apart, from the tile's first column on; `rest(s)`: the decay from entry s to the end of the chunk.
    template <class Rest> __device__ __forceinline__ void fold(float decay, const float* values, int stride, Rest rest, const Keys& keys) {
#pragma unroll
        for (int i = 0; i < M; i++) {
            Split a[2][4];
#pragma unroll
            for (int four = 0; four < 4; four++) { // entries: two fours of either step
                const int s = four * 4 + t();
                const float factor = rest(s);
                const float2 u = *reinterpret_cast<const float2*>(values + s * stride + column() + 2 * i);
                a[four / 2][four % 2 * 2] = split(factor * u.x), a[four / 2][four % 2 * 2 + 1] = split(factor * u.y);
            }
#pragma unroll
            for (int j = 0; j < STATE_TILE_ROWS / 8; j += 2) { // two at a time, so that instructions have something else to wait for than each other
                SplitSums sums[2];
#pragma unroll
                for (int step = 0; step < 2; step++)
#pragma unroll
                    for (int n = 0; n < 2; n++) sums[n].add(a[step], split(keys.b[j + n][2 * step]), split(keys.b[j + n][2 * step + 1]));
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) x[j + n][i][e] = __fmaf_rn(decay, x[j + n][i][e], sums[n].total(e));
            }
        }
    }
};
