# SPDX-License-Identifier: Apache-2.0
"""Sign, top-k and QSGD with and without a memory of what was not sent, for images at several rates.

dgc-topk has the momentum at the workers, in front of the codec and masked (arXiv 1712.01887, section 3), and plain steps.
"""

import argparse

from experiments.arms import Arm, add_arm_options, compare, shorten, uncompressed
from experiments.series import run, series_options

RATES = (0.02, 0.05, 0.1)
CODECS = {
    "sign": "sign:scale=mean",
    "ef-sign": "ef+sign:scale=mean",
    "topk": "topk:keep=0.01",
    "ef-topk": "ef+topk:keep=0.01",
    "qsgd": "qsgd:bits=2",
    "ef-qsgd": "ef+qsgd:bits=2",
    "ef-contract-qsgd": "ef:scale=contract+qsgd:bits=2",
    "dgc-topk": "dgc:momentum=0.9+topk:keep=0.01",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    add_arm_options(parser, ("uncompressed", *CODECS), "0.02, 0.05 and 0.1")
    options = series_options(parser, "memories-{model}")
    if options.quick:
        shorten(options, steps=6)
    return options


def common(options):
    return ("--algorithm", "allgather", "--model", options.model, "--batch", options.batch)


def arms(options):
    def arguments(codec):
        return "--codec", codec, *(("--momentum", 0) if codec.startswith("dgc:") else ())
    return [uncompressed(RATES), *(Arm(name, arguments(codec), RATES) for name, codec in CODECS.items())]


def main():
    options = arguments()
    text = (f"{options.model} on Fashion-MNIST, {options.workers} workers over an all-gather, batch {options.batch} each, "
            f"{options.steps} steps, SGD with momentum 0.9: test accuracy.")
    if "dgc-topk" in options.arms:
        text += " dgc-topk has that momentum at the workers, in front of its codec."
    return compare(options, arms(options), common(options), "accuracy", text, f"{options.model}, {options.workers} workers")


if __name__ == "__main__":
    run(main)
