# SPDX-License-Identifier: Apache-2.0
"""OuterSync over two dimensions of a mesh, each with a policy of its own: nodes within sites, and sites."""

import numpy as np
import outer_axes_runs as runs
import pytest
from worlds import RankFailed, check_replicas, same


def near(a, b):
    return a.keys() == b.keys() and all(np.allclose(a[name], b[name], rtol=2e-5, atol=2e-5) for name in a)


def test_two_dimensions_are_diloco_in_diloco(world):
    results = world(4).run(runs.nested)
    assert all(near(result["parameters"], whole) for result, whole in zip(results, runs.reference(14)))
    assert [step + 1 for step, done in enumerate(results[0]["done"]) if done] == [6, 12]
    assert results[0]["rounds"] == (7, 2)


def test_the_one_within_follows(world):
    """Or else the test above would show nothing."""
    results = world(4).run(runs.nested, kind="LeftBehind")
    assert not any(near(result["parameters"], whole) for result, whole in zip(results, runs.reference(14)))


@pytest.mark.parametrize("site", [{"policy": "atomo:bits=0.5"}, {"policy": "qsgd:bits=4", "clip": "median"},
                                  {"policy": "topk:keep=0.05", "memory": "ef:decay=0.95", "verify_every": 1},
                                  {"policy": "atomo:bits=1", "fragments": 3, "delay": 1, "alpha": 0.5}], ids=lambda site: site["policy"])
def test_all_ranks_end_equal_to_the_bit(world, site):
    results = world(4).run(runs.nested, {"policy": "qsgd:bits=4"}, site, steps=15, end=True)
    check_replicas(results)
    for result in results:
        assert same(result["outer"], results[0]["outer"]) and same(result["shared"], result["outer"])
    for first, second in (results[:2], results[2:]):
        assert first["learnt"] == second["learnt"], "the nodes of a site have one memory and one price"


def test_halves_lose_nothing_of_the_outer_parameters(world):
    results = world(4).run(runs.nested, steps=12, dtype="bfloat16")
    check_replicas(results)
    assert all(same(result["shared"], result["outer"]) for result in results)


def test_the_first_node_sends_for_its_site(world):
    """The others tell no more than the tables of what ranks agree on."""
    results = world(4).run(runs.nested, {}, {"policy": "qsgd:bits=4"}, steps=12)
    tables = 2 * results[0]["bytes"][2]
    sent = [result["bytes"][1] for result in results]
    assert sent[1] == sent[3] == tables and sent[0] > tables + 2 * 500 and sent[2] > tables + 2 * 500


@pytest.mark.parametrize("at", [6, 9])
@pytest.mark.parametrize("site", [{}, {"policy": "topk:keep=0.05", "memory": "ef"},
                                  {"policy": "topk:keep=0.05", "memory": "ef21", "fragments": 3, "delay": 1}], ids=str)
def test_a_resumed_run_goes_on_to_the_bit(world, site, at):
    whole, resumed = (world(4).run(runs.nested, {"policy": "atomo:bits=1"}, site, at=at, resume=resume) for resume in (False, True))
    for was, now in zip(whole, resumed):
        assert same(was["parameters"], now["parameters"]) and same(was["outer"], now["outer"])
        assert (was["losses"], was["learnt"], was["rounds"], was["bytes"]) == (now["losses"], now["learnt"], now["rounds"], now["bytes"])


# DDP within a worker


def test_ddp_within_a_worker(world):
    results = world(4).run(runs.in_ddp, runs.EXACT, {})
    check_replicas(results)
    assert near(results[0]["parameters"], runs.reference_of_ddp(12))


def test_each_dimension_has_its_policy(world):
    results = world(4).run(runs.in_ddp, "atomo:bits=2", {"policy": "qsgd:bits=4", "memory": "ef"})
    check_replicas(results)
    assert results[1]["bytes"] == 2 * results[1]["tables"] < results[0]["bytes"]


def test_ranks_of_a_worker_that_are_not_kept_equal_are_an_error(world):
    with pytest.raises(RankFailed) as failed:
        world(4).run(runs.in_ddp, runs.EXACT, {}, forgotten=True)
    for rank, error in enumerate(failed.value.errors):
        first = rank // 2 * 2
        assert f"rank {first + 1} would not send what rank {first} sends. Keep them equal" in error, failed.value.errors


# What goes wrong


@pytest.mark.parametrize("where", ["parameters", "message"])
def test_a_node_that_is_not_finite_stops_no_site(world, where):
    """The exchange of all nodes and sites at that step is skipped, and the next one brings what it would have brought."""
    results = world(4).run(runs.not_finite, where)
    check_replicas(results)
    for rank, result in enumerate(results):
        assert result["kept"] and [step for step, done in enumerate(result["applied"]) if done] == [11]
        assert any(f"the pseudo-gradient of rank {2 + rank % 2}, or" in said for said in result["said"]), result["said"]
        assert all(np.isfinite(p).all() for p in result["parameters"].values())
        assert same(result["outer"], results[0]["outer"])


@pytest.mark.parametrize("what, says", [
    ("every", "every is 7 and fragments 1, so that step 7 has an exchange: it must be a multiple of 2, the every of within"),
    ("fragments", "every is 6 and fragments 2, so that step 3 has an exchange"),
    ("delay", "within has a delay of 1 and 1 fragments"), ("parts", "within has a delay of 0 and 2 fragments"),
    ("parameters", "within has other parameters"),
    ("no mesh", "place within a worker is"), ("disagree", "outer_lr is 0.5 on rank 0, 0.7 on rank 1"),
    ("stepped twice", "within has taken 12 steps and this one 6: this one's step() calls that of within, and the program does not"),
    ("later", "within has taken 1 steps already: make both before the first"),
    ("saved without", "the saved state has no OuterSync as within, this one has one"),
    ("saved with", "the saved state has an OuterSync as within, this one has none")])
def test_what_cannot_work_is_refused(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(4).run(runs.refused, what)
    assert all(says in error for error in failed.value.errors if error), failed.value.errors


def test_a_node_that_fails_is_an_error_everywhere(world):
    with pytest.raises(RankFailed) as failed:
        world(4).run(runs.refused, "one fails")
    assert "NoneType" in failed.value.errors[3]
    assert all("another rank of this worker failed" in error or "could not encode" in error for error in failed.value.errors[:3])
