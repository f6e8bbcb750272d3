# SPDX-License-Identifier: Apache-2.0
"""DDP with a memory at each rank, over gloo with two processes."""

import atomo
import atomo.torch
import ddp_runs
import ddp_seams
import memory_runs
import pytest
from worlds import check_replicas, same

THREE_BUCKETS = 0.002  # MB; of the small net


@pytest.mark.parametrize("policy", ["ef+topk:keep=0.01", "*.bias=identity; *=dgc:momentum=0+topk:keep=0.05"])
def test_replicas_stay_equal(world, policy):
    check_replicas(world(2).run(ddp_runs.train, policy, cap_mb=THREE_BUCKETS, steps=6))


def test_what_is_left_out_is_sent_later(world):
    """One entry in a hundred a step: with a memory the loss falls further."""
    ends = {}
    for policy in (None, "ef+topk:keep=0.01", "topk:keep=0.01"):
        losses = world(2).run(ddp_runs.train, policy, steps=150, lr=0.02)[0]["losses"]
        ends[policy] = sum(losses[-20:]) / 20
    exact, kept, lost = ends.values()
    assert exact < kept < 0.9 * lost, ends


@pytest.mark.parametrize("way", ["dict", "pickle"])
def test_each_ranks_checkpoint_brings_its_memory_back(world, way):
    whole, halves = (world(2).run(ddp_runs.train, "ef+topk:keep=0.05", cap_mb=THREE_BUCKETS, checkpoint_at=at, way=way)
                     for at in (None, 4))
    for was, now in zip(whole, halves):
        assert was["losses"] == now["losses"]
        assert same(was["parameters"], now["parameters"])


def test_another_ranks_memory_is_not_taken(world):
    """Rank 0's checkpoint on all ranks: replicas stay equal, though rank 1 begins without what it had kept."""
    check_replicas(world(2).run(ddp_seams.one_checkpoint, "ef+topk:keep=0.05"))


def test_memories_do_not_travel(world):
    """What ranks tell each other of what they have learnt is as much as without a memory."""
    counted = [world(2).run(ddp_runs.train, policy, steps=3, cap_mb=THREE_BUCKETS)[0]["counted"]
               for policy in ("ef+topk:keep=5", "topk:keep=5")]
    assert abs(counted[0] - counted[1]) < 400, counted


def test_fsdp_has_no_names_to_keep_a_memory_under():
    with pytest.raises(atomo.Error, match="take 'topk:keep=0.01'"):
        atomo.torch.FSDPReduceScatter("ef+topk:keep=0.01")


@pytest.mark.parametrize("policy", ["ef+topk:keep=0.05", "ef+atomo:bits=1,content=nearest", "dgc:momentum=0.9+topk:keep=0.05",
                                    "momentum:beta=0.9+sign:scale=mean"])
def test_a_step_that_a_gradscaler_skips_leaves_memories(world, policy):
    """Of all layers and ranks, though one layer alone of one rank was not finite."""
    for result in world(2).run(memory_runs.scaled_steps, policy):
        first, bad, last = result["memories"]
        assert result["scales"] == [1024.0, 512.0, 512.0] and result["finite"]
        assert same(first, bad) and not same(bad, last)


def test_memories_are_of_gradients_without_their_scale(world):
    """Powers of two leave every bit, so a scale that changes changes nothing."""
    plain, scaled = (world(2).run(memory_runs.train, "ef+topk:keep=0.05", scales)
                     for scales in ([1.0] * 6, [1.0, 64.0, 64.0, 4.0, 4.0, 256.0]))
    for was, now in zip(plain, scaled):
        assert same(was, now)


def test_gradients_may_be_added_up_and_clipped(world):
    check_replicas(world(2).run(ddp_runs.train, "ef+topk:keep=0.05", accumulate=2, steps=4))
    results = world(2).run(memory_runs.train, "ef+topk:keep=0.05", [1.0] * 6, clip=0.01)
    assert same(*results)
