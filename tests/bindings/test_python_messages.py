# SPDX-License-Identifier: Apache-2.0
"""Messages of any codec: what is in them, and that any bytes at all give an answer or an error."""
import functools

import hypothesis
import hypothesis.strategies as st
import numpy
import pytest
from conftest import CODECS, gradient

import atomo
from atomo import _atomo

STATUSES = {"truncated", "bad_magic", "bad_version", "bad_checksum", "corrupt", "shape_mismatch", "codec_mismatch",
            "unsupported", "external", "price_mismatch", "too_large", "invalid_argument", "wrong_stage", "codec_unknown", "codec_failed"}
X = gradient(24, 40)


@functools.cache
def payload_of(spec):
    return atomo.Codec(spec).encode(X, seed=3, step=0)


@pytest.mark.parametrize("spec", CODECS)
def test_inspect(spec):
    payload = payload_of(spec)
    message = atomo.inspect(payload, exact=True)
    assert (message.bytes, message.key.seed, message.version[0]) == (len(payload), 3, 2)
    layer, = message.layers
    assert layer.shape == (24, 40) and layer.elements == 960 and layer.dtype == "f32" and layer.name == ""
    assert layer.lossless == ("blosc" in spec) and not layer.thinned and not layer.non_finite
    assert message.head_bytes + layer.bytes <= message.bytes < message.head_bytes + layer.bytes + 64


@pytest.mark.parametrize("spec", CODECS)
def test_any_message_is_decoded(spec, framework):
    x = framework.array(X)
    expected = atomo.Codec(spec).decode(payload_of(spec), like=X)
    decoded, = atomo.decode(payload_of(spec), like=[x])
    assert isinstance(decoded, framework.kind())
    numpy.testing.assert_array_equal(framework.numpy(decoded), expected)
    new, = atomo.decode(payload_of(spec))
    numpy.testing.assert_array_equal(new, expected)


def test_decode_into_and_add(writable_framework):
    out = writable_framework.array(numpy.zeros((24, 40)))
    assert atomo.decode(payload_of("qsgd:bits=4"), out=[out])[0] is out
    expected = atomo.Codec("qsgd:bits=4").decode(payload_of("qsgd:bits=4"), like=X)
    numpy.testing.assert_array_equal(writable_framework.numpy(out), expected)
    assert atomo.decode_add(payload_of("qsgd:bits=4"), out=[out], alpha=-1)[0] is out
    assert not writable_framework.numpy(out).any()


def test_the_number_of_layers_has_to_be_right():
    with pytest.raises(atomo.DecodeError, match=r"layers of the shapes \[.*\], here they are \[.*\], \["):
        atomo.decode(payload_of("sign"), out=[X.copy(), X.copy()])


def test_sums():
    codec = atomo.Codec("atomo:atoms=coordinate,delta=0.25")
    payloads = [codec.encode(gradient(30, 30, seed=worker), worker=worker, step=0) for worker in range(4)]
    like = numpy.empty((30, 30), "float32")
    expected = sum(codec.decode(payload, like=like).astype("float64") for payload in payloads)
    numpy.testing.assert_array_equal(codec.decode(atomo.add(payloads), like=like), expected.astype("float32"))
    assert atomo.add([atomo.add(payloads[:2]), atomo.add(payloads[2:])]) == atomo.add(iter(payloads))
    assert atomo.add(payloads[:1]) == payloads[0]


def layer_at(name, price):
    """A layer's message of a step at that price."""
    model = atomo.Compressor({"a": X, "b": X}, "atomo:atoms=blocks,bits=1")
    model.begin_step(step=0, prices=(price, 0))
    return model.encode_layer(name, X)


@pytest.mark.parametrize("call, status", [
    (lambda: atomo.add([payload_of("sign")]), "unsupported"),
    (lambda: atomo.add([payload_of("atomo:atoms=coordinate,delta=0.125"),
                        atomo.Codec("atomo:atoms=coordinate,delta=0.25").encode(X, step=0)]), "price_mismatch"),
    (lambda: atomo.add([payload_of("atomo:atoms=coordinate,delta=0.125"),
                        atomo.Codec("atomo:atoms=coordinate,delta=0.125").encode(X[:3], step=0)]), "shape_mismatch"),
    (lambda: atomo.join([payload_of("sign"), payload_of("sign")]), "shape_mismatch"),
    (lambda: atomo.join([layer_at("a", 0.5), layer_at("b", 1.0)]), "price_mismatch"),
    (lambda: atomo.vote([payload_of("qsgd:bits=4")], out=[X.copy()]), "unsupported"),
])
def test_what_does_not_belong_together(call, status):
    with pytest.raises(atomo.DecodeError) as caught:
        call()
    assert caught.value.status == status


