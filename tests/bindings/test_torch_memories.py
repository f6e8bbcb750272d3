# SPDX-License-Identifier: Apache-2.0
"""DDP with a memory at each rank, over gloo with two processes."""

import math
import pickle
import re

import atomo
import atomo.torch
import ddp_runs
import gpu_runs
import memory_runs
import numpy as np
import pytest
import torch
from atomo.torch.coder import Coder
from worlds import RankFailed, check_replicas, same

THREE_BUCKETS = 0.002  # MB; of the small net
WAYS = ["Watched", "OnStandIn"]  # of gradients on the CPU, and of those on a GPU, with a stand-in for it


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["ef+topk:keep=0.01", "*.bias=identity; *=dgc:momentum=0+topk:keep=0.05",
                                    "*.bias=identity; *=ef21+topk:keep=0.05"])
def test_replicas_stay_equal(world, policy, way):
    check_replicas(world(2).run(ddp_runs.train, policy, cap_mb=THREE_BUCKETS, steps=6, state_class=way))


@pytest.mark.parametrize("policy", ["ef+topk:keep=0.05", "dgc:momentum=0.5+topk:keep=0.05", "ef21+topk:keep=0.05"])
def test_a_gpus_steps_are_the_cpus(world, policy):
    """Through the change of buckets after the first step: what each layer keeps goes with it."""
    on_cpu, on_gpu = (world(2).run(memory_runs.train, policy, [1.0, 1.0, 8.0, 8.0, 2.0], way=way)[0] for way in WAYS)
    for name, value in on_cpu.items():
        np.testing.assert_array_equal(on_gpu[name], value, name)


def test_what_is_left_out_is_sent_later(world):
    """One entry in a hundred a step: with a memory the loss falls further."""
    ends = {}
    for policy in (None, "ef+topk:keep=0.01", "topk:keep=0.01"):
        losses = world(2).run(ddp_runs.train, policy, steps=150, lr=0.02)[0]["losses"]
        ends[policy] = sum(losses[-20:]) / 20
    exact, kept, lost = ends.values()
    assert exact < kept < 0.9 * lost, ends


@pytest.mark.parametrize("state_class", WAYS)
@pytest.mark.parametrize("way", ["dict", "pickle"])
@pytest.mark.parametrize("policy", ["ef+topk:keep=0.05", "ef21+topk:keep=0.05"])
def test_each_ranks_checkpoint_brings_its_memory_back(world, policy, way, state_class):
    whole, halves = (world(2).run(ddp_runs.train, policy, cap_mb=THREE_BUCKETS, checkpoint_at=at, way=way,
                                  state_class=state_class, ddp={"find_unused_parameters": True}) for at in (None, 4))
    for was, now in zip(whole, halves):
        assert was["losses"] == now["losses"]
        assert same(was["parameters"], now["parameters"])


@pytest.mark.parametrize("state_class", WAYS)
@pytest.mark.parametrize("policy, how", [("ef+topk:keep=0.05", "dict"), ("ef21+topk:keep=0.05", "dict"), ("ef21+topk:keep=0.05", "pickle"),
                                         ("ef21+topk:keep=0.05", "by another policy")])
def test_a_state_that_is_loaded_and_saved_again_is_whole(world, policy, how, state_class):
    """As of a job that is stopped before its first step. Another policy drops what was sent, and the sums of that."""
    results = world(2).run(memory_runs.saved_again, policy, state_class, how)
    for result in results:
        if how == "by another policy":
            assert not any(kept.any() for kept in result["after"].values())
        else:
            assert same(result["before"], result["after"]) and any(kept.any() for kept in result["after"].values())
        if policy.startswith("ef21"):
            check_sums(result["gradients"], [of_rank["kept"] for of_rank in results])


def test_another_ranks_memory_is_not_taken():
    """A rank that loads another's checkpoint begins without a memory."""
    def made():
        coder = Coder("ef+topk:keep=5", 1)
        coder.take({"a": ((50,), "f32")})
        return coder

    saved = made()
    assert saved.memories() is None
    saved.encode([("a", torch.arange(50.0))], {"seed": 0, "step": 0, "worker": 1, "channel": 0})
    saved.end_step()
    saved.settle_step([saved.compressor.state("learnt")] * 2)
    for worker in (0, 1):
        other = made()
        other.load(saved.policy, saved.table(), saved.learnt, saved.memories())
        assert other.memories() == saved.memories()
        other.encode([("a", torch.zeros(50))], {"seed": 0, "step": 1, "worker": worker, "channel": 0})
        kept = torch.frombuffer(bytearray(other.compressor.memory("a")), dtype=torch.float32)
        assert kept.count_nonzero() == (39 if worker == 1 else 0)


