"""Codecs by links: what a step's communication takes, what crosses the wire, what is learned.

    python bench/compression.py                          the table: codec by link; and loopback
    python bench/compression.py --links 100mbit,1gbit --rounds 20 --passes 3
    python bench/compression.py --mxnet                  2bit of 100 MB in turns with MXNet's
    python bench/compression.py --accuracy --epochs 5    the CNN with each codec, three seeds
    python bench/compression.py --plot FILE.png          accuracy over seconds on a slow link

A step is the push-pull of the 431,080 parameters of the CNN of examples/, one server and one worker
at the ends of a link between two network namespaces (bench/links.py); left out, with the reason,
where there can be none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import learning
import linked
import links
import report
import verdicts
from codectable import CODECS
from linked import procs

WORKER = harness.HERE / "compression_worker.py"
LOOPBACK_CASES = ["cnn", "16M"]
MXNET_CASE, MXNET_TOPOLOGIES = "100M", [(1, 1), (2, 2)]
MXNET_ROUNDS = 10  # what bench/peers runs at least
# Layers of 4 KiB and more are keys of their own, whose pulls can be changes: 20 KB would be dense.
SETTINGS = {"ASYNCPS_SMALL_KEY_BYTES": "4096"}
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}  # see README.md


def options(a: argparse.ArgumentParser) -> None:
    """What this benchmark has beside the options of all."""
    a.add_argument("--links", default="", help=f"of {', '.join(links.LINKS)}, loopback; all")
    a.add_argument("--codecs", default="", help=f"of {'; '.join(CODECS)} (by semicolons); all")
    a.add_argument("--rounds", type=int, default=15, help="timed steps a codec and link")
    a.add_argument("--passes", type=int, default=1)
    a.add_argument("--mxnet", action="store_true", help="2bit of 100 MB beside MXNet, nothing else")
    a.add_argument("--accuracy", action="store_true", help="train with each codec, nothing else")
    a.add_argument("--plot", type=Path, help="draw accuracy over seconds (PNG), nothing else")
    a.add_argument("--epochs", type=int, default=5, help="of --accuracy and --plot")
    a.add_argument("--seeds", type=int, default=3, help="of --accuracy")
    a.add_argument("--dataset", choices=("mnist", "fashion"), default="mnist")


def chosen(text: str, known: list[str], separator: str = ",") -> list[str]:
    """The names of an option, checked; all where nothing is said."""
    names = [name.strip() for name in text.split(separator) if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown {unknown}; there are {known}")
    return names or known


def run(
    case: str, codecs: list[str], rounds: int, servers: int = 1, workers: int = 1,
    ends: links.Ends | None = None,
) -> list[dict[str, Any]]:
    """Records of one cluster's workers; over loopback, or at the ends of a link.

    Raises:
      ClusterFailedError: A role failed or a value was wrong; it has said which.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.jsonl"
        told = {"case": case, "codecs": codecs, "rounds": rounds, "out": str(out)}
        work = [sys.executable, str(WORKER), json.dumps(told)]
        linked.run_roles(work, servers, workers, ends, settings=SETTINGS)
        records = [json.loads(line) for line in out.read_text().splitlines()]
    return [{**rec, "system": "asyncps", "servers": servers} for rec in records]


def show(rec: dict[str, Any]) -> None:
    """A line for people."""
    where = f"compression {rec['op']:16} {rec['link']:13} {rec['case']:4}"
    if "skipped" in rec:
        print(f"{where} left out: {rec['skipped']}", flush=True)
        return
    text = f"{where} median {rec['median_s'] * 1e3:8.2f} ms"
    if rec["link"] != "loopback":
        text += f"  sent {rec['sent_bytes']:8} B, received {rec['received_bytes']:8} B"
    text += f"  encoding {rec['encode_s'] * 1e3:6.2f} ms"
    if rec["paid_keys"] is not None:
        text += (f"  paid: {rec['paid_keys']} of {rec['encoded_keys']} keys at"
                 f" {rec['link_bytes_s'] / 1e6:.1f} MB/s")
    print(text, flush=True)


