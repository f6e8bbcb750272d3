# SPDX-License-Identifier: Apache-2.0
"""atomo.optax: workers' squares along a mapped axis, and the Adam that divides by them."""

import os

import numpy as np
import pytest

# Four devices of the CPU, for shard_map; read when JAX makes its first array.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import atomo  # noqa: E402
import atomo.jax  # noqa: E402
import atomo.optax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

WORKERS = 4
CODEC = "qsgd:bits=1,bucket=64"


def gradients_of(seed=0):
    """Of all workers, along the first dimension: a matrix, a convolution, a vector and a matrix with a short side."""
    rng = np.random.default_rng(seed)
    common = {"matrix": rng.standard_normal((12, 20)), "convolution": rng.standard_normal((8, 2, 3, 3)),
              "vector": rng.standard_normal(7), "narrow": rng.standard_normal((3, 30))}
    return {name: jnp.asarray(0.01 * (of + rng.standard_normal((WORKERS, *of.shape))), jnp.float32)
            for name, of in common.items()}


def by_vmap(of_worker):
    return jax.vmap(of_worker, axis_name="workers")


def by_shard_map(of_worker):
    """Each worker on a device."""
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))

    def of_device(*trees):
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], of_worker(*jax.tree.map(lambda leaf: leaf[0], trees)))

    return jax.shard_map(of_device, mesh=mesh, in_specs=P("workers"), out_specs=P("workers"))


def told(gradients, codec, step, every=1, along_workers=by_vmap):
    """What every worker hears, mapped over the workers."""
    def of_worker(own_gradients):
        worker = jax.lax.axis_index("workers")
        payload, _ = atomo.jax.encode_tree(own_gradients, codec, seed=3, step=step, worker=worker)
        zeros = jax.tree.map(jnp.zeros_like, own_gradients)
        mean = atomo.jax.decode_add_tree(jax.lax.all_gather(payload, "workers"), 1 / WORKERS, zeros, codec)
        own = atomo.jax.decode_tree(payload, codec, own_gradients)
        return mean, atomo.optax.tell_squares(own_gradients, own, mean, "workers", seed=3, step=step, every=every)

    return along_workers(of_worker)(gradients)


def test_without_a_codecs_noise_the_sums_are_those_of_the_gradients():
    gradients = gradients_of()
    _, squares = told(gradients, "identity", 0)
    assert squares["vector"] is None and squares["narrow"] is None
    for name in ("matrix", "convolution"):
        flat, of = np.asarray(gradients[name], float).reshape(WORKERS, len(gradients[name][0]), -1), squares[name]
        assert all((np.asarray(part) == np.asarray(part)[0]).all() for part in of), "workers hear the same"
        np.testing.assert_allclose(of.one[0], (flat**2).sum((1, 2)).mean(), rtol=1e-4)
        np.testing.assert_allclose(of.average[0], (flat.mean(0) ** 2).sum(), rtol=1e-4)
        for part, true in ((of.rows[0], (flat**2).mean((0, 2))), (of.columns[0], (flat**2).mean((0, 1)))):
            assert (part > 0.499 * true).all() and (part < 2.001 * true).all()


@pytest.mark.parametrize("noise_stays", [False, True])
def test_the_averages_squares_are_estimated_without_bias(noise_stays):
    """120 steps that draw independently, at 4.5 standard errors. The decoded average's own squares are far off."""
    gradients = gradients_of(1)
    step = jax.jit(lambda number: told(gradients, CODEC, number))
    true = (np.asarray(gradients["matrix"], float).mean(0) ** 2).sum()
    estimates = []
    for number in range(120):
        mean, squares = step(number)
        estimates.append(float(jnp.square(mean["matrix"][0]).sum() if noise_stays else squares["matrix"].average[0]) / true)
    error = np.std(estimates, ddof=1) / np.sqrt(len(estimates))
    assert (abs(np.mean(estimates) - 1) < 4.5 * error) != noise_stays


