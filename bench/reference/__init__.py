# SPDX-License-Identifier: Apache-2.0
"""A reference model of the codecs in NumPy: expected sizes and exact variances, from FORMAT.md and the derivation."""
from .model import Model, Prediction

__all__ = ["Model", "Prediction"]
