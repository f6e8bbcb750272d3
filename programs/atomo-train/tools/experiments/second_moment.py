# SPDX-License-Identifier: Apache-2.0
"""What AdamW divides by where gradients come out of a codec, at equal bits and several rates.

The arms are own, Adam's own second moment, of the decoded gradients; factored, of what workers tell of their squares; and what
tells why one differs from the other: scaled, own times a number a layer that takes the codec's noise out of its sum; matched,
own's direction at factored's length, layer by layer; exact, an oracle, of the gradients as they were,
whose bytes are not counted; bounded, factored with updates of at most 0.5, root mean square; often, factored with squares told at every step; longer,
own with a second moment that decays by 0.9999 in place of 0.999; slower, factored with a first moment that decays by 0.95 in
place of 0.9; shares, factored with budgets by each step's rate; preconditioned, own with gradients encoded in units of its
fourth root, and preconditioned-factored, the same of factored; small-exact, an oracle, factored with vectors sent as they are, whose bytes come on top: what the codec's noise in them
costs; paid, factored with squares told at one step of so many (--every), whose bytes the gradients go without, so that the messages have the bytes of own. adafactor and muon divide otherwise, so they also stand there without compression.
"""

import argparse
import math

from experiments.arms import Arm, add_arm_options, compare, shorten, uncompressed
from experiments.series import run, series_options
from experiments.trainings import UNCOMPRESSED

RATES = (0.001, 0.002, 0.004)
FACTORED = ("--second-moment", "factored")
SHARES = (*FACTORED, "--share-by-rate", "0.75")
PRECONDITIONED = ("--precondition",)
# Of the codec at each number of bits: what is added to the command line.
AT_BITS = {
    "own": (),
    "factored": FACTORED,
    "scaled": ("--second-moment", "scaled"),
    "matched": ("--second-moment", "matched"),
    "exact": ("--second-moment", "exact"),
    "bounded": (*FACTORED, "--max-update", "0.5"),
    "often": (*FACTORED, "--squares-every", "1"),
    "longer": ("--beta2", "0.9999"),
    "slower": (*FACTORED, "--beta1", "0.95"),
    "shares": SHARES,
    "preconditioned": PRECONDITIONED,
    "preconditioned-factored": (*FACTORED, *PRECONDITIONED),
    "adafactor": ("--optimizer", "adafactor"),
    "muon": ("--optimizer", "muon"),
}
# Of the transformer's vectors: biases, and the factors of its norms.
SMALL_EXACT = "*.bias = identity; *norm*.weight = identity; * = atomo:bits={bits:g}"
# Of the transformer: how many parameters it has, and the bytes of a step's telling (docs/second-moment.md).
PARAMETERS, TOLD_BYTES = 3307264, 20516
OTHERS = {f"uncompressed-{name}": AT_BITS[name] for name in ("adafactor", "muon")}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arm_options(parser, ("uncompressed", *OTHERS, *AT_BITS, "small-exact", "paid"), "0.001, 0.002 and 0.004", steps=300, batch=8)
    parser.add_argument("--bits", type=float, nargs="+", default=[0.25], help="a parameter")
    parser.add_argument("--every", type=int, nargs="+", default=[1], help="steps from one telling of squares to the next, of paid")
    options = series_options(parser, "second-moment")
    if options.quick:
        shorten(options, steps=6)
    return options


def common(options):
    return ("--algorithm", "allgather", "--model", "transformer", "--optimizer", "adamw", "--batch", options.batch,
            "--warmup", options.steps // 6)


def left_of(bits, every):
    """Bits a parameter that telling squares at one step of `every` leaves for gradients, rounded down."""
    return math.floor(1e4 * (bits - 8 * TOLD_BYTES / every / PARAMETERS)) / 1e4


def paid(bits, every):
    return Arm("paid", ("--codec", f"atomo:bits={left_of(bits, every):g}", *FACTORED, "--squares-every", every), RATES,
               f"{bits:g} bits", f"told every {every} steps" if every > 1 else "told at every step")


def arms(options):
    found = [uncompressed(RATES), *(Arm(name, ("--codec", UNCOMPRESSED, *more), RATES) for name, more in OTHERS.items())]
    for bits in options.bits:
        found += [Arm(name, ("--codec", f"atomo:bits={bits:g}", *more), RATES, f"{bits:g} bits")
                  for name, more in AT_BITS.items()]
        found += [Arm("small-exact", ("--policy", SMALL_EXACT.format(bits=bits), *FACTORED), RATES, f"{bits:g} bits")]
        found += [paid(bits, every) for every in options.every]
    return found


def main():
    options = arguments()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers over an all-gather, batch "
            f"{options.batch} each, {options.steps} steps, AdamW where nothing else is said, rates that rise for {options.steps // 6} steps, no "
            f"memory: test bits a character. Bytes count what is told of squares.")
    return compare(options, arms(options), common(options), "bits_per_character", text,
                   f"a transformer of 3.3 M parameters, {options.workers} workers")


if __name__ == "__main__":
    run(main)
