# SPDX-License-Identifier: Apache-2.0
"""`atomo.train`: a model in Python under the trainer's loops. Processes are few, since each loads PyTorch."""
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy
import pytest
import torch

import atomo

if shutil.which("mpirun") is None:
    pytest.skip("there is no mpirun", allow_module_level=True)
try:
    import atomo.train
except ImportError as error:
    if "MPI" not in str(error):
        raise
    pytest.skip(str(error), allow_module_level=True)

import train_runs

from atomo.train import _job, _launch, _model

HERE = Path(__file__).parent
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
TIMEOUT = 600
SLOW = ("dsgd-stale", "pdmm", "admm")  # in so few steps


def in_world(ranks, what, folder):
    """What a function of train_runs returns on rank 0 of a script that mpirun starts."""
    command = [*MPIRUN, "-n", str(ranks), sys.executable, HERE / "train_runs.py", what, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(re.search(r"^told (.*)$", done.stdout, re.MULTILINE)[1])


def test_every_algorithm_trains_a_model_in_python(tmp_path):
    results = in_world(3, "all_algorithms", tmp_path)
    assert set(results) >= {"ps", "asgd", "dcasgd", "fedavg", "allgather", "ring", "twoshot", "local", "dpsgd", "dsgd", "choco",
                            "pdmm", "admm"}
    for name, result in results.items():
        assert result["steps"] == 12 and result["parameters"] == 227, name
        assert result["workers"] == (2 if name in train_runs.SERVERS else 3), name
        assert name == "alone" or 0 < result["bytes_per_step"] < 2 * 4 * 227, name  # of pdmm a message a neighbour
        loss, accuracy = (1.2, 0.2) if name in SLOW else (0.8, 0.6)
        assert result["loss"] < loss and result["accuracy"] > accuracy, (name, result)
        assert (tmp_path / name / "steps.csv").exists() and (tmp_path / name / "checkpoint.safetensors").exists()


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    return folder, in_world(2, "others", folder)


def test_codecs_in_python_and_checkpoints_by_step(others):
    folder, results = others
    assert results["policy"]["accuracy"] > 0.5
    names = sorted(path.name for path in (folder / "policy/allgather").glob("*.safetensors"))
    assert names == ["checkpoint-step12.safetensors", "checkpoint-step4.safetensors", "checkpoint-step8.safetensors",
                     "checkpoint.safetensors"]
    model = train_runs.network()
    last = atomo.train.load(folder / "policy/allgather", model)
    early = atomo.train.load(folder / "policy/allgather", step=4)
    assert torch.equal(last["0.weight"], model[0].weight) and not torch.equal(early["0.weight"], last["0.weight"])
    points, classes = train_runs.samples(2, 48).tensors
    right = (model.eval()(points).argmax(1) == classes).float().mean()
    assert float(right) == pytest.approx(results["policy"]["accuracy"])
    with pytest.raises(atomo.Error, match="are not those of Linear"):
        atomo.train.load(folder / "policy/allgather", torch.nn.Linear(8, 3))


def test_a_module_registers_its_codec_where_a_job_is_read(tmp_path, monkeypatch):
    (tmp_path / "brings_a_codec.py").write_text("import atomo, train_runs\natomo.register('brought', train_runs.Halves)\n"
                                                "def make():\n    return train_runs.network()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import brings_a_codec
    _job.Job([], brings_a_codec.make, "", False).write(tmp_path / "job.pkl")
    assert atomo.unregister("brought")
    del sys.modules["brings_a_codec"]
    _job.Job.read(tmp_path / "job.pkl")
    assert str(atomo.Codec("brought")) == "brought"
    assert atomo.unregister("brought")


def test_scores_of_samples(others):
    folder, results = others
    rows = [line.split(",") for line in (folder / "whole/allgather/sample-scores.csv").read_text().splitlines()]
    points, classes = train_runs.samples(2, 48).tensors
    model = train_runs.network()
    atomo.train.load(folder / "whole/allgather", model)
    scores, predictions = model.eval()(points).detach().softmax(1).max(1)
    assert rows[0] == ["sample", "target", "prediction", "score"]
    assert [list(map(int, row[:3])) for row in rows[1:]] == [
        [number, *pair] for number, pair in enumerate(zip(classes.tolist(), predictions.tolist()))]
    assert [float(row[3]) for row in rows[1:]] == pytest.approx(scores.tolist(), rel=1e-4)
    assert sum(row[1] == row[2] for row in rows[1:]) / 48 == results["whole"]["accuracy"]


def test_a_resumed_run_goes_on_to_the_same_losses(others):
    folder, results = others
    assert results["part"]["steps"] == 6 and results["resumed"]["steps"] == 12
    assert train_runs.losses(folder / "part") == train_runs.losses(folder / "whole")
    assert train_runs.losses(folder / "torch_part") == train_runs.losses(folder / "torch")


def test_optimisers_of_torch(others):
    folder, _ = others
    assert train_runs.losses(folder / "torch_same") == pytest.approx(train_runs.losses(folder / "own"), rel=1e-4)
    assert json.loads((folder / "torch/allgather/log.jsonl").read_text().splitlines()[0])["optimizer"] == "torch.adam"


def test_numbers_to_predict(others):
    _, results = others
    assert "accuracy" not in results["line"] and results["line"]["loss"] < 10


def test_a_run_starts_its_processes(others, tmp_path):
    folder, results = others
    model, data = lambda: train_runs.network(), train_runs.samples(1)
    result = atomo.train.run(model, data, lambda: train_runs.samples(2, 48), nodes=2, codec="qsgd:bits=6", steps=12, batch=8,
                             lr=0.05, out=tmp_path / "run")
    assert train_runs.losses(tmp_path, "run") == train_runs.losses(folder / "whole")
    assert {key: value for key, value in result.items() if key not in ("seconds", "ms", "out")} == {
        key: value for key, value in results["whole"].items() if key not in ("seconds", "ms", "out")}
    assert (tmp_path / "run/plot.png").exists()
    with pytest.raises(atomo.Error, match="holds a run already"):
        atomo.train.run(model, data, data, nodes=2, steps=1, out=tmp_path / "run")


class Broken(torch.utils.data.Dataset):
    """Raises at one sample, which one of the ranks comes to."""

    def __len__(self):
        return 64

    def __getitem__(self, number):
        if number == 17:
            raise LookupError("sample 17 is not there")
        return torch.ones(8), number % 3


def test_what_a_model_raises_ends_all_processes(tmp_path):
    with pytest.raises(atomo.train.Failed) as failed:
        atomo.train.run(train_runs.network, Broken(), train_runs.samples(2), nodes=2, algorithm="ps", epochs=1, batch=8,
                        out=tmp_path)
    assert re.search(r"atomo-train: worker [12] \(rank [12], process \d+ on \S+\):", str(failed.value))
    assert 'raise LookupError("sample 17 is not there")' in str(failed.value)

    def no_model():
        raise ZeroDivisionError("no model")

    with pytest.raises(atomo.train.Failed, match="cannot start(.|\n)*ZeroDivisionError: no model(.|\n)*rank 0(.|\n)*rank 1"):
        atomo.train.run(no_model, Broken(), Broken(), nodes=2, steps=2, out=tmp_path / "other")


INTERRUPTED = """
import sys
import torch
import atomo.train
sys.path.insert(0, sys.argv[2])
import train_runs
where = {"workers": sys.argv[3], "secret": sys.argv[4]} if len(sys.argv) == 5 else {"resume": len(sys.argv) == 4}
atomo.train.run(train_runs.network, train_runs.samples(1), train_runs.samples(2), nodes=2, steps=100000, batch=8,
                out=sys.argv[1], plot=False, **where)
"""


def started(folder, *more, begun):
    """The process of a run that has `begun()`."""
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, folder, HERE, *more], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + TIMEOUT
    while not begun():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    return process


def interrupted(folder, *more, begun):
    """What a run prints and says that gets Ctrl-C once `begun()`."""
    process = started(folder, *more, begun=begun)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=TIMEOUT)


