"""SINGA's table: what each way of DistOpt learns, and PyTorch in one process beside it.

    python bench/distopt.py --epochs 10                       MNIST's 5,000
    python bench/distopt.py --dataset fashion --epochs 8 --out F   the full Fashion-MNIST
    python bench/distopt.py --ways torch,torch-he             PyTorch's (bench/peers/setup.sh torch)
    python bench/distopt.py --table F ...                     the tables of records

Two workers with batches of 64, or one process with 128; learning rate .005, momentum .9, weight
decay 1e-5. `torch` begins with PyTorch's initial weights and `torch-he` with those of the example.
Accuracies do not depend on what else the machine does; no time is taken.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import harness
from compare import records

sys.path.insert(0, str(harness.PEERS))
import procs

WAYS = ["plain", "half", "partialUpdate", "sparseTopK", "sparseThreshold"]
TORCH = {"torch": "torch", "torch-he": "he"}
SCRIPT = harness.HERE.parent / "examples" / "mnist_distopt.py"
POINTS = 1.0  # a way may be so far behind plain
# PyTorch's accuracies that the targets name, by data set and epochs.
NAMED = {"fashion": {1: 0.761, 6: 0.867, 8: 0.879}, "mnist": {10: 0.922}}


def command(way: str, told: argparse.Namespace, seed: int) -> list[str]:
    """One training."""
    shared = ["--dataset", told.dataset, "--epochs", str(told.epochs), "--seed", str(seed),
              "--lr", "0.005"]
    if way in TORCH:
        return [procs.peer_python("torch"), str(harness.PEERS / "torch_singa.py"), *shared,
                "--init", TORCH[way]]
    return [sys.executable, str(SCRIPT), "-w", "2", "--batch-size", "64", "--momentum", "0.9",
            "--wd", "1e-5", "--dist-option", way, "--spars", "0.05", "--no-progress", *shared]


def learned(printed: str) -> list[float]:
    """The accuracies after each epoch of what a training printed."""
    lines = printed.strip().splitlines()
    if lines and lines[-1].startswith("["):
        return [float(each) for each in json.loads(lines[-1])]
    return [float(each) for each in re.findall(r"Evaluation accuracy = ([0-9.]+)", printed)]


def train(bench: harness.Bench) -> int:
    """Train each way with each seed; return how many trainings failed."""
    told, failed = bench.options, 0
    for way in told.ways.split(","):
        for seed in range(told.seeds):
            done = subprocess.run(
                command(way, told, seed), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
                env={**harness.own_environment(), "OMP_NUM_THREADS": "1"}, check=False)
            found = learned(done.stdout)
            if done.returncode or len(found) != told.epochs:
                print(f"FAILED {way}, seed {seed}: {done.stdout[-1500:]}", file=sys.stderr)
                failed += 1
                continue
            bench.keep({"op": way, "case": "cnn", "dataset": told.dataset, "seed": seed,
                        "epochs": told.epochs, "after_each_epoch": found})
            print(f"{way:16} {told.dataset}, seed {seed}: " +
                  " ".join(f"{100 * each:.2f}" for each in found), flush=True)
    return failed


def table(paths: list[Path]) -> None:
    """Print the means over seeds after each epoch, and what was to hold after the last."""
    found: dict[tuple[str, int], dict[str, list[list[float]]]] = defaultdict(
        lambda: defaultdict(list))
    for path in paths:
        for rec in records(path):
            if rec.get("bench") == "distopt":
                found[rec["dataset"], rec["epochs"]][rec["op"]].append(rec["after_each_epoch"])
    for (dataset, epochs), ways in sorted(found.items()):
        print(f"\n{dataset}, percent, means over seeds\n\n| way | seeds | "
              + " | ".join(str(n + 1) for n in range(epochs)) + " | last, each seed | points | |")
        print("|---" * (epochs + 5) + "|")
        plain = ways.get("plain")
        for way, runs in ways.items():
            means = [100 * statistics.fmean(each) for each in zip(*runs, strict=True)]
            points, verdict = "", ""
            if plain and way in WAYS[1:]:
                behind = means[-1] - 100 * statistics.fmean(run[-1] for run in plain)
                points, verdict = f"{behind:+.2f}", "holds" if behind >= -POINTS else "MISSED"
            each = ", ".join(f"{100 * run[-1]:.2f}" for run in runs)
            print(f"| {way} | {len(runs)} | " + " | ".join(f"{mean:.2f}" for mean in means)
                  + f" | {each} | {points} | {verdict} |")
        for epoch, value in NAMED.get(dataset, {}).items():
            if plain and epoch <= epochs:
                mean = 100 * statistics.fmean(run[epoch - 1] for run in plain)
                print(f"\nplain after {epoch}: {mean:.2f}; PyTorch as named: {100 * value:.1f}")


def options(parser: argparse.ArgumentParser) -> None:
    """What this benchmark takes more."""
    parser.add_argument("--dataset", default="mnist", choices=sorted(NAMED))
    parser.add_argument("--epochs", type=count, default=10)
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--ways", default=",".join(WAYS), help=", ".join([*WAYS, *TORCH]))
    parser.add_argument("--table", type=Path, nargs="+", help="of these records; nothing is run")


def count(text: str) -> int:
    """A whole number above 0."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for."""
    bench = harness.Bench("distopt", __doc__.splitlines()[0] if __doc__ else "", argv, options)
    told = bench.options
    if told.table:
        table(told.table)
        return 0
    if bench.smallest:
        told.epochs = told.seeds = 1
    if unknown := set(told.ways.split(",")) - {*WAYS, *TORCH}:
        raise SystemExit(f"--ways: {', '.join(sorted(unknown))} is none of {[*WAYS, *TORCH]}")
    failed = train(bench)
    if bench.out:
        table([bench.out])
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
