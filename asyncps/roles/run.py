"""Run the scheduler or a server as a process: loop, log, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from asyncps import optim
from asyncps.config import Config
from asyncps.errors import AsyncPSError, ConfigError, NodeLost
from asyncps.observe.endpoint import Endpoint
from asyncps.roles.metering import start_metrics
from asyncps.roles.runtime import loop_factory
from asyncps.roles.scheduler import Scheduler
from asyncps.roles.server import Server
from asyncps.transport.network import TcpNetwork
from asyncps.transport.tcp import Address, parse_address

log = logging.getLogger(__name__)


def run_role(config: Config) -> int:
    """Run this process's role until the job ends.

    Args:
        config: With `role` "scheduler" or "server".

    Returns:
        The exit code: 0 when the job ended well, 130 after Ctrl-C, else 1.
    """
    if config.role not in ("scheduler", "server"):
        raise ConfigError("this process has no role to run", expected="scheduler or server",
                          got=config.role)
    name = config.role if config.rank is None else f"{config.role} {config.rank}"
    logging.basicConfig(
        level=config.log_level.upper(), stream=sys.stderr, force=True,
        format=f"%(asctime)s asyncps {name}: %(levelname)s: %(message)s",
    )
    if not config.token:
        log.warning("no ASYNCPS_TOKEN: anybody on this machine may join the job")
    if config.role == "server":
        optim.import_modules(config.imports)
    try:
        with asyncio.Runner(loop_factory=loop_factory(config)) as runner:
            told = runner.run(_main(config))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143  # SIGTERM
    except AsyncPSError as error:
        # The launcher has said who ended, and the others need not repeat it.
        known = isinstance(error, NodeLost) and config.parent is not None
        log.log(logging.DEBUG if known else logging.ERROR, "%s: %s", type(error).__name__, error)
        return 1
    return 1 if told else 0


async def _main(config: Config) -> bool:
    """Run the role; tell whether the job has failed and the scheduler's log has said why.

    Raises:
        AsyncPSError: Why it failed, if nobody has said so yet.
    """
    failure: AsyncPSError | None = None
    told = False
    async with asyncio.TaskGroup() as tasks:

        def spawn(work: Coroutine[Any, Any, Any], name: str) -> None:
            running.append(tasks.create_task(work, name=name))

        running: list[asyncio.Task[Any]] = []
        role: Scheduler | Server
        metrics: Endpoint | None = None
        kind = Scheduler if config.role == "scheduler" else Server
        role = kind(config, TcpNetwork(), spawn)
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        if isinstance(role, Scheduler):
            role.tell = _tell
        try:
            await role.start()
            if isinstance(role, Scheduler):
                print(f"asyncps scheduler listening on {_where(config, role.port)}", flush=True)
            numbers = role.status if isinstance(role, Scheduler) else role.report
            rank = 0 if isinstance(role, Scheduler) else role.node.rank
            metrics = start_metrics(config, config.role or "", rank, numbers)
            if isinstance(role, Server) and metrics is not None:
                role.metrics_port = metrics.port
            told = isinstance(role, Scheduler)
            await role.run()
            told = False
        except AsyncPSError as error:
            failure = error
        finally:
            if metrics is not None:
                metrics.close()
            await role.close()
            for task in running:
                task.cancel()
    if failure is not None and not told:
        raise failure
    return told


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        print(f"asyncps scheduler: {text}", flush=True)


def _where(config: Config, port: int) -> Address:
    address = parse_address(config.bind or config.scheduler, 9091)
    return Address(address.host, port, port)
