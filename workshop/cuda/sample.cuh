// Chooses a token per row of logits, and reports log-probabilities.
//
//   greedy rows: the largest logit, the lowest id among equals
//   others: among what min-p, top-k and top-p leave, the largest of (logit - max) / temperature - ln(-ln(1 - w)), w = Philox(seed; position, token)
//
// Logits: f32 [row][stride]. Sampling parameters: 7 words per row, as `SamplingRow`. Options (biases, penalties, minimum length, bad words, masks): from the slots, as the
// device crate lays them out. Result: a token per row; where asked, its log-probability and (id, log-probability) of the most likely.
//
// `sample_largest` settles the greedy rows: sixteen thread blocks per row, one atomic maximum each, and the last one writes the token. `sample_choose` takes the others, a cluster
// of sixteen thread blocks per row: the row lives in their shared memory and is read from memory once (twice with penalties). What top-k and top-p leave ends at a
// rank, found digit by digit in histograms. All sums are of integers and all comparisons of ranks, so that no order of threads and no neighbour in the batch can
// change a choice. Bytes: the logits once.
#pragma once
#include "options.cuh"
#include "paceline.cuh"
#include "philox.cuh"
#include "rank.cuh"

constexpr int CLUSTER = 16, THREADS = 512, PARTS = 16; // two thread blocks per SM
constexpr int DIGIT = 11, BINS = 1 << DIGIT;
constexpr float STEPS = 64; // bins of the first histogram per unit of logits
constexpr int MOST_LOGPROBS = 20, SAMPLE_FLOATS = 1 + 2 * MOST_LOGPROBS, SAMPLING_INTS = 7;
constexpr float UNIT = 17592186044416.0f; // 2^44: masses as integers; 2^18 of them fit 64 bits

struct SampleArgs {
    const float* logits;
    const int *live, *positions, *parameters, *known;
    SampleOptions options;
    uint64_t* best;     // per row, zero between steps
    uint32_t* arrived;  // per row, zero between steps
    int* open;          // per row: not settled by `sample_largest`
    int* tokens;
    float* logprobs;
    int* error; // one more than a row whose logits are not numbers
    int vocabulary, stride, pdl;
};

struct Sampling {
    float temperature, top_p, min_p;
    int top_k, logprobs;
    uint2 seed;
    __device__ Sampling(const int* p) {
        temperature = __int_as_float(p[0]), top_p = __int_as_float(p[1]), min_p = __int_as_float(p[3]);
        top_k = p[2], logprobs = p[6], seed = make_uint2(p[4], p[5]);
    }
};

struct alignas(128) SampleMemory {
    uint32_t count[2][BINS], low[2][BINS], high[2][BINS]; // tokens of a bin, and their mass in two words
    uint64_t exchange[2][CLUSTER], warps[32];
    uint64_t bin, before, inside, rank; // what a search has found
    uint64_t list[MOST_LOGPROBS];
    uint32_t listed;
    alignas(128) float4 logits[]; // this thread block's part of the row
};
__host__ __device__ inline int sample_slice(int vocabulary) { return (vocabulary + CLUSTER * 128 - 1) / (CLUSTER * 128) * 128; }
inline int sample_memory(int vocabulary) { return static_cast<int>(sizeof(SampleMemory)) + sample_slice(vocabulary) * 4; }

// A row in the hands of a cluster. Every thread calls every function.
struct RowWork {
    const SampleArgs& a;
    SampleMemory& m;
    const float* from; // the part's logits in memory
    int rank, begin, tokens, quads, side = 0, turn = 0;
    float most = 0, temperature = 1, inverse = 1, floor = -INFINITY;
    uint64_t threshold = 0; // ranks below it take no part

