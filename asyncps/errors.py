"""Every error that asyncps raises, and how an error crosses the wire.

Each class has a `code` that is unique and never reused; the peer's error is raised again at the
caller as the same class, with the host that refused in its text.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self


def shown(value: object, most: int = 200) -> str:
    """Return the repr of something of the user's, cut to `most` characters, for a message.

    Its repr may raise (an integer of thousands of digits does), or be no text that can travel.
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the message tells another mistake
        return f"a {type(value).__name__} that cannot be shown"
    return text[:most].encode("utf-8", "backslashreplace").decode()


def is_text(value: object) -> bool:
    """Tell whether something is a str that can travel: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class AsyncPSError(Exception):
    """Root of all errors of asyncps.

    Args:
        message: What went wrong, in one sentence.
        key: The key that the request was about.
        rank: The rank of the node that the error is about.
        host: The host that refused.
        expected: What would have been right.
        got: What came.
    """

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        key: str | int | None = None,
        rank: int | None = None,
        host: str | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.rank = rank
        self.host = host
        self.expected = None if expected is None else str(expected)
        self.got = None if got is None else str(got)

    def __str__(self) -> str:
        details = [
            f"{name} {value!r}" if name == "key" else f"{name} {value}"
            for name in ("key", "rank", "expected", "got")
            if (value := getattr(self, name)) is not None
        ]
        text = f"{self.message} ({', '.join(details)})" if details else self.message
        return f"{text} [from {self.host}]" if self.host else text

    def again(self) -> Self:
        """Return a copy, for one more place that raises it.

        A traceback holds the frames that it went through, and so the memory of their callers: each
        caller has its own, and what is kept here has none.
        """
        found = copy.copy(self)
        found.__cause__, found.__suppress_context__ = self.__cause__, self.__suppress_context__
        return found


class ConfigError(AsyncPSError, ValueError):
    """A setting, an option or an argument that cannot be right."""

    code = 2


class NotYetError(AsyncPSError):
    """A documented word that this version does not have yet."""

    code = 3


class ClosedError(AsyncPSError):
    """The store, or the cluster behind it, was closed."""

    code = 4


class ProtocolError(AsyncPSError):
    """Somebody broke the rules of the wire."""

    code = 10


class LocalProtocolError(ProtocolError):
    """We broke the rules: a defect of asyncps."""

    code = 11


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules: its connection is closed."""

    code = 12


class HandshakeError(ProtocolError):
    """The two sides could not agree on version, job or token."""

    code = 13


class TransportError(AsyncPSError, ConnectionError):
    """A socket could not be opened or used."""

    code = 20


class ConnectionLost(TransportError):
    """A connection broke."""

    code = 21
    retriable = True


class DeadlineExceeded(AsyncPSError, TimeoutError):
    """Something that was owed did not come in time."""

    code = 30


class ClusterError(AsyncPSError):
    """The cluster cannot go on as it was."""

    code = 40


class NodeLost(ClusterError):
    """A node of the cluster is gone."""

    code = 41


class WorkerLost(NodeLost):
    """A worker is gone."""

    code = 42


class ServerLost(NodeLost):
    """A server is gone, and with it the keys that it kept."""

    code = 43


class SchedulerLost(NodeLost):
    """The scheduler is gone."""

    code = 44


class RendezvousTimeout(ClusterError, TimeoutError):
    """Not everybody came in time."""

    code = 45


class StaleIncarnation(ClusterError):
    """A node that was declared lost, and whose place was taken, tried to go on."""

    code = 46


class RankTaken(ClusterError):
    """A (role, rank) that is alive cannot be taken by another process."""

    code = 47


class Disagreement(ClusterError, ValueError):
    """Workers that must say the same said different things."""

    code = 48


class CollectiveMismatch(ClusterError, ValueError):
    """The ranks have made one collective call differently."""

    code = 49


class TensorError(AsyncPSError, ValueError):
    """A value that cannot be used."""

    code = 60


class ShapeMismatch(TensorError):
    """A value of another shape than its key."""

    code = 61


class DtypeMismatch(TensorError):
    """A value of another dtype than its key."""

    code = 62


class UnknownKey(TensorError, KeyError):
    """A key that was never initialised."""

    code = 63

    __str__ = AsyncPSError.__str__


class KeyExists(TensorError):
    """A key twice in one call."""

    code = 64


class OptimizerError(AsyncPSError, ValueError):
    """An optimizer or a hyper-parameter that does not exist, or cannot be used like that."""

    code = 65


class CodecError(TensorError):
    """A compressed gradient that cannot be decoded."""

    code = 66


class CheckpointError(AsyncPSError):
    """A checkpoint that could not be written, or that cannot be read."""

    code = 70


def _all_classes(root: type[AsyncPSError]) -> dict[int, type[AsyncPSError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_all_classes(child))
    return found


def class_of_code(code: int) -> type[AsyncPSError]:
    """Return the class of a wire code; a code from the future becomes `AsyncPSError`."""
    return _all_classes(AsyncPSError).get(code, AsyncPSError)


LOST_BY_ROLE: dict[str, type[NodeLost]] = {
    "worker": WorkerLost,
    "server": ServerLost,
    "scheduler": SchedulerLost,
}
