# SPDX-License-Identifier: Apache-2.0
"""Codecs inside JAX programs: calls that `jit`, `vmap`, `scan` and `shard_map` take as they take any other.

    payload, length = atomo.jax.encode(gradient, "atomo:bits=0.5,cap=0.6", seed=1, step=step, worker=rank)
    payloads = jax.lax.all_gather(payload, "workers")                      # uint8[workers, capacity]
    mean = atomo.jax.decode_add(payloads, 1 / workers, jnp.zeros_like(gradient), "atomo:bits=0.5,cap=0.6")

XLA's shapes are fixed, so a payload is always `capacity` bytes long: the message, `length` bytes, then zeros. The
default is the longest message that the codec can make; `cap=` in its spec, or `capacity=`, makes that short. A message
that does not fit is an error, so a cap, which holds for every message, is the way to be sure. Small tensors need a
looser cap, since a run of atoms has to fit; the error names how loose.

Bytes are those of `atomo.Codec` (`atomo.Compressor` for whole trees) with the same key. `seed`, `step`, `worker` and
the other numbers of a key may be traced. Nothing here can be differentiated; gradients are what goes in. A codec with a
memory (`ef+`) is refused, as calls here have no state: the program keeps one in two lines (docs/memories.md, "From JAX").

A call whose status says failure raises `jax.errors.JaxRuntimeError` with the library's message when its result is
waited for; mistakes that shapes show raise `atomo.Error` while tracing. A tensor that holds an Inf or NaN is no
failure: it decodes to NaN everywhere.

The CPU's calls run on XLA's threads and keep their workspace for the next call. In a build with the CUDA backend there
are calls for CUDA devices too: they take XLA's stream and scratch memory, read the key where it is, and wait for nothing
(but `decode_add`, for an `alpha` that is traced). What a call's kernels said of the data is looked at by a later call of the
same codec and shapes, which then fails in its place. There `worker`, `tensor` and `channel` are taken modulo 65,536
where they are traced. They ran on an H200 (docs/kernels-without-a-gpu.md).

Atoms of sketches call BLAS, which has threads of its own. Where several devices of XLA share a processor,
OPENBLAS_NUM_THREADS=1 in the environment keeps them from being too many.

`jax.export` keeps a program with these calls where its check of them is switched off:
`disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("atomo_encode")]`, and `"atomo_decode"` and
`"atomo_decode_add"` likewise. Where the program is run `atomo.jax` has to be imported.

Under `vmap` tensors are coded one after another; map over `worker` or `tensor` as well, so that no two messages share
a key. Outside `shard_map` an array that is spread over devices is gathered before it is coded.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from atomo import Codec, Error

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("atomo.jax needs JAX: pip install 'atomo[jax]' installs both") from error
try:
    from atomo import _atomo_jax
except ImportError as error:
    raise ImportError(
        "this build of atomo has no calls for JAX, because jaxlib was not there when it was built; "
        "pip install jax, then build atomo again (pip install --force-reinstall --no-deps .)"
    ) from error

from ._own import changes, share_with

share_with(_atomo_jax)

__all__ = ["decode", "decode_add", "decode_add_tree", "decode_tree", "encode", "encode_tree", "layer_names"]

Array = jax.Array
_DTYPES = ("float32", "float16", "bfloat16")

for _platform, _calls in _atomo_jax.handlers().items():
    for _name, _handler in _calls.items():
        jax.ffi.register_ffi_target(_name, _handler, platform=_platform)


def encode(
    x: Any,
    codec: Codec | str,
    *,
    seed: Any,
    step: Any,
    worker: Any = 0,
    tensor: Any = 0,
    channel: Any = 0,
    capacity: int | None = None,
) -> tuple[Array, Array]:
    """Encodes one tensor: `(payload, length)`, uint8[capacity] and a uint32 scalar.

    `x` is float32, float16 or bfloat16 of any shape, `codec` a spec or an `atomo.Codec`; both the codec and `capacity`
    (bytes; default: the longest message that the codec can make of this shape) are static. Bytes after `length` are
    zero. `seed` is an int below 2**64, a traced integer, a key of `jax.random` (`key` or `PRNGKey`) of two words; `step` is
    taken modulo 2**32, the others are 0 to 65535. No two messages may share all of them.

    Raises atomo.Error for a bad spec, dtype or number while tracing; at run time it is an error when the message takes
    more than `capacity` bytes.
    """
    x = _tensor(x, "x")
    return _encode([x], str(Codec(str(codec))), "", _key(seed, step, tensor, worker, channel), capacity)


def decode(payload: Any, codec: Codec | str, shape: Any, dtype: Any = jnp.float32) -> Array:
    """Decodes a message of one tensor into a new array of this static shape and dtype.

    `payload` is uint8[bytes] and may be longer than the message in it. float16 and bfloat16 are rounded at random with
    the message's key, so all who decode it agree. What is no message of `codec` and of this shape is an error at run
    time.
    """
    payload = _payload(payload, ranks=(1,))
    form = jax.ShapeDtypeStruct(_shape(shape), dtype)
    _check_dtype(form.dtype, "dtype")
    (out,) = _decode(payload, str(Codec(str(codec))), "", [form])
    return out


def decode_add(payload: Any, alpha: Any, y: Any, codec: Codec | str) -> Array:
    """`y + alpha * decoded`, y being float32; the memory of `y` is taken over where XLA can.

    `payload` is uint8[bytes], or uint8[messages, bytes] as an `all_gather` leaves it: the messages are then added in
    order, which gives the same bits wherever it is done. `alpha`, a real number, may be traced.
    """
    payload = _payload(payload, ranks=(1, 2))
    (out,) = _decode_add(payload, alpha, [_float32(y, "y")], str(Codec(str(codec))), "")
    return out


def layer_names(tree: Any) -> list[str]:
    """The names of a tree's leaves in the order of their layers, "dense.kernel", as a policy's patterns see them."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return [jax.tree_util.keystr(path, simple=True, separator=".") or "tensor" for path in paths]


