# SPDX-License-Identifier: Apache-2.0
"""atomo.jax against atomo.Codec and atomo.Compressor: the same bytes, the same tensors, under every transformation."""

import os
import re
import struct
import subprocess
import sys
import threading
from pathlib import Path

# Four devices of the CPU, for shard_map; read when JAX makes its first array.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import atomo
import atomo.jax
import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SPECS = [
    "identity:dtype=f32",
    "sign:scale=mean",
    "terngrad",
    "qsgd:bits=4",
    "qsgd:bits=2+blosc:codec=zstd",
    "topk:keep=0.05",
    "randomk:keep=0.1",
    "atomo:bits=0.5",
    "atomo:bits=0.5,cap=0.6",
    "atomo:atoms=svd,bits=1",
    "atomo:atoms=coordinate,bits=0.5",
]
SHAPES = [(), (1,), (33,), (3, 5, 7), (64, 130)]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def values(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def message_of(payload, length):
    payload, length = np.asarray(payload), int(length)
    assert payload.dtype == np.uint8 and payload.ndim == 1
    assert not payload[length:].any(), "the bytes after the message are zero"
    return payload[:length].tobytes()


def bits_equal(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("spec", SPECS)
def test_bytes_and_tensors_are_those_of_the_codec(spec):
    codec = atomo.Codec(spec)
    for shape in [(256, 257)] if "cap=" in spec else [(33,), (64, 130)]:
        x = values(shape)
        encode = jax.jit(lambda x, s, w: atomo.jax.encode(x, codec, seed=7, step=s, worker=w, channel=2))
        payload, length = encode(x, 5, 3)
        expected = codec.encode(x, seed=7, step=5, worker=3, channel=2)
        assert message_of(payload, length) == bytes(expected)
        assert payload.shape == (codec.max_encoded_bytes(shape),)
        decoded = jax.jit(lambda p, shape=shape: atomo.jax.decode(p, spec, shape))(payload)
        assert bits_equal(decoded, codec.decode(expected, like=x))
        y = values(shape, seed=1)
        added = jax.jit(lambda p, a, y: atomo.jax.decode_add(p, a, y, codec))(payload, -0.3, y)
        reference = y.copy()
        codec.decode_add(expected, out=reference, alpha=-0.3)
        assert bits_equal(added, reference)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_shape_and_dtype(shape, dtype):
    codec = atomo.Codec("qsgd:bits=4")
    x = values(shape, dtype=dtype)
    payload, length = atomo.jax.encode(x, codec, seed=1, step=2)
    expected = codec.encode(x, seed=1, step=2)
    assert message_of(payload, length) == bytes(expected)
    decoded = atomo.jax.decode(payload, codec, shape, dtype)
    assert bits_equal(decoded, codec.decode(expected, like=x))


def test_an_empty_tensor():
    payload, length = atomo.jax.encode(jnp.zeros((0, 4)), "qsgd:bits=4", seed=1, step=0)
    assert message_of(payload, length) == bytes(atomo.Codec("qsgd:bits=4").encode(np.zeros((0, 4), np.float32), seed=1, step=0))
    assert atomo.jax.decode(payload, "qsgd:bits=4", (0, 4)).shape == (0, 4)


def test_every_number_of_a_key_counts_and_may_be_traced():
    x = values((256,))
    codec = atomo.Codec("qsgd:bits=2")
    numbers = {"seed": 2**31, "step": 2**32 - 1, "worker": 65535, "tensor": 4, "channel": 9}
    traced = jax.jit(lambda **key: atomo.jax.encode(x, codec, **key))
    expected = bytes(codec.encode(x, **numbers))
    assert message_of(*traced(**{name: np.uint32(value) for name, value in numbers.items()})) == expected
    assert message_of(*atomo.jax.encode(x, codec, **numbers)) == expected
    seen = {expected}
    for name in numbers:
        seen.add(message_of(*traced(**{n: np.uint32(v - (n == name)) for n, v in numbers.items()})))
    assert len(seen) == 1 + len(numbers)


def test_seeds_of_64_bits():
    x = values((256,))
    codec = atomo.Codec("qsgd:bits=2")
    seed = 0xFEDCBA9876543210
    expected = bytes(codec.encode(x, seed=seed, step=0))
    assert message_of(*atomo.jax.encode(x, codec, seed=seed, step=0)) == expected
    words = jnp.asarray([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
    assert message_of(*jax.jit(lambda w: atomo.jax.encode(x, codec, seed=w, step=0))(words)) == expected
    data = jax.random.key_data(jax.random.key(11))
    assert message_of(*atomo.jax.encode(x, codec, seed=data, step=0)) == bytes(codec.encode(x, seed=11, step=0))
    for key in (jax.random.key(11), jax.random.PRNGKey(11)):
        expected = bytes(codec.encode(x, seed=11, step=0))
        assert message_of(*jax.jit(lambda key: atomo.jax.encode(x, codec, seed=key, step=0))(key)) == expected
    with pytest.raises(atomo.Error, match="a key of two words"):
        atomo.jax.encode(x, codec, seed=jax.random.key(11, impl="rbg"), step=0)


def test_an_exported_program():
    x = values((33,))
    check = jax.export.DisabledSafetyCheck.custom_call
    program = jax.jit(lambda x, step: atomo.jax.encode(x, "qsgd:bits=4", seed=1, step=step))
    exported = jax.export.export(program, disabled_checks=[check("atomo_encode")])(x, jnp.uint32(5))
    assert message_of(*exported.call(x, jnp.uint32(7))) == bytes(atomo.Codec("qsgd:bits=4").encode(x, seed=1, step=7))


def test_capacity():
    x = values((256, 256))
    codec = atomo.Codec("atomo:bits=0.5")
    expected = bytes(codec.encode(x, seed=3, step=1))
    assert len(expected) < codec.max_encoded_bytes(x.shape)
    payload, length = atomo.jax.encode(x, codec, seed=3, step=1, capacity=len(expected))
    assert payload.shape == (len(expected),) and message_of(payload, length) == expected
    payload, length = atomo.jax.encode(x, codec, seed=3, step=1, capacity=1_000_000)
    assert payload.shape == (1_000_000,) and message_of(payload, length) == expected
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"takes {len(expected)} bytes.*holds {len(expected) - 1}"):
        jax.block_until_ready(atomo.jax.encode(x, codec, seed=3, step=1, capacity=len(expected) - 1))
    capped = atomo.Codec("atomo:bits=0.5,cap=0.6")
    payload, length = atomo.jax.encode(x, capped, seed=3, step=1)
    assert payload.shape == (capped.max_encoded_bytes(x.shape),)
    assert payload.shape[0] <= 0.6 * x.size / 8 + 4


def test_messages_are_added_in_order():
    codec = atomo.Codec("atomo:bits=1,cap=1.5")
    tensors = [values((128, 256), seed=w) for w in range(5)]
    payloads = jnp.stack([atomo.jax.encode(x, codec, seed=1, step=0, worker=w)[0] for w, x in enumerate(tensors)])
    reference = np.zeros((128, 256), np.float32)
    for worker, x in enumerate(tensors):
        codec.decode_add(codec.encode(x, seed=1, worker=worker, step=0), out=reference, alpha=0.2)
    zero = jnp.zeros((128, 256))
    assert bits_equal(atomo.jax.decode_add(payloads, 0.2, zero, codec), reference)
    assert not zero.any(), "the caller's array is left alone"


@pytest.mark.parametrize(
    "spoil, shape, codec",
    [
        (lambda m: m[: len(m) // 2], (8, 8), "qsgd:bits=4"),
        (lambda m: m[:0], (8, 8), "qsgd:bits=4"),
        (lambda m: m[:-1] + bytes([m[-1] ^ 1]), (8, 8), "qsgd:bits=4"),
        (lambda m: b"x" + m[1:], (8, 8), "qsgd:bits=4"),
        (lambda m: m, (8, 9), "qsgd:bits=4"),
        (lambda m: m, (8, 8), "sign"),
    ],
    ids=["truncated", "empty", "flipped bit", "no message", "another shape", "another codec"],
)
def test_a_failed_status_is_an_error_of_xla(spoil, shape, codec):
    message = spoil(bytes(atomo.Codec("qsgd:bits=4").encode(values((8, 8)), step=0)))
    payload = np.frombuffer(message, np.uint8)
    with pytest.raises(atomo.DecodeError) as told:
        atomo.Codec(codec).decode(message, like=np.zeros(shape, np.float32))
    for call in (
        lambda: atomo.jax.decode(payload, codec, shape),
        lambda: jax.jit(lambda p: atomo.jax.decode_add(p, 1.0, jnp.zeros(shape), codec))(payload),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError) as error:
            jax.block_until_ready(call())
        # Python tells both sides of a message that does not fit, XLA's call the library's words.
        words = {"shape_mismatch": "other layers", "codec_mismatch": "another codec"}
        assert words.get(told.value.status, str(told.value).split(": ")[-1]) in str(error.value)


def test_what_is_not_finite_decodes_to_nan():
    x = values((16, 16))
    x[3, 4] = np.inf
    payload, _ = atomo.jax.encode(x, "qsgd:bits=4", seed=1, step=0)
    assert np.isnan(atomo.jax.decode(payload, "qsgd:bits=4", x.shape)).all()
    tree = {"a": x, "b": values((8,))}
    payload, _ = atomo.jax.encode_tree(tree, "qsgd:bits=4", seed=1, step=0)
    decoded = atomo.jax.decode_tree(payload, "qsgd:bits=4", tree)
    assert np.isnan(decoded["a"]).all() and np.isfinite(decoded["b"]).all()


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda x: atomo.jax.encode(x, "qsgdd", seed=1, step=0), "qsgdd"),
        (lambda x: atomo.jax.encode(x.astype(np.int32), "sign", seed=1, step=0), "int32"),
        (lambda x: atomo.jax.encode(x.astype(np.float64), "sign", seed=1, step=0), "float64"),
        (lambda x: atomo.jax.encode(x, "sign", seed=-1, step=0), "seed is -1"),
        (lambda x: atomo.jax.encode(x, "sign", seed=2**64, step=0), str(2**64)),
        (lambda x: atomo.jax.encode(x, "sign", seed=1, step=0.5), "step is 0.5"),
        (lambda x: atomo.jax.encode(x, "sign", seed=1, step=0, worker=65536), "worker is 65536"),
        (lambda x: atomo.jax.encode(x, "sign", seed=1, step=jnp.zeros(2, jnp.uint32)), "step is uint32"),
        (lambda x: atomo.jax.encode(x, "sign", seed=jnp.zeros(3, jnp.uint32), step=0), "seed is uint32"),
        (lambda x: atomo.jax.encode(x, "sign", seed=[1, 2], step=0), "seed is [1, 2]; an integer or a key of two words"),
        (lambda x: atomo.jax.encode(x, "sign", seed=1, step=0, capacity=0), "capacity of 0"),
        (lambda x: atomo.jax.decode(x, "sign", (4, 4)), "float32"),
        (lambda x: atomo.jax.decode(np.zeros((2, 8), np.uint8), "sign", (4, 4)), "uint8"),
        (lambda x: atomo.jax.decode(np.zeros(8, np.uint8), "sign", (4, 4), jnp.int8), "int8"),
        (lambda x: atomo.jax.decode(np.zeros(8, np.uint8), "sign", (-4, 4)), "-4"),
        (lambda x: atomo.jax.decode_add(np.zeros(8, np.uint8), 1.0, x.astype(np.float16), "sign"), "float16"),
        (lambda x: atomo.jax.decode_add(np.zeros(8, np.uint8), jnp.ones(2), x, "sign"), "alpha is float32[2]; a real number"),
        (lambda x: jax.jit(lambda a: atomo.jax.decode_add(jnp.zeros(8, "u1"), a, x, "sign"))(jnp.ones(2)), "alpha is float32["),
        (lambda x: atomo.jax.decode_add(np.zeros(8, np.uint8), 1j, x, "sign"), "alpha is 1j; a real number"),
        (lambda x: atomo.jax.decode_add_tree(np.zeros(8, np.uint8), [1, 2], {"a": x}, "sign"), "alpha is [1, 2]; a real"),
        (lambda x: atomo.jax.decode_tree(np.zeros(8, np.uint8), "sign", {"a": 1.0}), "like: a is 1.0; an array or"),
        (lambda x: atomo.jax.encode_tree({}, "sign", seed=1, step=0), "no leaves"),
        (lambda x: atomo.jax.encode_tree({"a": x}, "b=sign", seed=1, step=0), "a"),
        (lambda x: atomo.jax.encode_tree({"a\nb": x}, "sign", seed=1, step=0), "line break"),
    ],
)
def test_mistakes_that_shapes_show_are_errors_while_tracing(call, named):
    with pytest.raises(atomo.Error, match=None) as error:
        call(values((4, 4)))
    assert named in str(error.value)


def test_a_traced_number_that_does_not_fit_is_an_error_of_xla():
    encode = jax.jit(lambda worker: atomo.jax.encode(jnp.ones(8), "sign", seed=1, step=0, worker=worker))
    with pytest.raises(jax.errors.JaxRuntimeError, match="worker is 65536; 0 to 65535"):
        jax.block_until_ready(encode(65536))


def test_vmap_and_scan():
    codec = atomo.Codec("qsgd:bits=4")
    x = values((6, 5, 8))
    workers = jnp.arange(6)

    def send(x, worker):
        payload, _ = atomo.jax.encode(x, codec, seed=1, step=4, worker=worker)
        return payload, atomo.jax.decode(payload, codec, x.shape)

    payloads, decoded = jax.jit(jax.vmap(send))(x, workers)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, send(*row)), 0, (x, workers))
    assert bits_equal(payloads, scanned[0]) and bits_equal(decoded, scanned[1])
    for worker in range(6):
        expected = codec.encode(x[worker], seed=1, step=4, worker=worker)
        assert payloads[worker].tobytes() == bytes(expected)
        assert bits_equal(decoded[worker], codec.decode(expected, like=x[worker]))


