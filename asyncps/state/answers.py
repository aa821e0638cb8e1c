"""What the scheduler's stores have to say: answers to workers, orders to servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncps.errors import ClusterError
from asyncps.protocol import messages as m
from asyncps.state.meetings import Call
from asyncps.state.routing import Routing
from asyncps.state.together import conclude


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a worker's request."""

    rank: int
    request: int
    message: m.Message


@dataclass(frozen=True, slots=True)
class Order:
    """Tell a server something that it has to answer; `request` is the scheduler's own number."""

    server: int
    request: int
    message: m.Install | m.Attendance


Action = Answer | Order


def placed(routing: Routing, rank: int, request: int, placements: list[m.Placement]) -> Answer:
    return Answer(rank, request, m.Placed(routing.version, placements))


def all_done(calls: list[Call]) -> list[Action]:
    return [Answer(call.rank, call.request, m.Done()) for call in calls]


def concluded(calls: list[Call]) -> list[Action]:
    answers = conclude([(call.rank, call.words) for call in calls])
    return [Answer(call.rank, call.request, answer)
            for call, answer in zip(calls, answers, strict=True)]


def joined_error(joined: Iterable[int]) -> ClusterError:
    ranks = ", ".join(map(str, joined))[:400]
    return ClusterError(f"not while workers have joined, which nobody waits for: {ranks}")
