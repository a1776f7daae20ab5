// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct EmbedArgs {
    Matrix out;
    RowSource table;
    TokenRow* tokens;
    int32_t* fault;
    float scale;
};
static_assert(sizeof(EmbedArgs) == 80);

struct GatherArgs {
    Matrix x;
    Matrix out;
    RoundedRows rounded;
    int32_t* index;
    LogitsRow* logits;
    int32_t* fault;
};
static_assert(sizeof(GatherArgs) == 112);

struct CopyArgs {
    Matrix x;
    Matrix out;
};
static_assert(sizeof(CopyArgs) == 64);

struct SpreadArgs {
    Matrix x;
    Matrix out;
    int32_t* columns;
    int32_t* fault;
};
static_assert(sizeof(SpreadArgs) == 80);

struct AnglesArgs {
    Matrix out;
    TokenRow* tokens;
    float* frequencies;
    uint32_t count;
    float factor;
};
static_assert(sizeof(AnglesArgs) == 56);
