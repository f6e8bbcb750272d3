# SPDX-License-Identifier: Apache-2.0
"""How large a codec's messages are, and codecs with messages of a given size."""

import math

from experiments.trainings import train

MEASURED_STEPS = 3
CHUNK = 4096  # entries


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


def gap_bits(share):
    """Of a Rice code, at its best parameter, of the entries passed over between kept ones, of which this share is kept
    at random: a mean."""
    def with_low_bits(count):
        further = (1 - share) ** 2**count  # that a gap goes on for 2^count entries more
        return count + 1 + further / (1 - further)

    return min(map(with_low_bits, range(13)))


def solved(bits_of, bits, low, high):
    """Where the rising function `bits_of` reaches `bits`, between low and high."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if bits_of(middle) < bits else (low, middle)
    return low


def topk_for(bits):
    """Of topk, for messages of `bits` a parameter: an f32 and a gap for each kept entry, and for each 4,096 entries two
    numbers of 16 bits (FORMAT.md, top-k)."""
    share = solved(lambda share: share * (32 + gap_bits(share)) + 32 / CHUNK, bits, 1e-6, 0.5)
    return f"topk:keep={share:.4g}"


def chunks_for(bits, values, more=""):
    """Of topk with k of each 4,096 entries, for messages of `bits` a parameter: a gap and a value for each kept entry,
    and for each group of chunks its length and its levels (FORMAT.md, chunked top-k). `values`: sign or 2; with 2 a
    tenth of them is taken to be in the upper bin, whose places are gaps once more: of exponential tails it is a fifth, of
    a t-distribution with 3 degrees of freedom a sixteenth."""
    value, levels = {"sign": (1, 1), "2": (1 + gap_bits(0.1) / 10, 3)}[values]

    def bits_of(kept):
        chunks = 2 ** min(8, max(0, 10 - int(math.log2(kept))))
        return kept * (value + gap_bits(kept / CHUNK)) / CHUNK + 16 * (1 + levels) / chunks / CHUNK

    return f"topk:chunk={CHUNK},k={round(solved(bits_of, bits, 1, CHUNK / 2))},values={values}{more}"
