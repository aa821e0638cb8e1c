"""A link with delay between two network namespaces, in user space: for kernels without netem.

    python bench/delay.py NAMESPACE_A ADDRESS_A NAMESPACE_B ADDRESS_B [--delay-ms 10] [--mbit 100]

Each namespace gets a TUN device `aps0` with its address; what is sent into one comes out of the
other, after the time that its bytes take at the rate and the delay. It prints `ready` and works
until it is killed; the devices go with it. It takes up to a quarter of a core.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

DEVICE = "aps0"
MTU = 32000  # fewer packets than with 1500: each costs a turn of this loop
MAX_QUEUE_S = 0.5  # of bytes that wait for the rate: more are dropped, as a router would
_CLONE_NEWNET = 0x40000000  # linux/sched.h
_TUNSETIFF = 0x400454CA  # linux/if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_BATCH = 64  # packets that are read from one side before the other is looked at


def enter(path: str) -> None:
    """Move this thread into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(fd)


def tun(namespace: str, address: str) -> int:
    """Make the device in a namespace, and stay there; return its descriptor."""
    enter(f"/run/netns/{namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    for words in (
        f"addr add {address}/24 dev {DEVICE}",
        f"link set {DEVICE} mtu {MTU} txqueuelen 10000 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    return fd


class Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, source: int, target: int, rate_bytes_s: float, delay_s: float) -> None:
        self.source, self.target = source, target
        self.rate_bytes_s, self.delay_s = rate_bytes_s, delay_s
        self.queue: collections.deque[tuple[float, bytes]] = collections.deque()
        self.free_at = 0.0  # when the last byte that was taken in is on the line

    def take_in(self) -> None:
        """Read what waits at the source."""
        for _ in range(_BATCH):
            try:
                packet = os.read(self.source, 65600)
            except BlockingIOError:
                return
            now = time.monotonic()
            begin = max(now, self.free_at)
            if begin - now > MAX_QUEUE_S:
                continue
            if self.rate_bytes_s:
                self.free_at = begin = begin + len(packet) / self.rate_bytes_s
            self.queue.append((begin + self.delay_s, packet))

    def let_out(self) -> None:
        """Write what has arrived."""
        while self.queue and self.queue[0][0] <= time.monotonic():
            packet = self.queue.popleft()[1]
            try:
                os.write(self.target, packet)
            except BlockingIOError:  # its queue is full: lost, as on a real link
                return


def main() -> None:
    """Move packets until killed."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name in ("namespace_a", "address_a", "namespace_b", "address_b"):
        a.add_argument(name)
    a.add_argument("--delay-ms", type=float, default=0, help="each way")
    a.add_argument("--mbit", type=float, default=0, help="each way; 0: as fast as it can")
    told = a.parse_args()
    first = tun(told.namespace_a, told.address_a)
    second = tun(told.namespace_b, told.address_b)
    rate, delay = told.mbit * 1e6 / 8, told.delay_ms / 1e3
    ways = [Direction(first, second, rate, delay), Direction(second, first, rate, delay)]
    print("ready", flush=True)
    while True:
        due = min((way.queue[0][0] for way in ways if way.queue), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        readable = select.select([first, second], [], [], wait)[0]
        for way in ways:
            if way.source in readable:
                way.take_in()
            way.let_out()


if __name__ == "__main__":
    sys.exit(main())
