// Choosing the experts of a row by a warp. Scores lie in shared memory; the best one is looked for as often as there are experts to choose, ties to the lower expert. Lane `i` looks after
// experts i, i + 32, ...
#pragma once
#include "args/dense.h"
#include "rank.cuh"
#include "step.cuh"

constexpr float SUM_EPS = 1e-20f;

// Scores of experts outside of the best groups become minus infinity. A group counts the sum of its two best.
__device__ inline void keep_groups(float* score, float* strength, int experts, int groups, int kept) {
    const int size = experts / groups, lane = threadIdx.x % 32;
    for (int group = lane; group < groups; group += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (int e = group * size; e < (group + 1) * size; e++) {
            if (score[e] > first) second = first, first = score[e];
            else if (score[e] > second) second = score[e];
        }
        strength[group] = size == 1 ? first : first + second;
    }
    __syncwarp();
    for (int group = lane; group < groups; group += 32) {
        int better = 0;
        for (int other = 0; other < groups; other++) better += strength[other] > strength[group] || (strength[other] == strength[group] && other < group);
        if (better >= kept)
            for (int e = group * size; e < (group + 1) * size; e++) score[e] = -INFINITY;
    }
    __syncwarp();
}

// The best expert that is not taken; every lane gets it.
__device__ __forceinline__ int best_left(const float* score, int experts, uint64_t taken) {
    uint32_t best = 0;
    int at = experts - 1;
    for (int e = threadIdx.x % 32, place = 0; e < experts; e += 32, place++)
        if (const uint32_t own = ordered(score[e]); !(taken >> place & 1) && own > best) best = own, at = e;
    const uint32_t most = __reduce_max_sync(~0u, best);
    return __reduce_min_sync(~0u, best == most ? at : experts - 1);
}

// The experts of a row and their weights: lane `i` has the `i`-th, and behind them, if there is one, the shared expert, whose gate is the last logit.
struct Chosen {
    int expert;
    float weight;
};

// `score` has room for as many numbers as there are experts and groups; logits may lie there if they are the scores.
__device__ inline Chosen choose_experts(const RouteArgs& a, const float* logits, float* score) {
    const int lane = threadIdx.x % 32, experts = a.logits.columns - a.shared, chosen = a.chosen - a.shared;
    float most = -INFINITY, sum = 0, total = 0;
    for (int e = lane; e < experts; e += 32) {
        const float logit = logits[e];
        if (isnan(logit)) report(a.fault, RecordHeader::NOT_FINITE);
        most = fmaxf(most, logit);
        if (a.sigmoid) score[e] = sigmoid(logit) + a.bias[e];
    }
    most = warp_max(most);
    for (int e = lane; e < experts; e += 32) sum += expf(logits[e] - most);
    sum = warp_sum(sum);
    __syncwarp();
    const float* by = a.sigmoid ? score : logits;
    if (a.sigmoid && a.kept_groups < a.groups) keep_groups(score, score + experts, experts, a.groups, a.kept_groups);
    Chosen own = {experts, 0};
    uint64_t taken = 0;
    for (int i = 0; i < chosen; i++) {
        const int best = best_left(by, experts, taken);
        if (best % 32 == lane) taken |= 1ull << best / 32;
        const float weight = a.sigmoid ? sigmoid(logits[best]) : expf(logits[best] - most) / sum;
        total += weight;
        if (i == lane) own = {best, weight};
    }
    if (a.sigmoid) total += SUM_EPS;
    if (a.renormalise) own.weight /= total;
    if (a.sigmoid) own.weight *= a.scale;
    if (lane == chosen && a.shared) own.weight = sigmoid(logits[experts]);
    return own;
}
__device__ __forceinline__ void store_chosen(const RouteArgs& a, int row, const Chosen& own) {
    const int lane = threadIdx.x % 32, chosen = a.chosen;
    if (lane < chosen) a.ids[row * chosen + lane] = own.expert, row_of(a.weights, row)[lane] = own.weight;
}
