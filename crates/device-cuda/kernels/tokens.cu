// Rows that are looked up, picked, copied and spread, and the angles of positions: a thread block per row, four or eight elements per thread and load.
#include "args/tokens.h"
#include "rounded.cuh"

constexpr int MOVERS = 256;

// All threads of a block copy a row.
__device__ __forceinline__ void copy_row(float* to, const float* from, int columns) {
    for (int column = threadIdx.x * 4; column < columns; column += MOVERS * 4) store_four(to, column, columns, load_four(from, column, columns));
}

// Eight elements of a tiled row, from a column that is a multiple of eight on; what lies past the row is zero there.
template <class Element> __device__ __forceinline__ void load_eight(const RowSource& table, uint32_t row, uint32_t column, float (&x)[8]) {
    const uint4 bytes = *reinterpret_cast<const uint4*>(table.data + tiled_offset(row, column, table.pitch));
    const Element* elements = reinterpret_cast<const Element*>(&bytes);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = static_cast<float>(elements[i]);
}

extern "C" __global__ void __launch_bounds__(MOVERS) embed(const __grid_constant__ EmbedArgs a) {
    enter();
    const int row = blockIdx.x, columns = a.out.columns;
    if (row >= live_rows(a.out)) return;
    uint32_t id = a.tokens[row].id;
    if (id >= a.table.rows) {
        if (threadIdx.x == 0) report(a.fault, RecordHeader::BAD_TOKEN);
        id = 0;
    }
    float* out = row_of(a.out, row);
    if (a.table.kind == WEIGHT_F32) {
        const float* from = reinterpret_cast<const float*>(a.table.data) + static_cast<size_t>(id) * a.table.pitch;
        for (int column = threadIdx.x * 4; column < columns; column += MOVERS * 4) store_four(out, column, columns, each(load_four(from, column, columns), [&](float x) { return x * a.scale; }));
        return;
    }
    for (int column = threadIdx.x * 8; column < columns; column += MOVERS * 8) {
        float x[8];
        if (a.table.kind == WEIGHT_BF16) load_eight<bf16>(a.table, id, column, x);
        else if (a.table.kind == WEIGHT_F16) load_eight<__half>(a.table, id, column, x);
        else
            for (int i = 0; i < 8; i++) x[i] = load_element(a.table, id, column + i);
#pragma unroll
        for (int i = 0; i < 8; i += 4) store_four(out, column + i, columns, make_float4(x[i] * a.scale, x[i + 1] * a.scale, x[i + 2] * a.scale, x[i + 3] * a.scale));
    }
}

// Row `from` of x, if there is one.
__device__ __forceinline__ void pick_row(const GatherArgs& a, int32_t from) {
    if (static_cast<uint32_t>(from) >= static_cast<uint32_t>(live_rows(a.x))) {
        if (threadIdx.x == 0) report(a.fault, RecordHeader::BAD_PLAN);
        return;
    }
    for (int column = threadIdx.x * 4, columns = a.out.columns; column < columns; column += MOVERS * 4) {
        const float4 x = load_four(row_of(a.x, from), column, columns);
        store_result(a.out, blockIdx.x, column, x);
        store_rounded(a.rounded, blockIdx.x, column, x);
    }
}

extern "C" __global__ void __launch_bounds__(MOVERS) gather(const __grid_constant__ GatherArgs a) {
    enter();
    if (blockIdx.x < live_rows(a.out)) pick_row(a, a.index[blockIdx.x]);
}

extern "C" __global__ void __launch_bounds__(MOVERS) gather_sampled(const __grid_constant__ GatherArgs a) {
    enter();
    if (blockIdx.x < live_rows(a.out)) pick_row(a, a.logits[blockIdx.x].token);
}

extern "C" __global__ void __launch_bounds__(MOVERS) copy_rows(const __grid_constant__ CopyArgs a) {
    enter();
    if (blockIdx.x < live_rows(a.out)) copy_row(row_of(a.out, blockIdx.x), row_of(a.x, blockIdx.x), a.out.columns);
}

// The thread blocks of a row see to equal parts of its columns.
extern "C" __global__ void __launch_bounds__(MOVERS) spread(const __grid_constant__ SpreadArgs a) {
    enter();
    const int row = blockIdx.y;
    if (row >= live_rows(a.out)) return;
    const uint32_t columns = a.out.columns, part = (columns + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * part, end = min(begin + part, columns);
    float* out = row_of(a.out, row);
    for (uint32_t column = begin + threadIdx.x; column < end; column += MOVERS) out[column] = __int_as_float(0xff800000);
    __syncthreads();
    const float* x = row_of(a.x, row);
    for (uint32_t i = threadIdx.x; i < a.x.columns; i += MOVERS) {
        const uint32_t column = a.columns[i];
        if (column >= begin && column < end) out[column] = x[i];
        else if (column >= columns) report(a.fault, RecordHeader::BAD_TOKEN);
    }
}

// The angle is an f32 product.
extern "C" __global__ void __launch_bounds__(MOVERS) rope_angles(const __grid_constant__ AnglesArgs a) {
    enter();
    const int row = blockIdx.x;
    if (row >= live_rows(a.out)) return;
    const float position = static_cast<float>(a.tokens[row].position);
    float* out = row_of(a.out, row);
    for (uint32_t i = threadIdx.x; i < a.count; i += MOVERS) {
        float sine, cosine;
        sincosf(position * a.frequencies[i], &sine, &cosine);
        out[i] = cosine * a.factor, out[a.count + i] = sine * a.factor;
    }
}
