# SPDX-License-Identifier: Apache-2.0
"""atomo.torch over gloo with 2 and 4 processes: what arrives, on all ranks, under everything DDP and FSDP2 do."""

import gzip
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys

import atomo
import atomo.torch
import ddp_runs
import numpy as np
import pytest
import torch
from atomo.torch.ddp_steps import scale_to_norm
from worlds import RankFailed, check_replicas, launch, same

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAIN = "identity:dtype=f32"
THREE_BUCKETS = 0.002  # MB; of the small net


# The mean


def check_is_mean(world, state_class="Watched"):
    mine = world(2).run(ddp_runs.train, PLAIN, state_class=state_class, cap_mb=THREE_BUCKETS)
    plain = world(2).run(ddp_runs.train, None, cap_mb=THREE_BUCKETS)
    check_replicas(mine)
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    assert mine[0]["losses"] == plain[0]["losses"]


def test_two_ranks_uncompressed_are_pytorchs_all_reduce(world):
    """a + b is b + a, so the order in which gloo adds does not matter with two ranks."""
    check_is_mean(world)


def test_four_ranks_uncompressed_are_the_sum_in_rank_order(world):
    """gloo adds four ranks in an order of its own, so the reference is a hook that adds them in rank order. PyTorch's
    own all-reduce differs from both by rounding alone."""
    mine, ordered, plain = (world(4).run(ddp_runs.train, policy, cap_mb=THREE_BUCKETS)
                            for policy in (PLAIN, "rank order", None))
    check_replicas(mine)
    assert same(mine[0]["parameters"], ordered[0]["parameters"])
    for name, value in plain[0]["parameters"].items():
        np.testing.assert_allclose(mine[0]["parameters"][name], value, rtol=1e-4, atol=1e-6)


POLICIES = ["atomo:bits=1", "atomo:bits=0.5,atoms=rows", "atomo:bits=2,cap=20", "atomo:atoms=coordinate,bits=1",
            "atomo:atoms=svd,keep=3,values=f32", "qsgd:bits=4", "terngrad", "randomk:keep=0.2", "sign:scale=mean",
            "topk:keep=0.1", "identity:dtype=bf16", "qsgd:bits=4+blosc:codec=zstd",
            "*.bias=identity:dtype=f32; 0.*=qsgd:bits=8; *=atomo:bits=1"]


@pytest.mark.parametrize("policy", POLICIES)
def test_replicas_stay_equal(world, policy):
    check_replicas(world(2).run(ddp_runs.train, policy, cap_mb=THREE_BUCKETS, steps=4))


def check_four_replicas(world, state_class="Watched"):
    check_replicas(world(4).run(ddp_runs.train, "qsgd:bits=4", state_class=state_class, cap_mb=THREE_BUCKETS, steps=6))


def test_four_replicas_stay_equal(world):
    check_four_replicas(world)


def check_independent_draws(world, state_class="Watched"):
    """Four ranks with one gradient: the mean of independent messages has a quarter of one message's error. Each figure
    is a mean over 20 x 4,096 entries, so 5 % is many standard deviations."""
    alone = world(4).run(ddp_runs.error_of_mean, "qsgd:bits=2", alone=True)
    together = world(4).run(ddp_runs.error_of_mean, "qsgd:bits=2", state_class=state_class)
    assert together[0] == pytest.approx(np.mean(alone) / 4, rel=0.05)


def test_workers_draw_independently(world):
    check_independent_draws(world)


# Buckets and checkpoints


def check_buckets_change_nothing(world, state_class="Watched"):
    """One bucket or many, rebuilt after the first step or not: bit for bit the same run, for all is kept by name."""
    one, many = (world(2).run(ddp_runs.train, "atomo:bits=1", state_class=state_class, cap_mb=cap)
                 for cap in (25.0, THREE_BUCKETS))
    assert one[0]["buckets"] == [1] * 8
    assert many[0]["buckets"][-1] == 3
    check_replicas(many)
    assert same(one[0]["parameters"], many[0]["parameters"])


def test_ddp_rebuilds_its_buckets(world):
    """Or else the test below would not have seen it."""
    layouts = world(2).run(ddp_runs.train, "atomo:bits=1", cap_mb=THREE_BUCKETS)[0]["layouts"]
    assert layouts[0] != layouts[1] == layouts[-1]


def test_buckets_change_nothing(world):
    check_buckets_change_nothing(world)


