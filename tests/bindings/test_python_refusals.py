# SPDX-License-Identifier: Apache-2.0
"""What is refused, and what the message says would be right."""
import pickle

import numpy
import pytest
from conftest import gradient

import atomo

CODEC = atomo.Codec("qsgd:bits=2")
X = gradient(6, 8)
PAYLOAD = CODEC.encode(X, step=0)


def refused(call, *words, error=atomo.Error):
    """The call raises, and the message holds each of the words."""
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return caught.value


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "complex64", "bool"])
def test_dtypes(dtype):
    refused(lambda: CODEC.encode(X.astype(dtype), step=0), "x: the elements are " + dtype, "float32, float16 and bfloat16")
    refused(lambda: CODEC.decode(PAYLOAD, out=X.astype(dtype)), "out: the elements are " + dtype)
    refused(lambda: atomo.Compressor({"a": X.astype(dtype)}, "sign"), "float32")


def test_layouts(writable_framework):  # JAX's arrays are always contiguous
    x = writable_framework.array(X)
    for view, strides in ((x.T, "[1, 8]"), (x[:, ::2], "[8, 2]"), (x[::2], "[16, 1]")):
        refused(lambda: CODEC.encode(view, step=0), "x: strides " + strides, "not C-contiguous", "ascontiguousarray(x)")
        refused(lambda: CODEC.decode(PAYLOAD, out=view), "out: strides", "not C-contiguous")
    numpy.testing.assert_array_equal(CODEC.encode(x[2:3, 1:], step=0), CODEC.encode(X[2:3, 1:].copy(), step=0))  # one row is


def test_strides_of_nothing_do_not_matter():
    CODEC.encode(numpy.zeros((4, 0, 3), "float32").T, step=0)
    CODEC.encode(numpy.asfortranarray(numpy.ones((1, 5), "float32")), step=0)


def test_byte_order():
    refused(lambda: CODEC.encode(X.astype(">f4"), step=0), "byte order")


def test_read_only_arrays():
    frozen = X.copy()
    frozen.flags.writeable = False
    before = frozen.copy()
    refused(lambda: CODEC.decode(PAYLOAD, out=frozen), "out: this array is read-only", "like=")
    refused(lambda: CODEC.decode_add(PAYLOAD, out=frozen), "read-only")
    refused(lambda: atomo.decode(PAYLOAD, out=[frozen]), "out[0]: this array is read-only")
    numpy.testing.assert_array_equal(frozen, before)
    words = X.astype("float16")
    words.flags.writeable = False
    refused(lambda: CODEC.decode(PAYLOAD, out=words), "read-only")


def test_read_only_bfloat16():
    import ml_dtypes

    words = X.astype(ml_dtypes.bfloat16)
    words.flags.writeable = False
    CODEC.encode(words, step=0)
    refused(lambda: CODEC.decode(PAYLOAD, out=words), "out: this array is read-only")


def test_jax_arrays_are_not_written_to():
    jax = pytest.importorskip("jax")
    out = jax.numpy.zeros((6, 8))
    refused(lambda: CODEC.decode(PAYLOAD, out=out), "out: JAX's arrays are immutable", "like=")
    refused(lambda: CODEC.decode_add(PAYLOAD, out=out), "immutable")
    assert not numpy.asarray(out).any()


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    refused(lambda: CODEC.decode(PAYLOAD, out=torch.zeros(6, 8, requires_grad=True)), "requires grad", ".detach()")
    refused(lambda: CODEC.encode(torch.ones(6, 8).to_sparse(), step=0), "x: this torch.Tensor does not lend its memory")
    refused(lambda: CODEC.encode(torch.ones(6, 8, device="meta"), step=0), "x: ")
    refused(lambda: CODEC.encode(torch.ones(6, 8, dtype=torch.float64), step=0), "float64")


def test_torch_tensors_with_the_negative_bit():
    torch = pytest.importorskip("torch")
    x = torch._neg_view(torch.tensor(X))  # as z.conj().imag is
    words = "this tensor has its negative bit set: give its .resolve_neg()"
    model = atomo.Compressor({"a": X}, "identity")
    refused(lambda: CODEC.encode(x, step=0), "x: " + words)
    refused(lambda: model.encode({"a": x}, step=0), "gradients['a']: " + words)
    refused(lambda: CODEC.decode(PAYLOAD, out=x), "out: " + words)
    refused(lambda: atomo.decode_add(PAYLOAD, out=[x]), "out[0]: " + words)
    assert CODEC.encode(x.resolve_neg(), step=0) == CODEC.encode(-X, step=0)
    assert not CODEC.decode(PAYLOAD, like=x).is_neg()


