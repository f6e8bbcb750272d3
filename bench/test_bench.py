#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the commands here: what they answer, that every benchmark runs, and the tables over them.

usage: test_bench.py commands | runs BUILD_FOLDER | peers BUILD_FOLDER

BUILD_FOLDER is the one of bench/ in a build tree.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import floors
import peer_names
import roofline
import table
import variance_report
from programs import has_avx2

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE.parent / "build" / "venv" / "bin" / "python"
SKIPPED = 77
COMMANDS = {"run.sh": "usage: bash bench/run.sh", "roofline.sh": "usage: bash bench/roofline.sh",
            "instructions.py": "usage: instructions.py", "table.py": "usage: table.py", "peers.py": "usage: peers.py"}


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def command(name: str) -> list:
    return ["bash" if name.endswith(".sh") else sys.executable, HERE / name]


def refuses(words: list, *said: str) -> None:
    made = run(*words)
    assert made.returncode == 2, f"{words}: exit status {made.returncode}"
    last = made.stderr.strip().splitlines()[-1]
    for text in said:
        assert text in last, f"{words}: '{text}' is not in '{last}'"


def test_answers() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, usage in COMMANDS.items():
            made = run(*command(name), "--help", cwd=folder)
            assert made.returncode == 0 and usage in made.stdout, f"{name} --help: {made.stdout} {made.stderr}"
            assert run(*command(name), "--no-such-option", cwd=folder).returncode == 2, name
    refuses([*command("run.sh"), "--filter", "("], "--filter is '('")
    refuses([*command("run.sh"), "--repetitions", "0"], "--repetitions", "'0'")
    refuses([*command("run.sh"), "--min-time", "nan"], "--min-time", "'nan'")
    refuses([*command("run.sh"), "--threads", "65"], "--threads is 65")
    refuses([*command("run.sh"), "--plugin", "./none.so"], "--plugin is 'none.so'; a shared object is wanted")
    refuses([*command("run.sh"), "--plugin", __file__, "--check"], "--plugin is given")
    refuses([*command("run.sh"), "--target", "mmx"], "--target", "'mmx'")
    refuses([*command("run.sh"), "--out", "figures.csv"], "--out is 'figures.csv'")
    refuses([*command("run.sh"), "--check", "--update-floors"], "not allowed with")
    refuses([*command("roofline.sh"), "--filter", "["], "--filter is '['")
    refuses([*command("instructions.py"), "--program", "/no/such/file"], "--program is '/no/such/file'")
    refuses([*command("table.py"), "/no/such/file"], "/no/such/file cannot be read")


def a_run(name: str, ratio: float, repetition: int = 0, threads: int = 1, **more) -> dict:
    return {"name": name, "threads": threads, "repetition": repetition, "ms": 10 / ratio, "gbs": 10 * ratio, "memcpy_gbs": 10,
            "of_memcpy": ratio, "bits_per_parameter": 1.0, **more}


def a_document(*runs: dict, filter_: str = ".") -> dict:
    return {"context": {"cpu": "a processor", "num_cpus": 2, "compiler": "GNU 1.0", "build": "Release", "target": "best",
                        "filter": filter_, "date": "2000-01-01", "peers": {"torch": "2"}}, "benchmarks": list(runs)}


def test_table() -> None:
    step = [a_run(f"25M_cold/{peer_names.POWERSGD_4}/{operation}", 1.0, peer=True) for operation in ("encode", "decode")]
    document = a_document(a_run("25M_cold/sign/encode", 0.5), a_run("25M_cold/sign/encode", 0.25, 1),
                          a_run("25M_cold/sign/encode", 0.4, 2), a_run("25M_cold/atomo:bits=1/encode", 0.8),
                          a_run("lenet/sign/first", 0.05), a_run("lenet/sign/encode", 0.5, threads=2), *step)
    text = table.text_of(document)
    lines = text.splitlines()
    rows = {line.split("  ")[0]: line.split() for line in lines if "%" in line}
    assert "torch 2" in lines[0] and "medians of 3" in lines[0], lines[0]
    # GB/s, ratio, steps of 20 ms, spread; nothing was decoded.
    assert rows["atomo:bits=1"][1:] == ["1.000", "8.00", "-", "0.80", "-", "0.62", "0%"], rows["atomo:bits=1"]
    cold = [line for line in lines if line.startswith("sign")][0].split()
    assert cold[1:] == ["1.000", "4.00", "-", "0.40", "-", "1.25", "62%"], cold
    order = [line.split("  ")[0] for line in lines if line.startswith(("atomo", "torch", "sign"))][:3]
    assert order == [peer_names.POWERSGD_4, "atomo:bits=1", "sign"], order
    assert text.count("memcpy 10.0 GB/s") == 3 and "; 2 threads;" in text and "first" in text, text
    ends = {len(line) for line in lines[lines.index(next(x for x in lines if x.startswith("codec"))):][:4]}
    assert len(ends) == 1, f"the columns are not aligned:\n{text}"


