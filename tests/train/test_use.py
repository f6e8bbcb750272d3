# SPDX-License-Identifier: Apache-2.0
"""How atomo-train is used: its help, job files, run folders, plots."""

import csv
import fcntl
import glob
import json
import os
import pathlib
import re
import subprocess
import tomllib
import unittest

from jobs import ROOT, TRAINER, data, launch, path

GROUPS = ["Algorithm", "Servers", "Local steps", "Graph", "Codec", "Codecs of your own", "Data", "Model and optimiser", "Checkpoints",
          "What is written", "Faults"]
BRIEF = ("--model", "logistic", "--data", data, "--batch", 8)
POLICY = "# lines may say why, with a = or a 'quote'\n*.bias = identity:dtype=f32\n* = qsgd:bits=4\n"


def write(name, content):
    pathlib.Path(path(name)).write_text(content if isinstance(content, str) else json.dumps(content))
    return path(name)


def check(*options):
    """What --check says is wrong; empty when nothing is."""
    done = subprocess.run([TRAINER, "--check", *map(str, options)], capture_output=True, text=True)
    if done.returncode != (2 if done.stderr else 0):
        raise AssertionError(f"exit status {done.returncode}: {done.stderr}")
    return done.stderr


def lines_of(name):
    return [json.loads(line) for line in pathlib.Path(name).read_text().splitlines()]


def losses_of(folder):
    return [event["loss"] for event in lines_of(f"{folder}/log.jsonl") if event["event"] == "step"]