@pytest.mark.parametrize("way", WAYS)
def test_differences_are_to_what_this_rank_has_sent(world, way):
    """A rank that loads another's checkpoint is told so, and nobody waits for it."""
    first, second = world(2).run(memory_runs.of_rank_0, "ef21+topk:keep=0.05", way)
    assert "rank 1 could not encode its gradients" in first[0]
    assert "the checkpoint is that of rank 0, and this is rank 1" in second[0]
    assert len(first) == len(second) == 2


STEP = {"seed": 0, "worker": 0, "channel": 0}


def of_coder(coder):
    return {name: coder.compressor.memory(name) for name in coder.layers}


@pytest.mark.parametrize("policy", ["ef+topk:keep=5", "dgc:momentum=0.9+topk:keep=5", "momentum:beta=0.9+sign:scale=mean",
                                    "dgc:memory=int8+topk:keep=5"])
def test_a_step_is_taken_back_without_a_copy(policy, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    coder = Coder(policy, 1)
    coder.take({"a": ((50,), "f32"), "b": ((7, 9), "f32")})

    def encode(step, *names, change=lambda gradient: gradient):
        gradients = [(name, change(torch.randn(coder.layers[name][0], generator=draw))) for name in names]
        coder.encode(gradients, STEP | {"step": step})

    def step(number, **more):
        encode(number, "a", "b", **more)
        coder.end_step()
        coder.settle_step([coder.compressor.state("learnt")])

    step(0)
    copies, state = [], atomo.Compressor.state
    monkeypatch.setattr(atomo.Compressor, "state", lambda self, what="all": copies.append(what) or state(self, what))
    first = of_coder(coder)
    step(1)
    second = of_coder(coder)
    coder.take_memories_back()
    assert of_coder(coder) == first != second
    coder.take_memories_back()
    assert of_coder(coder) == first
    step(2)
    third = of_coder(coder)
    # Another rank's gradient was not finite, then one of this rank's.
    step(3)
    coder.take_memories_back()
    assert of_coder(coder) == third
    step(4, change=lambda gradient: gradient.index_fill(0, torch.tensor([1]), float("nan")))
    coder.take_memories_back()
    assert of_coder(coder) == third
    assert "memories" not in copies
    # An error cuts a step short: b's last message is of the step before, and was used.
    step(5)
    fourth = of_coder(coder)
    encode(6, "a")
    assert of_coder(coder)["a"] != fourth["a"]
    coder.drop_step()
    assert of_coder(coder) == fourth != third
    # Types change half way.
    encode(7, "a")
    encode(7, "b", change=torch.Tensor.half)
    coder.end_step()
    assert coder.layers["b"][1] == "f16" and of_coder(coder) != fourth
    coder.take_memories_back()
    assert of_coder(coder) == fourth
    step(8)
    assert of_coder(coder) != fourth


@pytest.mark.parametrize("way", WAYS)
def test_sums_are_those_of_as_many_ranks(world, way):
    for said in world(2).run(memory_runs.of_other_ranks, "ef21+topk:keep=0.05", way):
        assert [("the messages of 3 ranks are added up (ef21), and there are 2" in each) for each in said] == [True, True], said


def test_squares_need_gradients():
    layers = {"a": torch.nn.Parameter(torch.zeros(50))}
    with pytest.raises(atomo.Error, match="squares compare gradients with what their messages decode to"):
        atomo.torch.DDPState(layers, "ef21+topk:keep=5", squares=atomo.torch.Squares())
    state = atomo.torch.DDPState(layers, "ef+topk:keep=5", squares=atomo.torch.Squares())
    with pytest.raises(atomo.Error, match="are differences"):
        state.set_policy("ef21+topk:keep=5")
    assert state.policy == "ef+topk:keep=5"


def test_memories_do_not_travel(world):
    """What ranks tell each other of what they have learnt is as much as without a memory."""
    counted = [world(2).run(ddp_runs.train, policy, steps=3, cap_mb=THREE_BUCKETS)[0]["counted"]
               for policy in ("ef+topk:keep=5", "topk:keep=5")]
    assert abs(counted[0] - counted[1]) < 400, counted


def test_fsdp_has_no_names_to_keep_a_memory_under():
    with pytest.raises(atomo.Error, match="take 'topk:keep=0.01'"):
        atomo.torch.FSDPReduceScatter("ef+topk:keep=0.01")


def check_sums(gradients, memories):
    """Those of layers with memories are the mean of what the ranks have sent."""
    checked = 0
    for name, gradient in gradients.items():
        sent = [of_rank[name] for of_rank in memories]
        if sent[0].size:
            np.testing.assert_allclose(gradient.ravel(), sum(sent) / len(sent), rtol=1e-5, atol=1e-6 * np.abs(sent).max(), err_msg=name)
            checked += 1
    assert checked


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["ef+topk:keep=0.05", "ef+atomo:bits=1,content=nearest", "dgc:momentum=0.9+topk:keep=0.05",
                                    "momentum:beta=0.9+sign:scale=mean", "ef21+topk:keep=0.05"])
