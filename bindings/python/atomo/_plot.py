# SPDX-License-Identifier: Apache-2.0
"""What was measured as a figure, drawn by the command line tool's own script."""
from __future__ import annotations

import functools
import importlib.util
import os
from types import ModuleType
from typing import Any

from . import _tool
from ._errors import Error


@functools.cache
def _script() -> ModuleType:
    """plot.py, which lies beside the tool because the tool runs it."""
    file = _tool.FOLDER / "plot.py"
    spec = importlib.util.spec_from_file_location("atomo._plot_script", file)
    if not file.exists() or spec is None or spec.loader is None:
        raise Error("this package was built without the command line tool, whose script draws")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plot(report: dict[str, Any], path: str | os.PathLike[str] | None = None) -> Any:
    """Draws what `measure` returned, error against bits a parameter, a curve a codec; or what `verify` returned, the bias
    by magnitude with its band.

    Returns a `matplotlib.figure.Figure`, and writes it to `path`, a .png, when one is given. Needs matplotlib
    (`pip install atomo[plot]`); pyplot and its backend are left alone.
    """
    if path is not None and not os.fspath(path).endswith(".png"):
        raise Error(f"plot: {os.fspath(path)!r}: a path that ends in .png is needed")
    if importlib.util.find_spec("matplotlib") is None:
        raise Error("matplotlib is missing: pip install atomo[plot]")
    figure = _script().figure_of(report)
    if path is not None:
        figure.savefig(path, format="png")
    return figure
