"""Row-sparse keys on every transport and size of cluster, and on real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asyncps.kvstore import KVStore
from tests.kvstore import table_scenarios as scenarios
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup

Scenario = Callable[[KVStore], None]
every_scenario = pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda s: s.__name__)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@every_scenario
def test_scenario_holds_for_two_workers_and_two_servers(
    scenario: Scenario, transport: str
) -> None:
    on_cluster(scenario, transport=transport)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (1, 3), (3, 2)])
@every_scenario
def test_scenario_holds_for_other_sizes_of_cluster(
    scenario: Scenario, workers: int, servers: int
) -> None:
    on_cluster(scenario, workers=workers, servers=servers, transport="tcp")


@every_scenario
def test_scenario_holds_when_contributions_are_added_in_rank_order(scenario: Scenario) -> None:
    on_cluster(scenario, workers=3, order="rank")


@pytest.mark.parametrize("servers", [1, 3])
def test_first_values_do_not_depend_on_the_servers(servers: int) -> None:
    on_cluster(scenarios.same_first_rows, servers=servers)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_k2_and_k3_for_seven_workers_and_seven_servers(transport: str) -> None:
    for scenario in (scenarios.k2_rows_of_odd_and_even_ranks, scenarios.k3_no_rows_at_all):
        on_cluster(scenario, workers=7, servers=7, transport=transport,
                   settings={"round_s": 120.0, "answer_s": 60.0})


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("scenario", [
    scenarios.k2_rows_of_odd_and_even_ranks, scenarios.k3_no_rows_at_all, scenarios.whole_table,
    scenarios.twice_before_the_others,
], ids=lambda s: s.__name__)
def test_scenario_holds_on_real_processes(scenario: Scenario, processes: ProcessGroup) -> None:
    on_processes(processes, scenario, workers=3, servers=2)
