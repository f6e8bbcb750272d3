# SPDX-License-Identifier: Apache-2.0
"""Codecs of one's own in Python: registered, used by their names, and refused where they fail."""
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import atomo
import own_runs
from own_runs import Levels

X = np.random.default_rng(3).standard_normal((33, 7)).astype(np.float32)


@pytest.fixture
def levels():
    own_runs.register_levels()
    yield
    atomo.unregister("levels")


def registered(codec, **options):
    """As `mine`, in place of what was it before."""
    atomo.unregister("mine")
    atomo.register("mine", codec, **options)
    return atomo.Codec("mine")


class Plain:
    """f32 as it is; tests replace its methods."""

    def encode(self, array, key):
        return array.tobytes()

    def decode(self, body, shape):
        return np.frombuffer(body, np.float32).reshape(shape)


def test_it_says_which_tensors_its_claims_are_about():
    class Grid(Plain):
        step, smallest, highest, largest = 0.5, 1e-3, 100, 2

    traits = registered(Grid).traits
    assert (traits.step, traits.smallest, traits.highest, traits.largest) == (0.5, 1e-3, 100, 2)
    traits = registered(Plain).traits
    assert (traits.step, traits.smallest, traits.highest, traits.largest) == (0, 0, float("inf"), None)


def test_it_is_a_codec_by_its_name(levels):
    codec = atomo.Codec("levels:levels=50")
    assert str(codec) == "levels:levels=50" and str(atomo.Codec("levels")) == "levels:levels=8"
    assert codec.traits.unbiased and codec.traits.fixed_size and codec.traits.bounded and not codec.traits.cuda
    payload = codec.encode(X, seed=1, step=2)
    assert len(payload) == codec.max_encoded_bytes(X.shape) == codec.wire_bytes(X.shape)
    assert payload == codec.encode(X, seed=1, step=2) != codec.encode(X, seed=1, step=3)
    y = codec.decode(payload, like=X)
    assert np.abs(y - X).max() <= np.abs(X).max() / 50 * 1.001
    assert (codec.decode_add_all([payload, payload], out=np.zeros_like(X)) == y + y).all()
    assert atomo.inspect(payload).layers[0].codec == "levels:levels=50"
    assert (atomo.decode(payload)[0] == y).all()
    with pytest.raises(atomo.Error, match="from 1 to 127"):
        atomo.Codec("levels:levels=500")
    with pytest.raises(atomo.Error, match="takes levels"):
        atomo.Codec("levels:level=5")
    assert ("levels", "levels=1..127") in [(row.name, row.keys) for row in atomo.codecs()]


def test_it_is_unbiased(levels):
    codec = atomo.Codec("levels:levels=2")
    mean = np.mean([codec.decode(codec.encode(X, step=step), like=X) for step in range(2000)], axis=0)
    assert np.abs(mean - X).max() < 5 * np.abs(X).max() / 2 / 2 / 2000**0.5


@pytest.mark.parametrize("threads", [1, 3])
def test_models_mix_it_on_threads(levels, threads):
    gradients = {f"{i}.weight": np.random.default_rng(i).standard_normal((40, 30)).astype(np.float32) for i in range(6)}
    gradients["bias"] = np.ones(30, np.float32)
    model = atomo.Compressor(gradients, "bias=identity; 1.*=levels+blosc:codec=zstd; *=ef+levels:levels=20", threads=threads)
    total = {name: np.zeros_like(x) for name, x in gradients.items()}
    for step in range(10):
        model.decode_add(model.encode(gradients, step=step), out=total)
    for name, x in gradients.items():
        kept = np.frombuffer(model.memory(name), np.float32) if name not in ("bias", "1.weight") else None
        if kept is not None:
            np.testing.assert_allclose(total[name] + kept.reshape(x.shape), 10 * x, atol=1e-4)
    model.begin_step(step=10)
    payloads = {name: model.encode_layer(name, x) for name, x in gradients.items()}
    model.end_step()
    assert model.decode_layer("0.weight", payloads["0.weight"], like=gradients["0.weight"]).shape == (40, 30)


