# SPDX-License-Identifier: Apache-2.0
"""Ways to train side by side: each at several learning rates, and shown at the best of them."""

import dataclasses

from experiments.reports import Report, figure, label, markdown, mean, spread, with_spread
from experiments.series import NOT_TRAINED, Row, Series, add_simulation_options, tests_of
from experiments.trainings import MEASURES, UNCOMPRESSED

# Which of two scores is the better one, by what the trainer calls its measure.
BETTER = {"accuracy": max, "bits_per_character": min}
COLUMNS = 3  # of a plot


@dataclasses.dataclass(frozen=True)
class Arm:
    """A way to train, at one setting. Arms of one setting share a plot; those without one are in all plots."""
    kind: str  # as --arms has it
    arguments: tuple  # what it adds to the trainer's command line, or has in place of what all have; the rate left out
    rates: tuple
    setting: str = ""
    size: str = ""  # of its messages, where arms of one kind and setting differ in it

    def name(self):
        """The same at every setting."""
        return f"{self.kind}, {self.size}" if self.size else self.kind

    def title(self):
        return f"{self.name()}, {self.setting}" if self.setting else self.name()

    def row_name(self, rate):
        return f"{self.title()}, rate {rate:g}"

    def codec(self):
        """Or the policy; of an algorithm that has codecs of its own, its options."""
        given = by_option(self.arguments)
        return " ".join(map(str, given.get("--codec") or given.get("--policy") or self.arguments))


def by_option(words):
    """A command line's values by option; a flag has none."""
    found = {}
    for word in words:
        if str(word).startswith("--"):
            values = found[word] = []
        else:
            values.append(word)
    return found


def uncompressed(rates):
    return Arm("uncompressed", ("--codec", UNCOMPRESSED), rates)


def add_arm_options(parser, kinds, rates, steps=None, batch=None):
    """`kinds` of the arms there are; `rates`: their own, as the help tells them. Steps and batch have to be given where
    they are None."""
    parser.add_argument("--arms", nargs="+", choices=kinds, default=list(kinds), metavar="ARM",
                        help=f"to train, of: {', '.join(kinds)} (default: all)")
    parser.add_argument("--lr", type=float, nargs="+", help=f"rates that each arm is trained with (default: {rates})")
    parser.add_argument("--steps", type=int, default=steps, required=steps is None)
    parser.add_argument("--batch", type=int, default=batch, required=batch is None, help="of one worker")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clip-norm", type=float, default=0, help="bound on the norm of every worker's gradient, of all arms (default: none)")
    parser.add_argument("--decay-at", type=float, metavar="SHARE", help="of the run, from which on rates fall along a line to 0, of all "
                        "arms (default: they fall along a cosine)")
    parser.add_argument("--tests", type=int, default=6, help="tests on the way, for the plot")
    add_simulation_options(parser)


def shorten(options, steps):
    """What --quick leaves of the options of arms."""
    options.workers, options.steps, options.batch, options.tests = 2, steps, 2, 2


def chosen(options, arms):
    """The arms that were asked for, at the rates that were asked for; with --quick at one."""
    last = 1 if options.quick else None
    return [dataclasses.replace(arm, rates=tuple(options.lr or arm.rates)[:last])
            for arm in arms if arm.kind in options.arms]


def rows(options, arms, common):
    """A row for each arm and rate. `common`: what all of them have on the trainer's command line."""
    def arguments(arm):
        return tuple(word for option, values in (by_option(common) | by_option(arm.arguments)).items() for word in (option, *values))

    return [Row(arm.row_name(rate), options.workers, options.steps, options.tests, (*arguments(arm), "--lr", repr(rate)))
            for arm in arms for rate in arm.rates]


def scores(outcome, measure):
    """Of the last tests, one a seed."""
    return [tests_of(events)[-1][measure] for events in outcome.runs]


