"""Every setting, its default, unit, environment name and why: the only reader of os.environ here.

The launcher and MXNet's users speak through the environment; a program may speak through keyword
arguments, which win. `DMLC_*` names are honoured where the `ASYNCPS_*` one is absent.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncps.errors import ConfigError

ROLES = ("scheduler", "server", "worker")
DEFAULT_SCHEDULER = "127.0.0.1:9091"


def _setting(default: Any, unit: str, why: str, *env: str) -> Any:
    return field(default=default, repr=unit != "secret",
                 metadata={"unit": unit, "why": why, "env": env})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of one process of a job; `Config.from_env()` reads them, `describe()` lists them."""

    role: str | None = _setting(None, "", "what this process is", "ASYNCPS_ROLE", "DMLC_ROLE")
    rank: int | None = _setting(
        None, "", "task number within the role; without one the order of joining decides",
        "ASYNCPS_RANK", "DMLC_TASK_ID",
    )
    local_rank: int | None = _setting(
        None, "", "number of this worker on its host", "ASYNCPS_LOCAL_RANK"
    )
    parent: int | None = _setting(
        None, "process number",
        "who reaps this worker and tells its exit code; `asyncps launch` and `worker` set it",
        "ASYNCPS_PARENT",
    )
    num_workers: int = _setting(
        1, "processes", "the job starts when all have joined",
        "ASYNCPS_NUM_WORKERS", "DMLC_NUM_WORKER",
    )
    num_servers: int = _setting(
        1, "processes", "the job starts when all have joined; 0: a group of workers alone",
        "ASYNCPS_NUM_SERVERS", "DMLC_NUM_SERVER",
    )
    scheduler: str = _setting(
        DEFAULT_SCHEDULER, "host:port", "where everybody meets", "ASYNCPS_SCHEDULER"
    )
    token: str = _setting("", "secret", "proves membership of the job", "ASYNCPS_TOKEN")
    job: str = _setting("default", "", "keeps two jobs on one port apart", "ASYNCPS_JOB")
    bind: str | None = _setting(
        None, "host, host:port or host:low-high",
        "where this role listens; default: the address that it advertises",
        "ASYNCPS_BIND",
    )
    advertise: str | None = _setting(
        None, "host",
        "address told to the others; default: the local address of the socket to the scheduler",
        "ASYNCPS_ADVERTISE", "DMLC_NODE_HOST",
    )
    interface: str | None = _setting(
        None, "", "take the advertised address from this network interface",
        "ASYNCPS_INTERFACE", "DMLC_INTERFACE",
    )
    loop: str = _setting(
        "uvloop", "uvloop or asyncio", "uvloop is the fast path", "ASYNCPS_LOOP"
    )
    on_worker_lost: str = _setting(
        "fail", "fail or continue",
        "what survivors do when a worker is lost; the scheduler's setting counts",
        "ASYNCPS_ON_WORKER_LOST",
    )
    imports: str = _setting(
        "", "module names, separated by commas", "modules with optimizers of your own",
        "ASYNCPS_IMPORT",
    )
    log_level: str = _setting("INFO", "", "level of the roles' own log", "ASYNCPS_LOG_LEVEL")
    metrics_port: int | None = _setting(
        None, "port", "serve Prometheus metrics there; 0 is any, the log says which",
        "ASYNCPS_METRICS_PORT",
    )
    metrics_host: str = _setting(
        "127.0.0.1", "host", "where metrics are served; there is no token: who gets there reads",
        "ASYNCPS_METRICS_HOST",
    )

    rendezvous_s: float = _setting(
        120.0, "s", "joining the cluster; then RendezvousTimeout", "ASYNCPS_RENDEZVOUS_S"
    )
    join_warning_s: float = _setting(
        10.0, "s", "how often it is told who is missing while the job has not begun",
        "ASYNCPS_JOIN_WARNING_S",
    )
    answer_s: float = _setting(
        60.0, "s", "an answer owed by a live node; then DeadlineExceeded", "ASYNCPS_ANSWER_S"
    )
    round_s: float = _setting(
        1800.0, "s", "the contributions of others; a straggler may compile or evaluate",
        "ASYNCPS_ROUND_S",
    )
    round_warning_s: float = _setting(
        60.0, "s", "how often a wait for others is told in the log", "ASYNCPS_ROUND_WARNING_S"
    )
    reconnect_s: float = _setting(
        2.0, "s", "a closed connection may come back; then the node is lost",
        "ASYNCPS_RECONNECT_S",
    )
    handshake_s: float = _setting(
        5.0, "s", "a connection that proves nothing is closed", "ASYNCPS_HANDSHAKE_S"
    )
    heartbeat_s: float = _setting(
        1.0, "s", "how often a silent node says that it lives", "ASYNCPS_HEARTBEAT_S"
    )
    host_dead_s: float = _setting(
        5.0, "s", "TCP_USER_TIMEOUT of the control connection", "ASYNCPS_HOST_DEAD_S"
    )
    frozen_worker_s: float = _setting(
        60.0, "s", "silence of a worker, whose own code may hold the GIL",
        "ASYNCPS_FROZEN_WORKER_S",
    )
    frozen_server_s: float = _setting(
        10.0, "s", "silence of a server or of the scheduler", "ASYNCPS_FROZEN_SERVER_S"
    )
    chunk_bytes: int = _setting(
        1 << 20, "bytes", "pieces that a large key is cut into; of a smaller key, down to half",
        "ASYNCPS_CHUNK_BYTES",
    )
    slab_bytes: int = _setting(
        256 * 1024, "bytes", "small keys that share one round counter", "ASYNCPS_SLAB_BYTES"
    )
    small_key_bytes: int = _setting(
        32 * 1024, "bytes", "keys up to this size live in slabs", "ASYNCPS_SMALL_KEY_BYTES"
    )
    send_budget_bytes: int = _setting(
        1 << 30, "bytes", "copies of pushed values that a worker may hold", "ASYNCPS_SEND_BUDGET"
    )

    poll_us: int = _setting(
        500, "us", "look this long for the next small message before sleeping; 0 never does",
        "ASYNCPS_POLL_US",
    )
    kernel_threads: int = _setting(
        0, "threads", "that encode one large push; 0: a quarter of the cores, 1 to 4",
        "ASYNCPS_KERNEL_THREADS",
    )

    def __post_init__(self) -> None:
        if self.role is not None and self.role not in ROLES:
            raise ConfigError("unknown role", expected=", ".join(ROLES), got=repr(self.role))
        if self.loop not in ("uvloop", "asyncio"):
            raise ConfigError("unknown loop", expected="uvloop or asyncio", got=repr(self.loop))
        if self.on_worker_lost not in ("fail", "continue"):
            raise ConfigError("unknown on_worker_lost", expected="fail or continue",
                              got=repr(self.on_worker_lost))
        for name, least in (("num_workers", 1), ("num_servers", 0)):
            if not least <= getattr(self, name) <= 4096:
                raise ConfigError(f"{name} is out of range", expected=f"{least} to 4096",
                                  got=getattr(self, name))
        if self.role == "server" and not self.num_servers:
            raise ConfigError("a server of a job without servers",
                              expected="num_servers of at least 1", got=0)
        total = {"worker": self.num_workers, "server": self.num_servers, "scheduler": 1}
        if self.role and self.rank is not None and not 0 <= self.rank < total[self.role]:
            raise ConfigError(f"rank of this {self.role} is out of range",
                              expected=f"0 to {total[self.role] - 1}", got=self.rank)
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise ConfigError("metrics_port is out of range", expected="0 to 65535",
                              got=self.metrics_port)
        if not 0 <= self.poll_us <= 10_000:
            raise ConfigError("poll_us is out of range", expected="0 to 10000", got=self.poll_us)
        if not 0 <= self.kernel_threads <= 64:
            raise ConfigError("kernel_threads is out of range", expected="0 to 64",
                              got=self.kernel_threads)
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_s") and not 0 < value < 1e9:
                raise ConfigError(f"{item.name} must be a positive number of seconds", got=value)
            if item.name.endswith("_bytes"):
                most = 40 if item.name == "send_budget_bytes" else 30  # a payload's limit
                if not 4096 <= value <= 1 << most:
                    raise ConfigError(f"{item.name} is out of range",
                                      expected=f"4096 to 2**{most}", got=value)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """Read the environment; keyword arguments that are not None win.

        Raises:
            ConfigError: An unknown `ASYNCPS_*` name, or a value that cannot be read.
        """
        env = os.environ if environ is None else environ
        _refuse_unknown(env)
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            for name in item.metadata["env"]:
                if env.get(name, "") != "":
                    values[item.name] = _read(item, name, env[name])
                    break
        _add_dmlc(values, env)
        values.update({k: v for k, v in overrides.items() if v is not None})
        return cls(**values)

    def replace(self, **changes: Any) -> Config:
        """Return a copy with other values, checked again."""
        return dataclasses.replace(self, **changes)


