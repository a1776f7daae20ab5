// A step begins: its plan comes over from the host's memory, and becomes changes of slots and the tables of the step.
//
// `take_plan` copies: one thread block, sixteen bytes per thread and load, four loads in flight. More thread blocks would be slower: each would read the header, and reads of one
// address of the host's memory come one after the other, a microsecond each. The place in the ring follows from the number of steps begun, which `lay_out_step` counts behind it.
// A header that is not the step's, or of more words than there are, is not copied but replaced by an empty one.
//
// `lay_out_step` is one thread block. It first looks at everything that the plan names, and a plan with anything wrong in it becomes an empty one: no part of it is
// applied. Then a warp per admission, a thread per block update, a thread per plan row, whose sums say where its rows begin, and a thread per token. A slot that is admitted
// twice, or an entry of a block table that is set twice, is as the last one says; plan rows are told apart by the plan, which has one per slot.
#include "args/frame.h"
#include "packing.cuh"
#include "plan.cuh"

constexpr int COPIERS = 1024;

// What is wrong with a plan by its header: 0 for nothing. `words`: of the whole plan.
__device__ int32_t fault_of(const PlanHeader& h, uint64_t number, const PrepareArgs& a, uint64_t& words) {
    const uint64_t mask_words = static_cast<uint64_t>(h.masks) * h.mask_words;
    words = sizeof(PlanHeader) / 4 + static_cast<uint64_t>(h.admissions) * (sizeof(AdmissionWords) / 4) + static_cast<uint64_t>(h.block_updates) * (sizeof(BlockUpdate) / 4) +
            static_cast<uint64_t>(h.rows) * (sizeof(PlanRow) / 4) + h.tokens + h.list_words + mask_words;
    if (mask_words > 0xffffffffu || words > a.rings.plan_words) return RecordHeader::BAD_PLAN;
    if ((static_cast<uint64_t>(h.step.high) << 32 | h.step.low) != number) return RecordHeader::WRONG_STEP;
    return words > a.room || h.rows > a.step.request_bucket || h.rows > a.record.row_count ? RecordHeader::BAD_PLAN : 0;
}

__device__ __forceinline__ uint64_t steps_begun(const Rings& rings) { return static_cast<uint64_t>(rings.begun->high) << 32 | rings.begun->low; }
__device__ __forceinline__ Wide wide(uint64_t x) { return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)}; }

extern "C" __global__ void __launch_bounds__(COPIERS) take_plan(const __grid_constant__ PrepareArgs a) {
    constexpr uint32_t HEADER = (sizeof(PlanHeader) + 15) / 16;
    __shared__ int4 head[HEADER];
    const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(head);
    enter();
    const uint64_t time = nanoseconds() - a.clock, begun = steps_begun(a.rings);
    const int32_t* from = a.rings.plans + begun % a.rings.depth * a.rings.plan_stride;
    // A trip over the bus takes longer than anything else here: a short plan comes with its header, whatever that says.
    const uint32_t own = threadIdx.x;
    const bool early = own < a.rings.plan_words / 4;
    int4 ahead = {};
    if (early) ahead = __ldcv(reinterpret_cast<const int4*>(from) + own);
    if (own < HEADER) head[own] = ahead;
    __syncthreads();
    uint64_t words = 0;
    const int32_t error = fault_of(header, begun + 1, a, words);
    if (own == 0) {
        RecordHeader record = {};
        record.step = wide(begun + 1), record.error = error, record.begin = wide(time);
        *a.record.header = record;
    }
    if (error) {
        if (own < sizeof(PlanHeader) / 4) a.plan[own] = 0;
        return;
    }
    // Places are a whole number of sixteen bytes, and so is what buffers are given; what stands behind the plan in the last of them comes along.
    const uint32_t quads = static_cast<uint32_t>((words + 3) / 4);
    if (early && own < quads) reinterpret_cast<int4*>(a.plan)[own] = ahead;
#pragma unroll 4
    for (uint32_t i = own + COPIERS; i < quads; i += COPIERS) reinterpret_cast<int4*>(a.plan)[i] = __ldcv(reinterpret_cast<const int4*>(from) + i);
}

