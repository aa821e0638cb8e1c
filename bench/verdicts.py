"""What must hold of kernels, of compression and of all-reduce, judged from records, as rows of
bench/report.py.

A row is: servers x workers, case, ours, against, target, measured, nothing, verdict.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from codectable import BOTH_WAYS

Record = dict[str, Any]
HEAD = ["S x W", "case", "ours", "against", "target", "measured", "", ""]
JUDGED_CASE = "64M"  # MiB of dense input, one core


@dataclass(frozen=True, slots=True)
class Floor:
    """What a kernel must reach: `field` of its record is at least `least`."""

    op: str
    field: str
    least: float
    against: str


_COPY = "memcpy, bytes moved"
_INPUT = "GB/s of float32 input"
FLOORS = [
    *(Floor(op, "of_memcpy", 0.8, _COPY)
      for op in ("add_f32", "widen_f16", "widen_bf16", "narrow_f16", "narrow_bf16")),
    *(Floor(op, "input_GBps", 3, _INPUT)
      for op in ("encode_2bit_kept", "encode_1bit_kept", "encode_int8_kept")),
    Floor("threshold", "GBps", 4, _INPUT),
    Floor("topk", "GBps", 1.5, _INPUT),
    Floor("adam", "of_memcpy", 0.7, _COPY),
]  # fmt: skip
LINK_GAINS = {"1gbit": 6.0, "100mbit": 20.0}  # of topk both ways over f32, the CNN
LOOPBACK_MOST = 1.1  # times f32 that f16 may take
MXNET_GAINS = {"1x1": 8.0, "2x2": 4.0}  # 2bit of 100 MB, their time over ours
ACCURACY_MOST = 1.0  # points below uncompressed, means of the seeds


# All-reduce by key: (case, other system, its op, how many times as fast ours must be).
ALL_REDUCE = "allreduce_async"
SPEEDS = [
    *((case, "gloo", ALL_REDUCE, 1.0) for case in ("4K", "64K", "1M", "16M", "100M", "resnet18")),
    ("many1000", "gloo", ALL_REDUCE, 100.0),
    ("1M", "mpi-tcp", "iallreduce", 0.5), ("16M", "mpi-tcp", "iallreduce", 0.85),
    ("100M", "mpi-tcp", "iallreduce", 0.85), ("many1000", "mpi-tcp", "iallreduce", 1.0),
]  # fmt: skip
CASES = ["4K", "64K", "1M", "many1000", "16M", "resnet18", "100M"]  # as the table has them
ORIENTATION = "mpi-shm"  # no network at all: shown, not judged


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def spread(values: list[float], digits: int = 2) -> str:
    """Median, and the extremes when there are several."""
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def verdict(values: list[float], is_good: Callable[[float], bool]) -> list[str]:
    """The last three cells of a row."""
    if not values:
        return ["not measured", "", "not measured"]
    return [spread(values), "", "holds" if is_good(statistics.median(values)) else "MISSED"]


def kernel_rows(records: Iterable[Record]) -> list[list[str]]:
    """The floors of kernels, where their case was measured."""
    found: dict[str, list[Record]] = defaultdict(list)
    for rec in records:
        if rec.get("bench") == "kernels" and rec.get("case") == JUDGED_CASE:
            found[rec["op"]].append(rec)
    if not found:
        return []
    rows = []
    for floor in FLOORS:
        values = [rec[floor.field] for rec in found[floor.op]]
        limit = f"{floor.least:g}"
        rows.append(["", JUDGED_CASE, floor.op, floor.against, limit,
                     *verdict(values, lambda value, least=floor.least: value >= least)])
    return rows


def link_table(records: Iterable[Record]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: codec by link, milliseconds of a step, and the bytes of both ways on links."""
    cells: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    columns: list[str] = []
    for rec in records:
        is_step = rec.get("bench") == "compression" and rec.get("rank") == 0 and "encode_s" in rec
        if not is_step or "link" not in rec or (rec["servers"], rec["workers"]) != (1, 1):
            continue
        column = rec["link"] if rec["case"] == "cnn" else f"{rec['case']}, {rec['link']}"
        columns += [] if column in columns else [column]
        cells[rec["op"]][column].append(rec)
    rows = []
    for op, found in cells.items():
        row = [op]
        on_link = [rec for recs in found.values() for rec in recs if rec["link"] != "loopback"]
        if on_link:
            row += [f"{on_link[0][name]:,}" for name in ("sent_bytes", "received_bytes")]
            row.append(f"{statistics.median(r['encode_s'] for r in on_link) * 1e3:.2f}")
        else:
            row += ["", "", ""]
        row += [f"{statistics.median(r['median_s'] for r in found[column]) * 1e3:.2f}"
                if column in found else "" for column in columns]
        rows.append(row)
    return ["codec", "B sent", "B received", "encoding", *columns], rows


def compression_rows(records: Iterable[Record]) -> list[list[str]]:
    """What compression must gain, and what it may cost."""
    mine = [rec for rec in records if rec.get("bench") == "compression"]
    return [*_link_rows(mine), *_loopback_rows(mine), *_mxnet_rows(mine), *_accuracy_rows(mine)]


def _ratios(records: list[Record], upper: Record, lower: Record) -> list[float]:
    """By pass: times of the records that have all of `upper`, over those with all of `lower`."""

    def by_pass(wanted: Record) -> dict[int, float]:
        times: dict[int, list[float]] = defaultdict(list)
        for rec in records:
            if "median_s" in rec and all(rec.get(k) == v for k, v in wanted.items()):
                times[rec.get("pass", 0)].append(rec["median_s"])
        return {number: statistics.mean(values) for number, values in times.items()}

    over, under = by_pass(upper), by_pass(lower)
    return [over[number] / under[number] for number in sorted(over) if number in under]


