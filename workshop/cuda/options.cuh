// Options of a request that change its logits: where the slots keep them, and what they say about a row.
#pragma once

constexpr int LIST_INTS = 1024; // of a slot: stop tokens, biases and bad words

// Words of a slot.
namespace slot {
constexpr int LENGTH = 1, MIN_LENGTH = 6, PROMPT_LENGTH = 7, REPETITION = 19, PRESENCE = 20, FREQUENCY = 21, NEWEST = 22, INTS = 38;
}

struct SampleOptions {
    const int *state, *lists, *block_table, *history, *masks;             // by slot; no state: no options
    const int *mask, *request, *state_slot, *first_token, *ids, *positions; // of the step
    int blocks_per_slot, block_size, mask_positions, mask_words;
    int drafts; // the text behind the history is the newest token and the drafts so far, not the step's tokens
};
// What a request's options do to a row of logits, and the text that the row follows.
struct RowOptions {
    int stops = 0, biases = 0, words = 0, start = 0, length = 0, prompt = 0;
    const int *stop_list, *bias_list, *word_list, *blocks, *recent, *mask = nullptr;
    float repetition = 0, presence = 0, frequency = 0;

    __device__ RowOptions(const SampleOptions& o, int row, int position) {
        if (!o.state) return;
        const int request = o.request[row], index = o.state_slot[request];
        const int *state = o.state + index * slot::INTS, *list = o.lists + index * LIST_INTS;
        const int listed = list[0];
        stops = position < state[slot::MIN_LENGTH] ? listed : 0, stop_list = list + 1;
        biases = list[1 + listed], bias_list = list + 2 + listed;
        words = bias_list[2 * biases], word_list = bias_list + 2 * biases + 1;
        repetition = __int_as_float(state[slot::REPETITION]), presence = __int_as_float(state[slot::PRESENCE]), frequency = __int_as_float(state[slot::FREQUENCY]);
        prompt = state[slot::PROMPT_LENGTH];
        if (const int place = o.mask[row]; place > 0) mask = o.masks + (static_cast<long>(index) * o.mask_positions + place - 1) * o.mask_words;
        const int first = o.first_token[request];
        start = min(o.drafts ? state[slot::LENGTH] - 1 : o.positions[first], position), length = position;
        recent = o.drafts ? state + slot::NEWEST : o.ids + first, blocks = o.block_table + index * o.blocks_per_slot;
    }
    // A slot without a repetition penalty holds 0, which is none.
    __device__ bool repeats() const { return repetition > 0 && repetition != 1; }
    __device__ bool penalties() const { return repeats() || presence != 0 || frequency != 0; }
    __device__ bool any() const { return stops || biases || words || mask || penalties(); }
    __device__ int token(const SampleOptions& o, int position) const {
        return position >= start ? recent[position - start] : o.history[blocks[position / o.block_size] * o.block_size + position % o.block_size];
    }
    // Of a token that is in the text, `count` times behind the prompt.
    __device__ float penalised(float x, uint32_t count) const {
        if (repeats()) x = x > 0 ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
        return count ? __fsub_rn(x, __fadd_rn(__fmul_rn(static_cast<float>(count), frequency), presence)) : x;
    }
};
