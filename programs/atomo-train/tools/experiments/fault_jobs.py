# SPDX-License-Identifier: Apache-2.0
"""Runs of atomo-train whose processes can be hurt."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from experiments.trainings import launcher


def process_of(launcher, rank):
    """Process number of a rank, or None: the child of mpirun with that number in its environment."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if parent == launcher.pid and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
            return int(entry.name)
    return None


class Broken(Exception):
    """A promise that was not kept."""


class Job:
    """`processes` of atomo-train under mpirun, watched through their log, in `folder`."""

    def __init__(self, trainer, processes, *arguments, folder, outlives=False):
        self.log = tempfile.mktemp(suffix=".jsonl", dir=folder)
        self.errors = tempfile.TemporaryFile("w+")
        command = [*launcher(processes, outlives=outlives), trainer, "--progress", "off", "--log", self.log, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors)
        self.processes, self.children = processes, {}

    def events(self, kind):
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines if line["event"] == kind]

    def losses(self):
        return {event["step"]: event["loss"] for event in self.events("step")}

    def wait_for_steps(self, steps, seconds=300):
        deadline = time.monotonic() + seconds
        while (seen := len(self.events("step"))) < steps:
            if self.process.poll() is not None:
                raise Broken(f"stopped after {seen} steps: {self.said() or 'no word why'}")
            if time.monotonic() > deadline:
                raise Broken(f"HANGS after {seen} steps")
            time.sleep(0.05)
        return seen

    def end(self, seconds):
        """Exit status, and the seconds it took."""
        began = time.monotonic()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Broken("HANGS") from None
        return status, time.monotonic() - began

    def said(self):
        """The trainer's own last words."""
        self.errors.seek(0)
        lines = [line.strip().removeprefix("atomo-train: ") for line in self.errors if line.startswith("atomo-train:")]
        return " / ".join(line for line in lines if "asking again" not in line and "is back after" not in line)

    def count(self, words):
        self.errors.seek(0)
        return sum(words in line for line in self.errors)

    def process_of(self, rank):
        found = process_of(self.process, rank)
        if found is None:
            raise Broken(f"rank {rank} was not found")
        self.children[rank] = found
        return found

    def clear(self):
        """Ends what is left, whatever state it is in."""
        if self.process.poll() is None:
            for rank in range(self.processes):
                with contextlib.suppress(Broken):
                    self.process_of(rank)
            self.process.kill()
            for child in self.children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self.process.wait()
        self.errors.close()