def _link_rows(records: list[Record]) -> list[list[str]]:
    rows = []
    for name, least in LINK_GAINS.items():
        if not any(rec.get("link") == name and "seconds" not in rec for rec in records):
            continue  # curves of trainings are no steps
        at = {"link": name, "case": "cnn"}
        gains = _ratios(records, {**at, "op": "f32"}, {**at, "op": BOTH_WAYS})
        cells = verdict(gains, lambda gain, least=least: gain >= least)
        if not gains:
            told = [rec["skipped"] for rec in records if "skipped" in rec
                    and rec.get("link") == name and rec["op"] in (BOTH_WAYS, "all")]
            cells[0] = told[0] if told else cells[0]
        rows.append(["1x1", f"cnn, {name}", BOTH_WAYS, "f32", f"{least:g}", *cells])
    return rows


def _loopback_rows(records: list[Record]) -> list[list[str]]:
    rows = []
    for case in ("cnn", "16M", "100M"):
        at = {"link": "loopback", "case": case}
        times = _ratios(records, {**at, "op": "f16"}, {**at, "op": "f32"})
        if times:
            cells = verdict(times, lambda value: value <= LOOPBACK_MOST)
            rows.append(["1x1", f"{case}, loopback", "f16", "f32", f"at most {LOOPBACK_MOST:g}",
                         *cells])
    return rows


def _mxnet_rows(records: list[Record]) -> list[list[str]]:
    rows = []
    for topology, least in MXNET_GAINS.items():
        servers, workers = map(int, topology.split("x"))
        at = {"servers": servers, "workers": workers, "case": "100M"}
        gains = _ratios(records, {**at, "op": "2bit", "system": "mxnet"},
                        {**at, "op": "2bit", "system": "asyncps"})
        if gains:
            cells = verdict(gains, lambda gain, least=least: gain >= least)
            rows.append([topology, "100M", "2bit", "MXNet 2bit", f"{least:g}", *cells])
    return rows


def _accuracy_rows(records: list[Record]) -> list[list[str]]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for rec in records:
        if "accuracy" in rec:
            what = f"{rec['dataset']}, {rec['epochs']} epochs"
            found[what, rec["op"]].append(100 * rec["accuracy"])
    rows = []
    for (what, op), values in found.items():
        base = found.get((what, "f32"))
        if op == "f32" or not base:
            continue
        lost = statistics.mean(base) - statistics.mean(values)
        good = "holds" if lost <= ACCURACY_MOST else "MISSED"
        rows.append(["", what, f"{op}, accuracy", f"f32 ({statistics.mean(base):.2f})",
                     f"at most {ACCURACY_MOST:g} point less", f"{statistics.mean(values):.2f}",
                     "", good])
    return rows


Timed = dict[tuple[str, str, int, str], dict[int, float]]  # system, op, ranks, case: s by pass


def _collective_times(records: Iterable[Record]) -> tuple[Timed, dict[str, int]]:
    """Rank 0's times of all-reduces, and the bytes of each case."""
    found: Timed = defaultdict(dict)
    sizes: dict[str, int] = {}
    for rec in records:
        is_sum = "bench" not in rec and "allreduce" in rec.get("op", "")
        if is_sum and rec.get("rank") == 0 and rec["case"] in CASES:
            found[rec["system"], rec["op"], rec["workers"], rec["case"]][rec["pass"]] = (
                rec["median_s"])
            sizes[rec["case"]] = rec["bytes"]
    return found, sizes


def _times_as_fast(found: Timed, system: str, op: str, world: int, case: str) -> list[float]:
    """Their time over ours of each pass; a flat array's over that of a flat array."""
    ours = found.get(("asyncps", "allreduce_flat", world, case), {}) if op.endswith("flat") else {}
    ours = ours or found.get(("asyncps", ALL_REDUCE, world, case), {})
    theirs = found.get((system, op, world, case), {})
    return [theirs[number] / ours[number] for number in sorted(theirs.keys() & ours.keys())]


def collective_table(records: Iterable[Record]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: medians over passes of every system and op, and ratios within passes."""
    found, sizes = _collective_times(records)
    rows = []
    for world in sorted({key[2] for key in found}):
        for case in CASES:
            for system, op in sorted(key[:2] for key in found if key[2:] == (world, case)):
                median = statistics.median(found[system, op, world, case].values())
                bus = sizes[case] * 2 * (world - 1) / world / median / 1e9
                each = _times_as_fast(found, system, op, world, case)
                told = f"{system}, for orientation" if system == ORIENTATION else system
                rows.append([str(world), case, told, op, f"{median * 1e3:.3f}", f"{bus:.2f}",
                             _within(each)])
    head = ["ranks", "case", "system", "op", "ms", "bus GB/s", "ours is times as fast"]
    return head, rows


def collective_rows(records: Iterable[Record]) -> list[list[str]]:
    """How fast all-reduce must be beside others, where both were measured."""
    found, _ = _collective_times(records)
    rows = []
    for world in sorted({key[2] for key in found}):
        for case, system, op, least in SPEEDS:
            each = _times_as_fast(found, system, op, world, case)
            if each:
                cells = verdict(each, lambda ratio, least=least: ratio >= least)
                rows.append([f"0x{world}", case, "all_reduce", f"{system} {op}", f"{least:g}",
                             *cells])
    return rows


def _within(each: list[float]) -> str:
    """A ratio; nothing where a pass lacks one of the two."""
    return spread(each) if each else ""
