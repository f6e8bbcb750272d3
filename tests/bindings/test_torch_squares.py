# SPDX-License-Identifier: Apache-2.0
"""atomo.torch.Squares and AdamW: what ranks tell of their squares, and what an optimiser makes of it."""

import copy
import pickle
import warnings

import atomo
import atomo.torch
import numpy as np
import pytest
import squares_runs
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from worlds import RankFailed, check_replicas, same

EXACT = "identity:dtype=f32"
ONE, AVERAGE, WEIGHT = range(3)


# What is told


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("policy, precondition", [(EXACT, False), (f"ef+{EXACT}", False), (EXACT, True)])
def test_without_a_codecs_noise_the_sums_are_those_of_the_gradients(world, state, ranks, policy, precondition):
    results = world(ranks).run(squares_runs.told, policy, state=state, scale=8.0, steps=2, precondition=precondition)
    for result in results:
        seen, truth = result["seen"][-1], result["truth"][-1]
        assert seen.keys() == truth.keys() == {"0.weight", "2.weight", "4.weight"}
        for name, of in seen.items():
            np.testing.assert_allclose(of["sums"], [truth[name]["one"], truth[name]["average"], 1], rtol=2e-4)
            for part in ("rows", "columns"):  # each mean is a power of two on each rank, above or below what it stands for
                assert (of[part] >= 0.4999 * truth[name][part]).all() and (of[part] <= 2.0001 * truth[name][part]).all()
    assert all(same(results[0]["seen"][-1][name], other["seen"][-1][name]) for other in results for name in other["names"])


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
def test_a_step_that_ends_by_all_reduce_tells(world, state):
    """Sparse gradients come last, and are none of those."""
    for result in world(2).run(squares_runs.told, EXACT, state=state, net="sparse first", steps=2):
        assert sorted(result["names"]) == ["hidden.weight", "last.weight"]
        for name in result["names"]:
            truth = result["truth"][-1][name]
            np.testing.assert_allclose(result["seen"][-1][name]["sums"], [truth["one"], truth["average"], 1], rtol=2e-4)


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
def test_first_squares_that_are_not_finite_are_told_again(world, state):
    """In the next step, and then at the period."""
    weights = [[of["sums"][WEIGHT] for of in seen.values()] for seen in
               world(2).run(squares_runs.told, "qsgd:bits=4", steps=5, every=4, beta2=0.9, bad_step=0, state=state)[0]["seen"]]
    once = 1 - 0.9**4
    for found, expected in zip(weights, [0, once, once, once, 1 - 0.9**8]):
        np.testing.assert_allclose(found, [expected] * 3, rtol=1e-6)


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
def test_the_message_is_counted(world, state):
    """A mean takes 9 bits, a sum 32; a container's head and its kinds are around them."""
    each_step, every_other, once = (
        world(2).run(squares_runs.told, "qsgd:bits=4", steps=4, every=every, state=state)[0]["bytes"] for every in (1, 2, 4))
    message = every_other - once
    assert each_step - once == 3 * message
    content = (48 + 24 + 48 + 48 + 10 + 48) * 9 / 8 + 3 * 2 * 4
    assert content < message < content + 64 + 7 * 16 + 100


def ratio_of_average(results, name):
    """Of the estimates' mean to the truth, and the standard error of that mean. Steps draw independently."""
    of = results[0]
    estimates = np.array([seen[name]["sums"][AVERAGE] for seen in of["seen"]], float) / of["truth"][0][name]["average"]
    return estimates.mean(), estimates.std(ddof=1) / np.sqrt(len(estimates))


def test_the_averages_squares_are_estimated_without_bias(world):
    """Three layers at 4.5 standard errors: a family error below 2e-5. The noise itself is several times the truth."""
    results = world(2).run(squares_runs.told, "qsgd:bits=1,bucket=64", steps=150)
    noisy = world(2).run(squares_runs.told, "qsgd:bits=1,bucket=64", steps=30, squares="OneSum")
    for name in results[0]["names"]:
        mean, error = ratio_of_average(results, name)
        assert abs(mean - 1) < 4.5 * error, (name, mean, error)
        mean, error = ratio_of_average(noisy, name)
        assert mean - 1 > 10 * error, "the noise is too small to show that it is taken off"


