"""Tables on stdout; the status of a job, once or again and again."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from typing import Any

from asyncps.config import Config
from asyncps.errors import ConfigError, ConnectionLost, HandshakeError, TransportError
from asyncps.observe import status as observing
from asyncps.observe.tables import Table, counted, plain, rich_view, size, span
from asyncps.protocol.messages import JobStatus
from asyncps.roles.runtime import loop_factory


def show_status(
    config: Config, *, watch_s: float | None, timeout_s: float, as_json: bool, hint: str = ""
) -> None:
    """Show a job on stdout: JSON, a table, or a table that goes on (until Ctrl-C).

    Args:
        config: Says where the scheduler is, and the job's name and token.
        watch_s: Seconds between two looks, or None for one look.
        timeout_s: How long one look may take.
        as_json: One JSON object a line.
        hint: Added to the error of a first look that finds no scheduler, or another job's.

    Raises:
        ConfigError: A time that is none.
        AsyncPSError: As `status.look`.
    """
    for name, seconds in (("--watch", watch_s), ("--timeout", timeout_s)):
        if seconds is not None and not 0 < seconds < 1e6:
            raise ConfigError(f"{name} must be a positive number of seconds", got=seconds)
    with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
        runner.run(_show(config, watch_s, timeout_s, as_json, hint))


async def _show(
    config: Config, watch_s: float | None, timeout_s: float, as_json: bool, hint: str
) -> None:
    screen = None if as_json or not sys.stdout.isatty() else _Screen(live=watch_s is not None)
    try:
        while True:
            try:
                found = await observing.look(config, timeout_s)
            except (HandshakeError, TransportError) as error:
                if hint and not isinstance(error, ConnectionLost):
                    error.message += f"; {hint}"
                raise
            hint = ""
            if screen is not None:
                screen.show(*tables(found, config.scheduler))
            elif as_json:
                print(json.dumps(observing.as_data(found)), flush=True)
            else:
                print(plain(*tables(found, config.scheduler)), flush=True)
            if watch_s is None:
                return
            await asyncio.sleep(watch_s)
    finally:
        if screen is not None:
            screen.close()


def show(heading: str, shown: list[Table]) -> None:
    """Show tables on stdout once."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        screen = _Screen(live=False)
        screen.show(heading, shown)
        screen.close()
    else:
        print(plain(heading, shown), flush=True)


class _Screen:
    """A terminal that shows one view after the other at the same place."""

    def __init__(self, *, live: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if live else None

    def show(self, heading: str, shown: list[Table]) -> None:
        view: Any = rich_view(heading, shown, self._console.width)
        if self._live is None:
            self._console.print(view)
            return
        self._live.start()
        self._live.update(view, refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def tables(status: JobStatus, scheduler: str) -> tuple[str, list[Table]]:
    """Return the heading and the tables of a status."""
    absent = observing.missing(status)
    heading = (
        f"job at {scheduler}: {status.phase} for {span(status.up_s)}, "
        f"{counted(status.num_workers, 'worker')}, {counted(status.num_servers, 'server')}"
    )
    if status.error is not None:
        heading += f"; {status.error}"
    late = _late(status)
    nodes = Table("nodes", (
        "role", "rank>", "host", "address", "pid>", "state", "heard>", "keys>", "in>", "out>",
        "queued>", "frames>", "requests>", "rounds>", "metrics>", "waited for>",
    ), spare=("frames", "queued", "requests", "metrics", "address", "pid", "keys", "heard", "out",
              "in", "rounds"))
    for node in status.nodes:
        member, report = node.member, node.report
        address = f"{member.host}:{member.port}" if member.port else ""
        numbers = ("?",) * 8 if report is None else (
            str(report.keys), size(report.received_bytes), size(report.sent_bytes),
            size(report.queued_bytes), str(report.queued_frames), str(report.requests),
            str(report.rounds), str(report.metrics_port or ""),
        )
        seconds = late.get(member.rank) if member.role == "worker" else None
        mood = "bad" if node.standing == "lost" else "warn" if seconds or node.silent_s > 3 else ""
        nodes.add(member.role, member.rank, member.hostname, address, member.pid, node.standing,
                  f"{span(node.silent_s)} ago", *numbers,
                  span(seconds) if seconds is not None else "", mood=mood)
    for role, rank in absent:
        nodes.add(role, rank, "", "", "", "missing", *("",) * 10, mood="warn")
    stores = Table("stores", ("store>", "name", "type", "keys>"), spare=("keys",))
    for store in status.stores:
        stores.add(store.store, store.name, store.type, store.keys)
    waiting = Table("waited for", ("who", "for>", "what", "store>", "key", "waiting>", "says"),
                    spare=("says", "waiting", "store"))
    for wait in observing.waits(status):
        waiting.add(f"{wait['role']} {wait['rank']}", span(wait["seconds"]), wait["what"],
                    wait["store"], wait["key"], wait["count"], wait["by"])
    return heading, [nodes, stores, waiting]


def _late(status: JobStatus) -> dict[int, float]:
    """Return how long each worker that is waited for has been."""
    found: dict[int, float] = {}
    for wait in observing.waits(status):
        found.setdefault(wait["rank"], wait["seconds"])  # the longest comes first
    return found
