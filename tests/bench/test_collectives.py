"""What bench/collectives.py makes of its records, and that bench/run.py runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import collectives
import pytest
import verdicts

BENCH = Path(__file__).parents[2] / "bench"
RECORD = BENCH / "results" / "2026-12-01-collectives.jsonl"


def times(system: str, op: str, *seconds: float, case: str = "1M") -> list[dict[str, Any]]:
    """One record a pass, of rank 0 of two; and of rank 1, which does not count."""
    return [{"system": system, "op": op, "case": case, "workers": 2, "servers": 0, "rank": rank,
             "bytes": 1_000_000, "pass": number, "median_s": second + rank}
            for number, second in enumerate(seconds) for rank in range(2)]


OURS = times("asyncps", "allreduce_async", 0.002, 0.001)


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines() if line.startswith("| ")]


def test_a_ratio_is_of_one_pass_and_is_shown_with_its_extremes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    others = [{"record": "facts"}, {"bench": "idle", "op": "idle", "case": "", "rank": 0}]
    told = [*others, *OURS, *times("gloo", "allreduce_async", 0.004, 0.004)]
    out.write_text("".join(json.dumps(rec) + "\n" for rec in told))

    collectives.table(out)

    rows = rows_of(capsys.readouterr().out)
    assert ["2", "1M", "asyncps", "allreduce_async", "1.500", "0.67",
            "1.00 (1.00 to 1.00)"] in rows
    assert ["2", "1M", "gloo", "allreduce_async", "4.000", "0.25", "3.00 (2.00 to 4.00)"] in rows
    assert ["0x2", "1M", "all_reduce", "gloo allreduce_async", "1", "3.00 (2.00 to 4.00)", "",
            "holds"] in rows
    assert not [row for row in rows if "mpi-tcp" in " ".join(row)]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.0005, "holds"), (0.00049, "MISSED")])
def test_open_mpi_over_tcp_is_judged_by_its_share(seconds: float, verdict: str) -> None:
    records = [*times("asyncps", "allreduce_async", 0.001),
               *times("mpi-tcp", "iallreduce", seconds)]

    (row,) = verdicts.collective_rows(records)

    assert (row[1], row[3], row[4], row[-1]) == ("1M", "mpi-tcp iallreduce", "0.5", verdict)


def test_shared_memory_is_shown_for_orientation_and_not_judged() -> None:
    records = [*OURS, *times("mpi-shm", "iallreduce", 0.0001, 0.0001)]

    _, rows = verdicts.collective_table(records)

    assert [row[2] for row in rows] == ["asyncps", "mpi-shm, for orientation"]
    assert verdicts.collective_rows(records) == []


def test_a_flat_array_is_compared_with_a_flat_one_and_ddp_with_ours_by_key() -> None:
    records = [
        *times("asyncps", "allreduce_async", 0.004, case="resnet18"),
        *times("asyncps", "allreduce_flat", 0.001, case="resnet18"),
        *times("gloo", "allreduce_flat", 0.003, case="resnet18"),
        *times("gloo", "allreduce_ddp", 0.008, case="resnet18"),
    ]

    _, rows = verdicts.collective_table(records)

    assert {(row[2], row[3]): row[-1] for row in rows} == {
        ("asyncps", "allreduce_async"): "1.00", ("asyncps", "allreduce_flat"): "1.00",
        ("gloo", "allreduce_flat"): "3.00", ("gloo", "allreduce_ddp"): "2.00"}


def test_the_record_of_the_docs_has_rows_of_ddp_and_of_flat_arrays(
    capsys: pytest.CaptureFixture[str]
) -> None:
    collectives.table(RECORD)

    found = {tuple(row[:4]) for row in rows_of(capsys.readouterr().out)}
    for world in ("2", "4"):
        for case in ("resnet18", "many1000"):
            for op in ("allreduce_async", "allreduce_ddp", "allreduce_flat"):
                assert (world, case, "gloo", op) in found


def test_what_run_py_says_is_understood(tmp_path: Path) -> None:
    """It runs with the words of `make bench`; no pass of it is made here."""
    text = (BENCH / "run.py").read_text()
    assert '"collectives"' in text
    out = tmp_path / "own" / "out.jsonl"
    done = subprocess.run(
        [sys.executable, str(BENCH / "collectives.py"), "--out", str(out), "--smallest",
         "--seconds", "0.1", "--passes", "0"],
        capture_output=True, text=True, timeout=25, check=False)

    assert done.returncode == 0, done.stderr
    (facts,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert facts["record"] == "facts"
