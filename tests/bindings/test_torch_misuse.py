# SPDX-License-Identifier: Apache-2.0
"""atomo.torch is told what cannot be: an error names it, on every rank, and nothing is lost."""

import copy
import math

import atomo
import atomo.torch
import misuse_runs
import numpy as np
import pytest
import torch
from worlds import RankFailed

LAYERS = {"a": torch.nn.Parameter(torch.zeros(50))}


def state_of(**options):
    return atomo.torch.DDPState(LAYERS, "ef+topk:keep=0.1", **options)


# Squares and AdamW


@pytest.mark.parametrize("how", ["saved", "taken away"])
def test_a_parameter_that_is_told_of_no_longer_moves_as_before(world, how):
    """Its own second moment begins in that step: corrected for all steps, it would let the weight move 25 rates."""
    last, after = world(1).run(misuse_runs.told_no_longer, how)[0]
    assert last == pytest.approx(1, abs=0.02)
    assert after == pytest.approx([1] * 10, abs=0.05)


def test_a_cold_second_moment_is_bounded():
    """A first moment of many steps over the root of one small square."""
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = atomo.torch.AdamW([parameter], lr=1.0, weight_decay=0)
    optimizer.state[parameter] = {"step": 1000, "exp_avg": torch.ones(4)}
    parameter.grad = torch.full((4,), 1e-6)
    optimizer.step()
    assert torch.equal(parameter, torch.full((4,), -(1 - 0.9) / math.sqrt(1 - 0.999)))


def test_squares_are_of_one_state(world):
    said, told = world(1).run(misuse_runs.squares_of_two)[0]
    assert said == "these squares are another DDPState's, which has 'weight': make a Squares() for each"
    assert told


def adamw_state(**changes):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=0.1, **changes)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("state, said", [
    (lambda: adamw_state(maximize=True), "the saved state has maximize=True, which this AdamW does not have"),
    (lambda: adamw_state(amsgrad=True), "the saved state has amsgrad=True"),
    (lambda: torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1).state_dict(), "the saved state has no 'betas'"),
])
def test_states_of_other_optimisers_are_refused(state, said):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = atomo.torch.AdamW([parameter], lr=0.1)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(atomo.Error, match=said):
        optimizer.load_state_dict(state())
    assert optimizer.state_dict() == before
    optimizer.load_state_dict(adamw_state())
    assert optimizer.state[parameter]["own_steps"] == 1


@pytest.mark.parametrize("options, said", [
    ({"squares": 42}, r"squares is 42: an atomo.torch.Squares\(\) is expected"),
    ({"betas": (0.9,)}, r"betas=\(0.9,\)"),
    ({"betas": 0.9}, "betas=0.9"),
    ({"lr": "x"}, "lr='x'"),
    ({"eps": -1.0}, "eps=-1.0"),
])
def test_an_adamw_that_cannot_be_is_refused(options, said):
    with pytest.raises(atomo.Error, match=said):
        atomo.torch.AdamW([torch.nn.Parameter(torch.zeros(3))], **options)


def test_an_adamws_groups_are_looked_at():
    with pytest.raises(atomo.Error, match=r"lr=-5"):
        atomo.torch.AdamW([{"params": [torch.nn.Parameter(torch.zeros(3))], "lr": -5}])
    with pytest.raises(atomo.Error, match=r"a parameter of shape \[3\] is torch.complex64"):
        atomo.torch.AdamW([torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))])


# Numbers


@pytest.mark.parametrize("options, said", [
    ({"scale": 0}, "scale is 0: a number above 0 is expected"),
    ({"scale": float("nan")}, "scale is nan"),
    ({"scale": "x"}, "scale is 'x'"),
    ({"scale": None}, "scale is None"),
    ({"budget_share": [1.0, 1.0, 5000.0]}, "budget_share of step 2 is 5000.0: a number from 1/1024 to 1024 is expected"),
    ({"budget_share": []}, "budget_share is empty"),
    ({"budget_share": "x"}, "budget_share of step 0 is 'x'"),
    ({"rate_in_memory": -1}, "rate_in_memory is -1: a part of the highest learning rate"),
    ({"rate_in_memory": "x"}, "rate_in_memory is 'x'"),
])
def test_numbers_are_looked_at_when_a_state_is_made(options, said):
    with pytest.raises(atomo.Error, match=said):
        state_of(**options)


