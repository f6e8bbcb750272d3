# SPDX-License-Identifier: Apache-2.0
"""Trains what comes on standard input, one training a line: {"workers": W, "arguments": [...]}, the arguments as the trainer has
them. Events come out as lines, the last one of a training "end" or "failed". A failure that is not a refusal ends the process,
since what it left of the device is not known; whoever sent it begins another.
"""

import gc
import json
import sys
import traceback

import torch

from simulated import Refusal
from simulated.training import Training, f32_as_it_is


def tell(event):
    print(json.dumps(event), flush=True)


def main():
    f32_as_it_is()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            Training(job["workers"], job["arguments"], tell).run()
        except Refusal as error:
            tell({"event": "failed", "why": str(error)})
        except Exception as error:
            traceback.print_exc()
            tell({"event": "failed", "why": f"{type(error).__name__}: {error}"})
            return 1
        gc.collect()
        torch.cuda.empty_cache()  # graphs keep memory of their own, which other processes need
    return 0


if __name__ == "__main__":
    sys.exit(main())
