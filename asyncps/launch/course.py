"""The course of a launch as a pure state machine: who ended, what that means, what to do next.

    starting --announced--> running --last worker ended with 0--> leaving --all ended--> over
       any of these --a failure--> speaking --1 s--> terminating --> over     (failure: exit not 0;
                                                                     3.5 s if it is the scheduler's)
       any of these --signal of the user--> terminating --> over

Over means that whoever is still alive is killed. A job that goes on without lost workers fails by
them only when no worker is left; a lost one counts as ended, though it may still be alive.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from asyncps.launch.members import Member, describe_end, exit_code_of


class Phase(enum.Enum):
    """Where a launch stands."""

    STARTING = "starting"
    RUNNING = "running"
    LEAVING = "leaving"
    SPEAKING = "speaking"
    TERMINATING = "terminating"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that each phase may take; a failed job has ended 3 s after the first failure, or
    5 s after that of the scheduler.

    Attributes:
        announce: The scheduler's first line.
        report: Telling the scheduler of a death.
        speak: Survivors say what they saw and end by themselves.
        unheard: The same where nobody can tell them, since the scheduler itself has failed.
        terminate: From SIGTERM to SIGKILL after a failure.
        interrupt: From SIGTERM to SIGKILL after a signal of the user.
        leave: Servers and scheduler end by themselves after the last worker.
        together: Servers and scheduler, which may leave before a worker's process has ended
            (it said goodbye and still draws its figures), must do so all of them.
    """

    announce: float = 20.0
    report: float = 0.6
    speak: float = 1.0
    unheard: float = 3.5
    terminate: float = 0.7
    interrupt: float = 1.0
    leave: float = 10.0
    together: float = 5.0


@dataclass(frozen=True, slots=True)
class Failed:
    """Tell the user of the failure, and the scheduler if it can hear; then call `reported`."""

    member: Member
    reason: str
    tell_scheduler: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Tell the user that the job goes on without a worker, and the scheduler if it can hear."""

    member: Member
    reason: str
    tell_scheduler: bool


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM to the groups of all who live."""


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


Order = Failed | Lost | Terminate | Say


