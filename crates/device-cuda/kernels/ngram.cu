// Drafts from the slots' own texts: the index of n-grams is brought up to date, and what followed the latest occurrence of the longest known one is proposed.
//
// The order of entries within a bucket depends on the order in which they came, and rows share the index, so the work is one list in one order: for each plan row, the n-grams
// that end at its new positions, shortest first, then a look-up per length. Only what touches the same bucket has to keep that order. One thread block takes 1,024 items of
// the list at a time, a thread each: hashes are made at once, and then, in rounds, every item runs that no earlier one of its bucket is left before. Texts have few
// n-grams twice within 1,024 items, so that there are two or three rounds of a microsecond or so; a text of one token over and over takes a round per item.
#include "args/ngram.h"
#include "packing.cuh"
#include "plan.cuh"

constexpr int WAYS = 8, SAME = 4, PER_STEP = 4096;
constexpr int TURNS = 2048; // places where items of one bucket meet; those of other buckets that meet there only wait

// What a plan row asks for.
struct Row {
    int32_t first;  // item of the list
    uint32_t slot;
    int32_t done, stored; // tokens in the index; tokens in the history: the newest stands behind them, if one was chosen
    unsigned long long found; // length of an n-gram, and one more than the position at which its latest occurrence ends
};

__device__ __forceinline__ uint64_t mix(uint64_t hash, int32_t word) {
    // The constants are 2^64 over the golden ratio, and something that keeps runs of zeros from staying zero.
    const uint64_t product = (hash ^ static_cast<uint32_t>(word) ^ 0xD6E8FEB800000000ull) * 0x9E3779B97F4A7C15ull;
    return product ^ (product >> 32);
}

__device__ __forceinline__ int32_t token_at(const NgramArgs& a, const Row& row, int position) {
    if (position >= row.stored) return a.slots.state[row.slot].newest;
    const int32_t* history = history_at(a.slots, row.slot, position);
    return history ? *history : -1;
}

// The hash of the `length` tokens that end at a position, made from the last one backwards. Requests whose texts have the first block in common find each other's.
__device__ uint64_t hash_of(const NgramArgs& a, const Row& row, int position, int length) {
    uint64_t hash = mix(0, a.slots.block_table[static_cast<size_t>(row.slot) * a.slots.blocks_per_slot]);
    for (int back = 0; back < length; back++) hash = mix(hash, token_at(a, row, position - back));
    return hash;
}

struct alignas(16) Bucket {
    int2 ways[WAYS]; // newest first: a tag, and one more than a position, 0 for none
};

// Makes an entry the newest of its bucket. It takes the place of itself, of nothing, of the oldest of its n-gram if there are many, or of the oldest of all.
__device__ void put_in_front(Bucket& bucket, int2 entry) {
    Bucket old = bucket;
    int same = 0, replaced = WAYS - 1;
    bool found = false;
#pragma unroll
    for (int way = 0; way < WAYS; way++) {
        const int2 other = old.ways[way];
        same += other.x == entry.x;
        if (!found && ((other.x == entry.x && (other.y == entry.y || same == SAME)) || other.y == 0)) replaced = way, found = true;
    }
    Bucket now;
    now.ways[0] = entry;
#pragma unroll
    for (int way = 1; way < WAYS; way++) now.ways[way] = way <= replaced ? old.ways[way - 1] : old.ways[way];
    bucket = now;
}

// One more than the position at which the latest earlier occurrence ends of the `length` tokens that the text ends with; 0 for none.
__device__ int latest(const NgramArgs& a, const Row& row, const Bucket& bucket, int32_t tag, int length) {
    int best = 0;
    for (int way = 0; way < WAYS; way++) {
        const int2 entry = bucket.ways[way];
        // Another text may have got further; a bucket's empty entries are before every text.
        if (entry.x != tag || entry.y < length || entry.y > row.stored || entry.y <= best) continue;
        bool same = true;
        for (int back = 0; same && back < length; back++) same = token_at(a, row, entry.y - 1 - back) == token_at(a, row, row.stored - back);
        if (same) best = entry.y;
    }
    return best;
}

// Most drafts that a plan row wants from the text.
__device__ int wanted(const Slot& slot, const PlanRow& row) {
    if (!chooses(row) || slot.finished != 0) return 0;
    return max(min(min(row.ngram, slot.max_length - slot.length - 1), MAX_DRAFTS), 0);
}

// Items of a plan row.
__device__ int open_row(const NgramArgs& a, const PlanRow& plan, int index, Row& row) {
    const Slot& slot = a.slots.state[plan.slot];
    row = {0, plan.slot, max(slot.indexed, 0), 0, 0};
    if (a.step.requests[index].token_count <= 0 || slot.generation != plan.generation) {
        row.slot = ~0u; // takes no part
        return 0;
    }
    row.stored = max(slot.length - chooses(plan), 0);
    const int lengths = a.max - a.min + 1, positions = min(max(row.stored - row.done, 0), PER_STEP);
    return (positions + (wanted(slot, plan) > 0)) * lengths;
}