@pytest.mark.parametrize("along_workers", [by_vmap, by_shard_map])
def test_squares_are_told_at_a_period(along_workers):
    gradients = gradients_of(7)
    each, third = (jax.jit(lambda number, every=every: told(gradients, CODEC, number, every, along_workers)[1]) for every in (1, 3))
    nothing = jax.vmap(atomo.optax.untold_squares)(gradients)
    for number in range(7):
        found, expected = third(number), each(number) if number % 3 == 0 else nothing
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        assert (found["matrix"].weight == (number % 3 == 0)).all()
    assert (told(gradients, CODEC, 1, 3)[1]["matrix"].weight == 0).all(), "of a step that is not traced"


def squares_of(tree):
    """What one worker would tell of gradients whose codec has no noise."""
    def of_leaf(leaf):
        if leaf.ndim < 2 or min(leaf.shape[0], leaf[0].size) < 4:
            return None
        flat = jnp.square(leaf).reshape(leaf.shape[0], -1)
        return atomo.optax.LeafSquares(flat.mean(1), flat.mean(0), flat.sum(), flat.sum(), jnp.float32(1), jnp.float32(1))

    return jax.tree.map(of_leaf, tree)


def test_it_is_adam_where_squares_are_a_product():
    """Gradients of rank one have squares that are a product of row and column means; vectors keep Adam's own."""
    rng = np.random.default_rng(2)
    mine, theirs = atomo.optax.scale_by_told_adam(every=1), optax.scale_by_adam()
    tree = {"matrix": jnp.zeros((6, 5)), "vector": jnp.zeros(4)}
    states = [optimizer.init(tree) for optimizer in (mine, theirs)]
    row, column = rng.standard_normal(6), rng.standard_normal(5)
    for step in range(6):
        gradients = {"matrix": jnp.asarray((1 + 0.3 * step) * np.outer(row, column), jnp.float32),
                     "vector": jnp.asarray(rng.standard_normal(4), jnp.float32)}
        ours, states[0] = mine.update(gradients, states[0], squares=squares_of(gradients))
        adams, states[1] = theirs.update(gradients, states[1])
        for name in tree:
            np.testing.assert_allclose(ours[name], adams[name], rtol=2e-4)


def test_it_trains_in_a_chain_under_jit():
    """Steps that tell and steps that do not are one program."""
    optimizer = optax.chain(atomo.optax.scale_by_told_adam(every=3), optax.add_decayed_weights(1e-4), optax.scale(-0.02))
    target = jax.tree.map(lambda leaf: leaf[0] * 50, gradients_of(5))

    @jax.jit
    def step(parameters, state, number):
        gradients = jax.tree.map(lambda p, t: p - t, parameters, target)
        squares = jax.lax.cond(number % 3 == 0, lambda: squares_of(gradients), lambda: atomo.optax.untold_squares(gradients))
        updates, state = optimizer.update(gradients, state, parameters, squares=squares)
        return optax.apply_updates(parameters, updates), state

    parameters = jax.tree.map(jnp.zeros_like, target)
    state = optimizer.init(parameters)
    distance = lambda: sum(float(jnp.square(p - t).sum()) for p, t in zip(jax.tree.leaves(parameters), jax.tree.leaves(target)))
    before = distance()
    for number in range(60):
        parameters, state = step(parameters, state, number)
    assert distance() < 0.2 * before


def units_of(state, name, b2, steps):
    """In f64, by the formulas of docs/second-moment.md."""
    shape = state.mu[name].shape
    if state.nu[name] is not None:
        return np.full(shape, (np.asarray(state.nu[name], float).mean() / (1 - b2**steps))**0.25)
    rows, columns, one, average, weight, workers = (np.asarray(part, float) for part in state.squares[name])
    return fourth_root(np.outer(rows, columns) / rows.mean() * np.clip(average / one, 0.5 / workers, 1) / weight).reshape(shape)


def fourth_root(moment):
    """Its root is kept from below."""
    root = np.sqrt(moment)
    return np.sqrt(np.maximum(root, np.sqrt(np.mean(root**2)) / 1024))


