"""Compressed pushes on every transport, and on real processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from asyncps.kvstore import KVStore
from tests.kvstore import compressed
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup
from tests.support.variants import all_on_each_variant

variant = all_on_each_variant(autouse=False)

Scenario = Callable[[KVStore], None]
both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])
acceptance = pytest.mark.parametrize(
    "scenario", compressed.ACCEPTANCE, ids=lambda scenario: scenario.__name__
)


@both_transports
@acceptance
@pytest.mark.usefixtures("variant")
def test_scenario_holds(scenario: Scenario, transport: str) -> None:
    on_cluster(scenario, transport=transport)


@acceptance
def test_scenario_holds_in_rank_order(scenario: Scenario) -> None:
    on_cluster(scenario, workers=3, order="rank")


@pytest.mark.slow
@pytest.mark.launch
@acceptance
def test_scenario_holds_on_real_processes(scenario: Scenario, processes: ProcessGroup) -> None:
    on_processes(processes, scenario, workers=2, servers=2)


@pytest.mark.slow
@acceptance
def test_scenario_holds_for_seven_workers_and_seven_servers(scenario: Scenario) -> None:
    on_cluster(scenario, workers=7, servers=7, settings={"round_s": 120.0, "answer_s": 60.0})


@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("name", compressed.TYPES)
def test_nothing_is_lost(name: str, order: str) -> None:
    scenario = partial(compressed.nothing_is_lost, spec=compressed.TYPES[name])
    on_cluster(scenario, workers=2, order=order, settings={"chunk_bytes": 65536})
