# SPDX-License-Identifier: Apache-2.0
"""How large a codec's messages are, and codecs with messages of a given size."""

from experiments.trainings import train

MEASURED_STEPS = 3


def message_bytes(options, *codec):
    """(bytes of a worker's message, parameters): a mean over a few steps of a training with one worker and a server.
    `codec`: as the trainer has it, "--codec" and a spec or "--policy" and a file."""
    data = ["--data", options.data] if options.data else []
    events = train(options.trainer, 2, ["--model", options.model, "--batch", options.batch, "--steps", 100, "--stop-at",
                                        MEASURED_STEPS, *codec, *data], hostfile=options.hostfile)
    sizes = [event["bytes_per_worker"] for event in events if event["event"] == "step"]
    return sum(sizes) / len(sizes), events[0]["parameters"]


def bits_for(size, parameters):
    """Of atomo's `bits=`, for messages of `size` bytes."""
    return f"{8 * size / parameters:.4g}"


def pairs_for(options, size):
    """The paper's own allocation: as many singular pairs a layer as fit in `size` bytes, at least one. It sends them
    with f32 factors, and draws them with the probabilities of its algorithm 1, each layer by itself."""
    def spec(keep):
        return f"atomo:atoms=svd,keep={keep},values=f32"

    low, high = 1, 4 if options.quick else 64
    while low < high:
        middle = (low + high + 1) // 2
        if message_bytes(options, "--codec", spec(middle))[0] <= size:
            low = middle
        else:
            high = middle - 1
    return spec(low)
