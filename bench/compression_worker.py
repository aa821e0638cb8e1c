"""One worker of bench/compression.py: the same push-pull with every codec, in turns.

Each codec has a store of its own in one cluster, whose servers add what comes (optimizer `test`). A
round of a codec is one `pushpull` of all keys of the case. Checked: the first answer, by a model of
the codec; the bytes of what was encoded; and, after the timed rounds, that the weights and what is
kept make up all that was ever pushed.

Its argument is a JSON object: case, codecs, rounds (timed ones), out (a file).
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import codectable
import links
import numpy as np
from harness import require

import asyncps
from asyncps.errors import NotYetError

WARM_ROUNDS = 2
GRADIENTS_BYTES = 64 << 20  # of different gradients; larger cases push the same one again
DRAIN_ROUNDS = 2000  # at most; a top-k of 1% needs about 200


class Run:
    """One codec's store, and what was done with it.

    Raises:
      NotYetError: The codec is not there yet.
    """

    def __init__(self, name: str, case: str, stack: contextlib.ExitStack) -> None:
        self.name, self.spec = name, codectable.CODECS[name]
        self.store = store = stack.enter_context(asyncps.create("dist_sync", name=name))
        store.set_optimizer("test", rescale_grad=1.0)
        if self.spec is not None:
            store.set_gradient_compression(self.spec)
        shapes = codectable.CASES[case]
        self.keys = list(shapes)
        sets = max(1, min(4, GRADIENTS_BYTES // (4 * sum(map(math.prod, shapes.values())))))
        self.sets = [gradients(store.rank, i, list(shapes.values())) for i in range(sets)]
        self.outs = [np.zeros(shape, np.float32) for shape in shapes.values()]
        self.counts = [0] * sets
        self.times: list[float] = []
        self.moved: list[tuple[int, int]] = []
        store.init(self.keys, [np.zeros(shape, np.float32) for shape in shapes.values()])

    def round(self) -> float:
        """One pushpull of the next gradients; returns its seconds."""
        which = sum(self.counts) % len(self.sets)
        start = time.perf_counter()
        self.store.pushpull(self.keys, self.sets[which], out=self.outs)
        took = time.perf_counter() - start
        self.counts[which] += 1
        return took

    def timed(self) -> None:
        """One round, and what the link carried for it."""
        before = links.carried()
        self.times.append(self.round())
        after = links.carried()
        self.moved.append((after[0] - before[0], after[1] - before[1]))

    def check_first(self) -> None:
        """Every worker's first push, by the model of the codec; the first answer is their sum."""
        workers = self.store.num_workers
        shapes = [out.shape for out in self.outs]
        others = [gradients(rank, 0, shapes) for rank in range(workers)]
        for i, (key, out) in enumerate(zip(self.keys, self.outs, strict=True)):
            pushed = [other[i] for other in others]
            if self.spec is None or codectable.is_dense(self.spec, out.shape):
                good = np.allclose(out, np.sum(pushed, axis=0), rtol=1e-3 if self.pulls else 2e-6,
                                   atol=1e-6)
                require(good, f"{self.name} {key}: a dense answer is wrong")
            elif workers == 1 and not self.pulls:
                wrong = codectable.check_sent(self.spec, pushed[0], out)
                require(not wrong, f"{self.name} {key}: {wrong}")

    @property
    def pulls(self) -> Any:
        """What of the answers is encoded."""
        return (self.spec or {}).get("pull")

    def check_sums(self) -> None:
        """What came together with what is kept is what was pushed (by one worker)."""
        report = self.store.compression_report()
        if self.pulls is True:
            self.drain()
        for i, (key, out) in enumerate(zip(self.keys, self.outs, strict=True)):
            pushed = np.zeros(out.shape, np.float64)
            for count, values in zip(self.counts, self.sets, strict=True):
                pushed += count * values[i].astype(np.float64)
            left = float(np.linalg.norm(pushed - out))
            slack = (1e-3 if self.pulls else 1e-5) * float(np.linalg.norm(pushed))
            told = report.get(key, {}).get("codec", "dense") == "dense"
            kept = 0.0 if told or self.pulls is True else report[key]["error_norm"]
            require(abs(left - kept) <= 1e-3 * kept + slack,
                    f"{self.name} {key}: {left} is missing, and {kept} is kept")

    def drain(self) -> None:
        """Push nothing until all that was kept, at both ends, has arrived."""
        zeros = [np.zeros_like(out) for out in self.outs]
        before = [out.copy() for out in self.outs]
        for number in range(1, DRAIN_ROUNDS + 1):
            self.store.pushpull(self.keys, zeros, out=self.outs)
            if number % 100 == 0:
                if all(map(np.array_equal, before, self.outs)):
                    return
                before = [out.copy() for out in self.outs]
        require(False, f"{self.name}: not all has arrived after {DRAIN_ROUNDS} rounds")

    def check_bytes(self) -> None:
        """Of each key that is encoded: the payload is as long as it must be."""
        rounds = sum(self.counts)
        for i, key in enumerate(self.keys):
            told = self.store.compression_report().get(key)
            spec, x = self.spec, self.sets[0][i]
            if spec is None or told is None or told["codec"] == "dense":
                require(codectable.is_dense(spec, x.shape), f"{self.name} {key} travels as it is")
                continue
            want = codectable.payload_bytes(spec, x)
            if want is not None:
                got = told["bytes_sent"] / rounds
                require(got == want, f"{self.name} {key}: {got} bytes a push, not {want}")

    def record(self, case: str) -> dict[str, Any]:
        """What was measured."""
        report = self.store.compression_report()
        mine = [report[key] for key in self.keys if key in report]
        times = sorted(self.times)
        received, sent = (int(np.median([pair[i] for pair in self.moved])) for i in (0, 1))
        return {
            "op": self.name, "case": case, "workers": self.store.num_workers,
            "rank": self.store.rank, "repeats": len(times), "median_s": float(np.median(times)),
            "min_s": times[0], "p99_s": times[int(0.99 * (len(times) - 1))],
            "encode_s": sum(told.get("encode_s", 0.0) for told in mine) / sum(self.counts),
            "sent_bytes": sent, "received_bytes": received, **paid(mine), "verified": True,
        }  # fmt: skip