def test_floors() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "floors.json")
        slow = a_document(a_run("25M_cold/sign/encode", 0.5), a_run("25M_cold/zstd/encode", 0.1, peer=True),
                          a_run("1M_hot/sign/encode", 0.1), a_run("25M_cold/sign/encode", 9.0, threads=2))
        assert "no floor: 25M_cold sign/encode" in floors.faults(slow, path)[0]
        assert floors.update(slow, path) == 1 and floors.read(path) == {"best": {"sign/encode": 0.425}}
        assert floors.faults(slow, path) == []
        found = floors.faults(a_document(a_run("25M_cold/sign/encode", 0.42)), path)
        assert found == ["below its floor: 25M_cold sign/encode at 0.42 of memcpy, 0.425 is wanted (target best)"], found
        # A part of a run leaves the other floors alone, a whole one drops those of codecs that are gone.
        floors.update(a_document(a_run("25M_cold/qsgd/decode", 1.0), filter_="qsgd"), path)
        assert set(floors.read(path)["best"]) == {"sign/encode", "qsgd/decode"}
        floors.update(a_document(a_run("25M_cold/qsgd/decode", 1.0)), path)
        assert set(floors.read(path)["best"]) == {"qsgd/decode"}


def test_limits() -> None:
    ways = [{"name": name, "stores": "-", "gbs": [1.0, gbs]}
            for name, gbs in (("read", 10), ("write", 20), ("copy", 16), ("update", 32))]
    # 100 MB read and none written; a message of 50 MB is copied; adding updates 100 MB and reads 50.
    for operation, message, seconds in (("encode", 0, 0.01), ("encode", 5e7, 0.01125), ("decode", 0, 0.005),
                                        ("decode_add", 5e7, 0.01125)):
        found = roofline.limit(operation, message, ways)
        assert abs(found - seconds) < 1e-9, f"{operation} of {message} bytes: {found}"


def test_nearest() -> None:
    def row(codec: str, rate: float, **figures: float) -> dict:
        return {"model": "m", "codec": codec, "rate": rate, "predicted_nmse": 9.0, **figures}

    rows = [row("rows", 0.5, nmse=0.5), row("rows", 0.25, nmse=2.0), row("rows, nearest", 0.5, nmse=0.125),
            row("rows, nearest", 0.25, nmse=0.4), row("sketch, nearest", 0.5, nmse=0.1), row("coordinates", 0.5, nmse=3.0)]
    other = [{**rows[0], "model": "other", "nmse": 7.0}]
    header, body = variance_report.nearest_table({"rows": other + rows}, "m")
    # A kind of atoms that was not drawn too is left out; what one model leaves is not beside another's.
    assert body == [["rows", "0.5", ".5", ".125", ".875", "4.00"], ["rows", "0.25", "2", ".4", ".6", "5.00"]], body
    assert header[0] == "m: atoms" and len(header) == 6, header


def test_commands() -> None:
    for test in (test_answers, test_table, test_floors, test_limits, test_nearest):
        test()
        print(f"{test.__name__}: passed")


def measured(build: pathlib.Path, folder: pathlib.Path, *words: str) -> tuple[dict, str]:
    """The figures and the table of a run with the shortest times."""
    out = folder / "figures.json"
    made = run(sys.executable, HERE / "run.py", "--built", build, "--fresh", "--min-time", "0.001", "--repetitions", "1",
               "--out", out, *words)
    assert made.returncode == 0, made.stderr
    return json.loads(out.read_text()), out.with_suffix(".txt").read_text()


def test_runs(build: pathlib.Path) -> None:
    """Every codec at the smaller size, on one thread and two, and a model; then memory and its table, and counts."""
    test_counts(build)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        document, text = measured(build, folder, "--size", "1M_hot", "--without-peers")
        print(text)
        assert "host_name" not in document["context"], "the figures name the machine"
        names = {run["name"] for run in document["benchmarks"] if run["threads"] == 1}
        specs = {name.split("/")[1] for name in names}
        assert len(specs) >= 30, f"only {len(specs)} codecs were measured"
        for spec in specs:
            assert any(spec in line.split() for line in text.splitlines()), f"no line of the table for {spec}"
            assert {f"1M_hot/{spec}/{operation}" for operation in ("encode", "decode", "decode_add", "decode_add_8")} <= names, spec
        assert any(run["threads"] == 2 for run in document["benchmarks"]), "nothing was measured on two threads"
        document, text = measured(build, folder, "--size", "lenet", "--without-peers", "--threads", "1", "--target", "avx2",
                                  "--filter", "atomo:bits")
        operations = {run["name"].split("/")[2] for run in document["benchmarks"]}
        assert operations == {"first", "encode", "decode", "decode_add", "decode_add_8"}, operations
        for words, said in ((["--threads=0"], "--threads is '0'"), (["--target=mmx"], "--target is 'mmx'"),
                            (["--plugin=./none.so"], "none.so"), (["--size=alexnet"], "--size is 'alexnet'")):
            made = run(build / "bench_codecs", *words)
            assert made.returncode == 1 and said in made.stderr, f"{words}: {made.stderr}"
        made = run(build / "bench_count", "1", "sign/no-such-operation")
        assert made.returncode == 1 and "sign/no-such-operation" in made.stderr, made.stderr
        made = run(sys.executable, HERE / "run.py", "--built", build, "--without-peers", "--filter", "no-such-codec")
        assert made.returncode == 2 and "no benchmark matches --filter 'no-such-codec'" in made.stderr, made.stderr
        out = folder / "roofline"
        made = run(*command("roofline.sh"), "--built", build, "--repetitions", "1", "--filter", "sign/encode", "--out", out)
        assert made.returncode == 0, made.stderr
        assert "non-temporal" in made.stdout and "x limit" in made.stdout, made.stdout
        report = json.loads(out.with_suffix(".json").read_text())
        assert [row["codec"] for row in report["rows"]] == ["sign"] and out.with_suffix(".png").stat().st_size > 0


