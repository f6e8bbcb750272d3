# SPDX-License-Identifier: Apache-2.0
"""DDPState when things change: names under wrappers, types under other hooks, policies and layers in mid-run."""

import subprocess
import sys
import types
import warnings

import atomo
import atomo.torch
import ddp_runs
import ddp_seams
import numpy as np
import pytest
import torch
from torch import nn
from worlds import RankFailed, check_replicas, same

PLAIN = "identity:dtype=f32"
RULES = "0.*=qsgd:bits=8; *.bias=identity; *=atomo:bits=1"


# Names


def wrapped_nets():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = ddp_runs.make_net("small")
    yield "plain", net
    yield "compiled", torch.compile(net, backend="eager")
    yield "DataParallel, compiled", torch.compile(nn.DataParallel(net), backend="eager")
    yield "averaged", torch.optim.swa_utils.AveragedModel(net)
    inside = ddp_runs.make_net("small")
    inside[2] = checkpoint_wrapper(inside[2])
    inside[4] = torch.compile(inside[4], backend="eager")
    yield "wrapped inside", inside
    yield "names", {f"_fsdp_wrapped_module.module.{name}": p for name, p in net.named_parameters()}


NETS = dict(wrapped_nets())


@pytest.mark.parametrize("which", NETS)
def test_names_are_those_of_the_plain_module(which):
    plain = atomo.torch.DDPState(NETS["plain"], RULES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = atomo.torch.DDPState(NETS[which], RULES)
    assert list(state.layers) == ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    assert [str(state.compressor.codec(name)) for name in state.layers] == \
        [str(plain.compressor.codec(name)) for name in plain.layers]
    assert state.state_dict() == plain.state_dict()
    state.load_state_dict({**plain.state_dict(), "step": 5})
    assert state.step == 5


def test_a_part_called_module_keeps_its_name_where_it_tells_two_apart():
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "module": nn.ModuleDict({"a": nn.Linear(2, 2)})})
    compiled = torch.compile(net, backend="eager")
    for model in (net, compiled):
        names = ["a.weight", "a.bias", "module.a.weight", "module.a.bias"]
        assert list(atomo.torch.DDPState(model, PLAIN).layers) == names


@pytest.mark.parametrize("policy, idle", [("conv*=sign; *=qsgd:bits=4", ["conv*"]), ("qsgd:bits=4", []),
                                          ("# all\n?.Bias = identity # of layers\n 9.* = sign\n*=atomo:bits=1",
                                           ["?.Bias", "9.*"]), ("terngrad", []), (RULES, [])])
def test_a_rule_that_matches_no_layer_is_warned_of(policy, idle):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = atomo.torch.DDPState(NETS["plain"], policy)
    said = [str(w.message) for w in caught]
    assert len(said) == len(idle)
    for text, rule in zip(said, idle):
        assert f"the rule '{rule}' of the policy matches no layer" in text and "0.weight" in text
    if idle:
        with pytest.warns(UserWarning, match="matches no layer"):
            state.set_policy(policy)


@pytest.mark.parametrize("policy, biased", [("topk:keep=0.1", "'topk:keep=0.1'"), ("ef+topk:keep=0.1", None), ("qsgd:bits=4", None),
                                            ("*.bias=sign; 0*=terngrad; *=atomo:bits=1,content=nearest",
                                             "'sign', 'atomo:bits=1,atoms=auto,content=nearest'")])
def test_biased_codecs_without_a_memory_are_warned_of_once(policy, biased):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = atomo.torch.DDPState(NETS["plain"], policy)
        state.bind(NETS["plain"])
    said = [str(w.message) for w in caught if "sends it later" in str(w.message)]
    assert len(said) == (biased is not None)
    assert biased is None or said[0].startswith(f"biased and without a memory: {biased}; ")


