# SPDX-License-Identifier: Apache-2.0
"""Adam in optax with a second moment from the workers' own squares, so that a codec's noise is not in it.

    optimizer = optax.chain(atomo.optax.scale_by_told_adam(every=10), optax.add_decayed_weights(0.01), optax.scale(-1e-3))

    def step(parameters, state, batch, number):          # inside shard_map over the axis "workers"
        gradients = jax.grad(loss)(parameters, batch)
        mean, own = ...                                   # of all decoded messages, and of this worker's alone
        squares = atomo.optax.tell_squares(gradients, own, mean, "workers", seed=1, step=number, every=10)
        updates, state = optimizer.update(mean, state, parameters, squares=squares)
        return optax.apply_updates(parameters, updates), state

`atomo.torch.Squares` has the derivation. Of a leaf with two dimensions or more and no side below 4 (its first dimension by
all others) worker k of W tells the means of g_k^2 over rows and columns, 9 bits each, the sum of g_k^2 and that of
c_k^2, c_k being what its message decodes to. Other leaves keep Adam's own second moment. Needs JAX and optax.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

try:
    import optax
except ImportError as error:
    raise ImportError("atomo.optax needs optax: pip install 'atomo[jax]' installs it") from error

import atomo.jax

__all__ = ["LeafSquares", "ToldAdamState", "scale_by_told_adam", "tell_squares", "units", "untold_squares"]

_LEAST_SIDE = 4
_LEAST_ROOT = 1 / 1024  # of the root mean square of a leaf's
_CHANNEL = 0x8000  # a bit of the key's channel: draws of these messages are not those of gradients
_POLICY = "sums = identity; * = natural"


class LeafSquares(NamedTuple):
    """All workers' squares of one leaf, or running means of them."""

    rows: jax.Array  #: f32[rows], the means of g_k^2 over columns, and over workers
    columns: jax.Array  #: f32[columns]
    one: jax.Array  #: f32, the sum of g_k^2, mean over workers
    average: jax.Array  #: f32, an unbiased estimate of the sum of the average's squares
    weight: jax.Array  #: f32, 1; 0 where nothing was told
    workers: jax.Array  #: f32, how many


class ToldAdamState(NamedTuple):
    """What `scale_by_told_adam` remembers."""

    count: jax.Array  #: i32, steps
    mu: Any  #: first moments, like the gradients
    nu: Any  #: second moments of leaves that are not told of, None of the others
    weight: jax.Array  #: f32, of the gradients in `nu`: 1 - b2^count
    squares: Any  #: a `LeafSquares` of running means of leaves that are told of, None of the others


def tell_squares(gradients: Any, own: Any, mean: Any, axis: str, *, seed: Any, step: Any, channel: Any = 0,
                 every: int = 10) -> Any:
    """Tells all workers along the mapped `axis` of this worker's squares: a tree like `gradients` of `LeafSquares`, with
    None for leaves that are not told of. The same on all workers.

    `every`: steps from one telling to the next, from step 0 on; the same number as that of `scale_by_told_adam`. In the
    others no message is sent, and the tree is that of `untold_squares`. 1 tells in every call.

    `gradients` are this worker's, `own` what its message decodes to, `mean` the mean over the workers of that: trees of
    float32, float16 or bfloat16 of one structure. `seed`, `step` and `channel` are those of the message of gradients,
    whose channel is below 32768. Each worker sends one message of fixed size, 9 bits a row and column.

    Raises atomo.Error for trees without such a leaf, and an `every` that cannot be.
    """
    _check_every(every)
    if every == 1:
        return _tell(gradients, own, mean, axis, seed, step, channel)

    def tell() -> Any:
        return _tell(gradients, own, mean, axis, seed, step, channel)

    def untold() -> Any:
        """Varies over the same axes of `shard_map` as the other branch."""
        return jax.tree.map(_varying_like, untold_squares(gradients), jax.eval_shape(tell))

    return jax.lax.cond(step % every == 0, tell, untold)


def _varying_like(x: jax.Array, like: Any) -> jax.Array:
    kind = getattr(like, "manual_axis_type", None)
    axes = tuple(getattr(like, "vma", None) or () if kind is None else kind.varying)
    return jax.lax.pcast(x, axes, to="varying") if axes else x


def _check_every(every: Any) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise atomo.Error(f"every={every!r}: a whole number of steps from 1 on is expected")


