"""Slow links on one machine: two network namespaces, and a shaped link between them.

Without added delay the link is a veth pair, shaped by the kernel's token bucket at both ends; the
buckets are small, since a payload that fits into one passes at full speed. With delay it is
bench/delay.py, which shapes as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVER_ADDRESS, WORKER_ADDRESS = "10.79.0.1", "10.79.0.2"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to make.

    Attributes:
      mbit: its rate each way, in 10**6 bits a second.
      delay_ms: added each way.
    """

    mbit: int
    delay_ms: int = 0

    @property
    def name(self) -> str:
        """As records call it."""
        rate = f"{self.mbit // 1000}gbit" if self.mbit >= 1000 else f"{self.mbit}mbit"
        return f"{rate}+{self.delay_ms}ms" if self.delay_ms else rate

    @property
    def bucket(self) -> str:
        """The burst of its token bucket, measured true: a payload of 56 KB takes what it must."""
        return "32kb" if self.mbit >= 1000 else "4kb"


LINKS = {
    link.name: link
    for link in (
        Link(1000), Link(100), Link(1000, 1), Link(1000, 20), Link(100, 1), Link(100, 20),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands in front of a command so that it runs at that end of the link."""

    server: list[str]
    worker: list[str]


def ip(*words: str) -> None:
    """Run the command; its own words tell what it refused."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")


def why_not(link: Link) -> str:
    """Return why this machine cannot have that link; "" where it can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` here (Debian's package iproute2)"
    if link.delay_ms and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened, which added delay needs"
    try:
        with opened(link):
            return ""
    except OSError as error:
        return f"no network namespaces with a shaped link here: {error}"


def shape(namespace: str, device: str, link: Link) -> None:
    """Let a device send no faster than the link."""
    words = ["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf",
             "rate", f"{link.mbit}mbit", "burst", link.bucket, "latency", "200ms"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def opened(link: Link) -> Iterator[Ends]:
    """Make the link; leaving the block takes all of it away.

    The server's end has `SERVER_ADDRESS`, the worker's `WORKER_ADDRESS`.

    Raises:
      OSError: It cannot be made here (see `why_not`).
    """
    near, far = (f"aps-{side}-{os.getpid()}" for side in ("server", "worker"))
    with contextlib.ExitStack() as stack:
        for name in (near, far):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        if link.delay_ms:
            stack.enter_context(_delayed(link, near, far))
        else:
            ip("link", "add", "veth0", "netns", near, "type", "veth",
               "peer", "name", "veth0", "netns", far)
            for name, address in ((near, SERVER_ADDRESS), (far, WORKER_ADDRESS)):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
                ip("-n", name, "link", "set", "veth0", "up")
                shape(name, "veth0", link)
        enter = ["ip", "netns", "exec"]
        yield Ends([*enter, near], [*enter, far])


@contextlib.contextmanager
def _delayed(link: Link, near: str, far: str) -> Iterator[None]:
    command = [sys.executable, str(HERE / "delay.py"), near, SERVER_ADDRESS, far, WORKER_ADDRESS,
               "--delay-ms", str(link.delay_ms), "--mbit", str(link.mbit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise OSError("bench/delay.py did not start")
            yield
        finally:
            process.kill()


def carried() -> tuple[int, int]:
    """Bytes that the devices of this namespace have received and sent, headers included."""
    received = sent = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            numbers = counts.split()
            received += int(numbers[0])
            sent += int(numbers[8])
    return received, sent
