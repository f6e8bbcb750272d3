# SPDX-License-Identifier: Apache-2.0
"""atomo.torch.PowerSGDState: two rounds that add up, with a memory or with residuals that make it unbiased."""

import re

import atomo
import atomo.torch
import numpy as np
import powersgd_runs
import pytest
import torch
from atomo.torch.powersgd import _Factored
from worlds import RankFailed, check_replicas, same

SHAPES = {"wide": (24, 60), "tall": (70, 20), "same": (24, 60), "vector": (33,), "convolution": (16, 4, 3, 3)}
MATRICES = [name for name, shape in SHAPES.items() if len(shape) > 1]
STATES = ["PowerSGDState", "OnStandIn"]


def nmse(found, true):
    return float(((found - true) ** 2).sum() / (true**2).sum())


def as_matrix(gradient):
    return gradient.reshape(len(gradient), -1)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_what_has_the_rank_arrives_as_it_is(world, state, ranks):
    """The sum of the ranks' gradients has the columns that all have in common: rank 3 of 4. Vectors go along."""
    results = world(ranks).run(powersgd_runs.means, SHAPES, state=state, rank=4, low=3, min_ratio=1.0)
    for result in results:
        for name in SHAPES:
            np.testing.assert_allclose(result["arrived"][0][name], result["truth"][0][name], rtol=1e-3, atol=1e-4)
    assert all(same(results[0]["arrived"][0], other["arrived"][0]) for other in results)


@pytest.mark.parametrize("options", [{}, {"residual": "atomo:atoms=rows,bits=2"}, {"residual": "qsgd:bits=2"}])
def test_zero_and_deficient_matrices(world, options):
    """Zeros arrive as zeros. Matrices of a rank below that of P and Q arrive to rounding, already in the first step that has them."""
    ranks = [0, 0, 1, 1, 3, 0, 2]
    for result in world(2).run(powersgd_runs.means, SHAPES, steps=len(ranks), low=ranks, changing=True, rank=4, min_ratio=1.0, **options):
        for step, (low, arrived, true) in enumerate(zip(ranks, result["arrived"], result["truth"])):
            assert np.isfinite(arrived["vector"]).all()
            for name in MATRICES:
                assert np.linalg.matrix_rank(as_matrix(true[name])) == low
                np.testing.assert_allclose(arrived[name], true[name], rtol=0, atol=0 if step < 2 else 1e-3, err_msg=f"{name}, {step}")


def test_unused_directions_are_found_later(world):
    """Of a matrix of rank one only one column of Q is of use; when it has three they are all needed."""
    state = atomo.torch.PowerSGDState([("m", torch.nn.Parameter(torch.zeros(10, 12)))], rank=3)
    state._key = {"step": 5}
    of = _Factored("m", torch.zeros(10, 12), 10, 12, 3)
    kept = torch.zeros(12, 3)
    kept[:, 0] = torch.arange(12.0)
    state._q = {"m": kept}
    start = state._start_of(of)
    assert torch.linalg.matrix_rank(start) == 3
    torch.testing.assert_close(start[:, 0], kept[:, 0] / kept[:, 0].norm())


def of_next_iteration(arrived, true, rank):
    """P P^T M of a power iteration that begins with the rows' space of what arrived, which is that of Q."""
    q = np.linalg.svd(arrived)[2][:rank].T
    p = np.linalg.qr(true @ q)[0]
    return p @ (p.T @ true)


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_warm_start_is_a_power_iteration(world, warm_start):
    """Of gradients that stay the same, without a memory: a step goes on where the one before ended, to the error that the SVD shows to
    be the least. With a Q that is drawn anew no step does. In several buckets, which DDP forms anew after the first step."""
    rank, steps = 3, 8
    result = world(2).run(powersgd_runs.means, SHAPES, steps=steps, state="Forgets", rank=rank, low=rank, noise=0.5, min_ratio=1.0,
                          cap_mb=0.004, warm_start=warm_start)[0]
    for name in MATRICES:
        true = as_matrix(result["truth"][0][name]).astype(np.float64)
        arrived = [as_matrix(step[name]).astype(np.float64) for step in result["arrived"]]
        least = (np.linalg.svd(true)[1][rank:] ** 2).sum() / (true**2).sum()
        errors = [nmse(found, true) for found in arrived]
        from_the_last = [nmse(found, of_next_iteration(before, true, rank)) for before, found in zip(arrived, arrived[1:])]
        assert errors[0] > 2 * least and min(errors) > 0.999 * least, (name, errors, least)
        if warm_start:
            assert max(from_the_last) < 1e-9, (name, from_the_last)
            assert errors[-1] < 1.001 * least, (name, errors, least)
        else:
            assert min(from_the_last) > 1e-3, (name, from_the_last)
            assert min(errors) > 1.5 * least, (name, errors, least)


