# SPDX-License-Identifier: Apache-2.0
"""The command line tool that comes with the package."""
from __future__ import annotations

import os
import sys
from pathlib import Path

from ._errors import Error

FOLDER = Path(__file__).parent / "bin"


def path() -> str:
    """Path of the tool. Raises `atomo.Error` in a package that was built without it."""
    tool = FOLDER / "atomo"
    if not tool.exists():
        raise Error("this package was built without the command line tool: libcli11-dev, libfmt-dev, "
                    "nlohmann-json3-dev or libzip-dev was missing")
    return str(tool)


def main() -> None:
    """The console script: becomes the tool."""
    try:
        tool = path()
    except Error as error:
        sys.exit(f"atomo: {error}")
    os.execv(tool, ["atomo", *sys.argv[1:]])
