# SPDX-License-Identifier: Apache-2.0
"""Trainings that one process simulates (programs/atomo-train/tools/simulated), at tiny sizes on the CPU."""
import functools
import gzip
import json
import pathlib
import struct
import sys
import types

import numpy
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "programs/atomo-train/tools"))

import atomo  # noqa: E402
from experiments.noise_by_layer import Costs, layer_of  # noqa: E402
from experiments.series import NOT_TRAINED, Row, Series  # noqa: E402 (found by the line above)
from simulated import Refusal, draws  # noqa: E402
from simulated.low_rank import LowRank, orthonormal  # noqa: E402
from simulated.optimisers import (  # noqa: E402
    columns, first_moment_of, learning_rates, matrices, optimiser_of, orthogonalised, rates_in_memory)
from simulated.options import parsed  # noqa: E402
from simulated.second_moment import SquaresExchange, Told  # noqa: E402
from simulated.training import Training, f32_as_it_is  # noqa: E402

CPU = torch.device("cpu")
LENET = ("--algorithm", "allgather", "--model", "lenet", "--batch", 2, "--steps", 4)
ADAMW = (*LENET, "--optimizer", "adamw", "--lr", 0.003)
PARAMETERS = 431080


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Each class is a bright square somewhere else, under noise."""
    folder, random = tmp_path_factory.mktemp("images"), numpy.random.default_rng(5)
    for prefix, count in (("train", 64), ("t10k", 30)):
        labels = random.integers(0, 10, count).astype(numpy.uint8)
        pixels = random.integers(0, 60, (count, 28, 28))
        for image, label in zip(pixels, labels):
            row, column = divmod(int(label), 4)
            image[2 + 8 * row:8 + 8 * row, 1 + 7 * column:7 + 7 * column] += 150
        for name, array in (("images-idx3", pixels.astype(numpy.uint8)), ("labels-idx1", labels)):
            header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return str(folder)


def trained(workers, *words):
    """The training, ended, and its events."""
    events = []
    training = Training(workers, words, events.append)
    training.run()
    return training, events


def by_pytorch(training, optimiser):
    """The weights of one worker's LeNet after a plain loop over the training's samples."""
    network, data, options = training.fleet.network, training.data, training.options
    optimiser = optimiser(network.parameters())
    order = draws.order_of(data.samples("training"), options.steps, 1, options.batch, options.seed)
    for rate, which in zip(columns(options)["lr"], order):
        x, targets = data.gather("training", torch.from_numpy(which[0]))
        for layer in (network.conv1, network.conv2):
            x = torch.nn.functional.max_pool2d(layer(x), 2).relu()
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network.fc2(network.fc1(x.flatten(1)).relu()), targets).backward()
        if options.clip_norm:
            torch.nn.utils.clip_grad_norm_(network.parameters(), options.clip_norm)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize("name, words, optimiser", [
    ("adamw", ("--lr", 0.003, "--weight-decay", 0.1), functools.partial(torch.optim.AdamW, weight_decay=0.1)),
    ("adam", ("--lr", 0.003, "--warmup", 3), torch.optim.Adam),
    ("sgd", ("--lr", 0.02, "--clip-norm", 0.5), functools.partial(torch.optim.SGD, lr=1, momentum=0.9)),
    ("sgd", ("--lr", 0.02), functools.partial(torch.optim.SGD, lr=1, momentum=0.9)),
    ("nesterov", ("--lr", 0.02), functools.partial(torch.optim.SGD, lr=1, momentum=0.9, nesterov=True))])
def test_one_worker_without_compression_is_pytorch(images, name, words, optimiser):
    training, events = trained(1, *LENET, "--optimizer", name, *words, "--data", images)
    before = torch.cat([parameter.detach().flatten() for parameter in training.fleet.network.parameters()])
    want = by_pytorch(training, optimiser)
    assert (want - before).abs().max() > 1e-3
    assert torch.allclose(training.fleet.weights[0], want, rtol=1e-4, atol=1e-5)


def test_workers_without_compression_are_one_of_all_their_samples(images):
    four, events = trained(4, *LENET, "--lr", 0.005, "--data", images)
    one, _ = trained(1, *LENET, "--lr", 0.005, "--batch", 8, "--data", images)
    assert torch.allclose(four.fleet.weights, one.fleet.weights, rtol=1e-4, atol=1e-6)
    assert [event["event"] for event in events] == ["start", "evaluation", "end"]
    assert 4 * PARAMETERS < events[-1]["bytes_per_step"] < 1.001 * 4 * PARAMETERS


@pytest.mark.parametrize("words, bits", [
    (("--codec", "atomo:bits=0.25"), 0.25), (("--codec", "ef+atomo:bits=0.25,content=nearest"), 0.25),
    (("--codec", "ef21+atomo:bits=0.25,content=nearest"), 0.25),
    (("--codec", "momentum:beta=0.999+topk:chunk=4096,k=64,values=sign,dct=64", "--optimizer", "signsgd", "--lr", 0.001), None),
    (("--codec", "atomo:bits=0.25", "--share-by-rate", 0.75), None),
    (("--policy", "*.bias = identity; * = atomo:bits=0.15"), 0.193),  # 32 bits of 580 biases come on top
    (("--policy", "* = identity:dtype=f16"), 16),
    (("--codec", "atomo:bits=0.25", "--optimizer", "adafactor"), 0.25), (("--codec", "atomo:bits=0.25", "--optimizer", "muon"), 0.25)])
def test_bytes_are_those_of_messages(images, words, bits):
    _, events = trained(2, *ADAMW, *words, "--data", images)
    end = events[-1]
    assert end["ratio"] == pytest.approx(4 * PARAMETERS / end["bytes_per_step"])
    if bits:
        assert 8 * end["bytes_per_step"] / PARAMETERS == pytest.approx(bits, rel=0.05)


@pytest.mark.parametrize("words", [(), ("--algorithm", "local", "--local-steps", 2)])
def test_differences_add_up(images, words):
    """Those of whole gradients are the gradients; a memory of the same messages has nothing to say."""
    whole, exact, sparse = (trained(2, *ADAMW, *words, "--codec", codec, "--data", images)[0]
                            for codec in ("ef21+identity:dtype=f32", "identity:dtype=f32", "ef21+topk:keep=0.01"))
    assert torch.allclose(whole.fleet.weights, exact.fleet.weights, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(sparse.fleet.weights, exact.fleet.weights, rtol=1e-3, atol=1e-4)
    # Each worker's memory is what it has sent, and the sum is their mean.
    for name, (_, total) in zip(sparse.fleet.layers, sparse.algorithm.messages.sums, strict=True):
        sent = [torch.frombuffer(bytearray(each.memory(name)), dtype=torch.float32) for each in sparse.algorithm.messages.compressors]
        assert torch.allclose(total.flatten(), sum(sent) / 2, rtol=1e-5, atol=1e-7), name


def test_squares_need_gradients(images):
    with pytest.raises(Refusal, match="--second-moment: factored compares gradients with what their messages decode to"):
        trained(2, *ADAMW, "--codec", "ef21+sign", "--second-moment", "factored", "--data", images)


@pytest.mark.parametrize("kind", ["factored", "scaled", "matched", "exact"])
def test_second_moments_train(images, kind):
    """All but the oracle tell of squares at the first and the third of four steps."""
    every = () if kind == "exact" else ("--squares-every", 2)
    plain = trained(2, *ADAMW, "--codec", "qsgd:bits=4", "--data", images)[1][-1]["bytes_per_step"]
    training, events = trained(2, *ADAMW, "--codec", "qsgd:bits=4", "--second-moment", kind, *every, "--data", images)
    more = 0
    if kind != "exact":
        more = training.algorithm.squares.messages.compressors[0].max_encoded_bytes
    assert events[-1]["bytes_per_step"] - plain == pytest.approx(more / 2, abs=200)
    assert more < 0.02 * PARAMETERS


def test_a_factored_step_in_f64():
    """Of a matrix and a vector, from messages that are exact, against the formula of docs/second-moment.md."""
    layers, workers = {"matrix": (5, 8), "vector": (7,)}, 3
    options = types.SimpleNamespace(workers=workers, schedule="cosine", beta1=0.9, beta2=0.999, squares_every=1, second_moment="factored",
                                    optimizer="adamw", weight_decay=0, max_update=0, seed=1, warmup=0, lr=0.1, steps=4)
    gradients = torch.randn(workers, 47, generator=torch.Generator().manual_seed(3))
    mean, weights = gradients.mean(0, keepdim=True), torch.zeros(1, 47)
    told = Told(layers, options, CPU)
    SquaresExchange(told, gradients, gradients.clone(), mean, 1, CPU).tell(0)
    optimiser_of(options, layers, weights, told).step(weights, mean, {k: torch.tensor(v[0]) for k, v in columns(options).items()})

    g, a = gradients[:, :40].view(workers, 5, 8).double(), mean[0, :40].view(5, 8).double()
    ratio = (a.square().sum() / g.square().sum((1, 2)).mean()).clamp(0.5 / workers, 1)
    rows, columns_ = (told.means.double() / 0.001).split([5, 8])  # the first of means that decay by 0.999
    second = rows[:, None] * columns_ / rows.mean() * ratio
    assert torch.allclose(weights[0, :40].view(5, 8).double(), -0.1 * a / second.sqrt(), rtol=1e-4)
    # Means travel in 9 bits, rounded at random to a power of two.
    assert ((rows / g.square().mean((0, 2))).log2().abs() < 1).all()
    assert ((columns_ / g.square().mean((0, 1))).log2().abs() < 1).all()
    assert torch.allclose(weights[0, 40:], -0.1 * mean[0, 40:].sign(), rtol=1e-4)  # Adam's own first step


@pytest.mark.parametrize("name, kept, which", [
    ("sgd", 0.7, 0), ("nesterov", 0.7, 0), ("adam", 0.6, 0), ("adamw", 0.6, 0), ("adafactor", 0.6, 0), ("muon", 0.95, 2),
    ("signsgd", 0, None)])
def test_what_stays_of_a_first_moment(name, kept, which):
    """Of a step without a gradient, which adds nothing to it."""
    layers = {"matrix": (5, 8), "vector": (7,)}
    betas = ("--beta1", 0.6) if which is not None and kept != 0.7 else ()
    options = parsed((*LENET, "--optimizer", name, "--momentum", 0.7, *betas), 1)
    assert first_moment_of(options) == kept
    weights = torch.zeros(1, 47)
    optimiser = optimiser_of(options, layers, weights)
    if which is None:
        assert not optimiser.state
        return
    gradient, moments = torch.randn(1, 47, generator=torch.Generator().manual_seed(4)), []
    for step, gradient in enumerate((gradient, torch.zeros(1, 47))):
        optimiser.step(weights, gradient, {k: torch.tensor(v[step]) for k, v in columns(options).items()})
        moments.append(optimiser.state[which].clone())
    assert (moments[0] != 0).all()
    assert torch.allclose(moments[1], kept * moments[0], rtol=1e-6)


@pytest.mark.parametrize("moment", [(), ("--second-moment", "factored", "--squares-every", 2)])
def test_precondition(images, moment):
    """Without a codec it changes nothing but roundings. A vector has one unit, and no unit is
    far below the others of its matrix."""
    words = (*ADAMW, *moment, "--data", images)
    plain, _ = trained(2, *words)
    training, _ = trained(2, *words, "--precondition")
    assert torch.allclose(plain.fleet.weights, training.fleet.weights, atol=2e-5)
    algorithm = training.algorithm
    for matrix in matrices(training.fleet.layers):
        unit = matrix.of(algorithm.units)[0]
        if min(matrix.rows, matrix.columns) < 4:
            assert (unit == unit[0, 0]).all()
        else:
            assert unit.min() >= 0.999 * unit.square().mean().sqrt() / 32
    coded, _ = trained(2, *words, "--codec", "atomo:bits=0.5", "--precondition")
    other, _ = trained(2, *words, "--codec", "atomo:bits=0.5")
    assert not torch.equal(coded.fleet.weights, other.fleet.weights)


def test_rates_in_a_memory(images):
    """EF-SGD (Karimireddy et al., arXiv 1901.09847, algorithm 2) by hand: what is kept and sent are steps, not gradients."""
    words = (*LENET, "--lr", 0.02, "--warmup", 2, "--momentum", 0.5, "--codec", "ef+topk:keep=0.1", "--rate-in-memory", "--data", images)
    training, _ = trained(1, *words)

    class EfSgd(torch.optim.SGD):
        """`kept` has the steps at the rate behind the warm-up, 0.02 times what is left of the cosine."""
        def step(self):
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                part = 0.5 * (1 + numpy.cos(numpy.pi * state.setdefault("steps", 0) / 4))
                state["steps"] += 1
                whole = (parameter.grad * part + state.get("kept", 0)).flatten()
                largest = whole.abs().topk(max(1, round(0.1 * whole.numel()))).indices
                sent = torch.zeros_like(whole).index_copy(0, largest, whole[largest])
                state["kept"] = (whole - sent).view_as(parameter)
                parameter.grad.copy_((sent / part).view_as(parameter))
            super().step()

    want = by_pytorch(training, functools.partial(EfSgd, lr=1, momentum=0.5))
    other, _ = trained(1, *(word for word in words if word != "--rate-in-memory"))
    apart = (training.fleet.weights[0] - other.fleet.weights[0]).abs().max()
    assert (training.fleet.weights[0] - want).abs().max() < 0.05 * apart


def test_rates_of_a_memory_have_a_floor():
    options = types.SimpleNamespace(steps=1000, warmup=100, lr=0.5, schedule="cosine")
    rates, rising = rates_in_memory(options), learning_rates(options)
    assert rates[0] == 1 and rates[-1] == 1 / 1024 and max(rates) == 1
    assert rates[100:900] == [rate / 0.5 for rate in rising[100:900]]


def test_a_trapezoid():
    options = types.SimpleNamespace(steps=8, warmup=2, lr=0.5, schedule="trapezoid", decay_at=0.5)
    assert learning_rates(options) == [0.25, 0.5, 0.5, 0.5, 0.5, 0.375, 0.25, 0.125]
    assert rates_in_memory(options) == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("codec", ["atomo:bits=0.5", "ef21+topk:keep=0.1"])
def test_rates_need_a_memory(images, codec):
    with pytest.raises(Refusal, match="--rate-in-memory: needs a codec with a memory, such as ef.topk:keep=0.01, and none of ef21"):
        trained(1, *LENET, "--codec", codec, "--rate-in-memory", "--data", images)


def test_units_in_f64():
    """Fourth roots of Adam's own moments: of a matrix the product of row and column means, of a vector the mean."""
    layers = {"matrix": (5, 8), "vector": (7,)}
    options = types.SimpleNamespace(workers=2, schedule="cosine", beta1=0.9, beta2=0.9, squares_every=1, second_moment="own", optimizer="adamw",
                                    weight_decay=0, max_update=0, seed=1, warmup=0, lr=0.1, steps=4)
    weights, units, moment = torch.zeros(1, 47), torch.zeros(1, 47), torch.zeros(47).double()
    optimiser = optimiser_of(options, layers, weights)
    for step in range(3):
        gradient = torch.randn(1, 47, generator=torch.Generator().manual_seed(step))
        gradient[0, 16:24] = 0  # a row, whose unit is kept from below
        at = {k: torch.tensor(v[step]) for k, v in columns(options).items()}
        optimiser.step(weights, gradient, at)
        optimiser.find_units(units, at)
        moment = 0.9 * moment + 0.1 * gradient[0].double().square()
    moment /= 1 - 0.9**3
    matrix = moment[:40].view(5, 8)
    root = (torch.outer(matrix.mean(1), matrix.mean(0)) / matrix.mean()).sqrt()
    root = root.clamp(min=root.square().mean().sqrt() / 1024)
    assert torch.allclose(units[0, :40].view(5, 8).double(), root.sqrt(), rtol=1e-5)
    assert torch.allclose(units[0, 40:].double(), moment[40:].mean()**0.25, rtol=1e-5)


