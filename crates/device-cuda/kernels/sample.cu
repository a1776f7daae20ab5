// Chooses a token per row of logits, and reports log-probabilities; see choose.cuh for the rule.
//
// `sample_largest` looks for the largest logits of greedy rows: sixteen thread blocks per row, each of which leaves the best of its part. `sample_together` settles those rows, a warp
// each, and takes the others, a cluster of sixteen thread blocks per row. `sample_alone` does all of it with one thread block per row: for small vocabularies, and where there are
// no clusters of sixteen; it keeps the row in shared memory if it has room there, else in memory of its own. Bytes: the logits once.
#include "choose.cuh"

constexpr int CLUSTER = 16, PARTS = 16, LOOKERS = 256;
static_assert(sizeof(RowMemory<CLUSTER>) == 50048 && sizeof(RowMemory<1>) == 49792, "src/ops/sample.rs asks for as much");

// Whether a row takes the largest logit as it stands, if its options change nothing.
__device__ __forceinline__ bool plain_greedy(const LogitsRow& row) { return row.sampling.logprobs < 0 && row.known == 0 && row.sampling.temperature <= 0; }

extern "C" __global__ void __launch_bounds__(LOOKERS) sample_largest(const __grid_constant__ SampleArgs a) {
    __shared__ uint64_t warps[LOOKERS / 32];
    enter();
    const int row = blockIdx.y, vocabulary = a.logits.columns;
    if (row >= live_rows(a.logits)) return;
    const LogitsRow& asked = a.step.logits[row];
    const bool greedy = plain_greedy(asked);
    if (blockIdx.x == 0 && threadIdx.x == LOOKERS - 1) {
        // Only this thread has to know the options, which takes as long as the logits do: where they change something, the row is read for nothing.
        a.open[row] = !(asked.sampling.logprobs < 0 && asked.known) && !(greedy && !RowOptions(a, asked).any());
        if (asked.known) a.tokens[row] = asked.known - 1;
    }
    if (!greedy) return;
    const float4* from = reinterpret_cast<const float4*>(row_of(a.logits, row));
    const int quads = vocabulary / 4, part = (quads + PARTS - 1) / PARTS, end = min(quads, static_cast<int>(blockIdx.x + 1) * part);
    float top = -INFINITY;
    int id = 0;
    bool numbers = true;
    auto visit = [&](float x, int at) {
        numbers &= x < INFINITY;
        if (x > top) top = x, id = at;
    };
#pragma unroll 8
    for (int q = blockIdx.x * part + threadIdx.x; q < end; q += LOOKERS) {
        const float4 v = from[q];
        visit(v.x, 4 * q), visit(v.y, 4 * q + 1), visit(v.z, 4 * q + 2), visit(v.w, 4 * q + 3);
    }
    if (blockIdx.x == PARTS - 1 && threadIdx.x < vocabulary % 4) visit(reinterpret_cast<const float*>(from + quads)[threadIdx.x], 4 * quads + threadIdx.x);
    uint64_t x = numbers ? checked_rank(top, id) : NOT_A_NUMBER;
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = larger(x, __shfl_xor_sync(~0u, x, mask));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int i = 1; i < LOOKERS / 32; i++) x = larger(x, warps[i]);
    a.parts[row * PARTS + blockIdx.x] = x;
}

#if SM90
// Rows whose largest logit was all that was asked for: the best of its parts. A warp per row.
__device__ void settle_rows(const SampleArgs& a, int live) {
    const int lane = threadIdx.x % 32, warp = (blockIdx.x * THREADS + threadIdx.x) / 32;
    for (int row = warp; row < live; row += gridDim.x * (THREADS / 32)) {
        if (a.open[row] || !plain_greedy(a.step.logits[row])) continue;
        uint64_t x = a.parts[row * PARTS + lane % PARTS];
#pragma unroll
        for (int mask = PARTS / 2; mask; mask >>= 1) x = larger(x, __shfl_xor_sync(~0u, x, mask));
        if (lane != 0) continue;
        a.tokens[row] = is_rank(x) ? id_of(x) : 0;
        if (!is_rank(x)) report(a.fault, RecordHeader::NOT_FINITE);
    }
}
#endif

// The open rows: cluster c of n takes the c-th, the (c + n)-th and so on.
extern "C" __global__ void __launch_bounds__(THREADS, 2) sample_together(const __grid_constant__ SampleArgs a) {
#if SM90
    extern __shared__ __align__(128) char memory[];
    __shared__ int ends[THREADS / 32], opened[THREADS];
    enter();
    auto& shared = *reinterpret_cast<RowMemory<CLUSTER>*>(memory);
    RowWork<CLUSTER> work(a, shared, reinterpret_cast<float4*>(&shared + 1));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, live = live_rows(a.logits);
    int turn = blockIdx.x / CLUSTER; // the number among open rows of the one to take
    for (int base = 0, before = 0; base < live; base += THREADS) {
        const int row = base + threadIdx.x;
        const unsigned open = __ballot_sync(~0u, row < live && a.open[row]);
        if (lane == 0) ends[warp] = __popc(open);
        __syncthreads();
        int own = __popc(open & ((1u << lane) - 1)), count = 0;
        for (int w = 0; w < THREADS / 32; w++) own += w < warp ? ends[w] : 0, count += ends[w];
        if (open >> lane & 1) opened[own] = row;
        __syncthreads();
        for (; turn < before + count; turn += gridDim.x / CLUSTER) {
            work.run(opened[turn - before]);
            work.finish();
        }
        before += count;
        __syncthreads();
    }
    settle_rows(a, live);
    cluster_together(); // nobody leaves while another may reach in
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_alone(const __grid_constant__ SampleArgs a) {
    extern __shared__ __align__(128) char memory[];
    enter();
    auto& shared = *reinterpret_cast<RowMemory<1>*>(memory);
    // Without memory of its own for the row there is room for it behind the rest.
    float4* copy = a.copies ? reinterpret_cast<float4*>(a.copies + static_cast<size_t>(blockIdx.x) * slice_of(a.logits.columns, 1)) : reinterpret_cast<float4*>(&shared + 1);
    RowWork<1> work(a, shared, copy);
    const int live = live_rows(a.logits);
    for (int row = blockIdx.x; row < live; row += gridDim.x) {
        work.run(row);
        work.finish();
    }
}
