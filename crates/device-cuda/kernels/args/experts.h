// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct SortArgs {
    int32_t* ids;
    int32_t* live;
    int32_t* counts;
    uint64_t* strip_up;
    uint64_t* strip_down;
    uint32_t* strip_slots;
    int32_t* slot_row;
    int32_t* pair_slot;
    uint64_t* up;
    uint64_t* down;
    uint32_t bucket;
    uint32_t chosen;
    uint32_t experts;
    uint32_t height;
    uint32_t together;
};
static_assert(sizeof(SortArgs) == 104);

struct RouteFewArgs {
    PiecedProduct product;
    RouteArgs route;
    SortArgs sort;
};
static_assert(sizeof(RouteFewArgs) == 288);

struct CombineArgs {
    Matrix results;
    Matrix weights;
    Matrix out;
    int32_t* pair_slot;
    uint32_t chosen;
};
static_assert(sizeof(CombineArgs) == 112);

struct CombineNormArgs {
    CombineArgs experts;
    ResidualNormArgs norm;
    RoundedRows rounded;
    uint32_t early;
};
static_assert(sizeof(CombineNormArgs) == 224);
