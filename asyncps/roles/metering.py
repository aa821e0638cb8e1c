"""From what a role says of itself to metrics, and the endpoint that serves them if it is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncps.config import Config
from asyncps.protocol.messages import JobStatus, Report

if TYPE_CHECKING:
    from asyncps.observe.endpoint import Endpoint
    from asyncps.observe.metrics import Sample

log = logging.getLogger(__name__)

Numbers = Report | JobStatus


def start_metrics(
    config: Config, role: str, rank: int, numbers: Callable[[], Numbers]
) -> Endpoint | None:
    """Serve the metrics of a role if the settings ask for it; the caller closes the endpoint.

    Args:
        config: `metrics_port` None serves nothing.
        role: Label.
        rank: Label.
        numbers: Makes the numbers; it is called on the running loop.

    Raises:
        TransportError: The address cannot be used.
    """
    if config.metrics_port is None:
        return None
    from asyncps.observe import metrics  # only who wants metrics needs prometheus-client

    loop = asyncio.get_running_loop()

    def ask(deliver: Callable[[Any], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and we soon
            loop.call_soon_threadsafe(lambda: deliver(samples(numbers())))

    endpoint = metrics.serve(config.metrics_host, config.metrics_port, role, rank, ask)
    host = f"[{config.metrics_host}]" if ":" in config.metrics_host else config.metrics_host
    where = f"metrics of {role} {rank} at http://{host}:{endpoint.port}/metrics"
    if role == "worker" and config.metrics_port == 0:
        # A user's program shows its log if it likes; a port that nobody chose must be told.
        print(f"asyncps: {where}", file=sys.stderr, flush=True)
    else:
        log.info("%s", where)
    return endpoint


def samples(numbers: Numbers) -> list[Sample]:
    """Return the samples of a server's or worker's report, or of the scheduler's status."""
    from asyncps.observe.metrics import Sample

    if isinstance(numbers, JobStatus):
        standings = Counter(node.standing for node in numbers.nodes)
        found = [
            Sample("asyncps_running", float(numbers.phase == "running")),
            Sample("asyncps_expected_members", numbers.num_workers + numbers.num_servers),
            *(Sample("asyncps_members", standings[name], (name,))
              for name in ("alive", "suspect", "lost", "left")),
            Sample("asyncps_stores", len(numbers.stores)),
            Sample("asyncps_keys", sum(store.keys for store in numbers.stores)),
        ]
    else:
        found = [
            Sample("asyncps_sent_bytes", numbers.sent_bytes),
            Sample("asyncps_received_bytes", numbers.received_bytes),
            Sample("asyncps_queued_bytes", numbers.queued_bytes),
            Sample("asyncps_queued_frames", numbers.queued_frames),
            Sample("asyncps_waiting_requests", numbers.requests),
            Sample("asyncps_keys", numbers.keys),
            Sample("asyncps_rounds", numbers.rounds),
            Sample("asyncps_value_bytes", numbers.value_bytes),
            *(Sample("asyncps_waited_seconds", seconds, (str(rank),))
              for rank, seconds in sorted(numbers.waited_s.items())),
        ]
    waiting: dict[tuple[str, str], float] = {}
    for wait in numbers.waits:
        place = (str(wait.rank), wait.what)
        waiting[place] = max(wait.seconds, waiting.get(place, 0.0))
    return found + [Sample("asyncps_waiting_seconds", seconds, place)
                    for place, seconds in waiting.items()]
