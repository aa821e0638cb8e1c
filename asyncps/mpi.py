"""A group of workers out of the ranks of an MPI job; MPI itself need not be there.

The environment says the ranks. The first one hosts the scheduler, and tells the others where:

    on one host           through a file of the job (asyncps.session)
    across hosts          by mpi4py, if it can be imported
    with ASYNCPS_SCHEDULER  nobody hosts anything: a scheduler runs there already
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncps.config import Config, environment
from asyncps.errors import AsyncPSError, ClusterError, ConfigError
from asyncps.hosting import DECIDED, Host, check_options, reachable_address, settings_of_member
from asyncps.mpiplace import Place, place_in
from asyncps.roles.machine import machine_id
from asyncps.roles.report import ends_by_exception
from asyncps.session import Meeting, Written, directory_of, wait_for

log = logging.getLogger(__name__)

_TEXT_BYTES = 2048  # of what is told by mpi4py: all ranks must know how many bytes come
_ACROSS = ("mpi4py in every rank's Python; or a scheduler that runs (python -m asyncps scheduler) "
           "and its ASYNCPS_SCHEDULER and ASYNCPS_TOKEN in every rank's environment")
_LOST_S = 6.0  # survivors hear within that of a first rank that ends by an exception

_lock = threading.Lock()
_groups: dict[str, int] = {}  # how many groups this process has formed, by job
_hosts: list[Host] = []
_registered: list[Any] = []


def settings_from_mpi(environ: Mapping[str, str] | None = None, **options: Any) -> Config:
    """Return the settings by which this rank of an MPI job joins the others.

    Every rank calls it, as often as the others do: each call is a group of its own. It waits until
    the first rank has told where it listens, for `rendezvous_s` at most. That rank hosts the
    scheduler until all have left, and its process ends no sooner.

    Args:
        environ: Instead of the environment of this process.
        options: Other settings of `asyncps.config.Config`, by name.

    Raises:
        ConfigError: This is no rank of an MPI job, or the ranks are on several hosts and have no
            way to find each other: it says which ways there are.
        RendezvousTimeout: The first rank did not come.
        ClusterError: Something is wrong with the file, or the first rank could not listen.
    """
    env = environment() if environ is None else environ
    place = place_in(env)
    if env.get("ASYNCPS_SCHEDULER") or env.get("DMLC_PS_ROOT_URI") or options.get("scheduler"):
        return _at_a_scheduler(place, env, options)
    check_options(options)
    base = settings_of_member(place.rank, place.size, scheduler="127.0.0.1:0", token="",
                              job="mpi", environ=env, **options)
    has_mpi4py = importlib.util.find_spec("mpi4py") is not None
    if place.one_host or (place.one_host is None and not has_mpi4py):
        meeting = _meet_by_file(place, base)
    elif has_mpi4py:
        meeting = _meet_by_mpi4py(place, base)
    else:
        raise ConfigError(
            f"the {place.size} ranks of this job ({place.launcher}) are on several hosts, and have "
            "no way to find each other",
            expected=_ACROSS)
    if meeting.size != place.size:
        raise ConfigError(f"rank 0 says that there are {meeting.size} ranks, and {place.launcher} "
                          f"says {place.size} to rank {place.rank}")
    return base.replace(scheduler=meeting.address, token=meeting.token, job=meeting.job,
                        local_rank=place.local_rank)


def _at_a_scheduler(place: Place, env: Mapping[str, str], options: dict[str, Any]) -> Config:
    check_options(options, DECIDED - {"scheduler", "token", "job", "num_servers"})
    told = {"local_rank": place.local_rank, **options}
    if not (env.get("ASYNCPS_NUM_SERVERS") or env.get("DMLC_NUM_SERVER")):
        told.setdefault("num_servers", 0)
    return Config.from_env(env, **{**told, "role": "worker", "rank": place.rank,
                                   "num_workers": place.size})


def _meet_by_file(place: Place, base: Config) -> Meeting:
    if not place.job:
        raise ConfigError(
            f"{place.launcher} says nothing that tells this job from others of this host",
            expected="ASYNCPS_SCHEDULER and ASYNCPS_TOKEN, with a scheduler that runs there")
    directory = directory_of(place.job, place.directory)
    with _lock:
        number = _groups[place.job] = _groups.get(place.job, 0) + 1
    name = f"group-{number}.json"
    if place.rank:
        # Nobody has said whether rank 0 is on this host at all.
        across = f"rank 0 on this host; or, if it is on another, {_ACROSS}"
        ways = None if place.one_host else across
        return wait_for(directory, name, base.rendezvous_s, f"rank 0 of {place.size}", ways)
    written: list[Written] = []

    def remove() -> None:
        for file in written:
            file.remove()

    host, meeting = _host(base, "127.0.0.1", remove)
    try:
        written.append(Written(directory, name, meeting))
    except BaseException:
        host.close()
        raise
    host.also_closes_in_child(written[0])
    return meeting


def _meet_by_mpi4py(place: Place, base: Config) -> Meeting:
    """Have rank 0 tell all others by broadcasts of bytes: no objects, so nothing is pickled."""
    try:
        comm = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except Exception as error:
        raise ClusterError(f"mpi4py is there, and does not work: {error}") from error
    if (comm.Get_rank(), comm.Get_size()) != (place.rank, place.size):
        raise ConfigError(
            f"mpi4py was built for another MPI than {place.launcher}",
            expected=f"rank {place.rank} of {place.size}",
            got=f"rank {comm.Get_rank()} of {comm.Get_size()}")
    mine = _padded(f"{machine_id()} {socket.gethostname()}")
    hosts = bytearray(_TEXT_BYTES * place.size)
    comm.Allgather(mine, hosts)
    told = bytearray(_TEXT_BYTES)
    failure: AsyncPSError | None = None
    if place.rank == 0:
        try:
            everybody = [_text(hosts[at : at + _TEXT_BYTES]).split(" ", 1)
                         for at in range(0, len(hosts), _TEXT_BYTES)]
            others = [name for machine, name in everybody if machine != machine_id()]
            _, meeting = _host(base, reachable_address(base, others), lambda: None)
            told[:] = _padded(msgspec.json.encode(meeting).decode())
        except AsyncPSError as error:
            failure = error
            told[:] = _padded(f"!{error}")
    comm.Bcast(told, root=0)
    if failure is not None:
        raise failure
    text = _text(told)
    if text.startswith("!"):
        raise ClusterError(f"rank 0 could not host the group: {text[1:]}", rank=0)
    return msgspec.json.decode(text, type=Meeting)


def _host(base: Config, address: str, on_end: Any) -> tuple[Host, Meeting]:
    token = secrets.token_hex(32)
    job = f"mpi-{secrets.token_hex(8)}"
    place = f"[{address}]:0" if ":" in address else f"{address}:0"
    config = base.replace(role="scheduler", rank=None, scheduler=place, token=token, job=job,
                          bind=None, metrics_port=None)
    host = Host(config, on_end=on_end)
    with _lock:
        if not _registered:  # once: before whoever joins, so that it is called after them
            _registered.append(atexit.register(finish))
        _hosts[:] = [other for other in _hosts if not other.wait(0)] + [host]
    return host, Meeting(host.address, token, job, base.num_workers)


def finish() -> None:
    """Wait until the groups that this process hosts have ended; called as it exits.

    A group that it has never joined cannot begin, and is not waited for. After an exception that
    nobody caught it waits no longer than the others take to hear of that.
    """
    with _lock:
        hosts, _hosts[:] = list(_hosts), []
    for host in hosts:
        if not host.forked:
            if host.has_member(0):
                host.wait(_LOST_S if ends_by_exception() else None)
            host.close()


def _padded(text: str) -> bytearray:
    data = text.encode("utf-8", "replace")[: _TEXT_BYTES - 1]
    return bytearray(data.ljust(_TEXT_BYTES, b"\0"))


def _text(data: bytearray) -> str:
    return bytes(data).rstrip(b"\0").decode("utf-8", "replace")
