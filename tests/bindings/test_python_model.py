# SPDX-License-Identifier: Apache-2.0
"""Models: whole messages, layers one by one, what is learnt, and what survives pickling."""
import pickle
import warnings

import numpy
import pytest
from conftest import DTYPES, FRAMEWORKS, gradient

import atomo

SHAPES = {"conv": (16, 3, 5, 5), "fc.weight": (64, 48), "fc.bias": (64,), "scale": (), "none": (0, 4)}
POLICIES = ["atomo:bits=1", "identity:dtype=f32", "qsgd:bits=4", "*.bias=identity:dtype=f32; *=atomo:bits=1",
            "fc.*=qsgd:bits=4\n*=sign  # the rest", "atomo:atoms=rows,bits=1", "atomo:atoms=coordinate,bits=1"]


def gradients(framework, dtype="f32", seed=0):
    return {name: framework.array(gradient(*shape, seed=seed + i) if shape else numpy.float32(0.25), dtype)
            for i, (name, shape) in enumerate(SHAPES.items())}


def assert_same(framework, a, b):
    assert list(a) == list(b)
    for name in a:
        numpy.testing.assert_array_equal(framework.numpy(a[name]), framework.numpy(b[name]))


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_messages(policy, framework):
    model = atomo.Compressor(SHAPES, policy)
    grads = gradients(framework)
    payload = model.encode(grads, seed=1, step=2, worker=3, channel=4)
    assert type(payload) is bytes and len(payload) <= model.max_encoded_bytes
    decoded = model.decode(payload, like=grads)
    assert list(decoded) == list(SHAPES)
    for name, x in decoded.items():
        assert isinstance(x, framework.kind()) and tuple(x.shape) == SHAPES[name]
    other = atomo.Compressor(SHAPES, policy).encode(gradients(FRAMEWORKS[0]), seed=1, step=2, worker=3, channel=4)
    assert other == payload
    message = atomo.inspect(payload)
    assert message.key == atomo.Key(seed=1, step=2, tensor=0, worker=3, channel=4)
    assert [layer.shape for layer in message.layers] == list(SHAPES.values())
    assert message.elements == model.elements


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, framework):
    grads = gradients(framework, dtype)
    model = atomo.Compressor(grads, "identity:dtype=f32")
    assert [model.dtype(name) for name in model.layers] == [dtype] * len(SHAPES)
    decoded = model.decode(model.encode(grads, step=0), like=grads)
    assert_same(framework, decoded, grads)
    assert all(decoded[name].dtype == grads[name].dtype for name in SHAPES)


def test_attributes():
    model = atomo.Compressor(SHAPES, POLICIES[3])
    assert model.layers == tuple(SHAPES) and model.shape("conv") == (16, 3, 5, 5)
    assert model.codec("fc.bias") == atomo.Codec("identity:dtype=f32") and str(model.codec("conv")).startswith("atomo")
    assert model.elements == 16 * 75 + 64 * 48 + 64 + 1
    assert model.policy == POLICIES[3] and model.device == "cpu"
    assert model.budget_bytes > 0 and atomo.Compressor({"a": 3}, "sign").budget_bytes == 0
    assert "5 layers" in repr(model)


def test_a_spec_of_one_codec_is_not_taken_for_rules():
    for policy, spec in (("sign", "sign"), ("atomo:atoms=rows,bits=0.5", "atomo:atoms=rows,bits=0.5"),
                         ("*=terngrad:clip=2.5", "terngrad:clip=2.5"), ("a:0 = sign", "sign"),
                         ("b:0=topk:keep=0.1; *=sign", "sign"), *[("sign+blosc:codec=zstd",) * 2]):
        assert atomo.Compressor({"a:0": 3}, policy).codec("a:0") == atomo.Codec(spec)
    assert str(atomo.Compressor({"a": 3}, atomo.Codec("sign")).codec("a")) == "sign"


def test_out_is_filled_in_place(writable_framework):
    model, grads = atomo.Compressor(SHAPES, "identity:dtype=f32"), gradients(writable_framework)
    out = gradients(writable_framework, seed=50)
    decoded = model.decode(model.encode(grads, step=0), out=out)
    assert all(decoded[name] is out[name] for name in SHAPES)
    assert_same(writable_framework, out, grads)