def run(*options, processes=2, ends_with=0):
    """The folder of --out of a run; of one that ends otherwise, what it said of it."""
    done = subprocess.run([*launch(processes), "--progress", "off", *map(str, options)], capture_output=True, text=True,
                          timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if ends_with == "error":
        if done.returncode == 0:
            raise AssertionError(f"it did not fail:\n{done.stdout}")
        return done.stderr
    if done.returncode != ends_with:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return options[options.index("--out") + 1] if "--out" in options else None


def plot(*arguments, environment=None):
    return subprocess.run([TRAINER, "plot", *arguments], capture_output=True, text=True, env=environment)


class HelpTest(unittest.TestCase):
    def test_groups_and_columns(self):
        text = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True).stdout
        self.assertLessEqual(max(map(len, text.splitlines()[2:])), 100)
        headings = [line.split(" (")[0].rstrip(":") for line in text.splitlines() if re.match(r"[A-Z].*:$", line)]
        self.assertEqual([h for h in headings if h in GROUPS], GROUPS)
        within = dict(zip(GROUPS, re.split(r"(?m)^(?:" + "|".join(GROUPS) + r")\b.*:$", text)[1:], strict=True))
        for group, option in (("Algorithm", "--job FILE"), ("Servers", "--aggregate N"), ("Graph", "--graph GRAPH"),
                              ("Local steps", "--local-steps N"), ("Codec", "--budget BITS"), ("Data", "--split SPLIT"),
                              ("Model and optimiser", "--lr X"), ("Checkpoints", "--resume PATH"),
                              ("What is written", "--out FOLDER"), ("Faults", "--timeout X")):
            self.assertIn(f"\n  {option} ", within[group])
        self.assertRegex(text, r"\n  --schedule NAME +of the learning rate; cosine ends at 0, ")
        self.assertRegex(text, r"\n  --double-buffer   ")  # a flag has no value
        self.assertIn("atomo-train plot", text)

    def test_options_of_other_algorithms(self):
        for options, wrong, right, chosen in ((("--graph", "star"), "--graph", "dpsgd", "ps"),
                                              (("--algorithm", "allgather", "--servers", 1), "--servers", "ps", "allgather"),
                                              (("--second-moment", "factored"), "--second-moment", "allgather, powersgd", "ps"),
                                              (("--algorithm", "dpsgd", "--double-buffer"), "--double-buffer", "ps", "dpsgd")):
            said = check(*options)
            self.assertRegex(said, rf"^atomo-train: {wrong}: goes with --algorithm .*\b{right}\b.*, not with {chosen}\n$")
            self.assertNotRegex(said.partition(", not with")[0], rf"\b{chosen}\b")
        self.assertEqual(check("--algorithm", "dpsgd", "--graph", "star"), "")
        factored = ("--algorithm", "allgather", "--second-moment", "factored")
        self.assertIn("--second-moment: goes with --optimizer adam and adamw, not with sgd", check(*factored))
        self.assertIn("--max-update: goes with --optimizer adam and adamw, not with lars", check("--optimizer", "lars", "--max-update", "1"))
        self.assertEqual(check(*factored, "--optimizer", "adam", "--squares-every", "4", "--precondition"), "")
        self.assertEqual(check("--algorithm", "allgather", "--optimizer", "adamw", "--precondition"), "")
        self.assertIn("--precondition: goes with --optimizer adam and adamw, not with muon",
                      check("--algorithm", "allgather", "--optimizer", "muon", "--precondition"))
        self.assertIn("--beta2: goes with --optimizer adam, adamw, adafactor and muon, not with sgd", check("--beta2", "0.99"))
        self.assertRegex(check("--optimizer", "adam", "--beta1", "1"), "--beta1: .*from 0 to below 1")
        self.assertEqual(check("--algorithm", "ps", "--servers", 2), "")

    def test_told_squares_go_where_every_gradient_is_gathered(self):
        """Of the command line and of a job file, at a server, around it, and on a GPU."""
        for value in ("factored", "scaled", "matched", "exact"):
            told = ("--optimizer", "adam", "--second-moment", value)
            self.assertEqual(check("--algorithm", "allgather", *told), "")
            self.assertEqual(check("--algorithm", "allgather", *told, "--device", "cuda"), "")
            for algorithm in ("ps", "asgd", "dcasgd", "fedavg", "difference", "local", "twoshot", "dpsgd"):
                said = f"atomo-train: --second-moment: goes with --algorithm allgather, powersgd, not with {algorithm}\n"
                job = write("told.toml", f'algorithm = "{algorithm}"\noptimizer = "adam"\nsecond-moment = "{value}"\n')
                self.assertEqual(check("--algorithm", algorithm, *told), said)
                self.assertEqual(check("--job", job), said)
        self.assertEqual(check("--algorithm", "powersgd", *told[:2], "--second-moment", "factored"), "")
        self.assertIn("--second-moment: goes with --algorithm allgather, powersgd, not with ps",
                      check("--servers", 2, "--second-moment", "factored", "--optimizer", "adamw"))

    def test_codecs_of_ones_own(self):
        plugin = os.environ.get("ATOMO_TEST_PLUGIN", "")
        if not plugin:
            self.skipTest("the examples were not built")
        self.assertIn("unknown codec 'mycodec'", check("--codec", "mycodec"))
        self.assertIn("cannot be loaded", check("--plugin", "./none.so"))
        self.assertIn("from 1 to 127", check("--plugin", plugin, "--codec", "mycodec:levels=500"))
        self.assertIn("--codec: a memory", check("--plugin", plugin, "--codec", "ef+mycodec", "--algorithm", "ps"))
        out = run("--algorithm", "allgather", "--plugin", plugin, "--codec", "ef+mycodec:levels=4", *BRIEF, "--steps", 6,
                  "--out", path("own"))
        losses = losses_of(out)
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0])
        policy = ("--policy", "*.bias = identity; * = mycodec:levels=100")
        for algorithm, *options in (("ps", *policy, "--down", "mycodec:levels=127"), ("dpsgd", *policy), ("allgather", *policy)):
            with self.subTest(algorithm=algorithm):
                out = run("--algorithm", algorithm, "--plugin", plugin, *options, *BRIEF, "--steps", 4, "--out", path(algorithm),
                          processes=3)
                losses = losses_of(out)
                self.assertLess(losses[-1], losses[0])

    def test_memories_go_where_every_gradient_is_gathered(self):
        memory = ("--codec", "ef+topk:keep=0.01")
        for algorithm in ("ps", "asgd", "fedavg", "difference", "twoshot", "ring", "dpsgd", "choco", "pdmm"):
            self.assertRegex(check("--algorithm", algorithm, *memory), "^atomo-train: --codec: a memory .* goes with "
                             rf"--algorithm allgather and local only, not with {algorithm}\n$")
        for algorithm in ("allgather", "local"):
            self.assertEqual(check("--algorithm", algorithm, *memory), "")
            self.assertEqual(check("--algorithm", algorithm, *memory, "--device", "cuda"), "")
        self.assertIn("only, not with ps", check("--policy", "*.bias = identity; * = dgc+topk:keep=0.1"))
        self.assertIn("--down: a memory", check("--algorithm", "ps", "--down", "ef+sign"))
        told = ("--algorithm", "allgather", "--optimizer", "adamw", "--second-moment", "scaled")
        self.assertIn("--second-moment: scaled compares gradients with what their messages decode to, and those of ef21+ are differences",
                      check(*told, "--policy", "*.bias = identity; * = ef21+sign"))
        self.assertEqual(check(*told, *memory), "")


