# SPDX-License-Identifier: Apache-2.0
"""Codecs on arrays of every framework: the same bytes, the same values, in place."""
import gc
import pickle
import sys
import warnings

import numpy
import pytest
from conftest import CODECS, DTYPES, FRAMEWORKS, gradient

import atomo

KEY = {"seed": 1, "step": 2, "worker": 3, "tensor": 4, "channel": 5}


def peak_rss(call):
    """Bytes by which the process grew at most while `call` ran."""
    def field(name):
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    gc.collect()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the highest size so far is now the size
    before = field("VmRSS:")
    call()
    return field("VmHWM:") - before


@pytest.mark.parametrize("spec", CODECS)
def test_round_trip(spec, framework):
    values = gradient(24, 40)
    codec = atomo.Codec(spec)
    x = framework.array(values)
    payload = codec.encode(x, **KEY)
    assert type(payload) is bytes
    assert len(payload) <= codec.max_encoded_bytes(x.shape)
    decoded = codec.decode(payload, like=x)
    assert isinstance(decoded, framework.kind()) and decoded.dtype == x.dtype and tuple(decoded.shape) == (24, 40)
    expected = codec.decode(codec.encode(values, **KEY), like=values)
    numpy.testing.assert_array_equal(framework.numpy(decoded), expected)
    if spec == "identity:dtype=f32":
        numpy.testing.assert_array_equal(expected, values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_frameworks_give_the_same_bytes(dtype):
    values = gradient(17, 33)
    codec = atomo.Codec("atomo:bits=1")
    arrays = [framework.array(values, dtype) for framework in FRAMEWORKS]
    payloads = [codec.encode(x, **KEY) for x in arrays]
    assert len(set(payloads)) == 1
    assert atomo.inspect(payloads[0]).layers[0].dtype == dtype
    decoded = [framework.numpy(codec.decode(payloads[0], like=x)) for framework, x in zip(FRAMEWORKS, arrays)]
    for other in decoded[1:]:
        numpy.testing.assert_array_equal(decoded[0], other)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (31,), (3, 0, 2), (257, 3), (2, 1, 2, 1, 2, 1, 2, 1)])
def test_shapes(shape, framework):
    x = framework.array(numpy.full(shape, 0.5, "float32"))
    codec = atomo.Codec("identity:dtype=f32")
    decoded = codec.decode(codec.encode(x, step=0), like=x)
    assert tuple(decoded.shape) == shape
    numpy.testing.assert_array_equal(framework.numpy(decoded), numpy.full(shape, 0.5))


def test_the_key_is_what_the_message_says():
    assert atomo.inspect(atomo.Codec("qsgd:bits=2").encode(numpy.ones(8, "float32"), **KEY)).key == atomo.Key(**KEY)


def test_equal_keys_give_equal_bytes_and_others_do_not():
    x, codec = gradient(32, 64), atomo.Codec("qsgd:bits=2")
    assert codec.encode(x, **KEY) == codec.encode(x, **KEY)
    payloads = {codec.encode(x, **KEY)} | {codec.encode(x, **{**KEY, field: 9}) for field in KEY}
    assert len(payloads) == 1 + len(KEY)


def test_keys_take_any_integer():
    x, codec = numpy.ones(8, "float32"), atomo.Codec("qsgd:bits=2")
    largest = {"seed": 2**64 - 1, "step": 2**32 - 1, "worker": 65535, "tensor": 65535, "channel": 65535}
    assert atomo.inspect(codec.encode(x, **largest)).key == atomo.Key(**largest)
    assert codec.encode(x, step=numpy.int64(7)) == codec.encode(x, step=7)


def test_decode_fills_the_very_array(writable_framework):
    codec, values = atomo.Codec("qsgd:bits=4"), gradient(16, 32)
    payload = codec.encode(values, step=0)
    out = writable_framework.array(numpy.zeros((16, 32)))
    alias = out.numpy() if writable_framework.name == "torch" else out[:]
    assert codec.decode(payload, out=out) is out
    numpy.testing.assert_array_equal(alias, codec.decode(payload, like=values))


def test_decode_add(writable_framework):
    codec, values = atomo.Codec("identity:dtype=f32"), gradient(5, 7)
    out = writable_framework.array(numpy.ones((5, 7)))
    assert codec.decode_add(codec.encode(values, step=0), out=out, alpha=0.5) is out
    numpy.testing.assert_array_equal(writable_framework.numpy(out), numpy.float32(1) + numpy.float32(0.5) * values)
    codec.decode_add(codec.encode(values, step=0), out=out)
    numpy.testing.assert_array_equal(
        writable_framework.numpy(out), (numpy.float32(1) + numpy.float32(0.5) * values) + values)


