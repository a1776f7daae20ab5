// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct ExactArgs {
    Matrix x;
    Matrix out;
    float* weight;
    float* bias;
    float* scale;
    uint64_t* weights;
    int32_t* rows;
    uint32_t pitch;
};
static_assert(sizeof(ExactArgs) == 112);

struct NormArgs {
    Matrix x;
    Matrix out;
    float* weight;
    RoundedRows rounded;
    float eps;
};
static_assert(sizeof(NormArgs) == 104);

struct ResidualNormArgs {
    Matrix residual;
    Matrix out;
    float* weight;
    float scale;
    float eps;
};
static_assert(sizeof(ResidualNormArgs) == 80);

struct AddNormArgs {
    Matrix delta;
    ResidualNormArgs norm;
    RoundedRows rounded;
};
static_assert(sizeof(AddNormArgs) == 136);

struct GatedNormArgs {
    Matrix x;
    Matrix gate;
    Matrix out;
    float* weight;
    RoundedRows rounded;
    uint32_t weight_per_column;
    uint32_t group;
    uint32_t gate_first;
    float eps;
};
static_assert(sizeof(GatedNormArgs) == 144);

struct AddArgs {
    Matrix acc;
    Matrix x;
    Matrix gate;
    uint32_t gated;
    float scale;
};
static_assert(sizeof(AddArgs) == 104);

struct ActivateArgs {
    Matrix x;
    Matrix out;
    RoundedRows rounded;
    float gate_scale;
};
static_assert(sizeof(ActivateArgs) == 96);

struct RouteArgs {
    Matrix logits;
    Matrix weights;
    int32_t* ids;
    float* bias;
    uint32_t chosen;
    uint32_t sigmoid;
    uint32_t groups;
    uint32_t kept_groups;
    uint32_t renormalise;
    uint32_t shared;
    float scale;
    int32_t* fault;
};
static_assert(sizeof(RouteArgs) == 120);