class JobFileTest(unittest.TestCase):
    def test_toml_json_and_command_line_are_one(self):
        write("policy.txt", POLICY)
        values = {"algorithm": "ps", "model": "logistic", "steps": 6, "batch": 8, "lr": 0.125, "seed": 7, "data": data,
                  "schedule": "constant", "momentum": 0}
        line = [word for name, value in values.items() for word in (f"--{name}", value)]
        toml = "".join(f"{name} = {json.dumps(value)}  # what it is\n" for name, value in values.items())
        jobs = {"inline.toml": f"# a job\n\n{toml}policy = '''\n{POLICY}'''\n",
                "lines.json": {**values, "policy": POLICY.splitlines()},
                "over.toml": f'{toml}policy = "policy.txt"\n'.replace("steps = 6", "steps = 9").replace("seed = 7", "")}
        curves = [losses_of(run(*line, "--policy", path("policy.txt"), "--out", path("by-line")))]
        for name, content in jobs.items():
            over = ("--steps", 6, "--seed", 7) if name == "over.toml" else ()
            curves.append(losses_of(run("--job", write(name, content), *over, "--out", path(f"by-{name}"))))
        self.assertEqual(len(curves[0]), 6)
        for curve in curves[1:]:
            self.assertEqual(curve, curves[0])
        other = run("--job", path("inline.toml"), "--codec", "qsgd:bits=2", "--out", path("by-codec"))
        self.assertNotEqual(losses_of(other), curves[0])

    def test_errors_name_the_file(self):
        for content, expected in (
                ("step = 3", "'step' is no option"), ("help = true", "'help' is for the command line only"),
                ('steps = "3"', "'steps' is \"3\", it takes a whole number"),
                ("steps = 1.5", "'steps' is 1.5, it takes a whole number"),
                ("steps = -1", "--steps: '-1' is not a number above 0"), ("codec = 4", "'codec' is 4, it takes a string"),
                ("double-buffer = 1", "'double-buffer' is 1, it takes true or false"),
                ("lr = fast", "line 1: 'lr' is fast; a value is a number, true, false or a string in quotes"),
                ("lr = 1\n\nlr = 2", "line 3: 'lr' is there twice"), ("[data]", "line 1: a job has no sections"),
                ("steps 3", "line 1: it is not 'name = value'"),
                ('# a\ncodec = "topk', "line 2: the string of 'codec' has no end"),
                ('policy = """\n* = sign\n', "line 1: the string of 'policy' has no end"),
                ('codec = "sign" "x"', "line 1: there is more behind the string of 'codec'"),
                ('codec = "\\q"', "line 1: the string of 'codec' has an escape"),
                ('algorithm = "nothing"', "--algorithm: nothing not in {ps,")):
            with self.subTest(content=content):
                said = check("--job", write("wrong.toml", content))
                self.assertTrue(said.startswith(f"atomo-train: the job '{path('wrong.toml')}': "), said)
                self.assertIn(expected, said)
                self.assertEqual(said.count("\n"), 1)
        for name, content, expected in (("wrong.json", {"step": 3}, "'step' is no option"),
                                        ("wrong.json", {"steps": "3"}, "'steps' is \"3\", it takes a whole number"),
                                        ("wrong.json", [3], "a job is an object of options"),
                                        ("wrong.json", "{", "parse error"), ("wrong.ini", "steps=3", "ends neither in .toml")):
            said = check("--job", write(name, content))
            self.assertIn(f"the job '{path(name)}': ", said)
            self.assertIn(expected, said)
        self.assertIn(path("missing.toml"), check("--job", path("missing.toml")))
        self.assertIn("policy.none", check("--job", write("wrong.toml", 'policy = "policy.none"')))
        self.assertIn("goes with --algorithm", check("--job", write("wrong.toml", 'graph = "star"')))

    def test_strings_of_toml(self):
        """Ours reads what Python's reader of TOML reads; a run's job keeps it."""
        for number, text in enumerate(('"# \\"b\\" # \\u00e9\\t\\n* = sign"', '"""\n# "1" \\\\\n* =\\tsign\\n"""',
                                       "'''\n# 'a' \\n\n* = sign'''")):
            job, out = f"policy = {text} # comment\n", path(f"strings{number}")
            run("--job", write("strings.toml", job), *BRIEF, "--steps", 1, "--out", out)
            expected = tomllib.loads(job)["policy"]
            self.assertIn("* =", expected)
            self.assertEqual(lines_of(f"{out}/log.jsonl")[0]["policy"], expected)
            self.assertEqual(tomllib.loads(pathlib.Path(f"{out}/job.toml").read_text())["policy"], expected)

    def test_example_jobs(self):
        jobs = sorted((ROOT / "programs/atomo-train/jobs").glob("*.toml"))
        self.assertGreaterEqual(len(jobs), 6)
        for job in jobs:
            self.assertEqual(check("--job", job), "")
            tomllib.loads(job.read_text())



