#!/usr/bin/env python3
"""What PyTorch's attention of prompts reaches on the same machine: the yardstick of prefill.cuh."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = ((256, 16, 4), (128, 32, 8), (64, 32, 8))
PROMPTS = ((1, 1024), (1, 8192), (16, 2048), (1, 32768))
BACKENDS = (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))


def seconds(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2]


for width, heads, kv_heads in SHAPES:
    for count, length in PROMPTS:
        q = torch.randn(count, heads, length, width, device="cuda", dtype=torch.bfloat16)
        # Keys and values of every head, made beforehand: sharing is not timed against it.
        k, v = (torch.randn(count, kv_heads, length, width, device="cuda", dtype=torch.bfloat16).repeat_interleave(heads // kv_heads, 1) for _ in range(2))
        operations = 4 * width * heads * count * length * (length + 1) / 2
        line = f"torch {torch.__version__}, {width} wide, {heads} heads on {kv_heads}, {count} x {length}:"
        for name, backend in BACKENDS:
            try:
                with sdpa_kernel([backend]):
                    time = seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
                line += f" {name} {time * 1e6:.0f} us ({operations / time * 1e-12:.0f} TFLOP/s)"
            except RuntimeError:
                line += f" {name} -"
        print(line)
