// Which drafts hold, and what that makes of the slots. One thread block, a thread per plan row; where a row's choices and log-probabilities begin is the sum of those before.
#include "args/frame.h"
#include "packing.cuh"
#include "plan.cuh"

// The accept rule: a draft holds iff it is what the model chose in its place. What was chosen behind those that hold becomes text too, up to a stop token or the length limit.
__device__ void settle(const AcceptArgs& a, const PlanRow& row, RecordRow& out, const int32_t* chosen, int drafts) {
    Slot& slot = a.slots.state[row.slot];
    const Lists lists = lists_of(a.slots, row.slot);
    int accepted = 0;
    while (accepted < drafts && slot.drafts[accepted] == chosen[accepted]) accepted++;
    const int length = slot.length, most = min(accepted + 1, max(slot.max_length - length, 0));
    int count = 0;
    bool stopped = false;
    for (; count < most && !stopped; count++) {
        const int32_t token = chosen[count];
        out.tokens[count] = token;
        stopped = lists.stop(token);
    }
    out.count = count, out.ended = stopped ? RecordRow::STOPPED : length + count >= slot.max_length ? RecordRow::FULL : 0;
    slot.length = length + count, slot.draft_count = 0, slot.source = 0, slot.finished = out.ended != 0;
    if (count == 0) return;
    slot.newest = chosen[count - 1];
    for (int i = 0; i + 1 < count; i++) {
        int32_t* history = history_at(a.slots, row.slot, length + i);
        if (history) *history = chosen[i];
        else report(a.fault, RecordHeader::BAD_BLOCK);
    }
}

extern "C" __global__ void __launch_bounds__(PACKERS, 1) accept(const __grid_constant__ AcceptArgs a) {
    enter();
    const PlanView plan(a.plan);
    const int rows = plan.header->rows;
    Pair before = {0, 0}; // rows of logits, and those among them that report log-probabilities
    for (int base = 0; base < rows; base += PACKERS) {
        const int index = base + threadIdx.x;
        Pair own = {0, 0}, all;
        if (index < rows) {
            const PlanRow& row = plan.rows[index];
            own.tokens = samples_of(row, a.step.requests[index].token_count);
            own.samples = a.slots.state[row.slot].sampling.logprobs >= 0 ? own.tokens : 0;
        }
        const Pair first = sum_before(own, all);
        if (index < rows) {
            const PlanRow& row = plan.rows[index];
            const RequestRow& request = a.step.requests[index];
            const int drafts = request.drafts;
            RecordRow& out = a.record.rows[index];
            out.count = 0, out.ended = 0, out.snapshot = request.snapshot_at > 0, out.drafted = drafts, out.source = drafts > 0 ? a.slots.state[row.slot].source : 0;
            out.first_logprobs = before.samples + first.samples;
            for (int i = 0; i <= MAX_DRAFTS; i++) out.tokens[i] = -1;
            if (request.token_count > 0 && chooses(row)) settle(a, row, out, a.tokens + before.tokens + first.tokens + own.tokens - 1 - drafts, drafts);
        }
        before = {before.tokens + all.tokens, before.samples + all.samples};
    }
}
