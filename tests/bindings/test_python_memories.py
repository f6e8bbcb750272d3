# SPDX-License-Identifier: Apache-2.0
"""Memories in front of codecs: in a Compressor, refused where there is no state."""

import pickle
import warnings

import atomo
import numpy as np
import pytest

LAYERS = {"weight": (30, 40), "bias": 7}


def gradients(step):
    random = np.random.default_rng(step)
    return {"weight": random.standard_normal((30, 40), np.float32), "bias": random.standard_normal(7, np.float32)}


def kept(model):
    return {name: np.frombuffer(model.memory(name), np.float32).reshape(x.shape) for name, x in gradients(0).items()}


def test_what_is_left_out_is_kept():
    model = atomo.Compressor(LAYERS, "ef+topk:keep=0.1")
    before = {name: np.zeros_like(x) for name, x in gradients(0).items()}
    for step in range(4):
        x = {name: g + before[name] for name, g in gradients(step).items()}
        payload = model.encode(gradients(step), step=step)
        assert payload == atomo.Compressor(LAYERS, "topk:keep=0.1").encode(x, step=step)
        decoded = model.decode(payload, like=x)
        before = kept(model)
        for name in LAYERS:
            assert np.array_equal(before[name], x[name] - decoded[name])
    assert model.memory_bytes == 4 * model.elements
    model.reset_memory()
    assert not any(x.any() for x in kept(model).values())


@pytest.mark.parametrize("memory, bytes_kept", [("ef:memory=bf16", 2 * 1207), ("momentum:beta=1,memory=int8", 1207 + 4 * 6),
                                                ("dgc:momentum=0,memory=int8", 2 * (1207 + 4 * 6))])
def test_what_is_kept_in_fewer_bits(memory, bytes_kept):
    """Up to the rounding of each step, nothing is lost; and no more memory is taken than that."""
    model = atomo.Compressor(LAYERS, f"{memory}+topk:keep=0.1")
    assert model.memory_bytes == bytes_kept
    before = {name: np.zeros_like(x) for name, x in gradients(0).items()}
    for step in range(4):
        x = {name: g + before[name] for name, g in gradients(step).items()}
        decoded = model.decode(model.encode(gradients(step), step=step), like=x)
        before = kept(model)
        for name in LAYERS:
            left = x[name] - decoded[name]
            np.testing.assert_allclose(before[name], left, atol=np.abs(left).max() / 100)
            assert name == "bias" or not np.array_equal(before[name], left)


@pytest.mark.parametrize("policy", ["bias=identity; *=ef+atomo:bits=1", "bias=identity; *=ef:memory=int8+atomo:bits=1"])
def test_a_state_and_a_pickle_go_on(policy):
    model, other = (atomo.Compressor(LAYERS, policy) for _ in range(2))
    for step in range(3):
        model.encode(gradients(step), step=step)
    other.load_state(model.state())
    copy = pickle.loads(pickle.dumps(model))
    assert model.encode(gradients(3), step=3) == other.encode(gradients(3), step=3) == copy.encode(gradients(3), step=3)
    learnt, memories = model.state("learnt"), model.state("memories")
    assert len(learnt) < 200 < len(memories)
    other.load_state(memories)
    assert other.memory("weight") == model.memory("weight")
    with pytest.raises(atomo.Error, match="all, learnt and memories"):
        model.state("prices")
    with pytest.raises(atomo.Error, match="and its memories, found"):
        other.load_state(model.state()[:-8])


def test_the_last_message_can_be_taken_back():
    model = atomo.Compressor(LAYERS, "ef+topk:keep=0.1", takes_back=True)
    model.encode(gradients(0), step=0)
    before = model.state("memories")
    model.encode(gradients(1), step=1)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.state() == model.state() != before
    for _ in range(2):
        model.take_memory_back()
        assert model.state("memories") == before
    copy.encode(gradients(2), step=2)
    copy.take_memory_back()
    assert model.memory_bytes == 2 * 4 * model.elements
    with pytest.raises(atomo.Error, match="without takes_back"):
        atomo.Compressor(LAYERS, "ef+topk:keep=0.1").take_memory_back()
    model.begin_step(step=3)
    with pytest.raises(atomo.Error, match="between steps"):
        model.take_memory_back()


