"""What messages of several sorts are made of."""

from __future__ import annotations

import msgspec

Key = int | str


class Message(msgspec.Struct, array_like=True):
    """Base of all control messages. Nobody changes one that was made."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One row of the member table."""

    role: str
    rank: int
    incarnation: int
    host: str
    port: int
    hostname: str
    pid: int
    machine: str = ""


class ErrorInfo(Message, tag=41):
    """An error on its way to the caller."""

    code: int
    message: str
    key: Key | None = None
    rank: int | None = None
    host: str | None = None
    expected: str | None = None
    got: str | None = None
