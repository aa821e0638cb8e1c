"""Groups, one after another, at a scheduler that was not told how many workers they have."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    Disagreement,
    RankTaken,
    RemoteProtocolError,
    StaleIncarnation,
    WorkerLost,
)
from asyncps.protocol.messages import (
    AskStatus,
    ErrorInfo,
    JobStatus,
    Join,
    Joined,
    Leave,
    Lost,
    Members,
    Message,
    Shutdown,
    error_from_wire,
)
from asyncps.state.groups import Groups
from asyncps.state.scheduling import Close, Instruction, Log, Send

CONFIG = Config(rendezvous_s=100, reconnect_s=2)


class Maker:
    """The holder of a ticket's state, and its links; what an event sends lies in `sent`."""

    def __init__(self, **changes: Any) -> None:
        self.now = 1000.0
        self.groups = Groups(CONFIG.replace(**changes), self.now)
        self.next_link = 1
        self.links: set[int] = set()
        self.sent: dict[int, list[Message]] = {}
        self.logs: list[tuple[int, str]] = []

    def run(self, instructions: list[Instruction]) -> None:
        self.sent = {}
        for item in instructions:
            match item:
                case Send(link, _, message):
                    assert link in self.links
                    self.sent.setdefault(link, []).append(message)
                case Close(link):
                    self.links.remove(link)
                case Log(level, text):
                    self.logs.append((level, text))
                case _:
                    pytest.fail(f"{item} ends the scheduler")

    def open(self, role: str = "worker") -> int:
        link, self.next_link = self.next_link, self.next_link + 1
        self.links.add(link)
        self.run(self.groups.opened(link, role, self.now))
        return link

    def say(self, link: int, message: Message, request: int = 1) -> list[Message]:
        self.run(self.groups.received(link, request, 0, message, self.now))
        return self.sent.get(link, [])

    def join(
        self, rank: int | None, size: int, incarnation: int = 0, link: int | None = None
    ) -> int:
        link = self.open() if link is None else link
        self.say(link, Join("worker", rank, incarnation, "", 0, "host", 40 + (rank or 0), "m",
                            size))
        return link

    def hears(self, link: int) -> list[Message]:
        return self.sent.get(link, [])

    def close(self, link: int) -> None:
        self.links.remove(link)
        self.run(self.groups.closed(link, self.now))

    def pass_time(self, seconds: float) -> dict[int, list[Message]]:
        heard: dict[int, list[Message]] = {}
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            self.run(self.groups.tick(self.now))
            for link, messages in self.sent.items():
                heard.setdefault(link, []).extend(messages)
        return heard


def error_of(messages: list[Message]) -> AsyncPSError:
    (info,) = [m for m in messages if isinstance(m, ErrorInfo)]
    return error_from_wire(info)


def test_the_first_says_how_many_they_are() -> None:
    made = Maker()
    first = made.join(1, 2)
    assert made.sent == {first: [Joined(1, 1, 2, 0)]}
    second = made.join(0, 2)
    assert [type(m) for m in made.sent[second]] == [Joined, Members]
    assert [type(m) for m in made.sent[first]] == [Members]
    assert made.groups.status(made.now).phase == "running"


def test_one_that_says_another_number_ends_the_group_for_all_by_name() -> None:
    made = Maker()
    first = made.join(0, 3)
    second = made.join(1, 2)
    error = error_of(made.sent[second])
    assert type(error) is Disagreement
    assert error.message == (
        "the processes of one ticket name different numbers of workers: worker 0 @host (pid 40) "
        "says 3, and worker 1 @host (pid 41) says 2")
    ((shutdown,),) = [made.sent[first]]
    assert isinstance(shutdown, Shutdown)
    assert shutdown.error is not None
    assert (shutdown.error.code, shutdown.error.message) == (Disagreement.code, error.message)
    assert not made.links
    # Who comes late does not wait for those; whoever comes anew does not hear of it.
    third = made.join(2, 3)
    assert type(error_of(made.sent[third])) is Disagreement
    assert third not in made.links
    again = made.join(0, 3)
    assert [type(m) for m in made.sent[again]] == [Joined]
    assert [type(m) for m in made.hears(made.join(2, 3))] == [Joined]


