# SPDX-License-Identifier: Apache-2.0
"""What is installed: the tool beside the package, stubs, documentation, symbols, the wheel's contents."""
import ast
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile

import numpy
import pytest
from conftest import gradient

import atomo
from atomo import _atomo, _tool

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(atomo.__file__).parent
# Modules of a framework are tested with it.
MODULES = sorted(name for _, name, _ in pkgutil.iter_modules([str(PACKAGE)])
                 if name.startswith("_") and not name.startswith("_atomo"))


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=600,
                          **options)


@pytest.mark.parametrize("name", ["", *MODULES])
def test_examples_in_docstrings(name):
    module = importlib.import_module("atomo" + ("." if name else "") + name)
    assert doctest.testmod(module, verbose=False).failed == 0


def test_the_example_of_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## From Python\n")[2]
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    assert names["decoded"]["fc.bias"].shape == (128,) and (names["decoded"]["fc.bias"] == 1).all()


def test_there_are_examples():
    found = sum(len(test.examples) for name in MODULES
                for test in doctest.DocTestFinder().find(importlib.import_module("atomo." + name)))
    assert found >= 20


def public():
    for name in atomo.__all__:
        thing = getattr(atomo, name)
        if callable(thing):
            yield name, thing
            if inspect.isclass(thing) and not issubclass(thing, Exception):
                yield from ((f"{name}.{member}", value) for member, value in vars(thing).items()
                            if not member.startswith("_") and (callable(value) or isinstance(value, property)))


@pytest.mark.parametrize("name, thing", list(public()), ids=lambda value: value if isinstance(value, str) else "")
def test_public_names_are_documented_and_typed(name, thing):
    assert thing.__doc__ and not thing.__doc__.startswith(name.rpartition(".")[2] + "(")  # not a dataclass's own
    call = thing.fget if isinstance(thing, property) else thing
    if inspect.isclass(call):
        return
    signature = inspect.signature(call)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in list(signature.parameters.values())[1 if "." in name else 0:]:
        assert parameter.annotation is not inspect.Parameter.empty, parameter


