# SPDX-License-Identifier: Apache-2.0
"""Standing workers: processes that wait for jobs, run them by mpirun on their machine and keep what is left of them.

In a connection both ends first prove that they hold the secret (HMAC challenges of multiprocessing.connection). The worker says
what it is, and the other end what it wants: to hand over a job, the list of jobs, all that a job printed and left, or to end one. A
job is code. It runs in a thread of its own, whether anybody is connected or not.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import sys
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from atomo import Error, __version__

from ._connection import PATIENCE, address_of, hear, limit, say, secret_of
from ._kept import Kept, Launch, Shelf
from ._launch import launch

_SECONDS_TO_END = 10  # of a job's processes, when the worker is ended


class Worker:
    """`serve()` for ever, then `end()`. One job at a time; `runs` it as `launch` does."""

    def __init__(self, address: tuple[str, int], secret: bytes, folder: Path, days: float | None = None,
                 runs: Launch = launch) -> None:
        self._secret, self._runs, self._busy = secret, runs, threading.Lock()
        self._shelf = Shelf(folder, days)
        self._listener = Listener(address, backlog=16)
        self.address = self._listener.address

    def serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                continue  # who knocked has left
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def end(self) -> None:
        """Ends the job that runs."""
        for job in self._shelf.all():
            job.stop(now=True)
        self._busy.acquire(timeout=_SECONDS_TO_END)

    def _attend(self, connection: Connection) -> None:
        with connection:
            try:
                limit(connection, PATIENCE)
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
            except (AuthenticationError, EOFError, OSError, ValueError):
                print("atomo.train: refused a peer that does not hold the secret", file=sys.stderr, flush=True)
                return
            try:
                self._talk(connection)
            except (EOFError, OSError, ValueError, KeyError, TypeError) as error:
                print(f"atomo.train: a connection ended: {error}", file=sys.stderr, flush=True)

    def _talk(self, connection: Connection) -> None:
        say(connection, version=__version__, cores=len(os.sched_getaffinity(0)))
        asked = hear(connection)
        wants = asked["wants"]
        if wants == "run":
            self._take(connection, asked)
        elif wants == "jobs":
            say(connection, jobs=[job.state | {"folder": str(job.folder)} for job in self._shelf.all()])
        elif wants in ("collect", "cancel"):
            job = self._shelf.find(str(asked["job"]))
            if job is None:
                say(connection, refused=f"knows no job '{asked['job']}'", unknown=True)
            elif wants == "collect":
                say(connection, folder=str(job.folder))
                _tell(connection, job)
            elif not job.runs:
                say(connection, refused=f"job {asked['job']} has ended already")
            else:
                job.stop(bool(asked.get("now")))
                say(connection)
        else:
            say(connection, refused=f"does not know what '{wants}' is")

    def _take(self, connection: Connection, asked: dict[str, Any]) -> None:
        """Takes a job, begins it and tells of it."""
        processes, launcher = int(asked["processes"]), [str(word) for word in asked["launcher"]]
        if not self._busy.acquire(blocking=False):
            return say(connection, refused="is busy")
        begun, job = False, None
        try:
            say(connection)
            job = self._shelf.add(connection.recv_bytes(), processes)
            say(connection, job=job.state["job"], folder=str(job.folder))
            told = hear(connection)
            if told.get("go"):
                self._shelf.begin(job)
                threading.Thread(target=self._run, args=(job, processes, launcher), daemon=True).start()
                begun = True
        finally:
            if not begun:
                self._busy.release()
                if job is not None:
                    shutil.rmtree(job.folder, ignore_errors=True)
        if begun and told["waits"]:
            _tell(connection, job)
        elif begun:
            say(connection)

    def _run(self, job: Kept, processes: int, launcher: list[str]) -> None:
        try:
            job.run(self._runs, processes, launcher)
        finally:
            self._busy.release()


def _tell(connection: Connection, job: Kept) -> None:
    """Tells what the job prints, from its begin, and when it has ended its files. It is stopped when the other end says so."""
    limit(connection, 0)
    there = threading.Event()
    there.set()

    def listen() -> None:
        try:
            while hear(connection).get("stop"):
                job.stop()
        except (EOFError, OSError, ValueError):
            pass
        there.clear()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        for line in job.printed(there.is_set):
            connection.send_bytes(line)
        if job.runs:
            return  # the other end has left
        for file in job.files():
            say(connection, file=file.name)
            connection.send_bytes(file.read_bytes())
        say(connection, end=job.state["failure"])
    finally:
        # Before the handle is another connection's.
        with socket.socket(fileno=os.dup(connection.fileno())) as handle, suppress(OSError):
            handle.shutdown(socket.SHUT_RDWR)
        listener.join()


def worker(listen: str, secret: str, folder: str, days: float | None) -> None:
    """Waits for jobs until it is ended."""
    standing = Worker(address_of(listen), secret_of(secret), Path(folder), days)
    host, port = standing.address
    print(f"atomo.train: waiting for jobs on {host}:{port}; whoever holds the secret runs code here as {getpass.getuser()}",
          flush=True)
    try:
        standing.serve()
    finally:
        standing.end()
