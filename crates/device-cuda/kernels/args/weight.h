// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct PackArgs {
    uint8_t* stored;
    uint8_t* data;
    uint32_t* not_finite;
    uint32_t stored_type;
    uint32_t stored_bytes;
    uint32_t kind;
    uint32_t pitch;
    uint32_t first_row;
    uint32_t rows;
    uint32_t columns;
    uint32_t gated;
};
static_assert(sizeof(PackArgs) == 56);

struct RandomArgs {
    uint8_t* data;
    uint32_t* picked;
    uint64_t seed;
    float width;
    uint32_t stored_type;
    uint32_t kind;
    uint32_t pitch;
    uint32_t first_row;
    uint32_t rows;
    uint32_t columns;
    uint32_t gated;
};
static_assert(sizeof(RandomArgs) == 56);