def test_draws_that_ranks_share_are_noticed(world):
    """Their errors are then in the cross products, wherever gradients are alike."""
    results = world(2).run(squares_runs.told, "randomk:keep=0.1", steps=150, state="AlikeDraws")
    assert any(abs(mean - 1) > 4.5 * error
               for mean, error in (ratio_of_average(results, name) for name in results[0]["names"]))


def ratios_of_sums(world, policy, **options):
    """Over 40 steps of other batches, of the estimates of the average's squares to the true ones, by layer."""
    of = world(4).run(squares_runs.told, policy, steps=40, same=False, **options)[0]
    return [sum(seen[name]["sums"][AVERAGE] for seen in of["seen"]) / sum(truth[name]["average"] for truth in of["truth"])
            for name in of["names"]]


@pytest.mark.parametrize("memory, codec, state, least", [
    ("ef", "topk:keep=0.05", "Watched", 0.95), ("ef", "topk:keep=0.05", "OnStandIn", 0.95),
    ("ef", "atomo:bits=1,content=nearest", "Watched", 0.95), ("momentum:beta=0.999", "topk:keep=0.02", "Watched", 0.85)])
def test_a_memory_makes_a_biased_codecs_estimate_nearly_true(world, memory, codec, state, least):
    """Some of it is still in the memories behind the last step: .96 to .99 of the truth with ef here, .87 to .92 with momentum. Without a
    memory a codec that is biased tells too little, and with its noise in it the estimate is too large."""
    kept = ratios_of_sums(world, f"{memory}+{codec}", state=state)
    assert least < min(kept) and max(kept) < 1.02, kept
    assert max(ratios_of_sums(world, codec, state=state)) < least - 0.05
    if state == "Watched":
        assert min(ratios_of_sums(world, f"{memory}+{codec}", squares="OneSum")) > 1.05


def test_running_means_are_adams(world):
    """m <- b m + (1 - b) x every `every` steps, b = beta2^every, and the weight that corrects for the zero start."""
    result = world(2).run(squares_runs.told, EXACT, steps=7, every=3, beta2=0.9, same=False)[0]
    kept, sums = 0.9**3, np.zeros(3)
    for step in range(7):
        truth = result["truth"][step]["2.weight"]
        if step % 3 == 0:
            sums = kept * sums + (1 - kept) * np.array([truth["one"], truth["average"], 1])
        np.testing.assert_allclose(result["seen"][step]["2.weight"]["sums"], sums, rtol=1e-3)


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
def test_a_step_that_is_not_finite_leaves_them(world, state):
    result = world(2).run(squares_runs.told, "qsgd:bits=4", steps=3, beta2=0.9, bad_step=1, state=state)[0]
    before, bad, after = result["seen"]
    assert all(same(before[name], bad[name]) for name in before)
    assert not any(same(before[name], after[name]) for name in before)
    assert all(np.isfinite(part).all() for of in after.values() for part in of.values())


def test_layers_of_all_types_and_shapes(world):
    assert set(world(2).run(squares_runs.told, "qsgd:bits=8", net="mixed")[0]["names"]) == {"f32.weight", "bf16.weight", "f16.weight"}
    result = world(2).run(squares_runs.told, EXACT, net="unusual")[0]
    assert result["moments"]["convolution.weight"].shape == (8, 2, 3, 3)


def test_the_second_moment_is_the_product_of_means():
    rows, columns = torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([2.0, 1.0, 3.0, 2.0, 2.0])
    of = atomo.torch.LayerSquares(torch.Size([4, 5]), rows * 0.5, columns * 0.5, torch.tensor([40.0, 20.0, 1.0]) * 0.5, 4)
    expected = torch.outer(rows, columns) / 2 * 0.5
    torch.testing.assert_close(of.second_moment(), expected)
    of.sums = torch.tensor([40.0, -1.0, 1.0]) * 0.5  # the estimate may be below 0: half of independent gradients' then
    torch.testing.assert_close(of.second_moment(), expected / 0.5 * 0.5 / 4)
    of.sums = torch.tensor([40.0, 100.0, 1.0]) * 0.5
    torch.testing.assert_close(of.second_moment(), expected * 2)


