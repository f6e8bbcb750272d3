# SPDX-License-Identifier: Apache-2.0
"""OuterSync between gloo ranks: DiLoCo to the bit, replicas, delays, checkpoints, and what goes wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import atomo
import atomo.torch
import numpy as np
import outer_faults
import outer_runs
import pytest
import torch
from atomo.torch.outer_options import split, with_memory
from atomo.torch.outer_round import checksum_of, clip_factors
from worlds import RankFailed, World, check_replicas, same

ROOT = Path(__file__).resolve().parents[2]
EXACT = outer_runs.EXACT
POLICIES = [EXACT, "atomo:bits=0.5", "qsgd:bits=4", "*.bias=identity:dtype=f32; *=atomo:bits=1", "topk:keep=0.1"]


def near(a, b, tolerance=1e-5):
    return a.keys() == b.keys() and all(np.allclose(a[name], b[name], rtol=tolerance, atol=tolerance) for name in a)


# What it computes


@pytest.mark.parametrize("outer, lr, momentum", [("nesterov", 0.7, 0.9), ("sgd", 0.5, 0.8), ("sgd", 1.0, 0.0)])
def test_it_is_diloco_to_the_bit(world, outer, lr, momentum):
    """As `reference` has it, with torch.optim.SGD for the outer step."""
    results = world(2).run(outer_runs.trained, outer=outer, outer_lr=lr, outer_momentum=momentum, end=False)
    check_replicas(results)
    whole = outer_runs.reference(2, 12, 4, outer == "nesterov", lr, momentum)
    assert same(results[0]["parameters"], whole)
    assert results[0]["synchronised"] == [step % 4 == 3 for step in range(12)]


def test_a_step_of_rate_one_averages(world):
    """Every step, of plain SGD: the parameters become those of the ranks' mean."""
    results = world(2).run(outer_runs.trained, every=1, outer="sgd", outer_lr=1.0, steps=5, optimiser="sgd")
    check_replicas(results)
    assert near(results[0]["parameters"], outer_runs.reference(2, 5, 1, False, 1.0, 0.0, optimiser="sgd"), 1e-6)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_replicas_are_equal_to_the_bit(world, ranks, policy):
    results = world(ranks).run(outer_runs.trained, policy)
    check_replicas(results)
    for result in results:
        assert same(result["parameters"], result["outer"]) and result["checksum"] == results[0]["checksum"]
    alone = [result["replicas"][2]["0.weight"] for result in results]
    assert not np.array_equal(alone[0], alone[1]), "the ranks trained alone in between"
    assert all(np.array_equal(result["replicas"][3]["0.weight"], results[0]["replicas"][3]["0.weight"]) for result in results)


def test_the_order_of_messages_matters(world):
    """Or else the test above would show nothing."""
    results = world(3).run(outer_runs.trained, "qsgd:bits=4", kind="OwnOrder")
    assert any(not same(result["parameters"], results[0]["parameters"]) for result in results)


