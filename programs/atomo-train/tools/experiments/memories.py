# SPDX-License-Identifier: Apache-2.0
"""Codecs with and without a memory of what was not sent, for a transformer at equal bits and several rates.

The arms at a number of bits a parameter are atomo without a memory; atomo-shares, with the factored second moment and
budgets by each step's rate; atomo-preconditioned, with gradients encoded in units of the fourth root of Adam's second
moment; ef-atomo, which keeps atoms by their size and sends later what it left out; ef-topk; ef21-atomo and ef21-topk,
which send differences to what was sent before (arXiv 2106.05203); ef-chunks, SparseLoCo's messages in every step (arXiv
2508.15706); and demo, DeMo's messages and its step along the sign of their mean (arXiv 2411.19870), at rates of its own.
All others step with AdamW; demo-factored and demo-rates, whose messages have a momentum already, without a first moment.
The memories of demo-rates and ef-atomo-rates keep steps, gradients times their rates (arXiv 1901.09847). At sizes of their
own are f16, qsgd and powersgd, of rank 1.
An arm whose name ends with -factored, and those of demo-rates, have the factored second moment in place of Adam's own; one that
ends with -preconditioned encodes gradients in units of the second moment's fourth root.
"""

import argparse

from experiments.arms import Arm, add_arm_options, compare, shorten, uncompressed
from experiments.messages import chunks_for, topk_for
from experiments.second_moment import FACTORED, PRECONDITIONED, SHARES, common
from experiments.series import run, series_options

RATES = (0.001, 0.002, 0.003, 0.004)
# Of arms whose best rate would be the first or the last of those, and of one that does not step with AdamW.
OWN_RATES = {
    "qsgd": (0.001, 0.002, 0.004, 0.006),
    "powersgd": (0.0005, 0.001, 0.002, 0.004),
    "ef-topk": (0.0005, 0.001, 0.002, 0.004),
    "ef21-topk": (0.0005, 0.001, 0.002, 0.004),
    "ef-chunks": (0.0005, 0.001, 0.002, 0.004),
    "demo": (0.0003, 0.001, 0.003),
    "demo-rates": (0.0007, 0.001, 0.0014),
    "demo-rates-preconditioned": (0.0007, 0.001, 0.0014),
}
# At sizes of their own: what they have on the command line.
FIXED = {
    "f16": ("--codec", "identity:dtype=f16"),
    "qsgd": ("--codec", "qsgd:bits=2"),
    "powersgd": ("--algorithm", "powersgd", "--rank", "1"),
}


def atomo(bits):
    return f"atomo:bits={bits:g}"


def nearest(bits):
    return f"ef+atomo:bits={bits:g},content=nearest"


def demo(bits):
    return f"momentum:beta=0.999+{chunks_for(bits, 'sign', ',dct=64')}"


# At so many bits a parameter: what makes the codec, and what is added to the command line.
AT_BITS = {
    "atomo": (atomo, ()),
    "atomo-shares": (atomo, SHARES),
    "atomo-preconditioned": (atomo, PRECONDITIONED),
    "ef-atomo": (nearest, ()),
    "ef21-atomo": (lambda bits: f"ef21+atomo:bits={bits:g},content=nearest", ()),
    "ef-atomo-preconditioned": (nearest, PRECONDITIONED),
    "ef-topk": (lambda bits: f"ef+{topk_for(bits)}", ()),
    "ef21-topk": (lambda bits: f"ef21+{topk_for(bits)}", ()),
    "ef-chunks": (lambda bits: f"ef:decay=0.95+{chunks_for(bits, '2')}", ()),
    "demo": (demo, ("--optimizer", "signsgd")),
    "demo-factored": (demo, (*FACTORED, "--beta1", "0")),
    "demo-rates": (demo, (*FACTORED, "--beta1", "0", "--rate-in-memory")),
    "demo-rates-preconditioned": (demo, (*FACTORED, *PRECONDITIONED, "--beta1", "0", "--rate-in-memory")),
    "ef-atomo-rates": (nearest, ("--rate-in-memory",)),
}
# Those with a second moment of Adam's have an arm with the factored one beside it.
FIXED |= {f"{name}-factored": (*FIXED[name], *FACTORED) for name in ("f16", "qsgd", "powersgd")}
AT_BITS |= {f"{name}-factored": (AT_BITS[name][0], (*AT_BITS[name][1], *FACTORED))
            for name in ("atomo", "atomo-preconditioned", "ef-atomo", "ef-atomo-preconditioned", "ef-topk", "ef-chunks")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arm_options(parser, ("uncompressed", *FIXED, *AT_BITS),
                    "0.001 to 0.004, lower or higher where the best would be at the end", steps=300, batch=8)
    parser.add_argument("--bits", type=float, nargs="+", default=[0.5, 0.25, 0.125], help="a parameter, of all but "
                        f"uncompressed, {', '.join(FIXED)}")
    options = series_options(parser, "memories-{steps}-steps")
    if options.quick:
        shorten(options, steps=3)
        options.bits = options.bits[:1]
    return options


def arms(options):
    found = [uncompressed(RATES), *(Arm(name, words, rates(name)) for name, words in FIXED.items())]
    for bits in options.bits:
        found += [Arm(name, ("--codec", codec(bits), *more), rates(name), f"{bits:g} bits")
                  for name, (codec, more) in AT_BITS.items()]
    return found


def rates(name):
    """Of an arm; with the factored second moment as without."""
    return OWN_RATES.get(name.removesuffix("-factored"), RATES)


def main():
    options = arguments()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers over an all-gather, batch "
            f"{options.batch} each, {options.steps} steps, AdamW, rates that rise for {options.steps // 6} steps: "
            f"test bits a character.")
    if "demo" in options.arms:
        text += " demo steps along the sign, without AdamW."
    return compare(options, arms(options), common(options), "bits_per_character", text,
                   f"a transformer of 3.3 M parameters, {options.workers} workers")


if __name__ == "__main__":
    run(main)
