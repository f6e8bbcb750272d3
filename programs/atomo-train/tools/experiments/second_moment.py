# SPDX-License-Identifier: Apache-2.0
"""Adam's own second moment beside the factored one of the workers' squares, at equal bits and several rates."""

import argparse

from experiments.arms import Arm, add_arm_options, compare, shorten, uncompressed
from experiments.series import run, series_options

RATES = (0.001, 0.002)
FACTORED = ("--second-moment", "factored")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arm_options(parser, ("uncompressed", "own", "factored"), "0.001 and 0.002", steps=300, batch=8)
    parser.add_argument("--bits", type=float, nargs="+", default=[0.25], help="a parameter")
    options = series_options(parser, "second-moment")
    if options.quick:
        shorten(options, steps=6)
    return options


def common(options):
    return ("--algorithm", "allgather", "--model", "transformer", "--optimizer", "adamw", "--batch", options.batch,
            "--warmup", options.steps // 6)


def arms(options):
    found = [uncompressed(RATES)]
    for bits in options.bits:
        codec = ("--codec", f"atomo:bits={bits:g}")
        found.append(Arm("own", codec, RATES, f"{bits:g} bits"))
        found.append(Arm("factored", (*codec, *FACTORED), RATES, f"{bits:g} bits"))
    return found


def main():
    options = arguments()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers over an all-gather, batch "
            f"{options.batch} each, {options.steps} steps, AdamW, rates cosine behind {options.steps // 6} steps of rising, no "
            f"memory: test bits a character. Bytes count what is told of squares.")
    return compare(options, arms(options), common(options), "bits_per_character", text,
                   f"a transformer of 3.3 M parameters, {options.workers} workers")


if __name__ == "__main__":
    run(main)
