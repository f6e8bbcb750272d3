# SPDX-License-Identifier: Apache-2.0
"""What a checker of types says of calls on the package."""
import subprocess
import sys

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


def test_calls_have_types(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "calls.py"],
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 1)
    said: dict[int, str] = {}  # the first that is said of each line
    for line in done.stdout.splitlines():
        file, number, text = line.split(":", 2)
        assert file == "calls.py", line
        said.setdefault(int(number), text.strip())
    first = CALLS.split("\n").index("reveal_type(codec.encode(x, step=0))") + 1
    revealed = [said.pop(first + i).partition("Revealed type is ")[2] for i in range(5)]
    assert revealed[0] in ('"bytes | Any"', '"Union[builtins.bytes, Any]"')
    for text, start in zip(revealed[1:4], ("numpy.ndarray[", "numpy.ndarray[", "dict[str, numpy.ndarray[")):
        assert text.replace("builtins.", "").startswith('"' + start)
    assert revealed[4].replace("builtins.", "") == '"bytes"'
    assert sorted(said) == [first + 5 + i for i in range(6)]
    assert all(text.startswith("error: ") for text in said.values())