def _tell(gradients: Any, own: Any, mean: Any, axis: str, seed: Any, step: Any, channel: Any) -> Any:
    leaves, structure = jax.tree.flatten(gradients)
    told = [i for i, leaf in enumerate(leaves) if _is_told(leaf.shape)]
    if not told:
        raise atomo.Error(f"no leaf has two dimensions with sides from {_LEAST_SIDE} on: there are no squares to tell of")
    owns, means = jax.tree.leaves(own), jax.tree.leaves(mean)
    workers = jax.lax.axis_size(axis)
    squares = [_squared(leaves[i]) for i in told]
    message = {
        "rows": [of.mean(1) for of in squares],
        "columns": [of.mean(0) for of in squares],
        "sums": jnp.stack([jnp.stack([of.sum(), _squared(owns[i]).sum()]) for of, i in zip(squares, told)]),
    }
    payload, _ = atomo.jax.encode_tree(
        message, _POLICY, seed=seed, step=step, worker=jax.lax.axis_index(axis), channel=channel ^ _CHANNEL
    )
    payloads = jax.lax.all_gather(payload, axis)
    of_all = atomo.jax.decode_add_tree(payloads, 1 / workers, jax.tree.map(jnp.zeros_like, message), _POLICY)
    result: list[LeafSquares | None] = [None] * len(leaves)
    for place, i in enumerate(told):
        one, decoded = of_all["sums"][place]
        # |sum c|^2 - sum |c|^2 = W^2 |mean|^2 - W (mean of |c|^2).
        average = one / workers + _squared(means[i]).sum() - decoded / workers
        result[i] = LeafSquares(of_all["rows"][place], of_all["columns"][place], one, average,
                                jnp.float32(1), jnp.float32(workers))
    return jax.tree.unflatten(structure, result)


def untold_squares(gradients: Any) -> Any:
    """What stands for `tell_squares` in a step in which nothing is told: a tree of the same shapes."""
    return jax.tree.map(lambda leaf: _nothing(leaf.shape) if _is_told(leaf.shape) else None, gradients)


def units(state: Any, b2: float = 0.999) -> Any:
    """A tree of f32 like the gradients: for each entry the fourth root of a second moment, whose root is at least 1/1024 of its
    leaf's root mean square. Of a leaf that is told of it is the one that `scale_by_told_adam` divides by; of another matrix
    the product of the row and column means of Adam's own moments, over the mean of all; of any other leaf the mean of its
    moments, one number in all entries. 1 before anything is known. The same on all workers.

        units = atomo.optax.units(state)
        payload, _ = atomo.jax.encode_tree(jax.tree.map(jnp.divide, gradients, units), policy, ...)
        mean = jax.tree.map(jnp.multiply, atomo.jax.decode_add_tree(...), units)

    The errors of gradients that are encoded in these units are small where they would do most harm to a step of Adam's
    (docs/second-moment.md). What this worker's message decodes to (`own`) is multiplied by them too, before `tell_squares`.
    Memories are in units.

    `state`: of `scale_by_told_adam` or of `optax.scale_by_adam`, such as `optax.adamw` has it, or of an `optax.chain` with one of
    them; `b2`: of `optax.scale_by_adam`, whose state does not hold it. Raises atomo.Error for another.
    """
    is_adams = lambda of: isinstance(of, (ToldAdamState, optax.ScaleByAdamState))
    found = [of for of in jax.tree.leaves(state, is_leaf=is_adams) if is_adams(of)]
    if len(found) != 1:
        raise atomo.Error(f"the state has {len(found)} of scale_by_told_adam and optax.scale_by_adam: one is expected")
    mus, structure = jax.tree.flatten(found[0].mu)
    nus = structure.flatten_up_to(found[0].nu)
    if isinstance(found[0], ToldAdamState):
        squares, weight = structure.flatten_up_to(found[0].squares), found[0].weight
    else:
        squares, weight = len(mus) * [None], 1 - b2 ** found[0].count.astype(jnp.float32)
    return jax.tree.unflatten(structure, [_units(mu.shape, nu, of, weight) for mu, nu, of in zip(mus, nus, squares)])


def _units(shape: tuple[int, ...], nu: jax.Array | None, squares: LeafSquares | None, weight: jax.Array) -> jax.Array:
    if squares is not None:
        row, column = _factors(squares)
    elif _is_told(shape):
        matrix = nu.astype(jnp.float32).reshape(shape[0], -1)
        mean = matrix.mean()
        row, column = jnp.sqrt(matrix.mean(1) / weight), jnp.sqrt(jnp.where(mean > 0, matrix.mean(0) / mean, 0))
    else:
        root = jnp.sqrt(nu.astype(jnp.float32).mean() / weight)
        return jnp.full(shape, jnp.sqrt(jnp.where(root > 0, root, 1)))
    least = _LEAST_ROOT * jnp.sqrt(jnp.square(row).mean() * jnp.square(column).mean())
    return jnp.sqrt(jnp.where(least > 0, jnp.maximum(jnp.outer(row, column), least), 1)).reshape(shape)