def check_resumes(world, state_class="Watched", way="dict"):
    whole, halves = (world(2).run(ddp_runs.train, "atomo:bits=1", state_class=state_class, cap_mb=THREE_BUCKETS,
                                  checkpoint_at=at, way=way) for at in (None, 4))
    assert whole[0]["losses"] == halves[0]["losses"]
    assert whole[1]["losses"] == halves[1]["losses"]
    assert same(whole[0]["parameters"], halves[0]["parameters"])
    assert whole[0]["bytes_sent"] == halves[0]["bytes_sent"]


@pytest.mark.parametrize("way", ["dict", "pickle"])
def test_a_checkpoint_resumes_to_the_same_curve(world, way):
    for state_class in ("Watched", "Clipped"):
        check_resumes(world, state_class, way)


def check_clipping(world, state_class):
    """By the norm over all buckets, of gradients without their scale."""
    for most, scale in ((0.01, 1.0), (0.01, 1024.0), (1e3, 1.0)):
        for result in world(2).run(ddp_runs.clipped, most, state_class, scale):
            assert result["buckets"] == 3 and 0.02 < result["norm"] < 1e3
            for name, gradient in result["found"].items():
                np.testing.assert_allclose(gradient, result["by_hand"][name], rtol=1e-3, atol=1e-6 * most * scale)


MUTANTS = [(check_buckets_change_nothing, "KeyedByBucket"), (check_independent_draws, "OneWorker"),
           (check_is_mean, "NotDivided"), (check_four_replicas, "OwnOrder"), (check_resumes, "ForgetsStep"),
           (check_clipping, "ClippedByBucket")]


@pytest.mark.parametrize("check, state_class", MUTANTS, ids=[name for _, name in MUTANTS])
def test_planted_bugs_are_found(world, check, state_class):
    with pytest.raises((AssertionError, RankFailed)):
        check(world, state_class)


# What DDP can do


MODES = {"gradient_as_bucket_view": {"ddp": {"gradient_as_bucket_view": True}},
         "static_graph": {"ddp": {"static_graph": True}},
         "accumulate": {"accumulate": 3},
         "accumulate into bucket views": {"accumulate": 3, "ddp": {"gradient_as_bucket_view": True}},
         "channels last and a scalar": {"net": "unusual"},
         "unused parameters": {"net": "branches", "ddp": {"find_unused_parameters": True}}}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_ddp(world, mode):
    plain = world(2).run(ddp_runs.train, None, cap_mb=THREE_BUCKETS, **MODES[mode])
    mine = world(2).run(ddp_runs.train, PLAIN, cap_mb=THREE_BUCKETS, **MODES[mode])
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    check_replicas(world(2).run(ddp_runs.train, "atomo:bits=1", cap_mb=THREE_BUCKETS, **MODES[mode]))


def test_ranks_that_run_out_of_batches_join(world):
    """DDP's join() calls the hook with zeros for the rank that is done."""
    plain = world(2).run(ddp_runs.join, None)
    mine = world(2).run(ddp_runs.join, PLAIN)
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    for state_class in ("Watched", "Clipped"):
        check_replicas(world(2).run(ddp_runs.join, "atomo:bits=1", state_class))


@pytest.mark.parametrize("state_class", ["Watched", "OnStandIn"])
def test_each_ranks_gradient_is_clipped_before_it_is_sent(world, state_class):
    check_clipping(world, state_class)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaling_to_a_norm(dtype):
    """Of sparse gradients too. What is not finite stays as it is."""
    dense, sparse = torch.full((8,), 3.0, dtype=dtype), torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,), check_invariants=False).to(dtype)
    scale_to_norm([dense, sparse], 0.5)
    assert dense.dtype == dtype
    assert (dense.double().square().sum() + sparse.to_dense().double().square().sum()).sqrt() == pytest.approx(0.5, rel=0.01)
    assert float(sparse.to_dense()[1] / dense[0]) == pytest.approx(5 / 3, rel=0.02)
    for bad in (torch.tensor([torch.inf, 4.0]), torch.tensor([torch.nan, 4.0])):
        dense = torch.full((8,), 3.0)
        scale_to_norm([bad, dense], 0.5)
        assert bad[1] == 4 and (dense == 3).all()
    zeros = torch.zeros(4)
    scale_to_norm([zeros], 0.5)
    assert not zeros.any()


