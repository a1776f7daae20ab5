// Chooses a token per row of logits, and reports log-probabilities; see choose.cuh for the rule.
//
// `sample_largest` looks for the largest logits of greedy rows: sixteen thread blocks per row, each of which leaves the best of its part. `sample_together` settles those rows, a warp
// each, and takes the others, a cluster of sixteen thread blocks per row. `sample_alone` does all of it with one thread block per row: for small vocabularies, and where there are
// no clusters of sixteen; it keeps the row in shared memory if it has room there, else in memory of its own. Bytes: the logits once.
//
// Where the product ahead was left in pieces, `sample_largest` adds them up as it looks, and logits are written for the rows that need them, by `finish_open`, and for no others.
#include "choose.cuh"
#include "pieces.cuh"

constexpr int CLUSTER = 16, PARTS = 16, LOOKERS = 256;
static_assert(sizeof(RowMemory<CLUSTER>) == 50048 && sizeof(RowMemory<1>) == 49792, "src/ops/sample.rs asks for as much");

// Whether a row takes the largest logit as it stands, if its options change nothing.
__device__ __forceinline__ bool plain_greedy(const LogitsRow& row) { return row.sampling.logprobs < 0 && row.known == 0 && row.sampling.temperature <= 0; }

// The largest logit of those that a thread has seen, the first of them.
struct Largest {
    float top = -INFINITY;
    int id = 0;
    bool numbers = true;
    __device__ __forceinline__ void visit(float x, int at) {
        numbers &= x < INFINITY;
        if (x > top) top = x, id = at;
    }
    __device__ __forceinline__ void visit_four(float4 v, int at) { visit(v.x, at), visit(v.y, at + 1), visit(v.z, at + 2), visit(v.w, at + 3); }
};
// A part of a row for a thread block, a thread every LOOKERS-th four of it.
__device__ __forceinline__ void look_at_logits(Largest& largest, const SampleArgs& a, int row) {
    const float4* from = reinterpret_cast<const float4*>(row_of(a.logits, row));
    const int vocabulary = a.logits.columns, quads = vocabulary / 4, part = (quads + PARTS - 1) / PARTS, end = min(quads, static_cast<int>(blockIdx.x + 1) * part);
#pragma unroll 8
    for (int q = blockIdx.x * part + threadIdx.x; q < end; q += LOOKERS) largest.visit_four(from[q], 4 * q);
    if (blockIdx.x == PARTS - 1 && threadIdx.x < vocabulary % 4) largest.visit(reinterpret_cast<const float*>(from + quads)[threadIdx.x], 4 * quads + threadIdx.x);
}
// Every so many tiles for a warp, in ascending order. The first pieces of some tiles are asked for together; few tiles have others.
__device__ __forceinline__ void look_at_pieces(Largest& largest, const SampleArgs& a, int row) {
    constexpr int Together = 8, Step = PARTS * (LOOKERS / 32);
    const int tiles = a.product.sums.plan.tiles, vocabulary = a.logits.columns, lane = threadIdx.x % 32;
    for (int first = blockIdx.x * (LOOKERS / 32) + threadIdx.x / 32; first < tiles; first += Together * Step) {
        float4 sum[Together];
#pragma unroll
        for (int i = 0; i < Together; i++) {
            const int tile = min(first + i * Step, tiles - 1);
            sum[i] = *reinterpret_cast<const float4*>(a.product.sums.data + (piece_place(a.product.sums.plan, tile, 0) * a.product.sums.width + row) * TILE + lane * 4);
        }
#pragma unroll
        for (int i = 0; i < Together; i++) {
            const int tile = first + i * Step, at = tile * TILE + lane * 4;
            if (tile >= tiles) break;
            const Pieces pieces(a.product.sums, row, at);
            for (int piece = 1; piece < pieces.count; piece++) sum[i] = each(sum[i], *reinterpret_cast<const float4*>(pieces.at + piece * pieces.step), [](float a, float b) { return __fadd_rn(a, b); });
            const float4 v = with_epilogue(a.product, sum[i], at);
            if (at + 4 <= vocabulary) {
                largest.visit_four(v, at);
            } else {
                const float rest[3] = {v.x, v.y, v.z};
#pragma unroll
                for (int j = 0; j < 3; j++)
                    if (at + j < vocabulary) largest.visit(rest[j], at + j);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(LOOKERS) sample_largest(const __grid_constant__ SampleArgs a) {
    __shared__ uint64_t warps[LOOKERS / 32];
    enter();
    const int row = blockIdx.y;
    if (row >= live_rows(a.logits)) return;
    const LogitsRow& asked = a.step.logits[row];
    const bool greedy = plain_greedy(asked);
    if (blockIdx.x == 0 && threadIdx.x == LOOKERS - 1) {
        // Only this thread has to know the options, which takes as long as the logits do: where they change something, the row is read for nothing.
        a.open[row] = !(asked.sampling.logprobs < 0 && asked.known) && !(greedy && !RowOptions(a, asked).any());
        if (asked.known) a.tokens[row] = asked.known - 1;
    }
    if (!greedy) return;
    Largest largest;
    if (a.product.sums.data) look_at_pieces(largest, a, row);
    else look_at_logits(largest, a, row);
    uint64_t x = largest.numbers ? checked_rank(largest.top, largest.id) : NOT_A_NUMBER;
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = larger(x, __shfl_xor_sync(~0u, x, mask));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int i = 1; i < LOOKERS / 32; i++) x = larger(x, warps[i]);
    a.parts[row * PARTS + blockIdx.x] = x;
}

// Logits of the open rows, from their pieces. A warp has a tile of a row at a time.
extern "C" __global__ void __launch_bounds__(LOOKERS) finish_open(const __grid_constant__ SampleArgs a) {
    enter();
    const int tiles = a.product.sums.plan.tiles, live = live_rows(a.logits), lane = threadIdx.x % 32, vocabulary = a.logits.columns;
    for (int base = 0; base < live; base += 32) {
        for (unsigned open = __ballot_sync(~0u, base + lane < live && a.open[base + lane]); open; open &= open - 1) {
            const int row = base + __ffs(open) - 1;
            for (int tile = blockIdx.x * (LOOKERS / 32) + threadIdx.x / 32; tile < tiles; tile += gridDim.x * (LOOKERS / 32)) {
                const int at = tile * TILE + lane * 4;
                const float4 v = with_epilogue(a.product, Pieces(a.product.sums, row, at).four(), at);
                if (at < vocabulary) store_four(row_of(a.logits, row), at, vocabulary, v);
            }
        }
    }
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
