"""The numbers of roles as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import pytest

from asyncps.errors import ConfigError, TransportError
from asyncps.observe.display import tables
from asyncps.observe.endpoint import Endpoint
from asyncps.observe.metrics import FAMILIES, Page, Sample
from asyncps.observe.status import as_data, look
from asyncps.observe.tables import plain
from asyncps.protocol import messages as m
from asyncps.roles.metering import samples, start_metrics
from asyncps.roles.worker import Worker
from tests.observe.test_status import running
from tests.roles.cluster import bench, settings

REPORT = m.Report(10, 20, 3, 1, 2, 5, 7, 4096, {1: 0.5, 0: 0.25}, [
    m.Wait("round", 1, "w", 1, 2.5, 3), m.Wait("round", 2, "v", 1, 4.5, 3)])
STATUS = m.JobStatus("running", 1.0, 2, 1, [
    m.NodeStatus(m.Member("server", 0, 1, "h", 1, "h", 1), "alive", 0.0, None, 0.0),
    m.NodeStatus(m.Member("worker", 1, 2, "", 0, "h", 1), "left", 0.0, None, 0.0),
], [m.StoreStatus(1, "s", "dist_sync", 5)], [m.Wait("barrier", 1, "", 0, 1.5, 1)], None)


def values(text: str) -> dict[str, float]:
    """The samples of a page by name and labels."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_page_of_a_server() -> None:
    text = Page("server", 3).render(samples(REPORT)).decode()
    place = 'rank="3",role="server"'
    found = values(text)
    assert found[f"asyncps_sent_bytes_total{{{place}}}"] == 10
    assert found[f"asyncps_received_bytes_total{{{place}}}"] == 20
    assert found[f"asyncps_queued_bytes{{{place}}}"] == 3
    assert found[f"asyncps_queued_frames{{{place}}}"] == 1
    assert found[f"asyncps_waiting_requests{{{place}}}"] == 2
    assert found[f"asyncps_keys{{{place}}}"] == 5
    assert found[f"asyncps_rounds_total{{{place}}}"] == 7
    assert found[f"asyncps_value_bytes{{{place}}}"] == 4096
    waited = {key: value for key, value in found.items() if "waited" in key}
    assert sorted(waited.values()) == [0.25, 0.5]
    (waiting,) = [value for key, value in found.items() if "waiting_seconds" in key]
    assert waiting == 4.5
    assert "# TYPE asyncps_rounds_total counter" in text
    assert "# TYPE asyncps_queued_bytes gauge" in text


def test_page_of_the_scheduler() -> None:
    found = values(Page("scheduler", 0).render(samples(STATUS)).decode())
    told = {re.sub(r'rank="0",|role="scheduler",?', "", key): v for key, v in found.items()}
    assert told["asyncps_running{}"] == 1
    assert told["asyncps_expected_members{}"] == 3
    assert {key: value for key, value in told.items() if "asyncps_members" in key} == {
        f'asyncps_members{{{part}standing="{name}"}}': float(name in ("alive", "left"))
        for name in ("alive", "suspect", "lost", "left") for part in ("",)}
    assert told["asyncps_keys{}"] == 5


def test_page_is_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = Page("server", 0).render(samples(REPORT) + samples(STATUS)[:1]).decode()
    families = list(text_string_to_metric_families(text))
    assert {family.name for family in families} <= set(FAMILIES)
    assert all(sample.labels["role"] == "server" for f in families for sample in f.samples)


def test_names_say_their_unit_and_kind() -> None:
    for name, (kind, text, labels) in FAMILIES.items():
        assert re.fullmatch(r"asyncps_[a-z_]+", name)
        assert not name.endswith("_total")
        assert kind in ("counter", "gauge")
        assert text
        assert not {"role", "rank"} & set(labels)


def test_sample_of_no_family_is_an_error() -> None:
    with pytest.raises(KeyError):
        Page("server", 0).render([Sample("asyncps_nonsense", 1)])


def test_label_of_a_peer_is_escaped() -> None:
    text = Page("server", 0).render([Sample("asyncps_waiting_seconds", 1, ("1", 'a"\n}'))])
    assert rb'what="a\"\n}"' in text


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_endpoint_of_a_role_reads_on_its_loop() -> None:
    def get(endpoint: Endpoint) -> str:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return str(answer.read().decode())

    async with bench(num_workers=1, metrics_port=0) as made:
        (worker,) = await running(made)
        assert worker._metrics is not None
        found = values(await asyncio.to_thread(get, worker._metrics))
        assert found['asyncps_sent_bytes_total{rank="0",role="worker"}'] >= 0
        config = settings(metrics_port=0)
        scheduler = start_metrics(config, "scheduler", 0, made.scheduler.status)
        assert scheduler is not None
        try:
            found = values(await asyncio.to_thread(get, scheduler))
            assert found['asyncps_running{rank="0",role="scheduler"}'] == 1
        finally:
            scheduler.close()


async def test_nothing_is_served_unless_it_is_asked_for() -> None:
    assert start_metrics(settings(), "server", 0, lambda: REPORT) is None


async def test_port_that_nobody_chose_is_told_on_stderr_and_by_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with bench(num_workers=1) as made:
        made.server(0)
        config = made.config.replace(role="worker", rank=0, metrics_port=0)
        worker = Worker(config, made.network, made.scope.spawn)
        made.scope.roles.append(worker)
        await worker.start()
        said = re.fullmatch(r"asyncps: metrics of worker 0 at http://127\.0\.0\.1:(\d+)/metrics\n",
                            capsys.readouterr().err)
        assert said is not None
        status = await look(made.config, 10.0)
        ports = {node.member.role: node.report.metrics_port for node in status.nodes
                 if node.report is not None}
        assert ports == {"server": 0, "worker": int(said[1])}
        data = next(n for n in as_data(status)["nodes"] if n["role"] == "worker")
        assert data["report"]["metrics_port"] == int(said[1])
        assert f"  {said[1]}  " in plain(*tables(status, made.config.scheduler)) + "  "


async def test_busy_metrics_port_fails_the_start_of_a_worker() -> None:
    endpoint = start_metrics(settings(metrics_port=0), "server", 0, lambda: REPORT)
    assert endpoint is not None
    try:
        async with bench(num_workers=1) as made:
            made.server(0)
            config = made.config.replace(role="worker", rank=0, metrics_port=endpoint.port)
            worker = Worker(config, made.network, made.scope.spawn)
            made.scope.roles.append(worker)
            with pytest.raises(TransportError, match="cannot listen for metrics"):
                await worker.start()
    finally:
        endpoint.close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_metrics_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="metrics_port"):
        settings(metrics_port=port)
