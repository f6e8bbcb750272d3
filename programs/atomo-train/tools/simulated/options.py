# SPDX-License-Identifier: Apache-2.0
"""The part of the trainer's command line that is known here. Anything else is refused."""

import argparse

from simulated import Refusal

ADAMS = ("adam", "adamw")
WITH_BETAS = (*ADAMS, "adafactor", "muon")
TOLD = ("factored", "scaled", "matched")  # second moments that need what workers tell of their squares
UNCOMPRESSED = "identity:dtype=f32"
# Options of one algorithm, and those that do not go with another.
OWN = {"local_steps": ("local",), "outer_optimizer": ("local",), "outer_lr": ("local",), "outer_momentum": ("local",),
       "rank": ("powersgd",), "min_ratio": ("powersgd",), "codec": ("allgather", "local"), "policy": ("allgather", "local"),
       "second_moment": ("allgather", "powersgd"), "squares_every": ("allgather", "powersgd"), "precondition": ("allgather",),
       "rate_in_memory": ("allgather",), "share_by_rate": ("allgather",)}
DEFAULTS = {"codec": UNCOMPRESSED, "policy": "", "second_moment": "own", "squares_every": 10, "precondition": False,
            "rate_in_memory": False, "share_by_rate": 0.0, "max_update": 0.0, "beta1": 0.9, "beta2": 0.999, "local_steps": 1,
            "outer_optimizer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "rank": 4, "min_ratio": 2.0}


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refusal(message)


def _parser():
    parser = _Parser(prog="simulated", add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add("--algorithm", required=True, choices=("allgather", "local", "powersgd"))
    add("--model", required=True, choices=("transformer", "lenet", "resnet20"))
    add("--optimizer", default="sgd", choices=("sgd", "nesterov", "adam", "adamw", "adafactor", "muon", "signsgd"))
    add("--codec")
    add("--policy")  # its text, not a file
    add("--data", default="")
    add("--batch", type=int, default=32)
    add("--steps", type=int, default=800)
    add("--seed", type=int, default=1)
    add("--eval-every", type=int, default=0)
    add("--eval-samples", type=int, default=0)
    add("--lr", type=float, default=0.05)
    add("--schedule", default="cosine", choices=("cosine", "trapezoid"))
    add("--decay-at", type=float)  # one share of the run
    add("--warmup", type=int, default=0)
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=0.0)
    add("--beta1", type=float)
    add("--beta2", type=float)
    add("--second-moment", choices=("own", *TOLD, "exact"))
    add("--squares-every", type=int)
    add("--precondition", action="store_const", const=True)
    add("--rate-in-memory", action="store_const", const=True)
    add("--share-by-rate", type=float)
    add("--max-update", type=float)
    add("--clip-norm", type=float, default=0.0)
    add("--local-steps", type=int)
    add("--outer-optimizer", choices=("sgd", "nesterov"))
    add("--outer-lr", type=float)
    add("--outer-momentum", type=float)
    add("--rank", type=int)
    add("--min-ratio", type=float)
    return parser


def _option(name):
    return "--" + name.replace("_", "-")


def _refuse(name, why):
    raise Refusal(f"{_option(name)}: {why}")


def parsed(words, workers):
    """A namespace with the trainer's defaults in it. Raises `Refusal`."""
    options, unknown = _parser().parse_known_args([str(word) for word in words])
    if unknown:
        raise Refusal(f"a simulated training does not know {' '.join(unknown)}")
    given = {name for name, value in vars(options).items() if name in DEFAULTS and value is not None}
    _check(options, given, workers)
    for name, value in DEFAULTS.items():
        if name not in given:
            setattr(options, name, value)
    if options.squares_every < 1 or options.local_steps < 1 or options.rank < 1:
        raise Refusal("--squares-every, --local-steps and --rank are from 1 on")
    options.workers = workers
    return options


def _check(options, given, workers):
    for name in ("steps", "batch"):
        if getattr(options, name) < 1:
            _refuse(name, f"{getattr(options, name)} is below 1")
    if not options.clip_norm >= 0:
        _refuse("clip_norm", f"{options.clip_norm:g} is not a bound from 0 on")
    if workers < 1:
        raise Refusal(f"{workers} workers are below 1")
    if (options.schedule == "trapezoid") != (options.decay_at is not None):
        _refuse("decay_at", "goes with --schedule trapezoid, which needs it")
    if options.decay_at is not None and not 0 < options.decay_at < 1:
        _refuse("decay_at", f"{options.decay_at:g} is not a share of the run, between 0 and 1")
    for name in sorted(given):
        algorithms = OWN.get(name, (options.algorithm,))
        if options.algorithm not in algorithms:
            _refuse(name, f"goes with --algorithm {', '.join(algorithms)}, not with {options.algorithm}")
    if {"codec", "policy"} <= given:
        _refuse("codec", "take one of --codec and --policy")
    told = options.second_moment in TOLD
    if options.second_moment == "exact" and options.algorithm != "allgather":
        _refuse("second_moment", f"exact goes with --algorithm allgather, not with {options.algorithm}")
    for name, optimisers in (("beta1", WITH_BETAS), ("beta2", WITH_BETAS), ("max_update", ADAMS), ("precondition", ADAMS), ("second_moment", ADAMS)):
        own = name == "second_moment" and options.second_moment == "own"
        if name in given and not own and options.optimizer not in optimisers:
            _refuse(name, f"goes with --optimizer {', '.join(optimisers)}, not with {options.optimizer}")
    if "squares_every" in given and not told:
        _refuse("squares_every", f"goes with --second-moment {', '.join(TOLD)} only")
