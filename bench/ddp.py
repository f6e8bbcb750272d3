#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares atomo's hooks for DistributedDataParallel with PyTorch's PowerSGD hook and with no compression.

    python3 bench/ddp.py --workers 4 --steps 800 --seeds 1 2 3

Everything runs in the same processes, in turn: for each seed all hooks train the same LeNet on the same batches. Bytes
are counted where they are handed to a collective, tables of lengths included, and weighed by what leaves a worker then:
PowerSGD's all-reduces pass everything on twice, in parts, and atomo sends every message to every other worker.
Needs PyTorch and atomo's Python package. Writes OUT.md, OUT.json and OUT.png.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import signal
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "python"), str(ROOT / "programs" / "atomo-train" / "tools")]

from experiments.reports import commit, machine, markdown, mean, save_figure, spread, write  # noqa: E402

PR_SET_PDEATHSIG = 1  # of prctl(2)
CODECS = ["atomo:bits=0.5", "atomo:bits=0.25", "atomo:bits=0.125"]
RANKS = [1, 2, 4]
RESIDUALS = [(1, "atomo:atoms=rows,bits=0.125"), (4, "atomo:atoms=rows,bits=0.125")]  # of atomo's PowerSGD without bias


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--codec", action="append", dest="codecs", metavar="SPEC",
                        help=f"may be repeated; else {CODECS}")
    parser.add_argument("--rank", action="append", dest="ranks", type=int, metavar="R",
                        help=f"of PowerSGD; may be repeated; else {RANKS}")
    parser.add_argument("--residual", action="append", dest="residuals", nargs=2, metavar=("R", "SPEC"),
                        help=f"rank and residuals' codec of atomo's PowerSGD; may be repeated; else {RESIDUALS}")
    parser.add_argument("--data", help="folder of the idx files; Debian's when left out")
    parser.add_argument("--out", default=str(ROOT / "bench/results/ddp"))
    options = parser.parse_args()
    for name in ("workers", "steps", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least 1")
    options.residuals = [(int(r), policy) for r, policy in options.residuals or RESIDUALS]
    options.codecs, options.ranks = options.codecs or CODECS, options.ranks or RANKS
    return options


def name_of(run):
    rest = f"and {run['residual']}" if run["residual"] else "and a memory"
    names = {"none": "all-reduce of f32", "powersgd": f"PyTorch's PowerSGD, rank {run['rank']}", "atomo": run["codec"],
             "atomo-powersgd": f"atomo's PowerSGD, rank {run['rank']} {rest}"}
    return names[run["hook"]]


def serve(rank, options, folder):
    """One process of the run; the first appends each outcome to FOLDER/runs as a line of JSON."""
    import ddp
    import torch
    import torch.distributed as dist

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with the process that began it
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.workers)
    data = ddp.load(*[options.data] if options.data else [])
    hooks = [{"hook": "none"}, *({"hook": "atomo", "codec": codec} for codec in options.codecs),
             *({"hook": "powersgd", "rank": r} for r in options.ranks),
             *({"hook": "atomo-powersgd", "rank": r} for r in options.ranks),
             *({"hook": "atomo-powersgd", "rank": r, "residual": policy} for r, policy in options.residuals)]
    for number, (seed, hook) in enumerate((seed, hook) for seed in options.seeds for hook in hooks):
        end = ddp.train(data, **hook, steps=options.steps, batch=options.batch, lr=options.lr, seed=seed)
        dist.barrier()
        if rank == 0:
            with open(f"{folder}/runs", "a") as file:
                file.write(json.dumps(end) + "\n")
            print(f"[{number + 1}/{len(hooks) * len(options.seeds)}] {name_of(end):60} seed {seed}  "
                  f"{100 * end['accuracy']:.2f}%  {end['handed_a_step']:,.0f} bytes handed a step  "
                  f"{end['ms_a_step']:.1f} ms a step", flush=True)
    dist.destroy_process_group()