def test_local_steps(images):
    """A round's message, and plain averaging at rate 1; a round of one step of SGD is a step along the mean."""
    local = ("--algorithm", "local", "--model", "lenet", "--batch", 2, "--steps", 4, "--momentum", 0, "--lr", 0.02, "--data", images)
    rounds, events = trained(2, *local, "--local-steps", 3, "--eval-every", 1)
    assert [event["steps"] for event in events[1:-1]] == [3, 4]
    assert events[-1]["bytes_per_step"] == pytest.approx(4 * PARAMETERS / 2, rel=0.001)
    single, _ = trained(2, *local, "--local-steps", 1)
    gathered, _ = trained(2, "--algorithm", "allgather", *local[2:])
    assert torch.allclose(single.fleet.weights[0], gathered.fleet.weights[0], rtol=1e-4, atol=1e-6)
    nesterov, _ = trained(2, *local, "--outer-optimizer", "nesterov", "--outer-lr", 0.7, "--outer-momentum", 0.9,
                          "--local-steps", 4)
    averaged, _ = trained(2, *local, "--local-steps", 4)
    first = Training(2, [*local, "--local-steps", 4], lambda event: None).fleet.weights[0]
    # The first outer step is 0.7 (1 + 0.9) times as long.
    assert torch.allclose(nesterov.fleet.weights[0] - first, 1.33 * (averaged.fleet.weights[0] - first), rtol=1e-3, atol=1e-6)


