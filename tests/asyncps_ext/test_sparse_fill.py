"""Random rows by counter: known answers, independent models, and the same bits everywhere."""

from __future__ import annotations

import statistics
from types import ModuleType

import numpy as np
import pytest

from asyncps_ext import reference, sparse_fill
from tests.asyncps_ext.arrays import Array, assert_same, each_variant, read_only, unaligned

BODIES = pytest.mark.parametrize(
    "body", [sparse_fill, reference.sparse_fill], ids=["chosen", "reference"]
)
fills = pytest.mark.parametrize("name", ["fill_uniform", "fill_normal"])
reals = pytest.mark.parametrize("dtype", ["float32", "float64"])
KEY = 0x1234_5678_9ABC_DEF0


variant = each_variant(sparse_fill)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 in Python's integers, as the paper writes it."""
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 1 << 32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % (1 << 32), (key[1] + 0xBB67AE85) % (1 << 32)]
    return counter


# The known answers that the authors of Philox publish with it (Random123, kat_vectors).
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_model_gives_the_known_answers(
    counter: list[int], key: list[int], words: list[int]
) -> None:
    assert philox(counter, key) == words


def numbers_between_0_and_1(id_: int, width: int, key: int) -> list[float]:
    """u of every element of a row."""
    low, high = id_ % (1 << 32), id_ >> 32
    words: list[int] = []
    for block in range(-(-width // 4)):
        words += philox([low, high, block, 0], [key % (1 << 32), key >> 32])
    return [(word + 0.5) / 2**32 for word in words[:width]]


@BODIES
@reals
@pytest.mark.parametrize("width", [1, 3, 4, 64, 515])
def test_uniform_rows_equal_the_model_bit_for_bit(
    body: ModuleType, dtype: str, width: int
) -> None:
    ids = np.array([0, 1, 2**31, 2**32 + 5, 2**62, 7], np.int64)
    out = np.empty(ids.size * width, dtype)
    body.fill_uniform(out, read_only(ids), width, KEY, 0.3)
    rows = [numbers_between_0_and_1(int(id_), width, KEY) for id_ in ids]
    assert_same(out, np.array([(2 * u - 1) * 0.3 for row in rows for u in row]).astype(dtype))


@BODIES
def test_normal_rows_equal_the_inverse_distribution(body: ModuleType) -> None:
    ids = np.arange(3, dtype=np.int64)
    out = np.empty(3 * 1001)
    body.fill_normal(out, ids, 1001, KEY, 2.5)
    inverse = statistics.NormalDist(0, 2.5).inv_cdf
    expected = [inverse(u) for id_ in ids for u in numbers_between_0_and_1(int(id_), 1001, KEY)]
    np.testing.assert_allclose(out, expected, rtol=3e-9)
    assert (np.abs(out) > 2 * 2.5).any()  # the tails were there


@fills
@reals
def test_every_variant_and_the_twin_give_the_same_bits(name: str, dtype: str) -> None:
    ids = np.random.default_rng(0).integers(0, 2**62, 300)
    for width in (1, 2, 5, 64, 1027):
        ours, twin = unaligned(np.empty(300 * width, dtype)), np.empty(300 * width, dtype)
        getattr(sparse_fill, name)(ours, unaligned(ids), width, KEY, 1 / 3)
        getattr(reference.sparse_fill, name)(twin, ids, width, KEY, 1 / 3)
        assert_same(ours, twin)


@fills
@BODIES
def test_a_row_depends_on_its_id_and_the_key_alone(body: ModuleType, name: str) -> None:
    fill = getattr(body, name)
    whole, backwards, alone = np.empty(50), np.empty(50), np.empty(5)
    ids = np.arange(10, dtype=np.int64)
    fill(whole, ids, 5, 1, 1.0)
    fill(backwards, ids[::-1].copy(), 5, 1, 1.0)
    fill(alone, ids[7:8], 5, 1, 1.0)
    assert_same(whole.reshape(10, 5)[::-1].reshape(-1), backwards)
    assert_same(whole.reshape(10, 5)[7], alone)
    fill(backwards, ids, 5, 2, 1.0)
    assert not (whole == backwards).any()
    assert len(set(whole.tolist())) == 50


@BODIES
def test_the_numbers_are_spread_as_they_should_be(body: ModuleType) -> None:
    ids = np.arange(500, dtype=np.int64)
    flat, round_ = np.empty(50_000), np.empty(50_000)
    body.fill_uniform(flat, ids, 100, KEY, 1.0)
    body.fill_normal(round_, ids, 100, KEY, 1.0)
    assert abs(flat.mean()) < 0.015  # five standard errors
    assert abs(flat.var() - 1 / 3) < 0.007
    assert abs(flat).max() < 1
    assert abs(round_.mean()) < 0.023
    assert abs(round_.var() - 1) < 0.032
    assert abs((abs(round_) < 1).mean() - 0.6827) < 0.011


@fills
@BODIES
def test_arguments_are_checked(body: ModuleType, name: str) -> None:
    fill, ids = getattr(body, name), np.zeros(2, np.int64)
    fill(np.empty(0), ids[:0], 4, 0, 1.0)
    wrong: list[tuple[Array, Array, int, int, type[Exception], str]] = [
        (np.empty(5), ids, 2, 0, ValueError, "expected 2 rows of 2"),
        (np.empty(2), ids, 0, 0, ValueError, "width must be from 1"),
        (np.empty(2, "f2"), ids, 1, 0, TypeError, "float32 or float64|not supported"),
        (np.empty(2, "i4"), ids, 1, 0, TypeError, "float32 or float64"),
        (np.empty(2), ids.astype("i4"), 1, 0, TypeError, "ids must be int64"),
        (read_only(np.empty(2)), ids, 1, 0, ValueError, "read-only"),
        (np.empty(2), ids, 1, -1, OverflowError, "negative|from 0 to"),
        (np.empty(2), ids, 1, 2**64, OverflowError, "too large|from 0 to"),
    ]
    for out, which, width, key, kind, text in wrong:
        with pytest.raises(kind, match=text):
            fill(out, which, width, key, 1.0)
