"""The status of a job on terminals of several widths: a row is a line, and columns go in order."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from asyncps.observe.display import tables
from asyncps.observe.tables import Table, fitted, rich_view
from asyncps.protocol import messages as m

WIDTHS = (80, 100, 120, 200)
REPORT = m.Report(123_456_789_012, 98_765_432_109, 45_678_901, 1234, 5678, 123_456, 98_765_432, 0,
                  {}, [m.Wait("round", 1, "layer" * 20, 1, 75.0, 123)], 45_678)
STATUS = m.JobStatus("running", 4000.0, 2, 2, [
    m.NodeStatus(m.Member(role, rank, 1, host, port, "compute-node-with-a-long-name-07", 1234567),
                 standing, 0.25, REPORT, 0.1)
    for role, host, port, standing in (("server", "192.168.100.200", 45678, "alive"),
                                       ("worker", "", 0, "suspect"))
    for rank in (0, 1)
], [m.StoreStatus(1, "default", "dist_sync", 123_456)],
    [m.Wait("barrier", 1, "", 0, 3725.0, 1)], None)  # fmt: skip


def shown(width: int, status: m.JobStatus = STATUS) -> list[str]:
    """The lines on a terminal of a width."""
    file = io.StringIO()
    console = Console(width=width, file=file, force_terminal=True, color_system=None)
    console.print(rich_view(*tables(status, "127.0.0.1:9091"), console.width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def names(width: int) -> list[str]:
    """The columns of the nodes that a width has."""
    (nodes, *_) = tables(STATUS, "127.0.0.1:9091")[1]
    return [name.rstrip(">") for name in fitted(nodes, width).columns]


@pytest.mark.parametrize("width", WIDTHS)
def test_row_is_one_line(width: int) -> None:
    lines = shown(width)
    assert all(len(line) <= width for line in lines), max(lines, key=len)
    for role, standing in (("server", "alive"), ("worker", "suspect")):
        for rank in "01":
            (line,) = [line for line in lines if line.split()[:2] == [role, rank]
                       and standing in line]
            assert line.split()[2].startswith("compute-")
    waited = [line for line in lines if line.startswith(("worker 0 ", "worker 1 "))]
    assert sum("barrier" in line for line in waited) == 1
    assert sum("round" in line for line in waited) == 4
    # heading; of three tables title, names, a line, rows, and what is between
    assert len([line for line in lines if line]) == 1 + 3 * 3 + 4 + 1 + 5


@pytest.mark.parametrize("width", WIDTHS)
def test_what_matters_most_is_always_there(width: int) -> None:
    assert {"role", "rank", "host", "state", "waited for"} <= set(names(width))


def test_columns_go_in_order() -> None:
    (nodes, *_) = tables(STATUS, "127.0.0.1:9091")[1]
    everything = [name.rstrip(">") for name in nodes.columns]
    assert names(500) == everything
    assert not {"frames", "queued"} & set(names(140))
    gone: set[str] = set()
    for width in range(250, 40, -1):
        now = set(everything) - set(names(width))
        assert gone <= now
        assert now == set(nodes.spare[: len(now)])
        gone = now
    assert nodes.spare[:2] == ("frames", "queued")


def test_small_job_fits_on_80_columns_with_its_bytes() -> None:
    status = m.JobStatus("running", 4.7, 1, 1, [
        m.NodeStatus(m.Member("worker", 0, 1, "", 0, "node7", 4711), "alive", 0.25,
                     m.Report(1000, 2000, 0, 0, 0, 3, 40, 0, {}, []), 0.1)], [], [], None)
    lines = shown(80, status)
    assert lines[0] == "job at 127.0.0.1:9091: running for 4.7 s, 1 worker, 1 server"
    (line,) = [line for line in lines if line.startswith("worker ")]
    for word in ("node7", "alive", "1000 B", "2.0 KiB", "40"):
        assert word in line


def test_table_without_spare_columns_wraps_as_before() -> None:
    table = Table("advice", ("what", "how"))
    table.add("x", "word " * 40)
    assert fitted(table, 30) is table
    console: Any = Console(width=40, file=io.StringIO())
    console.print(rich_view("", [table], 40))
    assert console.file.getvalue().count("word") == 40
