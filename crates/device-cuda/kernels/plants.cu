// Faults on purpose, for `paceline selftest` to find. No engine launches any of these.
//
// `rms_norm_N` are those of norm.cu without the wait for the kernel ahead; `fail` takes the context down.
#include "args/plants.h"
#include "norm.cuh"
#include "rounded.cuh"

template <int Threads> __device__ __forceinline__ void hasty_norm_row(const NormArgs& a) {
    release_dependents(); // and no `depend()`
    const int row = blockIdx.x, columns = a.x.columns;
    if (row >= live_rows(a.x)) return;
    const float* x = row_of(a.x, row);
    float* out = row_of(a.out, row);
    auto load = [&](int c) { return load_four(x, c, columns); };
    norm_columns<Threads>(columns, a.eps, load, load, [&](int c, float4 x, float factor) {
        const float4 y = scaled(x, factor, load_four(a.weight, c, columns));
        store_four(out, c, columns, y);
        store_rounded(a.rounded, row, c, y);
    });
}

#define HASTY_NORM(THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_##THREADS(const __grid_constant__ NormArgs a) { hasty_norm_row<THREADS>(a); }
HASTY_NORM(256)
HASTY_NORM(512)
HASTY_NORM(768)

extern "C" __global__ void fail(const __grid_constant__ FailArgs a) {
    enter();
    if (a.word) asm volatile("trap;");
}
