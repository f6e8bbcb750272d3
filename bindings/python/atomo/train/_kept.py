# SPDX-License-Identifier: Apache-2.0
"""The jobs that a standing worker has: each in a folder of its own, with what it printed and how it ended."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from atomo import Error

from ._job import Failed

JOB, RUN, _PRINTED, _STATE = "job.pkl", "run", "printed.jsonl", "state.json"
Launch = Callable[..., None]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Kept:
    """A job. Its folder has `job.pkl`; `printed.jsonl`, a line a piece of text with its stream; `state.json`; and `run`, the
    folder of the run."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder, self.state = folder, state
        self._changed, self._asked = threading.Condition(), list[int]()
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = 0  # bytes of printed.jsonl that are whole lines

    @property
    def runs(self) -> bool:
        return bool(self.state["state"] == "runs")

    def write_state(self) -> None:
        partial = self.folder / (_STATE + ".part")
        try:
            partial.write_text(json.dumps(self.state), encoding="utf-8")
            partial.replace(self.folder / _STATE)
        except OSError as error:  # the job itself is none the worse
            print(f"atomo.train: cannot write '{self.folder / _STATE}': {error.strerror}", file=sys.stderr, flush=True)

    def run(self, launch: Launch, processes: int, launcher: Sequence[str]) -> None:
        """Runs the job to its end."""
        failure = ""
        try:
            with (self.folder / _PRINTED).open("ab", buffering=0) as file:
                launch(["-m", "atomo.train", str(self.folder / JOB), f"--out={self.folder / RUN}"], processes, launcher,
                       _Stream(self, file, "stdout"), _Stream(self, file, "stderr"), self._began)
        except Exception as error:
            failure = str(error) or type(error).__name__
        self.end("failed" if failure else "ended", failure)

    def end(self, state: str, failure: str) -> None:
        with self._changed:
            self.state |= {"state": state, "failure": failure, "ended": _now()}
            self._process = None
            self.write_state()
            self._changed.notify_all()

    def print(self, file: Any, stream: str, text: str) -> None:
        line = json.dumps({"stream": stream, "text": text}).encode() + b"\n"
        with self._changed:
            try:
                if file.write(line) < len(line):
                    file.truncate(self._printed)
                    return
            except OSError:
                return  # the disk is full; the job goes on
            self._printed += len(line)
            self._changed.notify_all()

    def _began(self, process: subprocess.Popen[bytes]) -> None:
        with self._changed:
            self._process = process
            for number in self._asked:
                process.send_signal(number)

    def stop(self, now: bool = False) -> None:
        """Asks it to save a checkpoint and to end; `now`: ends it. Nothing where it has ended."""
        number = signal.SIGTERM if now else signal.SIGUSR1
        with self._changed:
            if self._process is not None:
                self._process.send_signal(number)
            elif self.runs:
                self._asked.append(number)

    def printed(self, there: Callable[[], bool] = lambda: True) -> Iterator[bytes]:
        """The lines of printed.jsonl from its begin, as they come, until the job has ended or `there` is false."""
        path, done = self.folder / _PRINTED, 0
        while there():
            with self._changed:
                # Of earlier jobs all lines are there.
                self._changed.wait_for(lambda: not self.runs or self._printed > done, 1)
                runs, until = self.runs, self._printed
            if path.exists() and (not runs or until > done):
                with path.open("rb") as file:
                    file.seek(done)
                    text = file.read(until - done if runs else -1)
                done += len(text)
                yield from (line for line in text.splitlines() if line.endswith(b"}"))
            if not runs:
                return

    def files(self) -> list[Path]:
        """Those of the run's folder."""
        folder = self.folder / RUN
        return sorted(file for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []


class _Stream:
    """A file whose text a job keeps."""

    def __init__(self, job: Kept, file: Any, name: str) -> None:
        self._job, self._file, self._name = job, file, name

    def write(self, text: str) -> None:
        self._job.print(self._file, self._name, text)

    def flush(self) -> None:
        """Nothing is kept back."""


class Shelf:
    """The folder of all jobs, and what earlier workers left in it. `days`: ended jobs older than that are removed when another
    begins; None: never. Raises Error where another worker has the folder."""

    def __init__(self, folder: Path, days: float | None) -> None:
        self._folder, self._days, self._jobs = folder, days, dict[str, Kept]()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Error(f"folder: another worker has '{folder}'") from error
        for file in sorted(folder.glob(f"*/{_STATE}")):  # by the times in their names
            try:
                state = json.loads(file.read_text(encoding="utf-8"))
                job = self._jobs[state["job"]] = Kept(file.parent, state)
                if job.runs:
                    job.end("failed", "the worker ended while it ran")
            except (OSError, ValueError, TypeError, KeyError) as error:
                print(f"atomo.train: '{file}' is passed over: {error}", file=sys.stderr, flush=True)

    def all(self) -> list[Kept]:
        """The oldest first."""
        return list(self._jobs.values())

    def find(self, name: str) -> Kept | None:
        return self._jobs.get(name)

    def add(self, content: bytes, processes: int) -> Kept:
        """A job that is to run. Its folder is there, its state not before `begin`."""
        self._tidy()
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        folder = self._folder / name
        folder.mkdir(mode=0o700)
        (folder / JOB).write_bytes(content)
        return Kept(folder, {"job": name, "state": "runs", "failure": "", "processes": processes})

    def begin(self, job: Kept) -> None:
        job.state["began"] = _now()
        self._jobs[job.state["job"]] = job
        job.write_state()

    def _tidy(self) -> None:
        if self._days is None:
            return
        before = datetime.now(timezone.utc) - timedelta(days=self._days)
        for job in self.all():
            if not job.runs and datetime.fromisoformat(job.state["ended"]) < before:
                del self._jobs[job.state["job"]]
                shutil.rmtree(job.folder, ignore_errors=True)
