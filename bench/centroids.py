#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What centroids and other encoders would leave of gradients, by content without draws (`content=nearest`).

    python3 bench/centroids.py GRADIENT... [--fit GRADIENT...] [--rates BITS...] [--offsets]

GRADIENT is a .npz or .safetensors. For rows, blocks, a sketch and the choice of the three: what is left of |g|^2 with the
committed offsets (src/math/centroids.hpp), and at equal bytes the share of that which is left when levels are decoded as they
are, with offsets that were fitted on the --fit gradients (on GRADIENT itself without it: the least that offsets can leave), with
an encoder that takes the level nearer to zero where error + price * bits is less, and where atoms from one price on are kept.
--offsets prints the fitted ones by coding step. Needs NumPy alone.
"""
import argparse
import math

import captures
import numpy as np
from reference import Model
from reference.duo_code import OFFSETS, STEPS, classes_of, duos_of, word_lengths
from reference.families import NEAREST_RATIO, marks

ATOMS, WORTH = ("rows", "blocks", "sketch", "auto"), 1.5  # squared prices that a bit has to save
LEAST = 1000  # entries that an offset is fitted on


class Coder:
    """Offsets by coding step, and, where asked for, the sums that they are fitted by."""

    def __init__(self, offsets, rounds=False, gathers=False, least=NEAREST_RATIO):
        self.offsets, self.rounds, self.least = offsets, rounds, least
        self.sums = np.zeros((len(STEPS), 2)) if gathers else None  # |q| - |y| of entries that are not 0, and their number

    def value(self, q, coding):
        return q - np.sign(q) * self.offsets[coding]

    def quantise(self, y, coding, reach, worth):
        """Values of y (atoms, entries), in steps, and bits; a bit is `worth` (atoms) squared steps."""
        pairs = duos_of(y)
        q = np.rint(pairs).astype(np.int64)
        if self.rounds:
            q = self._cheapest(pairs, q, coding, reach, worth)
        if self.sums is not None:
            self.sums[coding] += (np.abs(q) - np.abs(pairs))[q != 0].sum(), np.count_nonzero(q)
        bits = word_lengths(q, coding, y.shape[1], reach)
        return self.value(q, coding).reshape(len(y), -1)[:, :y.shape[1]], bits.sum(1)

    def _cheapest(self, y, q, coding, reach, worth):
        choices = []
        for first in (q[:, 0], q[:, 0] - np.sign(q[:, 0])):
            for second in (q[:, 1], q[:, 1] - np.sign(q[:, 1])):
                both = np.stack([first, second], 1)
                error = ((y - self.value(both, coding))**2).sum(1)
                choices.append((error + worth[:, None] * word_lengths(both, coding, 2 * y.shape[2], reach), both))
        best = np.argmin([cost for cost, _ in choices], 0)
        return np.choose(best[:, None], [both for _, both in choices])

    def fitted(self):
        sums, count = self.sums.T
        return np.where(count < LEAST, 0, sums / np.maximum(count, 1))


def family_of(family, price, coder):
    """Bits, kept atoms, and what each of their vectors decodes to."""
    kept = np.flatnonzero(family.amplitude >= coder.least * price)
    number, _ = classes_of(family.amplitude[kept] / price)
    content, decoded = 0.0, []
    for factor, square in zip(family.factors, family.squares[::-1]):
        last, x = factor is family.factors[-1], factor.vectors[kept]
        others = square[kept] if len(family.factors) > 1 else np.ones(len(kept))  # by which an error of the product is larger
        out = np.empty_like(x)
        for c in np.unique(number):
            of = np.flatnonzero(number == c)
            step = factor.steps[c] * (price if last else 1)
            values, bits = coder.quantise(x[of] / step, factor.coding[c], factor.reach[c],
                                          WORTH * price**2 / (step**2 * others[of]))
            out[of], content = values * step, content + bits.sum()
        decoded.append(out)
    frame = marks(len(family.amplitude), max(len(kept), 1)) + 38.5 if len(kept) else 0
    return content + len(kept) * (6 + family.beside) + frame, kept, decoded


def layer_of(layer, atoms, price, coder):
    """Bits and squared error of a layer."""
    found_in = layer.families(atoms) if layer.energy else []
    bits, out = 32.0 * (len(found_in) > 1), np.zeros(layer.shape)
    for family in found_in:
        found, kept, decoded = family_of(family, price, coder)
        bits += found
        if len(decoded) > 1:
            view = out.reshape(layer.shape[0], -1)
            pair = decoded if view.shape == layer.wide.shape else decoded[::-1]
            view += pair[0].T @ pair[1]
        else:
            whole = np.zeros_like(family.factors[0].vectors)
            whole[kept] = decoded[0]
            out += whole.ravel()[:layer.size].reshape(layer.shape)
    return bits, ((layer.x - out)**2).sum()


def model_of(model, atoms, price, coder):
    """Bits a parameter and what is left."""
    bits, left = model.head, 0.0
    for layer in model.layers:
        own = layer.cheapest(price, 3, nearest=True)[2] if atoms == "auto" and layer.energy else atoms
        found = layer_of(layer, own, price, coder)
        bits, left = bits + found[0], left + found[1]
    return bits / model.size, left / model.energy


def left_at(model, atoms, rate, coder):
    """What is left at so many bits: between the two nearest of a few prices."""
    found, price = [], model.predict(f"atomo:bits={rate},atoms={atoms},content=nearest").price
    for _ in range(5):
        bits, left = np.log(model_of(model, atoms, price, coder))
        found.append((bits, left, math.log(price)))
        found.sort(key=lambda one: abs(one[0] - math.log(rate)))
        slope = -1.2
        if len(found) > 1 and found[0][2] != found[1][2]:
            slope = min(max((found[1][0] - found[0][0]) / (found[1][2] - found[0][2]), -4), -0.4)
        if abs(found[0][0] - math.log(rate)) < 0.005:
            break
        price = math.exp(found[0][2] + (math.log(rate) - found[0][0]) / slope)
    (b0, l0, _), (b1, l1, _) = found[0], found[min(1, len(found) - 1)]
    slope = min(max((l1 - l0) / (b1 - b0), -6), -0.2) if abs(b1 - b0) > 1e-4 else -1
    return math.exp(l0 + slope * (math.log(rate) - b0))


def fit(models, rates):
    gathers = Coder(np.zeros(len(STEPS)), gathers=True)
    for model in models:
        for atoms in ATOMS[:3]:
            for rate in rates:
                model_of(model, atoms, model.predict(f"atomo:bits={rate},atoms={atoms},content=nearest").price, gathers)
    return gathers.fitted()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gradients", nargs="+", metavar="GRADIENT")
    parser.add_argument("--fit", nargs="+", default=[], metavar="GRADIENT")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 0.5, 0.25, 0.125], metavar="BITS")
    parser.add_argument("--offsets", action="store_true")
    options = parser.parse_args()
    models = {path: Model(captures.read_tensors(path)) for path in options.gradients + options.fit}
    fitted = fit([models[path] for path in options.fit or options.gradients], options.rates)
    if options.offsets:
        for step, d in enumerate(STEPS):
            print(f"{step:2} {d:6.3f} {32 * fitted[step]:6.2f} / 32")
    coders = (Coder(np.zeros(len(STEPS))), Coder(fitted), Coder(OFFSETS, rounds=True), Coder(OFFSETS, least=1.0))
    print(f"{'gradient':24} {'atoms':7} {'bits':>6} {'left':>9} {'levels':>9} {'fitted':>9} {'rounding':>9} {'from 1':>9}")
    for path in options.gradients:
        for atoms in ATOMS:
            for rate in options.rates:
                left = left_at(models[path], atoms, rate, Coder(OFFSETS))
                shares = " ".join(f"{left_at(models[path], atoms, rate, other) / left:9.3f}" for other in coders)
                print(f"{path[-24:]:24} {atoms:7} {rate:6g} {left:9.3g} {shares}", flush=True)


if __name__ == "__main__":
    main()
