// Passes of neural drafters: what they run over, what they start from, and what becomes of the tokens they choose.
//
// `prepare_*` lay out a draft forward, one thread block each: a thread per plan row decides how many tokens it has and whether it samples, sums say where its rows begin, and a
// thread per token fills them in. Request rows are those of the step, so that a row of one pass is found in the next; rows that take no part have no tokens.
#include "args/drafts.h"
#include "kv.cuh"
#include "packing.cuh"
#include "plan.cuh"
#include "rows.cuh"

constexpr int MOVERS = 256;

// Whether a row that ran wants a draft behind the `place` it has. One behind the last position is of no use.
__device__ bool wants(const Slot& slot, const PlanRow& row, int place) {
    const bool own = place == 0 ? slot.draft_count == 0 : slot.draft_count == place && slot.source == Slot::FROM_NEURAL;
    return chooses(row) && own && slot.finished == 0 && place < row.neural && place < slot.max_length - slot.length - 1;
}

// A plan row in a draft forward: its tokens, whether the last one is sampled behind, and its request row but for where it begins.
struct Part {
    int32_t tokens;
    bool samples;
    RequestRow request;
};

// --- a head behind the step: the tokens that followed those that are certain now

// A piece of a prompt that begins with a block has the last token of the block before, too.
__device__ __forceinline__ bool has_token_before(const PlanRow& row, uint32_t block_size) { return row.kind == PlanRow::PREFILL && row.start > 0 && row.start % block_size == 0; }
// What followed the last token of a piece of a prompt; -1 if that is not known.
__device__ __forceinline__ int32_t last_follower(const PlanRow& row, const RecordRow& found) { return found.count > 0 ? found.tokens[0] : row.following; }

struct Behind {
    __device__ static void open(const DraftArgs& a, const PlanRow& row, Slot& slot, int index, Part& part) {
        const RecordRow& found = a.record.rows[index];
        const int count = a.step.requests[index].token_count;
        if (row.neural == 0) return;
        if (row.kind == PlanRow::VERIFY) part.tokens = min(count, max(found.count, 0));
        else part.tokens = has_token_before(row, a.slots.block_size) + count - (last_follower(row, found) < 0);
        part.samples = part.tokens > 0 && wants(slot, row, 0);
    }
    __device__ static void fill(const DraftArgs& a, const PlanRow& row, const Slot&, int index, int place, int token) {
        const RecordRow& found = a.record.rows[index];
        const RequestRow& request = a.step.requests[index];
        int32_t id, source = request.first_token + place, position;
        if (row.kind == PlanRow::VERIFY) id = found.tokens[place];
        else {
            const int offset = place - has_token_before(row, a.slots.block_size);
            source = request.first_token + offset;
            if (offset < 0) id = a.step.tokens[source + 1].id;
            else id = offset + 1 < request.token_count ? a.step.tokens[source + 1].id : last_follower(row, found);
            if (offset < 0) {
                const int block = block_of(a.slots, row.slot, row.start - 1);
                if (block < 0) report(a.fault, RecordHeader::BAD_BLOCK);
                a.draft.tokens[token] = {id, row.start - 1, index}, a.source[token] = block < 0 ? 0 : -1 - block;
                return;
            }
        }
        position = a.step.tokens[source].position;
        a.draft.tokens[token] = {id, position, index}, a.source[token] = source;
    }
};

// --- a model along with the step: the step's own tokens, with its rollback
template <bool Recurrent> struct Along {
    __device__ static void open(const DraftArgs& a, const PlanRow& row, Slot& slot, int index, Part& part) {
        const RequestRow& step = a.step.requests[index];
        const uint32_t restore = step.restore - 1, snapshot = step.snapshot;
        if (step.restore > 0 && restore >= a.slots.snapshots) report(a.fault, RecordHeader::BAD_SLOT);
        const bool unknown = step.restore > 0 && (restore >= a.slots.snapshots || a.slots.drafter_saved[restore] == 0);
        if (Recurrent && (row.neural == 0 || unknown)) slot.draft_state_at = -1;
        const int state_at = slot.draft_state_at;
        const bool missed = state_at < 0;
        if (!missed) slot.draft_state_at = step.state_end;
        if (step.snapshot_at > 0 && snapshot < a.slots.snapshots) a.slots.drafter_saved[snapshot] = !missed;
        if (row.neural == 0 || missed) return;
        part.tokens = step.token_count, part.request = step, part.request.state_at = state_at;
    }
    __device__ static void fill(const DraftArgs& a, const PlanRow&, const Slot&, int index, int place, int token) {
        const TokenRow& own = a.step.tokens[a.step.requests[index].first_token + place];
        a.draft.tokens[token] = {own.id, own.position, index};
    }
};

