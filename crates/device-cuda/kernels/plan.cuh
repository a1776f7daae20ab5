// The step's plan and what it names, as kernels read them. The plan lies in device memory, checked by `prepare`: its sections fit. What its rows say is checked where it is used.
#pragma once
#include "step.cuh"

struct PlanView {
    const PlanHeader* header;
    const AdmissionWords* admissions;
    const BlockUpdate* updates;
    const PlanRow* rows;
    const int32_t *tokens, *lists, *masks;

    __device__ explicit PlanView(const int32_t* words) : header(reinterpret_cast<const PlanHeader*>(words)) {
        admissions = reinterpret_cast<const AdmissionWords*>(header + 1);
        updates = reinterpret_cast<const BlockUpdate*>(admissions + header->admissions);
        rows = reinterpret_cast<const PlanRow*>(updates + header->block_updates);
        tokens = reinterpret_cast<const int32_t*>(rows + header->rows);
        lists = tokens + header->tokens;
        masks = lists + header->list_words;
    }
    // The tokens of a plan row lie within the plan's.
    __device__ bool has_tokens(const PlanRow& row) const { return row.count >= 0 && row.first_token <= header->tokens && static_cast<uint32_t>(row.count) <= header->tokens - row.first_token; }
    // One more than a mask of the plan: its words, or null for none.
    __device__ const int32_t* mask(int32_t index) const { return index > 0 && static_cast<uint32_t>(index) <= header->masks ? masks + static_cast<size_t>(index - 1) * header->mask_words : nullptr; }
};

__device__ __forceinline__ bool is(const PlanRow& row, int32_t flag) { return (row.flags & flag) != 0; }
__device__ __forceinline__ bool chooses(const PlanRow& row) { return row.kind == PlanRow::VERIFY || is(row, PlanRow::SAMPLE_LAST); }
__device__ __forceinline__ bool embeds(const PlanRow& row) { return is(row, PlanRow::POOL_MEAN | PlanRow::POOL_LAST); }
// Rows of logits of a plan row that runs `tokens` tokens.
__device__ __forceinline__ int samples_of(const PlanRow& row, int tokens) {
    if (row.kind == PlanRow::VERIFY || is(row, PlanRow::SAMPLE_ALL)) return tokens;
    return tokens > 0 && chooses(row);
}

__device__ __forceinline__ bool runs(const Slot& slot, uint32_t generation) { return slot.generation == generation && slot.finished == 0; }
// The newest token and the drafts behind it lie one after the other.
__device__ __forceinline__ int32_t pending_token(const Slot& slot, int place) { return place == 0 ? slot.newest : slot.drafts[place - 1]; }
__device__ __forceinline__ int on_state_grid(int position) { return position / STATE_GRID * STATE_GRID; }

// The lists of a slot: stop tokens, biases, bad words. Lengths are cut to the words there are.
struct Lists {
    const int32_t *stops, *biases, *words, *end;
    int stop_count, bias_count, word_count;

    __device__ explicit Lists(const int32_t* list) : end(list + LIST_WORDS) {
        stop_count = min(max(list[0], 0), LIST_WORDS - 3);
        stops = list + 1, biases = stops + stop_count + 1;
        bias_count = min(max(biases[-1], 0), static_cast<int>(end - biases - 1) / 2);
        words = biases + 2 * bias_count + 1;
        word_count = max(words[-1], 0);
    }
    __device__ bool stop(int32_t token) const {
        for (int i = 0; i < stop_count; i++)
            if (stops[i] == token) return true;
        return false;
    }
};
__device__ __forceinline__ Lists lists_of(const Slots& s, uint32_t slot) { return Lists(s.lists + static_cast<size_t>(slot) * LIST_WORDS); }

// The block of a slot's position, or -1 if it has none.
__device__ __forceinline__ int block_of(const Slots& s, uint32_t slot, int position) {
    const uint32_t index = static_cast<uint32_t>(position) / s.block_size;
    if (slot >= s.slots || position < 0 || index >= s.blocks_per_slot) return -1;
    const int32_t block = s.block_table[static_cast<size_t>(slot) * s.blocks_per_slot + index];
    return static_cast<uint32_t>(block) < s.blocks ? block : -1;
}
// The place of a position's token id in the history, or null.
__device__ __forceinline__ int32_t* history_at(const Slots& s, uint32_t slot, int position) {
    const int block = block_of(s, slot, position);
    return block < 0 ? nullptr : s.history + static_cast<size_t>(block) * s.block_size + static_cast<uint32_t>(position) % s.block_size;
}
