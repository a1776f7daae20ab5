// Experts of a mixture: which rows go to which expert, and what they add up to.
//
// The (row, expert) pairs of a step are sorted by expert, rows in order within each, into strips of `height` slots that belong to one expert; the rest of
// an expert's last strip is empty. Products then work strip by strip. A pair's result does not depend on its slot. If all rows fit into one strip, every expert that was chosen has one
// with all of them (`together`): inputs need not be sorted, and results of rows that did not choose it are nobody's.
#include "norm.cuh"
#include "pieces.cuh"
#include "rounded.cuh"
#include "route.cuh"
#include "args/experts.h"

constexpr int WARPS = 16;

// The matrices of an expert.
struct Matrices {
    uint64_t up, down;
};

// Writes what strips of an expert are, from its first on, which `count` rows chose, those of `rows` if all are together.
__device__ __forceinline__ void begin_strips(const SortArgs& a, const Matrices& matrices, int first, int count, uint32_t rows) {
    const int height = a.height, strips = a.together ? count > 0 : (count + height - 1) / height;
    for (int i = 0; i < strips; i++) {
        const int here = min(count - i * height, height);
        a.strip_up[first + i] = matrices.up, a.strip_down[first + i] = matrices.down;
        a.strip_slots[first + i] = a.together ? rows : here < 32 ? (1u << here) - 1 : ~0u;
    }
    if (!a.together)
        for (int slot = first * height + count; slot < (first + strips) * height; slot++) a.slot_row[slot] = -1;
}

// The pairs of a warp's share, 32 at a time: `visit(pair, expert, rank)` for each, which is the `rank`-th of those among the 32 that have the same expert;
// then, once for each of those experts, `behind(expert, count)`.
template <class Visit, class Behind> __device__ __forceinline__ void each_pair(const SortArgs& a, int pairs, Visit visit, Behind behind) {
    const int lane = threadIdx.x % 32, share = (pairs + WARPS * 32 - 1) / (WARPS * 32) * 32, begin = threadIdx.x / 32 * share, end = min(begin + share, pairs);
    for (int base = begin; base < end; base += 32) {
        const int pair = base + lane;
        const int expert = pair < end ? min(max(a.ids[pair], 0), static_cast<int>(a.experts) - 1) : -1;
        const uint32_t alike = __match_any_sync(0xffffffffu, expert);
        const int rank = __popc(alike & ((1u << lane) - 1));
        if (expert >= 0) visit(pair, expert, rank);
        __syncwarp();
        if (expert >= 0 && rank == 0) behind(expert, __popc(alike));
        __syncwarp();
    }
}

// One thread block. Per warp and expert, counts become the place of the warp's first pair among those of the expert.
extern "C" __global__ void __launch_bounds__(WARPS * 32) sort_pairs(const __grid_constant__ SortArgs a) {
    enter();
    extern __shared__ int places[];
    const int experts = a.experts, pairs = live_rows(a.live, a.bucket) * a.chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int *own = places + warp * experts, *total = places + WARPS * experts, *first = total + experts;
    for (int i = threadIdx.x; i < WARPS * experts; i += blockDim.x) places[i] = 0;
    __syncthreads();
    each_pair(a, pairs, [](int, int, int) {}, [&](int expert, int count) { own[expert] += count; });
    __syncthreads();
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
        int sum = 0;
        for (int i = 0; i < WARPS; i++) {
            const int here = places[i * experts + expert];
            places[i * experts + expert] = sum, sum += here;
        }
        total[expert] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        int before = 0;
        for (int base = 0; base < experts; base += 32) {
            const int expert = base + lane, strips = expert < experts ? (total[expert] + a.height - 1) / a.height : 0;
            int upto = strips;
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, upto, step);
                if (lane >= step) upto += other;
            }
            if (expert < experts) first[expert] = before + upto - strips;
            before += __shfl_sync(0xffffffffu, upto, 31);
        }
        if (lane == 0) a.counts[0] = before, a.counts[1] = before * a.height;
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) begin_strips(a, {a.up[expert], a.down[expert]}, first[expert], total[expert], 0);
    each_pair(a, pairs, [&](int pair, int expert, int rank) {
        const int slot = first[expert] * a.height + own[expert] + rank;
        a.slot_row[slot] = pair / a.chosen, a.pair_slot[pair] = slot;
    }, [&](int expert, int count) { own[expert] += count; });
}

