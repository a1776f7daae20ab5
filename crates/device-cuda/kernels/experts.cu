// Experts of a mixture: which rows go to which expert, and what they add up to.
//
// The (row, expert) pairs of a step are sorted by expert, rows in order within each, into strips of `height` slots that belong to one expert; the rest of
// an expert's last strip is empty. Products then work strip by strip. A pair's result does not depend on its slot.
#include "args/experts.h"
#include "rows.cuh"

constexpr int WARPS = 16;

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
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
        const int strips = (total[expert] + a.height - 1) / a.height;
        for (int i = 0; i < strips; i++) a.strip_expert[first[expert] + i] = expert;
        for (int slot = first[expert] * a.height + total[expert]; slot < (first[expert] + strips) * a.height; slot++) a.slot_row[slot] = -1;
    }
    each_pair(a, pairs, [&](int pair, int expert, int rank) {
        const int slot = first[expert] * a.height + own[expert] + rank;
        a.slot_row[slot] = pair / a.chosen, a.pair_slot[pair] = slot;
    }, [&](int expert, int count) { own[expert] += count; });
}

// out[row] = sum of weight * result over the row's experts, best first. A thread for four columns, blockIdx.x for the row.
extern "C" __global__ void combine(const __grid_constant__ CombineArgs a) {
    enter();
    const int row = blockIdx.x, column = (blockIdx.y * blockDim.x + threadIdx.x) * 4, columns = a.out.columns;
    if (row >= live_rows(a.out) || column >= columns) return;
    const float* weights = row_of(a.weights, row);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = 0; i < a.chosen; i++) {
        const float weight = weights[i];
        const float4 x = load_four(row_of(a.results, a.pair_slot[row * a.chosen + i]), column, columns);
        sum = each(x, sum, [&](float x, float sum) { return __fmaf_rn(weight, x, sum); });
    }
    store_four(row_of(a.out, row), column, columns, sum);
}