def test_importing_needs_numpy_alone():
    code = ("import sys, atomo\n"
            "print([m for m in ('torch', 'jax', 'ray', 'cupy', 'matplotlib', 'ml_dtypes') if m in sys.modules])")
    done = run(sys.executable, "-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def names_of_stub(node):
    """{class or function: {methods}} of a stub."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.ClassDef):
            found[item.name] = set(names_of_stub(item))
        elif isinstance(item, ast.FunctionDef):
            found[item.name] = set()
        elif isinstance(item, ast.AnnAssign):
            found[item.target.id] = set()
    return found


def test_the_stub_is_complete():
    stub = names_of_stub(ast.parse((PACKAGE / "_atomo.pyi").read_text(encoding="utf-8")))
    for name, thing in vars(_atomo).items():
        if name.startswith("__"):
            continue
        assert name in stub, name
        if inspect.isclass(thing):
            assert {member for member in vars(thing) if not member.startswith("_")} <= stub[name]
    assert (PACKAGE / "py.typed").exists()


def test_the_version_stands_once():
    header = (ROOT / "include/atomo/version.hpp").read_text(encoding="utf-8")
    assert atomo.__version__ == re.search(r'kVersion = "([^"]+)"', header)[1]
    assert importlib.import_module("importlib.metadata").version("atomo") == atomo.__version__


def test_the_module_shows_nothing_of_the_library():
    modules = [pathlib.Path(_atomo.__file__), *PACKAGE.glob("_atomo_*.so")]
    for path in modules:
        table = run("nm", "-D", "--defined-only", path).stdout.split("\n")
        assert [line.split()[2] for line in table if line] == ["PyInit_" + path.name.partition(".")[0]]


def test_the_tool_is_a_command():
    script = shutil.which("atomo", path=str(pathlib.Path(sys.executable).parent))
    assert script, "no console script beside the interpreter"
    assert f"atomo {atomo.__version__} " in run(script, "--version").stdout
    done = run(script, "inspect", "/no/such/file")
    assert done.returncode == 2 and done.stderr.startswith("atomo: ")


@pytest.mark.parametrize("names", [False, True])
def test_the_tool_writes_the_same_bytes(tmp_path, names):
    arrays = {"a": gradient(32, 48), "b": gradient(100).astype("float16"), "c": gradient(2, 3, 5)}
    numpy.savez(tmp_path / "x.npz", **arrays)
    for spec in ("atomo:bits=1", "qsgd:bits=3", "identity:dtype=f32"):
        done = run(_tool.path(), "encode", "--codec", spec, "--seed", 7, "--step", 8, "--worker", 9,
                   *([] if names else ["--without-names"]), tmp_path / "x.npz", tmp_path / "x.atomo")
        assert done.returncode == 0, done.stderr
        model = atomo.Compressor(arrays, spec, names_on_wire=names)
        assert model.encode(arrays, seed=7, step=8, worker=9) == (tmp_path / "x.atomo").read_bytes()


def test_the_tool_decodes_what_the_package_encoded(tmp_path):
    x = gradient(16, 16)
    codec = atomo.Codec("atomo:atoms=rows,bits=2")
    (tmp_path / "x.atomo").write_bytes(codec.encode(x, seed=5, step=0))
    assert run(_tool.path(), "decode", tmp_path / "x.atomo", tmp_path / "y.npy").returncode == 0
    numpy.testing.assert_array_equal(numpy.load(tmp_path / "y.npy"), codec.decode(codec.encode(x, seed=5, step=0), like=x))


def test_measure(framework):
    arrays = {"file": framework.array(gradient(32, 32)), "b/c": framework.array(gradient(9), "bf16")}
    report = atomo.measure(["identity:dtype=f32", atomo.Codec("qsgd:bits=2")], arrays, draws=3, seed=1)
    assert report["input"] == {"tensors": 2, "elements": 1033} and report["device"] == "cpu"
    exact, lossy = report["codecs"]
    assert exact["nmse"] == 0 and lossy["nmse"] > 0 and lossy["canonical"].startswith("qsgd:bits=2")
    assert report["codecs"][1]["nmse"] == atomo.measure("qsgd:bits=2", arrays, draws=3, seed=1)["codecs"][0]["nmse"]
    for arrays in ([gradient(4)], gradient(4)):
        assert atomo.measure("sign", arrays, draws=1)["input"]["tensors"] == 1


def test_what_measure_refuses():
    for call, words in ((lambda: atomo.measure("sgin", gradient(3)), "unknown codec 'sgin'"),
                        (lambda: atomo.measure([], gradient(3)), "--codec"),
                        (lambda: atomo.measure("sign", gradient(3), draws=0), "draws"),
                        (lambda: atomo.measure("sign", numpy.ones(3)), "float64")):
        with pytest.raises(atomo.Error, match=words):
            call()


def test_plot(tmp_path):
    report = atomo.measure(["qsgd:bits=2", "qsgd:bits=4", "sign"], gradient(64, 64), draws=2)
    figure = atomo.plot(report, tmp_path / "error.png")
    assert type(figure).__name__ == "Figure" and len(figure.axes) == 1
    assert (tmp_path / "error.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in run(sys.executable, "-c", "import sys, atomo; atomo.plot(" + repr(report) + ")\n"
                                          "print([m for m in sys.modules if m.startswith('matplotlib')])").stdout
    with pytest.raises(atomo.Error, match=".png"):
        atomo.plot(report, tmp_path / "error.pdf")


def test_what_is_installed():
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    sources = {str(path.relative_to(ROOT / "bindings/python/atomo"))
               for path in (ROOT / "bindings/python/atomo").rglob("*")
               if path.is_file() and "__pycache__" not in path.parts}
    built = {path.name for path in PACKAGE.glob("_atomo*.so")} | {"_atomo.pyi", "bin/atomo", "bin/plot.py"}
    if (PACKAGE / "bin/plot_runs.py").exists():  # with atomo.train
        built.add("bin/plot_runs.py")
    assert sources - files == set() and files - sources == built
    assert (PACKAGE / "bin/plot.py").read_text() == (ROOT / "programs/atomo/commands/plot.py").read_text()


@pytest.mark.long
def test_the_wheel_of_scripts_wheel_sh(tmp_path):
    """The libraries are inside; it works where atomo is not installed otherwise."""
    done = run("bash", ROOT / "scripts/wheel.sh")
    assert done.returncode == 0, done.stderr
    wheel = max((ROOT / "build/wheels").glob("atomo-*.whl"), key=lambda path: path.stat().st_mtime)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert "manylinux" in wheel.name
    for wanted in ("atomo/_atomo.pyi", "atomo/py.typed", "atomo/bin/atomo", "atomo/bin/plot.py"):
        assert wanted in names
    assert any(name.startswith("atomo.libs/") and "blosc" in name for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    code = "import atomo; print(atomo.__file__)"
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    assert str(tmp_path) in run(sys.executable, "-c", code, env=environment).stdout
    (tmp_path / "atomo/bin/atomo").chmod(0o755)
    assert run(tmp_path / "atomo/bin/atomo", "codecs").returncode == 0


def test_frameworks_are_imported_when_they_are_named():
    program = ("import sys, atomo; assert 'torch' in dir(atomo) and 'torch' not in sys.modules and 'jax' not in sys.modules; "
               "atomo.torch.DDPState; atomo.jax.encode; assert 'torch' in sys.modules and 'jax' in sys.modules; atomo.keras")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("AttributeError: module 'atomo' has no attribute 'keras'\n"), done.stderr