def test_noise_by_layer(images, monkeypatch):
    """A layer's cost is the score with its decoded mean in the exact one, less that without; the training is the same."""
    words = ("--algorithm", "local", "--model", "lenet", "--batch", 2, "--steps", 3, "--local-steps", 2, "--lr", 0.02, "--data", images,
             "--policy", "conv*.weight = atomo:bits=0.5; * = identity:dtype=f32")
    plain, _ = trained(2, *words)
    training, scored, agreed = Training(2, words, lambda event: None), [], []
    costs = training.algorithm.outer = Costs(training, 7, types.SimpleNamespace(update=lambda text: None))
    before, first = costs.outer.step, training.fleet.weights[0].clone()
    monkeypatch.setattr(costs.outer, "step", lambda *given: (agreed.append(given[1][0].clone()), before(*given)))

    def score(samples):
        assert samples in (7, 30)  # those asked for; all of them at the end
        scored.append(training.fleet.weights[0].clone())
        return [float((scored[-1] - first).square().sum()), 0.0]
    monkeypatch.setattr(training, "score", score)
    training.run()
    assert torch.equal(training.fleet.weights, plain.fleet.weights)
    assert len(costs.of_rounds) == 2
    layers = [row["layer"] for row in costs.of_rounds[0]["layers"]]
    assert layers == ["all layers", "conv1", "conv2", "fc1", "fc2"]
    exact, *parts = scored[:6]
    views = [training.fleet.views(weights[None]) for weights in (exact, first - agreed[0])]
    for layer, row, weights in zip(layers, costs.of_rounds[0]["layers"], parts):
        expected = torch.cat([views[layer in ("all layers", layer_of(name))][name].flatten() for name in training.fleet.layers])
        assert torch.allclose(weights, expected, atol=1e-7)
        assert row["cost"] == pytest.approx(float((weights - first).square().sum() - (exact - first).square().sum()), abs=1e-9)
        assert (row["energy_of_noise"] > 0.1 * row["energy_of_mean"]) == (layer in ("all layers", "conv1", "conv2"))
        assert (row["cost"] != 0) == (layer in ("all layers", "conv1", "conv2"))
    assert sum(row["entries"] for row in costs.of_rounds[0]["layers"]) == 2 * PARAMETERS


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.get_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("rows, inner, columns", [(1, 1, 1), (512, 256, 768), (512, 1024, 256), (64, 64, 64), (1000, 3, 17)])
def test_products_are_of_f32(precision, rows, inner, columns):
    f32_as_it_is()
    draws = torch.Generator().manual_seed(1)
    a, b = torch.randn(4, rows, inner, generator=draws), torch.randn(4, columns, inner, generator=draws).transpose(1, 2)
    error = torch.bmm(a, b).double() - torch.bmm(a.double(), b.double())
    most = torch.bmm(a.double().abs(), b.double().abs()) * (inner + 2) * 2 ** -24
    assert (error.abs() <= most).all()