def test_units_are_fourth_roots_of_the_second_moment():
    optimizer = optax.chain(atomo.optax.scale_by_told_adam(b2=0.9, every=1), optax.scale(-1.0))
    gradients = {name: of[0] for name, of in gradients_of(8).items()}
    gradients["matrix"] = gradients["matrix"].at[3].set(0)  # whose unit is kept from below
    state = optimizer.init(gradients)
    assert all((of == 1).all() for of in jax.tree.leaves(atomo.optax.units(state))), "nothing is known"
    for step in range(1, 4):
        _, state = optimizer.update(gradients, state, squares=squares_of(gradients))
        units = atomo.optax.units(state)
        for name in gradients:
            np.testing.assert_allclose(units[name], units_of(state[0], name, 0.9, step), rtol=1e-5)
    row = np.asarray(units["matrix"][3])
    assert (row == row[0]).all() and 0 < row[0] < 5e-2 * np.asarray(units["matrix"]).max()


def test_units_of_adams_own_moments():
    """Of a matrix by row and by column, from optax's own state, with nothing told."""
    optimizer = optax.adamw(1e-3, b2=0.9)
    gradients = {name: of[0] for name, of in gradients_of(8).items()}
    gradients["matrix"] = gradients["matrix"].at[3].set(0)
    state = optimizer.init(gradients)
    assert all((of == 1).all() for of in jax.tree.leaves(atomo.optax.units(state, b2=0.9))), "nothing is known"
    for step in range(1, 4):
        _, state = optimizer.update(jax.tree.map(lambda g: g * step, gradients), state, gradients)
    units = jax.jit(lambda state: atomo.optax.units(state, b2=0.9))(state)
    for name, nu in state[0].nu.items():
        moment = np.asarray(nu, float).reshape(nu.shape[0], -1) / (1 - 0.9**3)
        expected = (fourth_root(np.outer(moment.mean(1), moment.mean(0)) / moment.mean()) if atomo.optax._is_told(nu.shape)
                    else np.full(moment.shape, moment.mean()**0.25))
        np.testing.assert_allclose(units[name], expected.reshape(nu.shape), rtol=1e-5, err_msg=name)


def test_gradients_go_in_units_and_come_back():
    """What is kept of a gradient is chosen in units, under jit along an axis."""
    optimizer, gradients = atomo.optax.scale_by_told_adam(every=1), gradients_of(9)
    one = jax.tree.map(lambda of: of[0], gradients)
    state = optimizer.update(one, optimizer.init(one), squares=squares_of(one))[1]

    def of_worker(own_gradients, state):
        units = atomo.optax.units(state)
        payload, _ = atomo.jax.encode_tree(jax.tree.map(jnp.divide, own_gradients, units), "topk:keep=0.2", seed=3, step=1,
                                           worker=jax.lax.axis_index("workers"))
        zeros = jax.tree.map(jnp.zeros_like, own_gradients)
        mean = atomo.jax.decode_add_tree(jax.lax.all_gather(payload, "workers"), 1 / WORKERS, zeros, "topk:keep=0.2")
        return jax.tree.map(jnp.multiply, mean, units)

    means = jax.jit(jax.vmap(of_worker, in_axes=(0, None), axis_name="workers"))(gradients, state)
    codec = atomo.Codec("topk:keep=0.2")
    for name, of in gradients.items():
        unit = units_of(state, name, 0.999, 1)
        inputs = [np.asarray(np.asarray(own) / unit, np.float32) for own in of]
        expected = unit * np.mean([codec.decode(codec.encode(u, step=1), like=u) for u in inputs], 0)
        np.testing.assert_allclose(means[name][0], expected, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("along_workers", [by_vmap, by_shard_map])
def test_a_step_in_units_that_tells_at_a_period(along_workers):
    """The units are of a state that varies by worker for JAX, and is the same on all."""
    optimizer, gradients = atomo.optax.scale_by_told_adam(every=3), gradients_of(4)
    one = jax.tree.map(lambda of: of[0], gradients)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * WORKERS), optimizer.init(one))

    def of_worker(own_gradients, state, number):
        units = atomo.optax.units(state)
        payload, _ = atomo.jax.encode_tree(jax.tree.map(jnp.divide, own_gradients, units), CODEC, seed=3, step=number,
                                           worker=jax.lax.axis_index("workers"))
        zeros = jax.tree.map(jnp.zeros_like, own_gradients)
        mean = atomo.jax.decode_add_tree(jax.lax.all_gather(payload, "workers"), 1 / WORKERS, zeros, CODEC)
        own = atomo.jax.decode_tree(payload, CODEC, own_gradients)
        mean, own = (jax.tree.map(jnp.multiply, decoded, units) for decoded in (mean, own))
        squares = atomo.optax.tell_squares(own_gradients, own, mean, "workers", seed=3, step=number, every=3)
        return optimizer.update(mean, state, squares=squares)

    step = jax.jit(along_workers(of_worker))
    for number in range(4):
        updates, state = step(gradients, state, jnp.full(WORKERS, number))
        for leaf in jax.tree.leaves((updates, state)):
            assert jnp.isfinite(leaf).all() and (leaf == leaf[:1]).all()
    np.testing.assert_allclose(state.squares["matrix"].weight, 1 - 0.999**6, rtol=1e-4)