@pytest.mark.parametrize("options", [{}, {"residual": "qsgd:bits=2"}])
@pytest.mark.parametrize("state", STATES)
def test_a_warm_up_sends_gradients_as_they_are(world, state, options):
    """Before start_step what arrives is the mean, and nothing is left; from it on it is not."""
    result = world(2).run(powersgd_runs.means, SHAPES, steps=4, state=state, rank=1, min_ratio=1.0, start_step=2, changing=True,
                          **options)[0]
    for step, (arrived, true, memory) in enumerate(zip(result["arrived"], result["truth"], result["memories"])):
        for name in MATRICES:
            if step < 2:
                np.testing.assert_array_equal(arrived[name], true[name])
            else:
                assert nmse(arrived[name], true[name]) > 0.1, (step, name)
        assert set(memory) == (set() if step < 2 or options else {f"of.{name}" for name in MATRICES})


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("clip", [None, 0.01])
def test_what_is_left_arrives_later(world, state, clip):
    """decode + memory = gradient + old memory, so the mean of what arrived goes to the true one as 1 / steps; and the memory knows
    nothing of a training loop that clips what arrived."""
    results = world(2).run(powersgd_runs.means, SHAPES, steps=12, state=state, rank=2, min_ratio=1.0, clip=clip)
    for name in ("wide", "tall", "convolution"):
        memory = np.mean([result["memories"][-1][f"of.{name}"] for result in results], 0)
        arrived, true = (np.sum([step[name] for step in results[0][what]], 0) for what in ("arrived", "truth"))
        np.testing.assert_allclose(arrived + memory, true, rtol=1e-3, atol=1e-3)
        assert nmse(arrived, true) < 0.5 * nmse(results[0]["arrived"][0][name], results[0]["truth"][0][name])


def test_a_memory_that_is_forgotten_is_noticed(world):
    result = world(2).run(powersgd_runs.means, SHAPES, steps=12, state="Forgets", rank=2, min_ratio=1.0)[0]
    arrived, true = (np.sum([step["wide"] for step in result[what]], 0) for what in ("arrived", "truth"))
    assert nmse(arrived, true) > 0.5 * nmse(result["arrived"][0]["wide"], result["truth"][0]["wide"])


@pytest.mark.parametrize("state", STATES)
def test_with_residuals_it_is_right_on_average(world, state):
    """The error of the mean of n independent steps goes as 1/n: the ratio of sums is within 4.5 standard errors of 0 along
    the gradient, for each layer. A memory is not unbiased in a step, or the test would show nothing."""
    steps = 60
    results = world(2).run(powersgd_runs.means, SHAPES, steps=steps, state=state, rank=2, min_ratio=1.0,
                           residual="atomo:atoms=rows,bits=1", warm_start=False)[0]
    biased = world(2).run(powersgd_runs.means, SHAPES, steps=4, rank=2, min_ratio=1.0)[0]
    for name in ("wide", "tall", "convolution"):
        true = results["truth"][0][name]
        along = np.array([(step[name] * true).sum() / (true**2).sum() for step in results["arrived"]])
        error = along.std(ddof=1) / np.sqrt(steps)
        assert abs(along.mean() - 1) < 4.5 * error, (name, along.mean(), error)
        each = np.mean([nmse(step[name], true) for step in results["arrived"]])
        mean = nmse(np.mean([step[name] for step in results["arrived"]], 0), true)
        assert mean < 3 * each / steps
        first = biased["arrived"][0][name]
        assert 1 - (first * true).sum() / (true**2).sum() > 0.2
    assert not results["memories"][-1]


def test_bytes_are_those_of_the_factors(world):
    """P and Q in f32, vectors, 8 bytes for what ranks agree on do not count as gradients."""
    result = world(2).run(powersgd_runs.means, SHAPES, rank=2)[0]
    factored = sum(2 * (rows + columns) for rows, columns in ((24, 60), (70, 20), (24, 60), (16, 36)))
    assert result["last"] == 4 * (factored + 33)


