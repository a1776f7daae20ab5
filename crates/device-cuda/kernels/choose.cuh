// A row of logits in the hands of a cluster of thread blocks, or of one: from its options to its choice.
//
//   greedy rows: the largest logit, the lowest id among equals
//   others: among what min-p, top-k and top-p leave, the largest of (logit - max) / temperature - ln(-ln(1 - w)), w = Philox(seed; position, token)
//
// The row lives in the shared memory of the cluster, or, of a thread block alone, in a copy of its own, and is read from the tensor once (twice with penalties). What top-k and
// top-p leave ends at a rank, found digit by digit in histograms. All sums are of integers and all comparisons of ranks, so that no order of threads and no neighbour in the batch
// can change a choice.
#pragma once
#include "options.cuh"
#include "philox.cuh"
#include "rank.cuh"
#include "rows.cuh"

constexpr int THREADS = 512;
constexpr int DIGIT = 11, BINS = 1 << DIGIT;
constexpr float STEPS = 64; // bins of the first histogram per unit of logits
constexpr float UNIT = 17592186044416.0f; // 2^44: masses as integers; 2^20 of them fit 64 bits

template <int Cluster> struct alignas(128) RowMemory {
    uint32_t count[2][BINS], low[2][BINS], high[2][BINS]; // tokens of a bin, and their mass in two words
    uint64_t exchange[2][Cluster], warps[32];
    uint64_t bin, before, inside, rank; // what a search has found
    uint64_t list[MAX_LOGPROBS];
    uint32_t listed;
    alignas(RowOptions) unsigned char options[sizeof(RowOptions)];
};
// Tokens of a row that one thread block of a cluster has.
__host__ __device__ constexpr int slice_of(int vocabulary, int cluster) { return (vocabulary + cluster * 128 - 1) / (cluster * 128) * 128; }