def test_messages_that_do_not_add_are_told_what_does():
    with pytest.raises(atomo.DecodeError, match="2 messages do not add: .* atomo:atoms=coordinate"):
        atomo.add([payload_of("sign")] * 2)


def test_messages_that_do_not_join_or_vote_are_told_what_does():
    sign = atomo.Codec("sign")
    steps = [sign.encode(X, step=step, tensor=step) for step in range(2)]
    turned = [sign.encode(X, step=0, tensor=tensor) for tensor in (1, 0)]
    for messages in (steps, turned):
        with pytest.raises(atomo.DecodeError, match="of one seed, step, worker and channel, and the `tensor` of each"):
            atomo.join(messages)
    with pytest.raises(atomo.DecodeError, match="different prices: all have to be encoded at the same"):
        atomo.join([layer_at("a", 0.5), layer_at("b", 1.0)])
    with pytest.raises(atomo.DecodeError, match="2 messages do not vote: all have to be of the codec sign"):
        atomo.vote([payload_of("qsgd:bits=4")] * 2, out=[X.copy()])


@pytest.mark.parametrize("call", [atomo.add, atomo.join, lambda messages: atomo.vote(messages, out=[X.copy()])])
def test_no_messages_at_all(call):
    with pytest.raises(atomo.Error, match="no messages were given, at least one is needed") as caught:
        call([])
    assert caught.value.status == "invalid_argument" and not isinstance(caught.value, atomo.DecodeError)


def test_what_a_device_reports_is_told_in_words():
    assert _atomo.status_of(258) == ("truncated", "the message ends before its header says", True)
    assert [_atomo.status_of(number)[0::2] for number in (0, 1, 8, 268)] == [
        ("ok", False), ("non_finite", False), ("overspent", False), ("too_large", True)]
    name, text, failed = _atomo.status_of(9)  # two notices: none hides the other
    assert name == "non_finite, overspent" and not failed
    assert text == ("done, but a layer holds an Inf or NaN and decodes to NaN; the budget does not pay for a message worth "
                    "sending, so it is exceeded")


def test_codecs():
    rows = atomo.codecs()
    assert {"atomo", "qsgd", "terngrad", "sign", "topk", "randomk", "identity"} <= {row.name for row in rows}
    for row in rows:
        assert row.summary and row.keys is not None
        # A preset stands for a spec of another codec, which its summary shows.
        shown = str(atomo.Codec(row.example))
        assert row.name in shown or (row.example == row.name and row.summary.endswith(shown))


def answers(payload, spec):
    """Every way to read a message says DecodeError, or none does and the values have the right shape."""
    outcomes = []
    for call in (lambda: atomo.inspect(payload), lambda: atomo.decode(payload, out=[numpy.empty_like(X)]),
                 lambda: atomo.Codec(spec).decode(payload, like=X),
                 lambda: atomo.Codec(spec).decode_add(payload, out=X.copy()),
                 lambda: atomo.Compressor({"a": X}, spec).decode(payload, like={"a": X})):
        try:
            call()
            outcomes.append("ok")
        except atomo.DecodeError as error:
            assert error.status in STATUSES
            outcomes.append("refused")
    return outcomes


@pytest.mark.parametrize("spec", CODECS)
def test_truncated_messages(spec):
    payload = payload_of(spec)
    for length in sorted({*range(0, min(len(payload), 160)), *range(0, len(payload), 97), len(payload) - 1}):
        assert set(answers(payload[:length], spec)) == {"refused"}, length


@pytest.mark.parametrize("spec", CODECS)
@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_changed_messages(spec, data):
    payload = bytearray(payload_of(spec))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    hypothesis.assume(payload != payload_of(spec))
    assert set(answers(bytes(payload), spec)) == {"refused"}


@hypothesis.settings(max_examples=300)
@hypothesis.given(noise=st.binary(max_size=400), head=st.integers(0, 120))
def test_noise(noise, head):
    payload = payload_of("qsgd:bits=4")[:head] + noise
    hypothesis.assume(not payload.startswith(payload_of("qsgd:bits=4")))
    assert set(answers(payload, "qsgd:bits=4")) == {"refused"}
    for call in (atomo.add, atomo.join):
        with pytest.raises(atomo.DecodeError):
            call([payload, payload])


@pytest.mark.long
@pytest.mark.parametrize("spec", CODECS)
@hypothesis.settings(max_examples=3000)
@hypothesis.given(data=st.data())
def test_changed_messages_at_length(spec, data):
    payload = bytearray(payload_of(spec))
    at = data.draw(st.integers(0, len(payload)))
    payload[at:data.draw(st.integers(at, len(payload)))] = data.draw(st.binary(max_size=64))
    hypothesis.assume(not payload.startswith(payload_of(spec)))
    assert set(answers(bytes(payload), spec)) == {"refused"}


