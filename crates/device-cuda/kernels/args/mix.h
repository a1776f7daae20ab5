// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct MixArgs {
    Matrix x;
    Matrix gate;
    Matrix a;
    Matrix b;
    Matrix mixed;
    Matrix out;
    RoundedRows rounded;
    PieceRows pieces;
    uint32_t x_from;
    uint32_t gate_from;
    uint32_t a_from;
    uint32_t b_from;
    float* taps;
    float* bias;
    float* decay;
    float* dt_bias;
    float* norm;
    float* unit_keys;
    float* unit_queries;
    float* dots;
    float* factors;
    StateView states;
    Tables tables;
    uint32_t queries;
    uint32_t keys;
    uint32_t values;
    uint32_t tiled;
    float eps;
    int32_t* fault;
};
static_assert(sizeof(MixArgs) == 552);