def test_products_that_round_are_left(precision, monkeypatch):
    """Stands in for a processor with tiles of bf16."""
    exact = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: exact(a.bfloat16(), b.bfloat16()).float())
    f32_as_it_is()
    assert precision() == "highest"


def test_low_rank():
    """What is left of a step's gradients is in the memory, and the factors of a mean of rank 1 are it."""
    draw = torch.Generator().manual_seed(1)
    options, layers = types.SimpleNamespace(rank=1, min_ratio=2), {"a": (8, 9), "b": (6,)}
    gradients, mean = torch.randn(3, 78, generator=draw), torch.zeros(1, 78)
    low = LowRank(layers, options, gradients, mean, 1)
    assert low.reduced_bytes == 4 * (8 + 9 + 6)
    low.find()
    assert torch.equal(mean[0, 72:], gradients[:, 72:].mean(0))
    assert torch.allclose(low.memory[:, :72] + mean[:, :72], gradients[:, :72], atol=1e-6) and not low.memory[:, 72:].any()
    gradients.copy_(torch.cat([torch.outer(torch.randn(8, generator=draw), torch.randn(9, generator=draw)).flatten(),
                               torch.zeros(6)]).expand(3, -1))
    low.memory.zero_()
    low.find()
    assert torch.allclose(mean[0, :72], gradients[0, :72], atol=1e-5)
    basis = orthonormal(torch.randn(9, 3, generator=draw))
    assert torch.allclose(basis.t() @ basis, torch.eye(3), atol=1e-6)


