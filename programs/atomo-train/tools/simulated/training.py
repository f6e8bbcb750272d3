# SPDX-License-Identifier: Apache-2.0
"""A training from its command line to its last test, told as the trainer tells it with --json."""

import time

import torch

from simulated import Refusal
from simulated.algorithms import ALGORITHMS
from simulated.data import data_of
from simulated.draws import order_of
from simulated.networks import Fleet
from simulated.options import parsed


def device_here():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def name_of(device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def f32_as_it_is():
    """Products of f32 are not rounded to fewer bits on the way."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if not torch.cuda.is_available():
        # Allows bf16, which oneDNN uses where the processor has tiles of it, and else products of f32 by oneDNN in place of MKL:
        # twice as fast where the processor isn't Intel's.
        torch.set_float32_matmul_precision("medium")
        x = torch.full((2, 256, 256), 1 + 2 ** -12)
        if min(torch.bmm(x, x).min(), torch.mm(x[0], x[0]).min()) < 256 * (1 + 2 ** -12):
            torch.set_float32_matmul_precision("highest")


class Training:
    def __init__(self, workers, words, tell):
        """`tell`: called with each event. Raises `Refusal`."""
        self.options, self.tell, self.device = parsed(words, workers), tell, device_here()
        options = self.options
        self.data = data_of(options.model, options.data, self.device)
        try:
            order = order_of(self.data.samples("training"), options.steps, workers, options.batch, options.seed)
        except ValueError as error:
            raise Refusal(str(error)) from error
        copies = workers if options.algorithm == "local" else 1
        self.fleet = Fleet(options.model, self.data, workers, copies, options.seed, self.device)
        self.algorithm = ALGORITHMS[options.algorithm](options, self.data, self.fleet, torch.from_numpy(order).to(self.device),
                                                       self.device)
        self.sent, self.began, self.stepping = 0, time.monotonic(), 0.0

    def run(self):
        options, parameters = self.options, self.fleet.weights.shape[1]
        self.tell({"event": "start", "algorithm": options.algorithm, "model": options.model, "codec": self._codec(),
                   "measure": self.data.measure, "parameters": parameters, "workers": options.workers, "seed": options.seed,
                   "simulated_on": name_of(self.device)})
        done, tested = 0, {}
        while done < options.steps:
            began = time.monotonic()
            steps = self.algorithm.advance(done)
            done += steps
            every = options.eval_every
            if done == options.steps or every and done // every != (done - steps) // every:
                self._check(done)
                self.sent = self.algorithm.bytes(done)
                self.stepping += time.monotonic() - began
                tested = self._test(done)
            else:
                self.stepping += time.monotonic() - began
        size = self.sent / options.workers / options.steps
        self.tell({"event": "end", "steps": done, "codec": self._codec(), "bytes_per_step": size, "ratio": 4 * parameters / size,
                   **tested, "ms_per_step": 1000 * self.stepping / options.steps, "seconds": self._seconds()})

    def _codec(self):
        if self.options.algorithm == "powersgd":
            return f"rank={self.options.rank}"
        return "policy" if self.options.policy else self.options.codec

    def _seconds(self):
        return time.monotonic() - self.began

    def _check(self, done):
        """Waits for the device. Raises `Refusal` where a loss is not finite."""
        bad = (~self.algorithm.losses[:done].isfinite().all(1)).nonzero()
        if len(bad):
            step = int(bad[0])
            raise Refusal(f"the loss at step {step} is {float(self.algorithm.losses[step].mean())}: the training diverged; lower "
                          "--lr or take a codec with less error")

    def score(self, samples):
        """The measure and the loss of so many samples of the test, with the fleet's weights. Waits."""
        totals, predictions = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        for which in torch.arange(samples, device=self.device).split(self.data.test_batch):
            inputs, targets = self.data.gather("test", which)
            totals += torch.stack(self.data.score(self.fleet.predict(inputs), targets.flatten()))
            predictions += targets.numel()
        return (totals / predictions).tolist()

    def _test(self, done):
        samples = self.data.samples("test")
        if self.options.eval_samples and done < self.options.steps:
            samples = min(samples, self.options.eval_samples)
        score, loss = self.score(samples)
        tested = {self.data.measure: score, "loss": loss}
        self.tell({"event": "evaluation", "steps": done, **tested, "sent_bytes_per_worker": self.sent / self.options.workers,
                   "seconds": self._seconds()})
        return tested