// --- a head fed with its own draft, at the position before it
struct Again {
    __device__ static void open(const DraftArgs& a, const PlanRow& row, Slot& slot, int index, Part& part) {
        part.tokens = a.before.requests[index].token_count > 0 && wants(slot, row, a.place);
        part.samples = part.tokens > 0;
    }
    __device__ static void fill(const DraftArgs& a, const PlanRow&, const Slot& slot, int index, int, int token) {
        const RequestRow& before = a.before.requests[index];
        a.draft.tokens[token] = {slot.drafts[a.place - 1], slot.length + a.place - 2, index}, a.source[token] = before.first_token + before.token_count - 1;
    }
};

// --- a model on the newest token or its own draft, at its own position; the state stays where it is
struct Ahead {
    __device__ static void open(const DraftArgs& a, const PlanRow& row, Slot& slot, int, Part& part) {
        if (slot.draft_state_at < 0 || !wants(slot, row, a.place)) return;
        part.tokens = 1, part.samples = true;
        part.request.state_at = part.request.state_end = slot.draft_state_at, part.request.drafts = 1;
    }
    __device__ static void fill(const DraftArgs& a, const PlanRow&, const Slot& slot, int index, int, int token) {
        a.draft.tokens[token] = {pending_token(slot, a.place), slot.length + a.place - 1, index};
    }
};

// The plan row's part, and its place: rows that the tables have no room for are left out.
__device__ void write_part(const DraftArgs& a, const PlanRow& row, const Slot& slot, int index, Part& part, Pair first) {
    const int room = max(static_cast<int>(a.draft.token_bucket) - first.tokens, 0);
    const bool fits = part.tokens <= room && (!part.samples || first.samples < a.draft.logits_bucket);
    if (!fits) report(a.fault, RecordHeader::BAD_PLAN), part.tokens = min(part.tokens, room);
    part.request.first_token = min(first.tokens, static_cast<int>(a.draft.token_bucket)), part.request.token_count = part.tokens, part.request.slot = row.slot;
    a.draft.requests[index] = part.request;
    if (!fits || !part.samples) return;
    // Nobody reads a draft's log-probabilities, and no plan has a mask for it.
    LogitsRow logits = {first.tokens + part.tokens - 1, slot.length + a.place, index, 0, 0, slot.sampling};
    logits.sampling.logprobs = -1;
    a.draft.logits[first.samples] = logits;
}

template <class Pass> __device__ void prepare_pass(const DraftArgs& a) {
    extern __shared__ Pair firsts[]; // per plan row
    enter();
    const PlanView plan(a.plan);
    const int rows = min(static_cast<int>(plan.header->rows), static_cast<int>(a.draft.request_bucket));
    Pair before = {0, 0};
    for (int base = 0; base < rows; base += PACKERS) {
        const int index = base + threadIdx.x;
        Part part = {};
        Pair all;
        if (index < rows && a.step.requests[index].token_count > 0) {
            const PlanRow& row = plan.rows[index];
            Pass::open(a, row, a.slots.state[row.slot], index, part);
        }
        Pair first = sum_before({part.tokens, part.samples}, all);
        first = {before.tokens + first.tokens, before.samples + first.samples};
        if (index < rows) {
            const PlanRow& row = plan.rows[index];
            firsts[index] = first;
            write_part(a, row, a.slots.state[row.slot], index, part, first);
        }
        before = {before.tokens + all.tokens, before.samples + all.samples};
    }
    __syncthreads();
    const int tokens = min(before.tokens, static_cast<int>(a.draft.token_bucket));
    for (int token = threadIdx.x; token < tokens; token += PACKERS) {
        const int index = request_of(firsts, rows, token);
        const PlanRow& row = plan.rows[index];
        Pass::fill(a, row, a.slots.state[row.slot], index, token - firsts[index].tokens, token);
    }
    if (threadIdx.x != 0) return;
    *a.draft.live_tokens = tokens, *a.draft.live_requests = rows, *a.draft.live_logits = min(before.samples, static_cast<int>(a.draft.logits_bucket));
    a.record.header->draft_forwards += tokens > 0;
}