def test_the_order_of_a_mapping_does_not_matter():
    model, grads = atomo.Compressor(SHAPES, "qsgd:bits=2"), gradients(FRAMEWORKS[0])
    assert model.encode(dict(reversed(grads.items())), step=0) == model.encode(grads, step=0)


def test_threads_do_not_change_bytes():
    grads = gradients(FRAMEWORKS[0])
    one, four = (atomo.Compressor(SHAPES, "atomo:bits=1", threads=threads) for threads in (1, 4))
    payload = one.encode(grads, step=0)
    assert four.encode(grads, step=0) == payload
    assert_same(FRAMEWORKS[0], four.decode(payload, like=grads), one.decode(payload, like=grads))


def test_names_on_wire():
    model = atomo.Compressor(SHAPES, "sign", names_on_wire=True)
    assert [layer.name for layer in atomo.inspect(model.encode(gradients(FRAMEWORKS[0]), step=0)).layers] == list(SHAPES)


def test_decode_add_of_many_is_that_of_each(writable_framework):
    model = atomo.Compressor(SHAPES, "atomo:bits=2")
    grads = gradients(writable_framework)
    payloads = [model.encode(grads, worker=worker, step=0) for worker in range(3)]
    zeros = {name: writable_framework.array(numpy.zeros(shape)) for name, shape in SHAPES.items()}
    together = model.decode_add_all(payloads, out=zeros, alpha=0.5)
    assert all(together[name] is zeros[name] for name in SHAPES)
    one_by_one = {name: writable_framework.array(numpy.zeros(shape)) for name, shape in SHAPES.items()}
    for payload in payloads:
        model.decode_add(payload, out=one_by_one, alpha=0.5)
    assert_same(writable_framework, together, one_by_one)