def measure_link(bench: harness.Bench, name: str, codecs: list[str], number: int) -> None:
    """Every codec over one link, or over loopback."""
    rounds = 2 if bench.smallest else bench.options.rounds
    found = []
    if name == "loopback":
        for case in LOOPBACK_CASES[:1] if bench.smallest else LOOPBACK_CASES:
            found += run(case, codecs, rounds * (4 if case == "cnn" else 1))
    else:
        with links.opened(links.LINKS[name]) as ends:
            found = run("cnn", codecs, rounds, ends=ends)
    for rec in found:
        rec.update({"link": name, "pass": number})
        bench.keep(rec)
        show(rec)


def measure_links(bench: harness.Bench) -> int:
    """How many links failed."""
    names = chosen(bench.options.links, [*links.LINKS, "loopback"])
    if bench.smallest and not bench.options.links:
        names = ["100mbit", "1gbit+1ms", "loopback"]
    codecs = chosen(bench.options.codecs, list(CODECS), ";")
    reasons = {name: links.why_not(links.LINKS[name]) for name in names if name in links.LINKS}
    failed = 0
    for number in range(bench.options.passes):
        for name in names:
            if reason := reasons.get(name):
                print(f"compression {name} left out: {reason}", flush=True)
                bench.keep({"op": "all", "case": "cnn", "link": name, "skipped": reason})
                continue
            try:
                measure_link(bench, name, codecs, number)
            except harness.ClusterFailedError as error:
                print(f"FAILED {name}: {error}", file=sys.stderr)
                failed += 1
    return failed


def beside_mxnet(bench: harness.Bench) -> int:
    """2bit of 100 MB, ours and theirs in turns; how many clusters failed."""
    failed = 0
    for number in range(bench.options.passes):
        for servers, workers in MXNET_TOPOLOGIES:
            try:
                found = run(MXNET_CASE, ["2bit"], MXNET_ROUNDS, servers, workers)
                found += mxnet(servers, workers)
            except harness.ClusterFailedError as error:
                print(f"FAILED {error}", file=sys.stderr)
                failed += 1
                continue
            for rec in found:
                rec.update({"link": "loopback", "pass": number})
                bench.keep(rec)
                if rec["rank"] == 0:
                    print(f"compression 2bit {servers}x{workers} {MXNET_CASE} {rec['system']:8} "
                          f"median {rec['median_s'] * 1e3:8.2f} ms", flush=True)
    return failed


def mxnet(servers: int, workers: int) -> list[dict[str, Any]]:
    """MXNet's records of the same."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.jsonl"
        command = [sys.executable, str(harness.PEERS / "launch_mxnet.py"), "--op", "2bit",
                   "-s", str(servers), "-w", str(workers), "--cases", MXNET_CASE]
        env = {**os.environ, **TUNED, "PEERS_OUT": str(out), "PEERS_SYSTEM": "mxnet",
               "PEERS_SCALE": "0.1", "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONPATH", None)
        done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise harness.ClusterFailedError(f"MXNet {servers}x{workers} failed")
        return [json.loads(line) for line in out.read_text().splitlines()]


def main(argv: list[str] | None = None) -> int:
    """1 when something failed or a value was wrong; what is missed is said, and is no failure."""
    bench = harness.Bench("compression", __doc__.splitlines()[0], argv, options)
    procs.end_on_sigterm()
    told = bench.options
    codecs = chosen(told.codecs, list(CODECS), ";")
    if told.mxnet:
        failed = beside_mxnet(bench)
    elif told.accuracy:
        failed = learning.accuracies(bench, codecs)
    elif told.plot:
        failed = learning.plot(bench, codecs)
    else:
        failed = measure_links(bench)
    head, steps = verdicts.link_table(bench.kept)
    if steps:
        print("Milliseconds of a step:\n" + report.table(head, steps))
    rows = verdicts.compression_rows(bench.kept)
    if rows:
        print(report.table(verdicts.HEAD, rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
