# SPDX-License-Identifier: Apache-2.0
"""Patches between states of a model, of NumPy and PyTorch."""
import re

import atomo
import numpy
import pytest

torch = pytest.importorskip("torch")


def test_threads_are_bounded_below_python():
    """Whoever calls the extension starts no more threads than a compressor has."""
    patch = atomo.make_patch({}, {})
    for threads in (0, 1025):
        for call in (lambda: atomo._atomo.make_patch([], [], "", threads), lambda: atomo._atomo.apply_patch(patch, [], [], threads)):
            with pytest.raises(atomo.Error, match=f"threads is {threads}: it must be an integer from 1 to 1024"):
                call()


def states(share=0.01):
    """Two state_dicts whose elements differ here and there."""
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.BatchNorm1d(48)).to(torch.bfloat16)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    after = {name: x.clone() for name, x in before.items()}
    for x in after.values():
        if x.dtype == torch.bfloat16:
            bits = x.view(torch.int16)
            bits[torch.rand(bits.shape) < share] += 1
    after["1.num_batches_tracked"] += 1
    return before, after


def same(a, b):
    return a.keys() == b.keys() and all(x.dtype == b[name].dtype and torch.equal(x, b[name]) for name, x in a.items())


def test_a_state_dict_comes_back():
    before, after = states()
    patch = atomo.make_patch(before, after)
    assert same(atomo.apply_patch(patch, before), after)
    assert patch == atomo.make_patch(before, after, threads=3)
    told = {tensor.name: tensor for tensor in atomo.inspect_patch(patch).tensors}
    assert told["0.weight"].type == "BF16" and told["0.weight"].form == "changes" and told["0.weight"].shape == (48, 64)
    assert 0 < told["0.weight"].changed < 100


def test_a_model_is_patched_where_it_is():
    before, after = states()
    patch = atomo.make_patch(before, after)
    places = {name: x.data_ptr() for name, x in before.items()}
    made = atomo.apply_patch(patch, before, out=before)
    assert same(made, after) and all(made[name] is before[name] and places[name] == x.data_ptr() for name, x in made.items())


def tied():
    """A model whose two names are of one weight, a state before and one after."""
    module = torch.nn.Module()
    module.wte, module.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False)
    module.head.weight = module.wte.weight
    before = {name: x.clone() for name, x in module.state_dict().items()}
    after = {name: x.clone() for name, x in before.items()}
    for x in after.values():
        x[3] += 1
    return module, before, after


@pytest.mark.parametrize("strided", [False, True])
def test_tied_weights_are_patched_once(strided):
    module, before, after = tied()
    if strided:
        module.wte.weight.data = module.wte.weight.data.t().contiguous().t()
    weight, state = module.wte.weight.data_ptr(), module.state_dict()
    made = atomo.apply_patch(atomo.make_patch(before, after), state, out=state)
    assert same(made, after) and same(module.state_dict(), after) and module.head.weight.data_ptr() == weight
    # A state before in which only the second name is of the array that is written, and a patch that has one of them whole.
    module, before, after = tied()
    state = module.state_dict()
    patch = atomo.make_patch({"head.weight": before["head.weight"]}, after)
    assert [tensor.form for tensor in atomo.inspect_patch(patch).tensors] == ["whole", "changes"]
    assert same(atomo.apply_patch(numpy.frombuffer(patch, "u1"), {"head.weight": state["head.weight"]}, out=state), after)


def test_tied_weights_of_two_new_states_are_refused():
    _, before, after = tied()
    after["head.weight"][7] += 1
    patch = atomo.make_patch(before, after)
    for state in (tied()[0].state_dict(), dict.fromkeys(before, before["wte.weight"].numpy())):
        for x in state.values():
            x[:] = before["wte.weight"] if isinstance(x, torch.Tensor) else before["wte.weight"].numpy()
        with pytest.raises(atomo.Error, match="'wte.weight' and 'head.weight' are one array"):
            atomo.apply_patch(patch, state, out=state)
        assert all((numpy.asarray(x) == before["wte.weight"].numpy()).all() for x in state.values())


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_arrays_that_share_memory_are_refused(framework):
    memory = numpy.arange(3000, dtype="float32")
    memory = torch.tensor(memory) if framework == "torch" else memory
    kept = numpy.asarray(memory).copy()
    before = {"a": memory[:1000], "b": memory[1000:2000]}
    after = {name: numpy.asarray(x).copy() for name, x in before.items()}
    for x in after.values():
        x[5] += 1
    patch = atomo.make_patch(before, after)
    cases = [({"a": before["b"], "b": before["a"]}, "'[ab]' shares memory with '[ab]', an"),
             ({"a": before["b"], "b": memory[2000:]}, "'a' shares memory with 'b', an array of before"),
             ({"a": memory[500:1500], "b": memory[2000:]}, "'a' shares memory with '[ab]', an array of before"),
             ({"a": memory[1:1001], "b": memory[2000:]}, "'a' shares memory with 'a', an array of before"),
             ({"a": before["a"], "b": memory[999:1999]}, "'b' shares memory with 'a'")]
    if framework == "torch":
        cases.append(({"a": memory[:2000:2], "b": memory[:1500:1][500:]}, "shares memory"))
    for out, words in cases:
        with pytest.raises(atomo.Error, match=words):
            atomo.apply_patch(patch, before, out=out)
        assert (numpy.asarray(memory) == kept).all()
    # Nothing reads what the new state has not, or has whole: its memory is free.
    patch = atomo.make_patch({"b": before["b"]}, {"b": after["b"]})
    made = atomo.apply_patch(patch, {**before, "a": memory[:1000]}, out={"b": memory[:1000]})
    assert numpy.asarray(made["b"]).tobytes() == after["b"].tobytes()