def has_steps(tables, count=5):
    return any(table.read_text().count("\n") > count for table in tables)


def processes_with(word):
    """Those that have it on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if os.fsencode(word) in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def test_no_process_outlives_one_that_is_killed(tmp_path):
    """It can clean up nothing: mpirun is told by the system, and ends the others."""
    run = tmp_path / "run"
    process = started(run, begun=lambda: has_steps(run.glob("steps.csv")))
    assert len(processes_with(run / "job.pkl")) == 3  # mpirun and two that train
    process.kill()
    process.communicate(timeout=TIMEOUT)
    end = time.monotonic() + 20
    while left := processes_with(run / "job.pkl"):
        if time.monotonic() > end:
            for number in left:
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)
            pytest.fail(f"{len(left)} processes go on")
        time.sleep(0.1)


@pytest.mark.long
def test_an_interrupted_run_saves_and_ends(tmp_path):
    run = tmp_path / "run"
    _, said = interrupted(run, begun=lambda: has_steps(run.glob("steps.csv")))
    assert re.search(r"KeyboardInterrupt: interrupted after \d+ steps; the same call with resume=True goes on\n$", said), said
    assert atomo.train.load(run)["0.weight"].shape == (16, 8)


@pytest.mark.long
def test_a_run_that_is_interrupted_before_it_began_has_nothing_to_go_on_from(tmp_path):
    job = tmp_path / "run/job.pkl"  # mpirun is started then, and its processes take longer to import torch
    _, said = interrupted(job.parent, begun=lambda: job.exists() and time.time() > job.stat().st_mtime + 1)
    assert said.endswith("KeyboardInterrupt: interrupted before the run began: it has saved nothing\n"), said


@pytest.fixture
def worker(tmp_path):
    """(host file, secret) of a worker of another process."""
    secret, hosts = tmp_path / "secret", tmp_path / "hosts.json"
    secret.write_text("a secret of the tests\n")
    secret.chmod(0o600)
    process = subprocess.Popen([sys.executable, "-m", "atomo.train", "worker", "--secret", secret, "--listen", "127.0.0.1:0",
                                "--folder", tmp_path / "jobs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    hosts.write_text(json.dumps({"workers": ["127.0.0.1:1", re.search(r"on (\S+:\d+);", line)[1]]}))
    yield hosts, secret
    process.terminate()
    process.communicate()


@pytest.mark.long
def test_a_run_at_a_standing_worker_goes_on_here_after_an_interruption(worker, tmp_path):
    """Its folder there is of one job, so the same call would be refused."""
    run, jobs = tmp_path / "run", tmp_path / "jobs"
    printed, said = interrupted(run, *worker, begun=lambda: has_steps(jobs.glob("*/run/steps.csv")))
    assert re.search(r"KeyboardInterrupt: interrupted after \d+ steps; its checkpoint is in out: the same call with "
                     r"resume=True and without workers goes on, on this machine\n$", said), said
    assert "resume=True" not in printed
    steps = (run / "steps.csv").read_text().count("\n")
    _, said = interrupted(run, "resume", begun=lambda: has_steps([run / "steps.csv"], steps + 5))
    assert "KeyboardInterrupt: interrupted after" in said
    assert (run / "steps.csv").read_text().count("\n") > steps + 5


@pytest.mark.long
def test_a_standing_worker_takes_jobs(worker, others, tmp_path, capsys):
    hosts, secret = worker
    wrong = tmp_path / "wrong"
    wrong.write_text("another secret of the tests")
    points, tests = train_runs.samples(1), train_runs.samples(2, 48)
    run = {"nodes": 2, "codec": "qsgd:bits=6", "steps": 12, "batch": 8, "lr": 0.05, "workers": hosts, "plot": False}
    wrong.chmod(0o644)
    with pytest.raises(atomo.Error, match="others can read"):
        atomo.train.run(train_runs.network, points, tests, out=tmp_path / "a", secret=wrong, **run)
    wrong.chmod(0o600)
    with pytest.raises(atomo.Error, match="has another secret"):
        atomo.train.run(train_runs.network, points, tests, out=tmp_path / "a", secret=wrong, **run)
    result = atomo.train.run(train_runs.network, points, tests, out=tmp_path / "b", secret=secret, **run)
    assert train_runs.losses(tmp_path, "b") == train_runs.losses(others[0] / "whole") and result["out"] == str(tmp_path / "b")
    assert "tested after 12 steps" in capsys.readouterr().out and (tmp_path / "b/checkpoint.safetensors").exists()
    name = atomo.train.run(train_runs.network, points, tests, out=tmp_path / "c", secret=secret, wait=False, **run)
    listed = subprocess.run([sys.executable, "-m", "atomo.train", "workers", "--secret", secret, "--workers", hosts],
                            capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(rf"127.0.0.1:\d+  atomo {atomo.__version__}  \d+ cores  (runs {name}|has no job)\n", listed), listed
    left = atomo.train.collect(name, workers=hosts, secret=secret, out=tmp_path / "c")
    assert left["accuracy"] == result["accuracy"] and train_runs.losses(tmp_path, "c") == train_runs.losses(tmp_path, "b")


def model_of(data, split="classes:k=2", **options):
    return _model.Model(train_runs.network, data, data, split=split, seed=1,
                        **{"loss": None, "collate": None, "optimiser": None, "schedule": None} | options)


class Pairs(torch.utils.data.Dataset):
    """Two inputs a sample, and one of two classes."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.ones(2), torch.zeros(3), number % 2


