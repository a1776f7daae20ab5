// The record on its way to the host, and the clock on the way there.
//
// `publish` is one thread block that writes to memory of the host: the sections one behind the other, words by neighbouring threads, then the header, then, behind a fence for the
// whole system, the mark that the host waits for. Of rows of logits and plan rows only some have a part in the record; they are packed by counting, a thread per row.
#include "args/frame.h"
#include "packing.cuh"
#include "plan.cuh"

// How many of `count` elements are wanted.
template <class Wanted> __device__ int count_wanted(int count, Wanted wanted) {
    int found = 0;
    for (int base = 0; base < count; base += PACKERS) {
        const int index = base + threadIdx.x;
        found += __syncthreads_count(index < count && wanted(index));
    }
    return found;
}
// Writes `words` words of each wanted element to `out`: word `w` of element `i` is `word(i, w)`.
template <class Wanted, class Word> __device__ void pack_wanted(int count, uint32_t words, int32_t* out, Wanted wanted, Word word) {
    __shared__ int list[PACKERS];
    for (int base = 0; base < count; base += PACKERS) {
        const int index = base + threadIdx.x;
        const bool own = index < count && wanted(index);
        Pair all;
        const Pair before = sum_before({own, 0}, all);
        if (own) list[before.tokens] = index;
        __syncthreads();
        const uint32_t total = static_cast<uint32_t>(all.tokens) * words;
        for (uint32_t i = threadIdx.x; i < total; i += PACKERS) out[i] = word(list[i / words], i % words);
        out += total;
        __syncthreads(); // the list is free again
    }
}

__device__ __forceinline__ Wide time_since(uint64_t clock) {
    const uint64_t time = nanoseconds() - clock;
    return {static_cast<uint32_t>(time), static_cast<uint32_t>(time >> 32)};
}

extern "C" __global__ void mark_drafting(const __grid_constant__ MarkArgs a) {
    enter();
    if (threadIdx.x == 0) a.header->drafting = time_since(a.clock);
}

extern "C" __global__ void __launch_bounds__(PACKERS, 1) publish(const __grid_constant__ PublishArgs a) {
    __shared__ RecordHeader header;
    enter();
    const PlanView plan(a.plan);
    const int rows = plan.header->rows, logits = logits_rows(a.step);
    auto asks = [&](int i) { return a.step.logits[i].sampling.logprobs >= 0; };
    auto shows = [&](int i) { return is(plan.rows[i], PlanRow::SHOW_DRAFTS); };
    auto embedded = [&](int i) { return embeds(plan.rows[i]); };
    const uint32_t logprobs = count_wanted(logits, asks), drafts = count_wanted(rows, shows), embeddings = count_wanted(rows, embedded);
    constexpr uint32_t HEADER = sizeof(RecordHeader) / 4, ROW = sizeof(RecordRow) / 4, LOGPROBS = sizeof(Logprobs) / 4, DRAFTS = sizeof(DraftsMade) / 4;
    const uint64_t words = HEADER + static_cast<uint64_t>(rows) * ROW + static_cast<uint64_t>(logprobs) * LOGPROBS + static_cast<uint64_t>(drafts) * DRAFTS + static_cast<uint64_t>(embeddings) * a.width;
    const bool fits = words <= a.rings.record_words && (a.width == 0 || embeddings <= a.vectors);
    const uint64_t step = static_cast<uint64_t>(a.record.header->step.high) << 32 | a.record.header->step.low;
    int32_t* place = a.rings.records + (step - 1) % a.rings.depth * a.rings.record_stride;
    if (fits) {
        int32_t* out = place + HEADER;
        const int32_t* found = reinterpret_cast<const int32_t*>(a.record.rows);
        for (uint32_t i = threadIdx.x; i < rows * ROW; i += PACKERS) out[i] = found[i];
        out += rows * ROW;
        pack_wanted(logits, LOGPROBS, out, asks, [&](int i, uint32_t w) { return reinterpret_cast<const int32_t*>(a.logprobs + i)[w]; });
        out += static_cast<size_t>(logprobs) * LOGPROBS;
        pack_wanted(rows, DRAFTS, out, shows, [&](int i, uint32_t w) {
            const Slot& slot = a.slots.state[plan.rows[i].slot];
            return w == 0 ? slot.draft_count : w == 1 ? slot.source : slot.drafts[w - 2];
        });
        out += static_cast<size_t>(drafts) * DRAFTS;
        const size_t elements = static_cast<size_t>(embeddings) * a.width;
        for (size_t i = threadIdx.x; i < elements; i += PACKERS) out[i] = __float_as_int(a.done[i]);
    }
    if (threadIdx.x == 0) {
        header = *a.record.header;
        const int32_t fault = atomicExch(a.fault, 0);
        if (header.error == 0) header.error = fits ? fault : RecordHeader::BAD_PLAN;
        header.rows = fits ? rows : 0, header.logprobs = fits ? logprobs : 0, header.drafts = fits ? drafts : 0, header.embeddings = fits ? embeddings : 0;
        header.embedding_width = a.width, header.end = time_since(a.clock);
    }
    __syncthreads();
    if (threadIdx.x < HEADER) place[threadIdx.x] = reinterpret_cast<const int32_t*>(&header)[threadIdx.x];
    __threadfence_system(); // what each thread has written is there before the mark is
    __syncthreads();
    // Never 0, and never what the step before it in the same place has left.
    if (threadIdx.x == 0) *reinterpret_cast<volatile int32_t*>(place + a.rings.record_stride - 1) = static_cast<int32_t>(static_cast<uint32_t>(step) << 1 | 1);
}