def test_powersgd_trains(images):
    _, events = trained(2, "--algorithm", "powersgd", "--rank", 1, *ADAMW[2:], "--data", images)
    assert events[-1]["ratio"] > 50


def test_squares_beside_factors(images):
    """What is told is the part of a worker's gradient in the span of P, without its memory. Where nothing is factored, steps
    are those without a codec."""
    draw = torch.Generator().manual_seed(5)
    options, layers = types.SimpleNamespace(rank=2, min_ratio=0.5), {"a": (9, 8), "b": (3,)}
    gradients, mean, own = torch.randn(3, 75, generator=draw), torch.zeros(1, 75), torch.zeros(3, 75)
    low = LowRank(layers, options, gradients, mean, 1, own)
    low.find()
    assert torch.allclose(own.mean(0), mean[0], atol=1e-6)
    gradients.copy_(torch.randn(3, 75, generator=draw))
    low.find()
    assert torch.equal(own[:, 72:], gradients[:, 72:]) and not torch.allclose(own.mean(0), mean[0], atol=0.1)
    product, rest = own[:, :72].view(3, 9, 8), (gradients - own)[:, :72].view(3, 9, 8)
    assert torch.linalg.matrix_rank(torch.cat([*product], 1)) == 2  # all workers have one P
    assert torch.allclose(torch.matmul(product.transpose(1, 2), rest), torch.zeros(3, 8, 8), atol=1e-4)
    moment = ("--second-moment", "factored", "--squares-every", 2, "--data", images)
    found, _ = trained(2, "--algorithm", "powersgd", "--min-ratio", 1e9, *ADAMW[2:], *moment)
    exact, _ = trained(2, *ADAMW, *moment)
    assert torch.allclose(found.fleet.weights, exact.fleet.weights, rtol=1e-4, atol=1e-6)
    own_moment, _ = trained(2, *ADAMW, "--data", images)
    assert not torch.allclose(own_moment.fleet.weights, exact.fleet.weights, rtol=1e-4, atol=1e-4)


