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

// The best of the lanes' best; every lane gets it, lower experts first among equals.
__device__ __forceinline__ int best_of_all(uint32_t best, int at) {
    const uint32_t most = __reduce_max_sync(~0u, best);
    return __reduce_min_sync(~0u, best == most ? at : 0x7fffffff);
}

// Experts best first: lane `i` gets the `i`-th of `chosen`. Scores as numbers in the same order are in registers if a lane has no more than `Places` of them.
template <int Places> __device__ __forceinline__ int best_in_order(const float* score, int experts, int chosen) {
    const int lane = threadIdx.x % 32;
    uint32_t keys[Places];
    int mine = experts - 1;
#pragma unroll
    for (int place = 0; place < Places; place++) keys[place] = lane + place * 32 < experts ? ordered(score[lane + place * 32]) : 0;
    for (int i = 0; i < chosen; i++) {
        uint32_t best = keys[0];
        int at = 0;
#pragma unroll
        for (int place = 1; place < Places; place++)
            if (keys[place] > best) best = keys[place], at = place;
        const int expert = min(best_of_all(best, lane + at * 32), experts - 1);
#pragma unroll
        for (int place = 0; place < Places; place++)
            if (lane + place * 32 == expert) keys[place] = 0;
        if (i == lane) mine = expert;
    }
    return mine;
}
__device__ inline int best_in_order_of_many(const float* score, int experts, int chosen) {
    const int lane = threadIdx.x % 32;
    uint64_t taken = 0;
    int mine = experts - 1;
    for (int i = 0; i < chosen; i++) {
        uint32_t best = 0;
        int at = experts - 1;
        for (int e = lane, place = 0; e < experts; e += 32, place++)
            if (const uint32_t own = ordered(score[e]); !(taken >> place & 1) && own > best) best = own, at = e;
        const int expert = best_of_all(best, at);
        if (expert % 32 == lane) taken |= 1ull << expert / 32;
        if (i == lane) mine = expert;
    }
    return mine;
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
    const int best = experts <= 256 ? best_in_order<8>(by, experts, chosen) : experts <= 512 ? best_in_order<16>(by, experts, chosen) : best_in_order_of_many(by, experts, chosen);
    Chosen own = {lane < chosen ? best : experts, a.sigmoid ? sigmoid(logits[best]) : expf(logits[best] - most) / sum};
    for (int i = 0; i < chosen; i++) total += __shfl_sync(~0u, own.weight, i);
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
