# SPDX-License-Identifier: Apache-2.0
"""usage: python -m atomo.train JOB [--OPTION=VALUE...]
       python -m atomo.train worker --secret FILE [--listen HOST:PORT] [--folder FOLDER] [--keep-days DAYS]
       python -m atomo.train jobs --secret FILE [--workers FILE]
       python -m atomo.train collect JOB --secret FILE [--workers FILE] [--out FOLDER]
       python -m atomo.train cancel JOB --secret FILE [--workers FILE] [--now]

The first is a process of a run: mpirun starts as many as there are. Options are those of atomo-train and take the place of the
job's. The second waits for jobs and runs them (docs/train-in-python.md). Both run code of a job. The others list what workers run
and keep, bring what is left of a job, and end one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from ._launch import NOT_BEGUN


def _run(file: str, options: list[str]) -> None:
    # Until the run looks after it: before it has begun there is nothing to save.
    signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(NOT_BEGUN))
    import torch

    from ._job import Failed, Job, run_here

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        run_here(Job.read(Path(file)).with_options(options))
    except KeyboardInterrupt:
        pass  # whoever started the job reads in its log that it was interrupted
    except Failed:
        sys.exit(1)  # rank 0 has said why


def _wait(words: list[str]) -> None:
    from ._connection import ADDRESS
    from ._standing import worker

    # As Ctrl-C: the job that runs is ended with the worker.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser("python -m atomo.train worker", description="Waits for jobs and runs them, one at a time.",
                                     epilog="Whoever holds the secret runs code as the user of this process.")
    parser.add_argument("--secret", required=True, metavar="FILE", help="with the secret that both ends have, of mode 600")
    parser.add_argument("--listen", default=ADDRESS, metavar="HOST:PORT", help=f"(default: {ADDRESS}, this machine alone)")
    parser.add_argument("--folder", default="jobs", help="of the jobs and their runs (default: jobs)")
    parser.add_argument("--keep-days", type=float, metavar="DAYS",
                        help="removes jobs that ended longer ago when another begins (default: all are kept)")
    asked = parser.parse_args(words)
    worker(asked.listen, asked.secret, asked.folder, asked.keep_days)


def _ask(words: list[str]) -> None:
    from . import _workers
    from ._connection import ADDRESS, address_of, hosts_of, secret_of

    parser = argparse.ArgumentParser("python -m atomo.train", description="Asks standing workers for their jobs.")
    actions = parser.add_subparsers(dest="action", required=True)
    for name, what in (("jobs", "lists what workers run and keep"), ("collect", "waits for a job and brings its files"),
                       ("cancel", "asks a job to save a checkpoint and to end")):
        action = actions.add_parser(name, help=what, description=what)
        if name != "jobs":
            action.add_argument("job", metavar="JOB")
        action.add_argument("--secret", required=True, metavar="FILE", help="with the secret that the workers have")
        action.add_argument("--workers", metavar="FILE", help=f"a host file (default: the worker at {ADDRESS})")
        if name == "collect":
            action.add_argument("--out", default="run", metavar="FOLDER", help="(default: run)")
        if name == "cancel":
            action.add_argument("--now", action="store_true", help="ends it at once")
    asked = parser.parse_args(words)
    hosts, secret = hosts_of(asked.workers) if asked.workers else [address_of(ADDRESS)], secret_of(asked.secret)
    if asked.action == "jobs":
        for job in _workers.jobs(hosts, secret):
            print(f"{job['job']}  {job['state']:6}  {job['began']}  {job['worker']}  {job['folder']}")
    elif asked.action == "collect":
        _workers.collect(asked.job, Path(asked.out), hosts, secret)
    else:
        _workers.cancel(asked.job, asked.now, hosts, secret)


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.exit(__doc__)
    if words[0] not in ("worker", "jobs", "collect", "cancel"):
        return _run(words[0], words[1:])
    from atomo import Error

    from ._job import Failed

    try:
        _wait(words[1:]) if words[0] == "worker" else _ask(words)
    except (Error, Failed, OSError) as error:
        sys.exit(f"atomo.train {words[0]}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


main()
