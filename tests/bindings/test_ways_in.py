# SPDX-License-Identifier: Apache-2.0
"""Runs README's Python, that of the pages of docs/, and docs/ways-in.md: there every block goes into the file that its heading
line names, then its commands are run.

C and C++ want the library installed: it is, from the build tree that ATOMO_BUILD_DIR names (default: build/release).
A torchrun imports PyTorch once more than it has processes: README's program and, in the long run, every way go through it;
on a commit worlds.launch begins the processes of a way.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import launch

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ways-in.md").read_text()
BLOCK = re.compile(r"(?:^`(?P<file>[\w.]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WAYS = {part.splitlines()[0]: part for part in PAGE.split("\n## ")[1:]}
SAME_LINE = ["C++ with CMake", "C", "Python", "JAX"]
THROUGH = pytest.mark.parametrize("torchrun", [False, pytest.param(True, marks=pytest.mark.long)], ids=["launch", "torchrun"])


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """This Python before any other, and the library as `cmake --install` leaves it."""
    build = Path(os.environ.get("ATOMO_BUILD_DIR", ROOT / "build" / "release"))
    assert (build / "CMakeCache.txt").exists(), f"{build} is no build tree; ATOMO_BUILD_DIR may name one"
    tree = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", build, "--prefix", tree], check=True, stdout=subprocess.DEVNULL)
    (library,) = {path.parent for path in tree.rglob("libatomo_c.so")}
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CMAKE_PREFIX_PATH": str(tree),
        "PKG_CONFIG_PATH": str(library / "pkgconfig"),
        "LD_LIBRARY_PATH": str(library),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }


def run(way, folder, environment, torchrun=True):
    """What the last command printed; without torchrun its processes are begun in its place."""
    blocks = list(BLOCK.finditer(WAYS[way]))
    commands = [block["text"] for block in blocks if block["language"] == "sh"]
    assert len(commands) == 1, "a way has its files, then one block of commands"
    for block in blocks:
        if block["language"] != "sh":
            assert block["file"], f"{way}: which file is this?\n{block['text']}"
            (folder / block["file"]).write_text(block["text"])
    if not torchrun:
        match = re.fullmatch(r"torchrun --nproc-per-node (\d+) (\w+\.py)\n", commands[0])
        assert match, f"{way}: {commands[0]}"
        return launch(int(match[1]), match[2], folder=folder)
    command = ["bash", "-e", "-c", commands[0]]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_nine_ways_and_nothing_outside_them():
    assert list(WAYS) == ["C++ with CMake", "C", "Python", "PyTorch, DistributedDataParallel",
                          "PyTorch, fully_shard", "PyTorch, outer synchronisation", "PyTorch, several dimensions of a mesh", "JAX", "Ray"]
    assert "```" not in PAGE.split("\n## ")[0]
    assert sum(len(BLOCK.findall(part)) for part in WAYS.values()) == PAGE.count("```") // 2


def test_four_ways_print_the_same_line(tmp_path, environment):
    for tool in ("cmake", "cc", "pkg-config"):
        assert shutil.which(tool), f"{tool} is missing: scripts/install.sh installs it"
    lines = {}
    for way in SAME_LINE:
        folder = tmp_path / way
        folder.mkdir()
        lines[way] = run(way, folder, environment).splitlines()[-1]
    assert len(set(lines.values())) == 1, lines
    match = re.fullmatch(r"(\d+) bytes, the first entry became (-?\d+\.\d{6})", lines["C"])
    assert match, lines
    assert int(match[1]) < 64 * 1024 * 4 / 60, "half a bit of 32"


@THROUGH
def test_ddp(torchrun, tmp_path, environment):
    output = run("PyTorch, DistributedDataParallel", tmp_path, environment, torchrun)
    workers = re.findall(r"worker (\d): the first weight is (-?\d+\.\d{6})", output)
    assert sorted(worker for worker, _ in workers) == ["0", "1"], output
    assert len({weight for _, weight in workers}) == 1, f"the replicas differ: {output}"


@THROUGH
def test_fully_shard(torchrun, tmp_path, environment):
    output = run("PyTorch, fully_shard", tmp_path, environment, torchrun)
    workers = re.findall(r"worker (\d): \d+ bytes of gradients sent, (\d+) times fewer", output)
    assert sorted(worker for worker, _ in workers) == ["0", "1"], output
    assert all(int(times) > 50 for _, times in workers), output


@THROUGH
def test_outer_synchronisation(torchrun, tmp_path, environment):
    output = run("PyTorch, outer synchronisation", tmp_path, environment, torchrun)
    workers = re.findall(r"worker (\d): (\d+) bytes in 2 rounds, checksum (-?\d+)", output)
    assert sorted(worker for worker, _, _ in workers) == ["0", "1"], output
    assert len({checksum for _, _, checksum in workers}) == 1, f"the replicas differ: {output}"
    assert all(int(sent) < 60 * 4 * 7850 / 200 for _, sent, _ in workers), "of a gradient every step"


@THROUGH
def test_several_dimensions_of_a_mesh(torchrun, tmp_path, environment):
    output = run("PyTorch, several dimensions of a mesh", tmp_path, environment, torchrun)
    ranks = {int(rank): (int(within), int(between)) for rank, within, between in
             re.findall(r"rank (\d): (\d+) bytes within its site, (\d+) between sites", output)}
    assert sorted(ranks) == [0, 1, 2, 3], output
    assert all(within > 6 * 900 for within, _ in ranks.values()), "a bit a parameter, six times"
    assert ranks[1][1] == ranks[3][1] == 2 * 8 * 3, "of two rounds what ranks agree on: the first node sends for its site"
    assert ranks[0][1] > 200 and ranks[2][1] > 200


def test_ray(tmp_path, environment):
    line = run("Ray", tmp_path, environment).splitlines()[-1]
    match = re.fullmatch(r"\[(\d+), (\d+)\] bytes, the mean has a norm of (\d+\.\d)", line)
    assert match, line
    assert all(int(match[i]) < 64 * 1024 * 4 / 60 for i in (1, 2))
    assert float(match[3]) > 0


def test_readmes_blocks_run_as_they_stand(tmp_path, environment):
    alone, of_a_group = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "alone.py").write_text(alone)
    # Each worker writes its own file: two that print share a pipe, and their lines can mix.
    (tmp_path / "group.py").write_text(of_a_group + "model(torch.ones(2, 784)).sum().backward()\n"
                                       "with open(f'sent.{torch.distributed.get_rank()}', 'w') as file:\n"
                                       "    file.write(str(model.module.weight.grad.isfinite().all().item()))\n")
    for command in ([sys.executable, "alone.py"], ["torchrun", "--nproc-per-node", "2", "group.py"]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / f"sent.{rank}").read_text() for rank in range(2)] == ["True", "True"]


OTHER_PAGES = {path.name: re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
               for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "ways-in.md"}
# Pages whose blocks are one program, in pieces.
for name in ("train-in-python.md",):
    OTHER_PAGES[name] = ["".join(OTHER_PAGES[name])]


@pytest.mark.parametrize("page, program", [(page, program) for page, found in OTHER_PAGES.items() for program in found])
def test_other_pages_programs_run_as_they_stand(page, program, tmp_path):
    path = tmp_path / f"{page}.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, path], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
