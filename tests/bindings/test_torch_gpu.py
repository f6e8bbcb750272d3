# SPDX-License-Identifier: Apache-2.0
"""atomo.torch as it works on a GPU, with a stand-in for one: the arithmetic over gloo, and what a step asks for."""

import atomo
import ddp_runs
import gpu_runs
import numpy as np
import pytest
import torch
from test_torch import MODES, PLAIN, THREE_BUCKETS
from worlds import RankFailed, check_replicas, same

BOUNDED = ["qsgd:bits=4", "sign", "atomo:bits=20,cap=30,atoms=rows", "*.bias=identity:dtype=f32; *=atomo:bits=24,cap=40,rank=4"]
UNBOUNDED = ["atomo:bits=1", "topk:keep=0.1"]


@pytest.mark.parametrize("policy", BOUNDED + UNBOUNDED)
def test_the_mean_is_that_of_the_cpus_calls(world, policy):
    for result in world(2).run(gpu_runs.first_mean, policy, cap_mb=25.0):
        assert result["buckets"] == 1 and all(result["equal"].values()), result["equal"]
        assert result["ddps_group"]


def test_the_mean_of_four_ranks_in_three_buckets_is_that_of_the_cpus_calls(world):
    for result in world(4).run(gpu_runs.first_mean, "qsgd:bits=4"):
        assert result["buckets"] == 3 and all(result["equal"].values()), result["equal"]


def test_halves_are_rounded_once(world):
    for result in world(2).run(gpu_runs.first_mean, "qsgd:bits=6", net="mixed"):
        assert all(result["equal"].values()), result["equal"]


def test_buckets_do_not_draw_alike(world):
    assert not any(world(2).run(gpu_runs.other_draws))


@pytest.mark.parametrize("mode", [None, *MODES])
def test_modes_of_ddp(world, mode):
    options = {"cap_mb": THREE_BUCKETS, **(MODES[mode] if mode else {})}
    plain = world(2).run(ddp_runs.train, None, **options)
    mine = world(2).run(ddp_runs.train, PLAIN, state_class="OnStandIn", **options)
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    check_replicas(world(2).run(ddp_runs.train, "qsgd:bits=6", state_class="OnStandIn", **options))


def test_ranks_that_run_out_of_batches_join(world):
    plain = world(2).run(ddp_runs.join, None)
    mine = world(2).run(ddp_runs.join, PLAIN, state_class="OnStandIn")
    assert same(mine[0]["parameters"], plain[0]["parameters"])


@pytest.mark.parametrize("way", ["dict", "pickle"])
def test_a_checkpoint_goes_on(world, way):
    """To the bit where DDP's buckets are the same before and after, as they are where it looks for unused parameters."""
    whole, halves = (world(2).run(ddp_runs.train, "qsgd:bits=4", state_class="OnStandIn", checkpoint_at=at, way=way,
                                  ddp={"find_unused_parameters": True}) for at in (None, 4))
    assert same(whole[0]["parameters"], halves[0]["parameters"])
    assert whole[0]["bytes_sent"] == halves[0]["bytes_sent"]


# A step in the steady state


@pytest.mark.parametrize("policy", BOUNDED[:3])
def test_a_step_waits_for_nothing_and_takes_no_memory(world, policy):
    """Of a bucket: an encode, an all-gather, a fill, a decode of all messages, and two copies of what is told."""
    cap = 25.0 if "cap=" in policy else THREE_BUCKETS
    for result in world(2).run(gpu_runs.steady_step, policy, cap_mb=cap):
        buckets = len(result["wire"])
        assert buckets == (1 if "cap=" in policy else 3)
        assert result["operations"] == [["c10d._allgather_base_", "aten.fill_", "aten.copy_", "aten.copy_"]] * buckets
        assert result["taken"] == result["events"] == 0
        # `notice` looks at the status that an earlier step left: host memory. Nothing is bound anew.
        assert [name for name in result["calls"] if name != "notice"] == ["encode_on", "decode_on"] * buckets
        last = result["state"]["last"]
        assert last["bytes_sent"] == last["bytes_received"] == sum(result["wire"])
        assert last["length_bytes"] == 0