    __device__ RowWork(const SampleArgs& a, SampleMemory& m) : a(a), m(m), rank(cluster_rank()) {
        const int slice = sample_slice(a.vocabulary);
        begin = min(rank * slice, a.vocabulary), tokens = min(slice, a.vocabulary - begin), quads = (tokens + 3) / 4;
        for (int i = threadIdx.x; i < 2 * BINS; i += THREADS) m.count[i / BINS][i % BINS] = m.low[i / BINS][i % BINS] = m.high[i / BINS][i % BINS] = 0;
        if (threadIdx.x == 0) m.listed = 0;
        cluster_together(); // all are there
    }
    __device__ float& logit(int id) { return reinterpret_cast<float*>(m.logits)[id - begin]; }
    __device__ bool mine(int id) const { return id >= begin && id < begin + tokens; }
    // Four tokens at a time: what is done with one need not wait for what was done with the one before.
    template <class Visit> __device__ void each_four(Visit visit) {
        for (int q = threadIdx.x; q < quads; q += THREADS) {
            const float4 x = m.logits[q];
            const float logits[4] = {x.x, x.y, x.z, x.w};
            visit(logits, begin + 4 * q);
        }
    }
    template <class Visit> __device__ void each(Visit visit) {
        each_four([&](const float (&logits)[4], int id) {
#pragma unroll
            for (int j = 0; j < 4; j++) visit(logits[j], id + j);
        });
    }
    // Puts `x` where every thread block finds it under this one's number, once all have met.
    __device__ void tell(uint64_t x) {
        if (threadIdx.x < CLUSTER) store_at(place_of(&m.exchange[side][rank], threadIdx.x), x);
    }
    template <class Join> __device__ uint64_t joined(uint64_t x, Join join) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) x = join(x, __shfl_xor_sync(~0u, x, mask));
        if (lane == 0) m.warps[warp] = x;
        __syncthreads();
        if (warp == 0) {
            x = m.warps[lane % (THREADS / 32)];
#pragma unroll
            for (int mask = THREADS / 64; mask; mask >>= 1) x = join(x, __shfl_xor_sync(~0u, x, mask));
            tell(x);
        }
        cluster_together();
        x = m.exchange[side][0];
