"""Which machine this is, and who else of a job is on it.

Host names do not tell: two containers of one machine have different ones, and two machines may have
the same. What tells is the running kernel. A cloned disk brings its machine-id along, so that is
only asked where the kernel does not say which boot of it this is.
"""

from __future__ import annotations

import functools
import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path

from asyncps.protocol.messages import Member

_SOURCES = ("/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/var/lib/dbus/machine-id")


@functools.cache
def machine_id() -> str:
    """Return a text that is the same for all processes of this machine, and no other's.

    It is a digest: the numbers that it is made of are the machine's own business.
    """
    return identity(_SOURCES, socket.gethostname())


def identity(sources: Sequence[str], otherwise: str) -> str:
    """Return the digest of the first of some files that says something.

    Args:
        sources: Their paths.
        otherwise: What counts where none of them does.
    """
    for source in sources:
        try:
            text = Path(source).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            break
    else:
        text = otherwise
    return hashlib.sha256(b"asyncps machine\0" + text.encode()).hexdigest()[:32]


def machine_of(member: Member) -> str:
    """Return what names a member's machine; its host's name if it does not say."""
    return member.machine or member.hostname


def place_on_machine(members: Sequence[Member], rank: int) -> tuple[int, int]:
    """Return a worker's number among the workers of its machine, by rank, and how many these are.

    Args:
        members: The member table.
        rank: The worker, one of them.
    """
    machines = {m.rank: machine_of(m) for m in members if m.role == "worker"}
    there = sorted(other for other, machine in machines.items() if machine == machines[rank])
    return there.index(rank), len(there)
