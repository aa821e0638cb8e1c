"""Compression is agreed on as an optimizer is, in one order with it; servers hear nothing."""

from __future__ import annotations

from typing import Any

import pytest

from asyncps.errors import ClusterError, Disagreement, OptimizerError
from asyncps.protocol.messages import Done, ErrorInfo, JoinStore, SetCompression, SetOptimizer
from asyncps.state.agreements import Answer
from tests.state.test_agreements import with_store

WORDS = SetCompression(1, None, {"type": "2bit", "threshold": 0.5})


def told(answers: Any) -> str:
    (text,) = {answer.message.message for answer in answers}
    assert all(answer.message.code == Disagreement.code for answer in answers)
    assert isinstance(text, str)
    return text


def test_all_are_answered_when_all_have_said_the_same() -> None:
    stores = with_store()
    again = SetCompression(1, None, {"threshold": 0.5, "type": "2bit"})
    assert stores.handle(1, 2, WORDS) == []
    assert stores.handle(2, 2, again) == []
    assert stores.missing() == [((1, "optimizer", 0), [0], 2)]
    assert stores.handle(0, 5, WORDS) == [
        Answer(0, 5, Done()), Answer(1, 2, Done()), Answer(2, 2, Done()),
    ]
    assert stores.owed(0) == []


@pytest.mark.parametrize(("other", "text"), [
    (SetCompression(1, None, {"type": "1bit", "threshold": 0.5}),
     "compressions: workers 0, 1 said type='2bit'; worker 2 said type='1bit'"),
    (SetCompression(1, ["w", 5], {"type": "2bit", "threshold": 0.5}),
     "compressions: workers 0, 1 said keys=None; worker 2 said keys=['w', 5]"),
    (SetCompression(1, None, {"type": "2bit", "threshold": 0.5}, True),
     "compressions: workers 0, 1 said default=False; worker 2 said default=True"),
])  # fmt: skip
def test_different_words_are_a_disagreement_for_all(other: SetCompression, text: str) -> None:
    stores = with_store()
    stores.handle(0, 2, WORDS)
    stores.handle(1, 2, WORDS)
    assert told(stores.handle(2, 2, other)).endswith(text)


def test_an_optimizer_beside_it_is_a_disagreement() -> None:
    stores = with_store()
    stores.handle(0, 2, WORDS)
    stores.handle(1, 2, SetOptimizer(1, "sgd", {}))
    text = told(stores.handle(2, 2, WORDS))
    assert "some an optimizer (set_optimizer) and some a compression (set_gradient_compr" in text


def test_it_is_refused_while_somebody_has_joined() -> None:
    stores = with_store()
    assert stores.handle(1, 4, WORDS) == []
    found = [a for a in stores.handle(0, 5, JoinStore(1)) if isinstance(a, Answer)]
    assert [(a.rank, a.request) for a in found] == [(1, 4)]
    assert isinstance(found[0].message, ErrorInfo)
    with pytest.raises(ClusterError, match="have joined"):
        stores.handle(2, 5, WORDS)


def test_words_that_are_no_plain_data_are_refused() -> None:
    with pytest.raises(OptimizerError):
        with_store().handle(0, 2, SetCompression(1, None, {"type": object()}))