#pragma unroll
        for (int i = 1; i < CLUSTER; i++) x = join(x, m.exchange[side][i]);
        side ^= 1; // the next but one comes when everybody has read this one
        return x;
    }
    // The best rank, or what `checked_rank` says of the row. Ids ascend within a thread: the first of equals stays.
    __device__ uint64_t best() {
        float top = -INFINITY;
        int id_of_top = 0;
        bool numbers = true;
        each([&](float logit, int id) {
            numbers &= logit < INFINITY;
            if (logit > top) top = logit, id_of_top = id;
        });
        return joined(numbers ? checked_rank(top, id_of_top) : NOT_A_NUMBER, larger);
    }

    // Asks for the logits as they are in memory. Whoever does must see to it that all are done with the row before.
    __device__ void load(int row) {
        from = a.logits + static_cast<long>(row) * a.stride + begin;
        for (int q = threadIdx.x; q < quads; q += THREADS) copy_async(&m.logits[q], from + 4 * q);
        copies_commit();
    }
    // They are there; past the last token nothing.
    __device__ void wait_for_load() {
        copies_wait<0>();
        __syncthreads();
        if (threadIdx.x < 4 * quads - tokens) (&logit(begin))[tokens + threadIdx.x] = -INFINITY;
        __syncthreads();
    }
    // Bars what a mask does not allow or does not reach.
    __device__ void confine(const int* mask) {
        float* x = &logit(begin);
        for (int i = threadIdx.x; i < tokens; i += THREADS) {
            const int id = begin + i;
            if (id / 32 >= a.options.mask_words || !(mask[id / 32] >> id % 32 & 1)) x[i] = -INFINITY;
        }
        __syncthreads();
    }
    __device__ void change(const RowOptions& o) {
        uint32_t* counts = reinterpret_cast<uint32_t*>(m.logits);
        constexpr uint32_t KNOWN = 1u << 31;
        if (o.penalties()) {
            // Counts take the place of the logits, which are read again.
            for (int i = threadIdx.x; i < 4 * quads; i += THREADS) counts[i] = 0;
            __syncthreads();
            for (int position = threadIdx.x; position < o.length; position += THREADS) {
                const int token = o.token(a.options, position);
                if (!mine(token)) continue;
                if (position >= o.prompt) atomicAdd(&counts[token - begin], 1);
                else atomicOr(&counts[token - begin], KNOWN);
            }
            __syncthreads();
        }
        // A thread per bias, which are fewer; the first of a token sees to all of that token's.
        const int *bias = o.bias_list + 2 * threadIdx.x, token = threadIdx.x < o.biases ? bias[0] : -1;
        float changed = 0;
        bool first = mine(token);
        if (first) {
            changed = from[token - begin];
            for (const int* other = o.bias_list; other < bias; other += 2) first &= *other != token;
            for (const int* other = bias; other < o.bias_list + 2 * o.biases; other += 2)
                if (*other == token) changed = __fadd_rn(changed, __int_as_float(other[1]));
            if (const uint32_t count = o.penalties() ? counts[token - begin] : 0) changed = o.penalised(changed, count & ~KNOWN);
        }
        __syncthreads();
        if (o.penalties()) {
            float* x = &logit(begin);
            for (int i = threadIdx.x; i < 4 * quads; i += THREADS) {
                const uint32_t count = counts[i];
                const float plain = i < tokens ? from[i] : -INFINITY;
                x[i] = count ? o.penalised(plain, count & ~KNOWN) : plain;
            }
            __syncthreads();
        }
        if (first) logit(token) = changed;
        __syncthreads();
        for (int i = threadIdx.x; i < o.stops; i += THREADS)
            if (mine(o.stop_list[i])) logit(o.stop_list[i]) = -INFINITY;
        bar_words(o);
        if (o.mask) confine(o.mask);
    }
    // The last token of a word whose other tokens the text ends with. A warp per word.
    __device__ void bar_words(const RowOptions& o) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int* word = o.word_list;
        for (int i = 0; i < o.words; i++, word += 1 + word[0]) {
            if (i % (THREADS / 32) != warp || word[0] < 1) continue;
            const int before = word[0] - 1, last = word[word[0]];
            bool same = before <= o.length;
            for (int j = lane; same && j < before; j += 32) same = o.token(a.options, o.length - before + j) == word[1 + j];
            if (__all_sync(~0u, same) && lane == 0 && mine(last)) logit(last) = -INFINITY;
        }
        __syncthreads();
    }

    __device__ void scale_by(uint64_t first, float by) { most = logit_of(first), temperature = by, inverse = __frcp_rn(by); }
    // (logit - most) / temperature, rounded as a division is: the remainder of the first guess says which way (P. Markstein, IBM J. Res. Dev. 34, 1990).
    __device__ float scaled(float logit) const {
        const float x = __fsub_rn(logit, most), guess = __fmul_rn(x, inverse);
        return __fmaf_rn(__fmaf_rn(-guess, temperature, x), inverse, guess);
    }
    __device__ bool takes_part(float logit, int id) const { return logit > -INFINITY && scaled(logit) >= floor && (threshold == 0 || ranked(logit, id) >= threshold); }
    __device__ uint64_t mass(float logit) const { return logit > -INFINITY ? __float2ull_rn(expf(scaled(logit)) * UNIT) : 0; }

    // Which bin of the first histogram; those of larger logits are never lower.
    __device__ int step(float logit) const { return BINS - 1 - min(BINS - 1, static_cast<int>((most - logit) * STEPS)); }

    // Adds the bins of all parts and looks for the one in which the sum, from the highest on, reaches `target`, or (Mass) the share of the total that `target` then becomes.
    // Every thread block sees to its own of the bins, four threads each.
    template <bool Mass> __device__ void search(uint64_t& target, float share, uint64_t before) {
        constexpr int Own = BINS / CLUSTER;
        static_assert(4 * Own == THREADS);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, bin = BINS - 1 - rank * Own - static_cast<int>(threadIdx.x) / 4;
        uint64_t weight = 0, count = 0, total = 0;
        if (threadIdx.x == 0) m.inside = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER / 4; i++) {
            const int part = lane % 4 * (CLUSTER / 4) + i;
            count += load_at(place_of(&m.count[turn][bin], part));
            if (Mass) weight += load_at(place_of(&m.low[turn][bin], part)) + (static_cast<uint64_t>(load_at(place_of(&m.high[turn][bin], part))) << 32);
        }
#pragma unroll
        for (int mask = 2; mask; mask >>= 1) count += __shfl_xor_sync(~0u, count, mask), weight += __shfl_xor_sync(~0u, weight, mask);
        if (!Mass) weight = count;
        uint64_t sum = weight;
