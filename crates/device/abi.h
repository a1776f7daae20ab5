// What host and device tell each other. Made from the declarations in crates/device/src/abi by its test
// `the_header_is_current`; do not edit.
#pragma once
#include <stdint.h>

namespace paceline {

constexpr int MAX_DRAFTS = 15;
constexpr int STATE_GRID = 16;
constexpr int MAX_LOGPROBS = 20;
constexpr int LIST_WORDS = 1024;

struct Wide {
    uint32_t low;
    uint32_t high;
};
static_assert(sizeof(Wide) == 8);

struct SamplingRow {
    float temperature;
    float top_p;
    uint32_t top_k;
    float min_p;
    Wide seed;
    int32_t logprobs;
};
static_assert(sizeof(SamplingRow) == 28);

struct Slot {
    uint32_t generation;
    int32_t length;
    int32_t finished;
    int32_t state_at;
    int32_t draft_count;
    int32_t max_length;
    int32_t min_length;
    int32_t prompt_length;
    int32_t restore;
    int32_t source;
    int32_t indexed;
    int32_t draft_state_at;
    SamplingRow sampling;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    int32_t newest;
    int32_t drafts[15];
    static constexpr int32_t FROM_NGRAM = 1;
    static constexpr int32_t FROM_NEURAL = 2;
    static constexpr int32_t FROM_GRAMMAR = 3;
};
static_assert(sizeof(Slot) == 152);

struct PlanHeader {
    Wide step;
    uint32_t admissions;
    uint32_t block_updates;
    uint32_t rows;
    uint32_t tokens;
    uint32_t list_words;
    uint32_t masks;
    uint32_t mask_words;
};
static_assert(sizeof(PlanHeader) == 36);

struct AdmissionWords {
    uint32_t slot;
    uint32_t first_list;
    uint32_t list_words;
    Slot state;
};
static_assert(sizeof(AdmissionWords) == 164);

struct BlockUpdate {
    uint32_t slot;
    uint32_t index;
    uint32_t block;
};
static_assert(sizeof(BlockUpdate) == 12);

struct PlanRow {
    uint32_t slot;
    uint32_t generation;
    int32_t kind;
    int32_t start;
    int32_t count;
    int32_t flags;
    int32_t following;
    uint32_t first_token;
    uint32_t first_mask;
    int32_t snapshot_at;
    int32_t snapshot;
    int32_t ngram;
    int32_t neural;
    int32_t source;
    static constexpr int32_t PREFILL = 0;
    static constexpr int32_t VERIFY = 1;
    static constexpr int32_t SAMPLE_LAST = 1;
    static constexpr int32_t SAMPLE_ALL = 2;
    static constexpr int32_t GIVEN = 4;
    static constexpr int32_t MASKED = 8;
    static constexpr int32_t POOL_SUM = 16;
    static constexpr int32_t POOL_MEAN = 32;
    static constexpr int32_t POOL_LAST = 64;
    static constexpr int32_t SHOW_DRAFTS = 128;
};
static_assert(sizeof(PlanRow) == 56);

struct TokenRow {
    int32_t id;
    int32_t position;
    int32_t request;
};
static_assert(sizeof(TokenRow) == 12);

struct RequestRow {
    int32_t first_token;
    int32_t token_count;
    int32_t slot;
    int32_t drafts;
    int32_t state_at;
    int32_t state_end;
    int32_t snapshot_at;
    int32_t snapshot;
    int32_t restore;
};
static_assert(sizeof(RequestRow) == 36);

struct LogitsRow {
    int32_t token;
    int32_t position;
    int32_t request;
    int32_t known;
    int32_t mask;
    SamplingRow sampling;
};
static_assert(sizeof(LogitsRow) == 48);

struct RecordHeader {
    Wide step;
    int32_t error;
    int32_t draft_forwards;
    Wide begin;
    Wide drafting;
    Wide end;
    uint32_t rows;
    uint32_t logprobs;
    uint32_t drafts;
    uint32_t embeddings;
    uint32_t embedding_width;
    static constexpr int32_t WRONG_STEP = 1;
    static constexpr int32_t BAD_PLAN = 2;
    static constexpr int32_t BAD_TOKEN = 3;
    static constexpr int32_t BAD_BLOCK = 4;
    static constexpr int32_t BAD_SLOT = 5;
    static constexpr int32_t NOT_FINITE = 6;
};
static_assert(sizeof(RecordHeader) == 60);

struct RecordRow {
    int32_t count;
    int32_t ended;
    int32_t snapshot;
    int32_t drafted;
    int32_t source;
    int32_t first_logprobs;
    int32_t tokens[16];
    static constexpr int32_t STOPPED = 1;
    static constexpr int32_t FULL = 2;
};
static_assert(sizeof(RecordRow) == 88);

struct Alternative {
    int32_t token;
    float logprob;
};
static_assert(sizeof(Alternative) == 8);

struct Logprobs {
    float chosen;
    Alternative top[20];
};
static_assert(sizeof(Logprobs) == 164);

struct DraftsMade {
    int32_t count;
    int32_t source;
    int32_t tokens[15];
};
static_assert(sizeof(DraftsMade) == 68);

}  // namespace paceline