def model_tree(seed=0):
    return {
        "dense": {"kernel": values((64, 48), seed), "bias": values((48,), seed + 1)},
        "head": [values((48, 10), seed + 2), values((10,), seed + 3, ml_dtypes.bfloat16)],
        "scale": values((), seed + 4),
    }


POLICIES = ["atomo:bits=1", "qsgd:bits=4", "*.bias=identity:dtype=f32; head.*=qsgd:bits=4; *=atomo:bits=1"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tree_is_one_message_at_one_price(policy):
    tree = model_tree()
    names = atomo.jax.layer_names(tree)
    assert names == ["dense.bias", "dense.kernel", "head.0", "head.1", "scale"]
    layers = dict(zip(names, jax.tree.leaves(tree)))
    model = atomo.Compressor(layers, policy, learns_ranks=False)
    encode = jax.jit(lambda tree, step: atomo.jax.encode_tree(tree, policy, seed=9, step=step, worker=2))
    decode = jax.jit(lambda p: atomo.jax.decode_tree(p, policy, tree))
    for step in range(3):
        payload, length = encode(tree, step)
        expected = bytes(model.encode(layers, seed=9, step=step, worker=2))
        assert message_of(payload, length) == expected
        assert payload.shape == (model.max_encoded_bytes,)
        decoded = decode(payload)
        assert jax.tree.structure(decoded) == jax.tree.structure(tree)
        reference = model.decode(expected, like=layers)
        for name, leaf in zip(names, jax.tree.leaves(decoded)):
            assert bits_equal(leaf, reference[name])


def test_a_tree_encoded_before_does_not_change_the_bytes():
    rng = np.random.default_rng(3)
    full = {"w": rng.standard_normal((64, 96)).astype(np.float32)}
    rank_one = {"w": np.outer(rng.standard_normal(64), rng.standard_normal(96)).astype(np.float32)}
    encode = jax.jit(lambda tree: atomo.jax.encode_tree(tree, "atomo:bits=1,atoms=sketch", seed=9, step=0))
    before = message_of(*encode(full))
    for _ in range(3):
        encode(rank_one)
    assert message_of(*encode(full)) == before


def test_a_codec_that_takes_the_place_of_another_is_the_one_that_runs():
    class Multiple:
        def encode(self, array, key):
            return np.float32(array * self.factor).tobytes()

        def decode(self, body, shape):
            return np.frombuffer(body, np.float32).reshape(shape)

    tree, found = {"w": np.ones(4, np.float32)}, []
    for factor in (2.0, 3.0):
        atomo.register("multiple", type("Multiple", (Multiple,), {"factor": factor}))
        try:
            for call in range(2):
                payload, _ = atomo.jax.encode_tree(tree, "multiple", seed=1, step=0)
                found.append(float(atomo.jax.decode_tree(payload, "multiple", tree)["w"][0]))
        finally:
            assert atomo.unregister("multiple")
    assert found == [2, 2, 3, 3]
    with pytest.raises(atomo.Error, match="multiple"):
        atomo.jax.encode_tree(tree, "multiple", seed=1, step=0)


def test_trees_are_added():
    policy = "atomo:bits=2"
    trees = [jax.tree.map(lambda x: np.asarray(x, np.float32), model_tree(10 * w)) for w in range(3)]
    payloads = jnp.stack([atomo.jax.encode_tree(t, policy, seed=9, step=0, worker=w)[0] for w, t in enumerate(trees)])
    zeros = jax.tree.map(jnp.zeros_like, trees[0])
    total = jax.jit(lambda p, y: atomo.jax.decode_add_tree(p, 0.5, y, policy))(payloads, zeros)
    names = atomo.jax.layer_names(trees[0])
    model = atomo.Compressor(dict(zip(names, jax.tree.leaves(trees[0]))), policy)
    reference = {name: np.zeros_like(leaf) for name, leaf in zip(names, jax.tree.leaves(trees[0]))}
    for payload in np.asarray(payloads):
        model.decode_add(payload, out=reference, alpha=0.5)
    for name, leaf in zip(names, jax.tree.leaves(total)):
        assert bits_equal(leaf, reference[name])


def test_another_models_message_is_an_error():
    tree = model_tree()
    payload, _ = atomo.jax.encode_tree({"dense": tree["dense"]}, "qsgd:bits=4", seed=1, step=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="other layers"):
        jax.block_until_ready(atomo.jax.decode_tree(payload, "qsgd:bits=4", tree))


@pytest.mark.parametrize("spec", ["atomo:bits=0.5,cap=0.6", "qsgd:bits=4"])
def test_gradients_gathered_by_shard_map_are_the_same_on_all_devices(spec):
    assert jax.device_count() == 4
    codec = atomo.Codec(spec)
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    gradients = np.stack([values((256, 256), seed=w) for w in range(4)])

    def exchange(gradient, step):
        payload, _ = atomo.jax.encode(gradient[0], codec, seed=5, step=step, worker=jax.lax.axis_index("workers"))
        payloads = jax.lax.all_gather(payload, "workers")
        return atomo.jax.decode_add(payloads, 0.25, jnp.zeros_like(gradient[0]), codec)[None]

    exchange = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=(P("workers"), P()), out_specs=P("workers")))
    placed = jax.device_put(gradients, NamedSharding(mesh, P("workers")))
    for step in range(3):
        means = np.asarray(exchange(placed, jnp.uint32(step)))
        reference = np.zeros((256, 256), np.float32)
        for worker in range(4):
            message = codec.encode(gradients[worker], seed=5, step=step, worker=worker)
            codec.decode_add(message, out=reference, alpha=0.25)
        for worker in range(4):
            assert bits_equal(means[worker], reference)