def scale_by_told_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, *, every: int = 10) -> Any:
    """optax.scale_by_adam whose `update` takes `squares=`, of `tell_squares` with the same `every`. The running
    means decay by b2^every at each telling, and stay as they are in between.

    A told leaf's entry (i, j) is divided by the root of rows[i] * columns[j] / mean(rows) (Adafactor, arXiv 1804.04235,
    section 3) times the ratio of the average's sum of squares to one worker's, kept between half of 1 / workers and 1; the
    result is kept within (1 - b1) / sqrt(1 - b2), what Adam's own moments allow (arXiv 1412.6980, section 2.1). A leaf of
    which nothing was told yet is 0, so the first step tells. Squares that are not finite are left out.

    Raises atomo.Error for numbers that cannot be.
    """
    _check_every(every)
    if not (0 <= b1 < 1 and 0 <= b2 < 1 and eps >= 0):
        raise atomo.Error(f"b1={b1}, b2={b2}, eps={eps}: b1 and b2 from 0 to below 1 and eps from 0 on are expected")

    def init(parameters: Any) -> ToldAdamState:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), parameters)
        nu = jax.tree.map(lambda p: None if _is_told(p.shape) else jnp.zeros(p.shape, jnp.float32), parameters)
        return ToldAdamState(jnp.zeros((), jnp.int32), zeros, nu, jnp.zeros(()), untold_squares(parameters))

    def update(updates: Any, state: ToldAdamState, params: Any = None, *, squares: Any, **_: Any) -> tuple[Any, ToldAdamState]:
        count = state.count + 1
        weight = 1 - b2 ** count.astype(jnp.float32)
        leaves, structure = jax.tree.flatten(updates)
        mus, nus, kepts, tolds = (structure.flatten_up_to(tree) for tree in (state.mu, state.nu, state.squares, squares))
        new_mu, new_nu, new_squares, results = [], [], [], []
        for gradient, mu, nu, kept, told in zip(leaves, mus, nus, kepts, tolds):
            g = gradient.astype(jnp.float32)
            mu = b1 * mu + (1 - b1) * g
            first = mu / (1 - b1 ** count.astype(jnp.float32))
            if nu is not None:
                nu = b2 * nu + (1 - b2) * g * g
                result = first / (jnp.sqrt(nu / weight) + eps)
            else:
                kept = _mixed(kept, told, b2**every)
                largest = (1 - b1) / math.sqrt(1 - b2)
                result = jnp.clip(first / (_root(kept).reshape(g.shape) + eps), -largest, largest)
                result = jnp.where(kept.weight > 0, result, 0)
            new_mu.append(mu)
            new_nu.append(nu)
            new_squares.append(kept)
            results.append(result.astype(gradient.dtype))
        mu, nu, kept = (jax.tree.unflatten(structure, new) for new in (new_mu, new_nu, new_squares))
        return jax.tree.unflatten(structure, results), ToldAdamState(count, mu, nu, weight, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_told(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and min(shape[0], math.prod(shape[1:])) >= _LEAST_SIDE


def _nothing(shape: tuple[int, ...]) -> LeafSquares:
    zero = jnp.float32(0)
    return LeafSquares(jnp.zeros(shape[0]), jnp.zeros(math.prod(shape[1:])), zero, zero, zero, zero)


def _squared(leaf: jax.Array) -> jax.Array:
    """f32[rows, columns]; a leaf without dimensions that count has no use for it."""
    return jnp.square(leaf.astype(jnp.float32)).reshape(leaf.shape[0], -1)


def _mixed(kept: LeafSquares, told: LeafSquares, decay: float) -> LeafSquares:
    """Running means, unless nothing was told or it is not finite."""
    take = (told.weight > 0) & jnp.isfinite(told.one) & jnp.isfinite(told.average)
    means = (jnp.where(take, decay * mean + (1 - decay) * value, mean) for mean, value in zip(kept[:5], told[:5]))
    return LeafSquares(*means, jnp.where(take, told.workers, kept.workers))


def _root(of: LeafSquares) -> jax.Array:
    """Of the second moment, f32[rows, columns]."""
    return jnp.outer(*_factors(of))


def _factors(of: LeafSquares) -> tuple[jax.Array, jax.Array]:
    """f32[rows] and f32[columns], whose outer product is that root."""
    ratio = jnp.where(of.one > 0, jnp.clip(of.average / of.one, 0.5 / jnp.maximum(of.workers, 1), 1.0), 1.0)
    mean = of.rows.mean()
    # Quotients one by one: squares of gradients of 1e-17 are near the least that f32 has.
    columns = jnp.sqrt(of.columns / mean) * jnp.sqrt(ratio / of.weight)
    return jnp.sqrt(of.rows), jnp.where(mean > 0, columns, 0.0)
