# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of programs/atomo-train/reproduce."""

import json
import pathlib
import subprocess
import unittest

from jobs import ROOT, TRAINER, data, path

COMMANDS = ROOT / "programs/atomo-train/reproduce"
PNG = b"\x89PNG\r\n\x1a\n"


class CommandTest(unittest.TestCase):
    def command(self, name, *options, on=data):
        """What it says, its data and its table, from one seed; the plot is there."""
        out = path(name.replace("/", "-"))
        done = subprocess.run(["bash", str(COMMANDS / f"{name}.sh"), *options, "--trainer", TRAINER, "--data", on, "--seeds",
                               "1", "--keep", path(f"kept-{name}"), "--out", out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(pathlib.Path(out + ".png").read_bytes()[:8], PNG)
        return done.stdout, json.loads(pathlib.Path(out + ".json").read_text()), pathlib.Path(out + ".md").read_text()
