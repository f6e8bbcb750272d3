# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line tool share: running it, judging refusals, writing tensor files by hand."""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import numpy

ATOMO = os.environ.get("ATOMO_BINARY", "atomo")

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def obey_permissions():
    """For a child of root: permissions of files count for it, as for anybody."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


class ToolTest(unittest.TestCase):
    """A scratch directory and ways to run the tool in it."""

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="atomo-cli-")
        self.addCleanup(shutil.rmtree, self.directory, True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return name

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_tool(self, *arguments, **options):
        return subprocess.run([ATOMO, *map(str, arguments)], cwd=self.directory, timeout=600, check=False,
                              stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, **options)

    def succeed(self, *arguments, **options):
        """Runs the tool, which must exit 0, and returns its standard output."""
        done = self.run_tool(*arguments, **options)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr.decode(errors='replace')}")
        return done.stdout

    def succeed_json(self, *arguments, **options):
        return json.loads(self.succeed(*arguments, "--json", **options))

    def refuse(self, code, wanted, *arguments, **options):
        """The tool must exit with the code, print nothing, and say one line that holds every wanted word."""
        before = self.tree()
        done = self.run_tool(*arguments, **options)
        error = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, code, f"{arguments}: {error}")
        self.assertIn(done.stdout, (b"", None))
        self.assertTrue(error.startswith("atomo: ") and error.endswith("\n") and error.count("\n") == 1,
                        f"not one line: {error!r}")
        for word in [wanted] if isinstance(wanted, str) else wanted:
            self.assertIn(word, error)
        self.assertEqual(self.tree(), before, "a refusal changed files")
        return error

    def tree(self):
        """Every file's name and content: what a refusal must leave as it was."""
        found = {}
        for folder, _, names in os.walk(self.directory):
            for name in names:
                path = os.path.join(folder, name)
                found[path] = open(path, "rb").read() if os.path.isfile(path) and os.access(path, os.R_OK) else None
        return found

    def save(self, name, array):
        numpy.save(self.path(name), array)
        return name

    def load(self, name):
        return numpy.load(self.path(name))


def normal(*shape, seed=0, dtype="<f4"):
    return numpy.random.default_rng(seed).normal(size=shape).astype(dtype)


def npy(header, data=b"", version=(1, 0)):
    """The bytes of a .npy file with this header, right or wrong."""
    text = header.encode() + b"\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def safetensors(header, data=b""):
    """The bytes of a .safetensors file; the header is a dictionary or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(content):
    """An independent reader: {name: (dtype, shape, bytes)}."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    covered = sorted(entry["data_offsets"] for entry in header.values())
    assert not covered or (covered[0][0] == 0 and covered[-1][1] == len(data)), "data_offsets do not cover the file"
    assert all(a[1] == b[0] for a, b in zip(covered, covered[1:])), "data_offsets leave a gap"
    return {name: (e["dtype"], tuple(e["shape"]), data[slice(*e["data_offsets"])]) for name, e in header.items()}