@pytest.mark.parametrize("policy, warned", [("atomo:bits=0.5", True), ("atomo:bits=1", False), ("qsgd:bits=4", False)])
def test_a_budget_below_the_heads_is_warned_of(policy, warned):
    """Of 4,042 parameters in 6 layers, whose heads take some 480 bytes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = atomo.torch.DDPState(NETS["plain"], policy)
    said = [str(w.message) for w in caught]
    assert ["budget of 253 bytes" in text and "some 480 bytes" in text for text in said] == [True] * warned
    if policy == "qsgd:bits=4":
        return
    state.compressor.begin_step(step=0)
    empty = [state.compressor.encode_layer(name, np.zeros(shape, np.float32))
             for name, (shape, _) in state.layers.items()]
    assert 480 <= sum(map(len, empty)) < 720


def test_ddp_over_a_compiled_module(world):
    """Its hook serves the names that the rules are written for; the run is the plain module's to the bit."""
    plain, compiled = (world(2).run(ddp_seams.compiled, way) for way in ("plain", "inside"))
    assert same(plain[0]["parameters"], compiled[0]["parameters"])
    assert plain[0]["layers"] == compiled[0]["layers"]


# Types


@pytest.mark.parametrize("wrapper", ["f16", "bf16"])
@pytest.mark.parametrize("policy", ["atomo:bits=2", "identity", "qsgd:bits=6",
                                    "*.bias=identity:dtype=f32; *=atomo:bits=4"])
def test_wrappers_that_change_the_type(world, wrapper, policy):
    results = world(2).run(ddp_seams.trained, policy, steps=12, wrapper=wrapper)
    check_replicas(results)
    reference = world(2).run(ddp_seams.trained, None, steps=12, wrapper=wrapper)
    assert {dtype for _, dtype in results[0]["layers"].values()} == {wrapper}
    np.testing.assert_allclose(results[0]["losses"], reference[0]["losses"], rtol=0.05)
    if policy == "identity":  # the same but for the rounding of sums
        for name, value in reference[0]["parameters"].items():
            np.testing.assert_allclose(results[0]["parameters"][name], value, atol=0.02)


def test_a_checkpoint_resumes_under_a_wrapper(world):
    whole = world(2).run(ddp_seams.one_checkpoint, "atomo:bits=1", resume=False, wrapper="f16")
    resumed = world(2).run(ddp_seams.one_checkpoint, "atomo:bits=1", wrapper="f16")
    assert same(whole[0]["parameters"], resumed[0]["parameters"])
    check_replicas(resumed)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_model_may_change_its_type_behind_the_state(world, kind):
    results = world(2).run(ddp_seams.trained, "atomo:bits=2", steps=3, moves_to=kind)
    check_replicas(results)
    short = {"bfloat16": "bf16", "float16": "f16"}[kind]
    assert {dtype for _, dtype in results[0]["layers"].values()} == {short}


@pytest.mark.parametrize("policy", ["atomo:bits=1", "atomo:bits=26,cap=26,atoms=rows"])
def test_buckets_change_nothing_under_a_wrapper(world, policy):
    """Though the types of the layers become known bucket by bucket, in the first step too where some may be unused."""
    one, many = (world(2).run(ddp_seams.trained, policy, wrapper="f16", cap_mb=cap, unused=True) for cap in (25, 0.002))
    assert same(one[0]["parameters"], many[0]["parameters"])


# Threads


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_work_on_layers_at_once(world, threads):
    assert world(2).run(ddp_seams.at_once, threads) == [{"encode_layer": threads, "decode_layer_add_all": threads}] * 2


@pytest.mark.parametrize("policy", ["atomo:bits=1", "atomo:bits=26,cap=26,atoms=rows", "qsgd:bits=4"])
def test_threads_change_nothing(world, policy):
    one, three = (world(2).run(ddp_seams.trained, policy, cap_mb=25, threads=threads) for threads in (1, 3))
    assert same(one[0]["parameters"], three[0]["parameters"])


# States without a model