def test_counts(build: pathlib.Path) -> None:
    """A perf that counts 1000 instructions and two an entry of each call, and what is made of it."""
    if not has_avx2():
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        perf = folder / "perf"
        perf.write_text('#!/bin/sh\necho "$((1000 + 2 * 65536 * ${11:-0})),,instructions:u,1,100.00,," >"$7"\n')
        perf.chmod(0o755)
        words = [*command("instructions.py"), "--program", build / "bench_count", "--tool", "perf", "--codec", "sign",
                 "--figures", folder / "figures.json"]
        search = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
        made = run(*words, "--json", env=search)
        assert made.returncode == 0, made.stderr
        report = json.loads(made.stdout)
        assert report["figures"] == {"sign": {"encode": 2, "decode": 2, "decode_add": 2}}, report
        for before, status, said in ((2.09, 0, ""), (2.2, 1, "--update"), (1.8, 1, "sign encode: 2.00 instructions an entry")):
            figures = {"sign": dict(report["figures"]["sign"], encode=before)}
            (folder / "figures.json").write_text(json.dumps({**report, "figures": figures}))
            made = run(*words, "--check", env=search)
            assert made.returncode == status and said in made.stderr, f"{before}: {made.returncode} {made.stderr}"
        (folder / "figures.json").write_text(json.dumps({**report, "compiler": "GNU 1.0, Release"}))
        made = run(*words, "--check", env=search)
        assert made.returncode == SKIPPED and "the committed figures are of GNU 1.0" in made.stderr, made.stderr


def test_data(build: pathlib.Path) -> None:
    """The tensors are of low rank and heavy tails, as bench/models.hpp says."""
    import numpy as np
    from tensors import Tensors
    made = Tensors(str(build / "libbench_tensors.so"), "1M_hot")
    (matrix,) = made.layers()
    values, right = np.linalg.svd(matrix, full_matrices=False)[1:]
    share = (values[:8] ** 2).sum() / (values**2).sum()
    assert 0.4 < share < 0.6, f"the first 8 pairs hold {share:.2f} of the energy; a half is wanted"
    rest = matrix - matrix @ right[:8].T @ right[:8]
    tails = (rest**4).mean() / (rest**2).mean() ** 2
    assert tails > 10, f"the kurtosis beside them is {tails:.1f}; a normal's is 3"
    counts = {size: sum(r * c for r, c in Tensors(str(build / "libbench_tensors.so"), size).matrices)
              for size in ("lenet", "resnet18")}
    assert counts == {"lenet": 431_080, "resnet18": 11_689_512}, counts


def test_peers(build: pathlib.Path) -> int:
    if not VENV.exists() or run(VENV, "-c", "import torch, blosc2, zstandard").returncode != 0:
        print("skipped: what codecs are measured beside is not installed; 'bash scripts/python.sh' does that")
        return SKIPPED
    test_data(build)
    with tempfile.TemporaryDirectory() as folder:
        document, text = measured(build, pathlib.Path(folder), "--size", "lenet", "--filter",
                                  "lenet/(sign|torch|numpy|zstd|blosc2)")
    print(text)
    peers = {run["name"].split("/")[1] for run in document["benchmarks"] if run.get("peer")}
    assert peers == set(peer_names.NAMES), peers ^ set(peer_names.NAMES)
    bits = {run["name"].split("/")[1]: run["bits_per_parameter"] for run in document["benchmarks"]}
    assert bits["torch cast:bf16"] == 16 and 4 < bits["numpy qsgd:bits=4,bucket=512"] < 4.1, bits
    return 0


def main() -> int:
    if sys.argv[1:] == ["commands"]:
        test_commands()
        return 0
    what, build = sys.argv[1:]
    return {"runs": test_runs, "peers": test_peers}[what](pathlib.Path(build)) or 0


if __name__ == "__main__":
    sys.exit(main())
