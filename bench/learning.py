"""What the CNN of examples/ learns with each codec: after the same epochs, and over seconds."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import linked
import links
from codectable import CODECS, TRAINED, Spec
from compare import records

from asyncps.errors import NotYetError
from asyncps.tensor.codecs import options as words_of_codecs

SCRIPT = harness.HERE.parent / "examples" / "mnist_cnn.py"
WORKERS, SERVERS = 2, 1  # of accuracies; over a link one of each
NUMBER = r"([0-9.]+)"


def words(spec: Spec) -> str:
    """As the command line of the example has it."""
    options = (f"{name}={value if isinstance(value, str) else json.dumps(value)}"
               for name, value in spec.items() if name != "type")
    return ",".join([spec["type"], *options])


def trained(codecs: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each codec that is there, with its words for the example; what is not is told."""
    for name in codecs:
        spec = TRAINED.get(name, CODECS[name])
        try:
            if spec is not None:
                words_of_codecs.checked(spec)
        except NotYetError as error:
            print(f"compression {name:16} left out: {error}", flush=True)
            continue
        more = [] if spec is None else ["--compression", words(spec)]
        if spec is not None and spec["type"] == "dgc":  # which has the momentum
            more += ["--momentum", "0"]
        yield name, more


def command(told: argparse.Namespace, seed: int, more: list[str]) -> list[str]:
    """One training."""
    return [sys.executable, str(SCRIPT), "--no-progress", "--epochs", str(told.epochs),
            "--dataset", told.dataset, "--seed", str(seed), *more]


def curve(text: str) -> tuple[list[float], list[float]]:
    """Seconds since the begin, and accuracy, after each epoch of what the example printed."""
    found = re.findall(rf"Evaluation accuracy = {NUMBER}, Elapsed Time = {NUMBER}s", text)
    harness.require(found, f"no accuracy was told: {text[-500:]}")
    seconds = list(itertools.accumulate(float(pair[1]) for pair in found))
    return seconds, [float(pair[0]) for pair in found]


def accuracies(bench: harness.Bench, codecs: list[str]) -> int:
    """Train with each codec and seed; how many trainings failed."""
    told, failed = bench.options, 0
    for seed in range(told.seeds):
        for name, more in trained(codecs):
            launch = [sys.executable, "-m", "asyncps", "launch", "-n", str(WORKERS),
                      "-s", str(SERVERS), "--", *command(told, seed, more)]
            done = subprocess.run(
                launch, env=harness.own_environment(), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False,
            )
            if done.returncode:
                print(f"FAILED {name}: {done.stdout[-2000:]}", file=sys.stderr)
                failed += 1
                continue
            learned = curve(done.stdout)[1]
            bench.keep({"op": name, "case": "cnn", "dataset": told.dataset, "epochs": told.epochs,
                        "seed": seed, "workers": WORKERS, "servers": SERVERS,
                        "accuracy": learned[-1], "after_each_epoch": learned})
            print(f"compression {name:16} {told.dataset}, {told.epochs} epochs, seed {seed}: "
                  f"accuracy {learned[-1]:.4f}", flush=True)
    return failed


def over_link(work: list[str], link: links.Link) -> str:
    """What a training prints whose worker stands at the far end of a link."""
    with tempfile.TemporaryDirectory() as folder, links.opened(link) as ends:
        out = Path(folder) / "printed"
        shell = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", str(out)]
        linked.run_roles([*shell, *work], 1, 1, ends)
        return out.read_text()


def plot(bench: harness.Bench, codecs: list[str]) -> int:
    """Train with each codec over the first of --links, and draw; how many trainings failed.

    Curves that the file of --out has already are drawn too: codecs can be run one at a time.
    """
    told = bench.options
    link = links.LINKS[(told.links or "100mbit").split(",")[0]]
    if reason := links.why_not(link):
        print(f"compression {link.name} left out: {reason}", flush=True)
        return 0
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install 'asyncps[examples]'")
    failed = 0
    curves: dict[str, tuple[list[float], list[float]]] = {
        rec["op"]: (rec["seconds"], rec["learned"])
        for rec in (records(bench.out) if bench.out else ())
        if rec.get("link") == link.name and rec.get("dataset") == told.dataset
    }
    for name, more in trained(codecs):
        try:
            curves[name] = curve(over_link(command(told, 0, more), link))
        except harness.ClusterFailedError as error:
            print(f"FAILED {name}: {error}", file=sys.stderr)
            failed += 1
            continue
        seconds, learned = curves[name]
        bench.keep({"op": name, "case": "cnn", "link": link.name, "dataset": told.dataset,
                    "seconds": seconds, "learned": learned})
        print(f"compression {name:16} {link.name}: accuracy {learned[-1]:.4f} after "
              f"{seconds[-1]:.1f} s", flush=True)
    if curves:
        draw(curves, f"{told.dataset} over {link.name}, 1 worker, 1 server", told.plot)
        print(f"drawn in {told.plot}")
    return failed


def draw(curves: dict[str, Any], title: str, path: Path) -> None:
    """A PNG: one line a codec, a point an epoch."""
    from matplotlib.figure import Figure  # without pyplot: it needs no screen

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for i, (name, (seconds, learned)) in enumerate(curves.items()):
        axes.plot(seconds, learned, marker="osv^D"[i // 10 % 5], label=name,
                  linestyle="--" if i >= 10 else "-")
    axes.set(xlabel="seconds, evaluation included", ylabel="accuracy of evaluation", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)
