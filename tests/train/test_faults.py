# SPDX-License-Identifier: Apache-2.0
"""The script that hurts runs of every algorithm: a part of its table, and that it sees a promise that is broken."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from jobs import TOOLS, TRAINER, path


def tried(trainer, *options):
    """Exit status, what was printed, the rows of the table, its text."""
    out = path("faults-tried")
    done = subprocess.run([sys.executable, str(TOOLS / "faults.py"), "--trainer", trainer, "--out", out,
                           *options], capture_output=True, text=True)
    rows = json.loads(pathlib.Path(out + ".json").read_text())["rows"] if done.returncode in (0, 1) else []
    return done.returncode, done.stdout + done.stderr, rows, pathlib.Path(out + ".md").read_text()


def spoilt(text):
    """A trainer that is called after `text`, shell, has changed its arguments."""
    name = path("spoilt-trainer")
    pathlib.Path(name).write_text(f'#!/bin/bash\narguments=("$@")\n{text}\nexec "{TRAINER}" "${{arguments[@]}}"\n')
    os.chmod(name, 0o755)
    return name


class FaultTableTest(unittest.TestCase):
    def test_a_part_of_the_table(self):
        status, said, rows, text = tried(TRAINER, "--quick", "--timeout", "2", "--grace", "20")
        self.assertEqual(status, 0, said)
        listed = json.loads(subprocess.run([TRAINER, "--list", "--json"], capture_output=True, text=True).stdout)
        self.assertEqual({row["family"] for row in rows}, {row["family"] for row in listed})
        for row in rows:
            self.assertTrue(row["repeats"])
            happened = {fault: result["happened"] for fault, result in row["faults"].items()}
            self.assertRegex(happened["frozen"], r"^stops in .* s; same curve$")
            self.assertGreater(row["faults"]["frozen"]["seconds"], 3.5)  # two time-outs, less a beat
            self.assertEqual(happened["woken"], "goes on; same curve")
            self.assertRegex(happened["full_disk"], r"^stops in .* s; same curve$")
            self.assertIn(f"| `{row['title']}` ", text)
        self.assertNotIn("broken", text)

    def test_a_broken_promise_is_seen(self):
        # Waits much longer than it was told to.
        deaf = spoilt('for i in "${!arguments[@]}"; do\n'
                      '  [ "${arguments[i]}" != --timeout ] || arguments[i+1]=60\n'
                      'done')
        status, said, rows, text = tried(deaf, "--algorithm", "allgather", "--fault", "frozen", "--timeout", "0.5")
        self.assertEqual(status, 1, said)
        self.assertEqual(rows[0]["faults"]["frozen"]["happened"], "HANGS")
        self.assertIn("**broken**", text)
        # Resumes with samples in another order, which the checkpoint is told to have had.
        forgetful = spoilt('for i in "${!arguments[@]}"; do\n'
                           '  [ "${arguments[i]}" != --save ] || arguments+=(--seed 7)\n'
                           '  [ "${arguments[i]}" != --resume ] || arguments+=(--seed 7)\n'
                           'done')
        status, said, rows, _ = tried(forgetful, "--algorithm", "allgather", "--fault", "ctrl_c")
        self.assertEqual(status, 1, said)
        self.assertRegex(rows[0]["faults"]["ctrl_c"]["happened"], "step 0 has the loss .*, undisturbed ")


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