def encode_tree(
    tree: Any,
    policy: Codec | str,
    *,
    seed: Any,
    step: Any,
    worker: Any = 0,
    channel: Any = 0,
    capacity: int | None = None,
) -> tuple[Array, Array]:
    """Encodes all leaves of a tree as one message, at one price for the whole model: `(payload, length)` as `encode`.

    `policy` is a codec for all layers or rules such as "*.bias=identity; *=atomo:bits=0.5", tried in order on
    `layer_names`. The call has no state: the bytes are those of the first `encode` of an
    `atomo.Compressor(dict(zip(layer_names(tree), leaves)), policy, learns_ranks=False)`, whatever was encoded before.
    """
    layers = [_tensor(leaf, name) for name, leaf in zip(layer_names(tree), jax.tree.leaves(tree))]
    return _encode(layers, str(policy), _joined_names(tree), _key(seed, step, 0, worker, channel), capacity)


def decode_tree(payload: Any, policy: Codec | str, like: Any) -> Any:
    """Decodes a message of `encode_tree` into a new tree like `like`, whose leaves have `shape` and `dtype`.

    `policy` is the one it was encoded with. Another model's message is an error at run time.
    """
    leaves, structure = jax.tree.flatten(like)
    forms = [
        jax.ShapeDtypeStruct(*_form(leaf, name))
        for name, leaf in zip(layer_names(like), leaves)
    ]
    payload = _payload(payload, ranks=(1,))
    return jax.tree.unflatten(structure, _decode(payload, str(policy), _joined_names(like), forms))