// What is wrong with one entry of the plan: 0 for nothing.
__device__ int32_t fault_of(const AdmissionWords& x, const PlanHeader& h, const PrepareArgs& a) {
    if (x.slot >= a.slots.slots) return RecordHeader::BAD_SLOT;
    return x.list_words > LIST_WORDS || x.first_list > h.list_words || x.list_words > h.list_words - x.first_list ? RecordHeader::BAD_PLAN : 0;
}
__device__ int32_t fault_of(const BlockUpdate& x, const PrepareArgs& a) {
    if (x.slot >= a.slots.slots) return RecordHeader::BAD_SLOT;
    return x.index >= a.slots.blocks_per_slot || x.block >= a.slots.blocks ? RecordHeader::BAD_BLOCK : 0;
}
__device__ int32_t fault_of(const PlanRow& row, const PlanView& plan, const PrepareArgs& a) {
    if (row.slot >= a.slots.slots) return RecordHeader::BAD_SLOT;
    const bool known = row.kind == PlanRow::PREFILL, given = row.kind == PlanRow::VERIFY && is(row, PlanRow::GIVEN);
    if (!known && row.kind != PlanRow::VERIFY) return RecordHeader::BAD_PLAN;
    if ((known || given) && !plan.has_tokens(row)) return RecordHeader::BAD_PLAN;
    if (known && (row.start < 0 || row.start > 0x7fffffff - row.count)) return RecordHeader::BAD_PLAN;
    if (row.snapshot_at > 0 && static_cast<uint32_t>(row.snapshot) >= a.slots.snapshots) return RecordHeader::BAD_SLOT;
    return given && row.count > MAX_DRAFTS ? RecordHeader::BAD_PLAN : 0;
}

// Looks at the whole plan. All threads call it and get the same answer.
__device__ int32_t fault_of(const PlanView& plan, const PrepareArgs& a) {
    __shared__ int32_t error;
    __shared__ unsigned long long tokens, samples;
    if (threadIdx.x == 0) error = 0, tokens = samples = 0;
    __syncthreads();
    const PlanHeader& h = *plan.header;
    int32_t own = 0;
    for (uint32_t i = threadIdx.x; i < h.admissions; i += PACKERS) own = max(own, fault_of(plan.admissions[i], h, a));
    for (uint32_t i = threadIdx.x; i < h.block_updates; i += PACKERS) own = max(own, fault_of(plan.updates[i], a));
    for (uint32_t i = threadIdx.x; i < h.rows; i += PACKERS) {
        const PlanRow& row = plan.rows[i];
        own = max(own, fault_of(row, plan, a));
        const uint32_t most = max(row.count, 0) + (row.kind == PlanRow::VERIFY);
        atomicAdd(&tokens, most), atomicAdd(&samples, row.kind == PlanRow::PREFILL && !is(row, PlanRow::SAMPLE_ALL) ? chooses(row) : most);
    }
    if (own) atomicMax(&error, own);
    __syncthreads();
    return error ? error : tokens > a.step.token_bucket || samples > a.step.logits_bucket ? RecordHeader::BAD_PLAN : 0;
}

// Requests take over slots. The words of a slot and of its lists: a warp per admission, unless another one of the slot comes later.
__device__ void admit(const PlanView& plan, const PrepareArgs& a) {
    const int lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x / 32; i < plan.header->admissions; i += PACKERS / 32) {
        const AdmissionWords& x = plan.admissions[i];
        bool later = false;
        for (uint32_t j = i + 1 + lane; j < plan.header->admissions; j += 32) later |= plan.admissions[j].slot == x.slot;
        if (__any_sync(~0u, later)) continue;
        const int32_t *state = reinterpret_cast<const int32_t*>(&x.state), *list = plan.lists + x.first_list;
        int32_t *slot = reinterpret_cast<int32_t*>(a.slots.state + x.slot), *lists = a.slots.lists + static_cast<size_t>(x.slot) * LIST_WORDS;
        for (uint32_t j = lane; j < sizeof(Slot) / 4; j += 32) slot[j] = state[j];
        for (uint32_t j = lane; j < x.list_words; j += 32) lists[j] = list[j];
    }
}

// Entries of block tables. Each first takes the largest number among the updates that name it, below any block, and then the block of that one.
__device__ void update_blocks(const PlanView& plan, const PrepareArgs& a) {
    const uint32_t count = plan.header->block_updates;
    auto entry = [&](uint32_t i) { return a.slots.block_table + static_cast<size_t>(plan.updates[i].slot) * a.slots.blocks_per_slot + plan.updates[i].index; };
    for (uint32_t i = threadIdx.x; i < count; i += PACKERS) atomicMin(entry(i), -1 - static_cast<int32_t>(i));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += PACKERS)
        if (__ldcg(entry(i)) == -1 - static_cast<int32_t>(i)) *entry(i) = plan.updates[i].block;
}

// What a plan row runs: tokens from `start` on, the last `drafts` of which may be taken back.
struct Run {
    int32_t start, tokens, drafts, restore;
};

