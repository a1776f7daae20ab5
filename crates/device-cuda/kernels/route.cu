// Choosing experts: a warp per row, whose logits it copies.
#include "route.cuh"

extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteArgs a) {
    enter();
    extern __shared__ float own[];
    const int row = blockIdx.x, columns = a.logits.columns;
    if (row >= live_rows(a.logits)) return;
    const float* logits = row_of(a.logits, row);
    for (int i = threadIdx.x; i < columns; i += 32) own[i] = logits[i];
    __syncwarp();
    store_chosen(a, row, choose_experts(a, own, own + columns));
}
