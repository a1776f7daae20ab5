// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct RoundArgs {
    Matrix x;
    uint8_t* to;
    int32_t* rows;
    int32_t* slots;
    uint32_t strips;
    uint32_t height;
    uint32_t blocks;
    float gate_scale;
};
static_assert(sizeof(RoundArgs) == 72);

struct StreamArgs {
    uint8_t* weight;
    uint8_t* inputs;
    float* pieces;
    int32_t* live;
    KPlan plan;
    uint32_t finishes;
    uint32_t gated;
    float gate_scale;
    Matrix out;
    float* bias;
    float* scale;
    RoundedRows rounded;
};
static_assert(sizeof(StreamArgs) == 144);

struct WideArgs {
    uint8_t* weight;
    uint8_t* inputs;
    Matrix out;
    float* bias;
    float* scale;
    int32_t* live;
    uint64_t* weights;
    uint32_t* slots;
    KPlan plan;
    uint32_t first_tile;
    uint32_t tiles;
    RoundedRows rounded;
    uint32_t gated;
    float gate_scale;
    uint32_t together;
    uint32_t early;
};
static_assert(sizeof(WideArgs) == 160);
