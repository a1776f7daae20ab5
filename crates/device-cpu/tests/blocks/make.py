"""Blocks of every quantised GGUF type with the values that the Python package `gguf` gives them.

A file is a number of blocks as they are stored, then their values as 32-bit floats. Blocks are random bytes with finite scales.
Run in this folder, with `gguf` (0.19) and numpy installed; what it writes is committed.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Where the 16-bit scales of a block are, and how many blocks there are in the file.
TYPES = {
    "Q4_0": ([0], 24),
    "Q4_1": ([0, 2], 24),
    "Q5_0": ([0], 24),
    "Q5_1": ([0, 2], 24),
    "Q8_0": ([0], 24),
    "Q2_K": ([80, 82], 4),
    "Q3_K": ([108], 4),
    "Q4_K": ([0, 2], 4),
    "Q5_K": ([0, 2], 4),
    "Q6_K": ([208], 4),
    "IQ4_NL": ([0], 24),
    "IQ4_XS": ([0], 4),
}

for name, (scales, count) in TYPES.items():
    random = np.random.default_rng(list(name.encode()))
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in scales:
        # Half of the scales are of the usual size, the others anything that is finite.
        usual = random.normal(0, 0.01, count).astype(np.float16)
        any_bits = random.integers(0, 1 << 16, count, dtype=np.uint16).view(np.float16)
        any_bits = np.where(np.isfinite(any_bits), any_bits, np.float16(1))
        chosen = np.where(np.arange(count) % 2 == 0, usual, any_bits).astype("<f2")
        blocks[:, at : at + 2] = chosen.view(np.uint8).reshape(count, 2)
    values = dequantize(blocks, kind).astype("<f4")
    with open(f"{name}.bin", "wb") as file:
        file.write(blocks.tobytes())
        file.write(values.tobytes())