FACTORS = pytest.mark.parametrize("alpha, words, error", [
    ("x", "alpha: a number is expected, found str", TypeError), (None, "alpha: a number is expected, found NoneType", TypeError),
    (1e300, "alpha is 1e+300: its magnitude must be at most 3.4028235e+38", atomo.Error),
    (10**400, "alpha is an integer of more than 1024 bits", atomo.Error), (float("nan"), "alpha is NaN", atomo.Error)])


@FACTORS
def test_factors(alpha, words, error):
    model, out = atomo.Compressor({"a": X}, "qsgd:bits=2"), X.copy()
    whole = model.encode({"a": X}, step=0)
    for call in (lambda: CODEC.decode_add(PAYLOAD, out=out, alpha=alpha), lambda: CODEC.decode_add_all([PAYLOAD], out=out, alpha=alpha),
                 lambda: atomo.decode_add(PAYLOAD, out=[out], alpha=alpha),
                 lambda: atomo.decode_add_all([PAYLOAD], out=[out], alpha=alpha),
                 lambda: model.decode_add(whole, out={"a": out}, alpha=alpha),
                 lambda: model.decode_layer_add("a", PAYLOAD, out=out, alpha=alpha),
                 lambda: model.decode_layer_add_all("a", [PAYLOAD], out=out, alpha=alpha)):
        refused(call, words, error=error)
    numpy.testing.assert_array_equal(out, X)
    for factor in (numpy.float32(2), numpy.array(2), 2):
        numpy.testing.assert_array_equal(CODEC.decode_add(PAYLOAD, out=numpy.zeros_like(X), alpha=factor),
                                         2 * CODEC.decode(PAYLOAD, like=X))


@FACTORS
def test_factors_on_a_gpu(monkeypatch, alpha, words, error):
    """There none would overwrite: what queues the kernels is never asked."""
    def queued(*_):
        raise AssertionError("a kernel was queued")

    for name in ("decode", "decode_layer", "decode_model"):
        monkeypatch.setattr(atomo._device, name, queued)
    monkeypatch.setattr(atomo._codec, "on_cuda", lambda array: True)
    monkeypatch.setattr(atomo.Compressor, "_on_cuda", lambda self, array: True)
    model, out = atomo.Compressor({"a": X}, "qsgd:bits=2"), X.copy()
    for call in (lambda alpha: CODEC.decode_add(PAYLOAD, out=out, alpha=alpha), lambda alpha: CODEC.decode_add_all([PAYLOAD], out=out, alpha=alpha),
                 lambda alpha: model.decode_add(PAYLOAD, out={"a": out}, alpha=alpha),
                 lambda alpha: model.decode_layer_add("a", PAYLOAD, out=out, alpha=alpha),
                 lambda alpha: model.decode_layer_add_all("a", [PAYLOAD], out=out, alpha=alpha)):
        refused(lambda: call(alpha), words, error=error)
        refused(lambda: call(2.0), "a kernel was queued", error=AssertionError)


def test_numbers_of_models():
    model = atomo.Compressor({"a": 4}, "atomo:bits=1")
    refused(lambda: setattr(model, "budget_share", "x"), "budget_share: a number is expected, found str", error=TypeError)
    for prices in ((1,), 5, (1, 2, 3)):
        refused(lambda: model.begin_step(step=0, prices=prices), f"prices is {prices}: two numbers are expected")
    refused(lambda: model.begin_step(step=0, prices=("x", 0)), "prices[0]: a number is expected, found str", error=TypeError)
    refused(lambda: model.begin_step(step=0, prices=(0, 1e300)), "prices[1] is 1e+300: its magnitude must be at most")
    refused(lambda: atomo.budget_shares([1.0], power="x"), "power: a number is expected, found str", error=TypeError)
    refused(lambda: atomo.budget_shares([1.0], momentum=None), "momentum: a number is expected", error=TypeError)
    assert atomo.Compressor({"a": numpy.int64(5), "b": numpy.uint8(2)}, "sign").shape("a") == (5,)


