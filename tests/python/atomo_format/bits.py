# SPDX-License-Identifier: Apache-2.0
"""Bytes and bit streams, as FORMAT.md's "Conventions" say."""
import struct

import numpy as np
import xxhash


class FormatError(Exception):
    """The bytes break a rule of the format."""


def require(condition, rule):
    """Refuses the message unless `condition` holds."""
    if not condition:
        raise FormatError(rule)


class ByteReader:
    """Reads fields from the front of `data`; never past its end."""

    def __init__(self, data):
        self.data = bytes(data)
        self.at = 0

    def take(self, count):
        require(count <= len(self.data) - self.at, "truncated")
        self.at += count
        return self.data[self.at - count:self.at]

    def field(self, letter):
        """One little-endian number; `letter` as in module struct."""
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def array(self, dtype, count):
        """`count` numbers of a little-endian NumPy type."""
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def rest(self):
        return self.data[self.at:]

    def zeros_until_multiple_of(self, size):
        """Zero padding up to a multiple of `size` bytes from the start."""
        require(not any(self.take(-self.at % size)), "padding is not zero")

    def end(self):
        require(self.at == len(self.data), "bytes are left over")


class BitReader:
    """A bit stream over `data` from bit `at` on: bit 0 of byte 0 first, fields from their lowest bit on."""

    def __init__(self, data, at=0):
        self.data = bytes(data)
        self.at = at

    def field(self, width):
        end = self.at + width
        require(end <= 8 * len(self.data), "a bit stream is too short")
        window = int.from_bytes(self.data[self.at >> 3:(end + 7) >> 3], "little")
        value = (window >> (self.at & 7)) & ((1 << width) - 1)
        self.at = end
        return value

    def signed(self, width):
        """Two's complement."""
        value = self.field(width)
        return value - (1 << width) if value >> (width - 1) else value

    def ones(self, limit):
        """Counts ones up to the zero that ends them, which is read too; at `limit` ones no zero follows."""
        count = 0
        while count < limit and self.field(1):
            count += 1
        return count

    def zeros_to_the_end(self):
        """What is left is padding."""
        while self.at < 8 * len(self.data):
            require(self.field(min(32, 8 * len(self.data) - self.at)) == 0, "padding is not zero")


class DownwardBitReader(BitReader):
    """A downward stream, the bits below bit `at`: each field stands just below the one before, its highest bit first."""

    def field(self, width):
        require(width <= self.at, "a downward stream is too short")
        self.at -= width
        window = int.from_bytes(self.data[self.at >> 3:(self.at + width + 7) >> 3], "little")
        return (window >> (self.at & 7)) & ((1 << width) - 1)


def bytes_for(bits):
    return (bits + 7) // 8


def finite_scale(value):
    """A scale or norm: finite and without a sign."""
    require(np.isfinite(value) and not np.signbit(value), "a scale is negative or not finite")
    return np.float32(value)


def body_checksum(bodies):
    """The sum over blocks (FORMAT.md, "Checksums")."""
    total = 0
    for i, at in enumerate(range(0, len(bodies), 4096)):
        total += xxhash.xxh3_64_intdigest(bodies[at:at + 4096].ljust(4096, b"\0"), i)
    return total % 2**64