def decode_add_tree(payload: Any, alpha: Any, tree: Any, policy: Codec | str) -> Any:
    """`leaf + alpha * decoded` for every leaf of a float32 tree; payloads as in `decode_add`."""
    leaves, structure = jax.tree.flatten(tree)
    layers = [_float32(leaf, name) for name, leaf in zip(layer_names(tree), leaves)]
    payload = _payload(payload, ranks=(1, 2))
    return jax.tree.unflatten(structure, _decode_add(payload, alpha, layers, str(policy), _joined_names(tree)))


def _encode(layers: list[Array], spec: str, names: str, key: Array, capacity: int | None) -> tuple[Array, Array]:
    longest = _longest_message(spec, names, tuple((str(x.dtype), x.shape) for x in layers))
    capacity = longest if capacity is None else operator.index(capacity)
    if not 0 < capacity < 2**31:
        raise Error(f"a capacity of {capacity} bytes: 1 to {2**31 - 1} are accepted")
    results = (jax.ShapeDtypeStruct((capacity,), jnp.uint8), jax.ShapeDtypeStruct((), jnp.uint32))
    call = jax.ffi.ffi_call("atomo_encode", results, vmap_method="sequential")
    payload, length = call(key, *layers, **_attributes(spec, names))
    return payload, length


def _decode(payload: Array, spec: str, names: str, forms: list[jax.ShapeDtypeStruct]) -> list[Array]:
    _longest_message(spec, names, tuple((str(form.dtype), form.shape) for form in forms))
    call = jax.ffi.ffi_call("atomo_decode", tuple(forms), vmap_method="sequential")
    return list(call(payload, **_attributes(spec, names)))


