# SPDX-License-Identifier: Apache-2.0
"""usage: python -m atomo.train JOB [--OPTION=VALUE...]
       python -m atomo.train worker --secret FILE [--listen HOST:PORT] [--folder FOLDER]

The first is a process of a run: mpirun starts as many as there are. Options are those of atomo-train and take the place of the
job's. The second waits for jobs and runs them (docs/train-in-python.md). Both run code of a job.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path


def _run(file: str, options: list[str]) -> None:
    # Until the run looks after it: before it has begun there is nothing to save.
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    import torch

    from ._job import Failed, Job, run_here

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        run_here(Job.read(Path(file)).with_options(options))
    except KeyboardInterrupt as stop:
        print(stop, flush=True)  # whoever started the job reads in its log that it was interrupted
    except Failed:
        sys.exit(1)  # rank 0 has said why


def _wait(words: list[str]) -> None:
    from atomo import Error

    from ._workers import ADDRESS, worker

    parser = argparse.ArgumentParser("python -m atomo.train worker", description="Waits for jobs and runs them, one at a time.",
                                     epilog="Whoever holds the secret runs code as the user of this process.")
    parser.add_argument("--secret", required=True, metavar="FILE", help="with the secret that both ends have, of mode 600")
    parser.add_argument("--listen", default=ADDRESS, metavar="HOST:PORT", help=f"(default: {ADDRESS}, this machine alone)")
    parser.add_argument("--folder", default="jobs", help="of the jobs and their runs (default: jobs)")
    asked = parser.parse_args(words)
    try:
        worker(asked.listen, asked.secret, asked.folder)
    except (Error, OSError) as error:
        sys.exit(f"atomo.train worker: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.exit(__doc__)
    if words[0] == "worker":
        _wait(words[1:])
    else:
        _run(words[0], words[1:])


main()
