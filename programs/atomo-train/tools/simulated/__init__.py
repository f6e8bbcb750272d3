# SPDX-License-Identifier: Apache-2.0
"""Trainings of atomo-train whose workers are all simulated by one process, with PyTorch and atomo's Python package.

The recipes are those of the trainer: the same networks, data, order of samples, optimisers and schedules, and a command line
of which a part is known. Every worker has a compressor of its own; its messages are encoded, counted and decoded as they
would be on the wire. On a GPU the gradients of all workers are found side by side, which makes a short training a matter of
seconds.
"""


class Refusal(RuntimeError):
    """A training that cannot begin, or cannot go on, for a reason that its user can do something about."""