def test_a_layer_is_sent_once_a_step():
    model = atomo.Compressor(LAYERS, "dgc+topk:keep=0.1")
    model.begin_step(step=0)
    model.encode_layer("bias", gradients(0)["bias"])
    with pytest.raises(atomo.Error):
        model.encode_layer("bias", gradients(0)["bias"])
    model.end_step()


def test_a_codec_decodes_alone():
    codec = atomo.Codec("ef+topk:keep=0.1")
    assert codec.traits.memory and not codec.traits.unbiased and not atomo.Codec("sign").traits.memory
    x = np.arange(20, dtype=np.float32)
    with pytest.raises(atomo.Error, match="encode with a Compressor, or with 'topk:keep=0.1'"):
        codec.encode(x, step=0)
    assert codec.decode(codec.without_memory().encode(x, step=0), like=x).max() == 19


def test_no_memory_inside_jax():
    jax = pytest.importorskip("jax")
    import atomo.jax

    x = jax.numpy.ones(20)
    for call in (lambda: atomo.jax.encode(x, "ef+topk:keep=0.1", seed=1, step=0),
                 lambda: atomo.jax.encode_tree({"a": x}, "ef+topk:keep=0.1", seed=1, step=0)):
        with pytest.raises(Exception, match="calls inside JAX have no state|keeps a memory"):
            jax.block_until_ready(call())


def whole(model, step):
    return model.encode(gradients(step), step=step)


def one_by_one(model, step):
    model.begin_message(step=step)
    for name, x in gradients(step).items():
        model.add_layer(name, x)
    return model.end_message()


def streamed(model, step):
    model.begin_step(step=step)
    made = [model.encode_layer(name, x) for name, x in gradients(step).items()]
    model.end_step()
    return made


@pytest.mark.parametrize("send", [whole, one_by_one, streamed])
def test_a_warning_that_is_an_error_loses_no_message(send):
    """A call either returns its message and moves the memories, or raises and moves none."""
    policy = "ef+atomo:bits=0.001"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = atomo.Compressor(LAYERS, policy)
        wanted = [send(quiet, step) for step in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, made, told = atomo.Compressor(LAYERS, policy), [], 0
        while len(made) < len(wanted):
            before = model.state()
            try:
                made.append(send(model, len(made)))
            except UserWarning as warning:
                assert "does not pay" in str(warning) and model.state() == before
                told += 1
    assert made == wanted and told == 1 and model.state() == quiet.state()


def test_a_warm_up_raises_shares():
    shares = [atomo.warm_up("ef+topk:keep=1e-3+blosc:codec=zstd", epoch) for epoch in range(6)]
    assert [share.split("+")[1] for share in shares] == [
        f"topk:keep={share}" for share in ("0.25", "0.0625", "0.015625", "0.00390625", "0.001", "0.001")]
    rules = "*.bias = identity; conv*=dgc:momentum=0.5+topk:keep=0.5\n*=dgc-threshold:keep=0.01,form=unbiased # all"
    assert atomo.warm_up(rules, 0).split() == rules.replace("0.01", "0.25").replace("# all", "").split()
    assert atomo.warm_up("*=topk:keep=0.1  # not keep=7", 3) == "*=topk:keep=0.1  "
    assert atomo.warm_up(atomo.Codec("ef+topk:keep=0.01"), 0) == str(atomo.Codec("ef+topk:keep=0.25"))
    assert str(atomo.Codec(atomo.warm_up("topk:keep=1.0", 3))) == "topk:keep=1.0"
    for policy, epoch, said in (("topk:keep=5", 0, "keep=5 is a count: a share"), ("topk:keep=1.0.1", 0, "keep=1.0.1 is no number"), ("ef+sign", 0, "'ef\\+sign' has no keep="),
                                ("topk:keep=0.1", -1, "epoch is -1"), ("topk:keep=0.1", 1.0, "epoch is 1.0")):
        with pytest.raises(atomo.Error, match=said):
            atomo.warm_up(policy, epoch)