class Comparison:
    """Outcomes of arms. `measure`: the trainer's name of what its tests tell."""

    def __init__(self, arms, outcomes, measure):
        self.arms, self.outcomes, self.measure = arms, outcomes, measure

    def outcome(self, arm, rate):
        return self.outcomes[arm.row_name(rate)]

    def best_rate(self, arm):
        """None where the arm failed at every rate."""
        ends = {rate: mean(scores(self.outcome(arm, rate), self.measure))
                for rate in arm.rates if not self.outcome(arm, rate).failed}
        return BETTER[self.measure](ends, key=ends.get) if ends else None

    def best(self):
        """[(arm, its outcome at its best rate)] of those that did not fail."""
        found = [(arm, self.best_rate(arm)) for arm in self.arms]
        return [(arm, self.outcome(arm, rate)) for arm, rate in found if rate is not None]

    def cell(self, arm, rate):
        if rate not in arm.rates:
            return ""
        outcome = self.outcome(arm, rate)
        _, factor, decimals, _ = MEASURES[self.measure]
        if outcome.failed:
            return NOT_TRAINED if outcome.failed == NOT_TRAINED else "failed"
        return with_spread([factor * end for end in scores(outcome, self.measure)], decimals)

    def trained(self, arm):
        """Whether it was at any rate, be it in vain."""
        return any(self.outcome(arm, rate).failed != NOT_TRAINED for rate in arm.rates)

    def table(self):
        """A line an arm; arms of which nothing was trained are named below it."""
        rates = sorted({rate for arm in self.arms for rate in arm.rates})
        name, _, _, unit = MEASURES[self.measure]
        lines = []
        for arm in filter(self.trained, self.arms):
            best, size, ratio = self.best_rate(arm), "", ""
            if best is not None:
                ends = [events[-1] for events in self.outcome(arm, best).runs]
                size, ratio = (mean([end[key] for end in ends]) for key in ("bytes_per_step", "ratio"))
                size, ratio = f"{size:,.0f}", f"{ratio:.1f}"
            lines.append([arm.title(), f"`{arm.codec()}`", size, ratio, "" if best is None else f"{best:g}",
                          self.cell(arm, arm.rates[0] if best is None else best), *(self.cell(arm, rate) for rate in rates)])
        score = f"{name}{', ' + unit if unit else ''}"
        shown = markdown(["arm", "codec", "bytes a step", "ratio", "best rate", score, *(f"rate {rate:g}" for rate in rates)],
                         lines)
        missing = "; ".join(arm.title() for arm in self.arms if not self.trained(arm))
        return f"{shown}\n\nNot trained at any rate: {missing}." if missing else shown

    def simulated_on(self):
        """The devices that simulated trainings ran on."""
        return sorted({events[0]["simulated_on"] for outcome in self.outcomes.values() for events in outcome.runs})

    def results(self):
        return [{"name": arm.row_name(rate), "arm": arm.name(), "setting": arm.setting, "codec": arm.codec(), "rate": rate,
                 "best": rate == self.best_rate(arm), "failed": self.outcome(arm, rate).failed,
                 "runs": self.outcome(arm, rate).runs} for arm in self.arms for rate in arm.rates]

    def plot(self, title):
        """A curve of each arm at its best rate over steps, a plot a setting; with several, first their ends over bytes."""
        settings = list(dict.fromkeys(arm.setting for arm in self.arms if arm.setting)) or [""]
        plots = len(settings) + (len(settings) > 1)
        columns = min(plots, COLUMNS)
        drawn, grid = figure(-(-plots // columns), columns, figsize=(6.5 * columns, 5 * -(-plots // columns)), squeeze=False)
        free = list(grid.flat)
        for axes in free[plots:]:
            axes.set_axis_off()
        names = list(dict.fromkeys(arm.name() for arm in self.arms))
        look = {name: {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
                for number, name in enumerate(names)}
        if len(settings) > 1:
            self.draw_ends(free.pop(0), look, title)
        for setting in settings:
            self.draw_curves(free.pop(0), look, setting, setting or title)
        return drawn

    def draw_ends(self, axes, look, title):
        name, factor, *_ = MEASURES[self.measure]
        unnamed = set(look)
        for arm, outcome in self.best():
            ends = [factor * end for end in scores(outcome, self.measure)]
            size = mean([events[-1]["bytes_per_step"] for events in outcome.runs])
            axes.errorbar(size, mean(ends), yerr=spread(ends), color=look[arm.name()]["color"], linestyle="none", capsize=3,
                          marker="o" if look[arm.name()]["linestyle"] == "-" else "s",
                          label=arm.name() if arm.name() in unnamed else None)
            unnamed.discard(arm.name())
        axes.set_xscale("log")
        label(axes, "bytes a step that a worker sends (log scale)", f"{name} at the end, mean of seeds, best rate", title)

    def draw_curves(self, axes, look, setting, title):
        name, factor, *_ = MEASURES[self.measure]
        for arm, outcome in self.best():
            if arm.setting in ("", setting):
                tests = outcome.on_the_way()
                axes.plot([at[0]["steps"] for at in tests],
                          [factor * mean([event[self.measure] for event in at]) for at in tests],
                          label=f"{arm.name()}, rate {self.best_rate(arm):g}", **look[arm.name()])
        label(axes, "steps", f"{name} on the way, mean of seeds", title)


def compare(options, arms, common, measure, text, title):
    """Trains the arms that were asked for and writes what came of them. `text`: what was trained, for a reader of the
    table. Returns the exit status, 1 where an arm failed at every rate."""
    report, arms = Report(options), chosen(options, arms)
    if options.decay_at is None:
        text += " Rates fall along a cosine."
    else:
        common = (*common, "--schedule", "trapezoid", "--decay-at", options.decay_at)
        text += f" Rates stay until {options.decay_at:.3g} of the run and fall along a line to 0."
    if options.clip_norm:
        common = (*common, "--clip-norm", options.clip_norm)
        text += f" Every worker's gradient is clipped at a norm of {options.clip_norm:g}."
    found = Comparison(arms, Series(options, rows(options, arms, common)).run_all(), measure)
    note = (f"{text} Each arm is trained at each of its rates and shown at the best one, by the test itself. Bytes are those "
            f"of messages as one worker sent them. {report.seeds()}. ")
    facts = {"measure": measure}
    if options.simulate:
        facts["simulated_on"] = found.simulated_on()
        note += report.simulated_place(facts["simulated_on"])
    else:
        note += f"{report.place()}."
    report.publish(f"{note}\n\n{found.table()}", {**facts, "results": found.results()}, found.plot(title))
    return 1 if len(found.best()) < len(arms) else 0
