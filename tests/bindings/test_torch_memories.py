# SPDX-License-Identifier: Apache-2.0
"""DDP with a memory at each rank, over gloo with two processes."""

import atomo
import atomo.torch
import ddp_runs
import pytest
import torch
from atomo.torch.coder import Coder
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


def test_another_ranks_memory_is_not_taken():
    """A rank that loads another's checkpoint begins without a memory."""
    def made():
        coder = Coder("ef+topk:keep=5", 1)
        coder.take({"a": ((50,), "f32")})
        return coder

    saved = made()
    saved.encode([("a", torch.arange(50.0))], {"seed": 0, "step": 0, "worker": 1, "channel": 0})
    saved.end_step()
    saved.settle_step([saved.compressor.state("learnt")] * 2)
    for worker in (0, 1):
        other = made()
        other.load(saved.policy, saved.table(), saved.learnt, saved.memories())
        other.encode([("a", torch.zeros(50))], {"seed": 0, "step": 1, "worker": worker, "channel": 0})
        kept = torch.frombuffer(bytearray(other.compressor.memory("a")), dtype=torch.float32)
        assert kept.count_nonzero() == (39 if worker == 1 else 0)


def test_memories_do_not_travel(world):
    """What ranks tell each other of what they have learnt is as much as without a memory."""
    counted = [world(2).run(ddp_runs.train, policy, steps=3, cap_mb=THREE_BUCKETS)[0]["counted"]
               for policy in ("ef+topk:keep=5", "topk:keep=5")]
    assert abs(counted[0] - counted[1]) < 400, counted


def test_fsdp_has_no_names_to_keep_a_memory_under():
    with pytest.raises(atomo.Error, match="take 'topk:keep=0.01'"):
        atomo.torch.FSDPReduceScatter("ef+topk:keep=0.01")
