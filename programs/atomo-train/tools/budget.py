#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows how a run keeps to its budget: the bytes of each step's messages, the means of 50 steps, and a jump.

Trains through a parameter server, to which layers leave while back-propagation runs, at a price predicted from the
steps before. From a step on, two thirds through by default, the loss and so all gradients are 100 times larger
(--loss-scale; the optimiser divides by it), which no prediction knows of.

    python3 programs/atomo-train/tools/budget.py --model transformer --optimizer adamw --lr 0.001 --batch 8 --bits 0.25
"""

import argparse
import sys

import numpy
from experiments.reports import Report, figure, markdown
from experiments.trainings import ROOT, LiveLine, add_trainer_options, check_trainer, train

WINDOW = 50  # steps of a mean
SETTLED = 3  # steps before the first that counts
NEAR = 0.02
RECOVERY = 5  # steps that a jump may cost


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_trainer_options(parser)
    parser.add_argument("--workers", type=int, default=2, help="worker processes; the server comes on top")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--bits", type=float, default=0.25, help="budget, a parameter")
    parser.add_argument("--options", default="", metavar="TEXT", help="of atomo: behind the bits, e.g. atoms=rows")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jump", type=float, default=100, help="factor of the gradients from --jump-at on")
    parser.add_argument("--jump-at", type=int, metavar="STEP", help="two thirds of the steps when left out")
    parser.add_argument("--out", default=str(ROOT / "build/budget"), help="written: OUT.json, OUT.md and OUT.png")
    options = parser.parse_args()
    if not 0 < options.jump < float("inf") or options.jump == 1:
        parser.error(f"--jump is {options.jump:g}: give a positive factor other than 1")
    if options.jump_at is None:
        options.jump_at = 2 * options.steps // 3
    shortest = SETTLED + WINDOW
    if not shortest <= options.jump_at <= options.steps - RECOVERY - WINDOW:
        parser.error(f"--jump-at is {options.jump_at}: it has to leave {shortest} steps before and "
                     f"{RECOVERY + WINDOW} from it on, of --steps {options.steps}")
    check_trainer(parser, options)
    return options


def shares_and_losses(options, codec):
    """Bytes of a worker's messages in each step, as shares of the budget, and the loss."""
    arguments = ["--model", options.model, "--codec", codec, "--steps", options.steps, "--batch", options.batch, "--lr",
                 repr(options.lr), "--optimizer", options.optimizer, "--seed", options.seed, "--loss-scale",
                 repr(options.jump), "--loss-scale-from", options.jump_at, "--eval-samples", 100]
    if options.data:
        arguments += ["--data", options.data]
    line, shares, losses, budget = LiveLine(codec), [], [], []

    def follow(event):
        if event["event"] == "start":
            budget.append(options.bits * event["parameters"] / 8)
        if event["event"] == "step":
            shares.append(event["bytes_per_worker"] / budget[0])
            losses.append(event["loss"])
            line.update(f"step {len(shares)} of {options.steps}, {shares[-1]:.2f} of the budget")

    train(options.trainer, options.workers + 1, arguments, follow)
    line.finish(f"{len(shares)} steps")
    return numpy.array(shares), losses


def means(shares, first, end):
    """Of every run of 50 steps in [first, end)."""
    return numpy.convolve(shares[first:end], numpy.ones(WINDOW) / WINDOW, mode="valid")


def figures(shares, jump_at):
    before, after = means(shares, SETTLED, jump_at), means(shares, jump_at + RECOVERY, len(shares))
    return {
        "first": before[0], "mean": shares[SETTLED:jump_at].mean(), "least": before.min(), "largest": before.max(),
        "near": float((abs(before - 1) < NEAR).mean()), "spread": shares[SETTLED:jump_at].std(),
        "jump": list(shares[jump_at:jump_at + RECOVERY]), "recovered": after[0],
    }


def table(f):
    rows = [[f"mean of the {WINDOW} steps after the first {SETTLED}", f"{f['first']:.4f}"],
            [f"mean from step {SETTLED} to the jump", f"{f['mean']:.4f}"],
            [f"means of {WINDOW} steps, least and largest", f"{f['least']:.4f}, {f['largest']:.4f}"],
            [f"of them within {NEAR:.0%}", f"{f['near']:.1%}"],
            ["standard deviation of a step", f"{f['spread']:.3f}"],
            [f"the {RECOVERY} steps from the jump on", ", ".join(f"{share:.2f}" for share in f["jump"])],
            [f"mean of the {WINDOW} steps after them", f"{f['recovered']:.4f}"]]
    return markdown(["bytes sent, as a share of the budget", ""], rows)


def plot(shares, title, jump_at):
    drawn, axes = figure(figsize=(9, 3.6))
    axes.plot(shares, ".", markersize=3, color="C0", alpha=0.6, label="a step")
    axes.plot(numpy.arange(SETTLED + WINDOW - 1, len(shares)), means(shares, SETTLED, len(shares)), color="C1",
              label=f"mean of {WINDOW} steps")
    axes.axhspan(1 - NEAR, 1 + NEAR, color="C2", alpha=0.3, label=f"within {NEAR:.0%}")
    axes.axvline(jump_at, color="black", linewidth=0.8, linestyle=":", label="the gradients' scale jumps")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("bytes / budget")
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    return drawn


def main():
    options = arguments()
    report = Report(options)
    codec = f"atomo:bits={options.bits:g}" + ("," + options.options if options.options else "")
    shares, losses = shares_and_losses(options, codec)
    result = figures(shares, options.jump_at)
    note = (f"{options.model}, {options.optimizer}, batch {options.batch}, {options.workers} workers, `{codec}`, "
            f"{options.steps} steps, gradients {options.jump:g} times larger from step {options.jump_at} on, seed "
            f"{options.seed}, {report.began:%Y-%m-%d}.")
    report.publish(note + "\n\n" + table(result),
                   {"codec": codec, "result": result, "shares": list(shares), "losses": losses},
                   plot(shares, f"{options.model}, {codec}", options.jump_at))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"budget.py: {error}")
