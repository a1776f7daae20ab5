// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct NgramArgs {
    Slots slots;
    Tables step;
    int32_t* plan;
    int32_t* entries;
    uint64_t buckets;
    int32_t min;
    int32_t max;
    int32_t chain_min;
};
static_assert(sizeof(NgramArgs) == 184);