def test_names_and_keys_are_refused_with_a_reason():
    for name in ("", "a", "Mine", "1st", "my codec"):
        with pytest.raises(atomo.Error, match="is none: expected 2 to 32"):
            atomo.register(name, Plain)
    for name in ("qsgd", "blosc", "ef"):
        with pytest.raises(atomo.Error, match="is the library's"):
            atomo.register(name, Plain)
    registered(Plain)
    with pytest.raises(atomo.Error, match="is registered already"):
        atomo.register("mine", Plain)
    assert atomo.unregister("mine") and not atomo.unregister("mine")
    with pytest.raises(atomo.Error, match="has to be registered first"):
        atomo.Codec("mine")
    for keys, why in [({"no": range(3)}, "is no parameter"), ({"levels": range(0, 9, 2)}, "step 1"),
                      ({"levels": "abc"}, "expected a range")]:
        with pytest.raises(atomo.Error, match=why):
            atomo.register("mine", Levels, keys=keys)
    with pytest.raises(TypeError, match="a class is expected"):
        atomo.register("mine", 3)
    with pytest.raises(atomo.Error, match="TypeError: it has no method encode"):
        registered(object)


def test_every_sort_of_key_is_read():
    class Keyed(Plain):
        def __init__(self, rate: float, mode: str = "b", count: int = 3):
            self.given = (rate, mode, count)
            Keyed.last = self.given

    registered(Plain)
    atomo.unregister("mine")
    atomo.register("mine", Keyed, keys={"rate": (0.0, 1.0), "mode": ["a", "b"], "count": range(1, 10)})
    assert str(atomo.Codec("mine:rate=0.5")) == "mine:rate=0.5,mode=b,count=3" and Keyed.last == (0.5, "b", 3)
    assert str(atomo.Codec("mine:count=9,mode=a,rate=0.25")) == "mine:rate=0.25,mode=a,count=9"
    with pytest.raises(atomo.Error, match="mine needs rate="):
        atomo.Codec("mine")
    with pytest.raises(atomo.Error, match="expected a or b"):
        atomo.Codec("mine:rate=1,mode=c")


class Halved(Plain):
    """f32, or nothing: with a budget."""

    def __init__(self, bits: float = 1.0):
        self.budget_bits = bits

    def price(self, array):
        return [(0, np.square(array).sum()), (array.nbytes, 0)]

    def encode(self, array, key, setting):
        return array.tobytes() if setting == 1 else b""

    def decode(self, body, shape):
        return super().decode(body, shape) if body else np.zeros(shape, np.float32)


def test_budgets_are_shared_where_they_pay():
    registered(Plain)
    atomo.unregister("mine")
    atomo.register("mine", Halved, keys={"bits": (0.001, 40.0)})
    gradients = {"small": X, "large": 100 * np.repeat(X, 9, axis=0)}
    model = atomo.Compressor(gradients, "mine:bits=31")
    decoded = model.decode(model.encode(gradients, step=0), like=gradients)
    assert (decoded["large"] == gradients["large"]).all() and not decoded["small"].any()
    with pytest.raises(atomo.Error, match="a budget of 40 bits a parameter: expected 0.001 to 32"):
        atomo.Codec("mine:bits=40")

    class Wrong(Halved):
        def price(self, array):
            return [(-1, 0)]

    with pytest.raises(atomo.Error, match="failed in price: rate point 0 has -1 bytes: expected 0 to its max_bytes, 1948"):
        registered(Wrong).encode(X, step=0)

    class Priceless(Halved):
        price = None

    with pytest.raises(atomo.Error, match="it has one of price and budget_bits: expected both"):
        registered(Priceless)


def test_exceptions_keep_their_text_and_are_the_cause():
    class Failing(Plain):
        def encode(self, array, key):
            if array[0, 0] == 1:
                raise ZeroDivisionError("one is not sent")
            return array.tobytes()

        def decode(self, body, shape):
            raise KeyError("nothing here")

    codec = registered(Failing)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(atomo.Error, match="'mine' failed in encode: ZeroDivisionError: one is not sent") as caught:
        codec.encode(x, step=0)
    assert caught.value.status == "codec_failed" and isinstance(caught.value.__cause__, ZeroDivisionError)
    payload = codec.encode(0 * x, step=0)
    for call in (lambda: codec.decode(payload, like=x), lambda: atomo.decode(payload),
                 lambda: codec.decode_add_all([payload], out=x)):
        with pytest.raises(atomo.DecodeError, match="failed in decode: KeyError: 'nothing here'") as caught:
            call()
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("returned, why", [(lambda x: x.tobytes() * 100, "max_bytes says"), (lambda x: 3, "TypeError"),
                                           (lambda x: None, "TypeError"), (lambda x: "text", "TypeError")])
