"""What a running job does: asked from its scheduler as an observer, who is no member.

Each look is a connection of its own: an observer that goes away, or stays, means nothing to the
job.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec

from asyncps.config import Config
from asyncps.errors import AsyncPSError, ConfigError, DeadlineExceeded, RemoteProtocolError
from asyncps.protocol import messages as m
from asyncps.protocol.frames import Header, Kind
from asyncps.protocol.handshake import Hello
from asyncps.transport.connection import Connection
from asyncps.transport.network import TcpNetwork
from asyncps.transport.request import control_frame
from asyncps.transport.tcp import parse_address

_AGAIN_S = 0.1  # between two questions: the nodes answer the scheduler meanwhile
_PATIENCE_S = 1.0  # for nodes that do not answer: a frozen one is to be shown as it is
_FRESH_S = 0.5  # numbers that another observer had asked for are good enough


async def look(config: Config, timeout_s: float) -> m.JobStatus:
    """Ask the scheduler how the job is.

    Args:
        config: Says where it is, and the job's name and token.
        timeout_s: How long it may take in all.

    Raises:
        TransportError: Nobody listens there.
        HandshakeError: It is of another job, or has another token.
        DeadlineExceeded: It did not answer in time.
        AsyncPSError: It refused, or went away.
    """
    address = parse_address(config.scheduler, 9091)
    end = _End()
    hello = Hello("observer", -1, 0, config.job, b"")
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await TcpNetwork().connect(
                lambda: Connection(end, hello, config.token, connector=True),
                address.host, address.port,
            )
            await end.up
            return await _ask_until_fresh(end, connection, min(_PATIENCE_S, timeout_s / 2))
    except TimeoutError:
        raise DeadlineExceeded(
            f"the scheduler at {address} did not answer within {timeout_s:g} s"
        ) from None
    finally:
        if connection is not None:
            connection.abort()
            await end.gone.wait()


async def _ask_until_fresh(
    end: _End, connection: Connection, patience_s: float
) -> m.JobStatus:
    now = asyncio.get_running_loop().time
    began, request = now(), 0
    while True:
        request += 1
        status = await end.ask(connection, request)
        took = now() - began
        old = max(took, _FRESH_S)
        if took > patience_s or all(
            node.standing != "alive" or (node.report is not None and node.report_age_s <= old)
            for node in status.nodes
        ):
            return status
        await asyncio.sleep(_AGAIN_S)


class _End:
    """The observer's end of its connection."""

    def __init__(self) -> None:
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._answer: asyncio.Future[m.JobStatus] | None = None
        self._request = 0

    async def ask(self, connection: Connection, request: int) -> m.JobStatus:
        """Send a question and wait for its answer."""
        self._answer, self._request = asyncio.get_running_loop().create_future(), request
        if self.gone.is_set():
            self.up.result()
        frame = control_frame(m.AskStatus(), request, 0, request)
        connection.send([frame], len(frame))
        return await self._answer

    def connection_ready(self, connection: Connection) -> _End:
        """The scheduler has proven itself."""
        if not self.up.done():
            self.up.set_result(None)
        return self

    def connection_closed(self, connection: Connection, error: AsyncPSError) -> None:
        """Whoever waits hears why."""
        self.gone.set()
        if self.up.done():
            self.up = asyncio.get_running_loop().create_future()
        for future in (self.up, self._answer):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # it may be that nobody waits

    def begin(self, header: Header, table: memoryview) -> memoryview | None:
        """There are no payloads here."""
        raise RemoteProtocolError("a payload for an observer", got=header.payload_bytes)

    def finish(self, header: Header, table: memoryview) -> None:
        """Take an answer."""
        answer = self._answer
        if header.kind != Kind.CONTROL or answer is None or answer.done():
            return
        message = m.decode(table)
        if header.request != self._request:
            return
        if isinstance(message, m.JobStatus):
            answer.set_result(message)
        elif isinstance(message, m.ErrorInfo):
            answer.set_exception(m.error_from_wire(message))
        else:
            raise RemoteProtocolError("no answer to an observer", got=type(message).__name__)


# ---- where the job is -----------------------------------------------------------------------


def environment_of(pid: int) -> dict[str, str]:
    """Return what a process says of its cluster, or else the first of those below it that does.

    It is read from /proc, which shows it to the owner of the process only.

    Raises:
        ConfigError: No such process of ours is a member of a job.
    """
    for one in (pid, *_descendants(pid)):
        try:
            raw = Path(f"/proc/{one}/environ").read_bytes()
        except OSError:
            continue
        pairs = (item.partition("=") for item in os.fsdecode(raw).split("\0"))
        found = {name: value for name, _, value in pairs if name in _PLACE_NAMES and value}
        port = found.get("ASYNCPS_SCHEDULER", "").rpartition(":")[2]
        if port.isdecimal() and int(port):  # the scheduler itself may have been told any port
            return found
    raise ConfigError(f"process {pid} and those below it are in no job that can be read",
                      expected="the pid of a launcher, server or worker of this user")


_PLACE_NAMES = frozenset({"ASYNCPS_SCHEDULER", "ASYNCPS_TOKEN", "ASYNCPS_JOB"})


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = sorted(parents.get(pid, []))
    for child in found:
        found.extend(sorted(parents.get(child, [])))
    return found


# ---- plain data -----------------------------------------------------------------------------


def missing(status: m.JobStatus) -> list[tuple[str, int]]:
    """Return the places that nobody has taken yet, servers first."""
    taken = {(node.member.role, node.member.rank) for node in status.nodes}
    totals = (("server", status.num_servers), ("worker", status.num_workers))
    return [(role, rank) for role, total in totals for rank in range(total)
            if (role, rank) not in taken]


def waits(status: m.JobStatus) -> list[dict[str, Any]]:
    """Return who is waited for, the longest wait first, with who says so (`by`)."""
    said = [("scheduler", 0.0, status.waits)]
    said += [
        (f"{node.member.role} {node.member.rank}", node.report_age_s, node.report.waits)
        for node in status.nodes if node.report is not None
    ]
    found = [
        {"role": "worker", "by": by, "age_s": age_s, **msgspec.structs.asdict(wait)}
        for by, age_s, listed in said for wait in listed
    ]
    return sorted(found, key=lambda wait: -wait["seconds"])


def as_data(status: m.JobStatus) -> dict[str, Any]:
    """Return everything as plain data, for --json."""
    nodes = []
    for node in status.nodes:
        report = None if node.report is None else msgspec.structs.asdict(node.report)
        if report is not None:
            del report["waits"]  # they are listed once, for all
        nodes.append({
            **msgspec.structs.asdict(node.member), "standing": node.standing,
            "silent_s": node.silent_s, "report_age_s": node.report_age_s, "report": report,
        })
    return {
        "phase": status.phase, "up_s": status.up_s, "error": status.error,
        "num_workers": status.num_workers, "num_servers": status.num_servers,
        "nodes": nodes,
        "missing": [{"role": role, "rank": rank} for role, rank in missing(status)],
        "stores": [msgspec.structs.asdict(store) for store in status.stores],
        "waits": waits(status),
    }