def test_singular_values_come_near_one():
    for shape in ((3, 6, 20), (3, 20, 6)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(2))))
        assert values.min() > 0.6 and values.max() < 1.3


def test_draws_are_those_of_the_trainer():
    """Numbers of C++'s seed_seq and mt19937_64; each sample comes once an epoch."""
    assert draws.numbers((7, 0, 3, 0), 1001)[-1] == 16306657682384728478
    order = draws.order_of(10, 5, 2, 2, 1)
    assert order.shape == (5, 2, 2) and len(set(order[:2].flatten())) == 8 and (order[0] != order[2]).any()


@pytest.mark.parametrize("words, said", [
    (("--algorithm", "ps", "--model", "lenet"), "--algorithm"), ((*LENET, "--augment", "crop"), "does not know --augment crop"),
    ((*LENET, "--vote"), "does not know --vote"), ((*LENET, "--local-steps", 2), "--local-steps: goes with --algorithm local"),
    ((*LENET, "--second-moment", "factored"), "--second-moment: goes with --optimizer adam, adamw, not with sgd"),
    ((*LENET, "--squares-every", 2), "--squares-every: goes with"), ((*LENET, "--precondition"), "--precondition: goes with"),
    (("--algorithm", "local", "--model", "lenet", "--rate-in-memory"), "--rate-in-memory: goes with --algorithm allgather"),
    ((*LENET, "--beta1", 0.5), "--beta1: goes with"), ((*LENET, "--decay-at", 0.5), "--decay-at: goes with --schedule trapezoid"),
    ((*LENET, "--schedule", "trapezoid"), "--decay-at: goes with --schedule trapezoid, which needs it"),
    ((*LENET, "--schedule", "trapezoid", "--decay-at", 1), "--decay-at: 1 is not a share of the run, between 0 and 1"),
    ((*LENET, "--codec", "sign", "--policy", "* = sign"), "--codec: take one of --codec and --policy"),
    ((*LENET, "--steps", 0), "--steps: 0 is below 1"), (("--algorithm", "powersgd", "--model", "lenet", "--codec", "sign"), "--codec"),
    (("--algorithm", "powersgd", *ADAMW[2:], "--second-moment", "exact"), "--second-moment: exact goes with --algorithm allgather")])
