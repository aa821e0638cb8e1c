"""Launcher `local`: scheduler, servers and workers of one job on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncps.launch.course import Course, Deadlines, Failed, Lost, Order, Phase, Say, Terminate
from asyncps.launch.environment import membership, without_cluster
from asyncps.launch.family import Exited, Family, GuardianLost, Started
from asyncps.launch.members import Member
from asyncps.launch.output import Output
from asyncps.launch.signals import Signals

ANNOUNCEMENT = re.compile(r"asyncps scheduler listening on (\S+:\d+)")
GOES_ON = re.compile(r"asyncps scheduler: worker (\d+) @\S* is lost: (.*); the job goes on "
                     "without it")
SCHEDULER = Member("scheduler", 0)
# After the guardian has ended, nothing more comes through the pipes than what they hold.
_DRAIN_S = 0.5

RoleCommand = Callable[[str], Sequence[str]]
Ender = Callable[[str, str, str, int, int, float], bool]
Reporter = Callable[[str, str, str, str, int, str, float], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What to launch.

    Attributes:
        command: The workers' program and arguments.
        num_workers: How many of them.
        num_servers: How many servers.
        inherited: The environment that all start from; a cluster in it is left out.
        env: What is added for a role, by role.
        name: Of the job; None: a random one.
        log_dir: Where a file a rank is kept.
        metrics_port: Where the scheduler serves metrics; servers and then workers take the next
            ports. 0: each any; None: nobody does.
        on_worker_lost: What survivors do when a worker is lost.
        colour: Colour prefixes on terminals.
        debug: Show the scheduler's announcement like any other line.
    """

    command: Sequence[str]
    num_workers: int
    num_servers: int
    inherited: Mapping[str, str]
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name: str | None = None
    log_dir: Path | None = None
    metrics_port: int | None = None
    on_worker_lost: str = "fail"
    colour: bool = True
    debug: bool = False


def own_role(role: str) -> Sequence[str]:
    """Return the command of a scheduler or server."""
    return [sys.executable, "-m", "asyncps", role]


def launch_local(
    job: LocalJob,
    *,
    role_command: RoleCommand = own_role,
    reporter: Reporter | None = None,
    deadlines: Deadlines | None = None,
    stdout_fd: int = 1,
    stderr_fd: int = 2,
) -> int:
    """Run a job to its end; nothing of it is alive afterwards, whatever happens.

    Args:
        job: What to launch.
        role_command: Gives the command of a scheduler or server.
        reporter: Tells the scheduler of a reaped process; default `roles.report.report_death`.
        deadlines: How long each phase may take.
        stdout_fd: Where the ranks' output goes.
        stderr_fd: Where their error output and the launcher's words go.

    Returns:
        0, or the exit code of the first process that failed (128+n for signal n), or 128+n when
        the user sent signal n, or 1 when the launcher itself could not go on.

    Raises:
        ConfigError: The log directory cannot be used.
    """
    limits = deadlines or Deadlines()
    with (
        Signals() as signals,
        Output(stdout_fd=stdout_fd, stderr_fd=stderr_fd, colour=job.colour,
               log_dir=job.log_dir) as output,
    ):
        with Family() as family:
            run = _Run(job, family, output, role_command, reporter, limits)
            try:
                run.until_over(signals)
            finally:
                all_gone = family.end()
        output.drain(_DRAIN_S)
        run.tell_the_end(all_gone)
        return run.course.exit_code


