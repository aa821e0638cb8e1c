"""The environment that the roles and the user's program find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from asyncps.config import MEMBERSHIP as MANAGED
from asyncps.errors import ConfigError

_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:[=:](.*))?", re.DOTALL)


def read_settings(
    texts: Iterable[str], environ: Mapping[str, str], option: str
) -> tuple[dict[str, str], list[str]]:
    """Read NAME=VALUE, NAME:VALUE (MXNet's form) and NAME (the caller's value).

    Returns:
        The settings, and the names without a value that the caller does not have either.

    Raises:
        ConfigError: Something else, or a name that the launcher decides.
    """
    settings: dict[str, str] = {}
    unset: list[str] = []
    for text in texts:
        match = _SETTING.fullmatch(text)
        if match is None:
            raise ConfigError(f"cannot read {option}", expected="NAME=VALUE or NAME",
                              got=repr(text))
        name, value = match.groups()
        if name in MANAGED:
            raise ConfigError(f"{option} cannot set {name}: the launcher decides it")
        if value is not None:
            settings[name] = value
        elif name in environ:
            settings[name] = environ[name]
        else:
            unset.append(name)
    return settings, unset


def without_cluster(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that names no cluster."""
    return {name: value for name, value in environ.items() if name not in MANAGED}


def membership(
    role: str,
    rank: int | None,
    *,
    num_workers: int,
    num_servers: int,
    scheduler: str,
    job: str,
) -> dict[str, str]:
    """Return the variables that make a process a member, with the DMLC twins for users' scripts.

    The token is not among them: who has one adds it.
    """
    host, _, port = scheduler.rpartition(":")
    found = {
        "ASYNCPS_ROLE": role,
        "ASYNCPS_NUM_WORKERS": str(num_workers),
        "ASYNCPS_NUM_SERVERS": str(num_servers),
        "ASYNCPS_SCHEDULER": scheduler,
        "ASYNCPS_JOB": job,
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_NUM_SERVER": str(num_servers),
        "DMLC_PS_ROOT_URI": host.strip("[]"),
        "DMLC_PS_ROOT_PORT": port,
    }
    if rank is not None:
        found["ASYNCPS_RANK"] = str(rank)
        if role != "scheduler":
            found[f"DMLC_{role.upper()}_ID"] = str(rank)
    return found