@pytest.mark.parametrize("size", [1e-15, 1e-17, 1e-19, 1e-21])
def test_tiny_gradients_have_units_and_moments(size):
    """Their squares are near the least that f32 has."""
    square = torch.tensor(size) ** 2
    weight = torch.tensor(1e-3)
    of = atomo.torch.LayerSquares(torch.Size([8, 8]), square.repeat(8) * weight, square.repeat(8) * weight,
                                  torch.stack([64 * square, 64 * square, torch.tensor(1.0)]) * weight, 1)
    row, column = of.factors()
    torch.testing.assert_close(torch.outer(row, column), torch.full((8, 8), size), rtol=0.2, atol=0)
    torch.testing.assert_close(of.units(), torch.full((8, 8), size**0.5), rtol=0.2, atol=0)


def test_a_state_is_a_copy():
    """It may be kept beside a run that goes on, and be loaded twice."""
    squares = atomo.torch.Squares(beta2=0.9)
    squares.load_state_dict({**squares.state_dict(), "averages": {"b": torch.ones(2)}, "layers": {"a": {
        "shape": [4, 4], "rows": torch.ones(4), "columns": torch.ones(4), "sums": torch.ones(3), "ranks": 2}}})
    kept, other = squares.state_dict(), atomo.torch.Squares()
    other.load_state_dict(kept)
    for of in (squares["a"], other["a"]):
        of.rows.fill_(7)
    squares._averages["b"].fill_(7)
    assert (kept["layers"]["a"]["rows"] == 1).all() and (kept["averages"]["b"] == 1).all()


# AdamW


@pytest.mark.parametrize("saved_by, dtype", [
    *((atomo.torch.AdamW, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)),
    (torch.optim.AdamW, torch.float32), (torch.optim.AdamW, torch.bfloat16)])
def test_an_optimiser_goes_on(saved_by, dtype):
    """With moments of f32 whatever parameters are; from torch's own, whose moments have the parameters' type."""
    def made(of):
        net = squares_runs.make_net("small").to(dtype)
        return net, of(net.parameters(), lr=0.01)

    def steps(net, optimizer, numbers):
        for step in numbers:
            x, y = (part.to(dtype) for part in squares_runs.batch_of(step, 0, 24))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()

    whole, other = made(saved_by), made(atomo.torch.AdamW)
    steps(*whole, range(3))
    other[0].load_state_dict(whole[0].state_dict())
    other[1].load_state_dict(whole[1].state_dict())
    before = [{name: part.clone() for name, part in of.items() if torch.is_tensor(part) and part.ndim} for of in other[1].state.values()]
    steps(*whole, range(3, 6))
    assert all(part.dtype == torch.float32 for of in before for part in of.values())
    steps(*other, range(3, 6))
    for mine, theirs in zip(other[0].parameters(), whole[0].parameters()):
        if saved_by is atomo.torch.AdamW:
            assert torch.equal(mine, theirs)
        else:
            torch.testing.assert_close(mine, theirs, **({} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.01}))


def test_an_optimiser_is_copied():
    net = squares_runs.make_net("small")
    squares = atomo.torch.Squares(every=5)
    state = atomo.torch.DDPState(net, "qsgd:bits=4", squares=squares)
    optimizer = atomo.torch.AdamW(net.parameters(), squares=squares)
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert again.squares.every == 5 and again.squares is not state.squares
        with pytest.warns(match=UNTOLD):  # the state has the squares that were copied
            moved(again)


UNTOLD = "squares= was never told, .*: give the same Squares to DDPState"