def test_half_gradients(world):
    """Types may differ by layer. The mean is summed in f32 and rounded once, to one of the two halves around it."""
    for policy in (PLAIN, "atomo:bits=4"):
        check_replicas(world(2).run(ddp_runs.train, policy, net="mixed", steps=4, lr=0.01))
    first, second = world(2).run(ddp_runs.gradients_of, PLAIN)
    errors = []  # of the halves that are not exact, in units of the spacing of halves there
    for name, (own, mean, kind) in first.items():
        assert mean.tobytes() == second[name][1].tobytes()
        exact = (own + second[name][0]) / 2
        if kind == "torch.float32":
            assert (mean == exact.astype(np.float32)).all()
            continue
        digits, least = (7, -133) if kind == "torch.bfloat16" else (10, -24)
        exponents = np.floor(np.log2(np.maximum(abs(exact), 2.0**-130)))
        error = (mean - exact) / 2.0 ** np.maximum(exponents - digits, least)
        assert (abs(error) < 1).all(), name
        errors.append(error[error != 0])
    errors = np.concatenate(errors)
    # Rounded at random: no error has a variance above 1/4, and together they are 0 on average.
    assert errors.size > 500
    assert abs(errors.sum()) < 5 * 0.5 * math.sqrt(errors.size)


@pytest.mark.parametrize("policy", ["atomo:bits=1", "qsgd:bits=4", PLAIN])
def test_a_grad_scaler_skips_on_all_ranks(world, policy):
    results = world(2).run(ddp_runs.scaled_step, policy, 1)
    for result in results:
        assert not any(result["finite"][0].values())
        assert all(result["finite"][1].values())
        assert result["kept"]
        assert result["scales"] == [512.0, 512.0]
    check_replicas(results)


# Bytes


def test_every_byte_is_counted(world):
    for ranks in (2, 4):
        for result in world(ranks).run(ddp_runs.train, "atomo:bits=1", cap_mb=THREE_BUCKETS):
            last = result["log"]["last"]
            assert result["bytes_sent"] == result["counted"] > 0
            assert result["log"]["bytes_sent"] == result["bytes_sent"] and result["log"]["steps"] == 8
            assert last["length_bytes"] == 8 * 6 + 8 + 88  # lengths, what ranks agree on, what each has learnt
            assert last["bytes_received"] > 0.5 * (ranks - 1) * last["bytes_sent"]
            assert last["buckets"] == result["buckets"][-1] and last["step"] == 7
            assert last["price"] > 0


def check_budget(world, steps):
    """A model of a million parameters in three buckets: what a rank sends, tables of lengths and the first step
    included, is within 2 % of the budget."""
    for result in world(2).run(ddp_runs.train, "atomo:bits=0.5", net="million", steps=steps, cap_mb=1.0, lr=0.02):
        assert sum(value.size for value in result["parameters"].values()) > 1_000_000
        assert result["buckets"][-1] == 3
        assert result["bytes_sent"] / steps == pytest.approx(result["budget_bytes"], rel=0.02)


def test_budget_is_met_on_the_wire(world):
    check_budget(world, 30)


@pytest.mark.parametrize("state_class", ["Watched", "OnStandIn"])
def test_steps_have_shares_of_the_budget(world, state_class):
    shares = [1, 1, 0.5, 2, 0.25, 1.25]
    for sizes, whole in world(2).run(ddp_runs.sizes_of_steps, state_class, shares):
        assert sizes[2:] == pytest.approx([share * whole for share in shares[2:]], rel=0.15), whole


@pytest.mark.long
def test_budget_is_met_on_the_wire_over_200_steps(world):
    check_budget(world, 200)


@pytest.mark.long
def test_accuracy_is_the_uncompressed_one_within_the_seeds_spread(world):
    """LeNet on Fashion-MNIST at half a bit a parameter: the means over three seeds are closer than twice the larger
    standard deviation."""
    scores = {hook: [world(2).run(ddp_runs.fashion, hook, seed)[0] for seed in (1, 2, 3)] for hook in ("none", "atomo")}
    spread = max(np.std(of, ddof=1) for of in scores.values())
    assert np.mean(scores["none"]) > 0.8
    assert abs(np.mean(scores["atomo"]) - np.mean(scores["none"])) < 2 * spread, scores


# Errors


