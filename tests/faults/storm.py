"""A network in a storm: each connection is cut, frozen and slowed at random, by a seed.

A proxy stands before the scheduler and before each server of a job of real processes. A server is
bound to 127.0.0.1 and advertises another loopback address, on which the proxy has the same port:
so nobody, and no lane, finds a way around it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

from tests.faults.job import Job, ReservedPort
from tests.support.processes import ManagedProcess, ProcessGroup
from tests.support.proxy import Direction, TcpProxy, ThreadProxy

_ADVERTISED = "127.0.0.9"


class StormProxy(TcpProxy):
    """Fails by itself: before each piece that it passes it draws what happens to it.

    Args:
        target: The real server.
        seed: Of what is drawn.
        cut: How likely a piece is cut somewhere inside, alone or with all other connections.
        freeze: How likely everything stops for up to 30 ms.
        slow: How likely this piece alone is up to 10 ms late.

    Attributes:
        cuts: How many there were.
        freezes: The same, pieces that were late included.
    """

    def __init__(
        self, target: tuple[str, int], *, seed: int, cut: float, freeze: float = 0.004,
        slow: float = 0.02, **given: Any,
    ) -> None:
        super().__init__(target, **given)
        self._chance = random.Random(seed)
        self._cut, self._freeze, self._slow = cut, freeze, slow
        self.cuts = self.freezes = 0
        self.calm = False

    async def before(self, direction: Direction, nbytes: int) -> None:
        """Draw what happens to a piece."""
        chance, drawn = self._chance, self._chance.random()
        if self.calm:
            return
        if drawn < self._cut:
            self.cuts += 1
            self.cut_after(chance.randint(1, nbytes), direction, reset=chance.random() < 0.3,
                           alone=chance.random() < 0.7)
        elif drawn < self._cut + self._freeze:
            self.freezes += 1
            self.freeze()
            asyncio.get_running_loop().call_later(chance.uniform(0, 0.03), self.thaw)
            await self._flowing.wait()
        elif drawn < self._cut + self._freeze + self._slow:
            self.freezes += 1
            await asyncio.sleep(chance.uniform(0, 0.01))


class Storm:
    """What is to be said of a job's proxies afterwards."""

    def __init__(self, proxies: list[ThreadProxy]) -> None:
        self._proxies = proxies

    @property
    def cuts(self) -> list[int]:
        """Cuts of each proxy, the scheduler's first."""
        return [proxy._proxy.cuts for proxy in self._proxies]  # type: ignore[attr-defined]

    @property
    def freezes(self) -> list[int]:
        """Freezes and late pieces of each proxy, the scheduler's first."""
        return [proxy._proxy.freezes for proxy in self._proxies]  # type: ignore[attr-defined]


@contextlib.contextmanager
def job_in_a_storm(
    processes: ProcessGroup, program: str, *arguments: str, seed: int, workers: int = 2,
    servers: int = 2, **env: str | float,
) -> Iterator[tuple[Storm, ManagedProcess, list[ManagedProcess], list[ManagedProcess]]]:
    """Start a job whose connections all pass proxies; yields storm, scheduler, servers, workers."""
    job = Job(processes, workers=workers, servers=servers, **env)
    with contextlib.ExitStack() as stack:
        scheduler = job.scheduler()
        proxies = []

        def before(port: int, number: int, cut: float, **given: Any) -> ThreadProxy:
            kind = functools.partial(StormProxy, seed=seed + number, cut=cut, **given)
            proxy = ThreadProxy(("127.0.0.1", port), kind=kind, listen_host=_ADVERTISED)
            proxies.append(stack.enter_context(proxy))
            return proxies[-1]

        control = before(job.port, 0, 0.1)
        job.address = f"{_ADVERTISED}:{control.port}"
        running = []
        for rank in range(servers):
            port = stack.enter_context(ReservedPort("0.0.0.0")).number
            before(port, 1 + rank, 0.02, listen_port=port)
            running.append(job.server(rank, ASYNCPS_BIND=f"127.0.0.1:{port}",
                                      ASYNCPS_ADVERTISE=_ADVERTISED))
        there = [job.worker(program, rank, *arguments) for rank in range(workers)]
        yield Storm(proxies), scheduler, running, there