#pragma unroll
        for (int step = 4; step < 32; step <<= 1) {
            const uint64_t other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) m.warps[warp] = sum;
        __syncthreads();
        uint64_t ahead = before + sum - weight;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) ahead += w < warp ? m.warps[w] : 0, total += m.warps[w];
        tell(total);
        cluster_together();
        total = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) ahead += i < rank ? m.exchange[side][i] : 0, total += m.exchange[side][i];
        side ^= 1;
        if (Mass && target == 0) target = larger(1, __double2ull_ru(static_cast<double>(share) * static_cast<double>(total)));
        if (lane % 4 == 0 && ahead < target && ahead + weight >= target)
            for (int part = 0; part < CLUSTER; part++) store_at(place_of(&m.bin, part), bin), store_at(place_of(&m.before, part), ahead), store_at(place_of(&m.inside, part), larger(1, count));
        cluster_together();
    }
    // The lowest rank such that the tokens from it on are `target` many, or (Mass) have `share` of the mass of all that take part; 0 if there are fewer. First a histogram in
    // equal steps below the largest logit, then, of the tokens of the step that was found, digit by digit of their ranks, most significant first.
    template <bool Mass> __device__ uint64_t select(uint64_t target, float share) {
        uint64_t base = 0, before = 0;
        int found = -1, shift = 0; // the step; of the digit
        uint64_t digits = BINS;
        // Calls `use(bin, logit, id)` for the tokens that the histogram is about; in all but the first they are few.
        auto each_binned = [&](auto use) {
            each_four([&](const float (&logits)[4], int id) {
                int steps[4];
#pragma unroll
                for (int j = 0; j < 4; j++) steps[j] = logits[j] > -INFINITY ? step(logits[j]) : -2;
                if (found >= 0 && steps[0] != found && steps[1] != found && steps[2] != found && steps[3] != found) return;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint64_t digit = found < 0 ? steps[j] : (ranked(logits[j], id + j) - base) >> shift;
                    if (steps[j] >= 0 && (found < 0 || (steps[j] == found && digit < digits))) use(static_cast<int>(digit), logits[j], id + j);
                }
            });
        };
        while (true) {
            each_binned([&](int bin, float logit, int id) {
                if constexpr (Mass) {
                    const uint64_t x = takes_part(logit, id) ? mass(logit) : 0;
                    if (x == 0) return;
                    const uint32_t low = static_cast<uint32_t>(x), old = atomicAdd(&m.low[turn][bin], low), high = static_cast<uint32_t>(x >> 32) + (old + low < old);
                    if (high) atomicAdd(&m.high[turn][bin], high);
                    if (found < 0) return; // whether a token is alone in its step is not asked
                }
                atomicAdd(&m.count[turn][bin], 1);
            });
            cluster_together();
            search<Mass>(target, share, before);
            const uint64_t inside = m.inside, bin = m.bin;
            before = m.before;
            // The other histograms were read before the last meeting but one.
            turn ^= 1;
            for (int i = threadIdx.x; i < BINS; i += THREADS) m.count[turn][i] = m.low[turn][i] = m.high[turn][i] = 0;
            __syncthreads();
            if (inside == 0) return 0;
            if (found < 0) {
                // Ranks that may fall into the step, with room for rounding at both ends.
                found = static_cast<int>(bin);
                const float depth = (BINS - 1 - found) / STEPS, room = (fabsf(most) + BINS / STEPS) * 0x1p-20f;
                const uint32_t lowest = found == 0 ? 0 : ordered(most - depth - 1 / STEPS - room), highest = ordered(most - depth + room);
                base = static_cast<uint64_t>(lowest) << ID_BITS, shift = max(0, 64 - __clzll(static_cast<uint64_t>(highest - lowest + 1) << ID_BITS) - DIGIT);
            } else {
                base += bin << shift;
                if (inside == 1 || shift == 0) break;
                digits = 1ull << min(shift, DIGIT), shift = max(0, shift - DIGIT);
            }
        }
        // One token is left.
        each_binned([&](int bin, float logit, int id) {
            if (bin != 0 || (Mass && (!takes_part(logit, id) || mass(logit) == 0))) return;
            for (int part = 0; part < CLUSTER; part++) store_at(place_of(&m.rank, part), ranked(logit, id));
        });
        cluster_together();
        return m.rank;
    }

    // The largest of score and noise. `first` always takes part; its score is a bound for the others: -ln(-ln(1 - w)) <= -ln(w).
    __device__ int draw(uint64_t first, uint32_t position, uint2 seed) {
        constexpr float MARGIN = 0.01f, SMALLEST = 0x1p-33f; // covers rounding of the bound; the smallest w
        const int opening = id_of(first);
        const uint4 own = random_bits(position, opening / 4, seed);
        float bound = gumbel(uniform(opening % 4 == 0 ? own.x : opening % 4 == 1 ? own.y : opening % 4 == 2 ? own.z : own.w));
        uint64_t won = ranked(bound, opening);
        for (int q = threadIdx.x; q < quads; q += THREADS) {
            const float4 x = m.logits[q];
            const float logits[4] = {x.x, x.y, x.z, x.w};
            float limits[4];
            bool possible = false;
#pragma unroll
            for (int j = 0; j < 4; j++) limits[j] = __expf(fmaf(logits[j] - most, inverse, MARGIN - bound)), possible |= limits[j] >= SMALLEST;
            if (!possible) continue;
            const uint4 bits = random_bits(position, (begin + 4 * q) / 4, seed);
            const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float w = uniform(words[j]);
                const int id = begin + 4 * q + j;
                if (w > limits[j] || !takes_part(logits[j], id)) continue;
                const float score = __fadd_rn(scaled(logits[j]), gumbel(w));
                won = larger(won, ranked(score, id)), bound = fmaxf(bound, score);
            }
        }
        return id_of(joined(won, larger));
    }

    // ln of the sum of exponents, and the `wanted` most likely, before anything has changed the logits.
    __device__ float report(uint64_t first, int wanted, float* out) {
        uint64_t sum = 0;
        scale_by(first, 1);
        each([&](float logit, int) { sum += mass(logit); });
        sum = joined(sum, [](uint64_t x, uint64_t y) { return x + y; });
        const float total = __fadd_rn(most, logf(static_cast<float>(sum) * (1 / UNIT)));
        if (wanted == 0) return total;
        const uint64_t last = select<false>(wanted, 0);
        each([&](float logit, int id) {
            if (!(logit > -INFINITY) || ranked(logit, id) < last) return;
            store_at(place_of(&m.list[add_at(place_of(&m.listed, 0), 1)], 0), ranked(logit, id));
        });
        cluster_together();
        if (rank == 0 && threadIdx.x < wanted) {
            const int i = threadIdx.x, count = m.listed;
            int place = i;
            if (i < count) {
                place = 0;
                for (int j = 0; j < count; j++) place += m.list[j] > m.list[i];
            }
            out[1 + 2 * place] = __int_as_float(i < count ? id_of(m.list[i]) : -1), out[2 + 2 * place] = i < count ? __fsub_rn(logit_of(m.list[i]), total) : -INFINITY;
        }
        return total;
    }

    __device__ int choose(uint64_t first, uint32_t position, const Sampling& p) {
        if (p.temperature <= 0) return id_of(first);
        scale_by(first, p.temperature), floor = logf(fmaxf(p.min_p, 0));
        threshold = p.top_k > 0 && p.top_k < a.vocabulary ? select<false>(p.top_k, 0) : 0;
        if (p.top_p < 1) threshold = larger(threshold, select<true>(0, p.top_p));
        return draw(first, position, p.seed);
    }
};

