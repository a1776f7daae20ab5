// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"

struct Matrix {
    float* data;
    int32_t* live;
    uint32_t stride;
    uint32_t columns;
    uint32_t bucket;
};
static_assert(sizeof(Matrix) == 32);

struct Tables {
    TokenRow* tokens;
    RequestRow* requests;
    LogitsRow* logits;
    int32_t* block_table;
    int32_t* live_tokens;
    int32_t* live_requests;
    int32_t* live_logits;
    uint32_t token_bucket;
    uint32_t request_bucket;
    uint32_t logits_bucket;
    uint32_t blocks_per_request;
    uint32_t block_size;
};
static_assert(sizeof(Tables) == 80);

struct Slots {
    Slot* state;
    int32_t* lists;
    int32_t* block_table;
    int32_t* history;
    int32_t* drafter_saved;
    uint32_t slots;
    uint32_t blocks_per_slot;
    uint32_t blocks;
    uint32_t block_size;
    uint32_t snapshots;
};
static_assert(sizeof(Slots) == 64);

struct Rings {
    int32_t* plans;
    int32_t* records;
    Wide* begun;
    uint32_t depth;
    uint32_t plan_words;
    uint32_t plan_stride;
    uint32_t record_words;
    uint32_t record_stride;
};
static_assert(sizeof(Rings) == 48);

struct RowSource {
    uint8_t* data;
    uint32_t kind;
    uint32_t rows;
    uint32_t columns;
    uint32_t pitch;
};
static_assert(sizeof(RowSource) == 24);

struct KPlan {
    uint32_t tiles;
    uint32_t blocks;
    uint32_t workers;
    uint32_t pieces;
    uint32_t whole;
    uint32_t shares;
};
static_assert(sizeof(KPlan) == 24);

struct PieceRows {
    float* data;
    KPlan plan;
    uint32_t width;
};
static_assert(sizeof(PieceRows) == 40);

struct PiecedProduct {
    PieceRows sums;
    float* bias;
    float* scale;
    uint32_t outputs;
    uint32_t gated;
};
static_assert(sizeof(PiecedProduct) == 64);

struct RoundedRows {
    uint8_t* data;
    uint32_t height;
    uint32_t blocks;
    uint32_t half;
};
static_assert(sizeof(RoundedRows) == 24);

struct Findings {
    RecordHeader* header;
    RecordRow* rows;
    uint32_t row_count;
};
static_assert(sizeof(Findings) == 24);

struct KvView {
    uint8_t* keys;
    uint8_t* values;
    int32_t layout;
    uint32_t blocks;
    uint32_t block_size;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t table_rows;
};
static_assert(sizeof(KvView) == 40);

struct StateView {
    float* matrices;
    float* keys;
    float* values;
    float* decays;
    float* inputs;
    float* saved_matrices;
    float* saved_inputs;
    uint32_t slots;
    uint32_t snapshots;
    uint32_t heads;
    uint32_t groups;
    uint32_t rows;
    uint32_t columns;
    uint32_t entries;
    uint32_t conv_inputs;
    uint32_t conv_channels;
    uint32_t conv_width;
};
static_assert(sizeof(StateView) == 96);
