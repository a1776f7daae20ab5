// Choosing experts: a warp per row. Scores lie in shared memory; the best one is looked for as often as there are experts to choose, ties to the lower
// expert. Lane `i` looks after experts i, i + 32, ...
#include "args/dense.h"
#include "step.cuh"

constexpr float SUM_EPS = 1e-20f;

// Scores of experts outside of the best groups become minus infinity. A group counts the sum of its two best.
__device__ void keep_groups(float* score, float* strength, int experts, int groups, int kept) {
    const int size = experts / groups;
    for (int group = threadIdx.x; group < groups; group += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (int e = group * size; e < (group + 1) * size; e++) {
            if (score[e] > first) second = first, first = score[e];
            else if (score[e] > second) second = score[e];
        }
        strength[group] = size == 1 ? first : first + second;
    }
    __syncwarp();
    for (int group = threadIdx.x; group < groups; group += 32) {
        int better = 0;
        for (int other = 0; other < groups; other++) better += strength[other] > strength[group] || (strength[other] == strength[group] && other < group);
        if (better >= kept)
            for (int e = group * size; e < (group + 1) * size; e++) score[e] = -INFINITY;
    }
    __syncwarp();
}

// The best expert that is not taken; every lane gets it.
__device__ int best_left(const float* score, int experts, uint64_t taken) {
    constexpr int NONE = 0x7fffffff;
    float best = -INFINITY;
    int at = NONE;
    for (int e = threadIdx.x, place = 0; e < experts; e += 32, place++)
        if (!(taken >> place & 1) && (at == NONE || score[e] > best)) best = score[e], at = e;
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, lane);
        const int there = __shfl_xor_sync(0xffffffffu, at, lane);
        if (there != NONE && (at == NONE || other > best || (other == best && there < at))) best = other, at = there;
    }
    return __shfl_sync(0xffffffffu, at, 0);
}

extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteArgs a) {
    enter();
    extern __shared__ float score[];
    const int row = blockIdx.x, experts = a.logits.columns, chosen = a.chosen;
    if (row >= live_rows(a.logits)) return;
    const float* logits = row_of(a.logits, row);
    float most = -INFINITY, sum = 0;
    for (int e = threadIdx.x; e < experts; e += 32) {
        if (isnan(logits[e])) report(a.fault, RecordHeader::NOT_FINITE);
        most = fmaxf(most, logits[e]);
        score[e] = a.sigmoid ? sigmoid(logits[e]) + a.bias[e] : logits[e];
    }
    most = warp_max(most);
    for (int e = threadIdx.x; e < experts; e += 32) sum += expf(logits[e] - most);
    sum = warp_sum(sum);
    __syncwarp();
    if (a.kept_groups < a.groups) keep_groups(score, score + experts, experts, a.groups, a.kept_groups);
    float *weights = row_of(a.weights, row), total = 0;
    uint64_t taken = 0;
    for (int i = 0; i < chosen; i++) {
        const int best = best_left(score, experts, taken);
        if (best % 32 == threadIdx.x) taken |= 1ull << best / 32;
        const float weight = a.sigmoid ? sigmoid(logits[best]) : expf(logits[best] - most) / sum;
        total += weight;
        if (threadIdx.x == 0) a.ids[row * chosen + i] = best, weights[i] = weight;
    }
    if (threadIdx.x != 0) return;
    if (a.sigmoid) total += SUM_EPS;
    for (int i = 0; i < chosen; i++) {
        if (a.renormalise) weights[i] /= total;
        if (a.sigmoid) weights[i] *= a.scale;
    }
}
