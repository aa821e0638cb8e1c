"""What a node says of itself when it is asked: numbers that are kept anyway, and who is late.

Nothing is counted for it while nobody asks; a question costs a look at the open rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from asyncps.protocol.messages import Report, Wait
from asyncps.roles.slab import parts_of
from asyncps.state.overview import MAX_WAITS

if TYPE_CHECKING:
    from asyncps.roles.keeper import Keeper
    from asyncps.roles.port import WorkerPort
    from asyncps.roles.server import Server
    from asyncps.roles.worker import Worker

# Open rounds that one question looks into: about a millisecond of the loop.
_MAX_LOOKED = 2000
_MAX_KEY = 100  # characters of a key that are told


def traffic(ports: Iterable[WorkerPort]) -> tuple[int, int, int]:
    """Return the bytes that came from workers, went to them, and wait to be sent."""
    received = sent = queued = 0
    for port in ports:
        received += port.received_before
        sent += port.sent_before
        queued += port.outbox.queued_bytes
        if port.connection is not None:
            received += port.connection.received
            sent += port.connection.sent
    return received, sent, queued


def of_server(server: Server, now: float, metrics_port: int) -> Report:
    """Return the numbers of a server, all its stores together.

    Args:
        server: The server.
        now: Loop time.
        metrics_port: Where it serves metrics, or 0.
    """
    ports = [*server.ports.values(), *server.lanes.values()]
    received, sent, queued = traffic(ports)
    keepers = server.keepers
    waited: dict[int, float] = {}
    for keeper in keepers.values():
        for rank, seconds in keeper.rules.waited_s.items():
            waited[rank] = waited.get(rank, 0.0) + seconds
    return Report(
        sent, received, queued, sum(len(port.outbox) for port in ports),
        sum(len(port.parked) for port in ports),
        sum(len(keys) for keeper in keepers.values() for keys in keeper.keys.values()),
        sum(keeper.rules.rounds for keeper in keepers.values()),
        sum(keeper.value_bytes for keeper in keepers.values()), waited, late(keepers, now),
        metrics_port,
    )


def of_worker(worker: Worker, metrics_port: int) -> Report:
    """Return the numbers of a worker, all its stores together."""
    links, clients = worker.links, list(worker.clients.values())
    return Report(
        sum(link.sent_bytes for link in links) + worker.lanes.sent_bytes,
        sum(link.received_bytes for link in links) + worker.lanes.received_bytes,
        sum(link.outbox.queued_bytes for link in links), sum(len(link.outbox) for link in links),
        sum(len(link.unanswered) for link in links), sum(len(client.keys) for client in clients),
        sum(unit.track.furthest for client in clients for unit in client.units.values()),
        0, {}, [], metrics_port,
    )


def late(keepers: Mapping[int, Keeper], now: float) -> list[Wait]:
    """Return whom open rounds wait for, the longest wait of each rank and store first."""
    found: dict[tuple[int, int], Wait] = {}
    looked = 0
    for store, keeper in keepers.items():
        members = keeper.rules.members
        for number, unit in keeper.units.items():
            for part in parts_of(unit):
                for opened, accumulator in part.open.items():
                    clock = opened[0] if isinstance(opened, tuple) else opened
                    seconds = max(0.0, now - accumulator.began)
                    for rank in part.missing(clock, members):
                        looked += 1
                        before = found.get((store, rank))
                        count = 1 if before is None else before.count + 1
                        if before is None or seconds > before.seconds:
                            key = str(keeper.name_of(number))[:_MAX_KEY]
                            found[store, rank] = Wait("round", store, key, rank, seconds, count)
                        else:
                            found[store, rank] = Wait("round", store, before.key, rank,
                                                      before.seconds, count)
                if looked >= _MAX_LOOKED:
                    return _longest(found.values())
    return _longest(found.values())


def _longest(waits: Iterable[Wait]) -> list[Wait]:
    return sorted(waits, key=lambda wait: -wait.seconds)[:MAX_WAITS]