def test_a_disagreement_is_forgotten_by_the_next_group() -> None:
    made = Maker()
    made.join(0, 3)
    made.join(1, 2)
    made.say(made.join(0, 1), Leave(), request=2)
    assert [type(m) for m in made.hears(made.join(2, 3))] == [Joined]


def test_a_disagreement_is_forgotten_in_time() -> None:
    made = Maker(rendezvous_s=1.0)
    made.join(0, 3)
    made.join(1, 2)
    made.pass_time(1.0)
    assert [type(m) for m in made.hears(made.join(2, 3))] == [Joined]


@pytest.mark.parametrize(("size", "kind"), [
    (0, RemoteProtocolError), (-1, ConfigError), (1 << 40, ConfigError),
])  # fmt: skip
def test_a_number_that_cannot_be_is_refused_and_makes_no_group(
    size: int, kind: type[AsyncPSError]
) -> None:
    made = Maker()
    link = made.join(0, size)
    error = error_of(made.sent[link])
    assert type(error) is kind
    assert "worker 0 @host (pid 40)" in str(error)
    assert link not in made.links
    assert [type(m) for m in made.hears(made.join(0, 1))] == [Joined, Members]


def test_a_group_that_runs_does_not_care_who_knocks() -> None:
    made = Maker()
    members = [made.join(rank, 2) for rank in range(2)]
    for size, kind in ((2, RankTaken), (3, Disagreement)):
        late = made.join(1, size)
        assert type(error_of(made.sent[late])) is kind
        assert list(made.sent) == [late]
        assert made.links == set(members)


def test_the_next_group_may_be_of_another_size() -> None:
    made = Maker()
    for size in (2, 3, 1):
        members = [made.join(rank, size) for rank in range(size)]
        assert made.groups.status(made.now).phase == "running"
        for link in members:
            made.say(link, Leave(), request=2)
        assert not made.links
        assert made.groups.status(made.now).nodes == []


def test_after_a_loss_the_next_group_comes_when_the_last_one_is_gone() -> None:
    made = Maker()
    members = [made.join(rank, 2) for rank in range(2)]
    made.close(members[1])
    heard = made.pass_time(2.0)
    assert [type(m) for m in heard[members[0]]] == [Lost]
    late = made.join(1, 2)  # one of the group that has failed: it hears why
    assert type(error_of(made.sent[late])) is WorkerLost
    made.close(members[0])
    assert not made.links
    assert [type(m) for m in made.hears(made.join(0, 1))] == [Joined, Members]


def test_whoever_is_left_over_is_never_taken_for_a_member() -> None:
    made = Maker()
    zombie = made.join(0, 1)
    made.say(zombie, Leave(), request=2)
    member = made.join(0, 2)
    assert made.sent[member] == [Joined(0, 2, 2, 0)]
    back = made.join(0, 1, incarnation=1)
    assert type(error_of(made.sent[back])) is StaleIncarnation
    assert made.links == {member}


def test_a_member_comes_back_over_a_new_connection() -> None:
    made = Maker()
    members = [made.join(rank, 2) for rank in range(2)]
    made.close(members[1])
    back = made.join(1, 2, incarnation=2)
    assert [type(m) for m in made.sent[back]] == [Joined, Members]
    made.say(members[0], Leave(), request=2)
    made.say(back, Leave(), request=2)
    assert not made.links


def test_processes_that_died_before_it_began_do_not_decide_for_others() -> None:
    made = Maker()
    made.close(made.join(0, 5))
    link = made.join(0, 1)
    assert [type(m) for m in made.sent[link]] == [Joined, Members]