class Course:
    """One launch. Every method takes `now` in seconds and returns what is to be done, in order.

    Attributes:
        phase: Where it stands; at `OVER` kill the rest and return `exit_code`.
        exit_code: The launcher's exit code.
        culprit: The member whose failure ended the job.
        reason: What it did.
        lost: The workers that the job went on without, and why.

    Args:
        num_workers: How many there are.
        deadlines: How long each phase may take.
        now: In seconds.
        goes_on: A lost worker ends the job only if no other is left.
    """

    def __init__(
        self, num_workers: int, deadlines: Deadlines, now: float, *, goes_on: bool = False
    ) -> None:
        self.phase = Phase.STARTING
        self.exit_code = 0
        self.culprit: Member | None = None
        self.reason = ""
        self._deadlines = deadlines
        self._deadline: float | None = now + deadlines.announce
        self._alive: set[Member] = set()
        self._goes_on = goes_on
        self.lost: dict[Member, str] = {}
        self._first_loss = 1  # the exit code of the worker that was lost first
        self._num_workers = self._workers_to_end = num_workers
        self._left_early: Member | None = None
        self._interrupted = False

    def wait_s(self, now: float) -> float | None:
        """How long nothing happens by itself; None for ever."""
        return None if self._deadline is None else max(0.0, self._deadline - now)

    def started(self, member: Member) -> None:
        """A member has been started."""
        self._alive.add(member)

    def announced(self) -> None:
        """The scheduler said where it listens."""
        if self.phase is Phase.STARTING:
            self.phase, self._deadline = Phase.RUNNING, None

    def exited(self, member: Member, code: int, now: float) -> list[Order]:
        """A member was reaped with an exit code, or -n for signal n."""
        self._alive.discard(member)
        orders: list[Order] = []
        if self.phase in (Phase.STARTING, Phase.RUNNING, Phase.LEAVING):
            if member in self.lost:
                pass  # it was counted when the scheduler declared it lost
            elif code != 0 and self._can_lose(member):
                scheduler = Member("scheduler", 0) in self._alive
                orders = self._lose(member, exit_code_of(code), describe_end(code), now,
                                    tell_scheduler=scheduler)
            elif code != 0:
                orders = self._fail(member, exit_code_of(code), describe_end(code))
            elif member.role == "worker":
                self._worker_ended(now)
            elif self.phase is Phase.STARTING:
                orders = self._fail(member, 1, "ended before it said where it listens")
            elif self.phase is Phase.RUNNING:
                self._leave_early(member, now)
        if not self._alive and self.phase not in (Phase.STARTING, Phase.RUNNING):
            self.phase, self._deadline = Phase.OVER, None
        return orders

    def declared_lost(self, member: Member, reason: str, now: float) -> list[Order]:
        """The scheduler says that it goes on without a worker, whose process may be alive."""
        if member in self.lost or not self._can_lose(member):
            return []
        reason = f"was declared lost: {reason}"
        if member not in self._alive:  # it ended as if all were well
            return [Say(f"{member} {reason}")]
        return self._lose(member, 1, reason, now, tell_scheduler=False)

    def reported(self, now: float) -> None:
        """The scheduler knows, or is what has failed; the survivors' time begins."""
        if self.phase is Phase.SPEAKING:
            alone = self.culprit is not None and self.culprit.role == "scheduler"
            limits = self._deadlines
            self._deadline = now + (max(limits.speak, limits.unheard) if alone else limits.speak)

    def interrupted(self, number: int, now: float) -> list[Order]:
        """The user sent a signal to the launcher; a second one ends everything at once."""
        if self._interrupted or self.phase is Phase.OVER:
            self.phase, self._deadline = Phase.OVER, None
            return []
        self._interrupted = True
        if self.phase not in (Phase.SPEAKING, Phase.TERMINATING):
            self.exit_code = 128 + number  # else the failure that came first counts
        return self._terminate(now + self._deadlines.interrupt)

    def broken(self) -> None:
        """The launcher cannot go on: all is over."""
        self.exit_code = self.exit_code or 1
        self.phase, self._deadline = Phase.OVER, None

    def tick(self, now: float) -> list[Order]:
        """Act on the deadline, if it has passed."""
        if self._deadline is None or now < self._deadline:
            return []
        if self.phase is Phase.STARTING:
            reason = f"did not say within {self._deadlines.announce:g} s where it listens"
            return self._fail(Member("scheduler", 0), 1, reason)
        if self.phase is Phase.RUNNING:
            assert self._left_early is not None
            reason = "ended with exit code 0 while the workers were still running"
            return self._fail(self._left_early, 1, reason)
        if self.phase is Phase.LEAVING:
            names = ", ".join(sorted(str(member) for member in self._alive))
            return [Say(f"ending {names}: still alive {self._deadlines.leave:g} s after the last "
                        "worker"), *self._terminate(now + self._deadlines.terminate)]
        if self.phase is Phase.SPEAKING:
            return self._terminate(now + self._deadlines.terminate)
        self.phase, self._deadline = Phase.OVER, None
        return []

    def _can_lose(self, member: Member) -> bool:
        going_on = self.phase in (Phase.RUNNING, Phase.LEAVING)
        return self._goes_on and going_on and member.role == "worker"

    def _lose(
        self, member: Member, exit_code: int, reason: str, now: float, *, tell_scheduler: bool
    ) -> list[Order]:
        if not self.lost:
            self._first_loss = exit_code
        self.lost[member] = reason
        orders: list[Order] = [Lost(member, reason, tell_scheduler)]
        if len(self.lost) == self._num_workers:
            first = next(iter(self.lost))
            return orders + self._fail(first, self._first_loss, self.lost[first])
        self._worker_ended(now)
        return orders

    def _worker_ended(self, now: float) -> None:
        self._workers_to_end -= 1
        if self._workers_to_end == 0:
            self.phase = Phase.LEAVING
            self._deadline = now + self._deadlines.leave

    def _leave_early(self, member: Member, now: float) -> None:
        if not any(other.role != "worker" for other in self._alive):
            self._deadline = None  # all left: their workers have said goodbye
        elif self._deadline is None:
            self._left_early = member
            self._deadline = now + self._deadlines.together

    def _fail(self, member: Member, exit_code: int, reason: str) -> list[Order]:
        self.culprit, self.reason, self.exit_code = member, reason, exit_code
        listens = self.phase is not Phase.STARTING and Member("scheduler", 0) in self._alive
        self.phase, self._deadline = Phase.SPEAKING, None  # `reported` starts the clock
        return [Failed(member, reason, tell_scheduler=listens)]

    def _terminate(self, deadline: float) -> list[Order]:
        if self.phase is Phase.TERMINATING:
            return []
        self.phase, self._deadline = Phase.TERMINATING, deadline
        return [Terminate()]
