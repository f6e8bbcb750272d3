# SPDX-License-Identifier: Apache-2.0
"""The names of what codecs are measured beside: the package, then the method."""
import re

POWERSGD_4 = "torch powersgd:rank=4"
NAMES = ("torch powersgd:rank=1", POWERSGD_4, "torch powersgd:rank=16", "torch cast:fp16", "torch cast:bf16",
         "torch topk:keep=0.01", "numpy qsgd:bits=4,bucket=512", "zstd level=1", "blosc2 lz4,level=1,shuffle")
OPERATIONS = ("encode", "decode")


def wanted(size: str, threads: int, pattern: str) -> list[tuple[str, str]]:
    """The names and operations that a regular expression of SIZE/NAME/OPERATION matches; NumPy's has one thread alone."""
    return [(name, operation) for name in NAMES for operation in OPERATIONS
            if (threads == 1 or "numpy" not in name) and re.search(pattern, f"{size}/{name}/{operation}")]
