# SPDX-License-Identifier: Apache-2.0
"""Standing workers of `atomo.train`: what they keep of jobs, and who may have it. The jobs here are text that a stand-in for
mpirun obeys in this process, so that a test says when a job goes on."""
import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
try:
    from atomo import _atomo_train  # noqa: F401
except ImportError as error:
    pytest.skip(str(error), allow_module_level=True)

import atomo.train
from atomo.train import _connection, _standing, _workers

SECRET = b"a secret of the tests"
PATIENCE = 20  # seconds in which whatever a test waits for has happened


class Process:
    """Of a job: what it was asked to do."""

    def __init__(self):
        self.asked = []

    def send_signal(self, number):
        self.asked.append(number)


class Mpirun:
    """Prints two lines, waits in between until `goes_on` is set or it is asked to end, and leaves two files."""

    def __init__(self):
        self.goes_on, self.process = threading.Event(), None

    def __call__(self, words, processes, launcher, out, error, began):
        job, to = Path(words[2]), Path(words[3].removeprefix("--out="))
        self.process = Process()
        began(self.process)
        out.write(f"{processes} processes begin {job.read_text()}\n")
        end = time.monotonic() + PATIENCE
        while not (self.goes_on.is_set() or self.process.asked) and time.monotonic() < end:
            time.sleep(0.005)
        error.write("goes on\n")
        to.mkdir()
        (to / "log.jsonl").write_text("the log\n")
        (to / "checkpoint.safetensors").write_bytes(bytes(100_000))
        if job.read_text() == "fails" or signal.SIGTERM in self.process.asked:
            raise atomo.train.Failed("mpirun ended with status 1")


@contextmanager
def standing(folder, mpirun, **options):
    worker = _standing.Worker(("127.0.0.1", 0), SECRET, folder, runs=mpirun, **options)
    threading.Thread(target=worker.serve, daemon=True).start()
    try:
        yield worker
    finally:
        worker.end()
        worker._shelf._lock.close()


@pytest.fixture
def mpirun():
    return Mpirun()


@pytest.fixture
def worker(tmp_path, mpirun):
    with standing(tmp_path / "jobs", mpirun) as worker:
        yield worker


def submit(worker, out, job="a job", address=None, secret=SECRET):
    out.mkdir(exist_ok=True)
    _workers.submit(job.encode(), 3, [], out, [address or worker.address], secret)


def jobs(worker):
    return _workers.jobs([worker.address], SECRET)


def collect(worker, job, out):
    _workers.collect(job, out, [worker.address], SECRET)


def until(what):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


