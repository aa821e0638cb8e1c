"""What nodes say of themselves, and what observers are told: messages that change nothing."""

from __future__ import annotations

import msgspec

from asyncps.protocol.base import Member, Message


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """Somebody is waited for: `what` is "round", "barrier", "optimizer", "checkpoint" or "init",
    `key` one of the keys (or ""), `count` how many chunks and slabs, or workers, wait."""

    what: str
    store: int
    key: str
    rank: int
    seconds: float
    count: int


class AskReport(Message, tag=70):
    """The scheduler asks a node how it is. Answered with Report; both have no request number."""


class Report(Message, tag=71):
    """Plain numbers of one node since it began; `waited_s` and `waits` are a server's.

    `metrics_port` is where it serves its metrics, 0 if it does not."""

    sent_bytes: int
    received_bytes: int
    queued_bytes: int
    queued_frames: int
    requests: int
    keys: int
    rounds: int
    value_bytes: int
    waited_s: dict[int, float]
    waits: list[Wait]
    metrics_port: int = 0


class AskStatus(Message, tag=72):
    """An observer asks how the job is. Answered with JobStatus."""


class NodeStatus(msgspec.Struct, frozen=True, array_like=True):
    """One member as the scheduler sees it; `report` came `report_age_s` ago."""

    member: Member
    standing: str
    silent_s: float
    report: Report | None
    report_age_s: float


class StoreStatus(msgspec.Struct, frozen=True, array_like=True):
    """One store of the job."""

    store: int
    name: str
    type: str
    keys: int


class JobStatus(Message, tag=73):
    """The job as the scheduler sees it: `phase` is "joining", "running", "ending" or "failed"."""

    phase: str
    up_s: float
    num_workers: int
    num_servers: int
    nodes: list[NodeStatus]
    stores: list[StoreStatus]
    waits: list[Wait]
    error: str | None
