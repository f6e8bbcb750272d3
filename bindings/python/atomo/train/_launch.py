# SPDX-License-Identifier: Apache-2.0
"""Runs in processes that mpirun starts."""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from atomo import Error

from ._job import Failed

_MOST_TEXT = 20000  # characters of a failure's message
NOT_BEGUN = 130  # how a process ends that is asked to save before its run has begun
# Likewise of mpirun: by that, or by the signal where Python, or mpirun itself, did not look after it yet.
_NOT_BEGUN = (NOT_BEGUN, 128 + signal.SIGUSR1, -signal.SIGUSR1)
_NOTHING_SAVED = "interrupted before the run began: it has saved nothing"
_ENDS = (signal.SIGTERM, signal.SIGHUP)  # asks to end, beside Ctrl-C
# Becomes the command behind a process's number, which gets SIGTERM when that process, its parent, has ended, even by
# SIGKILL. Python ignores some signals, which a command inherits.
_TIED = """import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
    raise OSError(ctypes.get_errno(), "prctl")
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _copy(source: IO[bytes], to: Any, kept: list[str]) -> None:
    """As it comes, so that a line that is rewritten is seen. Goes on reading where it cannot be written: the processes would
    wait. Closes the source at its end, as nobody else knows when that is."""
    decode = codecs.getincrementaldecoder("utf-8")("replace")
    with source:
        while piece := os.read(source.fileno(), 65536):
            text = decode.decode(piece)
            kept.append(text)
            try:
                to.write(text)
                to.flush()
            except (OSError, ValueError):  # nobody reads it any more, or it has no such letters
                continue


@contextmanager
def _ends_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, where the interpreter may set what they do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = [signal.signal(number, interrupt) for number in _ENDS]
    try:
        yield
    finally:
        for number, handler in zip(_ENDS, before):
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes]) -> bool:
    """The first Ctrl-C asks the run to save a checkpoint and end, the second ends it. Whether there was a first one."""
    try:
        process.wait()
        return False
    except KeyboardInterrupt:
        process.send_signal(signal.SIGUSR1)  # which mpirun hands on to all
        try:
            process.wait()
            return True
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def _reason(text: str) -> str:
    """What the processes said, or mpirun where none of them did: it puts what it says between lines of dashes."""
    kept, inside = [], False
    for line in text.splitlines():
        if line.startswith("-----"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)[-_MOST_TEXT:].strip() or text[-_MOST_TEXT:].strip()


def launch(words: Sequence[str], processes: int, more: Sequence[str], out: Any = None, error: Any = None,
           started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None) -> None:
    """`mpirun -n PROCESSES python WORDS...`, with `more` words for mpirun. What the processes print goes to `out` and
    `error` (default: this process's own). They do not outlive this process. Raises Failed when it does not end well,
    KeyboardInterrupt on a Ctrl-C before the run began."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise Error("run: there is no mpirun: apt-get install openmpi-bin (Debian, Ubuntu) brings it")
    command = [mpirun, "-n", str(processes), "--oversubscribe"]
    if not {"--bind-to", "--map-by"} & set(more):
        command += ["--bind-to", "none"]  # two processes would have a core each, however busy it is
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    said: list[str] = []
    with _ends_as_interrupts():
        # In a session of its own: mpirun answers Ctrl-C by ending the processes before they have saved anything.
        tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]
        process = subprocess.Popen([*tied, *command, *more, sys.executable, *words], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        assert process.stdout and process.stderr
        threads = [threading.Thread(target=_copy, args=(process.stdout, out or sys.stdout, []), daemon=True),
                   threading.Thread(target=_copy, args=(process.stderr, error or sys.stderr, said), daemon=True)]
        for thread in threads:
            thread.start()
        started(process)
        try:
            asked = _wait(process)
        finally:
            if process.poll() is None:
                process.terminate()
            for thread in threads:
                thread.join(5)
    if process.returncode in _NOT_BEGUN:
        raise KeyboardInterrupt(_NOTHING_SAVED) if asked else Failed(_NOTHING_SAVED)
    if process.returncode != 0:
        raise Failed(f"mpirun ended with status {process.returncode}\n{_reason(''.join(said))}")
