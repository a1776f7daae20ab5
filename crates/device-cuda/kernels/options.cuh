// Options of a request that change its logits: where the slots keep them, and what they say about a row.
//
// The text that a row of logits follows is the slot's history and, behind it, the request's tokens of this step up to the row, drafts among them. Where drafts are being made, the
// slot's newest token and its drafts so far take the place of the step's tokens.
#pragma once
#include "args/sample.h"
#include "plan.cuh"

constexpr int TEXT_OF_STEP = 1, TEXT_OF_DRAFTS = 2; // SampleArgs::options; 0: rows have no options

// Of one row. A thread block keeps it in shared memory.
struct RowOptions {
    uint32_t slot = 0;
    int stop_count = 0, bias_count = 0, word_count = 0, start = 0, length = 0, prompt = 0, stride = 1;
    const int32_t *stops = nullptr, *biases = nullptr, *words = nullptr, *lists_end = nullptr, *recent = nullptr, *mask = nullptr;
    uint32_t mask_words = 0;
    float repetition = 0, presence = 0, frequency = 0;

    __device__ RowOptions(const SampleArgs& a, const LogitsRow& row) {
        const Slots& slots = a.slots;
        if (a.options == 0 || static_cast<uint32_t>(row.request) >= a.step.request_bucket) return;
        const RequestRow& request = a.step.requests[row.request];
        slot = request.slot;
        if (slot >= slots.slots) return;
        const Slot& state = slots.state[slot];
        const Lists lists = lists_of(slots, slot);
        stop_count = row.position < state.min_length ? lists.stop_count : 0, stops = lists.stops;
        bias_count = lists.bias_count, biases = lists.biases;
        word_count = lists.word_count, words = lists.words, lists_end = lists.end;
        repetition = state.repetition_penalty, presence = state.presence_penalty, frequency = state.frequency_penalty, prompt = state.prompt_length;
        const PlanView plan(a.plan);
        mask = plan.mask(row.mask), mask_words = plan.header->mask_words;
        if (row.mask > 0 && !mask) report(a.fault, RecordHeader::BAD_PLAN);
        const int first = min(max(request.first_token, 0), static_cast<int>(a.step.token_bucket) - 1);
        const TokenRow* tokens = a.step.tokens + first;
        const bool drafts = a.options == TEXT_OF_DRAFTS;
        length = max(row.position, 0), start = min(max(drafts ? state.length - 1 : tokens->position, 0), length);
        // The newest token and the drafts lie one behind the other; ids of the step's tokens are a row apart.
        recent = drafts ? &state.newest : &tokens->id, stride = drafts ? 1 : sizeof(TokenRow) / 4;
        length = min(length, start + (drafts ? 1 + MAX_DRAFTS : static_cast<int>(a.step.token_bucket) - first));
    }
    // A slot without a repetition penalty holds 0, which is none.
    __device__ bool repeats() const { return repetition > 0 && repetition != 1; }
    __device__ bool penalties() const { return repeats() || presence != 0 || frequency != 0; }
    __device__ bool any() const { return stop_count || bias_count || word_count || mask || penalties(); }
    __device__ int32_t token(const Slots& slots, int position) const {
        if (position >= start) return recent[(position - start) * stride];
        const int32_t* history = history_at(slots, slot, position);
        return history ? *history : -1;
    }
    // Of a token that is in the text, `count` times behind the prompt.
    __device__ float penalised(float x, uint32_t count) const {
        if (repeats()) x = x > 0 ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        return count ? __fsub_rn(x, __fadd_rn(__fmul_rn(static_cast<float>(count), frequency), presence)) : x;
    }
    __device__ bool allowed(int id) const { return id / 32 < mask_words && mask[id / 32] >> id % 32 & 1; }
};
