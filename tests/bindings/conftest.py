# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: arrays of every framework that is installed."""
import importlib
import importlib.util
import os

# Before a framework is imported: tests run beside each other, and small arrays gain nothing from threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import hypothesis
import numpy
import pytest

hypothesis.settings.register_profile("atomo", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("atomo")

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Framework:
    """One way to hold arrays: makes them of NumPy's and turns them back."""

    def __init__(self, name):
        self.name = name

    def array(self, values, dtype="f32"):
        """A new array of these values in that dtype."""
        import ml_dtypes

        values = numpy.array(values, ml_dtypes.bfloat16 if dtype == "bf16" else DTYPES[dtype], order="C")
        if self.name == "torch":
            import torch

            return torch.tensor(values.astype("float32")).to(getattr(torch, DTYPES[dtype])).reshape(values.shape)
        if self.name == "jax":
            import jax.numpy

            return jax.numpy.asarray(values)
        return values

    def numpy(self, array):
        """Its values in f32."""
        if self.name == "torch":
            return array.float().numpy()
        return numpy.asarray(array).astype("float32")

    def kind(self):
        """The class of its arrays."""
        if self.name == "torch":
            return importlib.import_module("torch").Tensor
        return importlib.import_module("jax").Array if self.name == "jax" else numpy.ndarray

    def __repr__(self):
        return self.name


FRAMEWORKS = [Framework(name) for name in ("numpy", "torch", "jax") if importlib.util.find_spec(name)]


@pytest.fixture(params=FRAMEWORKS, ids=repr)
def framework(request):
    """Each framework in turn."""
    return request.param


@pytest.fixture(params=[f for f in FRAMEWORKS if f.name != "jax"], ids=repr)
def writable_framework(request):
    """Each framework whose arrays can be written to."""
    return request.param


@pytest.fixture(scope="session")
def world():
    """`world(ranks)` is a `worlds.World` of that many processes."""
    from worlds import Worlds

    worlds = Worlds()
    yield worlds
    worlds.close()


def gradient(*shape, seed=0):
    """A gradient's rough likeness: rows of very different size, some entries zero."""
    draw = numpy.random.default_rng(seed)
    values = draw.standard_normal(shape) * numpy.exp(draw.standard_normal(shape[:1] + (1,) * (len(shape) - 1)))
    values[draw.random(shape) < 0.1] = 0
    return values.astype("float32")


CODECS = ["identity:dtype=f32", "identity:dtype=f16", "atomo:bits=0.5", "atomo:atoms=rows,bits=1",
          "atomo:atoms=blocks,bits=1", "atomo:atoms=sketch,bits=1", "atomo:atoms=coordinate,bits=1",
          "atomo:atoms=coordinate,delta=0.125", "atomo:atoms=svd,keep=3,values=f32", "qsgd:bits=4", "terngrad", "sign",
          "topk:keep=0.1", "randomk:keep=0.1", "qsgd:bits=2+blosc:codec=zstd"]
