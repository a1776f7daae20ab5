// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct ConvArgs {
    Matrix x;
    float* weight;
    float* bias;
    Matrix out;
    StateView states;
    Tables tables;
    uint32_t strips;
    int32_t* fault;
};
static_assert(sizeof(ConvArgs) == 272);

struct RecurArgs {
    Matrix keys;
    Matrix queries;
    Matrix values;
    Matrix a;
    Matrix b;
    Matrix out;
    float* decay;
    float* dt_bias;
    float* skip;
    float least;
    float most;
    float* unit_keys;
    float* unit_queries;
    float* dots;
    float* factors;
    float* entered;
    StateView states;
    Tables tables;
    uint32_t tiled;
    uint32_t leaves;
    uint32_t run;
    int32_t* fault;
};
static_assert(sizeof(RecurArgs) == 464);
