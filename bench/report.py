"""Benchmark records to tables: on the screen, or into docs/BENCHMARKS.md.

    $ python bench/report.py OUTDIR [OUTDIR ...] [--write docs/BENCHMARKS.md]

Reads the *.jsonl of bench/peers/run.py and bench/run.py. A time is the mean of the ranks' medians;
a ratio is taken within one pass, and of the passes' ratios the median is shown. --write replaces
only what stands between the two markers, and makes the file where there is none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import verdicts
from compare import records
from targets import ADAM_AT_MOST, IDLE_UNDER, RAW_OPS, TARGETS, Target
from verdicts import table

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
CASES = ["4K", "64K", "1M", "16M", "100M", "resnet18", "many1000"]
HEAD = """# Benchmarks

How these figures were taken, and what each word means, is in `bench/README.md`. The part between
the markers is written by `bench/report.py`; the text around it is kept.

"""

Cell = tuple[str, str, str, str]  # system, op, topology, case


class Results:
    """Everything that was read: times by cell and pass, and single records."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.facts: list[dict[str, Any]] = []
        self.own: list[dict[str, Any]] = []
        self.labels: dict[str, set[str]] = defaultdict(set)
        ranks: dict[tuple[Cell, tuple[int, int]], list[dict[str, Any]]] = defaultdict(list)
        for path in paths:
            for rec in records(path):
                if rec.get("record") == "facts":
                    self.facts.append(rec)
                elif "bench" in rec:
                    self.own.append(rec)
                else:
                    cell = cell_of(rec)
                    self.labels[cell[0]].add(rec["peer"])
                    # a folder may hold several runs: their passes are told apart by the run
                    ranks[cell, (len(self.facts), rec["pass"])].append(rec)
        self.times: dict[Cell, dict[tuple[int, int], float]] = defaultdict(dict)
        self.records: dict[Cell, list[dict[str, Any]]] = defaultdict(list)
        for (cell, number), recs in ranks.items():
            self.times[cell][number] = statistics.mean(r["median_s"] for r in recs)
            self.records[cell].extend(r for r in recs if r["rank"] == 0)

    def median(self, cell: Cell) -> float | None:
        """Median over passes, in seconds."""
        passes = self.times.get(cell)
        return statistics.median(passes.values()) if passes else None

    def ratios(self, ours: Cell, theirs: list[Cell]) -> list[float]:
        """Their best time over ours, pass by pass."""
        out = []
        for number, mine in sorted(self.times.get(ours, {}).items()):
            best = [t[number] for c in theirs if number in (t := self.times.get(c, {}))]
            if best:
                out.append(min(best) / mine)
        return out


def cell_of(rec: dict[str, Any]) -> Cell:
    """Where a record belongs."""
    return (rec["system"], rec["op"], f"{rec['servers']}x{rec['workers']}", rec["case"])


def seconds(value: float | None) -> str:
    """A time with a fitting unit."""
    if value is None:
        return ""
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def spread(values: list[float]) -> str:
    """Median, and the extremes when there are several."""
    if not values:
        return "not measured"
    text = f"{statistics.median(values):.2f}"
    return f"{text} ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else text


def cells_present(results: Results, cases: list[str]) -> list[tuple[str, str, str]]:
    """(system, op, topology) rows, ours first, raw limits last."""
    rank = {"asyncps": 0, "mxnet": 1, "mxnet-default": 2, "raw": 9}
    rows = {cell[:3] for cell in results.times if cell[3] in cases}
    return sorted(rows, key=lambda r: (rank.get(r[0], 5), r[0], r[2], r[1]))


def times_table(results: Results) -> str:
    """Sizes by systems: the time of a round, and how often ours goes into theirs."""
    cases = [c for c in CASES if any(cell[3] == c for cell in results.times)]
    rows = []
    for system, op, topology in cells_present(results, cases):
        row = [system, op, topology]
        for case in cases:
            cell = (system, op, topology, case)
            text = seconds(results.median(cell))
            # an all-reduce has no servers: beside push-pull with one server, as many workers
            mine = topology.replace("0x", "1x", 1) if topology.startswith("0x") else topology
            verb = op if op in ("sgd", "adam") else "pushpull"
            ours = results.ratios(("asyncps", verb, mine, case), [cell])
            if text and ours and system != "asyncps":
                text += f" ({statistics.median(ours):.2f})"
            row.append(text)
        rows.append(row)
    return table(["system", "op", "S x W", *cases], rows)