def test_what_encode_returns_is_checked(returned, why):
    class Wrong(Plain):
        def max_bytes(self, shape):
            return 4 * int(np.prod(shape))

        def encode(self, array, key):
            return returned(array)

    with pytest.raises(atomo.Error, match=why):
        registered(Wrong).encode(X, step=0)


def test_what_decode_returns_is_checked():
    class Short(Plain):
        def decode(self, body, shape):
            return np.zeros(5)

    codec = registered(Short)
    with pytest.raises(atomo.DecodeError, match="decoded to 5 entries: expected 231"):
        codec.decode(codec.encode(X, step=0), like=X)


def test_what_is_not_finite_never_reaches_it():
    class Counting(Plain):
        calls = 0

        def encode(self, array, key):
            Counting.calls += 1
            return array.tobytes()

    codec, x = registered(Counting), X.copy()
    x[3, 3] = np.nan
    assert np.isnan(codec.decode(codec.encode(x, step=0), like=x)).all() and Counting.calls == 0


def test_a_receiver_without_it_is_told_its_name(levels):
    payload = atomo.Codec("levels:levels=9").encode(X, step=0)
    atomo.unregister("levels")
    with pytest.raises(atomo.DecodeError, match="'levels:levels=9' is not registered here.*atomo.register") as caught:
        atomo.decode(payload)
    assert caught.value.status == "codec_unknown"
    assert atomo.inspect(payload).layers[0].codec == "levels:levels=9"


def test_a_decoder_may_want_the_key():
    class Masked(Plain):
        def encode(self, array, key):
            return (array.view(np.uint32) ^ atomo.draws(key, array.shape)).tobytes()

        def decode(self, body, shape, key):
            return (np.frombuffer(body, np.uint32).reshape(shape) ^ atomo.draws(key, shape)).view(np.float32)

    codec = registered(Masked)
    assert (codec.decode(codec.encode(X, seed=5, step=6, worker=7), like=X) == X).all()


