// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct ClockArgs {
    uint64_t* time;
};
static_assert(sizeof(ClockArgs) == 8);