// --- steps of up to 64 rows: an expert's rows are the bits of two words
struct FewRows {
    uint32_t* words; // two per expert
    int* first;      // strip per expert

    __device__ __forceinline__ FewRows(void* memory, int experts) : words(static_cast<uint32_t*>(memory)), first(static_cast<int*>(memory) + 2 * experts) {}
    __device__ __forceinline__ void clear(int experts) const {
        for (int i = threadIdx.x; i < 2 * experts; i += blockDim.x) words[i] = 0;
    }
    __device__ __forceinline__ void add(int row, int expert) const { atomicOr(words + expert * 2 + row / 32, 1u << row % 32); }
    __device__ __forceinline__ int count(int expert) const { return __popc(words[expert * 2]) + __popc(words[expert * 2 + 1]); }
    // How many of an expert's rows are before a row.
    __device__ __forceinline__ int rank(int row, int expert) const {
        const uint32_t before = (1u << row % 32) - 1;
        return row < 32 ? __popc(words[expert * 2] & before) : __popc(words[expert * 2]) + __popc(words[expert * 2 + 1] & before);
    }
};

// Sorts the pairs of few rows when all of them have been added; `id(pair)` is the expert. `own` are the matrices of the thread's expert, which were asked for before the wait.
template <class Id> __device__ __forceinline__ void sort_few_pairs(const SortArgs& a, const FewRows& rows, int pairs, const Matrices& own, Id id) {
    __shared__ int totals[32];
    const int experts = a.experts, height = a.height, chosen = a.chosen, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int before = 0;
    __syncthreads();
    for (int base = 0; base < experts; base += blockDim.x) {
        const int expert = base + threadIdx.x, count = expert < experts ? rows.count(expert) : 0, strips = a.together ? count > 0 : (count + height - 1) / height;
        int upto = strips;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, upto, step);
            if (lane >= step) upto += other;
        }
        if (lane == 31) totals[warp] = upto;
        __syncthreads();
        int first = before + upto - strips;
        for (int i = 0; i < warps; i++) {
            if (i < warp) first += totals[i];
            before += totals[i];
        }
        if (expert < experts) {
            rows.first[expert] = first;
            if (count > 0) begin_strips(a, base == 0 ? own : Matrices{a.up[expert], a.down[expert]}, first, count, rows.words[expert * 2]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) a.counts[0] = before, a.counts[1] = before * height;
    for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        const int row = pair / chosen, expert = id(pair), slot = rows.first[expert] * height + (a.together ? row : rows.rank(row, expert));
        a.pair_slot[pair] = slot;
        if (!a.together) a.slot_row[slot] = row;
    }
}
__device__ __forceinline__ Matrices own_matrices(const SortArgs& a) {
    const int expert = min(threadIdx.x, a.experts - 1);
    return {a.up[expert], a.down[expert]};
}

// `sort_pairs` for up to 64 rows.
extern "C" __global__ void __launch_bounds__(1024) sort_few(const __grid_constant__ SortArgs a) {
    release_dependents();
    extern __shared__ __align__(16) int memory[];
    const FewRows rows(memory, a.experts);
    const Matrices own = own_matrices(a);
    rows.clear(a.experts);
    __syncthreads();
    depend();
    const int pairs = live_rows(a.live, a.bucket) * a.chosen, experts = a.experts;
    auto id = [&](int pair) { return min(max(a.ids[pair], 0), experts - 1); };
    for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) rows.add(pair / a.chosen, id(pair));
    sort_few_pairs(a, rows, pairs, own, id);
}