def test_matrices_that_would_not_get_smaller_go_as_they_are(world):
    result = world(2).run(powersgd_runs.means, SHAPES, rank=2, min_ratio=100)[0]
    for name in SHAPES:
        np.testing.assert_allclose(result["arrived"][0][name], result["truth"][0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("state", STATES)
def test_a_step_that_is_not_finite_keeps_the_memory(world, state):
    for result in world(2).run(powersgd_runs.means, SHAPES, steps=4, state=state, rank=2, min_ratio=1.0, bad_step=2, changing=True):
        assert np.isnan(result["arrived"][2]["wide"]).any()
        assert same(result["memories"][2], result["memories"][1])
        assert not same(result["memories"][3], result["memories"][2])
        assert all(np.isfinite(value).all() for value in result["arrived"][3].values())


def test_the_memory_is_of_gradients_without_their_scale(world):
    scaled = world(2).run(powersgd_runs.means, SHAPES, steps=3, rank=2, min_ratio=1.0, scales=[1.0, 1024.0, 64.0])[0]
    plain = world(2).run(powersgd_runs.means, SHAPES, steps=3, rank=2, min_ratio=1.0)[0]
    for name in SHAPES:
        np.testing.assert_allclose(scaled["arrived"][2][name], plain["arrived"][2][name], rtol=1e-3, atol=1e-4)


def test_a_memory_of_residuals_is_of_gradients_without_their_scale(world):
    """Powers of two leave every bit of the sums."""
    scaled, plain = (world(2).run(powersgd_runs.means, SHAPES, steps=3, rank=2, min_ratio=1.0, scales=scales,
                                  residual="ef+topk:keep=0.05")[0] for scales in ([1.0, 1024.0, 64.0], None))
    for name in SHAPES:
        np.testing.assert_allclose(scaled["arrived"][2][name], plain["arrived"][2][name], rtol=1e-3, atol=1e-4)


def test_a_gradscaler_skips_its_step(world):
    for result in world(2).run(powersgd_runs.scaled_steps, rank=2, min_ratio=1.0):
        assert same(result["memories"][0], result["memories"][1]) and result["finite"]
        assert result["scales"][1] == 512.0
        assert not same(result["memories"][1], result["memories"][2])


@pytest.mark.parametrize("options", [{}, {"residual": "qsgd:bits=2"}, {"warm_start": False}, {"start_step": 3}])
@pytest.mark.parametrize("state", STATES)
def test_replicas_stay_equal(world, state, options):
    check_replicas(world(2).run(powersgd_runs.train, state, rank=2, min_ratio=1.0, **options))


@pytest.mark.parametrize("options", [{}, {"residual": "dgc:momentum=0.9+topk:keep=0.05"},
                                     {"residual": "momentum:beta=0.9+sign:scale=mean"}])
def test_gradients_may_be_added_up_and_clipped(world, options):
    check_replicas(world(2).run(powersgd_runs.train, "PowerSGDState", rank=2, min_ratio=1.0, accumulate=2, clip=0.01, **options))


@pytest.mark.parametrize("state", STATES)
def test_gradients_of_several_batches_are_one(world, state):
    """Batch after batch under no_sync() as in one backward pass, to rounding: what arrives, what is left of it, and that both are all
    that there was."""
    at_once, added_up = (world(2).run(powersgd_runs.accumulated, state, at_once) for at_once in (True, False))
    check_replicas(added_up)
    for want, found in zip(at_once, added_up):
        for step, other in zip(want["steps"], found["steps"]):
            assert step["memory"].keys() == other["memory"].keys() == {"0.weight", "2.weight", "4.weight"}
            for what in ("arrived", "memory"):
                for name, value in step[what].items():
                    np.testing.assert_allclose(other[what][name], value, rtol=1e-4, atol=3e-5 * np.abs(value).max(), err_msg=name)
    before = {}
    for steps in zip(*(result["steps"] for result in added_up)):
        memory = {name: np.mean([step["memory"][name] for step in steps], 0) for name in steps[0]["memory"]}
        for name, true in steps[0]["true"].items():
            all_there_was = true + before.get(name, 0)
            np.testing.assert_allclose(steps[0]["arrived"][name] + memory.get(name, 0), all_there_was, rtol=1e-4,
                                       atol=1e-5 * np.abs(all_there_was).max(), err_msg=name)
        assert all(np.abs(left).max() > 0.1 * np.abs(steps[0]["true"][name]).max() for name, left in memory.items())
        before = memory


def test_halves(world):
    check_replicas(world(2).run(powersgd_runs.train, "PowerSGDState", rank=2, min_ratio=1.0, net="mixed"))


def test_it_learns_as_pytorchs_own_does(world):
    mine, theirs, plain = (world(2).run(powersgd_runs.train, how, steps=30, rank=4, min_ratio=1.0, cap_mb=25.0)[0]["losses"]
                           for how in ("PowerSGDState", "pytorch", None))
    assert np.mean(mine[-5:]) < 1.05 * np.mean(theirs[-5:]) and np.mean(mine[-5:]) < 0.85 * mine[0]
    assert np.mean(plain[-5:]) < plain[0]


@pytest.mark.parametrize("way", ["dict", "pickle"])
@pytest.mark.parametrize("options", [{}, {"residual": "qsgd:bits=2"}, {"residual": "ef+topk:keep=0.05"}])
def test_a_checkpoint_goes_on_to_the_bit(world, way, options):
    """Each rank from its own: memories differ."""
    whole, halves = (world(2).run(powersgd_runs.train, "PowerSGDState", checkpoint_at=at, way=way, rank=2, min_ratio=1.0, **options)
                     for at in (None, 5))
    for was, now in zip(whole, halves):
        assert same(was["parameters"], now["parameters"]) and was["losses"] == now["losses"]
        assert was["bytes_sent"] == now["bytes_sent"]


@pytest.mark.parametrize("state", ["PowerSGDState", "OnStandIn"])
@pytest.mark.parametrize("residual", [None, "qsgd:bits=2"])
@pytest.mark.parametrize("what, says", [("rank", ["rank is 2 on rank 0, 3 on rank 1"] * 2),
                                        ("start_step", ["start_step is 0 on rank 0, 5 on rank 1"] * 2),
                                        ("scale", ["rank 1 could not encode its gradients", "division by zero"])])
def test_ranks_that_disagree_are_told(world, what, says, residual, state):
    """In a warm-up too, and of an error of one rank."""
    with pytest.raises(RankFailed) as failed:
        world(2).run(powersgd_runs.disagree, what, state, residual=residual)
    assert all(said in error for said, error in zip(says, failed.value.errors)), failed.value.errors


@pytest.mark.parametrize("state", ["PowerSGDState", "OnStandIn"])
def test_another_ranks_memory_is_not_taken(world, state):
    first, second = world(2).run(powersgd_runs.of_rank_0, state)
    assert np.abs(first["left"]).max() > 0 and (first["left"] == second["left"]).all()
    np.testing.assert_allclose(first["arrived"] + (first["kept"] + second["kept"]) / 2, first["left"] / 2, atol=1e-4)


@pytest.mark.parametrize("state", ["PowerSGDState", "OnStandIn"])
def test_a_sparse_gradient_that_is_not_finite_keeps_the_memory(world, state):
    for first, bad in world(2).run(powersgd_runs.sparse_infinity, state):
        assert same(first, bad) and all(of.any() for of in first.values())


def test_what_a_state_without_messages_cannot_do():
    layers = {"m": torch.nn.Parameter(torch.zeros(64, 64))}
    state = atomo.torch.PowerSGDState(layers)
    with pytest.raises(atomo.Error, match="set_policy\\('sign'\\): this state sends no messages"):
        state.set_policy("sign")
    with pytest.raises(atomo.Error, match="is that of a DDPState"):
        state.load_state_dict(atomo.torch.DDPState(layers, "identity").state_dict())
    atomo.torch.PowerSGDState(layers, residual="qsgd:bits=2").set_policy("qsgd:bits=4")


@pytest.mark.parametrize("saved, says", [
    ({"m": (25, 4)}, "the saved Q of 'm' has the shape [25, 4], and Q of its layer [30, 4]"),
    ({"m": (30, 3)}, "the saved Q of 'm' has the shape [30, 3], and Q of its layer [30, 4]"),
    ({"m": (30, 4), "narrow": (3, 4)}, "the saved Q of 'narrow' has the shape [3, 4], and Q of its layer [3, 3]"),
    ({"other": (30, 4)}, "the saved Q of 'other' has the shape [30, 4], and Q of its layer None"),
])
def test_a_saved_q_of_another_shape_is_refused(saved, says):
    layers = {"m": torch.nn.Parameter(torch.zeros(40, 5, 6)), "narrow": torch.nn.Parameter(torch.zeros(50, 3))}
    state = atomo.torch.PowerSGDState(layers, min_ratio=1.0)
    state._q, state._memory = {"m": torch.ones(30, 4)}, {"m": torch.ones(40, 5, 6)}
    before = state.state_dict()
    found = {**before, "q": {name: torch.zeros(shape) for name, shape in saved.items()}, "memory": {}, "step": 7, "warm_start": False}
    for other in (state, atomo.torch.PowerSGDState(min_ratio=1.0)):  # one that knows no layers too
        with pytest.raises(atomo.Error, match=re.escape(says)):
            other.load_state_dict(found)
    assert state.state_dict() == before
    state.load_state_dict({**found, "q": {"m": torch.zeros(30, 4), "narrow": torch.zeros(3, 3)}})
    assert state.step == 7 and not state._q["m"].any()


@pytest.mark.parametrize("options, says", [({"rank": 0}, "rank is 0"), ({"rank": True}, "rank is True"), ({"min_ratio": 0}, "min_ratio is 0"),
                                           ({"min_ratio": "x"}, "min_ratio is 'x': a ratio above 0 is expected"),
                                           ({"residual": "qsgd:bit=2"}, "unknown key 'bit'")])
def test_numbers_that_cannot_be(options, says):
    with pytest.raises(atomo.Error) as said:
        atomo.torch.PowerSGDState([("m", torch.nn.Parameter(torch.zeros(8, 8)))], **options)
    assert says in str(said.value)
