#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test programs once for each of OpenBLAS's kernels that this processor can execute.

OpenBLAS picks its kernels by the processor, and kernels round differently: what holds for those of one machine has to
hold for all. With another BLAS the programs run as they are, as often.

    blas_kernels.py PROGRAM...
"""

import os
import subprocess
import sys

# What each needs, in the words of /proc/cpuinfo.
KERNELS = {
    "Prescott": {"pni"},
    "Nehalem": {"sse4_2"},
    "Sandybridge": {"avx"},
    "Haswell": {"avx2", "fma"},
    "SkylakeX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
}


def flags_of_processor():
    """The instruction sets of this processor; none where the system does not tell, or it is no x86."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}
    except OSError:
        return set()


def main(programs):
    if not programs:
        sys.exit("blas_kernels.py: no program was named")
    failed = []
    kernels = [name for name, needs in KERNELS.items() if needs <= flags_of_processor()]
    for kernel in kernels or ["default"]:
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1")
        if kernels:
            environment["OPENBLAS_CORETYPE"] = kernel
        for program in programs:
            done = subprocess.run([program, "--gtest_brief=1"], env=environment, capture_output=True, text=True)
            name = os.path.basename(program)
            print(f"{kernel:<12} {name:<24} {'passed' if done.returncode == 0 else 'FAILED'}")
            if done.returncode != 0:
                failed.append(f"{name} with {kernel}")
                print(done.stdout[-4000:] + done.stderr[-4000:])
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
