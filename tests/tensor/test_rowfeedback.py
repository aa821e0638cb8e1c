"""What was not sent, by row: against a model that keeps a dict of rows; and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from asyncps.tensor.feedback import Rate
from asyncps.tensor.rowfeedback import AS_STORED, RowCoder
from asyncps.tensor.rowrests import BLOCK_BYTES, RowRests
from tests.support.variants import all_on_each_variant

variant = all_on_each_variant(autouse=False)

WIDTH, ROWS = 3, 5000
SPECS: list[dict[str, Any]] = [
    {"type": "f16"}, {"type": "bf16"}, {"type": "int8"}, {"type": "1bit"}, {"type": "2bit"},
    {"type": "onebit"}, {"type": "topk", "ratio": 0.2}, {"type": "topk", "values": "f16"},
    {"type": "threshold", "threshold": 1}, {"type": "randomk", "ratio": 0.3},
]
every = pytest.mark.parametrize("spec", SPECS, ids=str)


def made(spec: dict[str, Any]) -> Codec:
    return codecs.made(codecs.checked(spec))


def take(size: int) -> Any:
    return np.empty(size, np.uint8)


def nbytes_of(rests: RowRests) -> int:
    """Bytes asked of the system."""
    return rests._blocks.reserved_bytes + rests._index.nbytes + rests._alive.nbytes


def ids_of(*ids: int) -> Any:
    return np.array(ids, np.int64)


PUSHES = st.lists(
    st.tuples(st.sets(st.integers(0, ROWS - 1) | st.integers(0, 9), min_size=1, max_size=8),
              st.integers(0, 1 << 30), st.sampled_from(["zero", "some", "all"])),
    max_size=12,
)  # fmt: skip


@given(PUSHES)
def test_rests_are_those_of_all_rows_in_full(pushes: list[tuple[set[int], int, str]]) -> None:
    rests, model = RowRests(WIDTH), np.zeros((ROWS, WIDTH), "f4")
    for chosen, seed, what in pushes:
        ids = np.array(sorted(chosen), np.int64)
        chance = np.random.default_rng(seed)
        values = chance.normal(size=(ids.size, WIDTH)).astype("f4")
        if what != "all":
            values[chance.random(ids.size) < (1 if what == "zero" else 0.5)] = 0
        assert np.array_equal(rests.gather(ids).reshape(-1, WIDTH), model[ids])
        rests.put(ids, values.reshape(-1), rests.find(ids) if seed % 2 else None)
        model[ids] = values
        left = np.flatnonzero(model.any(axis=1))
        found, kept = rests.items()
        assert np.array_equal(found, left)
        assert len(rests) == len(left)
        assert np.array_equal(kept.reshape(-1, WIDTH), model[left])
        assert rests.norm() == pytest.approx(float(np.linalg.norm(model)))


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("value", [1e-45, -1e-45, -1, np.inf, np.nan, 0.0, -0.0])
def test_a_row_has_something_left_unless_all_its_elements_are_zeros(
    width: int, value: float
) -> None:
    for place in range(width):
        rests, rows = RowRests(width), np.zeros((3, width), "f4")
        rows[0], rows[1, place] = -0.0, value
        rests.put(ids_of(4, 5, 6), rows.reshape(-1))
        assert rests.items()[0].tolist() == ([5] if rows[1, place] != 0 else [])


def test_memory_goes_by_the_rows_with_something_left() -> None:
    width = 64
    rests = RowRests(width)
    for begin in range(0, 100_000, 1000):  # rows far apart, each pushed once
        ids = (np.arange(begin, begin + 1000, dtype=np.int64)) * (1 << 20)
        rests.put(ids, np.ones(1000 * width, "f4"))
    assert len(rests) == 100_000
    assert nbytes_of(rests) < 100_000 * (4 * width + 100) + BLOCK_BYTES
    for begin in range(0, 99_000, 1000):
        ids = (np.arange(begin, begin + 1000, dtype=np.int64)) * (1 << 20)
        rests.put(ids, np.zeros(1000 * width, "f4"))
    assert len(rests) == 1000
    assert nbytes_of(rests) < 4 * 1000 * (4 * width + 100) + BLOCK_BYTES
    ids, kept = rests.items()
    assert ids.tolist() == (np.arange(99_000, 100_000) << 20).tolist()
    assert (kept == 1).all()


def test_rows_of_which_nothing_is_left_are_not_kept() -> None:
    rests = RowRests(2)
    for begin in range(0, 10_000, 100):
        ids = np.arange(begin, begin + 100, dtype=np.int64)
        rests.put(ids, np.zeros(200, "f4"))
    assert len(rests) == 0
    assert nbytes_of(rests) < 100_000


@every
@pytest.mark.usefixtures("variant")
def test_all_that_was_sent_and_is_kept_is_all_that_was_pushed(spec: dict[str, Any]) -> None:
    coder, codec = RowCoder(WIDTH), made(spec)
    chance = np.random.default_rng(3)
    total, sent = np.zeros((ROWS, WIDTH)), np.zeros((ROWS, WIDTH))
    for turn in range(30):
        many = int(chance.integers(1, 40))
        ids = np.sort(chance.choice(60, many, replace=False)).astype(np.int64)
        g = chance.normal(size=many * WIDTH).astype("f4")
        cut = int(chance.integers(0, many)) * WIDTH
        pieces = [(0, cut), (cut, g.size)] if cut else [(0, g.size)]
        seeds = [turn * 2 + place for place in range(len(pieces))]
        gathered = coder.gather(ids)
        before = gathered.rests + g
        payloads = coder.encode_rows(codec, ids, g, g.nbytes, pieces, take, seeds, gathered)
        out = np.empty(g.size, "f4")
        for (begin, stop), payload, seed in zip(pieces, payloads, seeds, strict=True):
            codec.decode(out[begin:stop], payload, seed)
        if spec["type"] in ("topk", "threshold", "randomk") and spec.get("values") != "f16":
            assert np.array_equal(out + coder.gather(ids).rests, before)
        total[ids] += g.reshape(-1, WIDTH)
        sent[ids] += out.reshape(-1, WIDTH)
    every_row = np.arange(ROWS, dtype=np.int64)
    kept = coder.gather(every_row).rests.reshape(-1, WIDTH)
    assert np.allclose(sent + kept, total, rtol=0, atol=1e-6)
    assert coder.error_norm() == pytest.approx(float(np.linalg.norm(kept)))
    assert len(coder.rests) <= 60


@every
@pytest.mark.usefixtures("variant")
def test_what_is_put_back_was_never_sent(spec: dict[str, Any]) -> None:
    coder, codec = RowCoder(WIDTH), made(spec)
    first, second = ids_of(1, 5, 9), ids_of(0, 5, 9, 11)
    g = np.random.default_rng(4).normal(size=12).astype("f4")
    coder.encode_rows(codec, first, g[:9], 36, [(0, 9)], take, [1], coder.gather(first))
    before, sent = coder.gather(second).rests, coder.sent_bytes
    payloads = coder.encode_rows(
        codec, second, g, 48, [(0, 6), (6, 12)], take, [2, 3], coder.gather(second))
    coder.put_rows_back(codec, second, 48, [(0, 6), (6, 12)], payloads, [2, 3], feedback=True)
    assert np.allclose(coder.gather(second).rests, before + g, rtol=0, atol=1e-6)
    assert (coder.sent_bytes, coder.before_bytes) == (sent, 36)


def test_another_threads_push_between_gathering_and_encoding_is_not_lost() -> None:
    coder, codec, ids = RowCoder(1), made({"type": "2bit"}), ids_of(7)
    gathered = coder.gather(ids)
    coder.encode_rows(
        codec, ids, np.full(1, 0.3, "f4"), 4, [(0, 1)], take, [0], coder.gather(ids))
    (payload,) = coder.encode_rows(
        codec, ids, np.full(1, 0.3, "f4"), 4, [(0, 1)], take, [0], gathered)
    assert payload.any()
    assert coder.gather(ids).rests == pytest.approx(0.1)


def test_what_breaks_off_changes_nothing() -> None:
    coder, codec, ids = RowCoder(2), made({"type": "onebit"}), ids_of(3, 4)
    coder.encode_rows(
        codec, ids, np.arange(4, dtype="f4"), 16, [(0, 4)], take, [0], coder.gather(ids))
    before = coder.gather(ids).rests

    def none(size: int) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        coder.encode_rows(
            codec, ids, np.ones(4, "f4"), 16, [(0, 4)], none, [0], coder.gather(ids))
    assert np.array_equal(coder.gather(ids).rests, before)


@pytest.mark.parametrize("name", AS_STORED)
def test_values_that_go_as_they_are_stored_take_along_what_is_left(name: str) -> None:
    coder, ids = RowCoder(2), ids_of(3, 4)
    g = np.array([0.3, -0.2, 0.1, 0.4], "f4")
    coder.encode_rows(made({"type": "2bit"}), ids, g, 16, [(0, 4)], take, [0], coder.gather(ids))
    codec = AS_STORED[name]
    out = np.empty(4, "f4")
    (payload,) = coder.encode_rows(codec, ids, g, 16, [(0, 4)], take, [0], coder.gather(ids))
    codec.decode(out, payload, 0)
    assert np.allclose(out, 2 * g, rtol=1e-2)
    assert np.allclose(out + coder.gather(ids).rests, 2 * g, atol=1e-7)
    assert len(coder.rests) == (0 if name == "float32" else 2)


def test_without_feedback_nothing_is_kept() -> None:
    coder, codec, ids = RowCoder(2), made({"type": "2bit"}), ids_of(3)
    g = np.full(2, 0.4, "f4")
    coder.encode_rows(codec, ids, g, 8, [(0, 2)], take, [0], coder.gather(ids))
    (payload,) = coder.encode_rows(codec, ids, g, 8, [(0, 2)], take, [0], None)
    assert not payload.any()
    assert len(coder.rests) == 0


def test_what_is_kept_follows_the_rate() -> None:
    coder, codec, ids = RowCoder(2), made({"type": "2bit"}), ids_of(3, 8)
    coder.follow(Rate("sgd", 0.1))
    coder.encode_rows(
        codec, ids, np.full(4, 0.4, "f4"), 16, [(0, 4)], take, [0], coder.gather(ids))
    coder.follow(Rate("sgd", 0.01))
    assert coder.gather(ids).rests == pytest.approx(4.0)
    coder.follow(Rate("adam", 1.0))
    assert coder.gather(ids).rests == pytest.approx(4.0)
    coder.follow(Rate("adam", 1e-40))
    assert np.isfinite(coder.gather(ids).rests).all()


def test_a_gradient_is_judged_with_what_is_left_of_its_rows() -> None:
    coder = RowCoder(1)
    most = np.float32(np.finfo("f4").max)
    g = np.array([1, most, np.nan], "f4")
    assert coder.count_nonfinite_rows(g[:2], None) == (0, -1)
    assert coder.count_nonfinite_rows(g[:2], np.array([0, most], "f4")) == (1, 1)
    assert coder.count_nonfinite_rows(g, np.zeros(3, "f4")) == (1, 2)
