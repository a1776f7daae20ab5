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

// The pairs of a warp's share, 32 at a time, of which four times are asked for at once: `visit(pair, expert, rank)` for each, which is the `rank`-th of those among the 32 that have the same expert;
// then, once for each of those experts, `behind(expert, count)`.
template <class Visit, class Behind> __device__ __forceinline__ void each_pair(const SortArgs& a, int pairs, Visit visit, Behind behind) {
    constexpr int TIMES = 4;
    const int lane = threadIdx.x % 32, threads = blockDim.x, share = (pairs + threads - 1) / threads * 32, begin = threadIdx.x / 32 * share, end = min(begin + share, pairs);
    for (int base = begin; base < end; base += TIMES * 32) {
        int experts[TIMES];
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            const int pair = base + i * 32 + lane;
            experts[i] = pair < end ? min(max(a.ids[pair], 0), static_cast<int>(a.experts) - 1) : -1;
        }
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            const int expert = experts[i];
            const uint32_t alike = __match_any_sync(0xffffffffu, expert);
            const int rank = __popc(alike & ((1u << lane) - 1));
            if (expert >= 0) visit(base + i * 32 + lane, expert, rank);
            __syncwarp();
            if (expert >= 0 && rank == 0) behind(expert, __popc(alike));
            __syncwarp();
        }
    }
}

// One thread block. Per warp and expert, counts become the place of the warp's first pair among those of the expert.
extern "C" __global__ void __launch_bounds__(1024, 1) sort_pairs(const __grid_constant__ SortArgs a) {
    enter();
    extern __shared__ int places[];
    const int experts = a.experts, pairs = live_rows(a.live, a.bucket) * a.chosen, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    int *own = places + warp * experts, *total = places + warps * experts, *first = total + experts;
    for (int i = threadIdx.x; i < warps * experts; i += blockDim.x) places[i] = 0;
    __syncthreads();
    each_pair(a, pairs, [](int, int, int) {}, [&](int expert, int count) { own[expert] += count; });
    __syncthreads();
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
        int sum = 0;
        for (int i = 0; i < warps; i++) {
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

// The end of the router's product, the choice of experts by a warp per row, and their sorting, for up to 64 rows. One thread block. Shared memory: the rows of experts, the experts of rows,
// logits, and, for each warp, scores where logits are none.
extern "C" __global__ void __launch_bounds__(1024) route_few(const __grid_constant__ RouteFewArgs a) {
    release_dependents();
    extern __shared__ __align__(16) int memory[];
    const int experts = a.sort.experts, columns = a.route.logits.columns, pitch = (columns + 3) / 4 * 4, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const FewRows rows(memory, experts);
    int* ids = memory + 3 * experts;
    float *logits = reinterpret_cast<float*>(memory + (3 * experts + a.route.logits.bucket * a.route.chosen + 3) / 4 * 4), *score = logits + a.route.logits.bucket * pitch + warp * (experts + a.route.groups);
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
        if (lane < a.route.chosen) rows.add(row, chosen.expert), ids[row * a.route.chosen + lane] = chosen.expert;
    }
    sort_few_pairs(a.sort, rows, live * a.sort.chosen, own, [&](int pair) { return ids[pair]; });
}

// The first results that a row adds up: these are asked for at once.
template <int Most> struct Summands {
    int slot[Most > 0 ? Most : 1];
    float weight[Most > 0 ? Most : 1];
    int count = 0;

    Summands() = default;
    __device__ __forceinline__ Summands(const CombineArgs& a, int row) : count(min(static_cast<int>(a.chosen), Most)) {
        const float* weights = row_of(a.weights, row);
        const int* slots = a.pair_slot + row * a.chosen;
#pragma unroll
        for (int i = 0; i < Most; i++)
            if (i < count) weight[i] = weights[i], slot[i] = slots[i];
    }
};

// The sum of weight * result over the experts of a row, best first, of four columns. Rows of slots lie in fours; past the last column there is nothing.
template <int Most> __device__ __forceinline__ float4 combined(const CombineArgs& a, int row, int column, const Summands<Most>& best) {
    auto result = [&](int slot) { return *reinterpret_cast<const float4*>(row_of(a.results, slot) + column); };
    float4 x[Most > 0 ? Most : 1], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < Most; i++)
        if (i < best.count) x[i] = result(best.slot[i]);
#pragma unroll
    for (int i = 0; i < Most; i++)
        if (i < best.count) sum = each(x[i], sum, [&](float x, float sum) { return __fmaf_rn(best.weight[i], x, sum); });
    const float* weights = row_of(a.weights, row);
    const int *slots = a.pair_slot + row * a.chosen, chosen = a.chosen, left = static_cast<int>(a.results.columns) - column;
#pragma unroll 1
    for (int i = best.count; i < chosen; i++) {
        const float weight = weights[i];
        sum = each(result(slots[i]), sum, [&](float x, float sum) { return __fmaf_rn(weight, x, sum); });
    }
    return left >= 4 ? sum : make_float4(sum.x, left > 1 ? sum.y : 0, left > 2 ? sum.z : 0, 0);
}

// A thread for four columns, blockIdx.x for the row.
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineArgs a) {
    enter();
    const int row = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 4, columns = a.out.columns;
    if (row >= live_rows(a.out) || column >= columns) return;
    store_four(row_of(a.out, row), column, columns, combined(a, row, column, Summands<10>(a, row)));
}

// The same, added to the residual stream, and the norm behind that: a thread block per row. Where the product ahead lets this begin when all that is ahead of that one has ended, everything but
// results is asked for before the wait.
template <int Threads, int Most> __device__ __forceinline__ void combine_add_norm(const CombineNormArgs& a) {
    release_dependents();
    if (!a.early) depend();
    const int row = blockIdx.x, columns = a.norm.residual.columns, own = threadIdx.x * 4;
    const bool live = row < live_rows(a.norm.out), has = live && own < columns;
    float* residual = row_of(a.norm.residual, row);
    const float4 zero = make_float4(0, 0, 0, 0);
    const Summands<Most> best = has ? Summands<Most>(a.experts, row) : Summands<Most>();
    const float4 before = has ? load_four(residual, own, columns) : zero, weight = has ? load_four(a.norm.weight, own, columns) : zero;
    if (a.early) depend();
    if (!live) return;
    auto added = [&](float4 delta, float4 before) { return each(delta, before, [&](float d, float r) { return __fmaf_rn(d, a.norm.scale, r); }); };
    const float4 x = has ? added(combined(a.experts, row, own, best), before) : zero;
    auto first = [&](int c) {
        const float4 sum = c == own ? x : added(combined(a.experts, row, c, Summands<0>()), load_four(residual, c, columns));
        store_four(residual, c, columns, sum);
        return sum;
    };
    norm_columns<Threads, 1>(columns, a.norm.eps, first, [&](int c) { return load_four(residual, c, columns); }, [&](int c, float4 x, float factor) {
        const float4 y = scaled(x, factor, c == own ? weight : load_four(a.norm.weight, c, columns));
        store_result(a.norm.out, row, c, y);
        store_rounded(a.rounded, row, c, y);
    });
}
extern "C" __global__ void __launch_bounds__(256) combine_add_norm_256(const __grid_constant__ CombineNormArgs a) { combine_add_norm<256, 10>(a); }
extern "C" __global__ void __launch_bounds__(512) combine_add_norm_512(const __grid_constant__ CombineNormArgs a) { combine_add_norm<512, 10>(a); }
extern "C" __global__ void __launch_bounds__(768) combine_add_norm_768(const __grid_constant__ CombineNormArgs a) { combine_add_norm<768, 9>(a); }
