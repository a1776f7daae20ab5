// Building blocks of the kernels: the PTX that CUDA C++ has no words for, once, with the rules that go with it.
//
// Programmatic dependent launch. A kernel may start before the one ahead of it has ended. Every thread block executes `depend()` before it
// touches anything that a kernel of the step has written, also a block without work: `wait` covers the direct predecessor alone, and older
// kernels only because that one waited too. Before `depend()` weights may be read and nothing written. So may tables of the step, and what earlier steps left in caches: the kernel behind
// those that write tables begins when they have ended (`enqueue_fenced`), and all others behind that one. No `__restrict__` and no `__ldg`
// on data of the step: both let the compiler move a load above the wait.
//
// Below sm_90 there are neither dependent launches nor bulk copies nor wgmma: what is about those is left out there, and kernels that need them
// have another path or are not compiled (`HOPPER`).
#pragma once
#include "abi.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using namespace paceline;
using bf16 = __nv_bfloat16;

// Dependent launches, barriers and bulk copies.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SM90 1
#else
#define SM90 0
#endif
// wgmma.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
#else
#define HOPPER 0
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// --- dependent launch
__device__ __forceinline__ void release_dependents() {
#if SM90
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void depend() {
#if SM90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// What a plain kernel begins with: let the next one start, then wait for the one ahead.
__device__ __forceinline__ void enter() {
    release_dependents();
    depend();
}

// --- barriers by number, of some warps of a thread block: 0 is `__syncthreads`. Who announces does not wait.
__device__ __forceinline__ void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ __forceinline__ void announce(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// --- barriers in shared memory, by address
__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() {
#if SM90
    asm volatile("fence.mbarrier_init.release.cluster;");
#endif
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
#if SM90
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @done bra over; bra again; over: }" ::"r"(bar), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred done; again: mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1; @done bra over; bra again; over: }" ::"r"(bar), "r"(parity)
                 : "memory");
#endif
}

// --- clusters: thread blocks that reach each other's shared memory. Nobody may leave while another may still reach in.
__device__ __forceinline__ int cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}
__device__ __forceinline__ void cluster_together() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
// The place in thread block `rank` that corresponds to `p` in this one.
__device__ __forceinline__ uint32_t place_of(const void* p, int rank) {
    uint32_t to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(p)), "r"(rank));
    return to;
}
__device__ __forceinline__ void store_at(uint32_t place, uint64_t x) { asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(place), "l"(x) : "memory"); }
__device__ __forceinline__ uint32_t load_at(uint32_t place) {
    uint32_t x;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(place) : "memory");
    return x;
}
__device__ __forceinline__ uint32_t add_at(uint32_t place, uint32_t x) {
    uint32_t before;
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(place), "r"(x) : "memory");
    return before;
}

// Asks for a line of weights: a load behind the wait finds it in L2.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// --- copies from global to shared memory that complete on a barrier
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// The same of what is read once in a step, such as weights that stream by: such lines leave L2 first, so that what the next kernel reads stays there.
__device__ __forceinline__ void bulk_load_once(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile(
        "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
        " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], policy; }" ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

// --- copies from shared to global memory, in groups of the thread that asks for them: what they read may be written again, or what they write is there
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// --- copies of sixteen bytes, or four, per thread that complete in groups
__device__ __forceinline__ void copy_async(void* to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory"); }
__device__ __forceinline__ void copy_async_word(void* to, const void* from) { asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory"); }
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Arrives at a barrier, whose count has room for it, when this thread's copies have completed.
__device__ __forceinline__ void copies_arrive(uint32_t bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
template <int Left> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory"); }

// --- wgmma: operands in shared memory, rows of 64 bf16 (128 bytes) in the 128-byte swizzle, 8 rows per kilobyte
__device__ __forceinline__ uint64_t operand(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
// The same for an operand kept by rows of K: columns in groups of 64, `stride` bytes apart.
__device__ __forceinline__ uint64_t operand_by_rows(uint32_t address, uint32_t stride) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(stride >> 4) << 16 | (64ull << 32) | (1ull << 62);
}
// What threads have stored in shared memory is seen by wgmma and bulk copies behind the next barrier.
__device__ __forceinline__ void stores_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Left> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory"); }

// Registers that wgmma reads or writes are its own until the wait: behind that, this says that they are ours again.
template <int N> __device__ __forceinline__ void regained(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N, int M> __device__ __forceinline__ void regained(uint32_t (&x)[N][M]) {
#pragma unroll
    for (int i = 0; i < N * M; i++) asm volatile("" : "+r"(x[i / M][i % M])::"memory");
}

template <int Count> __device__ __forceinline__ void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count)); }
template <int Count> __device__ __forceinline__ void registers_give() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count)); }

__device__ __forceinline__ uint32_t pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}