def moved(optimizer):
    """By a step along ones."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def test_squares_that_no_state_has_are_warned_of():
    """Once, in the first step that moves anything, at the line that asked for it."""
    parameter, squares = torch.nn.Parameter(torch.zeros(4, 4)), atomo.torch.Squares()
    squares.load_state_dict(squares.state_dict())
    optimizer = atomo.torch.AdamW([parameter], squares=squares)
    with warnings.catch_warnings(action="error"):
        get_optimizer_state_dict(torch.nn.ParameterList([parameter]), optimizer)  # steps at a rate of 0
        optimizer.zero_grad()
        optimizer.step()
    with pytest.warns(match=UNTOLD) as said:
        moved(optimizer)
    assert [warning.filename for warning in said] == [__file__]
    with warnings.catch_warnings(action="error"):
        moved(optimizer)


def test_squares_that_a_state_has_are_not_warned_of():
    """Also of a state that knows no model yet, or came from a pickle; and not squares that are never told."""
    net, squares = squares_runs.make_net("small"), [atomo.torch.Squares() for _ in range(2)]
    states = [atomo.torch.DDPState(of, "qsgd:bits=4", squares=each) for of, each in zip((net, None), squares)]
    revived = [pickle.loads(pickle.dumps(states[0])), pickle.loads(pickle.dumps(states[0])).bind(net)]
    with warnings.catch_warnings(action="error"):
        for each in (*squares, *(state.squares for state in revived), atomo.torch.Squares(every=0, precondition=True), None):
            moved(atomo.torch.AdamW(net.parameters(), squares=each))


@pytest.mark.parametrize("how", ["warm-up", "not finite", "a checkpoint"])
def test_steps_without_squares_are_not_warned_of(world, how):
    """Nothing is told in a warm-up, nor of gradients that are not finite."""
    assert world(2).run(squares_runs.first_steps, how) == [[]] * 2


def test_what_was_not_finite_moves_nothing():
    untold = atomo.torch.LayerSquares(torch.Size([4, 4]), torch.zeros(4), torch.zeros(4), torch.zeros(3), 2)
    parameter = torch.nn.Parameter(torch.ones(4, 4))
    parameter.grad = torch.ones(4, 4)
    atomo.torch.AdamW([parameter], lr=1.0, weight_decay=0.0, squares=Told({parameter: untold})).step()
    assert (parameter == 1).all()


@pytest.mark.parametrize("options", [{}, {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}])
def test_without_squares_it_is_torchs(options):
    nets = [squares_runs.make_net("small") for _ in range(2)]
    optimizers = [atomo.torch.AdamW(nets[0].parameters(), **options), torch.optim.AdamW(nets[1].parameters(), **options)]
    for step in range(5):
        for net, optimizer in zip(nets, optimizers):
            x, y = squares_runs.batch_of(step, 0, 24)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters()):
        torch.testing.assert_close(mine, theirs)


class Told(dict):
    """Squares that a test made."""


def step_of(gradient, second_moment, **options):
    """The update of one step, decay left out, in units of the rate."""
    parameter = torch.nn.Parameter(torch.zeros(gradient.shape))
    ranks = 4
    rows, columns = second_moment.mean(1), second_moment.mean(0)
    total = second_moment.sum()
    of = atomo.torch.LayerSquares(gradient.shape, rows, columns, torch.stack([total, total, torch.ones(())]), ranks)
    parameter.grad = gradient
    atomo.torch.AdamW([parameter], lr=1.0, weight_decay=0.0, squares=Told({parameter: of}), **options).step()
    return -parameter.detach()


def test_what_is_told_is_divided_by():
    gradient = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    moment = torch.outer(torch.arange(1.0, 7), torch.arange(2.0, 7))
    torch.testing.assert_close(step_of(gradient, moment), gradient / moment.sqrt())


def test_an_entry_moves_no_further_than_adam_lets_it():
    """(1 - .9) / sqrt(1 - .999) = 3.16."""
    gradient = torch.tensor([[1e4, -1e4], [1.0, 1e-3]]).repeat(2, 2)
    update = step_of(gradient, torch.ones(4, 4) * 1e-30)
    torch.testing.assert_close(update.abs(), torch.full((4, 4), 10**0.5))
    assert step_of(gradient, torch.zeros(4, 4)).isfinite().all()


def test_an_update_keeps_within_its_bound():
    gradient = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    update = step_of(gradient, torch.ones(6, 5), max_update=0.5)
    assert update.square().mean().sqrt().item() == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(update / update[0, 0], gradient / gradient[0, 0])


@pytest.mark.parametrize("policy", ["atomo:bits=1", "qsgd:bits=2"])
@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
@pytest.mark.parametrize("precondition", [False, True])
def test_replicas_stay_equal(world, policy, state, precondition):
    results = world(2).run(squares_runs.train, policy, state=state, precondition=precondition)
    check_replicas(results)
    assert results[0]["losses"][-1] < results[0]["losses"][0]


@pytest.mark.parametrize("way", ["dict", "pickle"])
@pytest.mark.parametrize("every, precondition", [(3, False), (3, True), (0, True)])
def test_a_checkpoint_goes_on_to_the_bit(world, way, every, precondition):
    whole, halves = (world(2).run(squares_runs.train, "qsgd:bits=4", every=every, checkpoint_at=at, way=way, precondition=precondition)
                     for at in (None, 5))
    assert same(whole[0]["parameters"], halves[0]["parameters"])
    assert whole[0]["losses"] == halves[0]["losses"]
    assert whole[0]["bytes_sent"] == halves[0]["bytes_sent"]


# Units


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
@pytest.mark.parametrize("every", [0, 2])
def test_gradients_are_encoded_in_units_of_the_second_moment(world, state, every):
    """What is kept of a gradient, and what is left in its memory, is chosen in these units. Every 0 steps nothing is told."""
    for result in world(2).run(squares_runs.preconditioned, "topk:keep=0.1", state=state, every=every):
        for expected, found, _ in result:
            for name, gradient in found.items():
                np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6 * np.abs(expected[name]).max(), err_msg=name)
        units = result[-1][2]
        assert np.ptp(units["2.weight"]) > 0 and np.ndim(units["2.bias"]) == 0 and units["2.bias"] < 0.7


@pytest.mark.parametrize("state", ["Watched", "OnStandIn"])
def test_units_of_averages_are_sent_nowhere(world, state):
    """And AdamW divides by moments of its own."""
    plain, units = (world(2).run(squares_runs.train, "qsgd:bits=4", state=state, every=0, told=told, precondition=told)
                    for told in (False, True))
    check_replicas(units)
    assert plain[0]["bytes_sent"] == units[0]["bytes_sent"]
    assert not same(plain[0]["parameters"], units[0]["parameters"])


@pytest.mark.parametrize("every", [0, 1])
def test_units_of_a_scalar_and_of_channels_last(world, every):
    """Without a codec they change nothing but roundings, in the first step and in later ones."""
    for seen in world(2).run(squares_runs.averages, "unusual", every):
        for plain, divided in seen:
            for name, gradient in plain.items():
                np.testing.assert_allclose(divided[name], gradient, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_unit_is_not_far_below_the_others():
    rows = torch.tensor([1.0, 1.0, 1.0, 0.0])
    of = atomo.torch.LayerSquares(torch.Size([4, 5]), rows, torch.ones(5), torch.tensor([15.0, 15.0, 1.0]), 2)
    units = of.units()
    torch.testing.assert_close(units[:3], of.second_moment()[:3]**0.25)
    torch.testing.assert_close(units[3], torch.full((5,), (of.second_moment().mean().sqrt().item() / 1024)**0.5))
    untold = atomo.torch.LayerSquares(torch.Size([4, 5]), torch.zeros(4), torch.zeros(5), torch.zeros(3), 2)
    assert (untold.units() == 1).all()


def test_units_of_halves_are_refused(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(squares_runs.halves)
    assert all("precondition=True takes gradients of f32, that of '0.weight' is bf16" in error
               or "precondition=True takes gradients of f32, that of '4.bias' is bf16" in error for error in failed.value.errors)


# Errors


def test_ranks_that_disagree_are_told(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(squares_runs.disagree)
    assert all("squares is [2, 0.999, False] on rank 0, [3, 0.999, False] on rank 1" in error for error in failed.value.errors)


@pytest.mark.parametrize("make, says", [
    (lambda: atomo.torch.Squares(every=-1), "every=-1: a whole number of steps is expected, or 0 to tell nothing"),
    (lambda: atomo.torch.Squares(every=0), "every=0 tells nothing: give precondition=True too, or leave squares out"),
    (lambda: atomo.torch.Squares(every=2.5), "every=2.5"),
    (lambda: atomo.torch.Squares(every=True), "every=True: a whole number of steps is expected, or 0 to tell nothing"),
    *((lambda value=value: atomo.torch.Squares(beta2=value), f"beta2 is {value!r}: a number from 0 to below 1 is expected")
      for value in (1.0, -0.1, float("nan"), "x", None, True)),
    (lambda: atomo.torch.DDPState([("w", torch.nn.Parameter(torch.zeros(1)))], squares=True), "squares is True: an atomo.torch.Squares()"),
    (lambda: atomo.torch.AdamW([torch.zeros(1)], lr=-1), "lr=-1"),
    (lambda: atomo.torch.AdamW([torch.zeros(1)], betas=(0.9, 1)), "betas below 1"),
    (lambda: atomo.torch.AdamW([torch.zeros(1)], max_update=0), "max_update=0")])
def test_numbers_that_cannot_be(make, says):
    with pytest.raises(atomo.Error) as said:
        make()
    assert says in str(said.value)
