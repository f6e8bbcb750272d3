# SPDX-License-Identifier: Apache-2.0
"""Processes that each train one training after the other. This side needs neither PyTorch nor a GPU."""

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import time

PACKAGE = pathlib.Path(__file__).resolve().parent
# For glibc's malloc. Tensors of megabytes that come and go in every step would else be mapped, and filled with zeros, anew.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2 ** 40), "MALLOC_TOP_PAD_": str(2 ** 28)}


def check(parser):
    """Ends the program where nothing could be trained."""
    for name, where in (("torch", "PyTorch"), ("atomo", "atomo's Python package")):
        if importlib.util.find_spec(name) is None:
            parser.error(f"simulated trainings need {where}, which {sys.executable} does not find: put ATOMO_PYTHON=build/venv/bin/python, or "
                         "another Python that has it, in front of the command")


def program():
    """What the outcome of a training depends on besides its command line, as a digest: these sources, and atomo's version."""
    import atomo
    digest = hashlib.sha256(atomo.__version__.encode())
    for path in sorted(PACKAGE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Process:
    """Begun when its first training comes, and again after one that it did not outlive."""

    def __init__(self, threads):
        self.threads, self.process = threads, None

    def _begin(self):
        tools = str(PACKAGE.parent)
        path = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, "-m", PACKAGE.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True,
                                        env={**KEEP_FREED_MEMORY, **os.environ, "PYTHONPATH": path,
                                             "OMP_NUM_THREADS": str(self.threads)})

    def train(self, workers, arguments):
        """Events. Raises RuntimeError with what the training failed of."""
        if self.process is None or self.process.poll() is not None:
            self._begin()
        self.process.stdin.write(json.dumps({"workers": workers, "arguments": [str(word) for word in arguments]}) + "\n")
        self.process.stdin.flush()
        events = []
        for line in self.process.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "failed":
                raise RuntimeError(events[-1]["why"])
            if events[-1]["event"] == "end":
                return events
        self.errors.seek(0)
        said = [text.strip() for text in self.errors if text.strip()]
        raise RuntimeError(f"the process ended with {self.process.wait()}{': ' + said[-1] if said else ''}")

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Pool:
    """`with Pool(4) as pool: for job, events, failure in pool.train(jobs, until): ...`"""

    def __init__(self, processes):
        threads = max(1, (os.cpu_count() or 1) // processes)
        self._all = [_Process(threads) for _ in range(processes)]
        self._free = queue.SimpleQueue()
        for process in self._all:
            self._free.put(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._all:
            process.end()

    def train(self, jobs, skipped=lambda job: False, until=None):
        """Yields (job, events, why it failed) as trainings end. A job is (anything, workers, arguments); one that is `skipped`
        when its turn comes is left out, and so are all whose turn comes when time.monotonic() is `until`."""
        def one(job):
            if skipped(job) or (until is not None and time.monotonic() > until):
                return None
            process = self._free.get()
            try:
                return job, process.train(*job[1:]), ""
            except (RuntimeError, OSError) as error:
                return job, None, str(error)
            finally:
                self._free.put(process)

        with concurrent.futures.ThreadPoolExecutor(len(self._all)) as threads:
            waiting = [threads.submit(one, job) for job in jobs]
            try:
                for future in concurrent.futures.as_completed(waiting):
                    if future.result() is not None:
                        yield future.result()
            finally:
                for future in waiting:
                    future.cancel()
                if not all(future.done() for future in waiting):
                    self.__exit__()
