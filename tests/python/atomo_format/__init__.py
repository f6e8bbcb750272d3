# SPDX-License-Identifier: Apache-2.0
"""A decoder of atomo's containers written from FORMAT.md alone, to check that the file says all there is to know.

It shares no code with the library and is not meant to be quick: arrays of a few hundred thousand entries at most.
"""
from .bits import FormatError
from .container import decode, decode_layer, parse, to_half
from .philox import Key

__all__ = ["FormatError", "Key", "decode", "decode_layer", "parse", "to_half"]
