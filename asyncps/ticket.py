"""JobTicket: processes that one program starts become a group of workers, without a launcher.

The program makes a ticket and hands it to each process, which says its rank and how many they are.
The ticket is an address on this machine and a secret of its own, as plain data; its maker listens
there for as long as it lives.
"""

from __future__ import annotations

import logging
import operator
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from asyncps.config import Config
from asyncps.errors import ClosedError, ConfigError
from asyncps.hosting import DECIDED, Host, check_options, outside, settings_of_member

log = logging.getLogger(__name__)

# All of a ticket's group is on this machine.
_ITS_OWN = frozenset({"bind", "advertise", "interface", "metrics_port", "metrics_host"})
# Python first waits for the processes that it has started, then runs what has such a priority.
_AFTER_CHILDREN = -10


class JobTicket:
    """Lets the processes that hold it become one group of workers.

    Make it in the program that starts them, and hand it to each: as an argument of
    `multiprocessing.Process` (spawn, forkserver or fork), or by a queue or pool. Whoever has it may
    join, and nobody else; the environment's token is never used. One group after another may use a
    ticket, but not two at the same time.

    The maker listens in a background thread until `close`, the end of a `with` block or of the
    program. When it ends all members raise SchedulerLost, within seconds.

    Args:
        settings: Of `asyncps.config.Config`, by name, for the maker's side: rendezvous_s,
            on_worker_lost, reconnect_s, frozen_worker_s and the like.

    Attributes:
        address: Where the maker listens.

    Raises:
        ConfigError: An unknown setting.
        TransportError: There is no way to listen on this machine.

    Example:
        >>> with asyncps.JobTicket() as ticket:
        ...     for rank in range(4):
        ...         multiprocessing.Process(target=train, args=(ticket, rank, 4)).start()
    """

    def __init__(self, **settings: Any) -> None:
        check_options(settings, DECIDED | _ITS_OWN)
        self._secret = secrets.token_hex(32)
        self._job = f"ticket-{secrets.token_hex(8)}"
        config = Config.from_env(
            outside(), **settings, role="scheduler", num_servers=0, scheduler="127.0.0.1:0",
            token=self._secret, job=self._job,
        ).replace(bind=None, advertise=None, interface=None, metrics_port=None)
        self._host: Host | None = Host(config, groups=True)
        self.address = self._host.address
        # Imported here: whoever needs no ticket need not wait for it.
        from multiprocessing import util

        self._end = util.Finalize(None, _end, (self._host,), exitpriority=_AFTER_CHILDREN)

    def __repr__(self) -> str:
        return f"<JobTicket of {self._job} at {self.address}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _handed_over, (self.address, self._secret, self._job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more; a group that still uses the ticket loses its scheduler.

        Only its maker can end it: in a process that it was handed to, this does nothing.
        """
        host = self._host
        if host is not None and not host.forked:
            self._end()

    @property
    def closed(self) -> bool:
        """Whether its maker, this process, has closed it."""
        return self._host is not None and not self._host.forked and not self._end.still_active()


def settings_of(
    ticket: JobTicket, rank: int, world_size: int, *, environ: Mapping[str, str] | None = None,
    **options: Any,
) -> Config:
    """Return the settings by which a process joins the group of a ticket.

    Args:
        ticket: As it was handed to this process, or its maker's own.
        rank: This process: 0 to world_size - 1, each once.
        world_size: How many they are; all must say the same.
        environ: Instead of the environment of this process.
        options: Other settings of `asyncps.config.Config`, by name.

    Raises:
        ConfigError: No ticket, or numbers that cannot be.
        ClosedError: The ticket was closed here.
    """
    if not isinstance(ticket, JobTicket):
        raise ConfigError("no ticket", expected="an asyncps.JobTicket", got=type(ticket).__name__)
    numbers = [_number(rank, "rank"), _number(world_size, "world_size")]
    if numbers[1] < 1 or not 0 <= numbers[0] < numbers[1]:
        raise ConfigError("rank or world_size is out of range",
                          expected="0 <= rank < world_size",
                          got=f"rank {numbers[0]}, world_size {numbers[1]}")
    check_options(options)
    if ticket.closed:
        raise ClosedError("this ticket is closed")
    return settings_of_member(
        numbers[0], numbers[1], scheduler=ticket.address, token=ticket._secret, job=ticket._job,
        environ=environ, **options,
    ).replace(bind=None, advertise=None, interface=None)


def _number(given: Any, what: str) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise ConfigError(f"{what} is a whole number", got=repr(given)) from None


def _handed_over(address: str, secret: str, job: str) -> JobTicket:
    """Make the ticket of a process that it was handed to: plain data, nobody listens here."""
    ticket = JobTicket.__new__(JobTicket)
    ticket.address, ticket._secret, ticket._job, ticket._host = address, secret, job, None
    return ticket


def _end(host: Host) -> None:
    host.close()
