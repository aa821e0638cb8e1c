"""A group of communicators in this process: one thread and one loop a rank, over real sockets."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from asyncps.communicator import Communicator
from asyncps.config import Config
from asyncps.roles.runtime import Runtime, loop_factory
from asyncps.roles.scheduler import Scheduler
from asyncps.transport.network import TcpNetwork
from tests.support.cluster import asked_loop

T = TypeVar("T")


class Group:
    """Ranks that can be run again and again.

    Attributes:
        ranks: The communicators.
    """

    def __init__(self, ranks: list[Communicator]) -> None:
        self.ranks = ranks

    def run(self, work: Callable[[Communicator], T], limit_s: float = 25.0) -> list[T]:
        """Run `work(communicator)` in one thread a rank; returns results, or raises in rank order
        what one of them raised.
        """
        return [outcome() for outcome in self.outcomes(work, limit_s)]

    def outcomes(
        self, work: Callable[[Communicator], T], limit_s: float = 25.0
    ) -> list[Callable[[], T]]:
        """As `run`, but each result stands for itself: calling it returns or raises."""
        found: list[Callable[[], Any]] = [_missing] * len(self.ranks)

        def one(rank: int) -> None:
            try:
                result = work(self.ranks[rank])
                found[rank] = lambda: result
            except BaseException as error:  # noqa: BLE001 - raised for the test that asks
                kept = error
                found[rank] = lambda: _raise(kept)

        threads = [threading.Thread(target=one, args=(rank,), daemon=True)
                   for rank in range(len(self.ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s)
        return found


@contextlib.contextmanager
def held(comm: Communicator, then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """The loop of a rank has other work; `then` is called at its end, before all that has come."""
    begun, release = threading.Event(), threading.Event()

    async def hold() -> None:
        begun.set()
        release.wait(20)
        then()

    holding = threading.Thread(target=lambda: comm._runtime.run(hold))
    holding.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        release.set()
        holding.join()


def _missing() -> Any:
    raise AssertionError("a rank has not ended")


def _raise(error: BaseException) -> Any:
    raise error


@contextlib.contextmanager
def group(size: int, **settings: Any) -> Iterator[Group]:
    """Open a group of so many ranks."""
    base = Config.from_env({}, **{
        **asked_loop(),
        "num_workers": size, "num_servers": 0, "scheduler": "127.0.0.1:0",
        "token": secrets.token_hex(8), "job": "group", **settings,
    })
    runtime = Runtime(loop_factory(base))

    async def start() -> Scheduler:
        scheduler = Scheduler(base.replace(role="scheduler"), TcpNetwork(), runtime.spawn)
        scheduler.quiet = True
        await scheduler.start()
        return scheduler

    scheduler = runtime.run(start)
    mine = base.replace(scheduler=f"127.0.0.1:{scheduler.port}")
    ranks: list[Communicator | None] = [None] * size
    failed: list[BaseException] = []

    def join(rank: int) -> None:
        try:
            ranks[rank] = Communicator._open(mine.replace(rank=rank))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    try:
        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        there = [each for each in ranks if each is not None]
        opened = Group(there)
        yield opened
    finally:
        closing = [threading.Thread(target=_close, args=(each,)) for each in ranks if each]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        runtime.run(scheduler.close)
        runtime.close()


def _close(each: Communicator) -> None:
    with contextlib.suppress(Exception):
        each.close()
