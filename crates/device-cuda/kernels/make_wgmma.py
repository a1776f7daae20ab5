#!/usr/bin/env python3
"""Writes wgmma.cuh: one overload per width and element type. The list of registers is all that differs, and PTX wants it spelt out."""

WIDTHS = (8, 16, 32, 64, 128, 256)
VALUE_WIDTHS = (64, 128, 256)
WEIGHT_WIDTHS = (8, 16, 32, 64, 128)
TYPES = (("false", "bf16"), ("true", "f16"))

HEAD = """// Made by make_wgmma.py; change that.
//
// wgmma<N>(c, a, b, keep): c[64 x N] = (keep ? c : 0) + A[64 x 16] * B[16 x N], bf16 operands in shared memory (f16 with wgmma<N, true>), f32 sums in
// registers. Thread `lane` of warp `w` holds for column pair p of 8-column group j: c[4j + 0, 1] = row 16w + lane / 4, columns 8j + 2 (lane % 4) + {0, 1};
// c[4j + 2, 3] = the same columns of row + 8.
//
// wgmma_values<N>(c, a, b, keep): the same with A in registers, as `mma.sync` has it, and B kept by rows of K: [K][N].
// wgmma_weights<N>(c, a, b, keep): A in registers too, B as in the first.
#pragma once
#include <cstdint>

template <int N, bool Half = false> __device__ __forceinline__ void wgmma(float (&c)[N / 2], uint64_t a, uint64_t b, int keep);
template <int N> __device__ __forceinline__ void wgmma_values(float (&c)[N / 2], const uint32_t (&a)[4], uint64_t b, int keep);
template <int N> __device__ __forceinline__ void wgmma_weights(float (&c)[N / 2], const uint32_t (&a)[4], uint64_t b, int keep);
"""


def overload(width, half, element):
    count = width // 2
    registers = ",".join(f"%{i}" for i in range(count))
    outputs = ",".join(f'"+f"(c[{i}])' for i in range(count))
    return f"""
template <> __device__ __forceinline__ void wgmma<{width}, {half}>(float (&c)[{count}], uint64_t a, uint64_t b, int keep) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0;"
                 "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{element}.{element} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0; }}"
                 : {outputs}
                 : "l"(a), "l"(b), "r"(keep));
}}
"""


def overload_registers(name, width, transposed):
    count = width // 2
    registers = ",".join(f"%{i}" for i in range(count))
    outputs = ",".join(f'"+f"(c[{i}])' for i in range(count))
    return f"""
template <> __device__ __forceinline__ void {name}<{width}>(float (&c)[{count}], const uint32_t (&a)[4], uint64_t b, int keep) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 5}, 0;"
                 "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.bf16.bf16 {{{registers}}}, {{%{count},%{count + 1},%{count + 2},%{count + 3}}}, %{count + 4}, p, 1, 1, {transposed}; }}"
                 : {outputs}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}}
"""


if __name__ == "__main__":
    with open("wgmma.cuh", "w", encoding="utf-8") as file:
        file.write(HEAD)
        file.writelines(overload(width, half, element) for half, element in TYPES for width in WIDTHS)
        file.writelines(overload_registers("wgmma_values", width, 1) for width in VALUE_WIDTHS)
        file.writelines(overload_registers("wgmma_weights", width, 0) for width in WEIGHT_WIDTHS)
