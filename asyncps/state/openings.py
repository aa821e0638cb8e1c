"""What a worker may say when it opens a store, and what it hears when it may not."""

from __future__ import annotations

from asyncps.errors import ClosedError, ConfigError
from asyncps.protocol import messages as m

STORE_TYPES = ("dist_sync", "dist_async", "dist_ssp")
MAX_STALENESS = 1 << 20
ORDERS = ("arrival", "rank")
REDUCTIONS = ("sum", "mean")
MAX_NAME = 1024  # characters of the name of a store or an optimizer: the same


def check_name(what: str, name: str) -> None:
    """Refuse a name.

    Raises:
        ConfigError: It is empty or too long.
    """
    if not 1 <= len(name) <= MAX_NAME:
        raise ConfigError(f"the name of {what} has the wrong length",
                          expected=f"1 to {MAX_NAME} characters", got=len(name))


def no_servers(kind: str) -> ConfigError:
    """Return what a worker hears that opens a store in a job of workers alone."""
    return ConfigError(
        f"a {kind} store keeps its values on servers, and this job has none (num_servers is 0)",
        expected="a job with servers (launch -s 1 or more); or, without them, a store of type "
                 "allreduce, or asyncps.Communicator")


def check_config(config: m.StoreConfig, num_servers: int) -> None:
    """Refuse what no store can be, in a job of so many servers.

    Raises:
        ConfigError: It names what is wrong.
    """
    if not num_servers:
        raise no_servers(config.type[:100])
    for name, allowed in (("type", STORE_TYPES), ("order", ORDERS), ("reduce", REDUCTIONS)):
        if getattr(config, name) not in allowed:
            raise ConfigError(f"unknown {name} of a store", expected=", ".join(allowed),
                              got=repr(getattr(config, name)[:100]))
    most = MAX_STALENESS if config.type == "dist_ssp" else 0
    if not 0 <= config.staleness <= most:
        raise ConfigError(f"staleness of a {config.type} store is out of range",
                          expected=f"0 to {most}", got=config.staleness)


def closed_error(rank: int, name: str) -> ClosedError:
    """Return what a worker hears that has closed a store which others have open."""
    return ClosedError(f"worker {rank} has closed store {name!r}, which others have open",
                       expected="another name, or to open it once all workers have closed it")
