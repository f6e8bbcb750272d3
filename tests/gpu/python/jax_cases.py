#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""atomo.jax on a GPU, inside jit, against atomo.Codec and atomo.Compressor on the CPU; and what its calls take.

usage: jax_cases.py [--json FILE] [--out FILE.json] [--rehearse]
"""
import argparse
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bindings"))

from suite import Figures, Suite  # noqa: E402

import atomo  # noqa: E402
import atomo.jax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
from test_jax import bits_equal, message_of, values  # noqa: E402

# Specs, and whether a GPU's messages have the bytes of the CPU's.
SPECS = {"sign": True, "qsgd:bits=4": True, "terngrad": True, "topk:keep=0.05": True, "randomk:keep=0.1": True,
         "identity:dtype=bf16": True, "minmax:bits=8": True, "atomo:atoms=blocks,bits=0.25": True,
         "atomo:atoms=coordinate,bits=1": True, "atomo:bits=0.5": False}
ARRAYS = [(np.float32, (33,)), (np.float32, (257, 301)), (ml_dtypes.bfloat16, (64, 130)), (np.float16, (64, 130))]
KEY = {"seed": 2**40 + 3, "worker": 3, "channel": 2}


def codec(spec, exact, arrays):
    one = atomo.Codec(spec)
    for dtype, shape in arrays:
        x = values(shape, dtype=dtype)
        payload, length = jax.jit(lambda x, step: atomo.jax.encode(x, one, step=step, **KEY))(x, np.uint32(5))
        message, expected = message_of(payload, length), bytes(one.encode(x, step=5, **KEY))
        assert not exact or message == expected, (dtype, shape, "bytes", len(message), len(expected))
        decode = jax.jit(lambda p, shape=shape, dtype=dtype: atomo.jax.decode(p, spec, shape, dtype))
        assert bits_equal(decode(payload), one.decode(message, like=x)), (dtype, shape, "decode")
        y = values(shape, seed=1)
        added = jax.jit(lambda p, y: atomo.jax.decode_add(p, -0.3, y, one))(payload, y)
        traced = jax.jit(lambda p, a, y: atomo.jax.decode_add(p, a, y, one))(payload, np.float32(-0.3), y)
        both = jax.jit(lambda p, y: atomo.jax.decode_add(jnp.stack([p, p]), 0.5, y, one))(payload, y)
        once, twice = y.copy(), y.copy()
        one.decode_add(message, out=once, alpha=-0.3)
        one.decode_add_all([message, message], out=twice, alpha=0.5)
        assert bits_equal(added, once) and bits_equal(traced, once), (dtype, shape, "decode_add")
        assert bits_equal(both, twice), (dtype, shape, "decode_add of two messages")


def tree(policy, exact):
    leaves = {"conv": {"kernel": values((16, 3, 7, 7)), "bias": values((16,), seed=2)},
              "head": {"kernel": values((250, 129), seed=3), "bias": values((129,), seed=4, dtype=ml_dtypes.bfloat16)}}
    flat = dict(zip(atomo.jax.layer_names(leaves), jax.tree.leaves(leaves)))
    one = atomo.Compressor(flat, policy)
    payload, length = jax.jit(lambda t, step: atomo.jax.encode_tree(t, policy, step=step, **KEY))(leaves, np.uint32(5))
    message = message_of(payload, length)
    assert not exact or message == bytes(one.encode(flat, step=5, **KEY)), "bytes"
    decoded = jax.jit(lambda p: atomo.jax.decode_tree(p, policy, leaves))(payload)
    expected = one.decode(message, like=flat)
    for name, leaf in zip(flat, jax.tree.leaves(decoded)):
        assert bits_equal(leaf, expected[name]), name


def loop():
    """Steps of one program, whose key changes as they go: each is the one that a call by itself gives."""
    one, x = atomo.Codec("qsgd:bits=4"), values((64, 130))
    capacity = one.max_encoded_bytes(x.shape)

    def step(total, number):
        payload, _ = atomo.jax.encode(x, one, step=number, capacity=capacity, **KEY)
        return atomo.jax.decode_add(payload, 0.25, total, one), None

    found, _ = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(x.shape, jnp.float32), jnp.arange(4, dtype=jnp.uint32)))()
    expected = np.zeros(x.shape, np.float32)
    for number in range(4):
        one.decode_add(one.encode(x, step=number, **KEY), out=expected, alpha=0.25)
    assert bits_equal(found, expected)


def damaged():
    """An error by the second call at the latest, as a GPU's first one does not wait."""
    one, x = atomo.Codec("qsgd:bits=4"), values((64, 130))
    message = np.frombuffer(one.encode(x, step=0), np.uint8).copy()
    message[len(message) // 2] ^= 1
    decode = jax.jit(lambda p: atomo.jax.decode(p, one, x.shape))
    try:
        for _ in range(3):
            jax.block_until_ready(decode(message))
    except Exception as error:
        print(f"said of a damaged message: {str(error)[:200]}")
        return
    raise AssertionError("a damaged message was decoded three times without an error")


def measure(figures, spec, entries):
    """Encode and decode of one tensor, a call each that is waited for."""
    x = jax.device_put(np.random.default_rng(0).standard_normal(entries).astype(np.float32))
    encode = jax.jit(lambda x, step: atomo.jax.encode(x, spec, seed=1, step=step)[0])
    payload = encode(x, np.uint32(0))
    decode = jax.jit(lambda p: atomo.jax.decode(p, spec, x.shape))
    for name, work in (("encode", lambda: encode(x, np.uint32(1))), ("decode", lambda: decode(payload))):
        times = []
        for _ in range(18):
            began = time.perf_counter()
            jax.block_until_ready(work())
            times.append(1e6 * (time.perf_counter() - began))
        figures.add(f"jax {name} 25M {spec}", times[3:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="the tests")
    parser.add_argument("--out", metavar="FILE.json", help="the figures")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    options = parser.parse_args()
    suite = Suite(options.json)
    print(f"atomo {atomo.__version__} of {atomo.__file__}, jax {jax.__version__}, {jax.devices()}", flush=True)

    def backend():
        assert options.rehearse or jax.default_backend() == "gpu", f"JAX computes on {jax.default_backend()}"

    suite.run("Jax", "backend", backend)
    arrays = ARRAYS[:2] if options.rehearse else ARRAYS
    for spec, exact in list(SPECS.items())[1::4] if options.rehearse else SPECS.items():
        suite.run("Jax", spec, lambda: codec(spec, exact, arrays))
    for policy, exact in (("*.bias=identity:dtype=f32; *=qsgd:bits=4", True), ("atomo:atoms=blocks,bits=1", True),
                          ("atomo:bits=1", False)):
        suite.run("Jax", f"tree {policy}", lambda: tree(policy, exact))
    suite.run("Jax", "loop", loop)
    figures = Figures(options.out, jax=jax.__version__)
    for spec in ("qsgd:bits=4", "atomo:bits=0.5"):
        figures.measure(f"jax {spec}", lambda: measure(figures, spec, 100_000 if options.rehearse else 25_000_000))
    suite.run("Jax", "damaged", damaged)
    return max(suite.end(), figures.end())


if __name__ == "__main__":
    sys.exit(main())
