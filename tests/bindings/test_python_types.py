# SPDX-License-Identifier: Apache-2.0
"""What a checker of types says of the package and of calls on it."""
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import atomo

CALLS = """
import atomo
import numpy

x = numpy.ones((4, 4), numpy.float32)
codec = atomo.Codec("sign")
model = atomo.Compressor({"a": x}, "sign")
reveal_type(codec.encode(x, step=0))
reveal_type(codec.decode(b"", like=x))
reveal_type(codec.decode_add(b"", out=x))
reveal_type(model.decode(b"", out={"a": x}))
reveal_type(atomo.add([b""]))
codec.encode("nonsense", step=0)
codec.encode(x)
codec.encode(x, stepp=0)
codec.decode(b"", like=x, out=x)
codec.decode(b"")
model.encode([x], step=0)
"""


def checked(*arguments, folder):
    """The lines that mypy prints, and its exit status; the package is looked for where it is installed."""
    environment = dict(os.environ, MYPY_CACHE_DIR=str(folder / "cache"))
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
                           *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.splitlines(), done.returncode


def test_calls_have_types(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    lines, status = checked("calls.py", folder=tmp_path)
    said = {int(line.split(":")[1]): line for line in lines if line.startswith("calls.py:") and ": note: Poss" not in line}
    assert status == 1
    revealed = [said[number].partition("Revealed type is ")[2].replace("builtins.", "") for number in range(8, 13)]
    assert revealed[0].replace("Union[bytes, Any]", "bytes | Any") == '"bytes | Any"'
    for text, start in zip(revealed[1:4], ("numpy.ndarray[", "numpy.ndarray[", "dict[str, numpy.ndarray[")):
        assert text.startswith('"' + start), text
    assert revealed[4] == '"bytes"'
    assert all(": error: " in said.get(number, "") for number in range(13, 19)), said


def test_the_package_is_strict(tmp_path):
    assert any(file.name == "py.typed" for file in importlib.metadata.files("atomo"))
    lines, status = checked("--ignore-missing-imports", "--follow-imports=silent", str(Path(atomo.__file__).parent),
                            folder=tmp_path)
    assert (lines, status) == ([], 0)
