"""Messages about who is counted: a worker that is lost or has no more data, and its return."""

from __future__ import annotations

from asyncps.protocol.base import Message


class Gone(Message, tag=90):
    """The scheduler: this worker is lost, and the job goes on without it."""

    rank: int
    host: str
    reason: str


class Ending(Message, tag=100):
    """A worker's process ends with nothing left to do; whoever reaps it will say how it ended.

    `direct`: that is its own parent, which knows as soon as the process is gone. Else a process
    between the two may live on, and the worker counts as having left when no word comes. Answered
    with Done.
    """

    direct: bool


class Ended(Message, tag=101):
    """Whoever reaped a worker says how it ended; `reason` None: with exit code 0.

    It is named by its rank, or by the process number on its host. Answered with Done.
    """

    rank: int | None
    hostname: str
    pid: int
    reason: str | None


class Absent(Message, tag=102):
    """The scheduler tells who has joined that the job has not begun, and who is missing."""

    text: str


class AskAbsent(Message, tag=103):
    """Whom does what this worker waits for still wait for? Answered with MissingRanks.

    `what` is barrier, optimizer, checkpoint, join or init.
    """

    store: int
    what: str


class JoinStore(Message, tag=91):
    """A worker has no more data for a store: answered with AllJoined when all have joined."""

    store: int


class AllJoined(Message, tag=92):
    """All workers have joined, and the servers count them again; `last` was the last of them."""

    last: int


class Attendance(Message, tag=93):
    """The scheduler tells a server that rounds of a store do not wait for `rank` from now on.

    None: that they wait for everybody again, and that all clocks of a unit are one. Answered with
    Done.
    """

    store: int
    rank: int | None
    closed: bool = False  # that one has closed the store: for good


# Units that one question for clocks names: each answers with as many clocks as it has rows.
MAX_CLOCK_UNITS = 64


class Clocks(Message, tag=94):
    """A worker asks a server (on the data connection) for its own clocks of some units.

    `clocks` is empty in the question, which names at most MAX_CLOCK_UNITS units, each once; the
    answer has a list for each unit: one clock of a chunk, one for each row of a slab, none of a
    unit that is not there.
    """

    store: int
    units: list[int]
    clocks: list[list[int]]