class _Run:
    """One run of a job: carries out what the course orders."""

    def __init__(
        self, job: LocalJob, family: Family, output: Output, role_command: RoleCommand,
        reporter: Reporter | None, deadlines: Deadlines,
    ) -> None:
        self.course = Course(job.num_workers, deadlines, time.monotonic(),
                             goes_on=job.on_worker_lost == "continue")
        self._job = job
        self._family = family
        self._output = output
        self._role_command = role_command
        self._reporter = reporter
        self._ender: Ender | None = None
        self._deadlines = deadlines
        self._token = secrets.token_hex(32)
        self._name = job.name or f"local-{secrets.token_hex(8)}"
        self._scheduler = "127.0.0.1:0"
        self._listens = False
        self._said: deque[tuple[Member, str]] = deque()  # losses that the scheduler declared
        self._members: list[Member] = []
        self._pids: dict[Member, int] = {}

    def until_over(self, signals: Signals) -> None:
        """Start everybody and go on until whoever is alive is to be killed."""
        heard, teller = socket.socketpair()
        with heard, teller:
            self._start(SCHEDULER, lambda line: self._listen(line, teller))
            while self.course.phase is not Phase.OVER:
                sources: list[Family | Signals | socket.socket] = [self._family, signals, heard]
                wait_s = self.course.wait_s(time.monotonic())
                ready, _, _ = select.select(sources, [], [], wait_s)
                if heard in ready:
                    heard.recv(1024)
                    if self.course.phase is Phase.STARTING:
                        self.course.announced()
                        self._start_others()
                    while self._said:
                        loss = self._said.popleft()
                        self._obey(self.course.declared_lost(*loss, time.monotonic()))
                if signals in ready:
                    self._take_signals(signals)
                if self._family in ready:
                    self._take_events()
                self._obey(self.course.tick(time.monotonic()))

    def tell_the_end(self, all_gone: bool) -> None:
        """Show the culprit's last lines again and say how it ended."""
        if not all_gone:
            self._output.say("warning: a process of the job could not be ended in time")
        for member, reason in self.course.lost.items():
            self._output.say(f"the job lost {self._full_name(member)}, which {reason}")
        culprit = self.course.culprit
        if culprit is not None:
            if self._output.tail(culprit):
                self._output.say(f"the last lines of {culprit}:")
                self._output.show_tail(culprit)
            self._output.say(f"{self._full_name(culprit)} {self.course.reason}")

    def _start_others(self) -> None:
        for rank in range(self._job.num_servers):
            self._start(Member("server", rank))
        for rank in range(self._job.num_workers):
            self._start(Member("worker", rank))
        if self._reporter is None:
            # While the children start: at a death there would be no time for it.
            from asyncps.launch.reaped import tell_of_end
            from asyncps.roles.report import report_death

            self._reporter, self._ender = report_death, tell_of_end

    def _start(self, member: Member, on_line: Callable[[str], bool] | None = None) -> None:
        worker = member.role == "worker"
        command = self._job.command if worker else self._role_command(member.role)
        env = {
            **without_cluster(self._job.inherited),
            "PYTHONUNBUFFERED": self._job.inherited.get("PYTHONUNBUFFERED", "1"),
            **self._metrics_of(member),
            **self._job.env.get(member.role, {}),
            **membership(
                member.role, member.rank, num_workers=self._job.num_workers,
                num_servers=self._job.num_servers, scheduler=self._scheduler, job=self._name,
            ),
            "ASYNCPS_LOCAL_RANK": str(member.rank),
            "ASYNCPS_PARENT": str(self._family.parent),
            "ASYNCPS_TOKEN": self._token,
            "ASYNCPS_ON_WORKER_LOST": self._job.on_worker_lost,
        }
        ends = self._output.open(member, on_line)
        try:
            self._family.start(len(self._members), command, env, *ends)
        finally:
            for end in ends:
                os.close(end)
        self._members.append(member)
        self.course.started(member)

    def _metrics_of(self, member: Member) -> dict[str, str]:
        first = self._job.metrics_port
        if first is None:
            return {}
        before = {"scheduler": 0, "server": 1, "worker": 1 + self._job.num_servers}[member.role]
        return {"ASYNCPS_METRICS_PORT": str(first and first + before + member.rank)}

    def _listen(self, line: str, teller: socket.socket) -> bool:
        """On the output thread: hear what the scheduler has to say to us; True hides the line."""
        if not self._listens and (match := ANNOUNCEMENT.fullmatch(line)):
            self._listens, self._scheduler = True, match[1]
        elif match := GOES_ON.fullmatch(line):
            self._said.append((Member("worker", int(match[1])), match[2]))
        else:
            return False
        with contextlib.suppress(OSError):  # the launch is over already
            teller.sendall(b"\0")
        return not self._job.debug

    def _take_signals(self, signals: Signals) -> None:
        for number in signals.received():
            self._output.say(f"{number.name}: ending the job")
            self._obey(self.course.interrupted(number, time.monotonic()))

    def _take_events(self) -> None:
        try:
            events = self._family.events()
        except GuardianLost:
            self._output.say("error: the guardian of this launch was killed: ending the job")
            self.course.broken()
            return
        for event in events:
            member = self._members[event.ident]
            match event:
                case Started(pid=pid):
                    self._pids[member] = pid
                case Exited(code=code):
                    if code == 0 and member.role == "worker":
                        self._tell_of_good_end(member)
                    self._obey(self.course.exited(member, code, time.monotonic()))

    def _obey(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Failed(member=member, reason=reason, tell_scheduler=tell):
                    self._output.say(f"{self._full_name(member)} {reason}: ending the job")
                    if tell:
                        self._report(member, reason)
                    self.course.reported(time.monotonic())
                case Lost(member=member, reason=reason, tell_scheduler=tell):
                    self._output.say(f"{self._full_name(member)} {reason}: the job goes "
                                     "on without it")
                    if tell:
                        self._report(member, reason)
                case Terminate():
                    self._family.signal(signal.SIGTERM)
                case Say(text=text):
                    self._output.say(text)

    def _tell_of_good_end(self, member: Member) -> None:
        """The worker itself could not know its exit code; if it has closed its store, no matter."""
        ender = self._ender
        if self.course.phase in (Phase.RUNNING, Phase.LEAVING) and ender is not None:
            self._tell(lambda: ender(self._scheduler, self._token, self._name, member.rank,
                                     self._pids[member], self._deadlines.report))

    def _report(self, member: Member, reason: str) -> None:
        reporter = self._reporter
        assert reporter is not None  # the scheduler is told of nothing before all were started
        self._tell(lambda: reporter(self._scheduler, self._token, self._name, member.role,
                                    member.rank, reason, self._deadlines.report))

    def _tell(self, word: Callable[[], bool]) -> None:
        """In a thread of its own: neither its signals nor its delay are ours."""

        def tell() -> None:
            try:
                word()
            except Exception as error:  # noqa: BLE001 - a task's edge: the job must end all the same
                self._output.say(f"warning: the scheduler was not told: {error!r}")

        thread = threading.Thread(target=tell, name="asyncps-launch-report", daemon=True)
        thread.start()
        thread.join(self._deadlines.report)

    def _full_name(self, member: Member) -> str:
        return f"{member} (pid {self._pids.get(member, '?')}) on {socket.gethostname()}"
