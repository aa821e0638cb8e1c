"""Which collective calls go together: all ranks come to the same, in whatever order words come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.collective import Group, Op, Verb, encode, parse
from asyncps.state.matching import AllJoined, Calls, Differ, Matching, Outcome, Single, Whole


def group(names: Sequence[str], shape: tuple[int, ...] = (3,), **more: object) -> Group:
    words = {"verb": Verb.ALL_REDUCE, "op": Op.SUM, "dtype": "float32", "root": 0, "factor": 1.0}
    words.update(more)
    return Group(int(words["verb"]), int(words["op"]), str(words["dtype"]), int(words["root"]),
                 float(words["factor"]), list(names), [shape] * len(names), [])


def calls(names: Sequence[str], base: int = 1, **more: object) -> Calls:
    return Calls(encode(group(names, **more)), base)


def test_equal_groups_are_taken_whole() -> None:
    matching = Matching([0, 1, 2], 1)
    assert matching.add(1, calls(["a", "b"])) == []
    assert matching.add(0, calls(["a", "b"], 7)) == []
    (whole,) = matching.add(2, calls(["a", "b"], 9))
    assert isinstance(whole, Whole)
    assert {rank: each.base for rank, each in whole.by_rank.items()} == {0: 7, 1: 1, 2: 9}
    assert matching.is_idle


def test_groups_that_differ_are_taken_apart() -> None:
    matching = Matching([0, 1], 0)
    matching.add(0, calls(["a", "b"]))
    (first,) = matching.add(1, calls(["b"]))
    assert isinstance(first, Single)
    assert (first.by_rank[0].at, first.by_rank[1].at) == (1, 0)
    (second,) = matching.add(1, calls(["a", "c"]))
    assert isinstance(second, Single)
    (third,) = matching.add(0, calls(["c"]))
    assert isinstance(third, Single)
    assert matching.is_idle
    matching.add(0, calls(["a"]))
    (whole,) = matching.add(1, calls(["a"]))
    assert isinstance(whole, Whole)  # as before


def test_calls_without_a_name_go_by_their_order() -> None:
    matching = Matching([0, 1], 0)
    matching.add(0, calls(["", ""], 1))
    matching.add(0, calls([""], 3))
    found = matching.add(1, calls(["", "", ""], 11))
    assert [(one.by_rank[0].calls.base, one.by_rank[0].at, one.by_rank[1].at)
            for one in found if isinstance(one, Single)] == [(1, 0, 0), (1, 1, 1), (3, 0, 2)]


@pytest.mark.parametrize(("more", "text"), [
    ({"shape": (4,)}, r"shape \(3,\) and \(4,\)"),
    ({"dtype": "float64"}, "dtype float32 and float64"),
    ({"op": Op.MAX}, "op sum and max"),
    ({"verb": Verb.BROADCAST}, "verb all_reduce and broadcast"),
    ({"factor": 0.5}, "factor 1.0 and 0.5"),
    ({"root": 1}, "root 0 and 1"),
])  # fmt: skip
def test_what_differs_is_told_by_all(more: dict[str, object], text: str) -> None:
    for me in range(3):
        matching = Matching([0, 1, 2], me)
        matching.add(0, calls(["x"]))
        matching.add(2, calls(["x"]))
        group_ = group(["x"], **{"shape": (3,), **more})
        (differ,) = matching.add(1, Calls(encode(group_), 1))
        assert isinstance(differ, Differ)
        with pytest.raises(type(differ.error), match=f"ranks 0 and 1: .*{text}"):
            raise differ.error
        assert matching.is_idle


def test_rows_of_a_gather_may_differ() -> None:
    matching = Matching([0, 1], 0)
    one, other = (group(["x"], (rows, 3), verb=Verb.ALL_GATHER, op=Op.NONE) for rows in (2, 5))
    matching.add(0, Calls(encode(one), 1))
    (found,) = matching.add(1, Calls(encode(other), 1))
    assert isinstance(found, Single)


def test_missing_ranks_are_named() -> None:
    matching = Matching([0, 1, 2], 0)
    matching.add(0, calls(["a"]))
    matching.add(2, calls(["a"]))
    assert matching.missing() == {"a": [1]}
    matching.add(0, calls(["b"]))
    assert matching.missing() == {"a": [1], "b": [1, 2]}


@pytest.mark.parametrize("table", [
    b"", b"\xc1", encode([1, 2]), encode(group([])), encode(group(["x" * 5000])),
    encode(group(["x"], (-1,))), encode(group(["x"], dtype="complex64")),
    encode(group(["x"], (1 << 62, 1 << 62))),
    encode([99, 1, "float32", 0, 1.0, ["x"], [[1]], []]),
    encode([1, 1, "float32", 0, 1.0, ["x", "y"], [[1]], []]),
    encode([1, 1, "float32", 0, 1.0, ["x"], [[1]], [-1]]),
])  # fmt: skip
def test_a_table_that_is_none_is_refused(table: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(table)


class Rank:
    """One rank's machine and what came of it."""

    def __init__(self, ranks: int, me: int) -> None:
        self.matching = Matching(range(ranks), me)
        self.found: list[tuple[str, int, tuple[int, ...]]] = []  # call, which of its name, by whom
        self.lasts: list[int] = []

    def take(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, AllJoined):
                self.lasts.append(outcome.last)
            elif isinstance(outcome, Whole):
                any_ = next(iter(outcome.by_rank.values()))
                for at in range(len(any_.group.names)):
                    self.count({rank: (each, at) for rank, each in outcome.by_rank.items()})
            else:
                self.count({rank: (one.calls, one.at) for rank, one in outcome.by_rank.items()})

    def count(self, by_rank: dict[int, tuple[Calls, int]]) -> None:
        names = {each.group.names[at] for each, at in by_rank.values()}
        assert len(names) == 1
        turns = {each.payload[at] for each, at in by_rank.values()}  # which of its name
        assert len(turns) == 1, "calls of other turns went together"
        self.found.append((names.pop(), turns.pop(), tuple(sorted(by_rank))))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_all_ranks_come_to_the_same(data: st.DataObject) -> None:
    """Random calls, in orders and groups of each rank's own, with joins; words come in any order
    but that of one sender.
    """
    ranks = data.draw(st.integers(2, 4))
    machines = [Rank(ranks, rank) for rank in range(ranks)]
    links = {(a, b): deque() for a in range(ranks) for b in range(ranks)}  # a's words to b
    expected: list[tuple[str, int, tuple[int, ...]]] = []
    turns: dict[str, int] = {}
    epochs = data.draw(st.integers(1, 3))
    scripts: list[list[object]] = [[] for _ in range(ranks)]
    for epoch in range(epochs):
        # A call is made by all, or by those that have not joined yet.
        live = list(range(ranks))
        for _ in range(data.draw(st.integers(1, 3))):
            names = data.draw(st.lists(st.sampled_from("abc"), max_size=4, unique=True))
            made = []
            for name in names:
                turns[name] = turns.get(name, -1) + 1
                made.append((name, turns[name]))
                expected.append((name, turns[name], tuple(live)))
            for rank in live:
                order = data.draw(st.permutations(made)) if made else []
                cut = data.draw(st.integers(0, len(order)))
                scripts[rank] += [part for part in (order[:cut], order[cut:]) if part]
            if epoch < epochs - 1 and len(live) > 1 and data.draw(st.booleans()):
                leaver = live.pop(data.draw(st.integers(0, len(live) - 1)))
                scripts[leaver].append("join")
        if epoch < epochs - 1:
            for rank in live:
                scripts[rank].append("join")

    steps, base = [0] * ranks, [1] * ranks
    waiting = [False] * ranks

    def make(rank: int) -> None:
        words = scripts[rank].pop(0)
        if words == "join":
            waiting[rank] = True
            for to in range(ranks):
                links[rank, to].append(steps[rank])
            return
        assert isinstance(words, list)
        names = [name for name, _ in words]
        made = Calls(encode(group(names)), base[rank], [turn for _, turn in words])
        base[rank] += len(names)
        steps[rank] += len(names)
        for to in range(ranks):
            links[rank, to].append(made)

    while True:
        can = [("make", r, r) for r in range(ranks) if scripts[r] and not waiting[r]
               and not links[r, r]]
        can += [("come", a, b) for (a, b), words in sorted(links.items()) if words]
        if not can:
            break
        what, a, b = can[data.draw(st.integers(0, len(can) - 1))]
        if what == "make":
            make(a)
            continue
        word = links[a, b].popleft()
        matching = machines[b].matching
        if isinstance(word, int):
            machines[b].take(matching.join(a, word))
        else:
            copy = Calls(word.table, word.base, word.payload)
            machines[b].take(matching.add(a, copy))
        for rank in range(ranks):  # a join returns when all have joined
            if waiting[rank] and len(machines[rank].lasts) > joined_before(scripts[rank], epochs):
                waiting[rank] = False
    for machine in machines:
        assert sorted(machine.found) == sorted(expected)
        assert machine.matching.is_idle
        assert machine.lasts == machines[0].lasts
        assert len(machine.lasts) == epochs - 1


def joined_before(rest: Sequence[object], epochs: int) -> int:
    """How often a rank with these words left has joined before the join that it waits in."""
    return epochs - 1 - rest.count("join") - 1