# What makes a process a member of one job: whoever starts another job for it leaves these out.
MEMBERSHIP = frozenset({
    "ASYNCPS_ROLE", "ASYNCPS_RANK", "ASYNCPS_LOCAL_RANK", "ASYNCPS_PARENT", "ASYNCPS_NUM_WORKERS",
    "ASYNCPS_NUM_SERVERS", "ASYNCPS_SCHEDULER", "ASYNCPS_TOKEN", "ASYNCPS_JOB",
    "ASYNCPS_ON_WORKER_LOST", "DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER",
    "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_TASK_ID",
})  # fmt: skip


def in_cluster(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether the environment speaks of a cluster: an address, a role or a number of nodes.

    A worker that was told so must never train alone in silence.
    """
    env = os.environ if environ is None else environ
    return any(env.get(name) for name in _CLUSTER_NAMES)


def environment() -> dict[str, str]:
    """Return a copy of the environment, for processes that are to be started."""
    return dict(os.environ)


def describe() -> list[tuple[str, object, str, str, tuple[str, ...]]]:
    """Return (name, default, unit, why, environment names) of every setting."""
    return [
        (f.name, f.default, f.metadata["unit"], f.metadata["why"], f.metadata["env"])
        for f in dataclasses.fields(Config)
    ]


_CLUSTER_NAMES = (
    "ASYNCPS_SCHEDULER", "DMLC_PS_ROOT_URI", "ASYNCPS_ROLE", "DMLC_ROLE",
    "ASYNCPS_NUM_WORKERS", "DMLC_NUM_WORKER",
)

# Read by other modules of this project than config: the kernels, and the launcher's own marks.
_FOREIGN = frozenset({"ASYNCPS_PURE", "ASYNCPS_EXT_DEBUG", "ASYNCPS_EXT_SANITIZE"})


def _refuse_unknown(env: Mapping[str, str]) -> None:
    known = {name for f in dataclasses.fields(Config) for name in f.metadata["env"]}
    unknown = sorted(
        name for name in env
        if name.startswith("ASYNCPS_") and name not in known and name not in _FOREIGN
    )
    if unknown:
        raise ConfigError("unknown setting in the environment: " + ", ".join(unknown),
                          expected=", ".join(sorted(n for n in known if n.startswith("ASYNCPS_"))))


def _read(item: Any, name: str, text: str) -> Any:
    try:
        if "int" in str(item.type):
            return int(text)
        if "float" in str(item.type):
            return float(text)
    except ValueError:
        kind = "a whole number" if "int" in str(item.type) else "a number"
        raise ConfigError(f"{name} must be {kind}", got=repr(text)) from None
    return text


def _add_dmlc(values: dict[str, Any], env: Mapping[str, str]) -> None:
    if "scheduler" not in values and env.get("DMLC_PS_ROOT_URI"):
        host, port = env["DMLC_PS_ROOT_URI"], env.get("DMLC_PS_ROOT_PORT") or "9091"
        if not port.isdecimal():
            raise ConfigError("DMLC_PS_ROOT_PORT must be a port number", got=repr(port))
        values["scheduler"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if "rank" not in values:
        by_role = {"worker": "DMLC_WORKER_ID", "server": "DMLC_SERVER_ID"}
        name = by_role.get(values.get("role", ""), "")
        if name and env.get(name, "") != "":
            if not env[name].isdecimal():
                raise ConfigError(f"{name} must be a whole number", got=repr(env[name]))
            values["rank"] = int(env[name])


def refuse_unknown(options: Mapping[str, Any], others: tuple[str, ...]) -> None:
    """Refuse keyword arguments that are no setting.

    Args:
        options: As they were given.
        others: What may be given besides, for the message.

    Raises:
        ConfigError: There is one; the known ones are listed.
    """
    unknown = sorted(set(options) - set(Config.__dataclass_fields__))
    if unknown:
        raise ConfigError("unknown option: " + ", ".join(unknown),
                          expected=", ".join((*others, *Config.__dataclass_fields__)))
