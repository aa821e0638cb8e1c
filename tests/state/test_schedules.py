"""Schedules of collective calls: each element is reduced once, in the order of ranks, and goes
where it belongs, in whatever order chunks travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.state import schedules
from asyncps.state.schedules import Place, Reduce, Reduction, Schedule, Send, Transfer

CHUNK = 128  # bytes: small, so that there are many


def carried_out(
    makes: Callable[[int], Schedule], arrays: Sequence[np.ndarray], results: Sequence[np.ndarray],
    shifts: Sequence[int], draw: Callable[[int], int],
) -> None:
    """Run the schedules of all ranks; `draw(n)` chooses which of n links delivers next.

    Arrays and results are bytes; sums are of bytes too, modulo 256.
    """
    ranks = range(len(arrays))
    runs = [makes(rank) for rank in ranks]
    links: dict[tuple[int, int], list[tuple[Send, bytes]]] = {}
    given_: dict[tuple[int, int], dict[int, bytes]] = {}

    def act(rank: int, steps: Sequence[schedules.Step]) -> None:
        for step in steps:
            if isinstance(step, Reduce):
                parts = given_.pop((rank, step.number), {})
                assert len(parts) == len(ranks) - 1
                parts[rank] = arrays[rank][step.start : step.stop].tobytes()
                total = np.zeros(step.stop - step.start, np.uint8)
                for each in sorted(parts):
                    total += np.frombuffer(parts[each], np.uint8)
                begin = step.start - shifts[rank]
                results[rank][begin : begin + total.size] = total
            else:
                # In place: what is sent is read when it is sent, as the real one lends it.
                view = (results[rank] if step.is_result and isinstance(runs[rank], Reduction)
                        else arrays[rank])
                links.setdefault((rank, step.to), []).append(
                    (step, view[step.start : step.stop].tobytes()))

    for rank in ranks:
        act(rank, runs[rank].first())
    while any(links.values()):
        open_ = sorted(link for link, sent in links.items() if sent)
        source, to = open_[draw(len(open_))]
        send, data = links[source, to].pop(0)
        place = runs[to].place(source, send.number, send.is_result)
        assert place is not None
        assert place.stop - place.start == len(data)
        if place.is_result:
            results[to][place.start : place.stop] = np.frombuffer(data, np.uint8)
        else:
            given_.setdefault((to, send.number), {})[source] = data
        act(to, runs[to].came(source, send.number, send.is_result))
        again = runs[to].place(source, send.number, send.is_result)
        assert again is None, "a chunk has come, and is still waited for"
    assert all(run.is_done for run in runs), "somebody waits in a circle, or for nothing"


def bytes_of(ranks: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng([ranks, size])
    return [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(ranks)]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(0, 3000), st.sampled_from([1, 2, 4, 8]), st.data())
def test_all_reduce_sums_each_element_once(
    ranks: int, count: int, itemsize: int, data: st.DataObject
) -> None:
    arrays = bytes_of(ranks, count * itemsize)
    total = np.sum(arrays, axis=0, dtype=np.uint8)
    near = data.draw(st.sets(st.integers(0, ranks - 1)))
    bounds = schedules.shares(count * itemsize, itemsize, ranks)
    carried_out(
        lambda rank: Reduction(rank, bounds, CHUNK, comes_back=True, near=near), arrays, arrays,
        [0] * ranks,
        lambda n: data.draw(st.integers(0, n - 1)),
    )
    for array in arrays:
        np.testing.assert_array_equal(array, total)


@pytest.mark.parametrize("comes_back", [True, False])
def test_few_contributions_are_under_way_where_results_come_back(comes_back: bool) -> None:
    """To each owner no more than its window without a result; of a reduce-scatter all at once."""
    ranks, chunks = 3, 10
    bounds = [CHUNK * chunks * rank for rank in range(ranks + 1)]
    schedule = Reduction(0, bounds, CHUNK, comes_back=comes_back, near=[2])
    windows = {1: 2, 2: 1}
    sent: dict[int, list[int]] = {1: [], 2: []}
    for step in schedule.first():
        assert isinstance(step, schedules.Send)
        sent[step.to].append(step.number)
    if not comes_back:
        assert [len(numbers) for numbers in sent.values()] == [chunks, chunks]
        return
    for owner, numbers in sent.items():
        for back in range(chunks):
            assert len(numbers) == min(windows[owner] + back, chunks)
            for step in schedule.came(owner, numbers[back], True):
                assert isinstance(step, schedules.Send)
                assert step.to == owner
                numbers.append(step.number)
        assert numbers == sorted(set(numbers))
        assert len(numbers) == chunks


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.data())
def test_reduce_scatter_leaves_each_its_share(ranks: int, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(0, 400)) for _ in range(ranks)]
    bounds = [0, *np.cumsum(sizes).tolist()]
    arrays = bytes_of(ranks, bounds[-1])
    before = [array.copy() for array in arrays]
    results = [np.zeros(size, np.uint8) for size in sizes]
    carried_out(
        lambda rank: Reduction(rank, bounds, CHUNK, comes_back=False), arrays, results, bounds,
        lambda n: data.draw(st.integers(0, n - 1)),
    )
    total = np.sum(before, axis=0, dtype=np.uint8)
    for rank, result in enumerate(results):
        np.testing.assert_array_equal(result, total[bounds[rank] : bounds[rank + 1]])
        np.testing.assert_array_equal(arrays[rank], before[rank])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.data())
def test_bytes_go_where_they_belong(ranks: int, data: st.DataObject) -> None:
    splits = [[data.draw(st.integers(0, 300)) for _ in range(ranks)] for _ in range(ranks)]
    arrays = [bytes_of(1, sum(row) + rank)[0][: sum(row)] for rank, row in enumerate(splits)]
    expected = [np.concatenate([
        arrays[source][sum(splits[source][:to]) : sum(splits[source][: to + 1])]
        for source in range(ranks)]) for to in range(ranks)]
    results = [np.zeros(each.size, np.uint8) for each in expected]
    for rank in range(ranks):  # what stays
        begin = sum(splits[before][rank] for before in range(rank))
        own = sum(splits[rank][:rank])
        results[rank][begin : begin + splits[rank][rank]] = (
            arrays[rank][own : own + splits[rank][rank]])
    flows = schedules.exchange_flows(splits)
    carried_out(lambda rank: Transfer(rank, flows, CHUNK), arrays, results, [0] * ranks,
                lambda n: data.draw(st.integers(0, n - 1)))
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, want)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2000), st.data())
def test_a_broadcast_brings_all_the_array_of_its_root(
    ranks: int, size: int, data: st.DataObject
) -> None:
    root, arrays = data.draw(st.integers(0, ranks - 1)), bytes_of(ranks, size)
    wanted = arrays[root].copy()
    flows = schedules.broadcast_flows(root, ranks, size)
    carried_out(lambda rank: Transfer(rank, flows, CHUNK), arrays, arrays, [0] * ranks,
                lambda n: data.draw(st.integers(0, n - 1)))
    for array in arrays:
        np.testing.assert_array_equal(array, wanted)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.data())
def test_a_gather_brings_all_the_arrays_of_all(sizes: list[int], data: st.DataObject) -> None:
    ranks = range(len(sizes))
    arrays = [bytes_of(1, size + 1000 * rank)[0][:size] for rank, size in enumerate(sizes)]
    results = [np.zeros(sum(sizes), np.uint8) for _ in ranks]
    for rank in ranks:  # its own
        begin = sum(sizes[:rank])
        results[rank][begin : begin + sizes[rank]] = arrays[rank]
    flows = schedules.gather_flows(sizes)
    carried_out(lambda rank: Transfer(rank, flows, CHUNK), arrays, results, [0] * len(sizes),
                lambda n: data.draw(st.integers(0, n - 1)))
    for result in results:
        np.testing.assert_array_equal(result, np.concatenate(arrays))


@pytest.mark.parametrize(("nbytes", "itemsize", "parts", "bounds"), [
    (0, 4, 2, [0, 0, 0]),
    (4, 4, 2, [0, 0, 4]),
    (256, 4, 2, [0, 128, 256]),
    (260, 4, 2, [0, 128, 260]),
    (1000, 8, 3, [0, 320, 640, 1000]),
])  # fmt: skip
def test_shares_begin_at_cache_lines(
    nbytes: int, itemsize: int, parts: int, bounds: list[int]
) -> None:
    assert schedules.shares(nbytes, itemsize, parts) == bounds


def test_what_is_not_to_come_has_no_place() -> None:
    bounds = schedules.shares(1024, 4, 2)
    run = Reduction(0, bounds, 256, comes_back=True)
    assert run.place(1, 0, False) == Place(0, 256, False)
    assert run.place(1, 2, True) == Place(512, 768, True)
    assert run.place(1, 2, False) is None  # a contribution to what is not ours
    assert run.place(1, 0, True) is None  # a result of what is ours
    assert run.place(0, 2, True) is None  # from ourselves
    assert run.place(1, 99, True) is None
