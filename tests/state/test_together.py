"""Save and load at the scheduler: who leads, who disagrees, who hears what."""

from __future__ import annotations

from typing import Any

import pytest

from asyncps.config import Config
from asyncps.errors import CheckpointError, ClusterError, Disagreement, RemoteProtocolError
from asyncps.protocol import messages as m
from asyncps.state.agreements import Answer, Stores
from asyncps.state.together import conclude

COME = m.Together(1, "save", "c")
SUM = m.StoreConfig("dist_sync", "arrival", "sum")


def class_of(answer: Any) -> type[Exception]:
    return type(m.error_from_wire(answer))


def test_lowest_rank_leads() -> None:
    assert conclude([(1, COME), (3, COME)]) == [m.Word(1, 1, ranks=[1, 3])] * 2


def test_all_hear_the_word_of_who_leads() -> None:
    said = m.Word(1, 3, None, "sgd", {"wd": 1.0})
    assert conclude([(1, m.Word(1, 3)), (3, said)]) == [said] * 2
    error = m.error_to_wire(CheckpointError("full"))
    answers = conclude([(1, m.Word(1, 3)), (3, m.Word(1, 3, error))])
    assert [class_of(answer) for answer in answers] == [CheckpointError] * 2


def test_word_of_who_has_left_does_not_come() -> None:
    answers = conclude([(1, m.Word(1, 0)), (3, m.Word(1, 0))])
    assert [class_of(answer) for answer in answers] == [ClusterError] * 2


@pytest.mark.parametrize("calls", [
    [(0, COME), (1, m.Together(1, "save", "d"))], [(0, COME), (1, m.Together(1, "load", "c"))],
    [(0, m.Word(1, 0)), (1, COME)],
])
def test_different_words_are_told_to_all(calls: list[tuple[int, Any]]) -> None:
    assert [class_of(answer) for answer in conclude(calls)] == [Disagreement] * 2


def test_who_is_waited_for_is_told_and_who_leaves_is_not() -> None:
    stores = Stores(Config.from_env({}, num_workers=3, num_servers=1))
    stores.handle(0, 1, m.OpenStore("s", SUM))
    stores.answered(0, 1, m.Done())
    assert stores.handle(1, 2, COME) == []
    assert stores.missing() == [((1, "checkpoint", 0), [0, 2], 1)]
    assert stores.handle(2, 2, COME) == []
    broken = stores.left(0)  # as at a barrier: who waits hears it, and the next time goes well
    heard = [class_of(each.message) for each in broken if isinstance(each, Answer)]
    assert heard == [ClusterError] * 2
    assert stores.handle(2, 3, COME) == []
    assert stores.handle(1, 3, COME) == [
        Answer(rank, 3, m.Word(1, 1, ranks=[1, 2])) for rank in (1, 2)]
    assert stores.handle(2, 4, m.Word(1, 1)) == []
    assert stores.missing() == [((1, "checkpoint", 2), [1], 1)]
    (word,) = stores.left(1)
    assert isinstance(word, Answer)
    assert (word.rank, class_of(word.message)) == (2, ClusterError)


def test_keys_are_listed_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncps.state.routing.PAGE_PIECES", 5)
    stores = Stores(Config.from_env({}, num_workers=1, num_servers=1))
    stores.handle(0, 1, m.OpenStore("s", SUM))
    stores.answered(0, 1, m.Done())
    stores.handle(0, 2, m.Declare(1, [m.KeySpec(i, "float32", (2,), 4) for i in range(7)]))
    stores.handle(0, 3, m.Ready(1, [0, 3]))
    found: list[m.Placement] = []
    for request in range(4, 10):
        (answer,) = stores.handle(0, request, m.ListKeys(1, len(found)))
        assert isinstance(answer, Answer)
        assert isinstance(answer.message, m.Placed)
        if not answer.message.placements:
            break
        assert len(answer.message.placements) <= 3
        found += answer.message.placements
    assert [each.spec.key for each in found] == list(range(7))
    assert [each.spec.key for each in found if not each.fresh] == [0, 3]


def test_error_of_anybody_is_heard_by_all_and_the_leaders_first() -> None:
    mine, its = m.error_to_wire(ClusterError("mine")), m.error_to_wire(CheckpointError("its"))
    answers = conclude([(1, m.Word(1, 3, mine)), (3, m.Word(1, 3))])
    assert [class_of(answer) for answer in answers] == [ClusterError] * 2
    answers = conclude([(1, m.Word(1, 3, mine)), (3, m.Word(1, 3, its))])
    assert [class_of(answer) for answer in answers] == [CheckpointError] * 2


@pytest.mark.parametrize("words", [("save", "p" * 4097), ("v" * 4097, "p")])
def test_words_without_a_bound_are_refused_before_they_are_kept(words: tuple[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        m.decode(m.encode(m.Together(1, *words)))