def paid(report: list[dict[str, Any]]) -> dict[str, Any]:
    """What a report says of the link's rate, and of how many of its encoded keys that they paid.

    Both are None while the link has not been busy; the store says so too.
    """
    encoded = [told for told in report if told["codec"] != "dense"]
    known = [told for told in encoded if told["paid"] is not None]
    return {
        "link_bytes_s": next((told["link_bytes_s"] for told in encoded), None),
        "encoded_keys": len(encoded),
        "paid_keys": sum(told["paid"] for told in known) if known else None,
    }


def gradients(rank: int, number: int, shapes: list[codectable.Shape]) -> list[np.ndarray]:
    """Normal values, the same in every process that asks."""
    rng = np.random.default_rng([rank, number])
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def work(store: Any, told: dict[str, Any], stack: contextlib.ExitStack) -> list[dict[str, Any]]:
    """Every codec's first round checked, rounds of all in turns, every codec checked again."""
    case, runs, records = told["case"], [], []
    for name in told["codecs"]:
        try:
            runs.append(Run(name, case, stack))
        except NotYetError as error:
            records.append({"op": name, "case": case, "rank": store.rank, "skipped": str(error)})
    for run in runs:
        run.round()
        run.check_first()
        for _ in range(WARM_ROUNDS):
            run.round()
    store.barrier()
    for _ in range(told["rounds"]):
        for run in runs:
            run.timed()
    for run in runs:
        run.check_bytes()
        records.append(run.record(case))
        if store.num_workers == 1:
            run.check_sums()
    store.barrier()
    return records


def main() -> None:
    """Write the records of this worker to the end of the file; a wrong value is a traceback."""
    told = json.loads(sys.argv[1])
    with asyncps.create("dist_sync") as store, contextlib.ExitStack() as stack:
        records = work(store, told, stack)
    with Path(told["out"]).open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


if __name__ == "__main__":
    main()
