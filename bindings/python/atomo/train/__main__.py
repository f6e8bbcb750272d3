# SPDX-License-Identifier: Apache-2.0
"""`mpirun -n N python -m atomo.train JOB [OPTION...]`: a process of a run. Options are those of atomo-train and take the place
of the job's. Runs code of the job."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(f"usage: python -m atomo.train JOB [OPTION...]\n\n{__doc__}")
    # Until the run looks after it: before it has begun there is nothing to save.
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    import torch

    from ._job import Job, run_here

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    job = Job.read(Path(sys.argv[1]))
    try:
        run_here(job, [*job.arguments, *sys.argv[2:]])
    except KeyboardInterrupt as stop:
        print(stop, flush=True)  # whoever started the job reads in its log that it was interrupted


main()