def test_samples_batches_and_classes():
    model = model_of(Pairs())
    assert model.labels() == numpy.uint16([0, 1, 0, 1]).tobytes() and model.predicts_classes() and model.samples(True) == 4
    ones, zeros, targets = model.batch(False, numpy.array([3, 0], numpy.uint32))
    assert ones.shape == (2, 2) and zeros.shape == (2, 3) and targets.tolist() == [1, 0]
    assert model_of(Pairs(), collate=len).batch(False, numpy.array([1, 2, 3], numpy.uint32)) == 3
    assert model_of(Pairs(), split="iid").labels() == b""
    assert model_of(train_runs.samples(1, 3)).labels() == numpy.uint16([0, 1, 2]).tobytes()
    for targets in (torch.tensor([0, 65536]), torch.ones(2)):
        with pytest.raises(atomo.Error, match="from 0 to 65535"):
            model_of(torch.utils.data.TensorDataset(torch.ones(2, 1), targets)).labels()
    with pytest.raises(TypeError, match="loader.dataset"):
        model_of(torch.utils.data.DataLoader(Pairs())).samples(False)


def test_layers_without_a_part_in_the_loss_and_frozen_ones():
    class Partly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused, self.frozen = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
            self.frozen.requires_grad_(False)

        def forward(self, ones, zeros):
            return ones @ (self.used * self.frozen)

    model = _model.Model(Partly, Pairs(), Pairs(), loss=lambda outputs, targets: outputs.sum(), collate=None, optimiser=None,
                         schedule=None, split="iid", seed=1)
    network = model.network(1)
    assert network.layers == [("used", [2]), ("unused", [2])]
    got = {}
    network.backward(numpy.array([0, 1], numpy.uint32), 0, 0, 2.0, lambda: None,
                     lambda layer, gradient: got.update({layer: gradient.tolist()}))
    assert got == {0: [4, 4], 1: [0, 0]}
    with pytest.raises(atomo.Error, match="float64"):
        _model.Network(model, torch.nn.Linear(2, 2).double(), 1)