def _decode_add(payload: Array, alpha: Any, layers: list[Array], spec: str, names: str) -> list[Array]:
    _longest_message(spec, names, tuple((str(x.dtype), x.shape) for x in layers))
    call = jax.ffi.ffi_call(
        "atomo_decode_add",
        tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layers),
        vmap_method="sequential",
        input_output_aliases={2 + i: i for i in range(len(layers))},
    )
    known = not isinstance(alpha, jax.Array)
    number = np.asarray(alpha) if known else alpha
    if number.shape != () or not any(jnp.issubdtype(number.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        found = repr(alpha) if known else f"{alpha.dtype}{list(alpha.shape)}"
        raise Error(f"alpha is {found}; a real number is accepted")
    attributes = _attributes(spec, names) | {"known": known, "factor": np.float32(alpha if known else 0)}
    return list(call(payload, jnp.asarray(alpha, jnp.float32), *layers, **attributes))


def _attributes(spec: str, names: str) -> dict[str, Any]:
    """What the calls are told: `names` is empty for one tensor, which has a codec and not a policy."""
    return {"spec": spec, "model": bool(names), "names": names}


def _longest_message(spec: str, names: str, layers: tuple[tuple[str, tuple[int, ...]], ...]) -> int:
    """Bytes; raises atomo.Error for what no codec can be made of, so that it is seen while tracing."""
    return _longest(spec, names, layers, changes())


@functools.lru_cache(maxsize=256)
def _longest(spec: str, names: str, layers: tuple[tuple[str, tuple[int, ...]], ...], _changes: int) -> int:
    """`_changes`: of the registered codecs, behind which a spec may mean another one."""
    try:
        return _atomo_jax.capacity(spec, bool(names), names, [(dtype, list(shape)) for dtype, shape in layers])
    except RuntimeError as error:
        raise Error(str(error)) from None


def _joined_names(tree: Any) -> str:
    names = layer_names(tree)
    if not names:
        raise Error("the tree has no leaves: there is nothing to encode or to decode")
    for name in names:
        if "\n" in name:
            raise Error(f"the layer {name!r} has a line break in its name")
    return "\n".join(names)


def _check_dtype(dtype: Any, name: str) -> Any:
    if str(dtype) not in _DTYPES:
        raise Error(f"{name} is {dtype}; {', '.join(_DTYPES)} are accepted")
    return dtype


def _form(leaf: Any, name: str) -> tuple[tuple[int, ...], Any]:
    """The shape and the dtype of what a leaf of `like` stands for, which need not be an array."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise Error(f"like: {name} is {leaf!r}; an array or a jax.ShapeDtypeStruct is accepted")
    return jnp.shape(leaf), _check_dtype(leaf.dtype, name)


def _tensor(x: Any, name: str) -> Array:
    if hasattr(x, "dtype"):
        _check_dtype(x.dtype, name)
    x = jnp.asarray(x)
    _check_dtype(x.dtype, name)
    return x


def _float32(x: Any, name: str) -> Array:
    x = _tensor(x, name)
    if x.dtype != jnp.float32:
        raise Error(f"{name} is {x.dtype}; what is added to is float32")
    return x


def _payload(payload: Any, ranks: tuple[int, ...]) -> Array:
    if isinstance(payload, (bytes, bytearray, memoryview)):
        payload = np.frombuffer(payload, np.uint8)
    if str(getattr(payload, "dtype", None)) != "uint8" or len(jnp.shape(payload)) not in ranks:
        expected = " or ".join(("uint8[bytes]", "uint8[messages, bytes]")[rank - 1] for rank in ranks)
        found = getattr(payload, "dtype", type(payload).__name__)
        raise Error(f"a payload is {expected}, this is {found}{list(jnp.shape(payload))}")
    return jnp.asarray(payload)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(operator.index(n) for n in (shape if hasattr(shape, "__iter__") else (shape,)))


def _key(seed: Any, step: Any, tensor: Any, worker: Any, channel: Any) -> Array:
    """What the calls read: seed (low, high), step, tensor, worker and channel in a word each, for the CPU; then the six words
    of the library's own key, which a GPU reads where they are."""
    low, high = _seed_words(seed)
    words = [
        low,
        high,
        _word("step", step, 32),
        _word("tensor", tensor, 16),
        _word("worker", worker, 16),
        _word("channel", channel, 16),
    ]
    if all(isinstance(word, np.uint32) for word in words):
        return jnp.asarray(np.array([*words, *_packed(words)], np.uint32))
    words = [jnp.asarray(word, jnp.uint32) for word in words]
    return jnp.stack([*words, *_packed(words)])


def _packed(words: list[Any]) -> list[Any]:
    """A key as it stands in memory: its last three numbers have 16 bits, and padding follows."""
    low, high, step, tensor, worker, channel = words
    half = np.uint32(0xFFFF)
    return [low, high, step, (tensor & half) | (worker & half) << np.uint32(16), channel & half, np.uint32(0)]


def _seed_words(seed: Any) -> tuple[Any, Any]:
    if not isinstance(seed, jax.Array) and not (isinstance(seed, np.ndarray) and seed.ndim > 0):
        seed = _integer("seed", seed, 64, " or a key of two words (uint32[2])")
        return np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if jnp.shape(seed) == (2,) and str(seed.dtype) == "uint32":
        return seed[1], seed[0]
    if jnp.shape(seed) != () or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise Error(f"seed is {seed.dtype}{list(jnp.shape(seed))}; an integer or a key of two words (uint32[2]) is accepted")
    return _low_word(seed), (_low_word(seed >> 32) if seed.dtype.itemsize == 8 else np.uint32(0))


def _word(name: str, value: Any, bits: int) -> Any:
    if not isinstance(value, jax.Array):
        return np.uint32(_integer(name, value, bits))
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.integer):
        raise Error(f"{name} is {value.dtype}{list(value.shape)}; an integer is accepted")
    return _low_word(value)


def _low_word(value: Array) -> Array:
    return value.astype(jnp.uint32)


def _integer(name: str, value: Any, bits: int, other: str = "") -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise Error(f"{name} is {value!r}; an integer{other} is accepted") from None
    if not 0 <= number < 2**bits:
        raise Error(f"{name} is {number}; 0 to 2**{bits} - 1 are accepted")
    return number
