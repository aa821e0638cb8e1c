"""Who is there? A fixed-layout exchange that proves the job's token before any frame.

    connector -> acceptor   HELLO  (versions, features, role, rank, incarnation, job, nonce)
    acceptor  -> connector  HELLO  (the same of its own) + HMAC over both hellos, label "acceptor"
    connector -> acceptor   HMAC over both hellos, label "connector"
    acceptor  -> connector  one VERDICT

Each side proves the token over all that both have said, under its own direction label, compared in
constant time: nothing can be reflected, replayed or talked down. No message is longer than 400
bytes and nothing is parsed but fixed fields. It proves the start, not later bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from asyncps.errors import HandshakeError

PROTOCOL_VERSION = 1
LANE = 1  # feature: the second connection of a worker, see roles.lane
NONCE_BYTES = 32
MAC_BYTES = 32

_HELLO = struct.Struct("<8sHHIBxxxiI32s32s")
_MAGIC = b"ASYNCPS\0"
_VERDICT = struct.Struct("<H254s")
HELLO_BYTES = _HELLO.size

ROLE_NUMBERS = {"scheduler": 1, "server": 2, "worker": 3, "launcher": 4, "observer": 5}
_ROLE_NAMES = {number: name for name, number in ROLE_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Hello:
    """What one side says of itself. `rank` is -1 while it has none."""

    role: str
    rank: int
    incarnation: int
    job: str
    nonce: bytes
    features: int = 0

    def pack(self) -> bytes:
        """Return the fixed-layout bytes."""
        job = hashlib.sha256(self.job.encode()).digest()
        return _HELLO.pack(
            _MAGIC, PROTOCOL_VERSION, 0, self.features, ROLE_NUMBERS[self.role], self.rank,
            self.incarnation, job, self.nonce,
        )


@dataclass(frozen=True, slots=True)
class PeerHello:
    """What the other side said of itself, proven once the handshake is done."""

    role: str
    rank: int
    incarnation: int
    features: int = 0


class Handshake:
    """One side's state. Feed it bytes; it says what to send and when it is done.

    Args:
        hello: What this side says; its nonce must be fresh random bytes.
        token: The job's secret; empty proves nothing, and both sides must have the same.
        connector: True for the side that opened the connection.

    Attributes:
        peer: The other side; believe it only once `done`.
    """

    def __init__(self, hello: Hello, token: str, *, connector: bool) -> None:
        self._mine = hello.pack()
        self._job = hashlib.sha256(hello.job.encode()).digest()
        self._token = token.encode()
        self._connector = connector
        self._buffer = bytearray()
        self._step = 0
        self._greeted = False  # the other side at least speaks asyncps
        self._transcript = b""
        self.peer: PeerHello | None = None
        self.done = False

    def start(self) -> bytes:
        """Return what is to be sent first."""
        return self._mine if self._connector else b""

    @property
    def wanted(self) -> int:
        """How many more bytes the next step needs; read no more than that."""
        if self._connector:
            sizes = (HELLO_BYTES + MAC_BYTES, _VERDICT.size)
        else:
            sizes = (HELLO_BYTES, MAC_BYTES)
        return sizes[self._step] - len(self._buffer)

    def receive(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take bytes; return what is to be sent.

        Raises:
            HandshakeError: The other side is not of this job, version or token, or refused us.
                An acceptor sends `refusal()` and closes.
        """
        self._buffer += data
        if self._step == 0 and len(self._buffer) >= len(_MAGIC):
            self._check_magic(bytes(self._buffer[: len(_MAGIC)]))
        return self._advance() if self.wanted <= 0 else b""

    def refusal(self) -> bytes:
        """Return what an acceptor says before it closes; never a secret.

        A peer of another version or job learns that from our own hello.
        """
        if self._transcript:
            return _VERDICT.pack(1, b"wrong token")
        return self._mine + bytes(MAC_BYTES) if self._greeted else b""

    def _advance(self) -> bytes:
        size = self.wanted + len(self._buffer)
        message = bytes(self._buffer[:size])
        del self._buffer[:size]
        step = (self._connector, self._step)
        self._step += 1
        if step == (False, 0):
            self.peer = self._read_hello(message)
            self._transcript = message + self._mine
            return self._mine + self._mac(b"acceptor")
        if step == (True, 0):
            theirs, mac = message[:HELLO_BYTES], message[HELLO_BYTES:]
            self.peer = self._read_hello(theirs)
            self._transcript = self._mine + theirs
            self._check_mac(mac, b"acceptor")
            return self._mac(b"connector")
        if step == (False, 1):
            self._check_mac(message, b"connector")
            self.done = True
            return _VERDICT.pack(0, b"")
        code, text = _VERDICT.unpack(message)
        if code:
            reason = text.rstrip(b"\0").decode("utf-8", "replace")
            raise HandshakeError(f"the peer refused us: {reason}")
        self.done = True
        return b""

    def _check_magic(self, magic: bytes) -> None:
        if magic != _MAGIC:
            raise HandshakeError("this is no asyncps peer", expected=_MAGIC, got=magic)

    def _read_hello(self, data: bytes) -> PeerHello:
        magic, version, _, features, role, rank, incarnation, job, _ = _HELLO.unpack(data)
        self._check_magic(magic)
        self._greeted = True
        if version != PROTOCOL_VERSION:
            raise HandshakeError("another protocol version", expected=PROTOCOL_VERSION, got=version)
        if role not in _ROLE_NAMES:
            raise HandshakeError("unknown role", expected=", ".join(ROLE_NUMBERS), got=role)
        if not hmac.compare_digest(job, self._job):
            raise HandshakeError("the peer belongs to another job")
        return PeerHello(_ROLE_NAMES[role], rank, incarnation, features)

    def _mac(self, label: bytes) -> bytes:
        return hmac.new(self._token, label + self._transcript, hashlib.sha256).digest()

    def _check_mac(self, mac: bytes, label: bytes) -> None:
        if not hmac.compare_digest(mac, self._mac(label)):
            raise HandshakeError("wrong token")