def test_states_that_no_checkpoint_holds_are_refused():
    with pytest.raises(atomo.Error, match="Adafactor keeps"):
        _model.Steps(torch.optim.Adafactor, None, [(3, 4)])
    assert _model.Steps(torch.optim.RMSprop, None, [(3, 4), (4,)]).moments == 1

    class Adapts(torch.optim.SGD):
        """Numbers of its own in a group, as optimisers have them that find their rate."""

        def step(self):
            super().step()
            self.param_groups[0]["found"] = self.param_groups[0].get("found", 1) * 2

    class AdaptsInPlace(torch.optim.SGD):
        """One of many numbers in a tensor, which its text leaves out."""

        def __init__(self, parameters):
            super().__init__(parameters)
            self.param_groups[0]["found"] = torch.zeros(2000)

        def step(self):
            super().step()
            self.param_groups[0]["found"][1000] += 1

    class Counts(torch.optim.SGD):
        def step(self):
            super().step()
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["seen"] = 1

    with pytest.raises(atomo.Error, match="a step of AdaptsInPlace changes 'found' of its groups"):
        _model.Steps(AdaptsInPlace, None, [(3, 4)])
    assert _model.Steps(functools.partial(torch.optim.Adam, lr=torch.tensor(0.1), betas=(0.9, 0.99)), None, [(3, 4)]).moments == 2
    with pytest.raises(atomo.Error, match="a step of Adapts changes 'found' of its groups"):
        _model.Steps(Adapts, None, [(3, 4)])
    with pytest.raises(atomo.Error, match="Counts keeps 'seen', 1, for a layer"):
        _model.Steps(Counts, None, [(3, 4)])


def steps_of(make, stop=None):
    """Weights after six steps; at `stop` a new optimiser goes on from weights and moments."""
    steps, weights = _model.Steps(make, None, [(3,)]), numpy.ones(3, numpy.float32)
    moments = [numpy.zeros(3, numpy.float32) for _ in range(steps.moments)]
    for number in range(6):
        if number == stop:
            steps = _model.Steps(make, None, [(3,)])
        steps.step(weights, numpy.full(3, 0.1 * (number + 1), numpy.float32), moments, 1.0, number)
    return weights


@pytest.mark.parametrize("kind, options", [("SGD", {"momentum": 0.9, "dampening": 0.9}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {}),
                                           ("AdamW", {}), ("Adam", {"amsgrad": True}), ("RAdam", {}), ("Adagrad", {}), ("Rprop", {}),
                                           ("RMSprop", {"centered": True, "momentum": 0.9})])