def summarise(runs):
    """A row a hook, from its seeds; ratios are to the uncompressed row."""
    rows = {}
    for run in runs:
        rows.setdefault(name_of(run), []).append(run)
    plain = rows["all-reduce of f32"][0]
    result = []
    for name, of in rows.items():
        scores = [run["accuracy"] for run in of]
        wire = mean([run["wire_a_step"] for run in of])
        result.append({"name": name, "hook": of[0]["hook"], "handed_a_step": mean([run["handed_a_step"] for run in of]),
                       "wire_a_step": wire, "ratio": plain["wire_a_step"] / wire, "scores": scores,
                       "score": mean(scores), "score_spread": spread(scores),
                       "ms_a_step": mean([run["ms_a_step"] for run in of]),
                       "curve": [{"steps": points[0]["steps"], "accuracy": mean([p["accuracy"] for p in points])}
                                 for points in zip(*(run["curve"] for run in of))]})
    return result


def table(rows):
    header = ["hook", "bytes a step handed over", "that leave a worker", "ratio", "test accuracy", "ms a step"]
    body = []
    for r in rows:
        around = f" ± {100 * r['score_spread']:.2f}" if len(r["scores"]) > 1 else ""
        body.append([r["name"], f"{r['handed_a_step']:,.0f}", f"{r['wire_a_step']:,.0f}", f"{r['ratio']:.1f}",
                     f"{100 * r['score']:.2f}%{around}", f"{r['ms_a_step']:.1f}"])
    return markdown(header, body)


def note(options, began, load):
    host = machine()
    seeds = f"{len(options.seeds)} seeds (mean ± standard deviation)" if len(options.seeds) > 1 else "one seed"
    return " ".join([
        f"LeNet on Fashion-MNIST, DistributedDataParallel over gloo, {options.workers} workers,",
        f"batches of {options.batch}, {options.steps} steps, SGD with momentum 0.9, rate {options.lr:g}, {seeds}.",
        "PyTorch's PowerSGD has its hook's defaults: error feedback, warm start, the first 10 steps uncompressed, which the",
        "bytes of both PowerSGDs include; atomo's has a memory too, or sends what is left in the same step; its codecs",
        "have no memory of what they left out.",
        "Bytes handed over are what one worker gives to collectives; those that leave it follow from that: 2 (W-1)/W",
        "times for an all-reduce in a ring, W-1 times for messages that go to everyone.",
        f"Milliseconds are the median step's, all processes on {host['cores']} cores of an {host['processor']},",
        f"load {load:.1f} when it began, {began:%Y-%m-%d}."])


def plot(rows, options, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for hook, marker in (("none", "s"), ("atomo", "o"), ("powersgd", "^"), ("atomo-powersgd", "v")):
        of = [r for r in rows if r["hook"] == hook]
        axes.errorbar([r["wire_a_step"] / 1e3 for r in of], [100 * r["score"] for r in of],
                      [100 * r["score_spread"] for r in of], marker=marker, capsize=3, linestyle=":",
                      label={"none": "all-reduce of f32", "atomo": "atomo", "powersgd": "PyTorch's PowerSGD",
                             "atomo-powersgd": "atomo's PowerSGD"}[hook])
        for r in of:
            axes.annotate(r["name"], (r["wire_a_step"] / 1e3, 100 * r["score"]), fontsize="x-small", xytext=(4, 4),
                          textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("kilobytes a step that leave a worker (log scale)")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"LeNet on Fashion-MNIST, {options.workers} workers, {options.steps} steps")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path)


def main():
    options = arguments()
    from torch import multiprocessing

    began, load = datetime.datetime.now(), os.getloadavg()[0]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of each process that follows: all of them share the cores
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(serve, (options, folder), options.workers, start_method="spawn")
        runs = [json.loads(line) for line in pathlib.Path(folder, "runs").read_text().splitlines()]
    rows = summarise(runs)
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    text = note(options, began, load) + "\n\n" + table(rows)
    write(options.out + ".md", text + "\n")
    write(options.out + ".json", json.dumps({
        "date": began.isoformat(timespec="seconds"), "commit": commit(), "machine": {**machine(), "load": load},
        "options": {k: v for k, v in vars(options).items() if k != "out"}, "rows": rows, "runs": runs,
    }, indent=1) + "\n")
    plot(rows, options, options.out + ".png")
    print(f"\n{text}\n\ntable {options.out}.md, data {options.out}.json, plot {options.out}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