def test_strided_arrays_between_each_other_share_nothing():
    both = torch.arange(4000.0)
    before = {"even": both[::2], "odd": both[1::2]}
    after = {name: x.clone() for name, x in before.items()}
    after["even"][3] = after["odd"][4] = 7
    assert same(atomo.apply_patch(atomo.make_patch(before, after), before, out=before), after)


def test_arrays_of_numpy_of_every_type():
    before = {name: numpy.arange(300).reshape(20, 15).astype(name) for name in
              ("float64", "float32", "float16", "int64", "int32", "uint16", "int8", "bool")}
    ml_dtypes = pytest.importorskip("ml_dtypes")
    before["bfloat16"] = numpy.arange(300).astype(ml_dtypes.bfloat16)
    before["empty"] = numpy.zeros((0, 3), "f4")
    after = {name: x.copy() for name, x in before.items()}
    for x in after.values():
        x[3:4] = 1
    made = atomo.apply_patch(atomo.make_patch(before, after), before)
    for name, x in after.items():
        assert made[name].dtype == x.dtype and made[name].shape == x.shape and made[name].tobytes() == x.tobytes()


def test_what_does_not_fit_is_named():
    before, after = states()
    patch = atomo.make_patch(before, after)
    with pytest.raises(atomo.Error, match="'0.bias' is not the one"):
        atomo.apply_patch(patch, {**before, "0.bias": before["0.bias"] + 1})
    with pytest.raises(atomo.Error, match="'0.bias' of 96 bytes, which `before` has not"):
        atomo.apply_patch(patch, {name: x for name, x in before.items() if name != "0.bias"})
    with pytest.raises(atomo.Error, match="out: '0.bias' is float32"):
        atomo.apply_patch(patch, before, out={**before, "0.bias": before["0.bias"].float()})
    with pytest.raises(atomo.Error, match="checksum"):
        atomo.apply_patch(patch[:-1] + bytes([patch[-1] ^ 1]), before)
    with pytest.raises(TypeError, match="before: names are expected to be strings, found 1"):
        atomo.make_patch({1: before["0.bias"]}, before)
    with pytest.raises(atomo.Error, match="complex64; accepted are"):
        atomo.make_patch({"c": numpy.zeros(3, "complex64")}, {})
    with pytest.raises(TypeError, match="a mapping of names"):
        atomo.make_patch([1], {})
    with pytest.raises(atomo.Error, match="out: '0.bias' is NoneType; accepted are arrays of NumPy and PyTorch"):
        atomo.apply_patch(patch, before, out={**before, "0.bias": None})
    with pytest.raises(atomo.Error, match="out: several elements of '0.bias' are one"):
        atomo.apply_patch(patch, before, out={**before, "0.bias": before["0.bias"][:1].expand(48)})
    with pytest.raises(TypeError, match="out: a mapping of names"):
        atomo.apply_patch(patch, before, out=3)
    with pytest.raises(atomo.Error, match="out: '0.bias' is a tensor of kind meta; accepted are dense tensors"):
        atomo.apply_patch(patch, before, out={**before, "0.bias": before["0.bias"].to("meta")})
    for kind, x in (("meta", torch.empty(3, device="meta")), ("sparse_coo", torch.eye(3).to_sparse()),
                    ("nested", torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged))):
        with pytest.raises(atomo.Error, match=f"after: 'x' is a tensor of kind {kind}; accepted are dense tensors"):
            atomo.make_patch({}, {"x": x})
    with pytest.raises(atomo.Error, match=r"before: '\\udc80' cannot be written in UTF-8"):
        atomo.make_patch({"\udc80": before["0.bias"]}, {})
    for threads in (-1, 0, 1025, "2", True, 1.0, None):
        words = re.escape(f"threads is {threads!r}: it must be an integer from 1 to 1024")
        with pytest.raises(atomo.Error, match=words):
            atomo.make_patch(before, after, threads=threads)
        with pytest.raises(atomo.Error, match=words):
            atomo.apply_patch(patch, before, threads=threads)
    read_only = {name: x.float().numpy() for name, x in before.items()}
    patch = atomo.make_patch(read_only, read_only)
    for x in read_only.values():
        x.flags.writeable = False
    with pytest.raises(atomo.Error, match="contiguous and writable"):
        atomo.apply_patch(patch, read_only, out=read_only)
