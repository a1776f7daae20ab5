// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct PrepareArgs {
    Rings rings;
    Slots slots;
    Tables step;
    Findings record;
    int32_t* plan;
    int32_t* fault;
    uint64_t clock;
    uint32_t room;
};
static_assert(sizeof(PrepareArgs) == 248);

struct AcceptArgs {
    Slots slots;
    Tables step;
    Findings record;
    int32_t* plan;
    int32_t* tokens;
    int32_t* fault;
};
static_assert(sizeof(AcceptArgs) == 192);

struct PoolArgs {
    Tables step;
    Matrix states;
    int32_t* plan;
    float* sums;
    float* done;
    uint32_t vectors;
};
static_assert(sizeof(PoolArgs) == 144);

struct MarkArgs {
    RecordHeader* header;
    uint64_t clock;
};
static_assert(sizeof(MarkArgs) == 16);

struct PublishArgs {
    Rings rings;
    Slots slots;
    Tables step;
    Findings record;
    int32_t* plan;
    Logprobs* logprobs;
    float* done;
    int32_t* fault;
    uint64_t clock;
    uint32_t vectors;
    uint32_t width;
};
static_assert(sizeof(PublishArgs) == 264);
