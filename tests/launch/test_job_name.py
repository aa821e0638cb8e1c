"""launch --job: what is drawn for a job depends on its name, so two runs can have the same bits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import ProcessGroup, clean_environment

pytestmark = [pytest.mark.launch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

DRAW = """
import os, zlib
import numpy as np
import asyncps
with asyncps.create("dist_sync", order="rank") as store:
    values = {"w": np.zeros(20_000, "f4"), "m": np.zeros((200, 100), "f4")}
    store.init(list(values), list(values.values()))
    store.set_gradient_compression({"type": "randomk"}, keys="w")
    store.set_gradient_compression({"type": "powersgd"}, keys="m")
    chance = np.random.default_rng(store.rank)
    for _ in range(2):
        for key, value in values.items():
            g = chance.normal(size=value.shape).astype("f4")
            store.pushpull(key, g, out=value)
    print("JOB", os.environ["ASYNCPS_JOB"], "BITS",
          *[zlib.crc32(value.tobytes()) for value in values.values()])
"""


def test_runs_of_one_name_draw_the_same(processes: ProcessGroup) -> None:
    told = []
    for _ in range(2):
        launch = processes.asyncps(
            "launch", "-n", "2", "-s", "2", "--job", "mine", "--", sys.executable, "-c", DRAW,
            env=clean_environment({}), cwd=ROOT)
        assert launch.wait(60) == 0, launch.output
        told += re.findall(r"JOB mine BITS \d+ \d+", launch.output)
    assert len(told) == 4
    assert len(set(told)) == 1, told