def test_what_one_rank_cannot_encode_fails_on_all(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_runs.backward_with, 1, "encode")
    assert "could not encode" in failed.value.errors[0] and "rank 1" in failed.value.errors[0]
    assert re.fullmatch(r"Error: '[\w.]+' cannot be encoded today", failed.value.errors[1])
    assert failed.value.errors[0].startswith("Error: rank 1")


def test_another_models_state_says_so(world):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_runs.backward_with, 0, "other model")
    for error in failed.value.errors:
        assert error.startswith("Error: a parameter of shape") and "make it from the model that DDP wraps" in error


def test_setting_up_refuses_what_cannot_work():
    layer = torch.nn.Linear(4, 4)
    with pytest.raises(atomo.Error, match="float64"):
        atomo.torch.DDPState(torch.nn.Linear(4, 4).double())
    with pytest.raises(atomo.Error, match="no parameter that requires a gradient"):
        atomo.torch.DDPState([])
    with pytest.raises(atomo.Error, match="bits"):
        atomo.torch.DDPState(layer, "qsgd:bits=99")
    for bound in (0, -1.0, math.inf, math.nan, "1", True):
        with pytest.raises(atomo.Error, match=f"clip_norm is {bound!r}: a bound above 0 is expected, or None"):
            atomo.torch.DDPState(layer, clip_norm=bound)
    with pytest.raises(atomo.Error, match="bias"):
        atomo.torch.DDPState(layer, "weight=qsgd:bits=4")


def test_a_checkpoint_of_something_else_is_refused():
    state = atomo.torch.DDPState(torch.nn.Linear(4, 4), "qsgd:bits=4")
    with pytest.raises(atomo.Error, match="qsgd:bits=2"):
        state.load_state_dict(atomo.torch.DDPState(torch.nn.Linear(4, 4), "qsgd:bits=2").state_dict())
    with pytest.raises(atomo.Error, match=r"saved state has 'weight' as f32 \[4, 5\].*\[4, 4\]"):
        state.load_state_dict(atomo.torch.DDPState(torch.nn.Linear(5, 4), "qsgd:bits=4").state_dict())
    with pytest.raises(atomo.Error, match="the model no layer 'bias'"):
        state.bind(torch.nn.Linear(4, 4, bias=False))
    with pytest.raises(atomo.Error):
        state.load_state_dict({**state.state_dict(), "compressor": [b"nothing"]})


def test_names_are_the_wrapped_modules():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    state = atomo.torch.DDPState(module.named_parameters(), "qsgd:bits=4")
    assert list(state.layers) == ["0.bias", "1.weight", "1.bias"]
    assert state.layers["1.weight"] == ((2, 4), "f32")


# FSDP2


def test_fully_shard_uncompressed_is_the_plain_reduce_scatter(world):
    mine = world(2).run(ddp_runs.sharded, PLAIN)
    plain = world(2).run(ddp_runs.sharded, PLAIN, hooked=False)
    assert same(mine[0]["parameters"], plain[0]["parameters"])
    assert mine[0]["losses"] == plain[0]["losses"]
    check_replicas(mine)


@pytest.mark.parametrize("codec, dtype", [("qsgd:bits=6", torch.float32), ("qsgd:bits=6", torch.bfloat16),
                                          ("atomo:atoms=blocks,bits=6", torch.float32)])
def test_fully_shard_compressed_trains(world, codec, dtype):
    plain = world(2).run(ddp_runs.sharded, PLAIN, steps=20, hooked=False)
    mine = world(2).run(ddp_runs.sharded, codec, steps=20, dtype=dtype)
    check_replicas(mine)
    mean = [np.mean([of["losses"][-1] for of in results]) for results in (mine, plain)]
    assert mean[0] == pytest.approx(mean[1], rel=0.02) and mean[1] < 0.9 * plain[0]["losses"][0]
    assert mine[0]["calls"] == 20 * 3
    whole = 4 * sum(value.size for value in mine[0]["parameters"].values()) / 2 * 20
    assert 0 < mine[0]["bytes_sent"] < whole / 4


@pytest.mark.parametrize("codec", ["atomo:atoms=blocks,bits=0.5", "atomo:bits=0.5"])
def test_fully_shard_sends_the_gradients_of_a_few_parameters(world, codec):
    for of in world(2).run(ddp_runs.sharded_to_a_few, codec):
        assert of["sent"] >= 198 and of["largest"] < 100 and of["warnings"] == 1


