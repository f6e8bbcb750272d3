# SPDX-License-Identifier: Apache-2.0
"""What the package raises."""
from __future__ import annotations


class Error(ValueError):
    """A mistake in what was asked; the message names the value and what would be right.

    >>> import atomo
    >>> try:
    ...     atomo.Codec("qsgd:bits=9")
    ... except atomo.Error as error:
    ...     print(type(error).__name__, error.status)
    Error None
    """

    status: str | None
    """Name of the library's status where a call failed ("unsupported", ...), else None."""

    def __init__(self, message: str = "", status: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class DecodeError(Error):
    """A message that could not be read; `status` says why: "bad_magic", "truncated", "shape_mismatch", ...

    >>> import atomo
    >>> try:
    ...     atomo.inspect(b"no message")
    ... except atomo.DecodeError as error:
    ...     print(error.status)
    bad_magic
    """
