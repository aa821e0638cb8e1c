"""The numbers of a role as Prometheus reads them: names, kinds, and the page.

Nothing is counted here: a role hands in the numbers that it keeps anyway when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from asyncps.observe.endpoint import Deliver, Endpoint

# Every name, without "_total" for what only grows, and what it tells. Each has the labels role and
# rank; those of the third column are its own.
FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "asyncps_sent_bytes": ("counter", "Bytes that were sent to peers", ()),
    "asyncps_received_bytes": ("counter", "Bytes that came from peers", ()),
    "asyncps_queued_bytes": ("gauge", "Bytes that wait to be sent", ()),
    "asyncps_queued_frames": ("gauge", "Frames that wait to be sent", ()),
    "asyncps_waiting_requests": ("gauge", "Requests that have no answer yet", ()),
    "asyncps_keys": ("gauge", "Keys; of a server: parts of keys that it keeps", ()),
    "asyncps_rounds": (
        "counter", "Rounds of chunks and slabs: of a server applied, of a worker pushed", ()),
    "asyncps_value_bytes": ("gauge", "Bytes of the values that a server keeps", ()),
    "asyncps_waited_seconds": (
        "counter", "Time that rounds waited for this worker as the last one", ("worker",)),
    "asyncps_waiting_seconds": (
        "gauge", "How long this worker has been waited for, now", ("worker", "what")),
    "asyncps_members": ("gauge", "Members of the job by standing", ("standing",)),
    "asyncps_expected_members": ("gauge", "Members that the job has when all are there", ()),
    "asyncps_stores": ("gauge", "Stores of the job", ()),
    "asyncps_running": ("gauge", "1 while the job runs", ()),
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; `labels` are the values of its family's own labels, in their order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class _Page(Collector):
    """Hands one set of samples to prometheus-client."""

    def __init__(self, role: str, rank: int) -> None:
        self._place = (role, str(rank))
        self.samples: Sequence[Sample] = ()

    def collect(self) -> Iterable[Metric]:
        """Yield a family for each name, in the order in which they first come."""
        by_name: dict[str, list[Sample]] = {}
        for sample in self.samples:
            by_name.setdefault(sample.name, []).append(sample)
        return self._families(by_name)

    def _families(self, by_name: dict[str, list[Sample]]) -> Iterator[Metric]:
        for name, samples in by_name.items():
            kind, text, labels = FAMILIES[name]
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                name, text, labels=("role", "rank", *labels)
            )
            for sample in samples:
                family.add_metric((*self._place, *sample.labels), sample.value)
            yield family


class Page:
    """Makes the page of one role.

    Args:
        role: Its role.
        rank: Its number; the scheduler's is 0.
    """

    def __init__(self, role: str, rank: int) -> None:
        self._page = _Page(role, rank)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._page)

    def render(self, samples: Sequence[Sample]) -> bytes:
        """Return the Prometheus text of samples; one thread at a time.

        Raises:
            KeyError: A sample of no family.
        """
        self._page.samples = samples
        text: bytes = generate_latest(self._registry)
        return text


def serve(
    host: str, port: int, role: str, rank: int, ask: Callable[[Deliver], Any]
) -> Endpoint:
    """Serve the numbers of one role until the endpoint is closed.

    Args:
        host: Where to listen.
        port: The port; 0 is any.
        role: Label.
        rank: Label.
        ask: Has a list of samples delivered soon; called on the endpoint's thread.

    Raises:
        TransportError: The address cannot be used.
    """
    return Endpoint(host, port, ask, Page(role, rank).render, CONTENT_TYPE)