@pytest.mark.parametrize("what, says", [("max", "only SUM and AVG"), ("async", "async_op=True"),
                                        ("float64", "float64"), ("encode", "rank 1 could not encode")])
def test_reduce_scatter_refuses_what_it_cannot_do(world, what, says):
    with pytest.raises(RankFailed) as failed:
        world(2).run(ddp_runs.scatter, what)
    assert says in failed.value.errors[0] and failed.value.errors[1] is not None


def test_reduce_scatter_refuses_rules_and_models_without_shards():
    with pytest.raises(atomo.Error, match=r"FSDP takes one codec, found the rules '\*.bias=identity; \*=sign'"):
        atomo.torch.FSDPReduceScatter("*.bias=identity; *=sign")
    with pytest.raises(atomo.Error, match="bits=99"):
        atomo.torch.FSDPReduceScatter("qsgd:bits=99")
    with pytest.raises(atomo.Error, match="seed is None"):
        atomo.torch.FSDPReduceScatter(seed=None)
    with pytest.raises(atomo.Error, match="Linear has no module under fully_shard"):
        atomo.torch.FSDPReduceScatter().attach(torch.nn.Linear(4, 4))


@pytest.mark.parametrize("form", ["rows", "sketch", "auto"])
def test_forms_of_matrices_are_no_other_on_a_flat_chunk(form):
    """As FSDPReduceScatter's documentation says."""
    chunk = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    sizes = {of: len(atomo.Codec(f"atomo:atoms={of},bits=0.5").encode(chunk, seed=1, step=1))
             for of in ("blocks", "coordinate", form)}
    assert sizes[form] == sizes["blocks"], sizes


def test_reduce_scatter_goes_on_from_a_checkpoint():
    comm = atomo.torch.FSDPReduceScatter("qsgd:bits=4")
    with pytest.raises(atomo.Error, match="qsgd:bits=2"):
        comm.load_state_dict(atomo.torch.FSDPReduceScatter("qsgd:bits=2").state_dict())
    comm.load_state_dict({**comm.state_dict(), "calls": 7})
    assert comm.calls == 7
    assert repr(comm) == "atomo.torch.FSDPReduceScatter('qsgd:bits=4,bucket=512,norm=max', seed=0, calls=7)"


# The example and the benchmark


def run_program(*command):
    """Runs a program of this tree and returns what it printed."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def few_images(folder):
    """A folder of the first 640 images to train on and 200 to test on, at a fiftieth of the time."""
    sys.path.insert(0, str(ROOT / "examples" / "python"))
    import fashion_mnist

    for part, count in (("train", 640), ("t10k", 200)):
        for kind, size in (("images-idx3", 28 * 28), ("labels-idx1", 1)):
            with gzip.open(fashion_mnist.FOLDER / f"{part}-{kind}-ubyte.gz") as file:
                head = 16 if size > 1 else 8
                content = file.read(head + count * size)
            (folder / f"{part}-{kind}-ubyte").write_bytes(content[:4] + struct.pack(">I", count) + content[8:])
    return folder


@pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.long)], ids=["launch", "torchrun"])
def test_example_trains(torchrun, tmp_path):
    command = ["examples/python/ddp.py", "--hook", "atomo", "--codec", "*.bias=identity:dtype=f32; *=atomo:bits=0.5", "--steps", "2"]
    if not torchrun:  # of a commit; else all images
        command += ["--data", str(few_images(tmp_path))]
    if torchrun:
        said = run_program("-m", "torch.distributed.run", "--nproc-per-node", "2", *command)
    else:
        said = launch(2, *command, folder=ROOT)
    assert "step 1/2" in said and "test accuracy" in said


@pytest.mark.long
def test_benchmark_writes_its_table(tmp_path):
    run_program("bench/ddp.py", "--workers", "2", "--steps", "24", "--seeds", "1", "2", "--codec", "atomo:bits=0.5",
                "--rank", "1", "--out", str(tmp_path / "ddp"))
    rows = {row["hook"]: row for row in json.loads((tmp_path / "ddp.json").read_text())["rows"]}
    assert rows["none"]["handed_a_step"] == 4 * 431_080
    assert rows["atomo"]["handed_a_step"] == pytest.approx(431_080 / 16, rel=0.02)
    assert "| atomo:bits=0.5" in (tmp_path / "ddp.md").read_text() and (tmp_path / "ddp.png").stat().st_size > 0