class Cut:
    """A relay before a worker that breaks its connection to a client when the client has had `text`."""

    def __init__(self, address, text):
        self._address, self._text = address, text
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = self._socket.getsockname()
        threading.Thread(target=self._relay, daemon=True).start()

    def _relay(self):
        here, _ = self._socket.accept()
        there = socket.create_connection(self._address)
        threading.Thread(target=self._pass_on, args=(here, there, b"\0never"), daemon=True).start()
        self._pass_on(there, here, self._text)

    @staticmethod
    def _pass_on(source, to, last):
        seen = b""
        while last not in seen and (piece := source.recv(1000)):
            to.sendall(piece)
            seen += piece
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_job_whose_connection_broke_is_collected(worker, mpirun, tmp_path, capsys):
    with pytest.raises(atomo.train.Failed, match="the connection to .* broke; job .* goes on") as broken:
        submit(worker, tmp_path / "out", address=Cut(worker.address, b"begin a job").address)
    name = broken.value.job
    assert list((tmp_path / "out").iterdir()) == []
    assert [(job["job"], job["state"], job["processes"]) for job in jobs(worker)] == [(name, "runs", 3)]
    capsys.readouterr()
    mpirun.goes_on.set()
    # The second break is while files travel: nothing is half there.
    with pytest.raises(atomo.train.Failed, match="broke"):
        _workers.collect(name, tmp_path / "out", [Cut(worker.address, bytes(3000)).address], SECRET)
    assert list((tmp_path / "out").iterdir()) == []
    capsys.readouterr()
    collect(worker, name, tmp_path / "out")
    said, errors = capsys.readouterr()
    assert said == "3 processes begin a job\n"
    # The worker, in this process, may say of the broken connection before or after.
    assert [line for line in errors.splitlines() if "a connection ended" not in line] == ["goes on"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["checkpoint.safetensors", "log.jsonl"]
    assert (tmp_path / "out/checkpoint.safetensors").read_bytes() == bytes(100_000)
    listed, = jobs(worker)
    assert listed["state"] == "ended" and listed["ended"] >= listed["began"] and Path(listed["folder"]).name == name
    with pytest.raises(atomo.Error, match="holds a run already"):
        collect(worker, name, tmp_path / "out")


def test_a_job_has_one_worker(worker, mpirun, tmp_path, capsys):
    """Its files cannot be put in their place: the job is where it is, and no other worker is asked."""
    mpirun.goes_on.set()
    (tmp_path / "out/log.jsonl").mkdir(parents=True)
    with standing(tmp_path / "others", Mpirun()) as other:
        with pytest.raises(atomo.train.Failed, match="Is a directory.*; job .* goes on at") as failed:
            _workers.submit(b"a job", 3, [], tmp_path / "out", [worker.address, other.address], SECRET)
        assert jobs(other) == [] and [job["job"] for job in jobs(worker)] == [failed.value.job]


def test_a_job_whose_launcher_raises_has_failed(tmp_path, capsys):
    def raises(*arguments):
        raise ValueError("embedded null byte")

    with standing(tmp_path / "jobs", raises) as worker:
        with pytest.raises(atomo.train.Failed, match="embedded null byte"):
            submit(worker, tmp_path / "out")
        assert [job["state"] for job in jobs(worker)] == ["failed"]


def test_a_job_that_nobody_waits_for(worker, mpirun, tmp_path, capsys):
    name = _workers.submit(b"a job", 3, [], tmp_path, [worker.address], SECRET, wait=False)
    # It runs, and nobody is told what it prints.
    assert [(job["job"], job["state"]) for job in jobs(worker)] == [(name, "runs")] and not mpirun.goes_on.is_set()
    assert list(tmp_path.iterdir()) == [tmp_path / "jobs"]
    said, errors = capsys.readouterr()
    assert said.endswith(f"runs job {name} in {tmp_path / 'jobs' / name}\n") and said.count("\n") == 1 and not errors
    mpirun.goes_on.set()
    collect(worker, name, tmp_path / "out")
    assert capsys.readouterr().out == "3 processes begin a job\n" and (tmp_path / "out/log.jsonl").exists()
    with pytest.raises(atomo.Error, match="wait: False goes with workers"):
        atomo.train.run(None, None, None, nodes=1, wait=False)


def test_workers_are_listed(worker, mpirun, tmp_path, capsys, monkeypatch):
    with standing(tmp_path / "others", mpirun) as other:
        name = _workers.submit(b"a job", 1, [], tmp_path, [worker.address], SECRET, wait=False)
        hosts = [("127.0.0.1", 1), worker.address, other.address]
        about = {"version": atomo.__version__, "cores": len(os.sched_getaffinity(0))}
        assert _workers.workers(hosts, SECRET) == [
            about | {"worker": _workers._name(address), "job": job} for address, job in ((worker.address, name), (other.address, None))]
        assert "127.0.0.1:1 does not answer as a worker" in capsys.readouterr().err
        mpirun.goes_on.set()
        until(lambda: _workers.workers([worker.address], SECRET)[0]["job"] is None)
        monkeypatch.setattr(_standing, "__version__", "0.0.1")
        with pytest.raises(atomo.Error, match=f"none answers: .* has atomo 0.0.1, this is {atomo.__version__}"):
            _workers.workers([other.address], SECRET)


def test_two_clients(worker, mpirun, tmp_path):
    first = threading.Thread(target=submit, args=(worker, tmp_path / "first"))
    first.start()
    until(lambda: jobs(worker))
    name = jobs(worker)[0]["job"]
    with pytest.raises(atomo.Error, match="none takes the job: .* is busy"):
        submit(worker, tmp_path / "second", "another job")
    second = threading.Thread(target=collect, args=(worker, name, tmp_path / "second"))
    second.start()
    mpirun.goes_on.set()
    for client in (first, second):
        client.join(PATIENCE)
    for out in ("first", "second"):
        assert (tmp_path / out / "log.jsonl").read_text() == "the log\n"
    submit(worker, tmp_path / "third", "another job")
    assert [job["state"] for job in jobs(worker)] == ["ended", "ended"]


def test_who_has_another_secret_gets_nothing(worker, mpirun, tmp_path, capfd):
    mpirun.goes_on.set()
    submit(worker, tmp_path / "out")
    name = jobs(worker)[0]["job"]
    other, hosts = b"another secret of the tests", [worker.address]
    for ask in (lambda: _workers.jobs(hosts, other), lambda: _workers.collect(name, tmp_path / "a", hosts, other),
                lambda: _workers.cancel(name, False, hosts, other), lambda: submit(worker, tmp_path / "b", secret=other)):
        with pytest.raises(atomo.Error, match="has another secret"):
            ask()
    assert not (tmp_path / "a").exists() and len(jobs(worker)) == 1
    refused, until = 0, time.monotonic() + PATIENCE
    while refused < 4 and time.monotonic() < until:  # the worker says so once the other end knows
        time.sleep(0.05)
        refused += capfd.readouterr().err.count("refused a peer that does not hold the secret")
    assert refused == 4


def test_unknown_jobs(worker, tmp_path):
    for name in ("20200101-000000-0000", "../jobs", ""):
        with pytest.raises(atomo.Error, match=f"knows no job '{re.escape(name)}'"):
            collect(worker, name, tmp_path / "out")
        with pytest.raises(atomo.Error, match="knows no job"):
            _workers.cancel(name, False, [worker.address], SECRET)
    with _workers._meet(worker.address, SECRET) as connection, pytest.raises(atomo.Error, match="does not know what 'dance' is"):
        _workers._ask(worker.address, connection, wants="dance")
    # Another worker of the host file may have it, and one that is not there is named.
    with pytest.raises(atomo.Error, match="does not answer as a worker.* knows no job"):
        _workers.collect("x", tmp_path / "out", [("127.0.0.1", 1), worker.address], SECRET)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("now, number, state", [(False, signal.SIGUSR1, "ended"), (True, signal.SIGTERM, "failed")])
def test_a_job_is_cancelled(worker, mpirun, tmp_path, now, number, state):
    client = threading.Thread(target=lambda: pytest.raises(atomo.train.Failed, submit, worker, tmp_path / "out") if now
                              else submit(worker, tmp_path / "out"))
    client.start()
    until(lambda: mpirun.process)
    name = jobs(worker)[0]["job"]
    _workers.cancel(name, now, [worker.address], SECRET)
    client.join(PATIENCE)
    assert mpirun.process.asked == [number] and jobs(worker)[0]["state"] == state
    assert (tmp_path / "out/log.jsonl").exists()
    with pytest.raises(atomo.Error, match="has ended already"):
        _workers.cancel(name, now, [worker.address], SECRET)


def test_what_a_worker_keeps_outlives_it(tmp_path, mpirun, capsys):
    folder = tmp_path / "jobs"
    mpirun.goes_on.set()
    with standing(folder, mpirun) as worker:
        with pytest.raises(atomo.Error, match="another worker has"), standing(folder, mpirun):
            pass
        submit(worker, tmp_path / "a")
        with pytest.raises(atomo.train.Failed, match="status 1"):
            submit(worker, tmp_path / "b", "fails")
        names = [job["job"] for job in jobs(worker)]
    # As if the worker had died while the second ran, and been ended days after the first.
    for name, change in ((names[1], {"state": "runs"}), (names[0], {"ended": "2020-01-01T00:00:00+00:00"})):
        file = folder / name / "state.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    (folder / "no-job").mkdir()
    (folder / "no-job/state.json").write_text("{")
    with standing(folder, mpirun, days=7) as worker:
        assert {job["job"]: job["state"] for job in jobs(worker)} == {names[0]: "ended", names[1]: "failed"}
        capsys.readouterr()
        collect(worker, names[0], tmp_path / "c")
        assert capsys.readouterr() == ("3 processes begin a job\n", "goes on\n")
        with pytest.raises(atomo.train.Failed, match="the worker ended while it ran"):
            collect(worker, names[1], tmp_path / "d")
        assert (tmp_path / "d/log.jsonl").exists()
        submit(worker, tmp_path / "e")
        assert names[0] not in {job["job"] for job in jobs(worker)} and not (folder / names[0]).exists()
        assert (folder / names[1]).exists() and (folder / "no-job").exists()


def test_a_job_that_was_not_begun_leaves_nothing(worker, mpirun, tmp_path):
    with _workers._meet(worker.address, SECRET) as connection:
        _workers._ask(worker.address, connection, wants="run", processes=1, launcher=[])
        connection.send_bytes(b"a job")
        folder = Path(_connection.hear(connection)["folder"])
        assert (folder / "job.pkl").exists()
    until(lambda: not folder.exists())
    mpirun.goes_on.set()
    submit(worker, tmp_path / "out")
    assert len(jobs(worker)) == 1
