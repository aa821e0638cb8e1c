"""The scheduler's proven connections: whose each is, and how many there may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncps.config import Config
from asyncps.errors import RemoteProtocolError
from asyncps.protocol.messages import Message
from asyncps.state.membership import Node

SPARE_LINKS = 64  # links beyond one old and one new of each node (launchers, unnamed, refused)
MAX_OBSERVERS = 16  # of the spare links: observers never keep a node out


@dataclass(slots=True)
class Link:
    """One proven connection."""

    number: int
    role: str
    opened: float  # an observer's: when it asked last
    node: Node | None = None


def why_not(links: Iterable[Link], role: str, config: Config) -> str | None:
    """Say why another connection of a role is closed at once; None: it is welcome."""
    links = list(links)
    if role not in ("worker", "server", "launcher", "observer"):
        return "this role does not speak to the scheduler"
    if role == "observer" and sum(link.role == role for link in links) >= MAX_OBSERVERS:
        return "too many observers"
    most = 2 * (config.num_workers + config.num_servers) + SPARE_LINKS
    return "too many connections" if len(links) >= most else None


def idle(links: Iterable[Link], since: float) -> list[tuple[int, str]]:
    """Return the links that were opened before `since` and serve nobody, and what each lacks."""
    found = []
    for link in links:
        if link.opened < since and link.role == "observer":
            found.append((link.number, "it asks nothing"))
        elif link.opened < since and link.node is None and link.role != "launcher":
            found.append((link.number, "it did not join"))
    return found


def out_of_place(role: str, message: Message) -> RemoteProtocolError:
    """Return the error of a message that a role does not send here."""
    return RemoteProtocolError(f"{type(message).__name__} of a {role} is out of place here")
