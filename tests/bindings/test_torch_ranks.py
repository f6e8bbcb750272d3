# SPDX-License-Identifier: Apache-2.0
"""DDPState between ranks: groups and their time limits, ranks that disagree, one rank's checkpoint on all of them."""

import pickle
import re

import atomo
import atomo.torch
import ddp_seams
import numpy as np
import pytest
import torch
from worlds import RankFailed, check_replicas, same

# Groups


def test_a_frozen_rank_is_noticed_within_the_groups_time_limit(world):
    seconds, said = world(2).run(ddp_seams.frozen, 5)[0]
    assert 0.9 < seconds < 5, said
    assert re.search("timed? ?out", said, re.IGNORECASE)


def test_nccls_choices_are_copied_and_not_shared():
    """A new group writes its name and its time limit into the options that it is made with."""
    from atomo.torch import groups

    if not torch.distributed.is_nccl_available():
        assert groups._copied(object()) is None
        return
    options = torch.distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 7
    copy = groups._copied(options)
    assert copy is not options and copy.is_high_priority_stream and copy.config.max_ctas == 7
    copy.group_name = "another"
    assert options.group_name != "another"


@pytest.mark.parametrize("how", ["from DDP", "given"])
def test_ddp_over_a_subgroup(world, how):
    assert world(4).run(ddp_seams.mean_over_a_subgroup, how) == [{0.5}, {0.5}, {2.5}, {2.5}]


def test_a_group_that_is_not_ddps_is_refused(world):
    with pytest.raises(RankFailed) as failed:
        world(4).run(ddp_seams.mean_over_a_subgroup, "forgotten")
    said = "Error: DDP averages over 2 ranks (2, 3), this state over 4 ranks (0, 1, 2, 3)"
    assert failed.value.errors[2].startswith(said)
    assert all("process_group=" in error for error in failed.value.errors)


@pytest.mark.parametrize("given", [False, True])
def test_a_state_outlives_its_process_group(world, given, tmp_path):
    """The second half goes on as if the group had stayed."""
    anew = world(2).run(ddp_seams.groups_made_anew, str(tmp_path / "store"), given)
    check_replicas(anew)
    whole = world(2).run(ddp_seams.trained, "atomo:bits=1", steps=6)
    assert same(anew[0]["parameters"], whole[0]["parameters"])


def test_replicas_of_a_sharded_model_draw_by_themselves(world):
    of = world(4).run(ddp_seams.replicas_of_shards, "qsgd:bits=2")
    assert all((of[a] != of[b]).mean() > 0.1 for a, b in ((0, 2), (1, 3)))


def test_an_error_of_one_step_is_of_that_step(world):
    first, second = world(2).run(ddp_seams.raises_once)
    assert [bool(said) for said in first] == [bool(said) for said in second] == [True, True, False, False], (first, second)
    assert "division by zero" in second[1] and "rank 1 could not encode" in first[1]


def test_a_function_that_says_the_scale_is_not_pickled():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    layers = {"a": torch.nn.Parameter(torch.zeros(50))}
    state = pickle.loads(pickle.dumps(atomo.torch.DDPState(layers, "sign", scale=scaler.get_scale)))
    with pytest.raises(atomo.Error, match="no pickle holds: set state.scale"):
        state._scale_now()
    state.scale = scaler.get_scale
    assert state._scale_now() == 8.0
    assert pickle.loads(pickle.dumps(atomo.torch.DDPState(layers, "sign", scale=4.0))).scale == 4.0


# Agreement


@pytest.mark.parametrize("what, says", [
    ("seed", "seed is 0 on rank 0, 1 on rank 1"), ("channel", "channel is 0 on rank 0, 1 on rank 1"),
    ("start_step", "start_step is 0 on rank 0, 1 on rank 1"),
    ("clip_norm", "clip_norm is 1 on rank 0, 2 on rank 1"),
    ("scale", "scale is 1.0 on rank 0, 2.0 on rank 1"),
    ("rate_in_memory", "rate_in_memory is 1.0 on rank 0, 0.5 on rank 1"),
    ("policy", "policy is 'qsgd:bits=6' on rank 0, 'qsgd:bits=4' on rank 1"),
    ("layers", "layers is ['0.weight', [48, 24], 'f32'] on rank 0, ['other.0.weight', [48, 24], 'f32'] on rank 1")])
def test_ranks_that_disagree_say_in_what(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_seams.disagree, what, 0)
    assert failed.value.errors == [f"Error: the ranks' states differ, and their replicas would: {says}"] * 2