def test_a_step_that_a_gradscaler_skips_leaves_memories(world, policy, way):
    """Of all layers and ranks, though one layer alone of one rank was not finite. Sums too: the next gradients are the mean of what
    all ranks have sent."""
    results = world(2).run(memory_runs.scaled_steps, policy, way)
    for result in results:
        first, bad, last = result["memories"]
        assert result["scales"] == [1024.0, 512.0, 512.0] and result["finite"]
        assert same(first, bad) and not same(bad, last)
        if policy.startswith("ef21"):
            check_sums(result["gradients"], [of_rank["memories"][2] for of_rank in results])


MEMORIES = {"ef+topk:keep=0.05": 1.0, "ef:decay=0.9+topk:keep=0.05": 0.9, "ef+atomo:bits=1,content=nearest": 1.0,
            "momentum:beta=0.9+sign:scale=mean": 0.9, "dgc:momentum=0.9+topk:keep=0.05": 0.9,
            "ef21+topk:keep=0.05": -1.0}  # and their factors


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", MEMORIES)
def test_memories_are_of_gradients_without_their_scale(world, policy, way):
    """Powers of two leave every bit, so a scale that changes changes nothing."""
    plain, scaled = (world(2).run(memory_runs.train, policy, scales, way=way)
                     for scales in ([1.0] * 6, [1.0, 64.0, 64.0, 4.0, 4.0, 256.0]))
    for was, now in zip(plain, scaled):
        assert same(was, now)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", [policy for policy in MEMORIES if not policy.startswith("ef21")])