@pytest.mark.parametrize("size", [1e-15, 1e-17])
def test_tiny_gradients_have_units_and_moments(size):
    """Their squares are near the least that f32 has."""
    square, weight = jnp.float32(size) ** 2, jnp.float32(1e-3)
    means = jnp.full(8, square) * weight
    of = atomo.optax.LeafSquares(means, means, 64 * square * weight, 64 * square * weight, weight, jnp.float32(1))
    np.testing.assert_allclose(jnp.outer(*atomo.optax._factors(of)), np.full((8, 8), size), rtol=0.2)


def test_what_is_not_finite_is_left_out():
    optimizer = atomo.optax.scale_by_told_adam()
    gradients = {"matrix": jnp.ones((4, 4))}
    _, state = optimizer.update(gradients, optimizer.init(gradients), squares=squares_of(gradients))
    bad = squares_of({"matrix": jnp.full((4, 4), jnp.inf)})
    updates, after = optimizer.update(gradients, state, squares=bad)
    assert jnp.isfinite(updates["matrix"]).all()
    assert all((a == b).all() for a, b in zip(after.squares["matrix"], state.squares["matrix"]))


def test_an_entry_moves_no_further_than_adam_lets_it():
    optimizer = atomo.optax.scale_by_told_adam()
    squares = jax.tree.map(lambda leaf: leaf * 1e-12, squares_of({"matrix": jnp.ones((4, 4))}))
    squares["matrix"] = squares["matrix"]._replace(weight=jnp.float32(1))
    gradients = {"matrix": jnp.ones((4, 4))}
    updates, _ = optimizer.update(gradients, optimizer.init(gradients), squares=squares)
    np.testing.assert_allclose(updates["matrix"], 10**0.5, rtol=1e-5)


def test_before_anything_was_told_told_leaves_stay():
    optimizer = atomo.optax.scale_by_told_adam()
    gradients = {"matrix": jnp.ones((4, 4)), "vector": jnp.ones(3)}
    updates, _ = optimizer.update(gradients, optimizer.init(gradients), squares=atomo.optax.untold_squares(gradients))
    assert (updates["matrix"] == 0).all() and (updates["vector"] != 0).all()


def test_errors():
    with pytest.raises(atomo.Error, match="b1=1"):
        atomo.optax.scale_by_told_adam(b1=1)
    for every in (0, 2.5, True):
        with pytest.raises(atomo.Error, match=f"every={every}: a whole number"):
            atomo.optax.scale_by_told_adam(every=every)
        with pytest.raises(atomo.Error, match=f"every={every}: a whole number"):
            atomo.optax.tell_squares({}, {}, {}, "workers", seed=1, step=0, every=every)
    with pytest.raises(atomo.Error, match="the state has 0 of scale_by_told_adam and optax.scale_by_adam: one is expected"):
        atomo.optax.units(optax.sgd(1e-3).init({"matrix": jnp.ones((4, 4))}))
    with pytest.raises(atomo.Error, match="no squares to tell of"):
        vector = {"vector": jnp.ones((WORKERS, 3))}
        jax.vmap(lambda g: atomo.optax.tell_squares(g, g, g, "workers", seed=1, step=0), axis_name="workers")(vector)
