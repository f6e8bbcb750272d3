# SPDX-License-Identifier: Apache-2.0
"""`atomo.verify` on codecs and on functions of Python's."""
import json

import atomo
import numpy
import pytest


@pytest.mark.parametrize("options, words, error", [
    ({"draws": -1}, "draws is -1: it must be from 0 to", atomo.Error),
    ({"outcomes": "x"}, "outcomes: an integer is expected, found str", TypeError),
    ({"seed": None}, "seed: an integer is expected, found NoneType", TypeError),
    ({"family_error": "x"}, "family_error: a number is expected, found str", TypeError),
    ({"claims": {"unbiased": "x"}}, "claims: unbiased: True or False is expected, found 'x'", TypeError),
    ({"claims": {"omega": "x"}}, "claims: omega: a number is expected, found str", TypeError),
    ({"claims": {"max_bytes": -1}}, "claims: max_bytes is -1", atomo.Error),
    ({"claims": {"non_finite": 3}}, "claims: non_finite: a str is expected, found 3", TypeError),
    ({"claims": {3: True}}, "claims: a mapping of names is expected, found 3", TypeError)])
def test_options_are_refused_by_name(options, words, error):
    with pytest.raises(error) as caught:
        atomo.verify("sign", **options)
    assert words in str(caught.value)


def test_claims_of_numpy():
    claims = {"unbiased": numpy.bool_(False), "max_bytes": numpy.int64(10**9), "bias_bound": numpy.float32(0)}
    assert atomo.verify("sign", claims=claims, draws=64)["holds"]


def draws_of(key):
    return numpy.random.Generator(numpy.random.Philox(key=[key.seed, key.step << 32 | key.worker << 16 | key.tensor]))


def kept(scale):
    """Every other entry, times `scale`: unbiased with 2."""
    def encode(x, key):
        return (scale * x * (draws_of(key).random(x.shape) < 0.5)).astype("float32").tobytes()
    return encode


def decode(message, shape):
    return numpy.frombuffer(message, "float32").reshape(shape)


CLAIMS = {"unbiased": True, "omega": 1, "fixed_size": True, "independent_workers": True, "highest": 1e30}


def test_a_codec():
    report = atomo.verify("terngrad", draws=128)
    assert report["holds"] and report["subject"] == "terngrad:clip=none" and "every claim holds" in report["text"]
    assert report == atomo.verify(atomo.Codec("terngrad"), draws=128)
    assert 0 < report["missed"]
    json.dumps(report)


def test_a_claim_that_is_not_kept():
    report = atomo.verify("terngrad:clip=2.5", claims={"unbiased": True}, draws=512)
    assert not report["holds"]
    assert {check["claim"] for check in report["checks"] if not check["holds"]} == {"unbiased"}
    assert "a claim does not hold" in report["text"]


@pytest.mark.parametrize("scale", [2, 1.5])
def test_functions(scale):
    report = atomo.verify(kept(scale), decode, claims=CLAIMS, arrays={"mine": numpy.ones((8, 9), "float32")},
                          own_inputs=False, draws=256)
    assert report["holds"] == (scale == 2), report["text"]
    assert [(row["name"], row["shape"], row["bytes"]) for row in report["inputs"]] == [("mine", [8, 9], 288)]


def test_a_budget():
    x = numpy.ones((8, 9), "float32")
    for claims, holds in (({"bits": 32}, True), ({"bits": 16}, False), ({"average_bytes": 288}, True)):
        report = atomo.verify(kept(2), decode, claims=claims, arrays=x, own_inputs=False, draws=256)
        assert report["holds"] == holds, report["text"]


def test_every_outcome():
    """Two outcomes, equally likely: nothing is estimated."""
    def either(bias):
        return lambda x, key: (x * (0 if key.step % 2 else 2 + bias)).astype("float32").tobytes()
    x = numpy.ones(3, "float32")
    for bias, holds in ((0, True), (1e-4, False)):
        report = atomo.verify(either(bias), decode, claims={"unbiased": True}, arrays=x, own_inputs=False, outcomes=2)
        assert report["holds"] == holds
        assert {check["bound"] for check in report["checks"]} == {"compared", "enumerated"}


def test_what_a_function_raises():
    def refuse(x, key):
        raise ValueError("no such shape")
    report = atomo.verify(refuse, decode, claims={}, arrays=numpy.ones(3, "float32"), own_inputs=False)
    assert not report["holds"] and "no such shape" in report["text"]

    def interrupt(x, key):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        atomo.verify(interrupt, decode, claims={}, arrays=numpy.ones(3, "float32"), own_inputs=False)


def test_plot():
    pytest.importorskip("matplotlib")
    figure = atomo.plot(atomo.verify("qsgd:bits=2", draws=64))
    assert len(figure.axes) == 6


@pytest.mark.parametrize("arguments, words", [
    ((kept(2),), "two functions and their claims"),
    ((kept(2), decode), "two functions and their claims"),
    (("sign", decode), "decodes itself"),
    (("sgin",), "unknown codec 'sgin'"),
    (("ef+topk:keep=0.1",), "keeps what it has not sent"),
])
def test_what_is_refused(arguments, words):
    with pytest.raises(atomo.Error, match=words):
        atomo.verify(*arguments)


@pytest.mark.parametrize("keywords, words", [
    ({"claims": {"fair": True}}, "'fair' is no claim"),
    ({"claims": {"non_finite": "seen"}}, "any, told and everywhere"),
    ({"draws": 3}, "at least 64"),
    ({"family_error": 2}, "family error"),
    ({"own_inputs": False}, "no tensor"),
])
def test_what_claims_and_options_are_refused(keywords, words):
    with pytest.raises(atomo.Error, match=words):
        atomo.verify("sign", **keywords)
