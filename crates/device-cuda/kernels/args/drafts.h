// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct DraftArgs {
    Slots slots;
    Tables step;
    Tables before;
    Tables draft;
    Findings record;
    int32_t* plan;
    int32_t* source;
    int32_t* fault;
    int32_t place;
};
static_assert(sizeof(DraftArgs) == 360);

struct TakeArgs {
    Slots slots;
    Tables draft;
    int32_t* tokens;
    int32_t place;
};
static_assert(sizeof(TakeArgs) == 160);

struct KeepArgs {
    Tables step;
    Matrix states;
    float* kept;
    int32_t* fault;
    uint32_t blocks;
    uint32_t table_rows;
};
static_assert(sizeof(KeepArgs) == 136);

struct StatesArgs {
    Matrix states;
    Matrix out;
    float* kept;
    int32_t* source;
    int32_t* fault;
    uint32_t blocks;
};
static_assert(sizeof(StatesArgs) == 96);

struct ClearArgs {
    Tables step;
    KvView cache;
    int32_t* plan;
    int32_t* fault;
};
static_assert(sizeof(ClearArgs) == 136);