@pytest.mark.parametrize("what, says", [("seed", "seed is 0 on rank 0, 7 on rank 1"),
                                        ("step", "step is 2 on rank 0, 7 on rank 1")])
def test_one_rank_alone_that_loads_a_checkpoint_is_noticed(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_seams.disagree, what, 2)
    assert all(says in error for error in failed.value.errors)


def test_of_many_ranks_each_is_told():
    from atomo.torch import groups

    facts = [{"seed": seed, "layers": [["a", [1], "f32"], *more]}
             for seed, more in ((1, []), (2, []), (1, [["b", [2], "f32"]]), (3, []), (4, []), (5, []), (6, []))]
    assert groups._differences(facts) == [
        "seed is 1 on rank 0, 2 on rank 1, 3 on rank 3, 4 on rank 4, 5 on rank 5, others on 1 more",
        "layers is 'no more' on rank 0, ['b', [2], 'f32'] on rank 2"]


# One rank's checkpoint on all ranks


BUDGETS = ["atomo:bits=1", "atomo:bits=0.5,atoms=rows", "atomo:atoms=coordinate,bits=1", "atomo:atoms=blocks,bits=1",
           "atomo:atoms=svd,bits=2", "atomo:bits=2,cap=20", "atomo:bits=26,cap=26,atoms=rows", "atomo:bits=1+blosc:codec=zstd",
           "*.bias=identity:dtype=f32; 0.*=qsgd:bits=8; *=atomo:bits=1"]


@pytest.mark.parametrize("policy", BUDGETS)
def test_one_ranks_checkpoint_serves_all(world, policy):
    """To the bit, though each rank has gradients and prices of its own."""
    whole = world(2).run(ddp_seams.one_checkpoint, policy, resume=False)
    resumed = world(2).run(ddp_seams.one_checkpoint, policy)
    check_replicas(resumed)
    assert resumed[0]["state"] == resumed[1]["state"]
    for was, now in zip(whole, resumed):
        assert same(was["parameters"], now["parameters"])
        assert was["losses"][4:] == now["losses"]
        assert was["bytes_sent"] == now["bytes_sent"]


def test_ranks_have_prices_of_their_own(world):
    """Or else the test above would show nothing."""
    first, second = world(2).run(ddp_seams.one_checkpoint, "atomo:bits=1", resume=False)
    assert first["log"]["last"]["price"] != second["log"]["last"]["price"]


def test_a_checkpoint_of_fewer_ranks_goes_on(world):
    state = world(2).run(ddp_seams.one_checkpoint, "atomo:bits=1", resume=False)[0]["state"]
    first, second = state["compressor"]
    assert first != second
    results = world(4).run(ddp_seams.resumed_from, state)
    check_replicas(results)
    prices = [result["price"] for result in results]
    assert prices[:2] == prices[2:] and prices[0] != prices[1] and min(prices) > 0


@pytest.mark.parametrize("layer", ["4.weight", "0.weight"])
def test_a_step_that_failed_teaches_nothing(world, layer):
    """In its first bucket or its last. The run goes on from what all ranks know, with a checkpoint in between or not."""
    results, others = (world(2).run(ddp_seams.goes_on_after_an_error, resume, layer) for resume in (False, True))
    check_replicas(results)
    assert same(results[0]["parameters"], others[0]["parameters"])


# Refusals


@pytest.mark.parametrize("state", [None, "atomo:bits=0.5", object()])
def test_the_hook_wants_a_state(state):
    with pytest.raises(atomo.Error, match=r"make an atomo.torch.DDPState\(model, policy\)"):
        atomo.torch.ddp_hook(state, None)


@pytest.mark.parametrize("options", [{"seed": None}, {"seed": -1}, {"seed": 2**64}, {"seed": 1.0}, {"channel": 65536},
                                     {"start_step": -1}, {"start_step": True}, {"threads": 0}])
def test_keys_are_looked_at_when_a_state_is_made(options):
    (name,) = options
    with pytest.raises(atomo.Error, match=f"{name} is .*: it must be an integer from [01] to"):
        atomo.torch.DDPState(torch.nn.Linear(4, 4), "qsgd:bits=4", **options)


def test_a_state_tells_what_it_is():
    said = repr(atomo.torch.DDPState(torch.nn.Linear(4, 4), "qsgd:bits=4", seed=3))
    assert said == "atomo.torch.DDPState(2 layers of 20 elements, 'qsgd:bits=4', seed=3, step=0)"
    assert np.isfinite(list(atomo.torch.DDPState(torch.nn.Linear(4, 4), "sign").log()["last"].values())).all()