def test_decode_add_of_many_is_that_of_each(writable_framework):
    codec = atomo.Codec("sign:scale=mean")
    payloads = [codec.encode(gradient(5, 7, seed=seed), step=0) for seed in range(10)]
    one_by_one, out = numpy.ones((5, 7), "float32"), writable_framework.array(numpy.ones((5, 7)))
    any_codec = one_by_one.copy()
    for payload in payloads:
        codec.decode_add(payload, out=one_by_one, alpha=0.3)
    assert codec.decode_add_all(payloads, out=out, alpha=0.3) is out
    numpy.testing.assert_array_equal(writable_framework.numpy(out), one_by_one)
    assert atomo.decode_add_all(payloads, out=[any_codec], alpha=0.3)[0] is any_codec
    numpy.testing.assert_array_equal(any_codec, one_by_one)


def test_of_many_messages_the_one_that_is_refused_is_named():
    codec = atomo.Codec("sign")
    payloads = [codec.encode(gradient(5, 7), step=0) for _ in range(3)]
    broken = payloads[:2] + [payloads[2][:-4]]
    out = numpy.zeros((5, 7), "float32")
    for call in (lambda: codec.decode_add_all(broken, out=out), lambda: atomo.decode_add_all(broken, out=[out]),
                 lambda: atomo.Compressor({"a": (5, 7)}, "sign").decode_add_all(broken, out={"a": out}),
                 lambda: atomo.Compressor({"a": (5, 7)}, "sign").decode_layer_add_all("a", broken, out=out)):
        with pytest.raises(atomo.DecodeError, match=r"payloads\[2\]: ") as refusal:
            call()
        assert refusal.value.status == "truncated"
    with pytest.raises(TypeError, match="a list of messages"):
        codec.decode_add_all(payloads[0], out=out)


def test_no_call_copies_an_array(framework):
    elements = 16 << 20  # 64 MiB
    x = framework.array(numpy.ones(elements, "float32"))
    codec = atomo.Codec("sign")
    payload = codec.encode(x, step=0)
    assert peak_rss(lambda: codec.encode(x, step=0)) < 16 << 20
    if framework.name != "jax":
        assert peak_rss(lambda: codec.decode(payload, out=x)) < 16 << 20
        assert peak_rss(lambda: codec.decode_add(payload, out=x)) < 16 << 20


def test_a_copy_would_be_seen():
    x = numpy.ones(16 << 20, "float32")
    assert peak_rss(x.copy) > 48 << 20


def test_arrays_are_let_go(framework):
    x = framework.array(gradient(8, 8))
    codec = atomo.Codec("qsgd:bits=2")
    payload, before = codec.encode(x, step=0), sys.getrefcount(x)
    references = sys.getrefcount(payload)
    for _ in range(10):
        codec.encode(x, step=0)
        codec.decode(payload, like=x)
    assert sys.getrefcount(x) == before and sys.getrefcount(payload) == references


def test_a_slice_is_read_where_it_lies(writable_framework):
    whole = gradient(8, 16)
    codec = atomo.Codec("identity:dtype=f32")
    part = writable_framework.array(whole)[2:5]
    numpy.testing.assert_array_equal(codec.decode(codec.encode(part, step=0), like=whole[2:5]), whole[2:5])


def test_read_only_arrays_are_encoded():
    x = gradient(4, 4)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert atomo.Codec("sign").encode(frozen, step=0) == atomo.Codec("sign").encode(x, step=0)