def judge(results: Results, target: Target) -> list[str]:
    """One row of the table of targets."""
    ours = ("asyncps", target.ours, target.topology, target.case)
    theirs = [(target.system, op, target.topology, target.case) for op in target.ops]
    ratios = results.ratios(ours, theirs)
    raw = [("raw", op, target.topology, target.case) for op in RAW_OPS]
    of_raw = results.ratios(ours, raw)
    against = (
        "raw, both ways at once"
        if target.system == "raw"
        else "MXNet " + "/".join(op for op in target.ops if op != "push_pull_list")
    )
    if not ratios:
        verdict = "not measured"
    elif statistics.median(ratios) >= target.ratio:
        verdict = "holds"
    elif target.raw and of_raw and statistics.median(of_raw) >= target.raw:
        verdict = f"holds ({target.raw} of raw)"
    else:
        verdict = "MISSED"
    share = spread(of_raw) if of_raw and target.system != "raw" else ""
    what = [target.topology, target.case, target.ours, against]
    return [*what, f"{target.ratio:g}", spread(ratios), share, verdict]


def own_rows(results: Results) -> list[list[str]]:
    """Targets that compare asyncps with itself or with a budget."""
    rows = []
    adam = ("asyncps", "adam", "1x1", "100M")
    plain = ("asyncps", "pushpull", "1x1", "100M")
    times = results.ratios(plain, [adam])
    if times:
        good = "holds" if statistics.median(times) <= ADAM_AT_MOST else "MISSED"
        limit = f"at most {ADAM_AT_MOST:g}"
        rows.append(["1x1", "100M", "adam", "our pushpull", limit, spread(times), "", good])
    for rec in results.own:
        topology = f"{rec['servers']}x{rec['workers']}" if "workers" in rec else ""
        if rec["bench"] == "idle":
            share = rec["share_of_core"]
            good = "holds" if share < IDLE_UNDER else "MISSED"
            limit = f"under {IDLE_UNDER:.0%}"
            rows.append([topology, "", "idle", "a core", limit, f"{share:.3%}", "", good])
        elif rec["bench"] == "free" and rec["op"] == "accuracy":
            good = "holds" if rec["lost"] <= rec["limit"] else "MISSED"
            limit = f"at most {100 * rec['limit']:g} points less"
            what = ["dist_async, accuracy", f"dist_sync ({rec['dist_sync']:.4f})"]
            rows.append([topology, "cnn", *what, limit, f"{rec['dist_async']:.4f}", "", good])
        elif rec["bench"] == "free" and rec["op"] == "throughput":
            good = "holds" if rec["gain"] >= rec["limit"] else "MISSED"
            what = [f"dist_ssp ({rec['staleness']}), steps/s", "dist_sync", f"{rec['limit']:g}"]
            rows.append([topology, "wandering", *what, spread(rec["gains"]), "", good])
        elif rec["bench"] == "memory":
            peak, budget = rec["peak_MiB"], rec["budget_MiB"]
            good = "holds" if peak <= budget else "MISSED"
            what = ["memory, " + rec["measured_op"], "budget (tight)"]
            limit = f"{budget:.0f} ({rec['tight_MiB']:.0f}) MiB"
            rows.append([topology, rec["case"], *what, limit, f"{peak:.0f} MiB", "", good])
    first = [rec for found in results.records.values() for rec in found]  # of rank 0
    return [*rows, *verdicts.kernel_rows(results.own), *verdicts.compression_rows(results.own),
            *verdicts.collective_rows(first)]


def use_table(results: Results) -> str:
    """CPU per GB moved and peak memory of a server, medians over passes."""
    cases = [c for c in CASES if any(cell[3] == c for cell in results.times)]
    rows = []
    for system, op, topology in cells_present(results, cases):
        row, known = [system, op, topology], False
        for case in cases:
            recs = results.records.get((system, op, topology, case), [])
            cpu = [r["cpu_s_per_GB"] for r in recs if "cpu_s_per_GB" in r]
            rss = [r["peak_rss_MB_server"] for r in recs if r.get("peak_rss_MB_server")]
            text = f"{statistics.median(cpu):.3g}" if cpu else ""
            text += f" / {statistics.median(rss):.0f}" if rss else ""
            known = known or bool(text)
            row.append(text)
        if known:
            rows.append(row)
    return table(["system", "op", "S x W", *cases], rows)


