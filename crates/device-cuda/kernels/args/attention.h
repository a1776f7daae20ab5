// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.
#pragma once
#include "paceline.cuh"
#include "args/views.h"

struct StoreKvArgs {
    Matrix q;
    Matrix k;
    Matrix v;
    Matrix angles;
    float* q_norm;
    float* k_norm;
    float eps;
    KvView kv;
    Tables tables;
    int32_t* fault;
};
static_assert(sizeof(StoreKvArgs) == 280);

struct AttentionArgs {
    Matrix q;
    Matrix gate;
    Matrix out;
    RoundedRows rounded;
    KvView kv;
    Tables tables;
    float* partial;
    float* scales;
    float* totals;
    int32_t* list;
    float scale;
    int32_t few;
    uint32_t window;
    uint32_t group;
    uint32_t splits;
    int32_t* fault;
};
static_assert(sizeof(AttentionArgs) == 304);