def test_streams_wait_for_one_another_and_the_host_for_none(world):
    """The encoding stream for the gradients, the wire's for the message; the outcome's event is asked once, a step later."""
    result = world(2).run(gpu_runs.steady_step, "qsgd:bits=4")[0]
    log, each = result["log"], len(result["log"]) // 3
    for number in range(3):
        events = {}
        said = [tuple(events.setdefault(part, len(events)) if isinstance(part, int) else part for part in entry)
                for entry in log[number * each:(number + 1) * each]]
        before, ready, encoded, copied = range(4)
        assert said == [("query", before), ("record", "computing", ready), ("lend", "encoding"), ("lend", "wire"),
                        ("on", "encoding"), ("wait", "encoding", ready), ("record", "encoding", encoded),
                        ("off", "encoding"), ("on", "wire"), ("wait", "wire", encoded), ("record", "wire", copied),
                        ("off", "wire")]


def test_messages_without_a_bound_wait_for_their_lengths_alone(world):
    result = world(2).run(gpu_runs.steady_step, "atomo:bits=1")[0]
    for operations in result["operations"]:
        assert operations.count("c10d._allgather_base_") == 2
        assert set(operations) - {"aten.item", "aten._local_scalar_dense"} <= {
            "aten.new_empty", "aten.empty", "c10d._allgather_base_", "aten.fill_", "aten.copy_"}
    assert 0 < result["state"]["last"]["bytes_sent"]


# What goes wrong


@pytest.mark.parametrize("what, step, says", [
    ("status", 3, "decoding gradients on the GPU failed in an earlier step (corrupt)"),
    ("seed", 3, "the seed in the messages' keys is "), ("step", 3, "the step in the messages' keys is 2 from rank 0, 40 from rank 1"),
    ("not seen", 4, "the seed in the messages' keys is "),
    ("status, the GPU behind", 6, "decoding gradients on the GPU failed in an earlier step (corrupt)")])
def test_what_failed_is_raised_a_step_later_on_all_ranks(world, what, step, says):
    for number, said in world(2).run(gpu_runs.goes_wrong, what):
        assert (number, says in said) == (step, True), (number, said)


@pytest.mark.skipif(atomo._atomo.cuda, reason="this package has the CUDA backend")
def test_a_package_without_cuda_says_so(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(gpu_runs.without_a_place)
    assert all("built without the CUDA backend" in error for error in failed.value.errors)


def test_ranks_that_disagree_say_in_what_when_buckets_are_made(world):
    from ddp_seams import disagree

    with pytest.raises(RankFailed) as failed:
        world(2).run(disagree, "seed", 0, state_class=ddp_runs.OnStandIn)
    assert failed.value.errors == ["Error: the ranks' states differ, and their replicas would: seed is 0 on rank 0, 1 on rank 1"] * 2


# What goes by all-reduce


def test_a_warm_up_goes_by_all_reduce(world):
    results = world(2).run(gpu_runs.warm_up)
    check_replicas(results)
    plain = 4 * (24 * 48 + 48 + 48 * 48 + 48 + 48 * 10 + 10)
    assert results[0]["sent"][:2] == [plain, plain] and 0 < results[0]["sent"][2] < plain / 4


def test_sparse_gradients_go_by_all_reduce(world):
    first, second = world(2).run(gpu_runs.embeddings)
    assert first.tobytes() == second.tobytes() and first[0].any() and first[1].any() and not first[4].any()


# FSDP


@pytest.mark.parametrize("codec", ["qsgd:bits=6", "atomo:atoms=blocks,bits=2,cap=2.2", "identity:dtype=f32"])
def test_a_reduce_scatter_waits_for_nothing_and_is_the_cpus(world, codec):
    for result in world(2).run(gpu_runs.sharded_step, codec):
        assert result["operations"] == ["c10d.alltoall_base_", "aten.fill_", "aten.copy_", "aten.copy_"]
        assert result["taken"] == 0 and result["equal"]
        assert result["sent"] == 3 * result["wire"]


def test_fully_shard_trains_as_on_the_cpu(world):
    cpu = world(2).run(ddp_runs.sharded, "qsgd:bits=6")
    mine = world(2).run(ddp_runs.sharded, "qsgd:bits=6", comm_class=ddp_runs.ShardedOnStandIn)
    assert same(mine[0]["parameters"], cpu[0]["parameters"])
    halves = world(2).run(ddp_runs.sharded, "qsgd:bits=6", comm_class=ddp_runs.ShardedOnStandIn, dtype=torch.bfloat16)
    check_replicas(halves)
    assert np.isfinite(halves[0]["losses"]).all()