__global__ void __launch_bounds__(256) sample_largest(SampleArgs a) {
    __shared__ uint64_t warps[8];
    if (a.pdl) release_dependents(), depend();
    const int row = blockIdx.y;
    if (row >= *a.live) return;
    const Sampling p(a.parameters + row * SAMPLING_INTS);
    const int known = a.known[row];
    const bool greedy = p.logprobs < 0 && !known && p.temperature <= 0;
    if (blockIdx.x == 0 && threadIdx.x == 255) {
        // Only this thread has to know the options, which takes as long as the logits do: where they change something, the row is read for nothing.
        a.open[row] = !(p.logprobs < 0 && known) && !(greedy && !RowOptions(a.options, row, a.positions[row]).any());
        if (known) a.tokens[row] = known - 1;
    }
    if (!greedy) return;
    const float4* from = reinterpret_cast<const float4*>(a.logits + static_cast<long>(row) * a.stride);
    const int quads = a.vocabulary / 4, part = (quads + PARTS - 1) / PARTS, end = min(quads, static_cast<int>(blockIdx.x + 1) * part);
    float top = -INFINITY;
    int id = 0;
    bool numbers = true;
    auto visit = [&](float x, int at) {
        numbers &= x < INFINITY;
        if (x > top) top = x, id = at;
    };
#pragma unroll 8
    for (int q = blockIdx.x * part + threadIdx.x; q < end; q += 256) {
        const float4 v = from[q];
        visit(v.x, 4 * q), visit(v.y, 4 * q + 1), visit(v.z, 4 * q + 2), visit(v.w, 4 * q + 3);
    }
    if (blockIdx.x == PARTS - 1 && threadIdx.x < a.vocabulary % 4) visit(reinterpret_cast<const float*>(from + quads)[threadIdx.x], 4 * quads + threadIdx.x);
    uint64_t x = numbers ? checked_rank(top, id) : NOT_A_NUMBER;
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = larger(x, __shfl_xor_sync(~0u, x, mask));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < 8; i++) x = larger(x, warps[i]);
    auto* best = reinterpret_cast<unsigned long long*>(a.best + row);
    atomicMax(best, x);
    __threadfence();
    if (atomicInc(a.arrived + row, PARTS - 1) < PARTS - 1) return;
    // The last one: both words are zero again behind it.
    x = atomicExch(best, 0);
    const bool numeric = x != 0 && x != NOT_A_NUMBER;
    a.tokens[row] = numeric ? id_of(x) : -1;
    if (!numeric) atomicMax(a.error, row + 1);
}

