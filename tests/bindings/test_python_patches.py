# SPDX-License-Identifier: Apache-2.0
"""Patches between states of a model, of NumPy and PyTorch."""
import atomo
import numpy
import pytest

torch = pytest.importorskip("torch")


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
    read_only = {name: x.float().numpy() for name, x in before.items()}
    patch = atomo.make_patch(read_only, read_only)
    for x in read_only.values():
        x.flags.writeable = False
    with pytest.raises(atomo.Error, match="contiguous and writable"):
        atomo.apply_patch(patch, read_only, out=read_only)
