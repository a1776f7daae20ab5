// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct SortArgs {
    int32_t* ids;
    int32_t* live;
    int32_t* counts;
    int32_t* strip_expert;
    int32_t* slot_row;
    int32_t* pair_slot;
    uint32_t bucket;
    uint32_t chosen;
    uint32_t experts;
    uint32_t height;
};
static_assert(sizeof(SortArgs) == 64);

struct CombineArgs {
    Matrix results;
    Matrix weights;
    Matrix out;
    int32_t* pair_slot;
    uint32_t chosen;
};
static_assert(sizeof(CombineArgs) == 112);
