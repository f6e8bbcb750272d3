# SPDX-License-Identifier: Apache-2.0
"""Codecs measured on one's own arrays, by the command line tool."""
from __future__ import annotations

import json
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy

from . import _own, _tool
from ._codec import Codec
from ._errors import Error
from ._frameworks import named, to_numpy


def measure(codecs: str | Codec | Iterable[str | Codec], arrays: Any, *, draws: int = 20, seed: int = 0,
            threads: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Measures size, error, bias and speed of codecs on arrays, which are one model; what `atomo measure` does.

    `arrays` is a mapping, a list or one array, of any framework; they are copied to a temporary file, bfloat16 as
    float32. Each codec encodes them `draws` times, in draw d as step d of `seed`.

    Returns {"input": {"tensors", "elements"}, "device", "threads" on the CPU, "codecs": [...]}, with for each codec
    "spec", "canonical", "bytes" and "bits_per_parameter" of a message with names, "nmse" (mean |decode - g|^2 / |g|^2)
    and its standard error "nmse_stderr", "bias_z" (the mean error in standard errors), "encode_ms", "decode_ms", and
    "encode_gbs", "decode_gbs" and "memcpy_gbs" in GB/s. With several threads, "one_thread" has the four times and
    speeds of one. Codecs of your own are measured where `load_codecs` brought them; the tool has no Python. Raises
    `atomo.Error` with what the tool refused.

    >>> import atomo, numpy
    >>> report = atomo.measure("identity:dtype=f32", numpy.ones(64, "float32"), draws=2)
    >>> report["codecs"][0]["nmse"], report["input"]["elements"]
    (0.0, 64)
    """
    specs = [str(codecs)] if isinstance(codecs, (str, Codec)) else [str(codec) for codec in codecs]
    command = [_tool.path()]
    for plugin in _own.loaded():
        command += ["--plugin", plugin]
    command += ["measure", "--json", "--draws", str(draws), "--seed", str(seed), "--threads", str(threads),
                "--device", device]
    for spec in specs:
        command += ["--codec", spec]
    with tempfile.TemporaryDirectory(prefix="atomo-") as folder:
        file = Path(folder) / "arrays.npz"
        # numpy.savez takes names for its own arguments.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, array in named(arrays).items():
                with archive.open(name + ".npy", "w", force_zip64=True) as entry:
                    numpy.lib.format.write_array(entry, to_numpy(array), allow_pickle=False)
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(done.stderr.strip().removeprefix("atomo: ") or f"atomo measure ended with {done.returncode}")
    return json.loads(done.stdout)