@pytest.mark.parametrize("way", ["made before", "pickled", "loaded", "twice"])
def test_a_state_finds_the_model_that_it_is_registered_with(world, way):
    bound, found = (world(2).run(ddp_seams.lazy, how) for how in ("bound", way))
    assert same(bound[0]["parameters"], found[0]["parameters"])
    assert bound[0]["layers"] == found[0]["layers"]


@pytest.mark.parametrize("way", ["again", "resumed"])
def test_lightnings_callback(world, way):
    bare, fitted = (world(2).run(ddp_seams.lightning_fits, how) for how in ("bare", way))
    check_replicas(fitted)
    assert same(bare[0]["parameters"], fitted[0]["parameters"])
    assert fitted[0]["log"] | {"last": 0} == bare[0]["log"] | {"last": 0} and fitted[0]["log"]["steps"] == 6


def test_lightnings_callback_wants_its_ddp(monkeypatch):
    monkeypatch.delitem(sys.modules, "atomo.torch.lightning", raising=False)
    package = types.ModuleType("pytorch_lightning")
    package.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, package.__name__, package)
    callback = atomo.torch.LightningCallback("sign")
    assert isinstance(callback, package.Callback)
    trainer = types.SimpleNamespace(strategy=types.SimpleNamespace(model=nn.Linear(2, 2)))
    with pytest.raises(atomo.Error, match="the strategy SimpleNamespace has its model in no DistributedDataParallel"):
        callback.on_train_start(trainer, trainer.strategy.model)
    monkeypatch.delitem(sys.modules, "atomo.torch.lightning")


def test_lightnings_checkpoints_hold_one_ranks_state(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_seams.lightning_with_differences)
    assert all("Lightning's checkpoints hold one rank's state" in error for error in failed.value.errors)


def test_a_state_of_two_models_says_so(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_seams.of_two_models)
    assert failed.value.errors == ["Error: this state knows no model, and 2 DDP modules were registered with it: call "
                                   "state.bind(model)"] * 2


def test_a_state_without_a_model_has_no_layers():
    state = atomo.torch.DDPState(policy="sign", seed=3)
    assert state.layers == {}
    with pytest.raises(atomo.Error, match="this state knows no model yet"):
        state.compressor.budget_bytes
    assert repr(state) == "atomo.torch.DDPState(no model yet, 'sign', seed=3, step=0)"
    other = atomo.torch.DDPState(policy="terngrad")
    other.set_policy("sign")
    other.load_state_dict(state.state_dict())
    assert other.seed == 3 and other.bind(nn.Linear(2, 2)).layers == {"weight": ((2, 2), "f32"), "bias": ((2,), "f32")}


# Steps and policies


def test_the_first_steps_go_uncompressed(world):
    """Until start_step to the bit as without a hook, from then on compressed."""
    plain = world(2).run(ddp_seams.trained, None, steps=4)
    warm = world(2).run(ddp_seams.trained, "qsgd:bits=2", steps=4, start_step=4)
    assert same(plain[0]["parameters"], warm[0]["parameters"])
    assert warm[0]["log"]["last"]["bytes_sent"] >= 4 * 4042
    after = world(2).run(ddp_seams.trained, "atomo:bits=2", steps=8, start_step=4)
    check_replicas(after)
    assert after[0]["losses"][:5] == world(2).run(ddp_seams.trained, None, steps=8)[0]["losses"][:5]
    assert after[0]["log"]["last"]["bytes_sent"] < 4042 and after[0]["log"]["last"]["price"] > 0


