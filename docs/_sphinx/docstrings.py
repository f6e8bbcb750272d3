# SPDX-License-Identifier: Apache-2.0
"""Reads the docstrings of the Python package: backticks hold code, an indented block is Python, and nothing else is markup."""
import re

from sphinx.ext.autodoc.mock import _MockObject
from sphinx.ext.napoleon import Config, GoogleDocstring

SECTIONS = {"Args:", "Raises:", "Returns:"}


def escaped(line):
    """A line in which stars and bars outside of backticks stand for themselves."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"[*|\\]", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)


def read(app, what, name, found, options, lines):
    """autodoc's event: rewrites `lines` in place."""
    text, doctest, block = [], False, False
    for i, line in enumerate(lines):
        new_paragraph = i == 0 or not lines[i - 1].strip()
        if new_paragraph:
            doctest = line.startswith(">>> ")
        if line.strip() and not line.startswith(" "):
            block = False
        elif line.strip() and new_paragraph and not block:
            block = True
            text += [".. code-block:: python", ""]
        text.append(line if doctest or block or not line.strip() else escaped(line))
    if SECTIONS & set(text):
        text = GoogleDocstring(text, Config(), app, what, name, found, options).lines()
    lines[:] = text


def shorten(app, what, name, found, options, signature, returned):
    """autodoc's event: types without the modules that they are kept in."""
    short = [text and re.sub(r"~?\b(atomo\._\w+|collections\.abc|typing)\.", "", text) for text in (signature, returned)]
    return tuple(short)


def setup(app):
    # Unions with a stand-in, `torch.nn.Module | None`, are read when a module is imported.
    _MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self
    app.connect("autodoc-process-docstring", read)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