// Known tokens: the slot's length grows up to them.
__device__ Run prefill(Slot& slot, const PlanRow& row) {
    Run run = {row.start, 0, 0, 0};
    if (!runs(slot, row.generation)) return run;
    run.tokens = row.count, run.restore = slot.restore + 1;
    slot.length = max(slot.length, row.start + row.count), slot.restore = -1;
    if (run.restore > 0) slot.state_at = slot.draft_state_at = row.start;
    return run;
}
// The newest token and its drafts. Those that the plan brings take the place of the slot's own.
__device__ Run verify(Slot& slot, const PlanRow& row, const int32_t* given) {
    if (is(row, PlanRow::GIVEN) && slot.generation == row.generation) {
        for (int i = 0; i < row.count; i++) slot.drafts[i] = given[i];
        slot.draft_count = row.count, slot.source = row.source;
    }
    if (!runs(slot, row.generation) || slot.length <= 0) return {0, 0, 0, 0};
    const int room = max(slot.max_length - slot.length - 1, 0);
    slot.draft_count = max(min(min(min(slot.draft_count, row.count), room), MAX_DRAFTS), 0);
    return {slot.length - 1, 1 + slot.draft_count, slot.draft_count, 0};
}
// Writes a request row. It leaves the state at the last grid position that its certain tokens reach.
__device__ void open_row(RequestRow& out, Slot& slot, const PlanRow& row, const Run& run, int first_token) {
    const int state_at = slot.state_at;
    if (run.tokens > 0) slot.state_at = on_state_grid(run.start + run.tokens - run.drafts);
    const int state_end = slot.state_at;
    const bool reached = row.snapshot_at > state_at && row.snapshot_at <= state_end;
    out = {first_token, run.tokens, static_cast<int32_t>(row.slot), run.drafts, state_at, state_end, reached ? row.snapshot_at : 0, row.snapshot, run.restore};
}

// One token of a plan row: its row of the table, its place in the history, and its row of logits if it has one.
__device__ void lay_out_token(const PlanView& plan, const PrepareArgs& a, int request, Pair first, int token) {
    const PlanRow& row = plan.rows[request];
    const Slot& slot = a.slots.state[row.slot];
    const int offset = token - first.tokens, place = is(row, PlanRow::SAMPLE_ALL) ? offset : 0;
    int32_t id, position, known = 0, mask = 0, sample = -1;
    if (row.kind == PlanRow::VERIFY) {
        id = pending_token(slot, offset), position = slot.length - 1 + offset, sample = first.samples + offset;
        if (is(row, PlanRow::MASKED)) mask = row.first_mask + offset + 1;
    } else {
        const int32_t* tokens = plan.tokens + row.first_token;
        const bool last = offset + 1 == row.count;
        id = tokens[offset], position = row.start + offset;
        if (last && is(row, PlanRow::SAMPLE_LAST)) {
            sample = first.samples + place;
            if (is(row, PlanRow::MASKED)) mask = row.first_mask + 1;
        } else if (is(row, PlanRow::SAMPLE_ALL))
            sample = first.samples + place, known = (last ? row.following : tokens[offset + 1]) + 1;
    }
    a.step.tokens[token] = {id, position, request};
    int32_t* history = history_at(a.slots, row.slot, position);
    if (!history) report(a.fault, RecordHeader::BAD_BLOCK);
    // A draft enters the history when it has become part of the text.
    else if (row.kind == PlanRow::PREFILL || offset == 0) *history = id;
    if (sample >= 0) a.step.logits[sample] = {token, position + 1, request, known, mask, slot.sampling};
}

extern "C" __global__ void __launch_bounds__(PACKERS, 1) lay_out_step(const __grid_constant__ PrepareArgs a) {
    extern __shared__ Pair firsts[]; // per plan row
    enter();
    if (threadIdx.x == 0) *a.rings.begun = wide(steps_begun(a.rings) + 1);
    const int32_t error = fault_of(PlanView(a.plan), a);
    if (error) {
        __syncthreads(); // all have looked
        if (threadIdx.x < sizeof(PlanHeader) / 4) a.plan[threadIdx.x] = 0;
        if (threadIdx.x == 0) a.record.header->error = error;
        __syncthreads();
    }
    const PlanView plan(a.plan);
    admit(plan, a);
    update_blocks(plan, a);
    __syncthreads();
    const int rows = plan.header->rows;
    Pair before = {0, 0};
    for (int base = 0; base < rows; base += PACKERS) {
        const int request = base + threadIdx.x;
        Run run = {0, 0, 0, 0};
        Pair own = {0, 0}, all;
        if (request < rows) {
            const PlanRow& row = plan.rows[request];
            Slot& slot = a.slots.state[row.slot];
            run = row.kind == PlanRow::PREFILL ? prefill(slot, row) : verify(slot, row, plan.tokens + row.first_token);
            own = {run.tokens, samples_of(row, run.tokens)};
        }
        Pair first = sum_before(own, all);
        first = {before.tokens + first.tokens, before.samples + first.samples};
        if (request < rows) {
            const PlanRow& row = plan.rows[request];
            firsts[request] = first;
            open_row(a.step.requests[request], a.slots.state[row.slot], row, run, first.tokens);
        }
        before = {before.tokens + all.tokens, before.samples + all.samples};
    }
    __syncthreads();
    for (int token = threadIdx.x; token < before.tokens; token += PACKERS) {
        const int request = request_of(firsts, rows, token);
        lay_out_token(plan, a, request, firsts[request], token);
    }
    if (threadIdx.x == 0) *a.step.live_tokens = before.tokens, *a.step.live_logits = before.samples, *a.step.live_requests = rows;
}
