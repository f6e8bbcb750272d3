# SPDX-License-Identifier: Apache-2.0
"""Processes that stay: a world of gloo ranks to which tests hand functions, so that PyTorch is loaded once for all."""

import datetime
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

TIMEOUT = 360  # seconds for one function on all ranks


class RankFailed(Exception):
    """Some ranks raised: `errors` holds the exception's text of each, None where there was none."""

    def __init__(self, errors, details):
        super().__init__("\n".join(details))
        self.errors = errors


def _forking():
    """Processes come from one that has loaded PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.nn.parallel", "torch.distributed.fsdp", "atomo.torch"])
    return context


def _run_script(command, folder, variables, output):
    file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ |= variables
    sys.argv, sys.path[0] = command, str(Path(folder, command[0]).parent)
    runpy.run_path(command[0], run_name="__main__")


def launch(ranks, *command, folder):
    """What `torchrun --nproc-per-node RANKS COMMAND...` prints in a folder: processes with the same variables in their
    environment, but none that loads PyTorch anew. Raises RankFailed when a process does not end well within TIMEOUT."""
    context = _forking()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="atomo-launch-") as place:
        processes = []
        for rank in range(ranks):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            processes.append(context.Process(target=_run_script, daemon=True, args=(
                list(command), folder, {name: str(value) for name, value in variables.items()}, f"{place}/{rank}")))
            processes[-1].start()
        for process in processes:
            process.join(TIMEOUT)
            process.kill()  # nothing where it has ended
            process.join()
        said = [Path(place, str(rank)).read_text() for rank in range(ranks)]
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise RankFailed(codes, said)
    return "".join(said)


def _serve(rank, ranks, folder, connection):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=TIMEOUT / 2))
    while (task := connection.recv()) is not None:
        function, args, options = task
        try:
            connection.send((True, function(rank, ranks, *args, **options)))
        except Exception as error:
            connection.send((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    dist.destroy_process_group()


class World:
    """`ranks` processes. `run(function, ...)` calls function(rank, ranks, ...) on each and returns the results."""

    def __init__(self, ranks):
        context = _forking()
        self.folder = tempfile.TemporaryDirectory(prefix="atomo-world-")
        self.ranks, self.connections, self.processes = ranks, [], []
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(ranks):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, ranks, self.folder.name, theirs), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(mine)
            self.processes.append(process)

    def run(self, function, *args, **options):
        for connection in self.connections:
            connection.send((function, args, options))
        answers = []
        for rank, connection in enumerate(self.connections):
            try:
                if not connection.poll(TIMEOUT):
                    raise TimeoutError(f"rank {rank} gave no answer within {TIMEOUT} s")
                answers.append(connection.recv())
            except (EOFError, TimeoutError):
                self.kill()
                raise
        if not all(good for good, _ in answers):
            raise RankFailed([None if good else value[0] for good, value in answers],
                             [f"rank {rank}: {value[1]}" for rank, (good, value) in enumerate(answers) if not good])
        return [value for _, value in answers]

    @property
    def alive(self):
        return all(process.is_alive() for process in self.processes)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()

    def close(self):
        if self.alive:
            for connection in self.connections:
                connection.send(None)
            for process in self.processes:
                process.join(5)
        self.kill()
        self.folder.cleanup()


class Worlds:
    """A world of each size, made when it is first asked for and made anew when a test broke it."""

    def __init__(self):
        self.of = {}

    def __call__(self, ranks):
        if ranks not in self.of or not self.of[ranks].alive:
            self.of[ranks] = World(ranks)
        return self.of[ranks]

    def close(self):
        for one in self.of.values():
            one.close()


def same(a, b):
    """Two sets of parameters, to the bit."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def finite(parameters):
    return all(np.isfinite(value).all() for value in parameters.values())


def check_replicas(results):
    """All ranks hold the same parameters to the bit, and they are finite."""
    assert finite(results[0]["parameters"])
    for result in results[1:]:
        assert same(result["parameters"], results[0]["parameters"])