def test_shares_may_be_an_array():
    shares = state_of(budget_share=np.array([1.0, 2.0]))
    assert [shares._share_of(step) for step in range(3)] == [1.0, 2.0, 2.0]


# Ranks


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_scale_that_fails_on_one_rank_is_told_to_all(world, clip_norm):
    """At once, and the next step is sound."""
    told = world(2).run(misuse_runs.scale_fails, clip_norm)
    assert told[1][0] == "RuntimeError: no scale yet"
    assert "rank 1 could not encode" in told[0][0]
    assert all(seconds < 60 for _, seconds in told)


@pytest.mark.parametrize("policy", ["ef+topk:keep=.1", "qsgd:bits=4"])
def test_ranks_of_two_scales_are_told(world, policy):
    with pytest.raises(RankFailed) as failed:
        world(2).run(misuse_runs.scales_differ, policy)
    assert all("scale is 1.0 on rank 0, 2.0 on rank 1" in error for error in failed.value.errors)


# Checkpoints


def test_outer_state_is_loaded_while_an_exchange_is_pending(world):
    """Its outcome is dropped: it belongs to a run that is no more."""
    assert world(1).run(misuse_runs.loaded_while_pending) == [(1, 0, True, 0)]


def test_what_is_no_outer_state_is_refused_and_changes_nothing(world):
    said, alike = world(1).run(misuse_runs.refused_outer_states)[0]
    assert alike and None not in said
    assert "the saved state has 0 compressors" in said[1] and "seed is None" in said[2]
    assert "in 'outer' [1] for 'weight', which is [8, 8]" in said[3] and "in 'outer' nothing" in said[4]
    assert "in 'momentum' [3]" in said[5] and "rank is None" in said[6]
    assert all("the saved state has no '" in text for text in said[7:])


def test_what_is_no_state_of_ddp_is_refused_and_changes_nothing():
    state = state_of(seed=5)
    saved = state.state_dict()
    for left_out in saved:
        with pytest.raises(atomo.Error, match=f"the saved state has no '{left_out}'"):
            state.load_state_dict({**{name: value for name, value in saved.items() if name != left_out}, **({} if left_out == "seed" else {"seed": 9})})
    with pytest.raises(atomo.Error, match="seed is None"):
        state.load_state_dict({**saved, "seed": None})
    assert state.state_dict() == saved


def test_squares_that_are_none_are_refused():
    squares = atomo.torch.Squares()
    state = state_of(squares=squares)
    with pytest.raises(atomo.Error, match="what was saved of squares has no 'beta2'"):
        state.load_state_dict({**state.state_dict(), "squares": {"every": 3}})
    assert squares.every == 10


def test_a_powersgd_memory_of_another_shape_is_refused():
    state = atomo.torch.PowerSGDState({"a": torch.nn.Parameter(torch.zeros(20, 20))}, rank=1)
    saved = state.state_dict()
    with pytest.raises(atomo.Error, match=r"the saved memory of 'a' has the shape \[3\], and its layer \[20, 20\]"):
        state.load_state_dict({**saved, "memory": {"a": torch.zeros(3)}})
    with pytest.raises(atomo.Error, match="the saved state has no 'q'"):
        state.load_state_dict({name: value for name, value in saved.items() if name != "q"})


# Models


def test_one_parameter_under_two_names_is_refused(world):
    said = world(1).run(misuse_runs.one_parameter_twice)[0]
    assert said == ["'a.weight' and 'b.weight' are one parameter: give it one name, as named_parameters() does"] * 2