extern "C" __global__ void __launch_bounds__(PACKERS, 1) prepare_behind(const __grid_constant__ DraftArgs a) { prepare_pass<Behind>(a); }
extern "C" __global__ void __launch_bounds__(PACKERS, 1) prepare_along(const __grid_constant__ DraftArgs a) { prepare_pass<Along<false>>(a); }
extern "C" __global__ void __launch_bounds__(PACKERS, 1) prepare_along_recurrent(const __grid_constant__ DraftArgs a) { prepare_pass<Along<true>>(a); }
extern "C" __global__ void __launch_bounds__(PACKERS, 1) prepare_again(const __grid_constant__ DraftArgs a) { prepare_pass<Again>(a); }
extern "C" __global__ void __launch_bounds__(PACKERS, 1) prepare_ahead(const __grid_constant__ DraftArgs a) { prepare_pass<Ahead>(a); }

// Tokens that a pass chose become drafts, but for a stop token, which ends them. A thread per row of logits; a slot has one at most.
extern "C" __global__ void take_drafts(const __grid_constant__ TakeArgs a) {
    enter();
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= logits_rows(a.draft)) return;
    const int32_t token = a.tokens[row];
    const uint32_t slot = a.draft.requests[a.draft.logits[row].request].slot;
    if (slot >= a.slots.slots || lists_of(a.slots, slot).stop(token)) return;
    Slot& state = a.slots.state[slot];
    state.drafts[a.place] = token, state.draft_count = a.place + 1, state.source = Slot::FROM_NEURAL;
}

// The states of tokens that are the last of their blocks are kept with these. A thread block per token.
extern "C" __global__ void __launch_bounds__(MOVERS) keep_block_ends(const __grid_constant__ KeepArgs a) {
    enter();
    const int row = blockIdx.x, columns = a.states.columns;
    if (row >= live_rows(a.states)) return;
    const TokenRow& token = a.step.tokens[row];
    if ((token.position + 1) % a.step.block_size != 0) return;
    const uint32_t slot = a.step.requests[token.request].slot, index = token.position / a.step.block_size;
    const uint32_t block = slot < a.table_rows && index < a.step.blocks_per_request ? a.step.block_table[static_cast<size_t>(slot) * a.step.blocks_per_request + index] : ~0u;
    if (block >= a.blocks) {
        if (threadIdx.x == 0) report(a.fault, RecordHeader::BAD_BLOCK);
        return;
    }
    const float* from = row_of(a.states, row);
    float* to = a.kept + static_cast<size_t>(block) * columns;
    for (int column = threadIdx.x * 4; column < columns; column += MOVERS * 4) store_four(to, column, columns, load_four(from, column, columns));
}

// The states that a head starts from: rows of the step, or what was kept with a block. A thread block per token.
extern "C" __global__ void __launch_bounds__(MOVERS) gather_states(const __grid_constant__ StatesArgs a) {
    enter();
    const int row = blockIdx.x, columns = a.out.columns;
    if (row >= live_rows(a.out)) return;
    const int32_t source = a.source[row];
    const bool kept = source < 0, there = kept ? static_cast<uint32_t>(-1 - source) < a.blocks : static_cast<uint32_t>(source) < a.states.bucket;
    if (!there) {
        if (threadIdx.x == 0) report(a.fault, RecordHeader::BAD_BLOCK);
        return;
    }
    const float* from = kept ? a.kept + static_cast<size_t>(-1 - source) * columns : row_of(a.states, source);
    float* to = row_of(a.out, row);
    for (int column = threadIdx.x * 4; column < columns; column += MOVERS * 4) store_four(to, column, columns, load_four(from, column, columns));
}

// The keys and values of tokens that the drafter does not see become zero. A thread block per token. Drafts that did not hold are among them: the next tokens at their positions write
// or clear them again.
extern "C" __global__ void __launch_bounds__(MOVERS) clear_kv(const __grid_constant__ ClearArgs a) {
    enter();
    if (blockIdx.x >= token_rows(a.step)) return;
    const PlanView plan(a.plan);
    const TokenRow& token = a.step.tokens[blockIdx.x];
    if (static_cast<uint32_t>(token.request) >= plan.header->rows || plan.rows[token.request].neural != 0) return;
    const int32_t* table = kv_table(a.cache, a.step, token, a.fault);
    const int block = table ? kv_block(a.cache, a.step, table, token.position, a.fault) : -1;
    if (block < 0) return;
    const uint32_t offset = token.position % a.cache.block_size, width = a.cache.heads * a.cache.head_dim;
    for (uint32_t i = threadIdx.x; i < width; i += MOVERS) {
        const size_t at = kv_head(a.cache, block, i / a.cache.head_dim) + kv_place(a.cache, offset, i % a.cache.head_dim);
        kv_store(a.cache, a.cache.keys, at, 0.0f), kv_store(a.cache, a.cache.values, at, 0.0f);
    }
}