// One row, from its logits to its token.
__device__ void sample_row(RowWork& work, int row) {
    const SampleArgs& a = work.a;
    work.load(row);
    const int position = a.positions[row], known = a.known[row];
    const Sampling p(a.parameters + row * SAMPLING_INTS);
    const RowOptions options(a.options, row, position);
    work.wait_for_load();
    const uint64_t best = work.best();
    const bool numeric = best != 0 && best != NOT_A_NUMBER, speaks = work.rank == 0 && threadIdx.x == 0;
    float* out = a.logprobs + static_cast<long>(row) * SAMPLE_FLOATS;
    if (!numeric) {
        if (speaks) a.tokens[row] = -1, atomicMax(a.error, row + 1);
        return;
    }
    const float total = p.logprobs >= 0 ? work.report(best, min(p.logprobs, MOST_LOGPROBS), out) : 0;
    int token = known - 1;
    if (!known) {
        uint64_t first = best;
        if (options.any()) work.change(options), first = work.best();
        if (first != 0 && first != NOT_A_NUMBER) token = work.choose(first, position, p);
        else {
            // Nothing is allowed, so everything is, but for what a mask says.
            work.load(row), work.wait_for_load();
            if (options.mask) work.confine(options.mask);
            first = work.best();
            token = id_of(first != 0 && first != NOT_A_NUMBER ? first : best);
        }
    }
    if (!speaks) return;
    a.tokens[row] = token;
    if (p.logprobs >= 0) out[0] = __fsub_rn(a.logits[static_cast<long>(row) * a.stride + token], total);
}

// The open rows: cluster c of n takes the c-th, the (c + n)-th and so on.
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2) sample_choose(SampleArgs a) {
    extern __shared__ __align__(128) char memory[];
    __shared__ int ends[THREADS / 32];
    if (a.pdl) release_dependents(), depend();
    RowWork work(a, *reinterpret_cast<SampleMemory*>(memory));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, live = *a.live;
    int turn = blockIdx.x / CLUSTER; // the number among open rows of the one to take
    for (int base = 0, before = 0; base < live; base += THREADS) {
        const int row = base + threadIdx.x;
        const unsigned open = __ballot_sync(~0u, row < live && a.open[row]);
        if (lane == 0) ends[warp] = __popc(open);
        __syncthreads();
        int count = before, own = before;
        for (int w = 0; w < THREADS / 32; w++) own += w < warp ? ends[w] : 0, count += ends[w];
        own += __popc(open & ((1u << lane) - 1));
        for (; turn < count; turn += gridDim.x / CLUSTER) {
            __shared__ int taken;
            if (own == turn && open >> lane & 1) taken = row;
            __syncthreads();
            sample_row(work, taken);
            work.threshold = 0, work.floor = -INFINITY;
            cluster_together(); // all are done with the row
            if (threadIdx.x == 0) work.m.listed = 0;
        }
        before = count;
        __syncthreads();
    }
    cluster_together();
}