def test_a_policy_may_change_in_mid_run(world):
    """The budget follows, what is drawn does not come again, and the replicas stay equal."""
    results = world(2).run(ddp_seams.policies_in_turn, ["atomo:bits=4", "qsgd:bits=2", "atomo:bits=8"])
    check_replicas(results)
    four, two, eight = np.reshape(results[0]["sent"], (3, 3)).mean(axis=1)
    assert two < 0.75 * four < 0.75 * 0.75 * eight
    assert results[0]["log"]["steps"] == 9
    state = atomo.torch.DDPState(NETS["plain"], "qsgd:bits=4")
    with pytest.raises(atomo.Error, match="bits"):
        state.set_policy("qsgd:bits=99")
    assert state.policy == "qsgd:bits=4" and state.compressor.policy == "qsgd:bits=4"
    with pytest.raises(atomo.Error, match="set_policy"):
        state.load_state_dict(atomo.torch.DDPState(NETS["plain"], "sign").state_dict())


# Layers


@pytest.mark.parametrize("policy", ["atomo:bits=1", "atomo:bits=26,cap=26,atoms=rows"])
def test_layers_that_thaw_are_added(world, policy):
    """Step and price go on, and a checkpoint of then resumes to the bit though the model has another order."""
    whole, resumed = (world(2).run(ddp_seams.thaw, resume, policy) for resume in (False, True))
    check_replicas(whole)
    assert list(whole[0]["layers"]) == ["2.weight", "2.bias", "4.weight", "4.bias", "0.weight", "0.bias"]
    assert whole[0]["step"] == 4 and whole[0]["used"] == whole[0]["price"] > 0
    assert same(whole[0]["parameters"], resumed[0]["parameters"])


def test_a_checkpoint_of_fewer_layers_is_taken():
    """Under a cap too, where each layer has a share."""
    net = ddp_runs.make_net("small")
    net[0].requires_grad_(False)
    fewer = atomo.torch.DDPState(net, "atomo:bits=26,cap=26,atoms=rows")
    saved = {**fewer.state_dict(), "compressor": [fewer.compressor.state()]}
    net[0].requires_grad_(True)
    state = atomo.torch.DDPState(net, "atomo:bits=26,cap=26,atoms=rows")
    state.load_state_dict({**saved, "step": 9})
    assert state.step == 9 and list(state.layers)[-2:] == ["0.weight", "0.bias"]
    with pytest.raises(atomo.Error, match="saved"):
        state.load_state_dict({**saved, "compressor": [state + b"1" for state in saved["compressor"]]})


def test_layers_that_freeze_again_stay_known():
    net = ddp_runs.make_net("small")
    state = atomo.torch.DDPState(net, PLAIN)
    net[2].requires_grad_(False)
    assert list(state.bind(net).layers) == [name for name, _ in net.named_parameters()]


def test_a_new_state_that_would_draw_the_same_is_warned_of(world):
    assert world(2).run(ddp_seams.states_of_one_net) == [{"same": 1, "seed": 0, "channel": 0, "net": 0}] * 2


def test_sparse_gradients_go_by_all_reduce(world):
    mine, plain = (world(2).run(ddp_seams.sparse, hooked) for hooked in (True, False))
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    check_replicas(mine)
    assert 0 < mine[0]["sent"] < 50 * 8 * 4 + 1000


# What is left at the end


FAILS = """
import sys, torch, torch.distributed as dist, atomo.torch
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
net = torch.nn.parallel.DistributedDataParallel(torch.compile(torch.nn.Linear(4, 4), backend="eager"))
state = atomo.torch.DDPState(net, "qsgd:bits=4")
net.register_comm_hook(state, atomo.torch.ddp_hook)
net(torch.ones(1, 4)).sum().backward()
def refuse(name, gradient):
    raise atomo.Error("refused")
state.compressor.encode_layer = refuse
try:
    net(torch.ones(1, 4)).sum().backward()
except atomo.Error as error:
    print("caught", error)
"""


def test_no_report_of_leaks_follows_an_error(tmp_path):
    """Torch holds hooks and their states until the process ends; that is no leak of this package."""
    (tmp_path / "fails.py").write_text(FAILS)
    done = subprocess.run([sys.executable, tmp_path / "fails.py", tmp_path / "store"], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "caught refused\n"
    assert "leaked" not in done.stderr
