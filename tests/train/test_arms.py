# SPDX-License-Identifier: Apache-2.0
"""Arms of the experiments, trained at several rates: their command lines, what is shown of them, and a few steps of each."""

import contextlib
import io
import json
import pathlib
import re
import subprocess
import sys
import types
import unittest
from unittest import mock

from jobs import TRAINER, path  # where the experiments are, too
from reproduce_commands import PNG, CommandTest

from experiments import memories, memories_images, outer, rounds, second_moment
from experiments.arms import Arm, Comparison, by_option, chosen, rows
from experiments.messages import chunks_for, topk_for
from experiments.reports import Report, figure, save_figure
from experiments.series import NOT_TRAINED, Outcome
from experiments.trainings import train

PARAMETERS = 3307264  # of the transformer
WORD = "[a-z][a-z0-9]*"
STAGE = f"{WORD}(:{WORD}=[a-z0-9.]+(,{WORD}=[a-z0-9.]+)*)?"

EXPERIMENTS = ((second_moment, ()), (memories, ()), (outer, ()), (rounds, ()),
               (memories_images, ("--model", "lenet", "--steps", "8", "--batch", "2")))


def options_of(experiment, *words):
    with mock.patch.object(sys, "argv", ["experiment", "--trainer", TRAINER, *words]):
        return experiment.arguments()


def run_of(measure, *scores, size=1000.0):
    """Events of a training with a test at every tenth step."""
    tests = [{"event": "evaluation", "steps": 10 * (k + 1), measure: score} for k, score in enumerate(scores)]
    return [*tests, {"event": "end", measure: scores[-1], "bytes_per_step": size, "ratio": 4000 / size}]


def compared(measure, ends, setting=""):
    """A comparison of arms; `ends`: of each kind, by rate, the last tests of the seeds, or nothing where it failed."""
    arms = [Arm(kind, ("--codec", f"{kind}:bits=1"), tuple(of_rates), setting if kind != "all" else "")
            for kind, of_rates in ends.items()]
    outcomes = {}
    for arm in arms:
        for rate, scores in ends[arm.kind].items():
            runs = [run_of(measure, 0.5, score, score) for score in scores]
            outcomes[arm.row_name(rate)] = Outcome(None, runs, failed="" if runs else "it diverged")
    return Comparison(arms, outcomes, measure)


