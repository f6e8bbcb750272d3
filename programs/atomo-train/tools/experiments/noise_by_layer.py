# SPDX-License-Identifier: Apache-2.0
"""What the noise in each layer's messages costs, where a transformer is trained in rounds of local steps.

At the end of each round what the workers changed is averaged as it is, and as their messages say it. The weights take the exact
mean, but of one layer the decoded one: so much worse as they are on the test, so much does that layer's noise cost, there and
then. The training goes on with what was decoded. A policy may give more bits to the layers of which it costs most.
"""

import argparse
import sys

from experiments.outer import INNER, MATRICES
from experiments.reports import Report, figure, markdown
from experiments.trainings import ROOT, LiveLine
from simulated import pool

ALL, NORMS = "all layers", "all norms"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--policy", default=MATRICES.format("trellis:bits=0.2,states=4096"), help="its text (default: '%(default)s')")
    add("--inner", choices=INNER, default="muon", help="optimiser of the local steps")
    add("--local-steps", type=int, default=100, help="of a round")
    add("--steps", type=int, default=600)
    add("--lr", type=float, default=0.004)
    add("--batch", type=int, default=8, help="of one worker")
    add("--workers", type=int, default=4)
    add("--seed", type=int, default=1)
    add("--samples", type=int, default=500, help="of the test, for each cost")
    add("--data", default="", help="as the trainer has it; its own default when left out")
    add("--quick", action="store_true", help="a few steps, to see that it works")
    add("--out", help="written: OUT.json, OUT.md and OUT.png (default: bench/results/noise-by-layer, with --quick "
        "build/reproduce/noise-by-layer-quick)")
    options = parser.parse_args()
    if options.samples < 1:
        parser.error(f"--samples: {options.samples} is below 1")
    if options.quick:
        options.local_steps, options.steps, options.batch, options.workers, options.samples = 1, 2, 2, 2, 8
    name = "build/reproduce/noise-by-layer-quick" if options.quick else "bench/results/noise-by-layer"
    options.out = options.out or str(ROOT / name)
    pool.check(parser)
    return options


def layer_of(name):
    return NORMS if "norm" in name else name.removesuffix(".weight").removesuffix(".bias")


class Costs:
    """An outer step that first looks at what it is given: `of_rounds` has, for each round, a row of each layer."""

    def __init__(self, training, samples, line):
        self.training, self.line, self.of_rounds = training, line, []
        self.local, self.outer = training.algorithm, training.algorithm.outer
        self.samples = min(samples, training.data.samples("test"))
        self.layers = {ALL: list(training.fleet.layers)}
        for name in training.fleet.layers:
            self.layers.setdefault(layer_of(name), []).append(name)

    def step(self, agreed, decoded, numbers):
        exact = self.local.change.mean(0, keepdim=True)
        without, rows = self._score(agreed - exact), []
        for layer, names in self.layers.items():
            self.line.update(f"round {len(self.of_rounds) + 1}: {layer}")
            mixed = exact.clone()
            parts, noisy = self.training.fleet.views(mixed), self.training.fleet.views(decoded)
            noise = sum(float((noisy[name] - parts[name]).square().sum()) for name in names)
            energy = sum(float(parts[name].square().sum()) for name in names)
            for name in names:
                parts[name].copy_(noisy[name])
            rows.append({"layer": layer, "entries": sum(parts[name].numel() for name in names), "energy_of_mean": energy,
                         "energy_of_noise": noise, "cost": self._score(agreed - mixed) - without})
        self.of_rounds.append({"without_noise": without, "layers": rows})
        self.outer.step(agreed, decoded, numbers)

    def _score(self, weights):
        """On the test. The workers have these weights until they take those of the outer step."""
        self.training.fleet.weights.copy_(weights.expand_as(self.training.fleet.weights))
        return self.training.score(self.samples)[0]


def by_layer(rounds):
    """The rows of each layer, one a round."""
    return list(zip(*(each["layers"] for each in rounds)))


def table(rounds):
    header = ["layer", "entries", "noise, of the mean's energy", *(f"cost, round {k + 1}" for k in range(len(rounds)))]
    lines = []
    for rows in by_layer(rounds):
        energy = sum(row["energy_of_mean"] for row in rows)
        noise = sum(row["energy_of_noise"] for row in rows) / energy if energy else 0
        lines.append([rows[0]["layer"], f"{rows[0]['entries']:,}", f"{noise:.2f}", *(f"{row['cost']:.4f}" for row in rows)])
    return markdown(header, lines)


def plot(rounds, title):
    layers = [rows for rows in by_layer(rounds) if rows[0]["layer"] != ALL]
    drawn, axes = figure(figsize=(8, 6))
    before = [0.0] * len(layers)
    for k in range(len(rounds)):
        costs = [max(rows[k]["cost"], 0) for rows in layers]
        axes.barh([rows[0]["layer"] for rows in layers], costs, left=before, label=f"round {k + 1}")
        before = [left + cost for left, cost in zip(before, costs)]
    axes.invert_yaxis()
    axes.set_xlabel("what its noise costs, bits a character, rounds one behind the other")
    axes.set_title(title)
    axes.grid(True, axis="x", alpha=0.3)
    axes.legend(fontsize="small")
    return drawn


def main():
    options = arguments()
    import atomo
    from simulated.training import Refusal, Training, f32_as_it_is, name_of
    f32_as_it_is()
    report, ends = Report(options), []
    words = ("--algorithm", "local", "--model", "transformer", "--optimizer", options.inner, "--local-steps", options.local_steps,
             "--outer-optimizer", "sgd", "--outer-lr", 1, "--policy", options.policy, "--lr", options.lr, "--batch", options.batch,
             "--steps", options.steps, "--warmup", options.steps // 6, "--seed", options.seed,
             *(("--data", options.data) if options.data else ()))
    line = LiveLine("noise by layer")
    try:
        training = Training(options.workers, words, ends.append)
        costs = training.algorithm.outer = Costs(training, options.samples, line)
        training.run()
    except (Refusal, atomo.Error) as error:
        line.finish(f"failed: {error}")
        return 1
    end = ends[-1]
    line.finish(f"test bits a character {end['bits_per_character']:.3f}, {end['bytes_per_step']:.0f} bytes a step")
    text = (f"What noise costs, bits a character of {costs.samples:,} test samples, at the end of each round of {options.local_steps} "
            f"steps: a transformer of 3.3 M parameters on CMake's manual, {options.workers} workers, batch {options.batch} each, "
            f"{INNER[options.inner]}, rate {options.lr:g}, {options.steps} steps, a plain average, seed {options.seed}. The "
            f"policy is `{options.policy}`. The training ends at {end['bits_per_character']:.3f}. "
            f"{report.simulated_place([name_of(training.device)])}\n\n{table(costs.of_rounds)}")
    report.publish(text, {"simulated_on": name_of(training.device), "end": end, "rounds": costs.of_rounds},
                   plot(costs.of_rounds, f"{INNER[options.inner]}, rounds of {options.local_steps}"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
