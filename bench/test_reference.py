#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws messages of a small model and holds them against the reference model. usage: test_reference.py ATOMO"""
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from reference import Model, haar

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

    def test_messages_of_rotated_blocks(self):
        model, rng = haar.HaarModel(gradients()), np.random.default_rng(2)
        price = model.price_of("haar/64", 0.4)
        families = [family for layer in model.layers for family in layer.families("haar/64")]
        counts = np.concatenate([family.plan(price)[2] for family in families])
        self.assertGreater(len(set(counts)), 4, "not all kinds of content are here")
        errors = []
        for _ in range(12):
            rotation = haar.rotation_of(64, rng)
            errors.append(sum(((family.draw(price, rotation, rng) - family.x)**2).sum() for family in families))
        predicted = sum(family.at(price)[1] for family in families)
        self.assertLess(abs(np.mean(errors) / predicted - 1), 0.02)


def plane(n):
    """n rotations of the plane, a group."""
    angles = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)], 1).reshape(n, 2, 2)


def decoded(x, rotations, k):
    """What a unit vector is decoded to under each of the rotations."""
    y = rotations @ x
    largest = np.argsort(-np.abs(y), axis=1, kind="stable")[:, :k]
    signs = np.sign(np.take_along_axis(y, largest, 1))
    rows = np.take_along_axis(rotations, largest[:, :, None], 1)
    return math.sqrt(haar.second_moments(len(x))[k] / k) * (signs[:, :, None] * rows).sum(1)


class Rotations(unittest.TestCase):
    SIDE, K, DRAWS = 16, 2, 40000
    FAMILY_ERROR = 1e-9  # the chance that one of the sums of an unbiased estimate is beyond its bound (Bernstein)

    def furthest(self, x, rotations):
        """The largest error of a mean in any entry, over what chance allows it."""
        moment = haar.second_moments(self.SIDE)[self.K]
        level = math.log(2 * self.SIDE / self.FAMILY_ERROR)
        # No direction has twice its share of the second moment but that of x, whose part is at most x^2 E.
        variance = moment * (2 / self.SIDE + x**2)
        bound = np.sqrt(2 * variance * level / len(rotations)) + math.sqrt(moment) * level * 2 / 3 / len(rotations)
        return (np.abs(decoded(x, rotations, self.K).mean(0) - x) / (bound + 2e-3 * np.abs(x))).max()

    def vectors(self):
        uneven, rng = np.zeros(self.SIDE), np.random.default_rng(8)
        uneven[:2] = 1, 0.5
        return [x / np.linalg.norm(x) for x in (uneven, rng.standard_normal(self.SIDE), rng.standard_t(2, self.SIDE))]

    def test_uniform_rotations_are_unbiased(self):
        q, r = np.linalg.qr(np.random.default_rng(9).standard_normal((self.DRAWS, self.SIDE, self.SIDE)))
        rotations = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]
        for x in self.vectors():
            self.assertLess(self.furthest(x, rotations), 1)
            # The part along x varies little from rotation to rotation.
            self.assertAlmostEqual((decoded(x, rotations, self.K) @ x).mean(), 1, delta=0.005)

    def test_a_round_of_hadamard_is_not(self):
        hadamard = np.array([[(-1.0)**(i & j).bit_count() for i in range(self.SIDE)] for j in range(self.SIDE)]) / 4
        signs = np.random.default_rng(9).choice((-1.0, 1.0), (self.DRAWS, 1, self.SIDE))
        self.assertGreater(self.furthest(self.vectors()[0], hadamard * signs), 2)

    def test_no_group_of_the_plane_is_exact(self):
        """The worst bias of n rotations is pi / n: every one there is, enumerated, for vectors of many directions."""
        c = 2 * math.sqrt(2) / math.pi  # E of the larger of |cos| and |sin|
        for n in (8, 64, 512, 4096):
            worst = 0
            for angle in np.linspace(0.001, math.pi / 2, 101):
                x = np.array([math.cos(angle), math.sin(angle)])
                scale = 1 / c / math.sqrt(haar.second_moments(2)[1])
                worst = max(worst, np.linalg.norm(scale * decoded(x, plane(n), 1).mean(0) - x))
            self.assertLess(worst, 1.02 * math.pi / n)
            self.assertGreater(worst, 0.9 * math.pi / n)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