def test_a_member_that_is_cut_off_for_a_moment_keeps_its_place() -> None:
    made = Maker()
    made.close(made.join(0, 2))
    second = made.join(1, 2)
    back = made.join(0, 2, incarnation=1)
    assert [type(m) for m in made.sent[back]] == [Joined, Members]
    assert [type(m) for m in made.sent[second]] == [Members]


def test_nobody_is_waited_for_before_the_first_and_then_everybody() -> None:
    made = Maker(rendezvous_s=20)
    made.pass_time(1000)
    assert made.logs == []
    link = made.join(0, 2)
    heard = made.pass_time(21)
    shutdown = heard[link][-1]
    assert isinstance(shutdown, Shutdown)
    assert shutdown.error is not None
    assert "missing: worker 1" in shutdown.error.message
    assert not made.links


def test_who_opens_and_says_nothing_is_closed() -> None:
    made = Maker()
    made.open()
    made.pass_time(6)
    assert not made.links


def test_an_observer_outlives_groups() -> None:
    made = Maker()
    watcher = made.open("observer")
    for phase, size in (("joining", 0), ("running", 1)):
        members = [made.join(0, 1) for _ in range(size)]
        (status,) = made.say(watcher, AskStatus(), request=5)
        assert isinstance(status, JobStatus)
        assert (status.phase, len(status.nodes)) == (phase, size)
        for link in members:
            made.say(link, Leave(), request=2)
    assert made.links == {watcher}
    assert type(error_of(made.say(watcher, Leave(), request=6))) is RemoteProtocolError


class Holders(RuleBasedStateMachine):
    """Processes that come, say sizes, leave, die and come back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Maker(reconnect_s=1.0)
        self.incarnations: list[int] = []
        self.known: dict[int, tuple[int, int]] = {}  # link -> rank, incarnation

    def note(self) -> None:
        for link, messages in self.made.sent.items():
            for message in messages:
                if isinstance(message, Joined) and link not in self.known:
                    assert message.incarnation not in self.incarnations
                    assert message.incarnation > max(self.incarnations, default=0)
                    self.incarnations.append(message.incarnation)
                    self.known[link] = (message.rank, message.incarnation)

    @rule(rank=st.none() | st.integers(0, 3), size=st.integers(0, 4))
    def join(self, rank: int | None, size: int) -> None:
        link = self.made.join(rank, size)
        answers = [m for m in self.made.sent.get(link, []) if isinstance(m, Joined | ErrorInfo)]
        assert len(answers) == 1  # at once, whatever it is
        assert (link in self.made.links) == isinstance(answers[0], Joined) or (
            isinstance(answers[0], ErrorInfo) and link not in self.made.links)
        self.note()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(self.known)))
        if link in self.made.links:
            self.made.say(link, Leave(), request=2)

    @precondition(lambda self: self.made.links)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        self.made.close(data.draw(st.sampled_from(sorted(self.made.links))))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), size=st.integers(1, 4))
    def come_back(self, data: st.DataObject, size: int) -> None:
        old = data.draw(st.sampled_from(sorted(self.known)))
        rank, incarnation = self.known[old]
        link = self.made.join(rank, size, incarnation)
        joined = [m for m in self.made.sent.get(link, []) if isinstance(m, Joined)]
        for message in joined:
            assert (message.rank, message.incarnation) == (rank, incarnation)
            self.known[link] = self.known[old]

    @rule()
    def observe(self) -> None:
        link = self.made.open("observer")
        (answer,) = self.made.say(link, AskStatus())
        assert isinstance(answer, JobStatus)
        self.made.close(link)

    @rule(seconds=st.sampled_from([0.25, 1.5, 6.0, 101.0]))
    def wait(self, seconds: float) -> None:
        self.made.pass_time(seconds)

    @invariant()
    def a_group_that_runs_is_whole(self) -> None:
        status = self.made.groups.status(self.made.now + 1)
        if status.phase == "running":
            ranks = sorted(node.member.rank for node in status.nodes)
            assert ranks == list(range(status.num_workers))
        assert all(level < logging.CRITICAL for level, _ in self.made.logs)


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