def test_many_threads_use_it_at_once(levels):
    codec, failures = atomo.Codec("levels"), []
    payload = codec.encode(X, step=0)

    def work(number):
        try:
            for i in range(20):
                assert codec.encode(X, step=0) == payload
                codec.decode(payload, like=X)
                atomo.Codec(f"levels:levels={1 + (number * 20 + i) % 100}")
                atomo.register(f"thread-{number}", Plain)
                atomo.unregister(f"thread-{number}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_unregistered_codec_is_given_up():
    class Tracked(Plain):
        alive = 0

        def __init__(self):
            Tracked.alive += 1

        def __del__(self):
            Tracked.alive -= 1

    codec = registered(Tracked)
    codec.encode(X, step=0)
    assert Tracked.alive == 1
    atomo.unregister("mine")
    del codec
    gc.collect()
    assert Tracked.alive == 0


PROGRAM = """
import sys, numpy, atomo
atomo.load_codecs(sys.argv[1])
x = numpy.linspace(-1, 1, 256, dtype="float32")
codec = atomo.Codec("mycodec:levels=100")
assert numpy.abs(codec.decode(codec.encode(x, step=0), like=x) - x).max() < 0.011
assert atomo.measure(codec, x, draws=2)["codecs"][0]["canonical"] == "mycodec:levels=100"
try:
    atomo.load_codecs(sys.argv[1])
except atomo.Error as error:
    assert "is registered already" in str(error), error
else:
    raise AssertionError("loaded twice")
"""


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_no_failure_of_the_codec(ends):
    """A loop that catches `atomo.Error` must not swallow Ctrl-C."""
    class Ended(Plain):
        where = None

        def reach(self, place):
            if place == self.where:
                raise ends(place)

        def __init__(self):
            self.reach("make")

        def max_bytes(self, shape):
            self.reach("max_bytes")
            return 4 * int(np.prod(shape))

        def encode(self, array, key):
            self.reach("encode")
            return super().encode(array, key)

        def decode(self, body, shape):
            self.reach("decode")
            return super().decode(body, shape)

    codec = registered(Ended)
    models = [atomo.Compressor({name: X for name in "abcd"}, "mine", threads=threads) for threads in (1, 3)]
    grads = {name: X for name in "abcd"}
    payload, whole = codec.encode(X, step=0), models[0].encode(grads, step=0)
    encodings = [lambda: codec.encode(X, step=0), lambda: atomo.verify("mine", claims={"unbiased": True}, draws=64)]
    decodings = [lambda: codec.decode(payload, like=X), lambda: codec.decode_add_all([payload], out=X.copy()),
                 lambda: atomo.decode(payload)]
    for model in models:
        encodings.append(lambda model=model: model.encode(grads, step=0))
        decodings.append(lambda model=model: model.decode_add_all([whole], out={name: X.copy() for name in grads}))
    for where, calls in (("make", [lambda: atomo.Codec("mine")]), ("encode", encodings), ("decode", decodings),
                         ("max_bytes", [lambda: codec.encode(X, step=0), lambda: atomo.Compressor({"a": X}, "mine")])):
        for call in calls:
            Ended.where = where
            with pytest.raises(ends, match=where) as caught:
                call()
            assert caught.value.__cause__ is None and caught.traceback[-1].name == "reach"
            Ended.where = None
            call()  # it was raised once, and is not again


def test_an_interrupt_where_the_library_goes_on_is_not_lost():
    """A bound of a message is taken from elsewhere where `max_bytes` fails: the call ends all the same."""
    class Interrupted(Plain):
        calls, at = 0, None

        def max_bytes(self, shape):
            Interrupted.calls += 1
            if Interrupted.calls == self.at:
                raise KeyboardInterrupt
            return 4 * int(np.prod(shape))

    codec = registered(Interrupted)
    codec.encode(X, step=0)
    for at in range(1, Interrupted.calls + 1):
        Interrupted.calls, Interrupted.at = 0, at
        with pytest.raises(KeyboardInterrupt):
            codec.encode(X, step=0)


@pytest.mark.parametrize("field, value", [("seed", 2**64), ("step", 2**32 + 2), ("tensor", 2**16), ("worker", 70000),
                                          ("channel", -1)])
def test_keys_of_draws_do_not_wrap(field, value):
    """Two senders would share their draws."""
    key = {"seed": 1, "step": 2, "tensor": 0, "worker": 0, "channel": 0, field: value}
    with pytest.raises(atomo.Error, match=f"{field} is {value}: it must be from 0 to "):
        atomo.draws(atomo.Key(**key), 3)


def test_draws_that_cannot_be():
    key = atomo.Key(seed=1, step=2, tensor=0, worker=0, channel=0)
    for call, words in ((lambda: atomo.draws(key, -1), "count is -1"), (lambda: atomo.draws(key, (2, -1)), "count is -1"),
                        (lambda: atomo.draws(key, 1, first=-1), "first is -1"),
                        (lambda: atomo.draws(key, 2, first=2**42 - 1), "a key has 2^42 words")):
        with pytest.raises(atomo.Error) as caught:
            call()
        assert words in str(caught.value)
    for count in ("x", None, 2.5):
        with pytest.raises(TypeError, match="count: "):
            atomo.draws(key, count)
    words = atomo.draws(key, (2, 3), first=5)
    assert words.shape == (2, 3) and (words.ravel() == atomo.draws(key, np.int64(11))[5:]).all()


def test_a_shared_object_is_loaded(tmp_path):
    root = Path(__file__).resolve().parents[2]
    plugin = tmp_path / "mycodec.so"
    subprocess.run(["g++", "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{root}/include", root / "examples/mycodec.cpp",
                    "-o", plugin], check=True, timeout=600)
    subprocess.run([sys.executable, "-c", PROGRAM, plugin], check=True, timeout=600)
    with pytest.raises(atomo.Error, match="cannot be loaded"):
        atomo.load_codecs(tmp_path / "none.so")


def test_ddp_sends_it(world):
    from worlds import check_replicas

    check_replicas(world(2).run(own_runs.train, "*.bias=identity; *=ef+levels:levels=4", steps=4))


def test_jax_sends_it(levels):
    jax = pytest.importorskip("jax")
    import atomo.jax

    codec = atomo.Codec("levels:levels=30")
    payload, length = jax.jit(lambda x: atomo.jax.encode(x, codec, seed=1, step=2))(X)
    assert np.asarray(payload)[:int(length)].tobytes() == codec.encode(X, seed=1, step=2)
    decoded = jax.jit(lambda p: atomo.jax.decode(p, codec, X.shape))(payload)
    assert (np.asarray(decoded) == codec.decode(codec.encode(X, seed=1, step=2), like=X)).all()
    atomo.unregister("levels")
    with pytest.raises(Exception, match="register"):
        np.asarray(jax.jit(lambda p: atomo.jax.decode(p, codec, X.shape))(payload))