// What an item does, and where.
struct Item {
    bool active, enters;
    int length, position;
    uint64_t hash;
};

__device__ Item item_of(const NgramArgs& a, const PlanRow* rows, const Row& row, int index, int number) {
    const int lengths = a.max - a.min + 1, positions = min(max(row.stored - row.done, 0), PER_STEP), offset = number / lengths;
    Item item = {false, offset < positions, a.min + number % lengths, row.done + offset, 0};
    if (item.enters) item.active = item.length <= item.position + 1;
    else {
        // The whole text did not occur before, and a neural drafter is left matches that are too short.
        const PlanRow& plan = rows[index];
        item.position = row.stored, item.active = item.length <= row.stored && (plan.neural <= 0 || item.length >= a.chain_min);
    }
    if (item.active) item.hash = hash_of(a, row, item.position, item.length);
    return item;
}

// Items of the list in its order, as far as it matters.
__device__ void run_items(const NgramArgs& a, const PlanRow* plan, Row* rows, int count, int items) {
    __shared__ uint32_t turns[TURNS];
    for (int base = 0; base < items; base += PACKERS) {
        const int number = base + threadIdx.x;
        int index = 0;
        Item item = {};
        if (number < items) {
            int high = count;
            while (high - index > 1) {
                const int middle = (index + high) / 2;
                if (rows[middle].first <= number) index = middle;
                else high = middle;
            }
            item = item_of(a, plan, rows[index], index, number - rows[index].first);
        }
        const uint64_t place = (item.hash >> 32) * a.buckets >> 32;
        Bucket& bucket = reinterpret_cast<Bucket*>(a.entries)[place];
        const int32_t tag = static_cast<int32_t>(item.hash);
        while (__syncthreads_or(item.active)) {
            for (int i = threadIdx.x; i < TURNS; i += PACKERS) turns[i] = ~0u;
            __syncthreads();
            if (item.active) atomicMin(&turns[place % TURNS], threadIdx.x);
            __syncthreads();
            if (!item.active || turns[place % TURNS] != threadIdx.x) continue;
            item.active = false;
            if (item.enters) put_in_front(bucket, make_int2(tag, item.position + 1));
            else if (const int end = latest(a, rows[index], bucket, tag, item.length))
                atomicMax(&rows[index].found, static_cast<unsigned long long>(item.length) << 32 | static_cast<uint32_t>(end));
        }
    }
    __syncthreads();
}

// What stands in the text behind the occurrence, and past the end of the text the drafts themselves: so they repeat what lies between. A warp per row, a lane per draft.
__device__ void continue_text(const NgramArgs& a, const PlanRow& plan, const Row& row) {
    Slot& slot = a.slots.state[row.slot];
    const int lane = threadIdx.x % 32, most = wanted(slot, plan), start = static_cast<int>(row.found), period = row.stored + 1 - start;
    const int32_t token = lane < most ? token_at(a, row, start + lane % period) : -1;
    const bool ends = token < 0 || lists_of(a.slots, row.slot).stop(token);
    const int count = __ffs(__ballot_sync(~0u, ends)) - 1;
    __syncwarp();
    if (lane < count) slot.drafts[lane] = token;
    if (lane == 0 && count > 0) slot.draft_count = count, slot.source = Slot::FROM_NGRAM;
}

extern "C" __global__ void __launch_bounds__(PACKERS, 1) propose_ngram(const __grid_constant__ NgramArgs a) {
    extern __shared__ Row rows[];
    enter();
    const PlanView plan(a.plan);
    const int count = min(static_cast<int>(plan.header->rows), static_cast<int>(a.step.request_bucket));
    int before = 0;
    for (int base = 0; base < count; base += PACKERS) {
        const int index = base + threadIdx.x;
        Pair all;
        Row row;
        const int own = index < count ? open_row(a, plan.rows[index], index, row) : 0;
        row.first = before + sum_before({own, 0}, all).tokens;
        if (index < count) rows[index] = row;
        before += all.tokens;
    }
    __syncthreads();
    run_items(a, plan.rows, rows, count, before);
    for (int index = threadIdx.x / 32; index < count; index += PACKERS / 32) {
        const Row& row = rows[index];
        if (row.slot == ~0u) continue;
        if (row.found) continue_text(a, plan.rows[index], row);
        if (threadIdx.x % 32 == 0 && row.done < row.stored) a.slots.state[row.slot].indexed = min(row.stored, row.done + PER_STEP);
    }
}
