# SPDX-License-Identifier: Apache-2.0
"""What is sent of local steps: DiLoCo uncompressed, in bits, and sparse, for a transformer at several lengths of rounds.

diloco sends f32, atomo and ef-atomo so many bits a parameter and round, all with an outer step of Nesterov, rate 0.7 and
momentum 0.9 (arXiv 2311.08105). sparseloco sends 64 of 4096 entries in 2 bits and has a memory that keeps 0.95 in place of
the outer momentum (arXiv 2508.15706, algorithm 1). ef-atomo keeps atoms by their size and sends later what it left out.
average and atomo-average step to the plain average, as sparseloco does: of f32, and of atomo's messages of as many bytes;
average-in-bits does so with as many bits as atomo, eden-in-bits and trellis-in-bits with rotated blocks (docs/catalogue.md).
eden-in-bits has so many bits in matrices and one bit of atomo's in vectors; trellis-in-bits has so many in matrices that Muon
steps, and .45 of atomo's in all that AdamW does: tables and vectors. first-block-in-bits has as many, but gives them where noise
costs most: five times as many an entry to what joins the heads of the first block, two and a half to its queries, keys and
values, one and a quarter to its perceptron, and five sevenths to the other blocks.
ef-average and decay-average do so with a memory, whole or decaying as sparseloco's does; dgc has DiLoCo's momentum at the
workers, in front of the codec and masked (arXiv 1712.01887, section 3), and a plain step at DiLoCo's rate behind it.
"""

import argparse

from experiments.arms import Arm, add_arm_options, compare, shorten
from experiments.series import run, series_options
from experiments.trainings import UNCOMPRESSED

RATES = (0.001, 0.002, 0.003)
NESTEROV = ("--outer-optimizer", "nesterov", "--outer-lr", 0.7, "--outer-momentum", 0.9)
PLAIN = ("--outer-optimizer", "sgd", "--outer-lr", 1)
WITHOUT_MOMENTUM = ("--outer-optimizer", "sgd", "--outer-lr", 0.7)
INNER = {"adamw": "AdamW", "muon": "Muon"}
NEAREST = "atomo:bits=0.148,content=nearest"  # as many bytes as sparseloco's
VECTORS = "*.bias = atomo:bits=1; *norm*.weight = atomo:bits=1"
# Matrices that Muon steps, by a codec of its own.
MATRICES = "*norm*.weight = atomo:bits=0.45; blocks.*.weight = {}; * = atomo:bits=0.45"
# Times as many bits an entry of what Muon steps; the first pattern that matches counts.
MORE_TO_THE_FIRST = {"blocks.0.attended.weight": 5, "blocks.0.qkv.weight": 2.5, "blocks.0.*.weight": 1.25, "blocks.*.weight": 5 / 7}


def first_block(bits):
    """A policy. From one bit on a trellis has whole ones, up to four."""
    def of(share):
        return share if share < 1 else min(round(share), 4)

    rules = (f"{pattern} = trellis:bits={of(times * bits):.4g},states=4096" for pattern, times in MORE_TO_THE_FIRST.items())
    return f"*norm*.weight = atomo:bits=0.45; {'; '.join(rules)}; * = atomo:bits=0.45"


# Outer optimiser and codec, or a policy; those of AT_BITS get so many bits a parameter.
FIXED = {"diloco": (NESTEROV, UNCOMPRESSED), "average": (PLAIN, UNCOMPRESSED),
         "sparseloco": (PLAIN, "ef:decay=0.95+topk:chunk=4096,k=64,values=2"), "atomo-average": (PLAIN, "atomo:bits=0.148"),
         "ef-average": (PLAIN, f"ef+{NEAREST}"), "decay-average": (PLAIN, f"ef:decay=0.95+{NEAREST}"),
         "dgc": (WITHOUT_MOMENTUM, f"dgc:momentum=0.9+{NEAREST}")}
AT_BITS = {"atomo": (NESTEROV, "--codec", "atomo:bits={:g}".format), "average-in-bits": (PLAIN, "--codec", "atomo:bits={:g}".format),
           "eden-in-bits": (PLAIN, "--policy", f"{VECTORS}; * = eden:bits={{:g}}".format),
           "trellis-in-bits": (PLAIN, "--policy", MATRICES.format("trellis:bits={:g},states=4096").format),
           "first-block-in-bits": (PLAIN, "--policy", first_block),
           "ef-atomo": (NESTEROV, "--codec", "ef+atomo:bits={:g},content=nearest".format)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arm_options(parser, (*FIXED, *AT_BITS), "0.001 to 0.003, of the local steps", steps=600, batch=8)
    parser.add_argument("--bits", type=float, nargs="+", default=[1, 0.25],
                        help="a parameter and round, of atomo, ef-atomo and the arms in bits")
    parser.add_argument("--local-steps", type=int, nargs="+", default=[10, 30, 100], help="of a round")
    parser.add_argument("--inner", nargs="+", choices=INNER, default=list(INNER), help="optimisers of the local steps")
    options = series_options(parser, "outer")
    if options.quick:
        shorten(options, steps=4)
        options.bits, options.local_steps, options.inner = options.bits[:1], [2], options.inner[:1]
    return options


def common(options):
    return ("--algorithm", "local", "--model", "transformer", "--batch", options.batch, "--warmup", options.steps // 6)


def arms(options):
    found = []
    for inner in options.inner:
        for length in options.local_steps:
            setting = f"{inner}, rounds of {length}"
            local = ("--optimizer", inner, "--local-steps", length)
            found += [Arm(kind, (*local, *outer, "--codec", codec), RATES, setting)
                      for kind, (outer, codec) in FIXED.items()]
            found += [Arm(kind, (*local, *outer, option, text(bits)), RATES, setting, f"{bits:g} bits")
                      for bits in options.bits for kind, (outer, option, text) in AT_BITS.items()]
    return found


def main():
    options = arguments()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers, batch {options.batch} each, "
            f"{options.steps} steps, rates of the local steps that rise for {options.steps // 6} steps: test bits a "
            f"character. The outer step is of Nesterov, rate 0.7 and momentum 0.9, for sparseloco and averages plain at rate 1. Bytes a step "
            f"are those of a round over its steps.")
    return compare(options, arms(options), common(options), "bits_per_character", text,
                   f"local steps, a transformer of 3.3 M parameters, {options.workers} workers")


if __name__ == "__main__":
    run(main)
