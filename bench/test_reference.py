#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws messages of a small model and holds them against the reference model. usage: test_reference.py ATOMO"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from reference import Model

SIZE, ERROR = 0.03, 0.05  # shares of the prediction
DRAWS = 40
STARTS = 6  # of a sketch, whose variance depends a little on its random start
PRICED = ("blocks", "rows", "coordinate", "svd", "sketch", "sketch,rank=8", "auto")
SPECS = [f"atomo:bits={bits},atoms={atoms}" for atoms in PRICED for bits in (3, 1, 0.25)]
SPECS += ["qsgd:bits=4", "qsgd:bits=2,bucket=64", "topk:keep=0.05", "atomo:atoms=svd,keep=6,values=f32"]


def gradients():
    """Matrices of falling spectra, rows of unlike sizes, a convolution, a bias, and a table that is mostly zero."""
    random = np.random.default_rng(5)
    def matrix(rows, columns, decay):
        size = min(rows, columns)
        u, v = (np.linalg.qr(random.standard_normal((side, size)))[0] for side in (rows, columns))
        return (u * decay ** -np.log2(1 + np.arange(size))) @ v.T
    tensors = {"wide": matrix(96, 400, 2.0), "tall": matrix(500, 60, 3.0) * random.lognormal(0, 1, (500, 1)),
               "convolution": matrix(32, 144, 2.5).reshape(32, 16, 3, 3), "bias": random.standard_normal(96) * 0.02,
               "table": matrix(300, 40, 2.0) * (random.random((300, 1)) < 0.1)}
    return {name: x.astype(np.float32) for name, x in tensors.items()}


class Reference(unittest.TestCase):
    def test_drawn_messages_have_the_predicted_size_and_error(self):
        tensors = gradients()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "gradients.npz")
            np.savez(path, **tensors)
            command = [TOOL, "measure", "--json", "--without-names", "--draws", str(DRAWS), path]
            found = subprocess.run(command + [word for spec in SPECS for word in ("--codec", spec)], check=True,
                                   capture_output=True, text=True)
        models = [Model(tensors, start) for start in range(STARTS)]
        for spec, drawn in zip(SPECS, json.loads(found.stdout)["codecs"], strict=True):
            predictions = [model.predict(spec) for model in models[:STARTS if "sketch" in spec or "auto" in spec else 1]]
            bits, errors = (np.array([getattr(p, of) for p in predictions]) for of in ("bits", "nmse"))
            with self.subTest(spec, drawn=(drawn["bits_per_parameter"], drawn["nmse"]), predicted=(bits.mean(), errors.mean())):
                noise = np.hypot(drawn["nmse_stderr"] or 0, errors.std() / np.sqrt(len(errors)))
                self.assertLess(abs(drawn["bits_per_parameter"] - bits.mean()), SIZE * bits.mean())
                self.assertLess(abs(drawn["nmse"] - errors.mean()), ERROR * errors.mean() + 3 * noise)
                self.assertLess(noise, ERROR * errors.mean(), "too few draws to tell")

    def test_what_is_not_drawn(self):
        model = Model(gradients())
        self.assertAlmostEqual(model.predict("eden:bits=1").nmse, 0.3634 / 0.6366)
        self.assertAlmostEqual(model.predict("eden:bits=0.5").nmse, 2 / 0.6366 - 1)
        # As many levels as the fixed width has cost less when entropy-coded, so the same bytes pay for more of them.
        fixed = model.predict("qsgd:bits=4")
        coded = model.predict("qsgd-entropy:bits=4")
        self.assertLess(coded.nmse, fixed.nmse)
        self.assertAlmostEqual(coded.bits, 4, delta=0.02)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
