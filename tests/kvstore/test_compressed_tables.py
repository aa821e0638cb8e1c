"""Compressed pushes of row-sparse keys, in clusters of several sizes and on real processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import KVStore
from tests.kvstore import compressed_tables as scenarios
from tests.kvstore.compressed import TYPES
from tests.kvstore.scenarios import BF16
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup

Scenario = Callable[[KVStore], None]
every_scenario = pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.__name__)


@every_scenario
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_scenario_holds_for_two_workers_and_two_servers(
    scenario: Scenario, transport: str
) -> None:
    on_cluster(scenario, transport=transport)


@every_scenario
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 2)])
def test_scenario_holds_for_other_sizes_of_cluster(
    scenario: Scenario, workers: int, servers: int
) -> None:
    on_cluster(scenario, workers=workers, servers=servers, order="rank")


@pytest.mark.parametrize("name", [name for name in TYPES if "dgc" not in name])
@pytest.mark.parametrize(("type", "dtype"), [
    ("dist_sync", "f4"), ("dist_sync", BF16), ("dist_async", "f4"), ("dist_ssp", "f4"),
])  # fmt: skip
def test_nothing_is_lost(name: str, type: str, dtype: Any) -> None:
    options = {"type": type, "staleness": 1} if type == "dist_ssp" else {"type": type}
    found = on_cluster(partial(scenarios.totals, spec=TYPES[name], dtype=dtype), **options)
    table = found[0][2]
    sent = sum(mine - kept for mine, kept, _ in found)
    assert np.abs(sent).max() > 0.5
    # What a table of bfloat16 holds is rounded; what is kept is not.
    limit = {"rtol": 1e-5, "atol": 1e-4} if dtype == "f4" else {"rtol": 0.02, "atol": 0.1}
    assert np.allclose(table, sent, **limit)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("scenario", [
    scenarios.rounds_of_2bit, scenarios.few_rows_go_as_they_are, scenarios.beyond_the_window,
], ids=lambda s: s.__name__)
def test_scenario_holds_on_real_processes(scenario: Scenario, processes: ProcessGroup) -> None:
    on_processes(processes, scenario, workers=3, servers=2)