def test_steps_are_torchs_and_go_on(kind, options):
    def make(parameters):
        return getattr(torch.optim, kind)(parameters, lr=0.1, **options)

    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = make([parameter])
    for number in range(6):
        parameter.grad = torch.full((3,), 0.1 * (number + 1))
        optimiser.step()
    whole = steps_of(make)
    numpy.testing.assert_allclose(whole, parameter.detach().numpy(), rtol=1e-6)
    numpy.testing.assert_array_equal(steps_of(make, 3), whole)


def test_counts_of_batches_are_buffers():
    """Without a momentum batch normalisation averages over all batches so far."""
    model = _model.Model(lambda: torch.nn.BatchNorm1d(3, momentum=None), Pairs(), Pairs(), loss=lambda outputs, targets: outputs.sum(),
                         collate=None, optimiser=None, schedule=None, split="iid", seed=1)
    network = model.network(1)
    assert network.buffers().size == 7
    network.set_buffers(numpy.arange(7, dtype=numpy.float32))
    assert network.buffers().tolist() == list(range(7))


def test_output_that_nobody_takes_stops_no_run():
    class Gone:
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    source, kept = os.pipe(), []
    os.write(source[1], b"one")
    os.close(source[1])
    with os.fdopen(source[0], "rb", buffering=0) as file:
        _launch._copy(file, Gone(), kept)
    assert kept == ["one"]


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """Makes an mpirun of a shell script."""
    def make(script):
        (tmp_path / "mpirun").write_text("#!/bin/sh\n" + script)
        (tmp_path / "mpirun").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def test_nothing_of_a_launch_stays_open(mpirun, capsys):
    mpirun("echo one\necho two >&2\n")
    processes = []
    _launch.launch([], 1, [], started=processes.append)
    assert capsys.readouterr() == ("one\n", "two\n")
    assert processes[0].stdout.closed and processes[0].stderr.closed


def test_a_failure_has_what_processes_said_else_what_mpirun_says(mpirun):
    said = "echo ------ >&2\necho no such host >&2\necho ------ >&2\n"
    mpirun(said + "exit 1\n")
    with pytest.raises(atomo.train.Failed, match="^mpirun ended with status 1\n------\nno such host\n------$"):
        _launch.launch([], 1, [])
    mpirun(said + "echo a model raised >&2\nexit 1\n")
    with pytest.raises(atomo.train.Failed, match="^mpirun ended with status 1\na model raised$"):
        _launch.launch([], 1, [])


@pytest.mark.parametrize("options, words", [
    ({"nodes": None}, "how many processes"),
    ({"nodes": 1.5}, r"nodes is 1\.5: it must be an integer from 1"),
    ({"nodes": "2"}, "nodes is '2': it must be an integer from 1"),
    ({"nodes": True}, "nodes is True: it must be an integer from 1"),
    ({"nodes": 0}, "nodes is 0: it must be an integer from 1"),
    ({"seed": 2**64}, r"seed is 18446744073709551616: it must be an integer from 0 to 2\*\*64 - 1"),
    ({"seed": -1}, "seed is -1: it must be"),
    ({"seed": 0.5}, r"seed is 0\.5: it must be"),
    ({"launcher": "--hostfile hosts"}, "launcher is '--hostfile hosts': a list of words for mpirun"),
    ({"launcher": None}, "launcher is None: a list of words"),
    ({"launcher": ["-x", 1]}, r"launcher is \['-x', 1\]: a list of words"),
    ({"help": True}, "help: leave it out"),
    ({"list": True}, "list: leave it out"),
    ({"secret": "secret"}, "secret: goes with workers"),
    ({"algorithm": "psgd"}, "psgd"),
    ({"codec": "qsgd:bits=9"}, "bits"),
    ({"local_step": 2}, "local-step"),
    ({"local_steps": 2}, "local-steps"),
    ({"data": 3}, "__getitem__"),
    ({"label_smoothing": 0.1}, "label-smoothing: leave it out"),
    ({"schedule": torch.optim.lr_scheduler.StepLR}, "goes with an optimizer of torch"),
    ({"save_every": 2, "codec": "qsgd:bits=4", "policy": {"*": "sign"}}, "one of --budget, --codec and --policy"),
])
def test_refusals(options, words, tmp_path):
    with pytest.raises((atomo.Error, TypeError), match=words):
        atomo.train.run(**{"model": train_runs.network, "data": train_runs.samples(1), "test": train_runs.samples(2),
                           "nodes": 2, "out": tmp_path / "run", "steps": 2} | options)
    assert not (tmp_path / "run").exists()