def test_what_is_refused(words, said):
    with pytest.raises(Refusal, match=said):
        parsed(words, 2)


def test_a_training_that_diverges(images):
    with pytest.raises(Refusal, match="the loss at step [0-9]+ is (nan|inf): the training diverged"):
        trained(2, *LENET, "--lr", 1e30, "--data", images)


def series_of(folder, images, seeds=(1, 2), until=None):
    options = types.SimpleNamespace(keep=str(folder), simulate=1, until=until, seeds=seeds, data=images, quick=False, hostfile=None)
    words = ("--algorithm", "allgather", "--model", "lenet", "--batch", 2)
    rows = [Row("good", 2, 2, 2, words), Row("bad", 2, 2, 2, (*words, "--lr", 1e30))]
    return Series(options, rows).run_all()


@pytest.mark.long  # three processes import PyTorch
def test_a_series_goes_on(images, tmp_path, capfd):
    """Trainings that ended are kept, one that failed does not stop the others, and without time none begins."""
    found = series_of(tmp_path, images, until=-1)
    assert [outcome.failed for outcome in found.values()] == [NOT_TRAINED, NOT_TRAINED] and not list(tmp_path.iterdir())
    found = series_of(tmp_path, images)
    assert found["good"].failed == "" and "diverged" in found["bad"].failed
    assert [run[0]["seed"] for run in found["good"].runs] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2
    one = sorted(tmp_path.iterdir())[0]
    kept = json.loads(one.read_text())["events"]
    assert [event["event"] for event in kept] == ["start", "evaluation", "evaluation", "end"]
    one.unlink()
    capfd.readouterr()
    again = series_of(tmp_path, images)
    assert "4 trainings, 1 of them kept" in capfd.readouterr().out
    scores = [[run[-1]["loss"] for run in outcome.runs] for outcome in (found["good"], again["good"])]
    assert scores[0] == scores[1]
