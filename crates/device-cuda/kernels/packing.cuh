// Packing rows of requests one behind the other, by one thread block: where each one's begin is the sum of those before.
#pragma once
#include "step.cuh"

constexpr int PACKERS = 1024; // threads of a block that packs

struct Pair {
    int32_t tokens, samples;
};

// The sum of `own` over the threads before, and of all. Every thread of a block of PACKERS calls it.
__device__ __forceinline__ Pair sum_before(Pair own, Pair& total) {
    __shared__ Pair warps[PACKERS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Pair sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int32_t tokens = __shfl_up_sync(~0u, sum.tokens, step), samples = __shfl_up_sync(~0u, sum.samples, step);
        if (lane >= step) sum.tokens += tokens, sum.samples += samples;
    }
    __syncthreads(); // whoever called before is done with the words
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    Pair before = {sum.tokens - own.tokens, sum.samples - own.samples};
    total = {0, 0};
    for (int i = 0; i < PACKERS / 32; i++) {
        if (i < warp) before.tokens += warps[i].tokens, before.samples += warps[i].samples;
        total.tokens += warps[i].tokens, total.samples += warps[i].samples;
    }
    return before;
}

// The last of `rows` requests whose first token is not behind `token`: it is the one that has it, since requests without tokens begin where the next one does.
__device__ __forceinline__ int request_of(const Pair* firsts, int rows, int token) {
    int low = 0, high = rows; // first of `low` is not behind, of `high` it is
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (firsts[middle].tokens <= token) low = middle;
        else high = middle;
    }
    return low;
}