class ArmsTest(unittest.TestCase):
    def test_the_best_rate(self):
        found = compared("bits_per_character", {"a": {.1: [3.0, 3.2], .2: [2.9, 3.1], .4: []}, "b": {.1: []}})
        self.assertEqual([found.best_rate(arm) for arm in found.arms], [.2, None])
        self.assertEqual([arm.kind for arm, _ in found.best()], ["a"])
        table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.table().splitlines()]
        self.assertEqual(table[0], ["arm", "codec", "bytes a step", "ratio", "best rate", "test bits a character", "rate 0.1",
                                    "rate 0.2", "rate 0.4"])
        self.assertEqual(table[2], ["a", "`a:bits=1`", "1,000", "4.0", "0.2", "3.000 ± 0.141", "3.100 ± 0.141",
                                    "3.000 ± 0.141", "failed"])
        self.assertEqual(table[3], ["b", "`b:bits=1`", "", "", "", "failed", "failed", "", ""])
        self.assertEqual([(line["name"], line["best"], line["failed"], len(line["runs"])) for line in found.results()],
                         [("a, rate 0.1", False, "", 2), ("a, rate 0.2", True, "", 2), ("a, rate 0.4", False, "it diverged", 0),
                          ("b, rate 0.1", False, "it diverged", 0)])

    def test_what_was_not_trained_is_named_below_the_table(self):
        found = compared("accuracy", {"a": {.1: [.7], .2: []}, "b": {.1: [], .2: []}, "c": {.1: [], .2: []}})
        for rate, kinds in ((.1, "b"), (.2, "abc")):
            for arm in found.arms:
                if arm.kind in kinds:
                    found.outcome(arm, rate).failed = NOT_TRAINED
        lines = found.table().splitlines()
        self.assertEqual([line.split("|")[1].strip() for line in lines[2:4]], ["a", "c"])  # c failed at one rate
        self.assertTrue(lines[2].rstrip(" |").endswith(NOT_TRAINED))
        self.assertEqual(lines[4:], ["", "Not trained at any rate: b."])

    def test_more_is_better_of_accuracy(self):
        found = compared("accuracy", {"a": {.1: [.7, .9], .2: [.9, .5]}})
        self.assertEqual(found.best_rate(found.arms[0]), .1)
        self.assertRegex(found.table(),
                         r"test accuracy, % .*\n.*\n.*\| +80\.00 ± 14\.14 \| 80\.00 ± 14\.14 \| 70\.00 ± 28\.28 \|")

    def test_plots(self):
        """One a setting, behind the ends where there are several; who has no setting is in all of them, who failed in none."""
        one, other = (compared("accuracy", {"all": {.1: [.9]}, "some": {.1: [.8]}, "none": {.1: []}}, setting)
                      for setting in ("1 bit", "2 bits"))
        both = Comparison([*one.arms, *other.arms[1:]], {**one.outcomes, **other.outcomes}, "accuracy")
        for found, titles in ((one, ["1 bit"]), (both, ["title", "1 bit", "2 bits"])):
            drawn = found.plot("title")
            self.assertEqual([axes.get_title() for axes in drawn.axes if axes.axison], titles)
            for axes in drawn.axes[-len(titles[1:]) or None:]:
                self.assertEqual([line.get_label() for line in axes.lines], ["all, rate 0.1", "some, rate 0.1"])
                self.assertEqual(list(axes.lines[1].get_ydata()), [50, 80])  # without the last test, which is of all samples
            save_figure(drawn, path("arms.png"))
            self.assertEqual(pathlib.Path(path("arms.png")).read_bytes()[:8], PNG)

    def test_what_is_chosen(self):
        arms = [Arm(kind, ("--codec", kind), (.1, .2)) for kind in ("a", "b")]
        options = types.SimpleNamespace(arms=["b"], lr=None, quick=False, workers=4, steps=8, tests=2)
        self.assertEqual([row.arguments for row in rows(options, chosen(options, arms), ("--batch", 3))],
                         [("--batch", 3, "--codec", "b", "--lr", "0.1"), ("--batch", 3, "--codec", "b", "--lr", "0.2")])
        flagged = Arm("b", ("--codec", "b", "--flag", "--batch", 4), (.1,))
        self.assertEqual(rows(options, [flagged], ("--batch", 3, "--also"))[0].arguments,
                         ("--batch", 4, "--also", "--codec", "b", "--flag", "--lr", "0.1"))
        options.lr = [.3]
        self.assertEqual([arm.rates for arm in chosen(options, arms)], [(.3,)])
        options.lr, options.quick = None, True
        self.assertEqual([arm.rates for arm in chosen(options, arms)], [(.1,)])

    def test_entries_of_chunks(self):
        """SparseLoCo's 64 of 4096 take 0.141 bits a parameter, 9 each; the sign alone leaves room for more of them."""
        self.assertEqual(chunks_for(0.141, "2"), "topk:chunk=4096,k=64,values=2")
        self.assertEqual(chunks_for(0.141, "sign", ",dct=64"), "topk:chunk=4096,k=69,values=sign,dct=64")

    def test_what_telling_leaves(self):
        self.assertEqual([second_moment.left_of(0.25, every) for every in (10, 5, 3, 2, 1)], [.245, .24, .2334, .2251, .2003])

    def test_where_trainings_were_simulated(self):
        """A report names the device that trained; the machine that reports need not be its own."""
        options = types.SimpleNamespace(out=path("report"), seeds=[1])
        for results, named in (({}, "machine"), ({"simulated_on": ["a GPU"]}, "simulated_on")):
            with contextlib.redirect_stdout(io.StringIO()):
                Report(options).publish("text", results, figure()[0])
            written = json.loads(pathlib.Path(path("report.json")).read_text())
            self.assertEqual([key for key in written if key in ("machine", "simulated_on")], [named])

    def test_command_lines(self):
        """Of every arm: options of the trainer with values, specs by the grammar, no two alike."""
        known = set(re.findall("^  (--[a-z0-9-]+)", subprocess.run([TRAINER, "--help"], capture_output=True, text=True,
                                                                 check=True).stdout, re.MULTILINE))
        for experiment, words in EXPERIMENTS:
            options = options_of(experiment, *words)
            arms = experiment.arms(options)
            self.assertEqual({arm.kind for arm in arms}, set(options.arms))
            self.assertEqual(len({arm.title() for arm in arms}), len(arms))
            self.assertEqual(len({arm.arguments for arm in arms}), len(arms))
            for arm in arms:
                self.assertGreater(len(arm.rates), 1)
                self.assertLessEqual(set(by_option(arm.arguments)), known)
                spec = f"{STAGE}([+]{STAGE})?"
                self.assertRegex(arm.codec(), f"^{spec}$" if "--codec" in arm.arguments else
                                 f"^([a-z0-9*.]+ = {spec}(; |$))+$" if "--policy" in arm.arguments else "^--algorithm powersgd ")

    def test_options_of_all_arms(self):
        for words, said in ((("--clip-norm", "2"), {"--clip-norm": [2.0]}),
                            (("--decay-at", "0.5"), {"--schedule": ["trapezoid"], "--decay-at": [0.5]})):
            with mock.patch("experiments.arms.Series", side_effect=InterruptedError) as series, self.assertRaises(InterruptedError):
                with mock.patch.object(sys, "argv", ["second_moment", "--trainer", TRAINER, "--arms", "uncompressed", "own", *words]):
                    second_moment.main()
            trained = series.call_args.args[1]
            self.assertEqual(len(trained), 6)
            for row in trained:
                given = by_option(row.arguments)
                self.assertEqual({name: given.get(name) for name in said}, said, row.name)
                done = subprocess.run([TRAINER, "--check", "--steps", str(row.steps), *map(str, row.arguments)], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{row.name}: {done.stderr}")

    def test_the_trainer_accepts(self):
        for experiment, words in EXPERIMENTS:
            options = options_of(experiment, *words)
            for row in rows(options, chosen(options, experiment.arms(options)), experiment.common(options)):
                done = subprocess.run([TRAINER, "--check", "--steps", str(row.steps), *map(str, row.arguments)],
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{row.name}: {done.stderr}")


class ArmsRunsTest(CommandTest):
    def setUp(self):
        self.text = path("manual.txt")
        pathlib.Path(self.text).write_text("".join(chr(97 + i * i % 23) for i in range(50_000)))

    def sizes(self, written):
        return {line["name"]: line["runs"][0][-1]["bytes_per_step"] for line in written["results"]}

    def test_second_moment(self):
        _, written, table = self.command("second-moment", "--quick", "--arms", "uncompressed", "own", "factored", "paid",
                                         on=self.text)
        size = self.sizes(written)
        self.assertEqual(list(size), ["uncompressed, rate 0.001", "own, 0.25 bits, rate 0.001",
                                      "factored, 0.25 bits, rate 0.001", "paid, told at every step, 0.25 bits, rate 0.001"])
        _, own, factored, paid = size.values()
        self.assertLess(abs(paid - own), 0.02 * own)
        self.assertLess(abs(factored - own - 20516 / 6), 0.02 * own)  # of six steps the first tells of squares
        self.assertRegex(table,
                         r"\| factored, 0\.25 bits +\| +`atomo:bits=0\.25` \| +[\d,]+ \| +[\d.]+ \| +0\.001 \| +\d\.\d{3} \|")
        self.assertTrue(all(line["best"] for line in written["results"]))

    def test_memories(self):
        said, written, _ = self.command("memories", "--quick", "--arms", "f16", "ef-atomo", "ef-topk", "--bits", "0.25", "--lr",
                                        "0.002", on=self.text)
        self.assertRegex(said, "3 trainings, 0 of them kept")
        half, *ours = self.sizes(written).values()
        self.assertLess(abs(half / (2 * PARAMETERS) - 1), 0.01)
        for size in ours:
            self.assertLess(abs(8 * size / PARAMETERS / 0.25 - 1), 0.02, ours)
        self.assertEqual([line["rate"] for line in written["results"]], 3 * [0.002])

    def test_outer(self):
        _, written, _ = self.command("outer", "--quick", "--arms", "diloco", "atomo", on=self.text)
        size = self.sizes(written)
        self.assertEqual(list(size), ["diloco, adamw, rounds of 2, rate 0.001",
                                      "atomo, 1 bits, adamw, rounds of 2, rate 0.001"])
        self.assertLess(abs(list(size.values())[0] / (4 * PARAMETERS / 2) - 1), 0.01)  # a message in two steps

    def test_rounds(self):
        """All rounds of one number of bits have the same bytes a step; of rotated blocks more, for tables, vectors and names."""
        _, written, table = self.command("rounds", "--quick", on=self.text)
        size = self.sizes(written)
        self.assertEqual(list(size), ["uncompressed, rounds of 1, rate 0.002", "uncompressed, rounds of 2, rate 0.002",
                                      "atomo, rounds of 1, 0.25 bits a step, rate 0.002", "atomo, rounds of 2, 0.25 bits a step, rate 0.002",
                                      "trellis, rounds of 1, 0.25 bits a step, rate 0.002",
                                      "trellis, rounds of 2, 0.25 bits a step, rate 0.002"])
        for sent, bits, most in zip(size.values(), (32, 16, 0.25, 0.25, 0.25, 0.25), (0.02, 0.02, 0.02, 0.02, 0.08, 0.04)):
            self.assertLess(abs(8 * sent / PARAMETERS / bits - 1), most, size)
        self.assertRegex(table, r"\| atomo, rounds of 2, 0\.25 bits a step +\| +`atomo:bits=0\.5` \|")

    def test_memories_of_images(self):
        _, written, table = self.command("memories-images", "--quick", "--arms", "ef-sign", "topk", "ef-topk")
        self.assertEqual([line["arm"] for line in written["results"]], ["ef-sign", "topk", "ef-topk"])
        self.assertRegex(table, r"\| ef-topk +\| +`ef\+topk:keep=0\.01` \|.*\| +\d+\.\d\d \|")

    def test_bytes_of_topk(self):
        """Its share of entries makes messages of the bits that were asked for."""
        for bits in (0.5, 0.125):
            end = train(TRAINER, 1, ("--algorithm", "allgather", "--model", "transformer", "--batch", 2, "--steps", 2, "--data",
                                     self.text, "--eval-samples", 20, "--codec", topk_for(bits)))[-1]
            self.assertLess(abs(8 * end["bytes_per_step"] / PARAMETERS / bits - 1), 0.02)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
