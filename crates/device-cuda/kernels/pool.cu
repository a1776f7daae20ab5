// States of texts added up. A thread per element of a state and plan row: it adds one token after the other, so that the sum does not depend on how the text was cut into plan rows.
// Which of the finished vectors is a row's is the number of rows before it that finish one.
#include "args/frame.h"
#include "plan.cuh"

constexpr int POOLERS = 128;

extern "C" __global__ void __launch_bounds__(POOLERS) pool_states(const __grid_constant__ PoolArgs a) {
    enter();
    const PlanView plan(a.plan);
    const int index = blockIdx.y;
    if (index >= min(static_cast<int>(plan.header->rows), request_rows(a.step))) return;
    const PlanRow& row = plan.rows[index];
    if (!is(row, PlanRow::POOL_SUM | PlanRow::POOL_LAST)) return;
    int place = 0;
    for (int base = 0; base < index; base += POOLERS) {
        const int other = base + threadIdx.x;
        place += __syncthreads_count(other < index && embeds(plan.rows[other]));
    }
    const RequestRow& request = a.step.requests[index];
    const uint32_t column = blockIdx.x * POOLERS + threadIdx.x;
    const int live = live_rows(a.states), first = request.first_token, end = first + request.token_count;
    if (column >= a.states.columns || request.token_count <= 0 || first < 0 || end > live || row.slot >= a.vectors) return;
    const float* state = row_of(a.states, first) + column;
    float* done = a.done + static_cast<size_t>(place) * a.states.columns + column;
    const bool gives = embeds(row) && place < a.vectors;
    if (is(row, PlanRow::POOL_SUM)) {
        float& kept = a.sums[static_cast<size_t>(row.slot) * a.states.columns + column];
        float sum = row.start == 0 ? 0.0f : kept;
#pragma unroll 8
        for (int token = first; token < end; token++, state += a.states.stride) sum += *state;
        kept = sum;
        if (gives && is(row, PlanRow::POOL_MEAN)) *done = sum / static_cast<float>(row.start + request.token_count);
    } else if (gives && is(row, PlanRow::POOL_LAST))
        *done = row_of(a.states, end - 1)[column];
}
