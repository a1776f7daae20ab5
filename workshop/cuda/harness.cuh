// What the programs that check and time kernels share.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <functional>

#define CHECK(call)                                                                                       \
    do {                                                                                                  \
        cudaError_t error_ = (call);                                                                      \
        if (error_ != cudaSuccess) {                                                                      \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));                        \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

inline int misses = 0;
inline void expect(bool holds, const char* what) {
    if (!holds) printf("MISS: %s\n", what), misses++;
}

// A value in [-1, 1) that is a function of its name, rounded to bf16: the host can ask for any of them.
__host__ __device__ inline float noise(uint32_t seed, uint64_t index) {
    uint64_t z = index * 0x9e3779b97f4a7c15ull + (static_cast<uint64_t>(seed) << 32 | 0x7f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return static_cast<float>(static_cast<int>(z >> 40) - (1 << 23)) * (1.0f / (1 << 23));
}
__host__ __device__ inline float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

template <class T> T* device_memory(size_t count) {
    T* p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    return p;
}

// A tensor map of a row-major bf16 matrix in boxes of `box` rows and 64 columns.
inline CUtensorMap tensor_map(const void* data, int columns, int rows, int box) {
    static auto encode = [] {
        void* f;
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
    }();
    CUtensorMap map;
    cuuint64_t size[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)}, stride[1] = {static_cast<cuuint64_t>(columns) * 2};
    cuuint32_t boxes[2] = {64, static_cast<cuuint32_t>(box)}, steps[2] = {1, 1};
    CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, stride, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) printf("tensor map: error %d\n", result), exit(1);
    return map;
}

// A launch that may begin before the one ahead of it has ended.
template <class Kernel, class... Args> void launch(cudaStream_t stream, Kernel kernel, dim3 grid, int threads, int memory, bool pdl, Args... args) {
    if (memory > 48 << 10) CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = memory, config.stream = stream;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attribute, config.numAttrs = pdl;
    CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

// Microseconds of what `record` puts on the stream, captured as one graph; the median of `rounds` after a warm-up.
inline float graph_time(cudaStream_t stream, const std::function<void()>& record, int rounds = 11) {
    cudaGraph_t graph;
    cudaGraphExec_t program;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    record();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&program, graph, 0));
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    float times[64];
    for (int i = -2; i < rounds; i++) {
        CHECK(cudaEventRecord(a, stream));
        CHECK(cudaGraphLaunch(program, stream));
        CHECK(cudaEventRecord(b, stream));
        CHECK(cudaEventSynchronize(b));
        if (i >= 0) CHECK(cudaEventElapsedTime(&times[i], a, b));
    }
    for (int i = 1; i < rounds; i++)
        for (int j = i; j > 0 && times[j] < times[j - 1]; j--) { float t = times[j]; times[j] = times[j - 1]; times[j - 1] = t; }
    CHECK(cudaGraphExecDestroy(program));
    CHECK(cudaGraphDestroy(graph));
    return times[rounds / 2] * 1e3f;
}