def test_any_object_with_dlpack_is_encoded():
    class Lender:
        """Speaks DLPack and nothing else."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x, codec = gradient(4, 4), atomo.Codec("identity:dtype=f32")
    payload = codec.encode(Lender(x), step=0)
    assert payload == codec.encode(x, step=0)
    y = numpy.zeros_like(x)
    codec.decode(payload, out=Lender(y))
    numpy.testing.assert_array_equal(x, y)


def test_values_that_are_still_computed():
    jax = pytest.importorskip("jax")
    product = jax.jit(lambda a: a @ a @ a)
    a = jax.numpy.asarray(gradient(300, 300) * 0.01)
    codec = atomo.Codec("identity:dtype=f32")
    payload = codec.encode(product(a), step=0)  # not waited for
    numpy.testing.assert_array_equal(codec.decode(payload, like=numpy.empty((300, 300), "float32")),
                                     numpy.asarray(product(a)))


def as_tensor(payload):
    torch = pytest.importorskip("torch")
    return torch.tensor(list(payload), dtype=torch.uint8)


@pytest.mark.parametrize("as_payload", [bytes, bytearray, memoryview, lambda p: numpy.frombuffer(p, numpy.uint8),
                                        as_tensor], ids=["bytes", "bytearray", "memoryview", "numpy", "torch"])
def test_payloads_of_any_kind(as_payload):
    x, codec = gradient(8, 8), atomo.Codec("qsgd:bits=2")
    payload = codec.encode(x, step=0)
    numpy.testing.assert_array_equal(codec.decode(as_payload(payload), like=x), codec.decode(payload, like=x))
    assert atomo.inspect(as_payload(payload)) == atomo.inspect(payload)


def test_padding_behind_a_message_is_ignored():
    x, codec = gradient(8, 8), atomo.Codec("qsgd:bits=2")
    payload = codec.encode(x, step=0)
    numpy.testing.assert_array_equal(codec.decode(payload + bytes(100), like=x), codec.decode(payload, like=x))
    with pytest.raises(atomo.DecodeError):
        atomo.inspect(payload + bytes(100), exact=True)


def test_what_is_not_finite_comes_back_as_nan():
    x = gradient(8, 8)
    x[1, 1] = numpy.inf
    codec = atomo.Codec("atomo:bits=1")
    payload = codec.encode(x, step=0)
    assert atomo.inspect(payload).layers[0].non_finite
    assert numpy.isnan(codec.decode(payload, like=x)).all()


def test_a_budget_that_pays_for_no_message_is_warned_of_once():
    x, codec = gradient(3, 1), atomo.Codec("atomo:bits=0.5,atoms=blocks")
    with pytest.warns(UserWarning, match="'atomo:bits=0.5,atoms=blocks': the budget does not pay") as told:
        payloads = [codec.encode(x, step=step) for step in range(200)]
    assert len(told) == 1 and told[0].filename == __file__
    decoded = [codec.decode(payload, like=x) for payload in payloads]
    assert all(0 < abs(y).max() < 4 * abs(x).max() for y in decoded)
    model = atomo.Compressor({"a": (2, 2), "b": 2}, "atomo:bits=0.5")
    with pytest.warns(UserWarning, match="'atomo:bits=0.5': the budget does not pay") as told:
        for step in range(3):
            model.encode({"a": gradient(2, 2), "b": gradient(2)}, step=step)
            model.begin_step(step=step, channel=1)
            model.encode_layer("a", gradient(2, 2))
            model.end_step()
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atomo.Compressor({"a": (64, 64), "b": 2}, "atomo:bits=0.5").encode(
            {"a": gradient(64, 64), "b": gradient(2)}, step=0)
        with pytest.raises(UserWarning):
            atomo.Codec("atomo:bits=0.5").encode(x, step=0)


def test_the_mean_is_right():
    x, codec = gradient(16, 16), atomo.Codec("qsgd:bits=2")
    total = numpy.zeros_like(x, "float64")
    for step in range(400):
        total += codec.decode(codec.encode(x, step=step), like=x)
    bucket = numpy.abs(x).max()  # one bucket: no entry is further off than a level, and levels are a bucket apart
    assert numpy.abs(total / 400 - x).max() < 6 * bucket / numpy.sqrt(400)


@pytest.mark.parametrize("spec", CODECS)
def test_codecs_are_values(spec):
    codec = atomo.Codec(spec)
    again = pickle.loads(pickle.dumps(codec))
    assert again == codec == atomo.Codec(str(codec)) == atomo.Codec(codec)
    assert hash(again) == hash(codec) and eval(repr(codec)) == codec
    assert codec != atomo.Codec("terngrad:clip=2.5") and codec != str(codec)


def test_traits():
    traits = atomo.Codec("identity:dtype=f32").traits
    assert traits.unbiased and traits.fixed_size and traits.cpu and traits.bias_bound == 0
    assert atomo.Codec("sign").traits.bias_bound == float("inf")
    assert atomo.Codec("randomk:keep=0.25").traits.omega >= 3 and atomo.Codec("sign").traits.omega is None
    assert 0 < atomo.Codec("topk:keep=0.25").traits.contraction <= 0.25
    assert atomo.Codec("atomo:atoms=coordinate,delta=1").traits.linear
    assert atomo.Codec("atomo:atoms=coordinate,delta=0.5").traits.step == 0.5 and traits.step == 0
    assert atomo.Codec("identity:dtype=f16").traits.highest == 65504 and traits.highest == float("inf")
    assert atomo.Codec("natural").traits.smallest == 2**-126 and traits.largest is None


def test_sizes():
    codec = atomo.Codec("identity:dtype=f32")
    assert codec.max_encoded_bytes(10) == codec.max_encoded_bytes((10,)) == codec.max_encoded_bytes([10], "float32")
    assert codec.max_encoded_bytes((10,)) == len(codec.encode(numpy.ones(10, "float32"), step=0))
    assert str(atomo.Codec("sign+blosc").without_lossless()) == "sign"