class DamageTest(unittest.TestCase):
    """Files that are not what was written, and files that will not be written."""

    def test_a_changed_checkpoint_is_refused(self):
        whole = path("damage.safetensors")
        options = (*BRIEF, "--steps", 2)
        run(*options, "--stop-at", 1, "--save", whole)
        content = pathlib.Path(whole).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])

        def with_header(text):
            return len(text).to_bytes(8, "little") + text + content[end:]

        at = end + max(entry["data_offsets"][0] for name, entry in header.items() if name.startswith("weights.")) + 3
        step = content.index(b'"step":"1"') + len('"step":"')
        without = {**header, "__metadata__": {key: value for key, value in header["__metadata__"].items() if key != "xxh3"}}
        first = next(name for name in header if name != "__metadata__")
        overlapping = {**without, first: {**header[first], "data_offsets": [4, header[first]["data_offsets"][1]]}}
        for damaged, said in (
                (content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1:], "its checksum is [0-9a-f]{16}, that of its bytes"),
                (content[:step] + b"0" + content[step + 1:], "they were changed"),
                (content + b"1234", "4 bytes behind the last tensor"),
                (with_header(json.dumps(without).encode()), "it has no checksum"),
                (with_header(json.dumps(overlapping).encode()), "belongs to no tensor, or to two"),
                (with_header(b"[" * 1000 + b"]" * 1000), "nests more than 8"),
                (content[:end + 3], "of which 3 are there: it was cut"), (content[:end - 3], "its header leaves the file")):
            pathlib.Path(path("damaged.safetensors")).write_bytes(damaged)
            with self.subTest(said=said):
                answer = run(*options, "--resume", path("damaged.safetensors"), ends_with="error")
                self.assertRegex(answer, said)
                self.assertRegex(answer, f"--resume: '{path('damaged.safetensors')}' is .*damaged: .*Nothing was overwritten; "
                                         "go on from another checkpoint, or begin again without --resume")
        run(*options, "--resume", whole)

    def test_nothing_is_overwritten_for_a_damaged_checkpoint(self):
        """Neither the folder that goes on from it, nor one that is to be given up for another run."""
        options = (*BRIEF, "--steps", 4)
        folder = run(*options, "--out", path("hurt"), "--stop-at", 2)
        other = run(*options, "--out", path("other"))
        checkpoint = pathlib.Path(f"{folder}/checkpoint.safetensors")
        whole = checkpoint.read_bytes()
        names = glob.glob(f"{folder}/*") + glob.glob(f"{other}/*")
        for damaged, out in ((whole[:len(whole) // 2], (folder,)), (whole[:-1] + bytes([whole[-1] ^ 1]), (other, "--overwrite"))):
            checkpoint.write_bytes(damaged)
            before = {name: pathlib.Path(name).read_bytes() for name in names}
            self.assertIn("damaged", run(*options, "--resume", folder, "--out", *out, ends_with="error"))
            self.assertEqual({name: pathlib.Path(name).read_bytes() for name in names}, before)

    def test_what_is_written_at_the_end_is_tried_at_the_start(self):
        os.mkdir(path("a-folder"))
        for option, target, said in (("--save", path("none/x.safetensors"), "No such file or directory"),
                                     ("--save", path("a-folder"), "Is a directory"),
                                     ("--timeline", path("none/t.json"), "No such file or directory")):
            with self.subTest(option=option, target=target):
                log = path("tried.jsonl")
                answer = run(*BRIEF, "--steps", 3, option, target, "--log", log, ends_with="error")
                self.assertRegex(answer, f"cannot write '{target}': {said}")
                self.assertEqual([event for event in lines_of(log) if event["event"] == "step"], [])


class RunFolderTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = (*BRIEF, "--steps", 8, "--eval-every", 2, "--save-every", 3)
        cls.whole = run(*cls.options, "--policy", write("folder.policy", POLICY), "--out", path("whole"))

    def rows(self, folder, name):
        with open(f"{folder}/{name}", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def check_tables(self, folder):
        events = lines_of(f"{folder}/log.jsonl")
        for name, kind in (("steps.csv", "step"), ("evaluations.csv", "evaluation")):
            rows, of_kind = self.rows(folder, name), [event for event in events if event["event"] == kind]
            self.assertEqual(len(rows), len(of_kind))
            for row, event in zip(rows, of_kind, strict=True):
                flat = {key: value for key, value in event.items() if key != "event" and not isinstance(value, dict)}
                for outer in ("ms", "traffic_per_worker"):
                    flat.update({f"{outer}.{key}": value for key, value in event.get(outer, {}).items()})
                self.assertEqual({key: float(value) for key, value in row.items()}, flat)
        return events

    def test_another_run_there_now_is_seen(self):
        """The folder is locked by a process, not by a file that one which was killed would leave."""
        os.mkdir(path("taken"))
        folder = os.open(path("taken"), os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        said = run(*BRIEF, "--steps", 1, "--out", path("taken"), ends_with="error")
        self.assertRegex(said, "another run writes into '.*taken' now; take another folder")
        self.assertEqual(os.listdir(path("taken")), [])
        os.close(folder)
        run(*BRIEF, "--steps", 1, "--out", path("taken"))

    def test_what_is_in_it(self):
        self.assertEqual(sorted(os.listdir(self.whole)), ["checkpoint.safetensors", "evaluations.csv", "job.toml", "log.jsonl",
                                                          "plot.png", "steps.csv"])
        events = self.check_tables(self.whole)
        self.assertEqual([e["step"] for e in events if e["event"] == "step"], list(range(8)))
        self.assertEqual([e["steps"] for e in events if e["event"] == "evaluation"], [2, 4, 6, 8])
        seconds = [e["seconds"] for e in events if "seconds" in e]
        self.assertEqual(seconds, sorted(seconds))
        self.assertEqual(pathlib.Path(f"{self.whole}/plot.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        job = tomllib.loads(pathlib.Path(f"{self.whole}/job.toml").read_text())
        self.assertEqual((job["policy"], job["steps"], job["data"], job["lr"], job["double-buffer"], job["save-every"]),
                         (POLICY, 8, data, 0.05, False, 3))
        self.assertFalse({"graph", "out", "save", "resume", "log", "job", "help"} & set(job))

    def test_its_job_repeats_it(self):
        self.assertNotIn("codec", tomllib.loads(pathlib.Path(f"{self.whole}/job.toml").read_text()))
        again = run("--job", f"{self.whole}/job.toml", "--out", path("again"))
        self.assertEqual(losses_of(again), losses_of(self.whole))
        self.assertEqual(pathlib.Path(f"{again}/job.toml").read_text(), pathlib.Path(f"{self.whole}/job.toml").read_text())

    def test_numbers_as_people_write_them(self):
        folder = run(*BRIEF, "--lr", ".05", "--momentum", "5e-1", "--weight-decay", "00", "--seed", "0x10",
                     "--out", path("written"))
        job = tomllib.loads(pathlib.Path(f"{folder}/job.toml").read_text())
        self.assertEqual([job[name] for name in ("lr", "momentum", "weight-decay", "seed")], [0.05, 0.5, 0, 16])
        for lr in ("inf", "nan", "0"):
            self.assertIn(f"--lr: '{lr}' is not a number above 0", check("--lr", lr))

    def test_a_graph_and_hosts_are_copied(self):
        os.makedirs(path("inputs"), exist_ok=True)
        write("inputs/edges.json", {"nodes": {"a": {"edges": ["b"]}, "b": {"edges": ["a", "c"]}, "c": {"edges": ["b"]}}})
        write("inputs/order.json", {"hosts": [{"name": "c"}, {"name": "b"}, {"name": "a"}]})
        job = write("inputs/job.toml", 'algorithm = "dpsgd"\ngraph = "edges.json"\nhosts = "order.json"\n')
        first = run("--job", job, *BRIEF, "--steps", 3, "--out", path("graph1"), processes=3)
        os.rename(path("inputs"), path("elsewhere"))
        again = run("--job", f"{first}/job.toml", "--out", path("graph2"), processes=3)
        self.assertEqual(losses_of(first), losses_of(again))
        self.assertEqual(json.loads(pathlib.Path(f"{again}/hosts.json").read_text())["hosts"][0], {"name": "c"})
        # The same run, wherever it is.
        resumed = run("--job", f"{first}/job.toml", "--resume", again, "--out", path("graph3"), processes=3)
        self.assertEqual(losses_of(resumed), [])

    def test_going_on_drops_what_is_repeated(self):
        options = (*self.options, "--policy", path("folder.policy"))
        folder = run(*options, "--out", path("parts"), "--stop-at", 6)
        first = lines_of(f"{folder}/log.jsonl")
        earlier = path("earlier.safetensors")  # as if the run had been killed after step 5, in the middle of a line
        run(*options, "--save", earlier, "--stop-at", 3)
        os.replace(earlier, f"{folder}/checkpoint.safetensors")
        with open(f"{folder}/log.jsonl", "a", encoding="utf-8") as log:
            log.write('{"event":"step","st')
        said = run(*options, "--out", folder, ends_with="error")
        self.assertIn(f"'{folder}' holds a run already; go on with --resume", said)
        run("--job", f"{folder}/job.toml", "--resume", folder, "--out", folder)
        self.assertEqual(losses_of(folder), losses_of(self.whole))
        events = self.check_tables(folder)
        self.assertEqual([e["steps"] for e in events if e["event"] == "evaluation"], [2, 4, 6, 8])
        self.assertEqual([e["event"] for e in events].count("end"), 1)
        kept = [e for e in first if e["event"] == "step" and e["step"] < 3]
        self.assertEqual([e for e in events if e["event"] == "step"][:3], kept)
        seconds = [e["seconds"] for e in events if e["event"] == "step"]
        self.assertEqual(seconds, sorted(seconds))

    def test_nothing_is_overwritten_unasked(self):
        folder = run(*BRIEF, "--steps", 2, "--out", path("used"))
        before = {name: pathlib.Path(f"{folder}/{name}").read_bytes() for name in os.listdir(folder)}
        for resume in ((), ("--resume", self.whole)):
            said = run(*self.options, *resume, "--out", folder, ends_with="error")
            self.assertIn("holds a run already", said)
            self.assertEqual({name: pathlib.Path(f"{folder}/{name}").read_bytes() for name in os.listdir(folder)}, before)
        run(*BRIEF, "--steps", 3, "--out", folder, "--overwrite")
        self.assertEqual(len(losses_of(folder)), 3)
        job = tomllib.loads(pathlib.Path(f"{folder}/job.toml").read_text())
        self.assertEqual((job["codec"], job["steps"]), ("identity:dtype=f32", 3))

    def test_places(self):
        self.assertIn("--save: leave it out: --out keeps it", check("--out", "x", "--save", "y"))
        self.assertIn("--log: leave it out: --out keeps it", check("--out", "x", "--log", "y"))
        self.assertIn("--overwrite: needs --out", check("--overwrite"))
        self.assertIn("--save-every: needs --save FILE or --out", check("--save-every", 2))
        self.assertIn("cannot create directories", run(*BRIEF, "--out", "/proc/none/x", ends_with="error"))

    def test_a_full_disk(self):
        """/dev/full takes no byte."""
        for name in ("log.jsonl", "evaluations.csv"):
            folder = path(f"full-{name}")
            os.mkdir(folder)
            os.symlink("/dev/full", f"{folder}/{name}")
            said = run(*self.options, "--out", folder, "--overwrite", ends_with="error")
            self.assertIn(f"cannot write '{folder}/{name}': No space left on device", said)
        self.assertEqual(len(losses_of(path("full-evaluations.csv"))), 2)  # tests begin after two steps
        self.assertIn("cannot write '/dev/full': No space", run(*BRIEF, "--steps", 2, "--log", "/dev/full", ends_with="error"))


class PlotTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folders = [run(*BRIEF, "--steps", 4, "--eval-every", 2, *options, "--out", path(name)) for name, options in
                       (("first", ("--codec", "qsgd:bits=4")), ("second", ("--codec", "sign", "--lr", 0.1)),
                        ("third", ("--algorithm", "dpsgd", "--codec", "sign", "--lr", 0.1)),
                        ("fourth", ("--codec", "qsgd:bits=4")))]

    def legend(self, *runs, x="steps"):
        out = path("compared.png")
        done = plot(*runs, "--x", x, "--out", out, "--json", environment={"PATH": os.environ["PATH"]})  # no display
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["plot"], said["x"]), (out, x))
        ends = {"training loss": [], "test accuracy": [], "MB that a worker sent": []}
        for folder in runs:
            log = lines_of(folder if folder.endswith("l") else f"{folder}/log.jsonl")
            step, test = ([e for e in log if e["event"] == kind][-1] for kind in ("step", "evaluation"))
            for title, event, y in (("training loss", step, step["loss"]), ("test accuracy", test, test["accuracy"]),
                                    ("MB that a worker sent", step, step["sent_bytes_per_worker"] / 1e6)):
                below = "steps" if x == "bytes" and title.startswith("MB") else x
                at = {"steps": 4, "bytes": event["sent_bytes_per_worker"] / 1e6, "seconds": event["seconds"]}[below]
                ends[title].append([at, y])
        self.assertEqual(said["panels"], ends)
        self.assertEqual(pathlib.Path(out).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        os.remove(out)
        return said["legend"]

    def test_legend_tells_what_differs(self):
        first, second, third, fourth = self.folders
        self.assertEqual(self.legend(first, second), ["qsgd:bits=4, lr 0.05", "sign, lr 0.1"])
        self.assertEqual(self.legend(f"{second}/log.jsonl", third, x="bytes"), ["ps, workers 1", "dpsgd, workers 2"])
        self.assertEqual(self.legend(first, fourth, x="seconds"), ["first", "fourth"])
        self.assertEqual(self.legend(first, second, fourth),
                         ["qsgd:bits=4, lr 0.05, first", "sign, lr 0.1", "qsgd:bits=4, lr 0.05, fourth"])

    def test_says_what_is_drawn(self):
        done = plot(*self.folders, "--out", path("all.png"))
        self.assertEqual(done.returncode, 0, done.stderr)
        last = lines_of(f"{self.folders[1]}/log.jsonl")[-1]
        self.assertRegex(done.stdout, rf"ps, sign, .*4 steps, loss .*, accuracy {last['accuracy']:.4f}, ")
        self.assertIn(f"plot {path('all.png')}", done.stdout)

    def test_errors(self):
        for name, content, expected in (("empty.jsonl", "", "has no step"), ("text.jsonl", "a\nb\n", "line 1: not an event"),
                                        ("none.jsonl", None, "No such file")):
            run_path = path(name) if content is None else write(name, content)
            done = plot(self.folders[0], run_path, "--out", path("wrong.png"))
            self.assertEqual(done.returncode, 1)
            self.assertIn(run_path, done.stderr)
            self.assertIn(expected, done.stderr)
        other = [{**event, "measure": "bits_per_character"} for event in lines_of(f"{self.folders[0]}/log.jsonl")]
        done = plot(self.folders[0], write("other.jsonl", "".join(json.dumps(event) + "\n" for event in other)))
        self.assertIn("different measures, accuracy, bits_per_character", done.stderr)
        self.assertIn("cannot write '/none/x.png'", plot(self.folders[0], "--out", "/none/x.png").stderr)
        os.makedirs(path("hidden/matplotlib"))
        write("hidden/matplotlib/__init__.py", "raise ImportError('No module named matplotlib')")
        done = plot(self.folders[0], environment={**os.environ, "PYTHONPATH": path("hidden")})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("install python3-matplotlib", done.stderr)
        self.assertFalse(os.path.exists(path("wrong.png")))


if __name__ == "__main__":
    unittest.main()
