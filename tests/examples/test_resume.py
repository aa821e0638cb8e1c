"""The example of resuming: two runs have the bits of one that never stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import resume

from tests.support.cluster import on_cluster
from tests.support.processes import ProcessGroup

ROOT = Path(__file__).parents[2]


def run(folder: Path, epochs: int, servers: int) -> list[tuple[bytes, bytes, int]]:
    def work(store) -> tuple[bytes, bytes, int]:
        slopes, height, first = resume.train(store, folder, epochs)
        return slopes.tobytes(), height.tobytes(), first

    return on_cluster(work, workers=2, servers=servers, order="rank")


def test_two_runs_have_the_bits_of_one(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 4, 1)
    assert {first for *_, first in whole} == {0}
    run(tmp_path / "parts", 2, 1)
    parts = run(tmp_path / "parts", 4, 2)
    assert {first for *_, first in parts} == {2}
    assert [each[:2] for each in parts] == [each[:2] for each in whole]


@pytest.mark.slow
@pytest.mark.launch
def test_it_runs_as_its_first_lines_say(processes: ProcessGroup, tmp_path: Path) -> None:
    for epochs, seen in ("1", "epoch 0"), ("2", "epoch 1"):
        launch = processes.asyncps("launch", "-n", "2", "-s", "1", "--", sys.executable,
                                   "examples/resume.py", str(tmp_path / "plane"), epochs, cwd=ROOT)
        assert launch.wait(60.0) == 0, launch.output
        assert f"[worker 1] worker 1 of 2, {seen}: slopes" in launch.output
        assert launch.output.count("worker 0 of 2, epoch") == 1