@pytest.mark.parametrize("policy", [EXACT, "qsgd:bits=4"])
def test_halves_are_rounded_copies_of_the_outer_parameters(world, policy):
    results = world(2).run(outer_runs.trained, policy, dtype="bfloat16")
    check_replicas(results)
    for name, outer in results[0]["outer"].items():
        rounded = torch.from_numpy(outer).bfloat16().float().numpy()
        assert np.array_equal(results[0]["parameters"][name], rounded) and not np.array_equal(rounded, outer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_not_trained_does_not_move(world, dtype):
    """Rounding the outer parameters to halves is no change."""
    for before, after in world(2).run(outer_runs.idle, dtype):
        assert same(before, after)


def test_it_learns_what_exact_messages_learn(world):
    """With a tenth of the bytes of whole exchanges, which are an eighth of those of an exchange every step."""
    start, exact = (world(2).run(outer_runs.error, EXACT, steps, every=8)[0] for steps in (0, 240))
    coded = world(2).run(outer_runs.error, "atomo:bits=3", 240, every=8)[0]
    assert exact[0] < 0.1 * start[0] and coded[0] < 0.1 * start[0]
    assert coded[1] < exact[1] / 10


def test_any_group_may_synchronise(world):
    results = world(4).run(outer_runs.in_pairs)
    check_replicas(results[:2])
    check_replicas(results[2:])
    assert not same(results[0]["parameters"], results[2]["parameters"])


def test_the_outer_state_may_be_on_the_cpu(world):
    given, of_itself = (world(2).run(outer_runs.trained, "qsgd:bits=4", device=device) for device in ("cpu", None))
    assert same(given[0]["parameters"], of_itself[0]["parameters"])


def test_a_momentum_may_begin_later(world):
    """From 0 on, as if it had always been there."""
    check_replicas(world(2).run(outer_runs.later_momentum, 0.0))
    late, always = (world(2).run(outer_runs.later_momentum, first)[0]["parameters"] for first in (0.0, 0.9))
    assert same(late, always)


def test_pairs_and_wrapped_modules(world):
    for moved, names in world(2).run(outer_runs.thawed_copy):
        assert np.allclose(moved, 0.5) and names[0] == "0.weight"


# Fragments and delays


@pytest.mark.parametrize("fragments, delay, alpha", [(1, 2, 0.0), (2, 1, 0.5), (3, 3, 0.25), (3, 5, 0.5)])
def test_it_is_streaming_diloco(world, fragments, delay, alpha):
    steps, every = 16, 6
    results = world(2).run(outer_runs.trained, steps=steps, every=every, fragments=fragments, delay=delay, alpha=alpha,
                           end=False)
    names = list(outer_runs.parameters_of(outer_runs.network()))
    sizes = {name: p.size for name, p in outer_runs.parameters_of(outer_runs.network()).items()}
    parts = split(sizes, fragments)
    assert [name for part in parts for name in part] == names
    workers, _ = outer_runs.streaming_reference(2, steps, every, parts, delay, alpha, 0.7, 0.9)
    for rank, result in enumerate(results):
        assert near(result["replicas"][-1], workers[rank], 2e-5)


def test_a_delay_is_not_waited_for_and_replicas_end_equal(world):
    results = world(2).run(outer_runs.trained, "qsgd:bits=4", steps=13, every=6, fragments=3, delay=3, alpha=0.5)
    check_replicas(results)
    assert results[0]["log"]["rounds"] == 6 + 3  # 2, 4, 6, 8, 10, 12, and all three at the end
    assert [i + 1 for i, done in enumerate(results[0]["synchronised"]) if done] == [5, 7, 9, 11, 13]


def test_an_exchange_goes_on_beside_training(world):
    """The first rank takes its steps while the second has not even begun to exchange."""
    first, _ = world(2).run(outer_runs.early_and_late, 2.0)
    assert first["seconds"] < 1 and first["pending"] == 1 and first["waited"] > 0.5


def test_layers_are_split_into_neighbours_of_like_size():
    assert split({"a": 10, "b": 10, "c": 10, "d": 10}, 2) == [["a", "b"], ["c", "d"]]
    assert split({"a": 100, "b": 1, "c": 1}, 3) == [["a"], ["b"], ["c"]]
    assert split({"a": 1, "b": 1, "c": 100}, 2) == [["a", "b"], ["c"]]
    assert split({"a": 0, "b": 0}, 2) == [["a"], ["b"]]
    assert split({"x.0.w": 1, "x.1.w": 1, "x.2.w": 1, "head": 1}, [["x.0.*", "x.2.*"], ["*"]]) == [
        ["x.0.w", "x.2.w"], ["x.1.w", "head"]]
    for fragments, says in ((0, "fragments is 0"), (5, "there are 4 layers"), ("ab", "a number, or"), (True, "a number, or"),
                            ([["a"]], "no pattern takes 'b'"), ([["*"], ["a"]], "no layer is left for \\['a'\\]")):
        with pytest.raises(atomo.Error, match=says):
            split({"a": 1, "b": 1, "c": 1, "d": 1}, fragments)


# Clipping


def test_contributions_are_clipped_to_the_median_norm(world):
    scales = [1.0, 2.0, 9.0]
    results = world(3).run(outer_runs.clipped, scales)
    check_replicas(results)
    norm = 15 ** 0.5
    assert np.allclose(results[0]["norms"], [norm * scale for scale in scales])
    assert all(result["norms"] == results[0]["norms"] for result in results)
    assert np.allclose(results[0]["parameters"]["weight"], -(1 + 2 + 2) / 3, rtol=1e-6)


def test_ranks_and_rounds_draw_by_themselves(world):
    """Of one and the same change, whose messages' norms tell the draws apart."""
    first, second = world(2).run(outer_runs.drawn, "qsgd:bits=2", 3)
    assert first == second and len({norm for norms in first for norm in norms}) == 6


def test_clipping_goes_by_what_is_decoded_and_is_equal_everywhere(world):
    check_replicas(world(3).run(outer_runs.clipped, [1.0, 2.0, 9.0], policy="terngrad"))
    check_replicas(world(3).run(outer_runs.trained, "atomo:bits=1", clip="median"))


def test_norms_of_zero_are_no_division():
    assert clip_factors([0.0, 0.0, 3.0]) == [1.0, 1.0, 0.0]
    assert clip_factors([2.0, 4.0]) == [1.0, 0.75]


# Checkpoints


RESUMED = [{"policy": EXACT}, {"policy": "atomo:bits=0.5"},
           {"policy": "atomo:bits=1", "fragments": 3, "delay": 1, "alpha": 0.5},
           {"policy": "qsgd:bits=4", "clip": "median", "outer": "sgd", "outer_lr": 1.0},
           {"policy": "atomo:bits=4,atoms=sketch"},
           {"policy": "qsgd:bits=2", "memory": "ef:decay=0.95"},
           {"policy": "topk:keep=0.05", "memory": "ef", "fragments": 3, "delay": 1, "alpha": 0.5},
           {"policy": "topk:keep=0.05", "memory": "ef:memory=int8"},
           {"policy": "topk:keep=0.05", "memory": "ef21"}]


@pytest.mark.parametrize("at", [6, 9])
@pytest.mark.parametrize("options", RESUMED, ids=lambda options: options["policy"])
def test_a_resumed_run_goes_on_to_the_bit(world, options, at):
    """Saved in the middle of a round, on each rank, through torch.save; what is pending is drained."""
    whole, resumed = (world(2).run(outer_runs.resumed, at=at, resume=resume, **options) for resume in (False, True))
    check_replicas(resumed)
    for was, now in zip(whole, resumed):
        assert same(was["parameters"], now["parameters"]) and was["losses"] == now["losses"]
        assert was["bytes_sent"] == now["bytes_sent"] and was["round"] == now["round"]
        assert was["learnt"] == now["learnt"]


def test_what_a_round_leaves_out_comes_later(world):
    """One entry in twenty a round: with a memory the loss falls further."""
    ends = [world(2).run(outer_runs.resumed, "topk:keep=0.05", at=60, resume=False, steps=60, outer="sgd", outer_lr=1.0, memory=memory)[0]["losses"][-10:]
            for memory in ("ef", None)]
    assert sum(ends[0]) < 0.95 * sum(ends[1]), ends


def test_one_ranks_state_serves_another(world):
    results = world(2).run(outer_runs.resumed, "qsgd:bits=4", at=8, donor=0)
    check_replicas(results)
    whole = world(2).run(outer_runs.resumed, "qsgd:bits=4", at=8, resume=False)
    assert same(results[0]["parameters"], whole[0]["parameters"])


def test_what_another_rank_sent_is_not_taken(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(outer_runs.resumed, "ef21+qsgd:bits=4", at=8, donor="next")
    for rank, error in enumerate(failed.value.errors):
        assert f"the saved state is of rank {1 - rank} of 2, this is rank {rank} of 2" in error, failed.value.errors


def test_differences_add_up_to_pseudo_gradients(world):
    """Whole ones are what they are without a memory; of one entry in twenty the loss falls further than without the others."""
    whole, exact, kept, lost = (
        world(2).run(outer_runs.resumed, policy, at=60, resume=False, steps=60, outer="sgd", outer_lr=1.0)[0]["losses"]
        for policy in ("identity", "ef21+identity", "ef21+topk:keep=0.05", "topk:keep=0.05"))
    np.testing.assert_allclose(exact, whole, rtol=1e-3)
    assert sum(kept[-10:]) < 0.95 * sum(lost[-10:]), (kept, lost)


def test_a_momentum_of_later_goes_on_from_a_checkpoint(world):
    """Of two fragments one has had a step with it."""
    whole, resumed = (world(2).run(outer_runs.momentum_of_later, resume)[0] for resume in (False, True))
    assert same(whole, resumed)


@pytest.mark.parametrize("what, says", [
    ("policy", "other policy: 'atomo:bits=1', and this one 'qsgd:bits=4'"), ("layers", "other layers: ['0.weight', [24, 12]"),
    ("fragments", "other layers:"), ("momentum", "has an outer momentum, this one has none")])
def test_a_state_of_another_run_is_refused(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(outer_runs.refused_state, what)
    assert all(says in error for error in failed.value.errors), failed.value.errors


# What goes wrong


@pytest.mark.parametrize("options", [{}, {"fragments": 2}, {"delay": 1, "alpha": 0.5}, {"memory": "ef:decay=0.95"},
                                     {"memory": "ef21"}], ids=str)
def test_a_round_that_is_not_finite_is_skipped_and_nothing_is_lost(world, options):
    results = world(2).run(outer_faults.nonfinite, 4, True, **options)
    for result in results:
        assert any(re.search("round \\d+ was skipped: the pseudo-gradient of rank 1, or what it decodes to, is not finite", s) for s in result["seen"])
        assert result["kept"] and any(result["applied"][8:])
        assert all(np.isfinite(p).all() for p in result["parameters"].values())
    assert same(results[0]["outer"], results[1]["outer"])


def test_while_a_rank_is_not_finite_no_round_counts(world):
    for result in world(2).run(outer_faults.nonfinite, 4, False):
        assert result["applied"] == [False, False, True] + 9 * [False] and len(result["seen"]) == 3


@pytest.mark.parametrize("clip, memory", [(None, None), (None, "ef"), (None, "ef21"), ("median", None), ("median", "ef")])
def test_a_change_that_its_codec_cannot_hold_is_skipped(world, clip, memory):
    """A rank is far away: its change is finite, and its halves are not."""
    for result in world(3).run(outer_faults.far_away, policy="identity:dtype=f16", clip=clip, memory=memory):
        assert result["applied"] == [True, False, True] and result["nonfinite"] == (0,)
        assert all(np.isfinite(p).all() for of in result["outer"] for p in of.values())
        assert same(result["outer"][0], result["outer"][1]) and not same(result["outer"][1], result["outer"][2])


@pytest.mark.parametrize("how, says", [("frozen", "'0.weight' was float32 [24, 12] on cpu, and is not trained now"),
                                       ("added", "'5.weight' was not among them"),
                                       ("shape", "'4.weight' was float32 [4, 24]"), ("type", "'4.weight' was float32 [4, 24]")])
def test_parameters_that_changed_are_an_error_everywhere(world, how, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(outer_faults.changed, how)
    first, second = failed.value.errors
    assert first == "Error: rank 1 could not encode its gradients; the error raised there says why"
    assert second.startswith(f"Error: the parameters have changed: {says}")


@pytest.mark.parametrize("what, says", [
    ("every", "every is 2 on rank 0, 3 on rank 1"), ("policy", "policy is 'qsgd:bits=4' on rank 0, 'qsgd:bits=2' on rank 1"),
    ("outer", "outer is 'nesterov' on rank 0, 'sgd' on rank 1"), ("outer_lr", "outer_lr is 0.7 on rank 0, 0.5 on rank 1"),
    ("outer_momentum", "outer_momentum is 0.9 on rank 0, 0.5 on rank 1"),
    ("clip", "clip is None on rank 0, 'median' on rank 1"),
    ("seed", "seed is 0 on rank 0, 1 on rank 1"), ("channel", "channel is 0 on rank 0, 1 on rank 1"),
    ("fragments", "fragments is 1 on rank 0, 2 on rank 1"), ("verify_every", "verify_every is 0 on rank 0, 1 on rank 1"),
    ("broadcast", "broadcast is False on rank 0, True on rank 1"),
    ("names", "layers is ['0.weight', [24, 12], 'float32', 0] on rank 0, ['net.0.weight', [24, 12], 'float32', 0] on rank 1"),
    ("layers", "layers is ['4.weight', [4, 24], 'float32', 0] on rank 0, ['4.weight', [5, 24], 'float32', 0] on rank 1"),
    ("an older checkpoint", "round is 2 on rank 0, 1 on rank 1"),
    ("a rate of later", "outer_lr is 0.7 on rank 0, 0.1 on rank 1"), ("a step of later", "step is 0 on rank 0, 1 on rank 1")])
def test_ranks_that_disagree_say_in_what(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(outer_faults.disagree, what)
    assert all(error.startswith("Error: the ranks' states differ") and says in error for error in failed.value.errors)


def test_ranks_begin_with_the_same_parameters(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(outer_faults.disagree, "start")
    assert failed.value.errors == ["Error: the replicas differ: the outer parameters of rank 1 are not those of rank 0: begin "
                                   "with the same parameters on all ranks, or give broadcast=True"] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_ranks_parameters_are_broadcast(world, dtype):
    for result in world(2).run(outer_faults.broadcast, dtype):
        assert same(result["parameters"], result["first"]) and same(result["outer"], result["first"])


@pytest.mark.parametrize("which, says", [([2], "of rank 2 are not those of rank 0 and 1 more"),
                                         ([0], "of rank 0 are not those of rank 1 and 1 more")])
def test_a_replica_that_differs_is_named(world, which, says):
    with pytest.raises(RankFailed) as failed:
        world(3).run(outer_faults.diverged, 2, which)
    assert failed.value.errors == [f"Error: the replicas differ: the outer parameters {says}"] * 3


def test_replicas_are_not_compared_unless_asked(world):
    world(3).run(outer_faults.diverged, 0, [2])


def test_a_checksum_is_of_every_bit_and_place():
    values = torch.randn(3000)
    one = checksum_of([values])
    assert one == checksum_of([values[:1000], values[1000:].view(40, 50)]) != checksum_of([values.flip(0)])
    for place in (0, 1499, 2999):
        for bit in (0, 22, 31):
            other = values.clone()
            other.view(torch.int32)[place] ^= -(1 << 31) if bit == 31 else 1 << bit
            assert checksum_of([other]) != one


@pytest.mark.parametrize("delay", [0, 1])
def test_a_killed_rank_is_an_error_and_no_hang(delay, tmp_path):
    own, answer = World(2), tmp_path / "said"
    try:
        with pytest.raises((EOFError, TimeoutError)):
            own.run(outer_faults.gone, 20, delay, str(answer))
        for process in own.processes:
            process.join(30)
    finally:
        own.close()
    seconds, said = answer.read_text().split(" ", 1)
    assert float(seconds) < 25 and said != "nothing" and "Error" in said


# Shards


@pytest.mark.parametrize("islands, ranks", [(2, 2), (2, 4)])
def test_islands_of_shards_are_diloco(world, islands, ranks):
    """Each rank exchanges its shard with the other islands' ranks that hold the same. 12 columns in 24 rows and 4 rows of
    the last layer are cut in two."""
    results = world(ranks).run(outer_runs.sharded, islands)
    check_replicas(results)
    assert near(results[0]["parameters"], outer_runs.reference(2, 8, 4, True, 0.7, 0.9))


def test_shards_draw_by_themselves(world):
    results = world(4).run(outer_runs.sharded, 2, policy="qsgd:bits=4", verify_every=1)
    check_replicas(results)
    seeds = [result["seed"] for result in results]
    assert seeds[0] == seeds[2] != seeds[1] == seeds[3]


def test_a_worker_is_skipped_with_all_its_shards(world):
    results = world(4).run(outer_runs.sharded_and_not_finite)
    assert [result["nonfinite"] for result in results] == [(1,)] * 4
    assert all("the pseudo-gradient of rank 2, or" in result["seen"][0] for result in results[::2])
    assert all("the pseudo-gradient of rank 3, or" in result["seen"][0] for result in results[1::2])


def test_shards_that_are_not_replicas_are_refused(world):
    with pytest.raises(RankFailed) as failed:
        world(4).run(outer_runs.sharded, 2, wrong_group=True)
    assert all("layers is ['0.weight', [12, 12], 'float32', 0, [2, 0]] on rank 0, "
               "['0.weight', [12, 12], 'float32', 0, [2, 1]] on rank 1" in error for error in failed.value.errors)


# Options


@pytest.mark.parametrize("options, says", [
    ({"every": 0}, "every is 0: it must be an integer of at least 1"), ({"every": 2.5}, "every is 2.5"),
    ({"every": True}, "every is True"), ({"outer": "adam"}, "outer is 'adam': sgd and nesterov"),
    ({"outer_lr": 0}, "outer_lr is 0: nothing"), ({"outer_lr": -1}, "outer_lr is -1: it must be a number from 0"),
    ({"outer_lr": float("nan")}, "outer_lr is nan"),
    ({"outer_momentum": 1.0}, "outer_momentum is 1.0: it must be a number from 0"),
    ({"clip": "mean"}, "clip is 'mean'"),
    ({"delay": 4}, "delay is 4: it must be below every, 4"), ({"delay": -1}, "delay is -1"),
    ({"alpha": 0.5}, "alpha is 0.5 and delay 0"), ({"alpha": 1, "delay": 1}, "alpha is 1: it must be a number from 0"),
    ({"device": "cuda"}, "device is 'cuda': None, where the parameters are, and 'cpu'"),
    ({"verify_every": -1}, "verify_every is -1"), ({"seed": -1}, "seed is -1"), ({"memory": ""}, "memory is ''"),
    ({"policy": "ef21+sign", "clip": "median"}, "clip is 'median'"),
    ({"memory": "a; b"}, "memory is 'a; b'"), ({"policy": "qsgd:bits=9"}, "bits"), ({"fragments": 7}, "there are 6 layers")])
def test_options_that_cannot_work_are_refused(options, says):
    with pytest.raises(atomo.Error, match=re.escape(says)):
        atomo.torch.OuterSync(outer_runs.network(), **{"every": 4, **options})


def test_without_processes_it_says_what_is_missing():
    with pytest.raises(atomo.Error, match="init_process_group first"):
        atomo.torch.OuterSync(outer_runs.network(), EXACT, every=4)


def test_a_memory_stands_in_front_of_every_codec():
    for memory in ("ef:decay=.95", "ef:decay=.95+"):
        assert with_memory("qsgd:bits=2", memory) == "ef:decay=.95+qsgd:bits=2"
    assert with_memory("qsgd:bits=2", None) == "qsgd:bits=2"
    assert with_memory("a.*=sign # why\n*=qsgd:bits=2", "ef") == "a.* = ef+sign; * = ef+qsgd:bits=2"
    assert with_memory("a:0 = sign; *=sign", "ef") == "a:0 = ef+sign; * = ef+sign"


def test_presets_have_the_published_settings():
    """Of arXiv 2311.08105, section 3; 2501.18512, figures 5, 6, 8 and 11, table 1 and section 3; 2508.15706, algorithm 1, and
    2603.08163, section 2.1."""
    diloco, streaming, sparse = (atomo.torch.OUTER_PRESETS[name] for name in ("diloco", "streaming-diloco", "sparseloco"))
    nesterov = {"outer": "nesterov", "outer_momentum": 0.9}
    assert diloco == {**nesterov, "outer_lr": 0.7, "every": 500, "policy": "identity:dtype=f32"}
    assert streaming == {**nesterov, "outer_lr": 0.4, "every": 100, "fragments": 8, "delay": 1, "alpha": 0.5, "policy": "qsgd:bits=4"}
    assert sparse == {"outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "every": 30, "memory": "ef:decay=.95", "clip": "median",
                      "policy": "topk:chunk=4096,k=64,values=2"}


@pytest.mark.parametrize("name", list(atomo.torch.OUTER_PRESETS))
def test_presets_train(world, name):
    results = world(2).run(preset_run, name)
    check_replicas(results)


def preset_run(rank, ranks, name):
    """As published, but every six steps and, as the network has six layers, at most that many fragments."""
    model = outer_runs.network()
    few = {"fragments": 6} if "fragments" in atomo.torch.OUTER_PRESETS[name] else {}
    sync = atomo.torch.OuterSync.preset(name, model, every=6, **few)
    published = atomo.torch.OUTER_PRESETS[name]
    assert sync.outer == published.get("outer", "nesterov")
    assert sync.policy == with_memory(published["policy"], published.get("memory"))
    for step in range(12):
        outer_runs.local_step(model, outer_runs.inner(model), rank, step)
        sync.step()
    sync.synchronise()
    return {"parameters": outer_runs.parameters_of(model)}


def test_an_unknown_preset_names_those_there_are():
    with pytest.raises(atomo.Error, match="no preset 'dilco': there are diloco, streaming-diloco, sparseloco"):
        atomo.torch.OuterSync.preset("dilco", outer_runs.network())


def test_example_compares_codecs():
    said = run_example("--workers", "2", "--steps", "40", "--fragments", "2", "--delay", "2", "--alpha", "0.5")
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", said)]
    assert len(losses) == 3 and all(loss < 1 for loss in losses), said


def test_example_says_what_cannot_work():
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_example("--workers", "1", "--every", "3", "--delay", "3")
    assert "outer.py: " in failed.value.stderr and "delay is 3: it must be below every" in failed.value.stderr


def run_example(*options):
    return subprocess.run([sys.executable, "examples/python/outer.py", *options], cwd=ROOT, check=True, capture_output=True,
                          text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout


def test_its_log_is_plain(world):
    result = world(2).run(outer_runs.trained, "atomo:bits=1")[0]
    log = json.loads(json.dumps(result["log"]))
    assert log["rounds"] == 4 and log["last"]["bytes_sent"] > 100
    assert result["repr"].startswith("atomo.torch.OuterSync(6 layers of 1012 elements, 'atomo:bits=1', every=4")
