# SPDX-License-Identifier: Apache-2.0
"""Who gives jobs to standing workers (_standing.py): hands them over, and collects what is left of them, then or later."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from atomo import Error, __version__

from ._connection import PATIENCE, hear, limit, say
from ._job import Failed

Hosts = Sequence[tuple[str, int]]


class _Unknown(Error):
    """The worker has no such job."""


def _name(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _greet(address: tuple[str, int], secret: bytes) -> tuple[Connection, dict[str, Any]]:
    """A worker of this version, and what it says of itself. Raises Error."""
    name = _name(address)
    try:
        connection = Client(address)
        limit(connection, PATIENCE)
        answer_challenge(connection, secret)
        deliver_challenge(connection, secret)
        told = hear(connection)
    except AuthenticationError as error:
        raise Error(f"{name} has another secret") from error
    except (OSError, EOFError, ValueError) as error:
        raise Error(f"{name} does not answer as a worker: {error}") from error
    if told["version"] != __version__:
        connection.close()
        raise Error(f"{name} has atomo {told['version']}, this is {__version__}")
    return connection, told


def _meet(address: tuple[str, int], secret: bytes) -> Connection:
    return _greet(address, secret)[0]


def _ask(address: tuple[str, int], connection: Connection, **question: Any) -> dict[str, Any]:
    """What the worker answers. Raises Error when it refuses."""
    try:
        say(connection, **question)
        told = hear(connection)
    except (OSError, EOFError, ValueError) as error:
        raise Error(f"{_name(address)} gives no answer: {error}") from error
    if "refused" in told:
        raise (_Unknown if told.get("unknown") else Error)(f"{_name(address)} {told['refused']}")
    return told


def submit(job: bytes, processes: int, launcher: Sequence[str], out: Path, hosts: Hosts, secret: bytes, wait: bool = True) -> str:
    """Runs a job at the first worker that has none, and returns its name: where it waits, once the job has ended and `out` has
    the files of its folder, else once it has begun. Raises Failed like `launch`."""
    reasons = []
    for address in hosts:
        try:
            connection = _meet(address, secret)
        except (Error, OSError, EOFError) as error:
            reasons.append(str(error))
            continue
        with closing(connection):
            try:
                _ask(address, connection, wants="run", processes=processes, launcher=list(launcher))
                connection.send_bytes(job)
                told = hear(connection)
            except (Error, OSError, EOFError) as error:
                reasons.append(str(error))
                continue
            # From here on this worker has the job: no other is asked.
            print(f"{_name(address)} runs job {told['job']} in {told['folder']}", flush=True)
            name = str(told["job"])
            with _asks_to_stop(connection) if wait else nullcontext():
                say(connection, go=True, waits=wait)
                if wait:
                    _follow(address, connection, name, out)
                else:
                    _hear_of(address, connection, name)
            return name
    raise Error("workers: none takes the job: " + "; ".join(reasons))


def _at_its_worker(job: str, hosts: Hosts, secret: bytes, **question: Any) -> tuple[tuple[str, int], Connection]:
    """The worker that has a job, and the connection on which it agreed to what was asked."""
    reasons = []
    for address in hosts:
        connection = None
        try:
            connection = _meet(address, secret)
            _ask(address, connection, job=job, **question)
            return address, connection
        except Error as error:
            if connection is not None:
                connection.close()
                if not isinstance(error, _Unknown):
                    raise
            reasons.append(str(error))
    raise Error("workers: " + "; ".join(reasons))


def collect(job: str, out: Path, hosts: Hosts, secret: bytes) -> None:
    """Prints what the job printed from its begin, waits for its end and fills `out`. Raises Failed where it failed, Error where
    `out` holds a run."""
    if (out / "log.jsonl").exists():
        raise Error(f"out: '{out}' holds a run already; take another folder")
    address, connection = _at_its_worker(job, hosts, secret, wants="collect")
    with closing(connection):
        _follow(address, connection, job, out)


def cancel(job: str, now: bool, hosts: Hosts, secret: bytes) -> None:
    _, connection = _at_its_worker(job, hosts, secret, wants="cancel", now=now)
    connection.close()


def jobs(hosts: Hosts, secret: bytes) -> list[dict[str, Any]]:
    """Those of all workers. Raises Error where none answers."""
    return [job | {"worker": worker["worker"]} for worker in _who_answer(hosts, secret) for job in worker["jobs"]]


def workers(hosts: Hosts, secret: bytes) -> list[dict[str, Any]]:
    """Each with the job that it runs, None where it has none. Raises Error where none answers."""
    found = _who_answer(hosts, secret)
    for worker in found:
        worker["job"] = next((job["job"] for job in worker.pop("jobs") if job["state"] == "runs"), None)
    return found


def _who_answer(hosts: Hosts, secret: bytes) -> list[dict[str, Any]]:
    """The workers that do: `worker` (the address), `version`, `cores`, `jobs`. Raises Error where none answers."""
    found: list[dict[str, Any]] = []
    reasons = []
    for address in hosts:
        try:
            connection, told = _greet(address, secret)
            with closing(connection):
                jobs = _ask(address, connection, wants="jobs")["jobs"]
            found.append({"worker": _name(address), "version": told["version"], "cores": told["cores"], "jobs": jobs})
        except Error as error:
            reasons.append(str(error))
    if len(reasons) == len(hosts):
        raise Error("workers: none answers: " + "; ".join(reasons))
    for reason in reasons:
        print(f"atomo.train: {reason}", file=sys.stderr)
    return found


@contextmanager
def _asks_to_stop(connection: Connection) -> Iterator[None]:
    """The first Ctrl-C asks the run to save and end; the second raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        say(connection, stop=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(address: tuple[str, int], connection: Connection, job: str, out: Path) -> None:
    """Until the job has ended. Its files are in `out` once all of them have come."""
    limit(connection, 0)
    try:
        told = _files_of(address, connection, job, out)
    except OSError as error:
        raise Failed(f"{error}; job {job} goes on at {_name(address)}, which gives its files to collect", job=job) from error
    if told["end"]:
        raise Failed(told["end"], job=job)


def _files_of(address: tuple[str, int], connection: Connection, job: str, out: Path) -> dict[str, Any]:
    """Prints what comes and fills `out`; the job's last word."""
    partial = out / f".{job}.part"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        while "end" not in (told := _hear_of(address, connection, job)):
            if "stream" in told:
                stream = sys.stderr if told["stream"] == "stderr" else sys.stdout
                stream.write(told["text"])
                stream.flush()
            elif "file" in told:
                (partial / Path(told["file"]).name).write_bytes(_hear_of(address, connection, job, raw=True))
        for file in partial.iterdir():
            file.replace(out / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return told


def _hear_of(address: tuple[str, int], connection: Connection, job: str, raw: bool = False) -> Any:
    try:
        return connection.recv_bytes() if raw else hear(connection)
    except (EOFError, OSError) as error:
        raise Failed(f"the connection to {_name(address)} broke; job {job} goes on there if the worker does, and "
                     f"atomo.train.collect('{job}', ...) brings what is left of it", job=job) from error
