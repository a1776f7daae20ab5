// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct FinishRowsArgs {
    PiecedProduct product;
    Matrix out;
    RoundedRows rounded;
    float gate_scale;
    uint32_t first_column;
};
static_assert(sizeof(FinishRowsArgs) == 128);

struct FinishAddNormArgs {
    PiecedProduct product;
    ResidualNormArgs norm;
    RoundedRows rounded;
};
static_assert(sizeof(FinishAddNormArgs) == 168);