def test_whole_models_gathered_by_shard_map():
    policy = "atomo:bits=1,cap=1.2"
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    shapes = {"kernel": (256, 300), "bias": (300,), "head": [(300, 10), ()]}
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    trees = [jax.tree.unflatten(structure, [values(shape, w) for shape in leaves]) for w in range(4)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

    def exchange(tree):
        tree = jax.tree.map(lambda leaf: leaf[0], tree)
        payload, _ = atomo.jax.encode_tree(tree, policy, seed=5, step=0, worker=jax.lax.axis_index("workers"))
        payloads = jax.lax.all_gather(payload, "workers")
        mean = atomo.jax.decode_add_tree(payloads, 0.25, jax.tree.map(jnp.zeros_like, tree), policy)
        return jax.tree.map(lambda leaf: leaf[None], mean)

    means = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=P("workers"), out_specs=P("workers")))(
        jax.device_put(stacked, NamedSharding(mesh, P("workers")))
    )
    names = atomo.jax.layer_names(trees[0])
    model = atomo.Compressor(dict(zip(names, jax.tree.leaves(trees[0]))), policy)
    reference = {name: np.zeros_like(leaf) for name, leaf in zip(names, jax.tree.leaves(trees[0]))}
    for worker, tree in enumerate(trees):
        message = model.encode(dict(zip(names, jax.tree.leaves(tree))), seed=5, worker=worker, step=0)
        model.decode_add(message, out=reference, alpha=0.25)
    for name, leaf in zip(names, jax.tree.leaves(means)):
        for worker in range(4):
            assert bits_equal(leaf[worker], reference[name])


