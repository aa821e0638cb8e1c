"""powersgd as an object: beside a model of the paper, and what it may never do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from asyncps.errors import ConfigError
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec, matrices
from asyncps.tensor.feedback import KeyCoder
from tests.tensor.powersgd_model import Model, first_q, gram_schmidt, payload_bytes

SEED = 0x1234_5678_9ABC_DEF0
# Square, tall, wide; of a convolution; with axes of one element; a row longer than a piece.
SHAPES = [(40, 40), (300, 17), (17, 300), (512, 1, 3, 3), (20, 1, 5, 5), (1, 64, 33), (6, 5000)]
shaped = pytest.mark.parametrize("shape", SHAPES, ids=str)
STEP = 1000


def take(size: int) -> Any:
    return np.full(size, 0xAA, np.uint8)


def made(**options: Any) -> Codec:
    return codecs.made(codecs.checked({"type": "powersgd", **options}))


def cut(n: int, step: int = STEP) -> list[tuple[int, int]]:
    return [(begin, min(n, begin + step)) for begin in range(0, n, step)]


def matrix_of(value: Any) -> Any:
    """The value as the paper has it: axes of one element count for nothing."""
    value = np.squeeze(value)
    return value.reshape(len(value), -1)


def received(n: int, pieces: Any, payloads: Any) -> Any:
    """What a server makes of payloads: it knows the head alone."""
    out = np.full(n, 9, "f4")
    for (begin, stop), payload in zip(pieces, payloads, strict=True):
        codec, _, _ = codecs.parse_head(made().head(stop - begin, 0), codecs.BY_NUMBER)
        codec.check(stop - begin, payload, 0)
        codec.decode(out[begin:stop], payload, 0)
    return out


class Sender:
    """One key at one worker."""

    def __init__(self, shape: tuple[int, ...], step: int = STEP, **options: Any) -> None:
        self.feedback = options.pop("error_feedback", True)
        self.codec = made(**options)
        self.shape = shape
        self.size = math.prod(shape)
        self.pieces = cut(self.size, step)
        self.coder = KeyCoder(self.size)
        self.payloads: list[Any] = []

    def push(self, g: Any) -> Any:
        flat = np.ascontiguousarray(g, "f4").reshape(-1)
        assert self.coder.count_nonfinite(flat) == (0, -1)
        self.payloads = self.coder.encode(
            self.codec, flat, flat.nbytes, self.pieces, take, [SEED] * len(self.pieces),
            feedback=self.feedback, shape=self.shape)
        return received(self.size, self.pieces, self.payloads).reshape(self.shape)


def close(got: Any, expected: Any, within: float = 1e-5) -> bool:
    """Within so much of the largest."""
    return bool(np.abs(got - expected).max() <= within * max(1.0, float(np.abs(expected).max())))


def normal(seed: int, shape: Any) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


@shaped
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("feedback", [True, False])
def test_what_is_sent_is_what_the_paper_says(
    shape: tuple[int, ...], rank: int, feedback: bool
) -> None:
    sender = Sender(shape, rank=rank, error_feedback=feedback)
    model = Model(first_q(matrix_of(np.zeros(shape)).shape[1], rank, SEED), feedback)
    for turn in range(5):
        g = normal(turn, shape)
        sent, expected = matrix_of(sender.push(g)), model.push(matrix_of(g))
        within = 1e-4 if turn else 1e-5  # what float32 differs by is fed back, and grows
        assert close(sent, expected, within), turn
        assert np.linalg.matrix_rank(sent, tol=1e-3) == rank
        if feedback:
            assert close(sender.coder.residual, model.error.reshape(-1), within), turn
    assert feedback or sender.coder.residual is None


@shaped
def test_what_is_sent_and_what_stays_is_what_there_was(shape: tuple[int, ...]) -> None:
    sender = Sender(shape, rank=3)
    total, sent = np.zeros(shape), np.zeros(shape)
    for turn in range(20):
        g = normal(turn, shape)
        total += g
        sent += sender.push(g)
    assert sender.coder.residual is not None
    assert close(sent + sender.coder.residual.reshape(shape), total)


@shaped
@pytest.mark.parametrize("step", [7, 64, 1000, 1 << 20])
def test_bytes_are_those_of_the_formula(shape: tuple[int, ...], step: int) -> None:
    sender = Sender(shape, step)
    sent = sender.push(normal(1, shape))
    n = matrix_of(sent).shape[1]
    assert [payload.nbytes for payload in sender.payloads] == [
        payload_bytes(begin, stop, n, 2) for begin, stop in sender.pieces]
    whole = Sender(shape, 1 << 20)
    assert close(sent, whole.push(normal(1, shape)))  # wherever it is cut
    m = sender.size // n
    assert sum(payload.nbytes for payload in whole.payloads) == 12 + 8 * (m + n)


def of_rank(rank: int, m: int, n: int) -> Any:
    return normal(m, (m, rank)) @ normal(n, (rank, n))


@pytest.mark.parametrize("actual", [1, 2, 3, 4])
@pytest.mark.parametrize(("m", "n"), [(50, 60), (600, 20), (20, 600)])
def test_a_matrix_of_no_higher_rank_is_sent_whole(actual: int, m: int, n: int) -> None:
    sender = Sender((m, n), rank=4)
    for turn in range(3):
        g = of_rank(actual, m, n) * 10.0**turn
        assert close(sender.push(g), g)


def test_small_parts_of_a_matrix_are_sent_too() -> None:
    """Singular values far apart: the second is not lost in the rounding of the first."""
    g = (of_rank(1, 100, 80) + 1e-3 * normal(5, (100, 1)) @ normal(6, (1, 80))).astype("f4")
    assert close(Sender((100, 80)).push(g), g)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(7, 8), slice(20, 22)])
def test_few_rows_are_sent_whole(rows: slice) -> None:
    sender = Sender((40, 50))
    g = np.zeros((40, 50), "f4")
    for turn in range(3):
        g[rows] = normal(turn, g[rows].shape)
        assert close(sender.push(g), g)


def test_zero_stays_zero_and_teaches_nothing() -> None:
    sender, model = Sender((40, 50)), Model(first_q(50, 2, SEED, push=3))
    zero = np.zeros((40, 50), "f4")
    for _ in range(2):
        assert not sender.push(zero).any()
        assert not sender.coder.residual.any()
    for turn in range(2):  # begins as if there had been no push before
        assert close(sender.push(normal(turn, (40, 50))), model.push(normal(turn, (40, 50))))
    left, q = np.float32(model.error), model.q
    assert close(sender.push(-left), zero)  # nothing to send: M is zero but for a rounding
    model.error, model.q = 0.0, q
    sender.coder.residual[:] = 0
    sender.coder.extra[:] = q.reshape(-1)
    sender.push(zero)
    g = normal(9, (40, 50))
    assert close(sender.push(g), model.push(g))  # still begins where it was


def test_a_column_that_died_is_drawn_anew() -> None:
    sender = Sender((40, 50))
    sender.push(normal(1, (40, 50)))
    sender.coder.extra.reshape(50, 2)[:, 1] = 0
    sent = sender.push(normal(2, (40, 50)))
    assert np.linalg.matrix_rank(sent, tol=1e-3) == 2


def test_the_first_pushes_travel_as_they_are() -> None:
    sender, model = Sender((40, 50), start=2), Model(first_q(50, 2, SEED, push=3))
    for turn in range(2):
        g = normal(turn, (40, 50))
        assert np.array_equal(sender.push(g), g)
        assert [payload.nbytes for payload in sender.payloads] == [4000, 4000]
        assert not sender.coder.residual.any()
        assert not sender.coder.extra.any()
    for turn in range(2, 4):
        g = normal(turn, (40, 50))
        assert close(sender.push(g), model.push(g))


def test_what_was_kept_by_another_codec_leaves_with_a_dense_push() -> None:
    sender = Sender((40, 50), start=1)
    sender.coder.residual = np.full(2000, 0.5, "f4")
    assert np.array_equal(sender.push(np.ones((40, 50))), np.full((40, 50), 1.5))
    assert not sender.coder.residual.any()


def test_a_refused_push_was_never_sent() -> None:
    sender = Sender((40, 50), start=1)
    g = normal(1, (40, 50))
    for _ in range(2):  # the dense one does not count either
        sender.push(g)
        sender.coder.put_back(sender.codec, 8000, sender.pieces, sender.payloads, [SEED] * 2)
        assert close(sender.coder.residual, g.reshape(-1))
        sender.coder.residual[:] = 0
        assert (sender.coder.pushes, sender.coder.sent_bytes) == (0, 0)
    sender.push(g)
    sender.push(g)
    before = sender.coder.residual.copy()
    sender.push(g)
    sender.coder.put_back(sender.codec, 8000, sender.pieces, sender.payloads, [SEED] * 2)
    assert close(sender.coder.residual, before + g.reshape(-1))
    assert sender.coder.pushes == 2


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_encoding_that_breaks_off_leaves_all_as_it_was(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender((40, 50))
    sender.push(normal(1, (40, 50)))
    coder = sender.coder
    assert coder.residual is not None
    assert coder.extra is not None
    before, extra = coder.residual.copy(), coder.extra.copy()
    calls = 0

    def breaks(original: Any) -> Any:
        def step(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise MemoryError
            return original(*args)
        return step

    from asyncps.tensor.codecs import powersgd

    for name in ("orthonormal", "cut_room", "spread"):  # and spread again, for the second piece
        monkeypatch.setattr(powersgd, name, breaks(getattr(powersgd, name)))
    with pytest.raises(MemoryError):
        sender.push(normal(2, (40, 50)))
    assert calls >= at
    assert close(coder.residual, before)
    assert np.array_equal(coder.extra, extra)
    assert coder.pushes == 1


# ------------------------------------------------------------------------------------- magnitudes


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-10, 1e10, 1e30, 1.5e36])
def test_any_magnitude_is_sent_as_well_as_others(scale: float) -> None:
    sender = Sender((30, 40), rank=1)
    g = of_rank(1, 30, 40)
    g /= np.abs(g).max()
    for _ in range(3):
        sent = sender.push(g * np.float32(scale))
        assert np.abs(sent / scale - g).max() < (1e-4 if scale < 1e-38 else 1e-5)


def test_what_could_overflow_travels_as_it_is() -> None:
    sender = Sender((30, 40))
    small, large = normal(1, (30, 40)), normal(2, (30, 40)) * np.float32(2e37)
    sender.push(small)
    extra = sender.coder.extra.copy()
    left = sender.coder.residual.reshape(30, 40).copy()
    assert np.array_equal(sender.push(large), large + left)
    assert not sender.coder.residual.any()
    assert np.array_equal(sender.coder.extra, extra)


def test_what_is_kept_is_never_too_large_for_the_next() -> None:
    """A matrix of which more stays in one place than was there, as large as may be."""
    m, n, c = 400, 20, np.float32(4.9e35)
    sender = Sender((m, n), rank=1)
    sender.coder.extra = np.ones(n, "f4")
    g = np.zeros((m, n), "f4")
    g[:, 0] = c
    g[0] = c
    sent = sender.push(g)
    assert sent.max() > 5 * c
    assert np.abs(sender.coder.residual).max() > 5 * c
    for _ in range(50):  # again and again: refused never, and finite always
        assert np.isfinite(sender.push(np.full((m, n), 9e37, "f4"))).all()
        assert np.isfinite(sender.push(g)).all()


# ---------------------------------------------------------------------------------- words, shapes


@pytest.mark.parametrize(("shape", "options", "why"), [
    ((1000,), {}, "a vector"), ((1, 1000, 1), {}, "a vector"), ((1, 1), {}, "a vector"),
    ((2, 1000), {}, "a matrix of 2 x 1000 has no more than rank 2"),
    ((1000, 1, 2), {}, "a matrix of 1000 x 2 has no more than rank 2"),
    ((8, 9), {"rank": 8}, "a matrix of 8 x 9 has no more than rank 8"),
    ((5, 9), {"rank": 4}, "factors of rank 4 take no fewer bytes"),
    ((5, 9), {"rank": 3}, "factors of rank 3 take no fewer bytes"),  # but for their head
    ((6, 5000), {}, "factors of rank 2 take no fewer bytes"),  # no piece has two rows
    ((5, 9), {"rank": 2}, ""), ((20, 1, 5, 5), {}, ""), ((40, 50), {}, ""),
])  # fmt: skip
def test_what_is_not_worth_it_says_why(shape: Any, options: Any, why: str) -> None:
    size = math.prod(shape)
    codec = made(**options)
    assert isinstance(codec, codecs.Stateful)
    assert codec.unfit(shape, 4 * size, cut(size)) == why


def test_values_of_two_bytes_are_worth_less() -> None:
    codec = made(rank=4)
    assert isinstance(codec, codecs.Stateful)
    assert codec.unfit((12, 15), 4 * 180, [(0, 180)]) == ""
    assert codec.unfit((12, 15), 2 * 180, [(0, 180)]) != ""


@pytest.mark.parametrize(("options", "words"), [
    ({"rank": 0}, "an integer from 1 to 256"), ({"rank": 257}, "256"), ({"rank": 2.0}, "integer"),
    ({"rank": True}, "an integer"), ({"rank": "2"}, "an integer"), ({"start": -1}, "0 or more"),
    ({"start": 1 << 62}, "0 or more"), ({"start": 1.5}, "pushes"), ({"ratio": 0.1}, "rank, start"),
])  # fmt: skip
def test_wrong_words_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**options)


def test_words_are_complete() -> None:
    told = codecs.checked({"type": "powersgd"})
    assert (told["rank"], told["start"], told["small_bytes"]) == (2, 0, 65536)
    assert codecs.checked({"type": "powersgd", "rank": np.int64(4)})["rank"] == 4


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_made_orthonormal_as_gram_and_schmidt_do(seed: int) -> None:
    p = normal(seed, (30, 4))
    assert np.allclose(matrices.orthonormal(p), gram_schmidt(p.astype("f8")), atol=1e-6)


def test_columns_that_say_nothing_are_orthonormal_too() -> None:
    p = normal(1, (30, 4))
    p[:, 1], p[:, 3] = 2 * p[:, 0], 0
    for each in (p, np.zeros((30, 4), "f4")):
        basis = matrices.orthonormal(each)
        assert np.allclose(basis.T @ basis, np.eye(4), atol=1e-6)


def test_the_first_factor_is_that_of_its_seed() -> None:
    for seed in (0, 5, SEED, 2**64 - 1):
        assert np.array_equal(matrices.drawn(30, 3, seed, 2), first_q(30, 3, seed, 2))