// Every thread of the cluster calls every function.
template <int Cluster> struct RowWork {
    const SampleArgs& a;
    RowMemory<Cluster>& m;
    float4* const copy; // this thread block's part of the row
    const float* from = nullptr; // the same in the tensor
    int rank = 0, begin, tokens, quads, side = 0, turn = 0;
    float most = 0, temperature = 1, inverse = 1, floor = -INFINITY;
    uint64_t threshold = 0; // ranks below it take no part

    __device__ RowWork(const SampleArgs& a, RowMemory<Cluster>& m, float4* copy) : a(a), m(m), copy(copy) {
        if constexpr (Cluster > 1) rank = cluster_rank();
        const int vocabulary = a.logits.columns, slice = slice_of(vocabulary, Cluster);
        begin = min(rank * slice, vocabulary), tokens = min(slice, vocabulary - begin), quads = (tokens + 3) / 4;
        for (int i = threadIdx.x; i < 2 * BINS; i += THREADS) m.count[i / BINS][i % BINS] = m.low[i / BINS][i % BINS] = m.high[i / BINS][i % BINS] = 0;
        if (threadIdx.x == 0) m.listed = 0;
        together(); // all are there
    }
    __device__ static void together() {
        if constexpr (Cluster > 1) cluster_together();
        else __syncthreads();
    }
    // A word of `part`'s memory, named by the same word of this one's.
    __device__ static void put(uint64_t* word, int part, uint64_t x) {
        if constexpr (Cluster > 1) store_at(place_of(word, part), x);
        else *word = x;
    }
    __device__ static uint32_t get(const uint32_t* word, int part) {
        if constexpr (Cluster > 1) return load_at(place_of(word, part));
        else return *word;
    }
    __device__ float& logit(int id) { return reinterpret_cast<float*>(copy)[id - begin]; }
    __device__ bool mine(int id) const { return id >= begin && id < begin + tokens; }
    // Four tokens at a time: what is done with one need not wait for what was done with the one before.
    template <class Visit> __device__ void each_four(Visit visit) {
#pragma unroll 1 // more would not fit the registers
        for (int q = threadIdx.x; q < quads; q += THREADS) {
            const float4 x = copy[q];
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
        if (threadIdx.x < Cluster) put(&m.exchange[side][rank], threadIdx.x, x);
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
        together();
        x = m.exchange[side][0];
#pragma unroll 4
        for (int i = 1; i < Cluster; i++) x = join(x, m.exchange[side][i]);
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
        from = row_of(a.logits, row) + begin;
        if constexpr (Cluster > 1) {
            for (int q = threadIdx.x; q < quads; q += THREADS) copy_async(&copy[q], from + 4 * q);
            copies_commit();
        } else
            for (int q = threadIdx.x; q < quads; q += THREADS) copy[q] = load_four(from, 4 * q, tokens);
    }
    // They are there; past the last token nothing.
    __device__ void wait_for_load() {
        if constexpr (Cluster > 1) copies_wait<0>();
        __syncthreads();
        if (threadIdx.x < 4 * quads - tokens) (&logit(begin))[tokens + threadIdx.x] = -INFINITY;
        __syncthreads();
    }
    // Bars what a mask does not allow or does not reach.
    __device__ void confine(const RowOptions& o) {
        float* x = &logit(begin);
        for (int i = threadIdx.x; i < tokens; i += THREADS)
            if (!o.allowed(begin + i)) x[i] = -INFINITY;
        __syncthreads();
    }
    __device__ void change(const RowOptions& o) {
        uint32_t* counts = reinterpret_cast<uint32_t*>(copy);
        constexpr uint32_t KNOWN = 1u << 31;
        if (o.penalties()) {
            // Counts take the place of the logits, which are read again.
            for (int i = threadIdx.x; i < 4 * quads; i += THREADS) counts[i] = 0;
            __syncthreads();
            for (int position = threadIdx.x; position < o.length; position += THREADS) {
                const int token = o.token(a.slots, position);
                if (!mine(token)) continue;
                if (position >= o.prompt) atomicAdd(&counts[token - begin], 1);
                else atomicOr(&counts[token - begin], KNOWN);
            }
            __syncthreads();
        }
        // A thread per bias, which are fewer; the first of a token sees to all of that token's.
        const int32_t *bias = o.biases + 2 * threadIdx.x, *end = o.biases + 2 * o.bias_count;
        const int token = bias < end ? bias[0] : -1;
        float changed = 0;
        bool first = mine(token);
        if (first) {
            changed = from[token - begin];
            for (const int32_t* other = o.biases; other < bias; other += 2) first &= *other != token;
            for (const int32_t* other = bias; other < end; other += 2)
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
        for (int i = threadIdx.x; i < o.stop_count; i += THREADS)
            if (mine(o.stops[i])) logit(o.stops[i]) = -INFINITY;
        bar_words(o);
        if (o.mask) confine(o);
    }
    // The last token of a word whose other tokens the text ends with. A warp per word.
    __device__ void bar_words(const RowOptions& o) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int32_t* word = o.words;
        for (int i = 0; i < o.word_count && word < o.lists_end; i++, word += 1 + max(word[0], 0)) {
            if (i % (THREADS / 32) != warp || word[0] < 1 || word[0] >= o.lists_end - word) continue;
            const int before = word[0] - 1, last = word[word[0]];
            bool same = before <= o.length;
            for (int j = lane; same && j < before; j += 32) same = o.token(a.slots, o.length - before + j) == word[1 + j];
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
    // Every thread block of a cluster sees to its own of the bins, four threads each; one alone to all of them, four per thread.
    template <bool Mass> __device__ void search(uint64_t& target, float share, uint64_t before) {
        constexpr int Own = BINS / Cluster, Team = Cluster > 1 ? 4 : 1, Each = Own * Team / THREADS;
        static_assert(Each * THREADS == Own * Team && (Team == 1 || Each == 1) && Cluster % Team == 0);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, highest = BINS - 1 - rank * Own - static_cast<int>(threadIdx.x) / Team * Each;
        uint64_t weights[Each] = {}, counts[Each] = {}, weight = 0, total = 0;
        if (threadIdx.x == 0) m.inside = 0;
#pragma unroll
        for (int b = 0; b < Each; b++) {
#pragma unroll
            for (int i = 0; i < Cluster / Team; i++) {
                const int part = lane % Team * (Cluster / Team) + i;
                counts[b] += get(&m.count[turn][highest - b], part);
                if (Mass) weights[b] += get(&m.low[turn][highest - b], part) + (static_cast<uint64_t>(get(&m.high[turn][highest - b], part)) << 32);
            }
#pragma unroll
            for (int mask = Team / 2; mask; mask >>= 1) counts[b] += __shfl_xor_sync(~0u, counts[b], mask), weights[b] += __shfl_xor_sync(~0u, weights[b], mask);
            if (!Mass) weights[b] = counts[b];
            weight += weights[b];
        }
        uint64_t sum = weight;
#pragma unroll
        for (int step = Team; step < 32; step <<= 1) {
            const uint64_t other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == 31) m.warps[warp] = sum;
        __syncthreads();
        uint64_t ahead = before + sum - weight;
#pragma unroll 4
        for (int w = 0; w < THREADS / 32; w++) ahead += w < warp ? m.warps[w] : 0, total += m.warps[w];
        tell(total);
        together();
        total = 0;
#pragma unroll 4
        for (int i = 0; i < Cluster; i++) ahead += i < rank ? m.exchange[side][i] : 0, total += m.exchange[side][i];
        side ^= 1;
        if (Mass && target == 0) target = larger(1, __double2ull_ru(static_cast<double>(share) * static_cast<double>(total)));
#pragma unroll
        for (int b = 0; b < Each; ahead += weights[b], b++)
            if (lane % Team == 0 && ahead < target && ahead + weights[b] >= target)
                for (int part = 0; part < Cluster; part++) put(&m.bin, part, highest - b), put(&m.before, part, ahead), put(&m.inside, part, larger(1, counts[b]));
        together();
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
            together();
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
            for (int part = 0; part < Cluster; part++) put(&m.rank, part, ranked(logit, id));
        });
        together();
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
            const float4 x = copy[q];
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
    __device__ float report_logprobs(uint64_t first, int wanted, Logprobs& out) {
        uint64_t sum = 0;
        scale_by(first, 1);
        each([&](float logit, int) { sum += mass(logit); });
        sum = joined(sum, [](uint64_t x, uint64_t y) { return x + y; });
        const float total = __fadd_rn(most, logf(static_cast<float>(sum) * (1 / UNIT)));
        if (wanted == 0) return total;
        const uint64_t last = select<false>(wanted, 0);
        each([&](float logit, int id) {
            if (!(logit > -INFINITY) || ranked(logit, id) < last) return;
            uint32_t place;
            if constexpr (Cluster > 1) place = add_at(place_of(&m.listed, 0), 1);
            else place = atomicAdd(&m.listed, 1);
            put(&m.list[place], 0, ranked(logit, id));
        });
        together();
        if (rank == 0 && threadIdx.x < wanted) {
            const int i = threadIdx.x, count = m.listed;
            int place = i;
            if (i < count) {
                place = 0;
                for (int j = 0; j < count; j++) place += m.list[j] > m.list[i];
            }
            out.top[place] = {i < count ? id_of(m.list[i]) : -1, i < count ? __fsub_rn(logit_of(m.list[i]), total) : -INFINITY};
        }
        return total;
    }

    __device__ int choose(uint64_t first, uint32_t position, const SamplingRow& p) {
        if (p.temperature <= 0) return id_of(first);
        scale_by(first, p.temperature), floor = logf(fmaxf(p.min_p, 0));
        threshold = p.top_k > 0 && p.top_k < a.logits.columns ? select<false>(p.top_k, 0) : 0;
        if (p.top_p < 1) threshold = larger(threshold, select<true>(0, p.top_p));
        return draw(first, position, make_uint2(p.seed.low, p.seed.high));
    }

    // From a row's logits to its token.
    __device__ void run(int row) {
        load(row);
        const LogitsRow& asked = a.step.logits[row];
        const SamplingRow& p = asked.sampling;
        const RowOptions& options = *reinterpret_cast<const RowOptions*>(m.options);
        if (threadIdx.x == 0) *reinterpret_cast<RowOptions*>(m.options) = RowOptions(a, asked);
        wait_for_load();
        const uint64_t most_likely = best();
        const bool speaks = rank == 0 && threadIdx.x == 0;
        int token = asked.known - 1;
        if (!is_rank(most_likely)) {
            if (speaks) report(a.fault, RecordHeader::NOT_FINITE), a.tokens[row] = 0;
            return;
        }
        const float total = p.logprobs >= 0 ? report_logprobs(most_likely, min(p.logprobs, MAX_LOGPROBS), a.logprobs[row]) : 0;
        if (!asked.known) {
            uint64_t first = most_likely;
            if (options.any()) change(options), first = best();
            if (is_rank(first)) token = choose(first, asked.position, p);
            else {
                // Nothing is allowed, so everything is, but for what a mask says.
                load(row), wait_for_load();
                if (options.mask) confine(options);
                first = best();
                token = id_of(is_rank(first) ? first : most_likely);
            }
        }
        if (!speaks) return;
        a.tokens[row] = token;
        if (p.logprobs < 0) return;
        if (static_cast<uint32_t>(token) < a.logits.columns) a.logprobs[row].chosen = __fsub_rn(row_of(a.logits, row)[token], total);
        else report(a.fault, RecordHeader::BAD_TOKEN);
    }
    // All are done with the row.
    __device__ void finish() {
        threshold = 0, floor = -INFINITY;
        together();
        if (threadIdx.x == 0) m.listed = 0;
    }
};
