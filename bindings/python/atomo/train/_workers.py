# SPDX-License-Identifier: Apache-2.0
"""Standing workers: processes that wait for jobs, run them by mpirun on their machine and send back what is left of them.

A connection has three phases. In the first both ends prove that they hold the secret (HMAC challenges of
multiprocessing.connection) and the worker says what it is. In the second the job arrives and is ready. In the third it runs, with
what it prints sent as it comes, and then the files of its folder. Control messages are JSON; a job is code.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from atomo import Error, __version__

from ._job import Failed
from ._launch import launch

ADDRESS = "127.0.0.1:15387"
_LEAST_SECRET = 16  # bytes
_JOB = "job.pkl"


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of "HOST:PORT"."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise Error(f"'{text}' is no address: write HOST:PORT, as {ADDRESS}")
    return host, int(port)


def secret_of(path: str | os.PathLike[str]) -> bytes:
    """The secret in a file that nobody but its owner can read."""
    try:
        shared = os.stat(path).st_mode & 0o077
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise Error(f"secret: cannot read '{os.fspath(path)}': {error.strerror}") from error
    if shared:
        raise Error(f"secret: others can read '{os.fspath(path)}'; chmod 600 makes it yours alone")
    if len(secret) < _LEAST_SECRET:
        raise Error(f"secret: '{os.fspath(path)}' has {len(secret)} bytes, at least {_LEAST_SECRET} are wanted")
    return secret


def hosts_of(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """The workers of a host file, `{"workers": ["127.0.0.1:15387", ...]}`."""
    try:
        workers = json.loads(Path(path).read_text(encoding="utf-8"))["workers"]
        return [address_of(worker) for worker in workers]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Error(f"workers: '{os.fspath(path)}' is no host file ({error}); it holds "
                    f'{{"workers": ["{ADDRESS}"]}}') from error


def _say(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _hear(connection: Connection) -> dict[str, Any]:
    return dict(json.loads(connection.recv_bytes()))


class _Stream:
    """A file whose text goes to whoever gave the job, as long as they are there."""

    def __init__(self, connection: Connection, lock: threading.Lock, name: str) -> None:
        self._connection, self._lock, self._name = connection, lock, name

    def write(self, text: str) -> None:
        try:
            with self._lock:
                _say(self._connection, stream=self._name, text=text)
        except OSError:
            pass  # they left; the job goes on, and its folder stays

    def flush(self) -> None:
        """Nothing is kept back."""


class Worker:
    """`listen()`, then `serve()` for ever. One job at a time."""

    def __init__(self, address: tuple[str, int], secret: bytes, folder: Path) -> None:
        self._secret, self._folder, self._busy, self._jobs = secret, folder, threading.Lock(), 0
        self._listener = Listener(address)
        self.address = self._listener.address

    def serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                continue  # who knocked has left
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: Connection) -> None:
        with connection:
            try:
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
            except (AuthenticationError, EOFError, OSError, ValueError):
                print("atomo.train: refused a peer that does not hold the secret", file=sys.stderr, flush=True)
                return
            try:
                self._talk(connection)
            except (EOFError, OSError, ValueError, KeyError) as error:
                print(f"atomo.train: a connection ended: {error}", file=sys.stderr, flush=True)

    def _talk(self, connection: Connection) -> None:
        ready = self._busy.acquire(blocking=False)
        try:
            _say(connection, version=__version__, cores=len(os.sched_getaffinity(0)), ready=ready)
            if not ready:
                return
            asked = _hear(connection)
            self._jobs += 1
            folder = self._folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{self._jobs}"
            folder.mkdir(parents=True)
            (folder / _JOB).write_bytes(connection.recv_bytes())
            _say(connection, folder=str(folder))
            if _hear(connection).get("go"):
                self._run(connection, folder, int(asked["processes"]), [str(word) for word in asked["launcher"]])
        finally:
            if ready:
                self._busy.release()

    def _run(self, connection: Connection, folder: Path, processes: int, launcher: list[str]) -> None:
        lock, out = threading.Lock(), folder / "run"

        def obey(process: subprocess.Popen[bytes]) -> None:
            def listen() -> None:
                try:
                    while _hear(connection).get("stop"):
                        process.send_signal(signal.SIGUSR1)
                except (EOFError, OSError, ValueError):
                    pass

            threading.Thread(target=listen, daemon=True).start()

        failure = ""
        try:
            launch(["-m", "atomo.train", str(folder / _JOB), f"--out={out}"], processes, launcher,
                   _Stream(connection, lock, "stdout"), _Stream(connection, lock, "stderr"), obey)
        except (Failed, Error) as error:
            failure = str(error)
        with lock:
            for file in sorted(out.iterdir()) if out.is_dir() else []:
                _say(connection, file=file.name)
                connection.send_bytes(file.read_bytes())
            _say(connection, end=failure)


def worker(listen: str, secret: str, folder: str) -> None:
    """Waits for jobs until it is ended."""
    standing = Worker(address_of(listen), secret_of(secret), Path(folder))
    host, port = standing.address
    print(f"atomo.train: waiting for jobs on {host}:{port}; whoever holds the secret runs code here as {getpass.getuser()}",
          flush=True)
    standing.serve()


def _meet(address: tuple[str, int], secret: bytes) -> Connection:
    """A worker that has no job. Raises Error."""
    name = f"{address[0]}:{address[1]}"
    try:
        connection = Client(address)
        answer_challenge(connection, secret)
        deliver_challenge(connection, secret)
        told = _hear(connection)
    except AuthenticationError as error:
        raise Error(f"{name} has another secret") from error
    except (OSError, EOFError, ValueError) as error:
        raise Error(f"{name} does not answer as a worker: {error}") from error
    if told["version"] != __version__:
        raise Error(f"{name} has atomo {told['version']}, this is {__version__}")
    if not told["ready"]:
        raise Error(f"{name} is busy")
    return connection


def submit(job: bytes, processes: int, launcher: Sequence[str], out: Path, hosts: Sequence[tuple[str, int]],
           secret: bytes) -> None:
    """Runs a job at the first worker that has none, and fills `out` with the files of its folder. Raises Failed like `launch`."""
    reasons = []
    for address in hosts:
        try:
            connection = _meet(address, secret)
        except Error as error:
            reasons.append(str(error))
            continue
        with connection:
            _say(connection, processes=processes, launcher=list(launcher))
            connection.send_bytes(job)
            print(f"{address[0]}:{address[1]} keeps the run in {_hear(connection)['folder']}")
            with _asks_to_stop(connection):
                _say(connection, go=True)
                return _follow(connection, out)
    raise Error("workers: none takes the job: " + "; ".join(reasons))


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
        _say(connection, stop=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(connection: Connection, out: Path) -> None:
    while True:
        try:
            told = _hear(connection)
        except (EOFError, OSError) as error:
            raise Failed("the worker is gone; the job may go on there") from error
        if "stream" in told:
            stream = sys.stderr if told["stream"] == "stderr" else sys.stdout
            stream.write(told["text"])
            stream.flush()
        elif "file" in told:
            name = Path(told["file"]).name
            (out / name).write_bytes(connection.recv_bytes())
        else:
            if told["end"]:
                raise Failed(told["end"])
            return
