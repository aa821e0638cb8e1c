"""What this machine offers to asyncps, what is missing, and how to get it.

Every check looks for itself and says what it found; none may end the others. Nothing is imported
that is not there, and CuPy, whose import may do anything, is tried in a process of its own.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncps_ext
from asyncps.config import DEFAULT_SCHEDULER, Config
from asyncps.errors import AsyncPSError
from asyncps.observe.tables import Table, size
from asyncps.transport.tcp import interface_address, parse_address

OK, NOTE, MISSING = "ok", "note", "missing"
_GPU_S = 60.0  # importing CuPy for the first time is slow
_FEW_FILES = 1024
_SHM = "/dev/shm"  # noqa: S108 - its size is told, nothing is written
_SMALL_SHM = 64 << 20  # what a container has by default
_SMALL_WINDOW = 4 << 20
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1

# Distributions that asyncps needs, and those of its extras: (distribution, module, extra).
_NEEDED = (("numpy", "numpy"), ("msgspec", "msgspec"), ("click", "click"), ("rich", "rich"),
           ("prometheus-client", "prometheus_client"))
_OPTIONAL = (("ml_dtypes", "ml_dtypes", "bf16", "bfloat16 arrays"),
             ("torch", "torch", "torch", "torch tensors"))
_GPU_CODE = """
import cupy
count = cupy.cuda.runtime.getDeviceCount()
names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
print("\\n" + cupy.__version__ + "|" + "|".join(names))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: Its group.
        name: What it is.
        state: "ok", "note" (works, but read this) or "missing" (needed, and not there).
        found: What was found.
        advice: What to do about it, or "".
    """

    topic: str
    name: str
    state: str
    found: str
    advice: str = ""


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """Look at everything.

    Args:
        environ: The environment, whose settings count as they would for a role.
    """
    found: list[Finding] = []
    try:
        config = Config.from_env(environ)
        found.append(Finding("settings", "environment", OK, "can be read"))
    except AsyncPSError as error:
        config = Config()
        found.append(Finding("settings", "environment", MISSING, str(error),
                             "correct or unset it: docs/settings.md lists every name"))
    checks: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _versions, _kernels, _loop, _extras, _gpu, _machine, _addresses, _sockets,
    )
    for check in checks:
        try:
            found.extend(check(config))
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding of its own
            name = check.__name__.strip("_")
            found.append(Finding(name, "this check", NOTE, f"failed: {error!r}"))
    return found


def is_complete(findings: list[Finding]) -> bool:
    """Tell whether nothing is missing that is needed."""
    return all(finding.state != MISSING for finding in findings)


def as_data(findings: list[Finding]) -> dict[str, Any]:
    """Return plain data, for --json."""
    return {"complete": is_complete(findings), "findings": [asdict(item) for item in findings]}


def tables(findings: list[Finding]) -> tuple[str, list[Table]]:
    """Return a heading and a table a topic."""
    missing = [finding.name for finding in findings if finding.state == MISSING]
    heading = f"missing: {', '.join(missing)}" if missing else "everything that is needed is there"
    made: dict[str, Table] = {}
    for item in findings:
        table = made.setdefault(item.topic, Table(item.topic, ("what", "", "found", "advice")))
        mood = {OK: "", NOTE: "warn", MISSING: "bad"}[item.state]
        table.add(item.name, item.state, item.found, item.advice, mood=mood)
    return heading, list(made.values())


# ---- checks ---------------------------------------------------------------------------------


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _versions(config: Config) -> Iterator[Finding]:
    own = _version("asyncps")
    yield Finding("versions", "asyncps", OK,
                  own if own[0].isdigit() else "a source tree, not installed")
    supported = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Finding("versions", "python", OK if supported else NOTE, platform.python_version(),
                  "" if supported else "3.11 to 3.13 are tested")
    yield Finding("versions", "system", OK if sys.platform == "linux" else NOTE,
                  f"{platform.system()} {platform.release()} {platform.machine()}",
                  "" if sys.platform == "linux" else "Linux is tested")
    for distribution, module in _NEEDED:
        if _is_there(module):
            yield Finding("versions", distribution, OK, _version(distribution))
        else:
            yield Finding("versions", distribution, MISSING, "not there",
                          f"pip install {distribution}")


def _kernels(config: Config) -> Iterator[Finding]:
    if asyncps_ext.COMPILED:
        kind = type(asyncps_ext.reduce.add).__module__  # such as _cython_3_1_4
        cython = kind.removeprefix("_cython_").replace("_", ".")
        by = f", by Cython {cython}" if kind.startswith("_cython_") else ""
        yield Finding("kernels", "kernels", OK, f"compiled{by}")
    else:
        yield Finding("kernels", "kernels", NOTE, "reference, since ASYNCPS_PURE is set",
                      "unset ASYNCPS_PURE: they are slow")
    yield Finding("kernels", "instruction set", OK, str(asyncps_ext.INSTRUCTION_SET))


def _loop(config: Config) -> Iterator[Finding]:
    there = _is_there("uvloop")
    if config.loop == "asyncio":
        yield Finding("loop", "loop", NOTE, "asyncio, since ASYNCPS_LOOP says so",
                      "uvloop is faster: unset ASYNCPS_LOOP")
    elif there:
        yield Finding("loop", "loop", OK, f"uvloop {_version('uvloop')}")
    else:
        yield Finding("loop", "loop", MISSING, "uvloop is not there",
                      "pip install uvloop, or set ASYNCPS_LOOP=asyncio")


def _extras(config: Config) -> Iterator[Finding]:
    for distribution, module, extra, what in _OPTIONAL:
        if _is_there(module):
            yield Finding("extras", distribution, OK, _version(distribution))
        else:
            yield Finding("extras", distribution, NOTE, "not there",
                          f'for {what}: in a clone pip install -e ".[{extra}]"')


def _gpu(config: Config) -> Iterator[Finding]:
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    if not _is_there("cupy"):
        yield Finding("gpu", "cupy", NOTE, "not there" + (", but a driver is" if driver else ""),
                      'for arrays on GPUs: in a clone pip install -e ".[cuda12]" or ".[cuda13]"')
        return
    try:
        tried = subprocess.run([sys.executable, "-c", _GPU_CODE], capture_output=True, text=True,
                               timeout=_GPU_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        yield Finding("gpu", "cupy", NOTE, f"its import took more than {_GPU_S:g} s",
                      "it is there, and does not work: install it anew")
        return
    lines = (tried.stdout if tried.returncode == 0 else tried.stderr).strip().splitlines()
    last = lines[-1] if lines else f"exit code {tried.returncode}"
    if tried.returncode:
        yield Finding("gpu", "cupy", NOTE, f"there, and does not work: {last}",
                      "check the driver, and that cuda12 or cuda13 fits it")
        return
    version, *names = last.split("|")
    devices = ", ".join(name for name in names if name)
    yield Finding("gpu", "cupy", OK, version)
    yield Finding("gpu", "devices", OK if devices else NOTE, devices or "none")


def _machine(config: Config) -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("machine", "cores", OK, f"{usable} of {os.cpu_count()}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < _FEW_FILES
    yield Finding("machine", "open files", NOTE if few else OK, f"{soft} (hard limit {hard})",
                  "ulimit -n 4096: each worker takes up to two of a server" if few else "")
    try:
        shm = shutil.disk_usage(_SHM)
    except OSError:
        yield Finding("machine", "shared memory", NOTE, f"{_SHM} is not there")
        return
    small = shm.total <= _SMALL_SHM
    yield Finding("machine", "shared memory", NOTE if small else OK,
                  f"{_SHM} has {size(shm.free)} free of {size(shm.total)}",
                  "small (a container? --shm-size); data loaders may need more" if small else "")


def _addresses(config: Config) -> Iterator[Finding]:
    place = parse_address(config.scheduler, 9091)
    told = "the default" if config.scheduler == DEFAULT_SCHEDULER else "ASYNCPS_SCHEDULER"
    yield Finding("network", "scheduler's address", *_port_state(place.host, place.port, told))
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        try:
            address = interface_address(name)
        except AsyncPSError:
            continue  # it has none
        yield Finding("network", f"interface {name}", OK,
                      address + ("" if _is_up(name) else " (down)"))
    if config.advertise:
        yield Finding("network", "a server advertises", OK, f"{config.advertise} (as set)")
    elif config.interface:
        try:
            yield Finding("network", "a server advertises", OK,
                          f"{interface_address(config.interface)} (of {config.interface})")
        except AsyncPSError as error:
            yield Finding("network", "a server advertises", MISSING, str(error),
                          "correct ASYNCPS_INTERFACE")
    else:
        yield Finding("network", "a server advertises", *_way_to(place.host))


def _port_state(host: str, port: int, told: str) -> tuple[str, str, str]:
    shown = f"{host}:{port} ({told})"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        return MISSING, f"{shown}: {getattr(error, 'strerror', None) or error}", "correct the name"
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return (NOTE, f"{shown}: {error.strerror}",
                "a job may be there already, or it is another machine's address; "
                "ASYNCPS_SCHEDULER names another (launch takes a free port)")
    return OK, f"{shown}: free", ""


def _way_to(host: str) -> tuple[str, str]:
    """Return the local address of a socket to the scheduler; nothing is sent for it."""
    family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(where)
        except OSError as error:
            return NOTE, f"no way to {host}: {error.strerror}"
        return OK, f"{probe.getsockname()[0]} (the way to {host})"


def _is_up(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request)
    return bool(struct.unpack_from("<H", answer, 16)[0] & _IFF_UP)


def _sockets(config: Config) -> Iterator[Finding]:
    somaxconn = _kernel("net/core/somaxconn")
    if somaxconn:
        few = int(somaxconn[0]) < 512
        yield Finding("sockets", "somaxconn", NOTE if few else OK, somaxconn[0],
                      "sysctl net.core.somaxconn=4096: 512 may knock at once" if few else "")
    for name in ("tcp_rmem", "tcp_wmem"):
        values = _kernel(f"net/ipv4/{name}")
        if len(values) == 3:
            small = int(values[2]) < _SMALL_WINDOW
            shown = ", ".join(size(int(value)) for value in values)
            yield Finding("sockets", name, NOTE if small else OK, f"{shown} (least, first, most)",
                          f"sysctl net.ipv4.{name}: at least 4 MiB at the end, for fast links"
                          if small else "")


def _kernel(path: str) -> list[str]:
    try:
        return (Path("/proc/sys") / path).read_text().split()
    except OSError:
        return []
