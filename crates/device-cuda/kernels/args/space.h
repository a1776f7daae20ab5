// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct SpaceArgs {
    Matrix x;
    Matrix dt;
    Matrix mixed;
    Matrix out;
    float* taps;
    float* bias;
    float* decay;
    float* dt_bias;
    float* skip;
    float* dots;
    StateView states;
    Tables tables;
    uint32_t queries;
    uint32_t keys;
    uint32_t values;
    float least;
    float most;
    int32_t* fault;
};
static_assert(sizeof(SpaceArgs) == 384);
