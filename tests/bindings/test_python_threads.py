# SPDX-License-Identifier: Apache-2.0
"""Many threads: the interpreter runs on while the library works, and objects are shared without harm."""
import concurrent.futures
import ctypes
import pickle
import subprocess
import sys
import threading
import time

import numpy
import pytest
from conftest import gradient

import atomo


def longest_silence(call):
    """What part of a call's time was the longest in which another thread of Python got nothing done."""
    stamps, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0.0005)

    ticking = threading.Thread(target=tick)
    ticking.start()
    while len(stamps) < 3:
        time.sleep(0.001)
    begin = time.perf_counter()
    call()
    end = time.perf_counter()
    stop.set()
    ticking.join()
    inside = [begin, *(stamp for stamp in stamps if begin < stamp < end), end]
    return max(b - a for a, b in zip(inside, inside[1:])) / (end - begin)


def is_released(call):
    """Whether the interpreter's lock is released: never when it is held, and in one of a few tries when it is not."""
    return any(longest_silence(call) < 0.5 for _ in range(6))


def test_a_lock_that_is_held_would_be_seen():
    held = ctypes.PyDLL(None)
    assert not is_released(lambda: held.usleep(100_000))


LARGE = numpy.tile(gradient(256, 1024), (8, 4))


@pytest.mark.parametrize("name", ["encode", "decode", "decode_add", "model", "layer", "messages"])
def test_the_interpreter_runs_on(name):
    slow = atomo.Codec("atomo:atoms=sketch,bits=1,iterations=2")
    payload = slow.encode(LARGE, step=0)
    out = numpy.zeros_like(LARGE)
    model = atomo.Compressor({"a": LARGE}, str(slow))
    model.begin_step(step=0)
    coordinates = atomo.Codec("atomo:atoms=coordinate,delta=0.001")
    many = [coordinates.encode(LARGE, worker=worker, step=0) for worker in range(4)] if name == "messages" else []
    calls = {"encode": lambda: slow.encode(LARGE, step=0),
             "decode": lambda: slow.decode(payload, out=out),
             "decode_add": lambda: slow.decode_add(payload, out=out),
             "model": lambda: model.decode_add_all([payload] * 3, out={"a": out}),
             "layer": lambda: model.encode_layer("a", LARGE),
             "messages": lambda: atomo.add(many)}
    assert is_released(calls[name])


def test_one_codec_in_many_threads():
    codec = atomo.Codec("atomo:bits=1")
    arrays = [gradient(40 + i, 64, seed=i) for i in range(24)]
    expected = [codec.encode(x, worker=i, step=0) for i, x in enumerate(arrays)]

    def work(i):
        payload = codec.encode(arrays[i], worker=i, step=0)
        return payload, codec.decode(payload, like=arrays[i])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i, (payload, decoded) in enumerate(pool.map(work, range(24))):
            assert payload == expected[i]
            numpy.testing.assert_array_equal(decoded, codec.decode(expected[i], like=arrays[i]))


@pytest.mark.parametrize("threads", [1, 3])
def test_layers_of_a_step_in_many_threads(threads):
    layers = {f"layer{i}": gradient(30 + i, 50, seed=i) for i in range(16)}
    one, many = (atomo.Compressor(layers, "atomo:bits=1", threads=threads) for _ in range(2))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for step in range(3):
            one.begin_step(step=step)
            many.begin_step(step=step)
            expected = [one.encode_layer(name, layers[name]) for name in layers]
            # The same layer from two threads at once, too.
            got = list(pool.map(lambda name: many.encode_layer(name, layers[name]), [*layers, *layers]))
            assert got[:16] == expected and got[16:] == expected
            one.end_step()
            many.end_step()
            assert one.state() == many.state()


def test_whole_messages_in_many_threads():
    layers = {"a": gradient(64, 64), "b": gradient(64)}
    model = atomo.Compressor(layers, "atomo:bits=1", threads=2)
    expected = [model.encode(layers, worker=worker, step=0) for worker in range(16)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda worker: model.encode(layers, worker=worker, step=0), range(16))) == expected
        decoded = list(pool.map(lambda payload: model.decode(payload, like=layers), expected))
    for payload, values in zip(expected, decoded):
        numpy.testing.assert_array_equal(values["a"], model.decode(payload, like=layers)["a"])


FORKING = """
import os, atomo, numpy
layers = {"a": numpy.ones((64, 64), "float32"), "b": numpy.ones((64, 8), "float32")}
model = atomo.Compressor(layers, "atomo:bits=1", threads=3)
expected = model.encode(layers, step=0)
if os.fork() == 0:
    os._exit(7 if model.encode(layers, step=0) == expected else 1)
print(os.waitstatus_to_exitcode(os.wait()[1]), model.encode(layers, step=0) == expected)
"""


def test_a_forked_process_has_threads_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "7 True\n", done.stderr


def allocated():
    """Bytes that the C heap lends now."""
    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                         "fsmblks", "uordblks", "fordblks", "keepcost")]

    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Info
    info = ask()
    return info.uordblks + info.hblkhd


def test_steady_calls_keep_no_memory():
    x, codec = gradient(512, 512), atomo.Codec("atomo:atoms=rows,bits=1")
    out = numpy.empty_like(x)
    model = atomo.Compressor({"a": x}, "atomo:atoms=rows,bits=1")

    def work():
        codec.decode(codec.encode(x, step=0), out=out)
        codec.decode_add(codec.encode(x, step=0), out=out)
        model.decode(model.encode({"a": x}, step=0), out={"a": out})
        model.begin_step(step=0)
        model.decode_layer("a", model.encode_layer("a", x), out=out)
        model.end_step()
        atomo.decode(codec.encode(x, step=0), out=[out])
        pickle.loads(pickle.dumps(codec))

    for _ in range(5):
        work()
    before = allocated()
    for _ in range(50):
        work()
    assert allocated() - before < 64 << 10  # one block of scratch memory is larger
