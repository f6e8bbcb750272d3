# SPDX-License-Identifier: Apache-2.0
"""Options that are refused: numbers that are none, and values that would change nothing beside the other options."""

import re
import subprocess
import sys
import unittest

from jobs import TRAINER
from test_use import check, write

# What a line of --help has behind an option that takes a number with a point, and a whole one.
POINT, WHOLE = "X", "N"


def options_with(placeholder):
    text = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"^  (--[a-z0-9-]+) {placeholder}(?: |$)", text, re.MULTILINE)


class NumbersTest(unittest.TestCase):
    def test_numbers_are_finite(self):
        options = options_with(POINT)
        self.assertGreater(len(options), 15)
        for option in options:
            for value in ("nan", "-nan", "inf", "-inf"):
                with self.subTest(option=option, value=value):
                    self.assertRegex(check(f"{option}={value}"), rf"^atomo-train: {option}: .*{value}.*\n$")
        for option in ("--slow-factor", "--cut-after", "--cut-for"):  # in no help, nor are their names in an error
            self.assertIn("'nan' is not a finite number", check(option, "nan"))
        self.assertIn("--momentum: 'nan' is not a finite number", check("--momentum", "nan"))
        self.assertIn("--timeout: 'nan' is not a finite number", check("--timeout", "nan"))

    def test_whole_numbers_do_not_wrap(self):
        options = options_with(WHOLE)
        self.assertGreater(len(options), 20)
        for option in options:
            for value in (-1, -(2**64 - 1)):
                with self.subTest(option=option, value=value):
                    self.assertRegex(check(f"{option}={value}"), rf"^atomo-train: {option}: .*{value}.*\n$")
        said = "--seed: '{}' is not a whole number from 0 to 18446744073709551615"
        self.assertIn(said.format(-1), check("--seed", -1))
        self.assertIn(said.format(-1), check("--job", write("seed.toml", "seed = -1\n")))
        self.assertIn(said.format(2**64), check("--seed", 2**64))
        self.assertEqual(check("--seed", 2**64 - 1), "")

    def test_numbers_of_evaluate(self):
        done = subprocess.run([TRAINER, "evaluate", "none", "--timeout", "nan"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "atomo-train evaluate: --timeout: 'nan' is not a finite number\n")


MOMENTUM = "goes with --optimizer sgd, nesterov and lars, not with "
BUDGET = "--share-by-rate: '0.75' needs a codec with a budget, such as atomo:bits=0.5, not "
RATES = "--rate-in-memory: needs a codec with a memory, such as ef+topk:keep=0.01, and none of ef21+, not "
LOCAL = ("--algorithm", "local")
GATHERED = ("--algorithm", "allgather", "--rate-in-memory")
WRONG = (
    *(((*GATHERED, "--codec", codec), RATES + codec) for codec in ("atomo:bits=0.5", "ef21+topk:keep=0.01")),
    ((*GATHERED, "--codec", "ef+topk:keep=0.01", "--schedule", "constant"),
     "--rate-in-memory: goes with a --schedule whose rate falls, not with constant"),
    (("--late", "add"), "--late: 'add' needs --aggregate K"),
    (("--late", "drop", "--algorithm", "fedavg"), "--late: 'drop' needs --aggregate K"),
    (("--algorithm", "dcasgd", "--adaptive", "--compensation", 0),
     "--adaptive: needs a --compensation above 0, not 0"),
    *((("--optimizer", name, "--momentum", 0.5), f"--momentum: '0.5' {MOMENTUM}{name}")
      for name in ("adam", "adamw", "adagrad", "adadelta", "rmsprop", "muon", "adafactor", "signsgd")),
    ((*LOCAL, "--outer-optimizer", "adam", "--outer-momentum", 0.5),
     "--outer-momentum: '0.5' goes with --outer-optimizer sgd, nesterov and lars, not with adam"),
    (("--loss-scale-from", 5), "--loss-scale-from: '5' needs --loss-scale X"),
    *((("--share-by-rate", 0.75, "--codec", codec), BUDGET + codec)
      for codec in ("sign", "qsgd:bits=4", "atomo:price=0.5", "topk:keep=0.1")),
    (("--share-by-rate", 0.75), BUDGET + "identity:dtype=f32"),
    *((("--model", model, "--data", "x", "--pixels", "plain"),
       f"--pixels: 'plain' goes with models of images only, not with {model}")
      for model in ("transformer", "quadratic")),
    (("--json", "--progress", "on"), "--progress: 'on' goes with lines for people, not with --json"),
    (("--at", 7), "--at: '7' needs --timeline FILE or --dump-gradients FOLDER"),
    (("--slow-factor", 3), "--slow-factor: '3' needs --slow-rank N"),
    (("--cut-after", 1), "--cut-after: '1' needs --cut-link N,N"),
    (("--cut-for", 1), "--cut-for: '1' needs --cut-link N,N"),
)
RIGHT = (
    (*GATHERED, "--codec", "ef+topk:keep=0.01"),
    ("--late", "add", "--aggregate", 2), ("--algorithm", "dcasgd", "--adaptive"),
    ("--optimizer", "lars", "--momentum", 0.5), ("--loss-scale-from", 5, "--loss-scale", 8),
    (*LOCAL, "--outer-optimizer", "nesterov", "--outer-momentum", 0.5),
    ("--share-by-rate", 0.75, "--codec", "atomo:bits=0.5"), ("--share-by-rate", 0.75, "--budget", "1bit"),
    ("--share-by-rate", 0.75, "--policy", "*.bias = identity; * = atomo:ratio=20"),
    ("--share-by-rate", 0.75, "--algorithm", "allgather", "--codec", "ef+atomo:bits=0.5,content=nearest"),
    ("--pixels", "plain"), ("--json", "--progress", "off"), ("--at", 7, "--timeline", "x"),
    ("--at", 7, "--dump-gradients", "x"),
)


def as_job(options):
    """The lines of a job file."""
    lines, words = "", list(map(str, options))
    while words:
        name = words.pop(0).removeprefix("--")
        value = "true" if not words or words[0].startswith("--") else words.pop(0)
        bare = value == "true" or re.fullmatch(r"[0-9.]+", value)
        lines += f"{name} = {value if bare else repr(value)}\n"
    return lines


class EffectsTest(unittest.TestCase):
    def test_what_would_change_nothing_is_refused(self):
        for options, said in WRONG:
            with self.subTest(options=options):
                self.assertIn(f"atomo-train: {said}", check(*options))

    def test_what_has_an_effect_is_taken(self):
        for options in RIGHT:
            with self.subTest(options=options):
                self.assertEqual(check(*options), "")

    def test_of_a_job_file_other_values_than_those_by_default_count(self):
        """A job that a run wrote names all options."""
        for options, said in WRONG:
            if "drop" in options:
                continue
            with self.subTest(options=options):
                self.assertIn(f"atomo-train: {said}", check("--job", write("wrong-job.toml", as_job(options))))
        usual = {"late": '"drop"', "momentum": 0.9, "beta1": 0.9, "beta2": "0.9990", "loss-scale-from": 0, "at": 2,
                 "pixels": '"standardised"', "decay-at": '"0.5,0.75"'}
        job = write("usual.toml", "".join(f"{name} = {value}\n" for name, value in usual.items()))
        for optimizer in ("adam", "sgd", "signsgd"):
            self.assertEqual(check("--job", job, "--optimizer", optimizer), "")
        self.assertIn("--beta1: goes with --optimizer adam,", check("--job", write("beta.toml", "beta1 = 0.5\n")))
        self.assertIn("--decay: goes with --schedule step", check("--job", write("decay.toml", "decay = 0.5\n")))


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
