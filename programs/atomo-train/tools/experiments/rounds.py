# SPDX-License-Identifier: Apache-2.0
"""How many steps a message should stand for: rounds of several lengths at equal bytes a step, for a transformer.

In rounds of one step workers send gradients; in longer ones each takes its own steps, of AdamW or of Muon, and sends what
the round changed, of which all take the plain average. A message of atomo has so many bits a parameter for each step of its
round, so that all rounds of one number of bits have the same bytes a step. One of trellis has so many in matrices that Muon
steps, as rotated blocks (docs/catalogue.md), and .45 a round of atomo's in tables and vectors. uncompressed sends f32 at the
end of each round.
"""

import argparse

from experiments.arms import Arm, add_arm_options, compare, shorten
from experiments.outer import INNER, MATRICES
from experiments.series import run, series_options
from experiments.trainings import UNCOMPRESSED

RATES = (0.002, 0.003, 0.004, 0.005)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arm_options(parser, ("uncompressed", "atomo", "trellis"), "0.002 to 0.005, of every step", steps=300, batch=8)
    parser.add_argument("--bits", type=float, nargs="+", default=[0.25, 0.125], help="a parameter and step, of atomo and trellis")
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 2, 4, 8], help="of a round")
    parser.add_argument("--inner", choices=INNER, default="adamw", help="optimiser of all steps")
    options = series_options(parser, "rounds-{steps}-steps")
    if options.quick:
        shorten(options, steps=4)
        options.bits, options.local_steps = options.bits[:1], [1, 2]
    return options


def common(options):
    return ("--model", "transformer", "--optimizer", options.inner, "--batch", options.batch, "--warmup", options.steps // 6)


def exchange(length):
    """Of a round of so many steps, on the trainer's command line."""
    if length == 1:
        return ("--algorithm", "allgather")
    return ("--algorithm", "local", "--local-steps", length, "--outer-optimizer", "sgd", "--outer-lr", 1)


def codec_of(kind, bits):
    """On the trainer's command line, of so many bits a parameter and round."""
    if kind == "atomo":
        return ("--codec", f"atomo:bits={bits:g}")
    return ("--policy", MATRICES.format(f"trellis:bits={bits:g},states=256"))


def arms(options):
    def of(kind, codec, length, setting=""):
        return Arm(kind, (*exchange(length), *codec), RATES, setting, f"rounds of {length}")

    return [*(of("uncompressed", ("--codec", UNCOMPRESSED), length) for length in options.local_steps),
            *(of(kind, codec_of(kind, bits * length), length, f"{bits:g} bits a step")
              for kind in ("atomo", "trellis") for bits in options.bits for length in options.local_steps)]


def main():
    options = arguments()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers, batch {options.batch} each, "
            f"{options.steps} steps of {INNER[options.inner]}, rates that rise for {options.steps // 6} steps: test "
            f"bits a character. Rounds of 1 send gradients, longer ones what their steps changed, of which all take the plain "
            f"average. Bytes a step are those of a round over its steps.")
    return compare(options, arms(options), common(options), "bits_per_character", text,
                   f"rounds at equal bytes, a transformer of 3.3 M parameters, {options.workers} workers")


if __name__ == "__main__":
    run(main)
