"""ACCEPTANCE section 1 on every transport, and on real processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import KVStore
from tests.kvstore import scenarios
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup

Scenario = Callable[[KVStore], None]
both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


@both_transports
@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.__name__)
def test_scenario_holds_for_two_workers_and_two_servers(
    scenario: Scenario, transport: str
) -> None:
    on_cluster(scenario, transport=transport)


@both_transports
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (3, 2)])
def test_scenarios_hold_for_other_sizes_of_cluster(
    workers: int, servers: int, transport: str
) -> None:
    for scenario in scenarios.ALL:
        on_cluster(scenario, workers=workers, servers=servers, transport=transport)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.__name__)
def test_scenario_holds_when_contributions_are_added_in_rank_order(scenario: Scenario) -> None:
    on_cluster(scenario, workers=3, order="rank")


@pytest.mark.slow
@both_transports
def test_k1_seven_workers_and_seven_servers(transport: str) -> None:
    on_cluster(
        scenarios.k1_seven_workers, workers=7, servers=7, transport=transport,
        settings={"round_s": 120.0, "answer_s": 60.0},
    )


@pytest.mark.slow
@pytest.mark.launch
def test_k1_seven_workers_and_seven_servers_as_real_processes(processes: ProcessGroup) -> None:
    on_processes(processes, scenarios.k1_seven_workers, workers=7, servers=7, within_s=200.0)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.k1_exact_sums, scenarios.k12_replaced_not_accumulated,
        scenarios.k16_twice_before_the_others, scenarios.k17_mixed_verbs, scenarios.k21_any_order,
    ],
    ids=lambda s: s.__name__,
)
def test_scenario_holds_on_real_processes(
    scenario: Scenario, processes: ProcessGroup
) -> None:
    on_processes(processes, scenario, workers=3, servers=2)


def huge_key(store: KVStore) -> None:
    """K23: another number at every element and rank, made and checked a piece at a time."""
    size, step = (2 << 30) + (1 << 20) + 7, 61 << 18
    n = store.num_workers
    cycle = (np.arange(step) % 61).astype("i1")
    value = np.zeros(size, "i1")
    store.init("huge", value)
    for begin in range(0, size, step):
        piece = value[begin : begin + step]
        piece[:] = cycle[: piece.size]
        piece += np.int8(store.rank + 1)
    store.pushpull("huge", value)
    expected = cycle * np.int8(n) + np.int8(n * (n + 1) // 2)
    for begin in range(0, size, step):
        piece = value[begin : begin + step]
        assert np.array_equal(piece, expected[: piece.size]), begin


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_k23_key_of_more_than_two_gib(transport: str) -> None:
    patient: dict[str, Any] = {"round_s": 250.0, "answer_s": 250.0}
    workers = 2 if transport == "memory" else 1
    on_cluster(huge_key, workers=workers, servers=2, transport=transport, settings=patient)
