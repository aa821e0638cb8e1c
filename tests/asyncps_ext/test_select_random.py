"""Random indices: known answers, a model in Python's integers, and chances that are equal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps_ext import reference, select
from tests.asyncps_ext.arrays import Array, assert_bits, read_only, unaligned
from tests.asyncps_ext.selects import BODIES

WORD = 1 << 64


def splitmix(state: int) -> Iterator[int]:
    """SplitMix64 in Python's integers, as its authors write it."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % WORD
        yield finalized(state)


def finalized(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def test_the_model_gives_the_known_answers() -> None:
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
             16408922859458223821]  # fmt: skip
    assert list(itertools.islice(splitmix(1234567), 5)) == known


def first_different(seed: int, n: int, k: int) -> list[int]:
    """The first k different indices that the stream of words gives."""
    chosen: set[int] = set()
    words = splitmix(finalized(seed))
    while len(chosen) < k:
        index, rest = divmod((next(words) >> 32) * n, 1 << 32)
        if rest >= (1 << 32) % n:
            chosen.add(index)
    return sorted(chosen)


def model(seed: int, n: int, k: int) -> list[int]:
    """Of more than half of n those that were not drawn."""
    if k <= n - k:
        return first_different(seed, n, k)
    left_out = set(first_different(seed, n, n - k)) if n > k else set()
    return [i for i in range(n) if i not in left_out]


def drawn(body: ModuleType, seed: int, n: int, k: int) -> Array:
    indices = np.full(k, 77, np.uint32)
    body.random_indices(seed, n, k, indices)
    return indices


# Both ways of drawing: n/64 is where they change; both halves of n.
SHAPES = [
    (0, 0), (1, 0), (1, 1), (2, 1), (3, 2), (10, 3), (10, 5), (10, 7), (64, 1), (65, 2),
    (1000, 15), (1000, 16), (1000, 400), (1000, 1000), (1000, 999), (4096, 63), (4096, 64),
    (300_000, 4600), (300_000, 4700), (3_000_000, 30_000), (2**31 + 3, 5000), (2**32 - 1, 5000),
    (2**32, 100), (2**31 + 1, 1), (2**31 + 1, 2),
]  # fmt: skip


@BODIES
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_indices_are_those_of_the_model(body: ModuleType, n: int, k: int) -> None:
    if body is reference.select and k > n - k and n > 1 << 20:
        pytest.skip("NumPy looks at all n")
    for seed in (0, 1, 2, 3, 4, 5, WORD - 1):  # of 2**31 + 1 half of all words are left out
        assert drawn(body, seed, n, k).tolist() == model(seed, n, k)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, WORD - 1),
    n=st.integers(1, 2000) | st.integers(2**31, 2**32),
    share=st.floats(0, 1),
)
def test_the_kernel_equals_the_model(seed: int, n: int, share: float) -> None:
    k = min(n, int(share * 2000)) if n <= 2000 else int(share * 100)
    assert drawn(select, seed, n, k).tolist() == model(seed, n, k)


@BODIES
def test_indices_ascend_differ_and_lie_below_n(body: ModuleType) -> None:
    for n, k in SHAPES:
        if n > 1 << 22 and k > n // 2:
            continue
        indices = drawn(body, 5, n, k).astype(np.int64)
        assert (np.diff(indices) > 0).all()
        assert k == 0 or (indices[0] >= 0 and indices[-1] < n)


def test_a_large_share_of_a_large_array() -> None:
    for k in (10_000, 300_000, 590_000):
        assert_bits(drawn(select, 3, 600_000, k), drawn(reference.select, 3, 600_000, k))


def chi_square(counts: Array) -> float:
    """How far counts are from being equal, for a plan of (1 - k/n) without replacement."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("n", "k"), [(50, 1), (50, 5), (50, 25), (50, 40), (97, 13), (6400, 20)])
def test_every_index_has_an_equal_chance(n: int, k: int) -> None:
    seeds = 20_000
    counts = np.zeros(n, np.int64)
    indices = np.empty(k, np.uint32)
    for seed in range(seeds):
        select.random_indices(seed, n, k, indices)
        counts[indices] += 1
    assert counts.sum() == seeds * k
    # Drawn without replacement: the variance is (1 - k/n) * n / (n - 1) of the binomial's.
    scaled = chi_square(counts) / ((1 - k / n) * n / (n - 1))
    freedom = n - 1
    assert abs(scaled - freedom) < 4.5 * (2 * freedom) ** 0.5


def test_every_set_has_an_equal_chance() -> None:
    """All 126 sets of four of nine, where indices that lean on each other would show."""
    for k in (4, 5):
        seeds = 126 * 200
        sets = Counter(tuple(drawn(select, seed, 9, k).tolist()) for seed in range(seeds))
        assert len(sets) == 126
        assert abs(chi_square(np.array(list(sets.values()))) - 125) < 4.5 * 250**0.5


def test_seeds_that_follow_each_other_have_nothing_in_common() -> None:
    """Two draws of 100 of 10,000 share one index on average."""
    gamma = 0x9E3779B97F4A7C15  # by which the states of SplitMix64 follow each other
    for step in (1, gamma, 1 << 32, 1 << 63):
        common = [
            np.intersect1d(
                drawn(select, seed, 10_000, 100), drawn(select, (seed + step) % WORD, 10_000, 100)
            ).size
            for seed in range(400)
        ]
        assert abs(float(np.mean(common)) - 1) < 0.25  # five standard errors


@BODIES
def test_arguments_are_checked(body: ModuleType) -> None:
    indices = np.zeros(3, np.uint32)
    wrong = [
        ((0, 10, 2, indices), ValueError, "indices has 3 elements, expected 2"),
        ((0, 2, 3, indices), ValueError, "k must be from 0 to 2, not 3"),
        ((0, 2, -1, indices), ValueError, "k must be from 0 to 2, not -1"),
        ((0, 2**32 + 1, 3, indices), ValueError, "n must be from 0 to 2\\*\\*32"),
        ((0, -1, 3, indices), OverflowError, "negative|from 0 to"),
        ((-1, 9, 3, indices), OverflowError, "negative|from 0 to"),
        ((WORD, 9, 3, indices), OverflowError, "too large|from 0 to"),
        ((0, 9, 3, indices.astype("i8")), TypeError, "indices must be uint32"),
        ((0, 9, 3, read_only(indices)), ValueError, "indices is read-only"),
    ]
    for arguments, kind, text in wrong:
        with pytest.raises(kind, match=text):
            body.random_indices(*arguments)
    assert not indices.any()
    odd = unaligned(np.zeros(30, np.uint32))
    body.random_indices(1, 100, 30, odd)
    assert odd.tolist() == model(1, 100, 30)