def test_parts_have_no_steps_of_their_own():
    model = atomo.Compressor({"a": 4, "b": 5}, "ef+topk:keep=0.5")
    part, x = model.part(["b"]), numpy.ones(5, "float32")
    refused(lambda: part.encode({"b": x}, step=0), "between begin_step and end_step of the model that it is a part of")
    for call in (lambda: part.begin_step(step=0), lambda: part.begin_message(step=0), lambda: part.add_layer("b", x),
                 lambda: part.encode_layer("b", x), part.end_step):
        refused(call, "a part has no steps and messages of its own")
    model.begin_step(seed=1, step=3)
    refused(lambda: part.encode({"b": x}, seed=1, step=4), "encode: seed 1, step 4, worker 0, channel 0: ", "the key of the step under way")
    part.encode({"b": x}, seed=1, step=3)
    refused(lambda: part.encode({"b": x}, seed=1, step=3), "once in between where a codec has a memory")
    model.end_step()


@pytest.mark.parametrize("thing", [None, [1.0, 2.0], "abc", 3, object()], ids=repr)
def test_what_is_no_array(thing):
    refused(lambda: CODEC.encode(thing, step=0), "x: an array", error=TypeError)
    refused(lambda: CODEC.decode_add(PAYLOAD, out=thing), "out: an array", error=TypeError)
    if thing is not None:
        refused(lambda: CODEC.decode(PAYLOAD, like=thing), "like: an array", error=TypeError)


@pytest.mark.parametrize("thing", [None, "abc", 3, [1, 2]], ids=repr)
def test_what_is_no_payload(thing):
    for call in (lambda: CODEC.decode(thing, like=X), lambda: atomo.inspect(thing), lambda: atomo.decode(thing)):
        refused(call, "payload: bytes or an array of uint8", error=TypeError)
    refused(lambda: atomo.add([PAYLOAD, thing]), "payloads[1]: bytes", error=TypeError)
    refused(lambda: atomo.join([thing]), "payloads[0]: bytes", error=TypeError)


def test_payloads():
    scattered = numpy.frombuffer(PAYLOAD + bytes(len(PAYLOAD)), numpy.uint8)[::2]
    refused(lambda: CODEC.decode(scattered, like=X), "payload: these bytes are not contiguous")
    torch = pytest.importorskip("torch")
    refused(lambda: CODEC.decode(torch.zeros(8), like=X), "payload: the elements are float32", "uint8")


def test_like_and_out():
    refused(lambda: CODEC.decode(PAYLOAD), "one of like=", "out=")
    refused(lambda: CODEC.decode(PAYLOAD, like=X, out=X), "not both")
    refused(lambda: atomo.decode(PAYLOAD, like=[X], out=[X]), "not both")


@pytest.mark.parametrize("field, bits", [("seed", 64), ("step", 32), ("worker", 16), ("tensor", 16), ("channel", 16)])
def test_keys(field, bits):
    for value in (-1, 2**bits, 2**70):
        refused(lambda: CODEC.encode(X, **{"step": 0, field: value}), f"{field} is {value}", f"from 0 to {2**bits - 1}")
    for value in (1.5, "1", None):
        refused(lambda: CODEC.encode(X, **{"step": 0, field: value}), f"{field}: an integer is expected", error=TypeError)


def test_shapes():
    refused(lambda: CODEC.encode(numpy.zeros((1,) * 9, "float32"), step=0), "x: a shape of 9 dimensions")
    error = refused(lambda: CODEC.decode(PAYLOAD, like=X[:5]), "the message holds layers of the shapes", error=atomo.DecodeError)
    assert error.status == "shape_mismatch"
    refused(lambda: CODEC.max_encoded_bytes((2, -1)), "shape is -1")
    refused(lambda: CODEC.max_encoded_bytes((2**30, 2**30)), "2^40")
    refused(lambda: CODEC.max_encoded_bytes((2.5,)), "integer", error=TypeError)
    refused(lambda: CODEC.max_encoded_bytes(None), "None", error=TypeError)
    refused(lambda: CODEC.max_encoded_bytes((2,), "f64"), "f32")