def own_table(results: Results) -> str:
    """The records of bench/run.py that have a time."""
    rows = []
    for rec in results.own:
        if not rec.get("median_s") or rec["bench"] in ("memory", "compression") or rec.get("rank"):
            continue
        topology = f"{rec['servers']}x{rec['workers']}" if "workers" in rec else ""
        rate = rec.get("GBps") or rec.get("goodput_GBps")
        share = rec.get("of_memcpy")
        p99 = f"{rec['p99_s'] * 1e6:.2f}" if "p99_s" in rec else ""
        row = [rec["bench"], rec["op"], topology, rec["case"], f"{rec['median_s'] * 1e6:.2f}", p99]
        row += [f"{rate:.2f}" if rate else "", f"{share:.2f}" if share else ""]
        rows.append(row)
    head = ["bench", "op", "S x W", "case", "median us", "p99 us", "GB/s", "of memcpy"]
    return table(head, rows)


def facts_text(results: Results) -> str:
    """Machine, versions and commit of each run."""
    lines = []
    for f in results.facts:
        dirty = " with local changes" if f.get("dirty") else ""
        kernels = f"compiled {f['compiled']}, {f['instruction_set']}"
        lines.append(
            f"- {f['date']}: commit {f['commit'] or 'unknown'}{dirty}; {f['cores']} cores, "
            f"{f['cpu']}, {f['memory_GiB']} GiB, Linux {f['kernel']}; Python {f['python']}, "
            f"numpy {f['numpy']}, uvloop {f['uvloop']}, kernels: {kernels}."
        )
        if "command" in f:
            peers = "; ".join(f"{k}: {v}" for k, v in f["peers"].items())
            lines.append(f"  `{f['command']}`; peers: {peers or 'none'}.")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def render(results: Results) -> str:
    """The whole report in Markdown."""
    parts = ["## What it ran on\n", facts_text(results)]
    if results.times:
        head = ["S x W", "case", "ours", "against", "target", "measured", "of raw", ""]
        has_servers = any(not cell[2].startswith("0x") for cell in results.times)
        rows = [judge(results, t) for t in TARGETS] if has_servers else []
        rows += own_rows(results)
        parts += [
            "## Targets\n",
            "`measured` is their time over ours, the better of their verbs within each pass, and "
            "of the passes the median (and extremes). `of raw` is our goodput over that of raw "
            "blocking sockets in the same pass, the better of there-and-back and both ways at "
            "once.\n",
            table(head, rows),
            "## Time of a round\n",
            "Median over passes; in brackets how many times ours it takes (our `sgd` and `adam` "
            "beside theirs, else our `pushpull`).\n",
            times_table(results),
            "## CPU seconds for a GB moved / peak memory of a server in MiB\n",
            use_table(results),
        ]
        labels = [f"{k}: {', '.join(sorted(v))}" for k, v in sorted(results.labels.items())]
        parts.append("Systems: " + "; ".join(labels) + ".\n")
    elif own_rows(results):
        head = ["S x W", "case", "ours", "against", "target", "measured", "", ""]
        parts += ["## Targets\n", table(head, own_rows(results))]
    head, rows = verdicts.link_table(results.own)
    if rows:
        parts += ["## A step with each codec, in milliseconds\n", table(head, rows)]
    if any(r.get("median_s") for r in results.own):
        parts += ["## Our own\n", own_table(results)]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replace what stands between the markers of `path`."""
    old = path.read_text() if path.exists() else f"{HEAD}{BEGIN}\n{END}\n"
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        raise SystemExit(f"{path} must hold {BEGIN} and then {END}, once each")
    before, after = old[: old.index(BEGIN)], old[old.index(END) + len(END) :]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def main(argv: list[str] | None = None) -> int:
    """Print, or write into a file."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("outdir", type=Path, nargs="+", help="folders or files of JSON lines")
    a.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this file")
    options = a.parse_args(argv)
    text = render(Results(options.outdir))
    if options.write:
        write(options.write, text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