def test_halves_are_added_up_in_f32():
    framework = FRAMEWORKS[0]
    model = atomo.Compressor(SHAPES, "identity:dtype=f32")
    payloads = [model.encode(gradients(framework, seed=seed), step=0) for seed in range(2)]
    sums = {name: numpy.zeros(shape, "float16") for name, shape in SHAPES.items()}
    exact = {name: numpy.zeros(shape, "float32") for name, shape in SHAPES.items()}
    model.decode_add_all(payloads, out=sums)
    model.decode_add_all(payloads, out=exact)
    for name in SHAPES:
        numpy.testing.assert_allclose(sums[name], exact[name], rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("policy", ["atomo:bits=1", "atomo:atoms=rows,bits=1", "atomo:atoms=coordinate,bits=1"])
def test_layers_one_by_one_are_the_whole_message(policy, framework):
    grads = gradients(framework)
    model = atomo.Compressor(SHAPES, policy)
    whole = model.encode(grads, seed=1, step=2, worker=3)
    prices = model.prices
    assert (prices.atoms > 0) != (prices.grid > 0)
    assert model.predicted_prices == prices == atomo.inspect(whole).prices
    streamed = atomo.Compressor(SHAPES, policy)
    streamed.begin_step(seed=1, step=2, worker=3, prices=prices)
    parts = {name: streamed.encode_layer(name, grads[name]) for name in reversed(streamed.layers)}
    assert streamed.prices == prices
    streamed.end_step()
    assert atomo.join([parts[name] for name in streamed.layers]) == whole
    for name in SHAPES:
        x = streamed.decode_layer(name, parts[name], like=grads[name])
        numpy.testing.assert_array_equal(framework.numpy(x), framework.numpy(model.decode(whole, like=grads)[name]))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_message_of_layers_one_by_one_is_the_whole_message(policy, framework):
    grads = gradients(framework)
    whole, parts = atomo.Compressor(SHAPES, policy), atomo.Compressor(SHAPES, policy, threads=2)
    for step in range(3):
        parts.begin_message(seed=1, step=step, worker=3)
        for name in reversed(SHAPES):
            parts.add_layer(name, grads[name])
        assert parts.end_message() == whole.encode(grads, seed=1, step=step, worker=3)


def test_a_message_keeps_its_gradients_and_takes_the_last_of_each():
    model, grads = atomo.Compressor(SHAPES, "atomo:bits=1"), gradients(FRAMEWORKS[0])
    expected = model.encode(grads, step=0)
    model = atomo.Compressor(SHAPES, "atomo:bits=1")
    model.begin_message(step=0)
    for name, x in grads.items():
        model.add_layer(name, 3 * x + 1)
    for name in grads:
        model.add_layer(name, grads[name].copy())
    assert model.end_message() == expected


def test_messages_begin_and_end_in_turn():
    model, grads = atomo.Compressor(SHAPES, "atomo:bits=1"), gradients(FRAMEWORKS[0])
    for call in (lambda: model.add_layer("fc.bias", grads["fc.bias"]), model.end_message):
        with pytest.raises(atomo.Error, match="begin_message has to begin a message first"):
            call()
    model.begin_message(step=0)
    with pytest.raises(atomo.Error, match="has to end first"):
        model.begin_message(step=1)
    with pytest.raises(atomo.Error, match="has to end first"):
        model.begin_step(step=1)
    with pytest.raises(atomo.Error, match=r"the shape is \[3\], layer 'fc.bias'"):
        model.add_layer("fc.bias", numpy.ones(3, "float32"))
    with pytest.raises(atomo.Error, match="not every layer was added"):
        model.end_message()
    assert len(model.encode(grads, step=2)) > 0


def test_layers_are_added(writable_framework):
    grads = gradients(writable_framework)
    model = atomo.Compressor(SHAPES, "identity:dtype=f32")
    model.begin_step(step=0)
    part = model.encode_layer("fc.weight", grads["fc.weight"])
    out = writable_framework.array(numpy.ones((64, 48)))
    assert model.decode_layer_add("fc.weight", part, out=out, alpha=2.0) is out
    numpy.testing.assert_array_equal(writable_framework.numpy(out),
                                     1 + 2 * writable_framework.numpy(grads["fc.weight"]))
    twice = writable_framework.array(numpy.ones((64, 48)))
    assert model.decode_layer_add_all("fc.weight", [part, part], out=twice) is twice
    x = writable_framework.numpy(grads["fc.weight"])
    numpy.testing.assert_array_equal(writable_framework.numpy(twice), (1 + x) + x)
    assert model.decode_layer("fc.weight", part, out=out) is out
    numpy.testing.assert_array_equal(writable_framework.numpy(out), writable_framework.numpy(grads["fc.weight"]))


def stream(model, step):
    """One step layer by layer; the whole message's bytes, head apart."""
    grads = gradients(FRAMEWORKS[0], seed=step)
    model.begin_step(seed=1, step=step)
    parts = [model.encode_layer(name, grads[name]) for name in model.layers]
    model.end_step()
    return parts


def test_prices_are_learnt():
    model = atomo.Compressor({"a": (256, 256)}, "atomo:atoms=rows,bits=1")
    sizes = []
    for step in range(12):
        model.begin_step(step=step)
        sizes.append(len(model.encode_layer("a", gradient(256, 256, seed=step))))
        model.end_step()
    assert model.predicted_prices.atoms > 0
    assert numpy.mean(sizes[4:]) == pytest.approx(model.budget_bytes, rel=0.05)


def test_shares_of_the_budget():
    model, grads = atomo.Compressor({"a": (256, 256)}, "atomo:atoms=rows,bits=1"), {"a": gradient(256, 256)}
    whole, size = model.budget_bytes, len(model.encode(grads, step=0))
    model.budget_share = 0.25
    assert model.budget_share == 0.25 and model.budget_bytes == 0.25 * whole
    assert len(model.encode(grads, step=1)) == pytest.approx(0.25 * size, rel=0.1)
    with pytest.raises(atomo.Error, match="share of the budget is -1"):
        model.budget_share = -1
    shares = atomo.budget_shares([0.4, 0.2, 0.1], power=1, momentum=0)
    assert numpy.mean(shares) == pytest.approx(1) and shares[0] == pytest.approx(4 * shares[2])
    with pytest.raises(atomo.Error, match="a rate is nan"):
        atomo.budget_shares([1, float("nan")])


def test_pickles_go_on_where_they_were():
    model = atomo.Compressor(SHAPES, "atomo:bits=1", threads=2, names_on_wire=True)
    for step in range(3):
        stream(model, step)
    again = pickle.loads(pickle.dumps(model))
    assert again.state() == model.state() and again.layers == model.layers and again.policy == model.policy
    assert stream(again, 3) == stream(model, 3)
    fresh = atomo.Compressor(SHAPES, "atomo:bits=1")
    assert stream(fresh, 4) != stream(model, 4)
    fresh.load_state(model.state())
    assert fresh.state() == model.state()


def test_pickles_keep_dtypes():
    grads = gradients(FRAMEWORKS[0], "bf16")
    model = atomo.Compressor(grads, "identity")
    assert pickle.loads(pickle.dumps(model)).encode(grads, step=0) == model.encode(grads, step=0)


def test_an_agreed_step_makes_messages_add():
    shapes = {"a": (32, 32), "b": 100}
    workers = [atomo.Compressor(shapes, "atomo:atoms=coordinate,bits=2") for _ in range(3)]
    grads = [{"a": gradient(32, 32, seed=w), "b": gradient(100, seed=10 + w)} for w in range(3)]
    for worker, model in enumerate(workers):
        model.encode(grads[worker], worker=worker, step=0)
    agreed = max(model.predicted_prices.grid for model in workers)
    parts = []
    for worker, model in enumerate(workers):
        model.begin_step(step=1, worker=worker, prices=model.predicted_prices._replace(grid=agreed))
        parts.append({name: model.encode_layer(name, grads[worker][name]) for name in shapes})
        model.end_step()
    for name in shapes:
        like = grads[0][name]
        total = workers[0].decode_layer(name, atomo.add([part[name] for part in parts]), like=like)
        apart = sum(workers[0].decode_layer(name, part[name], like=like).astype("float64") for part in parts)
        numpy.testing.assert_allclose(total, apart, rtol=2**-23)


def test_prices_that_are_given_are_those_of_the_step():
    model = atomo.Compressor(SHAPES, "conv=atomo:atoms=coordinate,bits=1; *=atomo:atoms=rows,bits=1")
    stream(model, 0)
    predicted = model.predicted_prices
    assert predicted.atoms > 0 and predicted.grid > 0
    model.begin_step(step=1, prices=predicted._replace(grid=2 * predicted.grid))
    assert model.prices == (predicted.atoms, 2 * predicted.grid)
    model.end_step()
    model.begin_step(step=2, prices=(0.5, 0.25))
    assert model.prices == atomo.Prices(atoms=0.5, grid=0.25)


@pytest.mark.parametrize("policy", ["atomo:bits=1", "qsgd:bits=4", "*.bias=identity; *=atomo:bits=2,atoms=rows"])
def test_a_part_is_its_layers_joined(policy):
    grads, key = gradients(FRAMEWORKS[0]), {"seed": 4, "worker": 1}
    model, by_layers = (atomo.Compressor(SHAPES, policy) for _ in range(2))
    parts = [model.part(["conv", "fc.weight"]), model.part(["fc.bias", "scale", "none"])]
    for step in range(3):
        model.begin_step(**key, step=step)
        messages = [part.encode({name: grads[name] for name in part.layers}, **key, step=step) for part in reversed(parts)][::-1]
        model.end_step()
        if step == 0:  # single layers have no price in common there
            by_layers.load_state(model.state())
            continue
        by_layers.begin_step(**key, step=step)
        for part, message in zip(parts, messages):
            assert message == atomo.join([by_layers.encode_layer(name, grads[name]) for name in part.layers])
        by_layers.end_step()
        assert model.state() == by_layers.state()
    decoded = parts[0].decode(messages[0], like={name: grads[name] for name in parts[0].layers})
    assert list(decoded) == ["conv", "fc.weight"]


def test_parts_are_of_neighbours_and_within_a_step():
    model = atomo.Compressor(SHAPES, "atomo:bits=1")
    for names in ([], ["conv", "fc.bias"], ["fc.weight", "conv"], ["conv", "conv"]):
        with pytest.raises(atomo.Error, match="behind one another"):
            model.part(names)
    with pytest.raises(atomo.Error, match="no layer is called 'other'"):
        model.part(["other"])
    part = model.part(["conv"])
    with pytest.raises(atomo.Error, match="a part has no parts"):
        part.part(["conv"])
    with pytest.raises(atomo.Error, match="a part keeps nothing"):
        pickle.dumps(part)
    grads = {"conv": gradients(FRAMEWORKS[0])["conv"]}
    with pytest.raises(atomo.Error):
        part.encode(grads, seed=1, step=0)
    model.begin_step(seed=1, step=0)
    with pytest.raises(atomo.Error):
        part.encode(grads, seed=1, step=1)
    del model  # which the part keeps
    assert part.encode(grads, seed=1, step=0)


def test_what_a_message_is_expected_to_take():
    grads = gradients(FRAMEWORKS[0])
    fixed = atomo.Compressor(SHAPES, "qsgd:bits=4")
    assert fixed.expected_bytes == fixed.max_encoded_bytes == len(fixed.encode(grads, step=0))
    budget = atomo.Compressor(SHAPES, "*.bias=sign; *=atomo:bits=2")
    assert len(budget.encode(grads, step=0)) == pytest.approx(budget.expected_bytes, rel=0.05)
    assert atomo.Compressor(SHAPES, "qsgd+blosc").expected_bytes is None
    assert atomo.Codec("sign").expected_bytes(1000) == len(atomo.Codec("sign").encode(numpy.ones(1000, "float32"), step=0))

def test_messages_fit_what_every_worker_sends_and_anything_may_follow_them():
    shapes = {"weight": (200, 100), "bias": 100}
    grads = {"weight": gradient(200, 100), "bias": gradient(100)}
    for policy in ("qsgd:bits=4", "bias=identity; *=atomo:bits=4,cap=4.4,atoms=rows", "sign+blosc"):
        model = atomo.Compressor(shapes, policy)
        message = model.encode(grads, step=1)
        assert len(message) <= model.wire_bytes <= model.max_encoded_bytes
        padded = message + b"\xee" * (model.wire_bytes - len(message))
        for name, values in model.decode(message, like=grads).items():
            assert (values == model.decode(padded, like=grads)[name]).all()
    assert atomo.Compressor(shapes, "atomo:bits=1").wire_bytes is None
    assert atomo.Codec("atomo:bits=1").wire_bytes(100) is None and not atomo.Codec("atomo:bits=1").traits.bounded
    assert atomo.Codec("sign").wire_bytes(1000) == len(atomo.Codec("sign").encode(gradient(1000), step=0))



def test_a_layer_reads_messages_of_its_own_codec():
    model = atomo.Compressor({"a": 100, "b": 100}, "a=sign; *=qsgd:bits=4")
    x = numpy.ones(100, "float32")
    message = atomo.Codec("sign").encode(x, step=0)
    numpy.testing.assert_array_equal(model.decode_layer("a", message, like=x), x)
    with pytest.raises(atomo.DecodeError) as caught:
        model.decode_layer("b", message, like=x)
    assert caught.value.status == "codec_mismatch"


def test_layers_may_be_a_module_or_pairs():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    module[0].bias.requires_grad_(False)
    assert atomo.Compressor(module, "sign").layers == ("0.weight", "1.weight", "1.bias")
    assert atomo.Compressor(module.named_parameters(), "sign").layers == ("0.weight", "0.bias", "1.weight", "1.bias")
    with pytest.raises(atomo.Error, match="layer '1.num_batches_tracked': dtype torch.int64"):
        atomo.Compressor(module.state_dict(), "sign")
    with pytest.raises(atomo.Error, match="a name stands there twice"):
        atomo.Compressor([("a", 3), ("a", 4)], "sign")
    with pytest.raises(TypeError, match="layers: a mapping"):
        atomo.Compressor([3, 4], "sign")


def test_a_rule_that_matches_nothing_is_told_and_the_plan_shows_which_took_what():
    layers = {"fc.weight": (30, 20), "fc.bias": 30}
    with pytest.warns(UserWarning, match=r"the rule '\*\.Bias' of the policy matches no layer; there are 'fc.weight', 'fc.bias'"):
        model = atomo.Compressor(layers, "*.Bias=identity; *=atomo:bits=1,atoms=rows")
    assert [(layer.name, layer.rule) for layer in model.plan()] == [("fc.weight", "*"), ("fc.bias", "*")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(pickle.dumps(model))
        model = atomo.Compressor(layers, "*.bias=identity  # as it is\nfc.*=sign; *=qsgd:bits=4")
        plan = {layer.name: layer for layer in model.plan()}
        assert (plan["fc.bias"].rule, plan["fc.weight"].rule) == ("*.bias", "fc.*")
        assert plan["fc.weight"].codec == atomo.Codec("sign") and plan["fc.weight"].shape == (30, 20)
        assert plan["fc.bias"].max_bytes >= 120
        assert atomo.Compressor(layers, "sign").plan()[0].rule == "*"
