// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct SampleArgs {
    Matrix logits;
    Tables step;
    Slots slots;
    int32_t* plan;
    int32_t* tokens;
    Logprobs* logprobs;
    int32_t* fault;
    uint64_t* parts;
    int32_t* open;
    float* copies;
    PiecedProduct product;
    int32_t options;
};
static_assert(sizeof(SampleArgs) == 304);
