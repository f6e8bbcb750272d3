# SPDX-License-Identifier: Apache-2.0
"""Gradients at a fraction of a bit a parameter, without bias and without memory.

>>> import atomo, numpy
>>> gradient = numpy.linspace(-1, 1, 4096, dtype="float32").reshape(64, 64)
>>> codec = atomo.Codec("qsgd:bits=4")
>>> payload = codec.encode(gradient, seed=1, step=7, worker=3)
>>> len(payload) < gradient.nbytes / 7
True
>>> codec.decode(payload, like=gradient).shape
(64, 64)

`Codec` encodes one array, `Compressor` a whole model at one price, whole or layer by layer. Arrays are NumPy's,
PyTorch's, JAX's and CuPy's, of float32, float16 or bfloat16, used where they are without a copy. The global
interpreter lock is released while the library works, and every object may be used from many threads.

`atomo.torch`, `atomo.jax` and `atomo.train` are imported when they are first named, and want their framework.
"""
import importlib

from ._atomo import __version__
from ._budget_shares import budget_shares
from ._codec import Codec, Traits
from ._compressor import Compressor, PlannedLayer
from ._errors import DecodeError, Error
from ._measure import measure
from ._messages import CodecHelp, Key, Layer, Message, Prices, add, codecs, decode, decode_add, decode_add_all, inspect, join, vote
from ._own import draws, load_codecs, register, unregister
from ._patches import Patch, PatchedTensor, apply_patch, inspect_patch, make_patch
from ._plot import plot
from ._policy import warm_up
from ._verify import verify

__all__ = ["Codec", "CodecHelp", "Compressor", "DecodeError", "Error", "Key", "Layer", "Message", "Patch", "PatchedTensor",
           "PlannedLayer", "Prices", "Traits", "__version__", "add", "apply_patch", "budget_shares", "codecs", "decode", "decode_add", "decode_add_all",
           "draws", "inspect", "inspect_patch", "join", "load_codecs", "make_patch", "measure", "plot", "register", "unregister",
           "verify", "vote", "warm_up"]

_FRAMEWORKS = ("jax", "torch", "train")


def __getattr__(name: str) -> object:
    if name in _FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FRAMEWORKS})