def test_calls_from_many_threads():
    codec = atomo.Codec("atomo:bits=1")
    tensors = [values((128, 128), seed=w) for w in range(4)]
    expected = [bytes(codec.encode(x, seed=1, worker=w, step=0)) for w, x in enumerate(tensors)]
    encode = jax.jit(lambda x, worker: atomo.jax.encode(x, codec, seed=1, step=0, worker=worker))
    wrong = []

    def run(worker):
        for _ in range(5):
            if message_of(*encode(tensors[worker], worker)) != expected[worker]:
                wrong.append(worker)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_gradient_is_made_up():
    def through(x):
        return atomo.jax.decode(atomo.jax.encode(x, "sign", seed=1, step=0)[0], "sign", (8,)).sum()

    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(through)(jnp.ones(8))


@pytest.mark.long
def test_the_example_learns_and_its_devices_agree():
    script = Path(__file__).resolve().parents[2] / "examples" / "python" / "jax_train.py"
    command = [sys.executable, script, "--workers", "3", "--steps", "200"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"accuracy (\d+\.\d+)%, [\d,]+ bytes a message, 1/(\d+) of f32", done.stdout)
    assert float(told[1]) > 75 and 55 <= int(told[2]) <= 70, done.stdout


def test_a_key_stands_in_memory_as_the_library_has_it():
    """For calls on a GPU: known numbers, and traced ones."""
    numbers = (0x1234567890ABCDEF, 70000, 3, 65535, 9)
    expected = struct.pack("<QIHHHHI", *numbers, 0, 0)
    known = np.asarray(atomo.jax._key(*numbers))
    traced = np.asarray(jax.jit(lambda step, worker: atomo.jax._key(numbers[0], step, 3, worker, 9))(70000, 65535))
    assert known.tolist() == traced.tolist() and known[6:].tobytes() == expected


def test_a_trees_payload_is_what_its_caps_allow():
    tree = {"a": jnp.ones((200, 100)), "b": jnp.ones(50)}
    model = atomo.Compressor({"a": (200, 100), "b": 50}, "b=sign; *=atomo:bits=4,cap=4.4,atoms=rows")
    payload, length = atomo.jax.encode_tree(tree, model.policy, seed=1, step=2)
    assert payload.size == model.wire_bytes < model.max_encoded_bytes and length <= payload.size
    decoded = atomo.jax.decode_tree(payload, model.policy, tree)
    assert jnp.allclose(decoded["b"], 1)