// The end of the router's product, the choice of experts by a warp per row, and their sorting, for up to 64 rows. One thread block. Shared memory: the rows of experts, logits, and, for each
// warp, scores where logits are none.
extern "C" __global__ void __launch_bounds__(1024) route_few(const __grid_constant__ RouteFewArgs a) {
    release_dependents();
    extern __shared__ __align__(16) int memory[];
    const int experts = a.sort.experts, columns = a.route.logits.columns, pitch = (columns + 3) / 4 * 4, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const FewRows rows(memory, experts);
    float *logits = reinterpret_cast<float*>(memory + (3 * experts + 3) / 4 * 4), *score = logits + a.route.logits.bucket * pitch + warp * (experts + a.route.groups);
    const Matrices own = own_matrices(a.sort);
    rows.clear(experts);
    depend();
    const int live = live_rows(a.route.logits), fours = pitch / 4;
    for (int i = threadIdx.x; i < live * fours; i += blockDim.x) {
        const int row = i / fours, column = i % fours * 4;
        const float4 x = a.product.sums.data ? with_epilogue(a.product, Pieces(a.product.sums, row, column).four(), column) : load_four(row_of(a.route.logits, row), column, columns);
        *reinterpret_cast<float4*>(logits + row * pitch + column) = x;
    }
    __syncthreads();
    for (int row = warp; row < live; row += warps) {
        const Chosen chosen = choose_experts(a.route, logits + row * pitch, score);
        store_chosen(a.route, row, chosen);
        if (lane < a.route.chosen) rows.add(row, chosen.expert);
    }
    sort_few_pairs(a.sort, rows, live * a.sort.chosen, own, [&](int pair) { return a.sort.ids[pair]; });
}

// The sum of weight * result over the experts of a row, best first, of four columns. Results of `TOGETHER` experts are asked for at a time.
constexpr int TOGETHER = 10;
__device__ __forceinline__ float4 combined(const CombineArgs& a, int row, int column) {
    const float* weights = row_of(a.weights, row);
    const int *slots = a.pair_slot + row * a.chosen, chosen = a.chosen;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int first = 0; first < chosen; first += TOGETHER) {
        float4 x[TOGETHER];
        float weight[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (first + i < chosen) weight[i] = weights[first + i], x[i] = load_four(row_of(a.results, slots[first + i]), column, a.results.columns);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (first + i < chosen) sum = each(x[i], sum, [&](float x, float sum) { return __fmaf_rn(weight[i], x, sum); });
    }
    return sum;
}

// A thread for four columns, blockIdx.x for the row.
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineArgs a) {
    enter();
    const int row = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 4, columns = a.out.columns;
    if (row >= live_rows(a.out) || column >= columns) return;
    store_four(row_of(a.out, row), column, columns, combined(a, row, column));
}

// The same, added to the residual stream, and the norm behind that: a thread block per row.
template <int Threads> __device__ __forceinline__ void combine_add_norm(const CombineNormArgs& a) {
    enter();
    const int row = blockIdx.x;
    if (row >= live_rows(a.norm.out)) return;
    add_and_norm<Threads, 1>(a.norm, row, [&](int c) { return combined(a.experts, row, c); }, [&](int c, float4 y) { store_rounded(a.rounded, row, c, y); });
}
extern "C" __global__ void __launch_bounds__(256) combine_add_norm_256(const __grid_constant__ CombineNormArgs a) { combine_add_norm<256>(a); }
extern "C" __global__ void __launch_bounds__(512) combine_add_norm_512(const __grid_constant__ CombineNormArgs a) { combine_add_norm<512>(a); }
extern "C" __global__ void __launch_bounds__(768) combine_add_norm_768(const __grid_constant__ CombineNormArgs a) { combine_add_norm<768>(a); }
