"""Stores whose workers do not go in step: does the CNN still learn, and who waits for whom?

`accuracy`: the CNN of examples/ with 4 workers, dist_async against dist_sync after the same epochs.
`throughput`: 4 workers whose slow one wanders (at clock c, worker c mod 4 computes 5 times as
long), dist_ssp with staleness 3 against dist_sync. Computing is played by sleeping: the processes
share the cores of one machine, and would hold each other up otherwise.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

ROOT = harness.HERE.parent
WORKERS, SERVERS, STALENESS = 4, 2, 3
SLOWER = 5  # times
MOST_LOST = 0.015  # of accuracy
LEAST_GAIN = 1.5  # in throughput
EPOCHS, SEEDS = 20, (0, 1, 2)
CLOCKS, COMPUTE_S, ELEMENTS, PASSES = 200, 0.01, 16_384, 3


def launch(*words: str, servers: int = SERVERS) -> str:
    """Run a program on all workers of a new cluster; return what they printed."""
    command = [sys.executable, "-m", "asyncps", "launch", "-n", str(WORKERS), "-s", str(servers)]
    done = subprocess.run(
        [*command, "--", sys.executable, *words], env=harness.own_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
        raise harness.ClusterFailedError(f"{' '.join(words)} failed with {done.returncode}")
    return done.stdout


# ------------------------------------------------------------------------------------- accuracy


def accuracy_of(kind: str, seed: int) -> float:
    """Of the CNN on MNIST's 5,000 images, after its last epoch."""
    script = str(ROOT / "examples" / "mnist_cnn.py")
    text = launch(script, "--no-progress", "--epochs", str(EPOCHS), "--kv-store", kind,
                  "--seed", str(seed))
    found = re.search(r"Final evaluation accuracy = ([0-9.]+)", text)
    harness.require(found, f"{kind} told no accuracy")
    assert found is not None
    return float(found[1])


def compare_accuracy(bench: harness.Bench) -> bool:
    """Tell whether dist_async learns as well as dist_sync."""
    found: dict[str, list[float]] = {"dist_sync": [], "dist_async": []}
    for seed in SEEDS:
        for kind, values in found.items():
            values.append(accuracy_of(kind, seed))
            rec = {"op": kind, "case": "cnn", "servers": SERVERS, "workers": WORKERS,
                   "epochs": EPOCHS, "seed": seed, "accuracy": values[-1], "verified": True}
            bench.keep(rec)
            text = f"free     {kind:18} cnn       seed {seed}: accuracy {values[-1]:.4f}"
            print(text, flush=True)
    means = {kind: float(np.mean(values)) for kind, values in found.items()}
    lost = means["dist_sync"] - means["dist_async"]
    bench.keep({"op": "accuracy", "case": "cnn", "servers": SERVERS, "workers": WORKERS,
                "lost": lost, "limit": MOST_LOST, **means})
    print(f"free     accuracy: {lost * 100:.2f} points lost, at most {MOST_LOST * 100:g}")
    return lost <= MOST_LOST


# ----------------------------------------------------------------------------------- throughput


def work(kind: str, clocks: int, compute_s: float, folder: str) -> None:
    """One worker: computes, pushes, pulls; checks each value; writes how long it took."""
    import asyncps

    options: dict[str, Any] = {"staleness": STALENESS} if kind == "dist_ssp" else {}
    with asyncps.create(kind, **options) as store:
        rank, workers, bound = store.rank, store.num_workers, options.get("staleness", 0)
        gradient, out = np.ones(ELEMENTS, "f4"), np.empty(ELEMENTS, "f4")
        store.init("w", np.zeros(ELEMENTS, "f4"))
        store.set_optimizer("test", rescale_grad=1.0)
        store.barrier()
        start = time.perf_counter()
        for clock in range(1, clocks + 1):
            time.sleep(compute_s * (SLOWER if clock % workers == rank else 1))
            store.pushpull("w", gradient, out=out)
            # It has all of its own pushes, and of the others all but the last `bound`.
            least = clock + (workers - 1) * max(0, clock - bound)
            harness.require(out.min() == out.max() >= least, f"clock {clock}: {out} < {least}")
        store.barrier()
        seconds = time.perf_counter() - start
        harness.require((store.pull("w") == workers * clocks).all(), "a push was lost or doubled")
        Path(folder, f"{rank}.json").write_text(json.dumps(seconds))


def seconds_of(kind: str, clocks: int, compute_s: float) -> float:
    """From the first clock of the first worker to the last of the last."""
    with tempfile.TemporaryDirectory() as folder:
        launch(__file__, "--work", kind, str(clocks), str(compute_s), folder, servers=1)
        return max(json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS))


def compare_throughput(bench: harness.Bench) -> bool:
    """Tell whether dist_ssp gains enough."""
    clocks, compute_s, passes = (8, 0.001, 1) if bench.smallest else (CLOCKS, COMPUTE_S, PASSES)
    gains = []
    for number in range(passes):
        took = {}
        for kind in ("dist_sync", "dist_ssp"):
            took[kind] = seconds_of(kind, clocks, compute_s)
            rate = WORKERS * clocks / took[kind]
            bench.keep({"op": kind, "case": "wandering", "servers": 1, "workers": WORKERS,
                        "pass": number, "clocks": clocks, "compute_s": compute_s,
                        "median_s": took[kind] / clocks, "steps_per_s": rate, "verified": True})
            print(f"free     {kind:18} wandering {rate:8.1f} steps/s of all workers", flush=True)
        gains.append(took["dist_sync"] / took["dist_ssp"])
    gain = float(np.median(gains))
    bench.keep({"op": "throughput", "case": "wandering", "servers": 1, "workers": WORKERS,
                "gain": gain, "gains": gains, "limit": LEAST_GAIN, "staleness": STALENESS})
    print(f"free     throughput: {gain:.2f} times dist_sync, at least {LEAST_GAIN:g}")
    return gain >= LEAST_GAIN


def main(argv: list[str] | None = None) -> int:
    """1 when a target is missed; the smallest form checks values only, and no accuracy."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--work"]:
        work(words[1], int(words[2]), float(words[3]), words[4])
        return 0
    bench = harness.Bench("free", __doc__.splitlines()[0], argv)
    good = compare_throughput(bench)
    if bench.smallest:
        return 0
    return 0 if compare_accuracy(bench) and good else 1


if __name__ == "__main__":
    sys.exit(main())