def test_rates_in_memories(world, policy, way):
    """A memory of steps is one of gradients times their rates. Powers of two leave every bit."""
    rates = [1.0, 0.5, 0.5, 0.125, 0.25, 0.0625]
    in_memory, in_loss, in_step = (world(2).run(memory_runs.steps_at_rates, policy, rates, way, where) for where in ("memory", "loss", "step"))
    for (now, _), (want, _), (other, _) in zip(in_memory, in_loss, in_step):
        assert same(now, want) and not same(now, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precondition", [False, True])
def test_squares_are_of_gradients_without_their_rate(world, way, precondition):
    rates = [1.0, 0.5, 0.25, 0.125]
    in_memory, in_step = (world(2).run(memory_runs.steps_at_rates, "ef+identity:dtype=f32", rates, way, where,
                                       atomo.torch.Squares(every=2, precondition=precondition)) for where in ("memory", "step"))
    for (weights, told), (want, moments) in zip(in_memory, in_step):
        assert told and same(told, moments) and same(weights, want)


@pytest.mark.parametrize("rate, says", [
    (-1.0, "rate_in_memory is -1.0: a part of the highest learning rate, from 0 to 1, is expected"),
    (math.inf, "rate_in_memory is inf: a part"), (lambda: math.nan, "rate_in_memory is nan: a part"), (math.nan, "rate_in_memory is nan: a part")])
def test_a_rate_that_is_none(rate, says):
    with pytest.raises(atomo.Error, match=says):
        state = atomo.torch.DDPState({"a": torch.nn.Parameter(torch.zeros(50))}, "ef+topk:keep=5", rate_in_memory=rate)
        state._rate_now()  # a function is asked in a step


def test_a_function_that_says_the_rate_is_not_pickled():
    layers = {"a": torch.nn.Parameter(torch.zeros(50))}
    state = pickle.loads(pickle.dumps(atomo.torch.DDPState(layers, "ef+topk:keep=5", rate_in_memory=lambda: 0.5)))
    with pytest.raises(atomo.Error, match="no pickle holds: set state.rate_in_memory"):
        state._rate_now()
    state.rate_in_memory = 2.0**-20
    assert state._rate_now() == 1 / 1024
    assert pickle.loads(pickle.dumps(state)).rate_in_memory == 2.0**-20


@pytest.mark.parametrize("policy", ["atomo:bits=1", "ef21+topk:keep=5"])
def test_rates_need_a_memory(policy):
    layers = {"a": torch.nn.Parameter(torch.zeros(50))}
    with pytest.raises(atomo.Error, match="rate_in_memory needs a codec with a memory, and none of ef21"):
        atomo.torch.DDPState(layers, policy, rate_in_memory=0.5)
    state = atomo.torch.DDPState(layers, "ef+topk:keep=5", rate_in_memory=0.5)
    with pytest.raises(atomo.Error, match=re.escape(f"rate_in_memory needs a codec with a memory, and none of ef21+, not '{atomo.Codec(policy)}'")):
        state.set_policy(policy)
    assert state.policy == "ef+topk:keep=5"


def test_rates_are_of_f32():
    layers = {"a": torch.nn.Parameter(torch.zeros(50, dtype=torch.bfloat16))}
    state = atomo.torch.DDPState(layers, "ef+topk:keep=5", rate_in_memory=0.5)
    state._begin_step(0, 1)
    with pytest.raises(atomo.Error, match="rate_in_memory takes gradients of f32, that of 'a' is bf16: keep .* leave rate_in_memory out"):
        state._prepare([("a", torch.zeros(50, dtype=torch.bfloat16))], None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("net, policy", [("unusual", "*.bias=identity; *=ef21+topk:keep=0.2"),
                                         ("sparse first", "embedding.*=identity:dtype=f32; *=ef21+topk:keep=0.05")])
def test_a_skipped_step_leaves_the_sums_of_any_layer(world, net, policy, way):
    """Without dimensions, and in front of sparse ones, which end a step by an all-reduce."""
    results = world(2).run(memory_runs.scaled_steps, policy, way, net)
    for result in results:
        first, bad, last = result["memories"]
        assert result["scales"] == [1024.0, 512.0, 512.0] and result["finite"]
        assert same(first, bad) and not same(bad, last)
        if net != "unusual":  # its convolution's gradient has another order than its memory
            check_sums(result["gradients"], [of_rank["memories"][2] for of_rank in results])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("memory, then", [("ef21", "a step"), *((memory, then) for memory in ("ef", "ef21") for then in ("a checkpoint", "another policy"))])
def test_a_step_that_an_error_cuts_short_leaves_memories_and_sums(world, memory, way, then):
    results = world(2).run(memory_runs.cut_short, f"{memory}+topk:keep=0.05", way, then)
    assert "planted" in results[1]["said"][0] and len(results[0]["said"]) == 1
    for result in results:
        assert result.get("kept", True) and result.get("sums stay", True) and bool(result["sums"]) == (memory == "ef21")
        if memory == "ef21":
            check_sums(result["gradients"], [of_rank["memories"] for of_rank in results])


@pytest.mark.parametrize("then", ["a checkpoint", "another model"])
def test_a_programs_own_error_leaves_the_sums(world, then):
    """Though messages of a slower rank come behind it."""
    first, second = world(2).run(memory_runs.own_error, "ef21+topk:keep=0.1", then)
    assert first["stay"] and second["stay"] and same(first["gradients"], second["gradients"])


class Rules:
    """What a rank's messages must have said of a layer, by the formulas of docs/memories.md."""

    def __init__(self, policy):
        self.dgc, self.factor = policy.startswith("dgc"), np.float32(MEMORIES[policy])
        self.u, self.kept = np.float32(0), np.float32(0)

    def sent(self, own, kept):
        """`kept` is what is left; of differences, what was sent so far, and has arrived."""
        if self.factor < 0:
            return kept
        if self.dgc:
            u = own + self.factor * self.u
            x = self.kept + u
            self.u = np.where(kept == x, u, np.float32(0))
        else:
            x = own + self.factor * self.kept
        self.kept = kept
        return x - kept


def check_what_arrives(results, policy, rtol=1e-5, atol=1e-5):
    """Every rank's message and what it keeps are all that there was. `atol` in units of the largest entry."""
    ranks = [{name: Rules(policy) for name in result["steps"][0]["own"]} for result in results]
    for steps in zip(*(result["steps"] for result in results)):
        for name, arrived in steps[0]["arrived"].items():
            sent = [rules[name].sent(step["own"][name].ravel(), step["kept"][name]) for rules, step in zip(ranks, steps)]
            largest = max(np.abs(own).max() for own in sent)
            np.testing.assert_allclose(arrived.ravel(), sum(sent) / len(sent), rtol=rtol, atol=atol * largest, err_msg=name)
        assert all(any(kept.any() for kept in step["kept"].values()) for step in steps)


@pytest.mark.parametrize("policy", MEMORIES)
@pytest.mark.parametrize("how, way", [*((how, way) for how in ("accumulated", "halves") for way in WAYS),
                                      ("clipped", "Watched"), ("autocast", "OnStandIn")])
def test_what_arrives_and_what_is_kept_are_all_there_was(world, policy, how, way):
    """One message of the sum over batches; of gradients before they are clipped; of halves, up to their rounding."""
    results = world(2).run(memory_runs.recorded, policy, way, how)
    check_replicas(results)
    types = {"torch.float32", "torch.bfloat16", "torch.float16"} if how == "halves" else {"torch.float32"}
    assert results[0]["types"] == types
    assert how != "clipped" or all(step["norm"] > 2 * memory_runs.CLIP_NORM for step in results[0]["steps"])
    check_what_arrives(results, policy, *((0.01, 1e-3) if how == "halves" else ()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("policy", MEMORIES)
def test_memories_are_of_gradients_that_are_clipped(world, policy, scale, ranks, way):
    """Each rank's by its own norm, the scale left out. What is sent of a difference is the clipped gradient where it was chosen."""
    results = world(ranks).run(memory_runs.recorded, policy, way, "clipped before", scale=scale)
    check_replicas(results)
    check_what_arrives(results, policy)
    for result in results:
        assert all(step["norm"] > 2 * memory_runs.CLIP_NORM for step in result["steps"])
        for before, now in zip(result["steps"], result["steps"][1:]) if policy.startswith("ef21") else ():
            for name, kept in now["kept"].items():
                chosen = kept != before["kept"][name]
                own = now["own"][name].ravel()
                assert chosen.any()
                np.testing.assert_allclose(kept[chosen], own[chosen], rtol=1e-4, atol=1e-5 * np.abs(own).max(), err_msg=name)


@pytest.mark.parametrize("memory", ["ef", "ef21"])
def test_memories_follow_their_layers_to_other_buckets(world, memory):
    for result in world(2).run(memory_runs.other_buckets, f"*.bias=identity; *={memory}+topk:keep=0.05"):
        first, second, carried, third, skipped = result["memories"]
        assert result["layouts"][1] != result["layouts"][2]
        assert not same(first, second) and same(second, carried) and not same(carried, third)
        assert same(third, skipped)


def test_a_step_with_memories_waits_for_nothing(world):
    """Beside a step without: norms of each bucket's parts, of which the small first one has one alone, and of these, on the way to one
    word, and a launch a bucket."""
    for result in world(2).run(gpu_runs.steady_step, "ef+sign:scale=mean"):
        assert result["taken"] == result["events"] == 0
        calls = [name for name in result["calls"] if name != "notice"]
        assert calls == ["encode_on", "decode_on"] * 3 + ["take_memory_back_on"] * 3
        norm, taken = "aten.linalg_vector_norm", ["c10d._allgather_base_", "aten.fill_", "aten.copy_", "aten.copy_"]
        first = [*taken, "aten.zero_", norm, norm]
        other = [*taken, norm, norm, norm, "aten.maximum"]
        assert result["operations"] == [first, other, [*other, "aten.mul_", "aten.ne", "aten.copy_"]]


@pytest.mark.parametrize("memory", ["dgc", "ef21"])
def test_a_warm_up_hands_memories_on(world, memory):
    """On a GPU as on the CPU, to the bit; and sums of differences, which are the mean of what all ranks have sent."""
    policy = f"*.bias=identity:dtype=f32; *={memory}+topk:keep=0.01"
    results = [world(2).run(memory_runs.warmed_up, policy, way) for way in WAYS]
    on_cpu, on_gpu = (of_ranks[0] for of_ranks in results)
    for result in (on_cpu, on_gpu):
        assert result["policy"] == policy
        assert result["sent"] == sorted(result["sent"], reverse=True) and result["sent"][0] > 4 * result["sent"][3]
        for before, after in result["changes"]:
            assert same(before, after) and any(kept.any() for kept in before.values())
    assert same(on_cpu["gradients"], on_gpu["gradients"])
    for of_ranks in results if memory == "ef21" else ():
        check_sums(of_ranks[0]["gradients"], [result["kept"] for result in of_ranks])
