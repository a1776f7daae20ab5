// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct FinishArgs {
    float* pieces;
    float* bias;
    float* scale;
    KPlan plan;
    uint32_t width;
    uint32_t outputs;
    uint32_t gated;
};
static_assert(sizeof(FinishArgs) == 56);

struct FinishRowsArgs {
    FinishArgs product;
    Matrix out;
    RoundedRows rounded;
    float gate_scale;
};
static_assert(sizeof(FinishRowsArgs) == 120);

struct FinishAddNormArgs {
    FinishArgs product;
    ResidualNormArgs norm;
    RoundedRows rounded;
};
static_assert(sizeof(FinishAddNormArgs) == 160);