def test_halves_are_not_added_to():
    refused(lambda: CODEC.decode_add(PAYLOAD, out=X.astype("float16")), "out: the elements are f16", "f32 only")
    refused(lambda: atomo.decode_add(PAYLOAD, out=[X.astype("float16")]), "out[0]: the elements are f16")


@pytest.mark.parametrize("spec, words", [("quant", ["unknown codec 'quant'", "nearest"]), ("qsgd:bits=9", ["9"]),
                                         ("qsgd:bitz=2", ["bitz"]), ("", [])])
def test_specs(spec, words):
    refused(lambda: atomo.Codec(spec), *words)
    refused(lambda: atomo.Codec(3), "spec: a str is expected", error=TypeError)


def test_another_codec():
    error = refused(lambda: atomo.Codec("sign").decode(PAYLOAD, like=X), error=atomo.DecodeError)
    assert error.status == "codec_mismatch"


def test_errors_are_values():
    error = refused(lambda: CODEC.decode(b"", like=X), error=atomo.DecodeError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is atomo.DecodeError and again.status == error.status == "truncated"
    assert str(again) == str(error)
    assert issubclass(atomo.DecodeError, atomo.Error) and issubclass(atomo.Error, ValueError)


def test_what_this_build_cannot_do():
    from atomo import _atomo

    if _atomo.cuda:
        pytest.skip("this build has the CUDA backend")
    refused(lambda: atomo.Compressor({"a": (3,)}, "sign", device="cuda"), "without the CUDA backend", "ATOMO_CUDA=ON")


def test_models():
    model = atomo.Compressor({"a": (3, 4), "b": 5}, "identity")
    right = {"a": numpy.zeros((3, 4), "float32"), "b": numpy.zeros(5, "float32")}
    payload = model.encode(right, step=0)
    refused(lambda: model.encode([X], step=0), "gradients: a mapping", error=TypeError)
    refused(lambda: model.encode({"a": right["a"]}, step=0), "gradients: 'b' missing")
    refused(lambda: model.encode({**right, "c": X}, step=0), "no layer is called 'c'")
    refused(lambda: model.encode({**right, "b": numpy.zeros(4, "float32")}, step=0), "gradients['b']: the shape is [4]", "[5]")
    refused(lambda: model.encode({**right, "b": numpy.zeros(5, "float16")}, step=0), "gradients['b']: the elements are f16",
            "f32")
    refused(lambda: model.encode({**right, "b": [0] * 5}, step=0), "gradients['b']: an array", error=TypeError)
    refused(lambda: model.encode(right, worker=-1, step=0), "worker is -1")
    refused(lambda: model.decode(payload, out={**right, "b": numpy.zeros(6, "float32")}), "out['b']: the shape is [6]")
    refused(lambda: model.decode(payload), "one of like=")
    assert refused(lambda: model.decode(payload[:-1], like=right), error=atomo.DecodeError).status == "truncated"
    refused(lambda: model.encode_layer("a", right["a"]), "begin_step")
    refused(lambda: model.end_step(), "begin_step")
    refused(lambda: model.load_state(b"state"), "80 bytes", "found 5")
    refused(lambda: model.codec("c"), "no layer is called 'c'", "'a', 'b'")
    model.begin_step(step=0)
    refused(lambda: model.begin_step(step=0), "the step before has to end")
    refused(lambda: model.encode_layer("c", X), "no layer is called 'c'")
    refused(lambda: model.encode_layer("a", X), "gradient: the shape is [6, 8]")
    model.end_step()
    refused(lambda: model.begin_step(prices=(0.1, 0), step=0), "prices are (0.1", "predicted_prices")
    refused(lambda: model.decode_add_all(payload, out=right), "a list of messages", "decode_add takes one", error=TypeError)
    model.begin_step(prices=(0.5, 0), step=0)
    model.end_step()


def test_set_up_of_models():
    refused(lambda: atomo.Compressor({}, "sign"), "without layers")
    refused(lambda: atomo.Compressor(["a"], "sign"), "layers: a mapping", error=TypeError)
    refused(lambda: atomo.Compressor({"a": "xy"}, "sign"), "layer 'a': a shape or an array", error=TypeError)
    refused(lambda: atomo.Compressor({"a": (3, -1)}, "sign"), "layer 'a'", "-1")
    refused(lambda: atomo.Compressor({"a": (2.5,)}, "sign"), "layer 'a': shape: an integer is expected, found float", error=TypeError)
    refused(lambda: atomo.Compressor({"a": 3}, "b=sign"), "no rule", "'a'")
    refused(lambda: atomo.Compressor({"a": 3}, "*=sgin"), "sgin", "line 1")
    refused(lambda: atomo.Compressor({"a": 3}, "sgin"), "sgin", "sign")
    refused(lambda: atomo.Compressor({"a": 3}, ""), "")
    refused(lambda: atomo.Compressor({"a": 3}, "sign", device="tpu"), "'tpu'", "cpu and cuda")
    for threads in (0, -1, 2.5, True, 5000):
        refused(lambda: atomo.Compressor({"a": 3}, "sign", threads=threads), "threads is", "from 1 to 1024")


def test_texts_that_are_no_utf8():
    refused(lambda: atomo.Compressor({"\ud800": (3,)}, "sign"), "layers: '\\ud800' cannot be written in UTF-8")
    refused(lambda: atomo.Compressor({"a": (3,)}, "\ud800=sign"), "policy: '\\ud800=sign'")
    refused(lambda: atomo.Codec("sign:\udfff"), "spec: 'sign:\\udfff'")
    # A message whose only layer is called b"ba\xff", and whose checksums hold.
    forged = bytes.fromhex("41544d4f010001005c000000000000000000000000000000000000000000000000000100010000000000000000000000ba89c6"
                           "48e16fd79324ea2c0fc0bdae090000000100000000050000000000010303006261ff00000000000000")
    for read in (atomo.inspect, atomo.decode):
        refused(lambda: read(forged), error=atomo.DecodeError)


def test_elements_that_begin_between_two_places():
    for dtype, size in (("float32", 4), ("float16", 2)):
        shifted = numpy.frombuffer(bytes(1 + 8 * size), dtype=dtype, offset=1)
        assert shifted.ctypes.data % size
        refused(lambda: CODEC.encode(shifted, step=0), "x: the elements begin ", f" bytes behind a multiple of {size}", "x.copy()")
        CODEC.encode(shifted.copy(), step=0)
    model = atomo.Compressor({"w": (8,)}, "sign")
    refused(lambda: model.encode({"w": numpy.frombuffer(bytes(33), dtype="float32", offset=1)}, step=0), "gradients['w']: ")


def test_a_step_has_to_be_said():
    """A loop that left it out would draw alike for ever."""
    model = atomo.Compressor({"w": (8,)}, "sign")
    for call in (lambda: CODEC.encode(X, seed=1), lambda: model.encode({"w": X.ravel()[:8]}, seed=1), lambda: model.begin_step()):
        refused(call, "'step'", error=TypeError)


def test_messages_that_do_not_fit_are_told_with_both_sides():
    payload = atomo.Codec("qsgd:bits=4").encode(X, step=0)
    other = numpy.empty((6, 9), "float32")
    for call in (lambda: CODEC.decode(payload, out=other), lambda: CODEC.decode_add(payload, out=other),
                 lambda: atomo.decode(payload, out=[other]), lambda: atomo.decode_add(payload, out=[other]),
                 lambda: atomo.Compressor({"w": (6, 9)}, "sign").decode(payload, out={"w": other})):
        refused(call, "the message holds layers of the shapes [6, 8], here they are [6, 9]", error=atomo.DecodeError)
    assert CODEC != atomo.Codec("qsgd:bits=4")
    refused(lambda: atomo.Codec("sign").decode(payload, like=X), "the message was written by qsgd:bits=4,bucket=512,norm=max; here "
            "sign is expected", error=atomo.DecodeError)


def test_specs_of_others_and_misspelt_keys():
    refused(lambda: atomo.Codec("atomo:bit=0.25"), "unknown key 'bit' of atomo", "the nearest is bits")
    refused(lambda: atomo.Codec("qsgd:bit=4"), "unknown key 'bit' of qsgd", "the nearest is bits")
    for name, spec in (("fp16", "identity:dtype=f16"), ("bf16", "identity:dtype=bf16"), ("powersgd", "atomo:bits=0.5"),
                       ("int8", "qsgd:bits=8"), ("none", "identity"), ("signsgd", "sign:scale=mean")):
        refused(lambda: atomo.Codec(name), f"unknown codec '{name}'", f"did you mean {spec}?")
        atomo.Codec(spec)
