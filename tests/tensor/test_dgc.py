"""dgc as a codec of one key, beside the model of its paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import ConfigError
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from asyncps.tensor.codecs.dgc import DGC, _squares
from asyncps.tensor.feedback import KeyCoder, Rate
from tests.support.dgc import Model
from tests.support.variants import all_on_each_variant

variant = all_on_each_variant(autouse=False)


def take(size: int) -> Any:
    return np.full(size, 0xAA, np.uint8)


def made(workers: int = 1, **options: Any) -> DGC:
    codec = codecs.made(codecs.checked({"type": "dgc", **options}), workers)
    assert isinstance(codec, DGC)
    return codec


def cut(n: int, step: int) -> list[tuple[int, int]]:
    return [(begin, min(n, begin + step)) for begin in range(0, n, step)]


def received(codec: Codec, n: int, pieces: Any, payloads: Any) -> Any:
    """What a server makes of payloads: it knows the head alone."""
    out = np.full(n, 9, "f4")
    for (begin, stop), payload in zip(pieces, payloads, strict=True):
        other, elements, seed = codecs.parse_head(codec.head(stop - begin, 0), codecs.BY_NUMBER)
        other.check(elements, payload, seed)
        other.decode(out[begin:stop], payload, seed)
    return out


class Key:
    """A key at its worker, and its model."""

    def __init__(self, n: int, step: int = 4096, workers: int = 1, **options: Any) -> None:
        self.coder, self.codec = KeyCoder(n), made(workers, **options)
        self.model = Model(n, **{k: v for k, v in options.items() if k != "values"},
                           workers=workers, half=options.get("values") == "f16")
        self.pieces, self.n = cut(n, step), n
        self.payloads: Any = None

    def push(self, g: Any) -> Any:
        assert self.coder.count_nonfinite(g, self.codec) == (0, -1)
        self.payloads = self.coder.encode(
            self.codec, g, 4 * self.n, self.pieces, take, [0] * len(self.pieces), shape=(self.n,))
        return received(self.codec, self.n, self.pieces, self.payloads)

    def put_back(self) -> None:
        self.coder.put_back(self.codec, 4 * self.n, self.pieces, self.payloads,
                            [0] * len(self.pieces))

    @property
    def u(self) -> Any:
        return self.coder.extra

    @property
    def v(self) -> Any:
        return self.coder.residual


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("n", [1, 2, 7, 255, 4096, 10_001])
@pytest.mark.parametrize("options", [
    {}, {"ratio": 0.3, "momentum": 0.5}, {"momentum": 0.0}, {"ratio": 1.0}, {"warmup": 5},
    {"values": "f16", "ratio": 0.1},
], ids=str)  # fmt: skip
def test_each_push_is_that_of_the_model(n: int, options: dict[str, Any]) -> None:
    key, chance = Key(n, **options), np.random.default_rng(n)
    sum_of_sent = np.zeros(n)
    for _ in range(8):
        g = chance.normal(size=n).astype("f4")
        sent, expected = key.push(g), key.model.push(g)
        assert np.array_equal(sent, expected)
        assert np.array_equal(key.u, key.model.u)
        assert np.array_equal(key.v, key.model.v)
        k = key.model.count()
        each = 6 if options.get("values") == "f16" else 8
        assert sum(payload.nbytes for payload in key.payloads) == each * k
        sum_of_sent += sent
    assert np.allclose(sum_of_sent + key.v, key.model.total, rtol=1e-6, atol=1e-6)


def test_of_equal_sums_those_of_lower_index_are_sent_and_masked() -> None:
    key = Key(10, ratio=0.3, momentum=0.5)
    assert key.push(np.full(10, -1, "f4")).nonzero()[0].tolist() == [0, 1, 2]
    assert key.u.tolist() == [0] * 3 + [-1] * 7
    assert key.v.tolist() == [0] * 3 + [-1] * 7
    assert key.push(np.full(10, -1, "f4")).tolist() == [0] * 3 + [-2.5] * 3 + [0] * 4
    assert key.u.tolist() == [-1] * 3 + [0] * 3 + [-1.5] * 4


def test_the_ratio_falls_from_a_quarter_to_what_is_said() -> None:
    codec = made(ratio=0.01, warmup=4)
    assert [codec.ratio_at(push) for push in (1, 5, 6, 10**12)] == [0.25, 0.01, 0.01, 0.01]
    falls = [codec.ratio_at(push) for push in range(1, 6)]
    assert np.allclose(np.diff(np.log(falls)), math.log(0.01 / 0.25) / 4)
    assert made(ratio=0.5, warmup=3).ratio_at(1) == 0.5
    assert made(ratio=0.01).ratio_at(1) == 0.01


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("n", [3, 513, 600_001])
def test_gradients_are_clipped_to_a_share_of_the_norm(n: int, workers: int) -> None:
    key = Key(n, workers=workers, clip=2.0, ratio=1.0, momentum=0.0)
    chance = np.random.default_rng(n)
    for size in (0.1, 5.0, 1e30):
        g = chance.normal(size=n).astype("f4")
        g *= np.float32(size / np.linalg.norm(g.astype("f8")))
        before = g.copy()
        sent = key.push(g)
        assert np.array_equal(g, before)
        norm = float(np.linalg.norm(sent.astype("f8")))
        assert math.isclose(norm, min(size, 2.0 / math.sqrt(workers)), rel_tol=1e-5)
        assert np.allclose(sent, key.model.push(g), rtol=1e-6)


def test_squares_are_summed_well() -> None:
    for n in (0, 1, 511, 512, 300_000, (1 << 18) + 700):
        x = np.random.default_rng(n).normal(size=n).astype("f4")
        assert math.isclose(_squares(x), math.fsum((x.astype("f8") ** 2).tolist()),
                            rel_tol=1e-13)


# ------------------------------------------------------------------------------ what does not come


def test_what_is_put_back_is_kept_as_if_it_had_not_been_chosen() -> None:
    key, chance = Key(9000, ratio=0.1, warmup=5), np.random.default_rng(4)
    key.push(chance.normal(size=9000).astype("f4"))
    u, v, told = key.u.copy(), key.v.copy(), (key.coder.sent_bytes, key.coder.before_bytes)
    g = chance.normal(size=9000).astype("f4")
    sent = key.push(g)
    key.put_back()
    moved = np.float32(0.9) * u + g
    assert np.array_equal(key.v, v + moved)  # all of it is there
    assert np.array_equal(key.u, np.where(sent != 0, 0, moved))  # momentum begins anew there
    assert (key.coder.sent_bytes, key.coder.before_bytes) == told
    assert key.coder.pushes == 1


class Broken(Exception):
    """Such as Ctrl-C in the middle."""


@pytest.mark.parametrize("momentum", [0.0, 1e-30, 0.5, 0.9])
def test_an_encoding_that_breaks_off_leaves_all(
    momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, chance = Key(9000, ratio=0.1, momentum=momentum), np.random.default_rng(3)
    key.push(chance.normal(size=9000).astype("f4"))
    u, v = key.u.copy(), key.v.copy()

    def break_off(*_: Any) -> Any:
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(DGC, "_cut", break_off)
        with pytest.raises(Broken):
            key.push(chance.normal(size=9000).astype("f4"))
    assert np.allclose(key.v, v, atol=1e-6)
    assert np.allclose(np.float32(momentum) * key.u, np.float32(momentum) * u, atol=1e-6)
    assert key.coder.pushes == 1
    assert np.isfinite(key.push(np.ones(9000, "f4"))).all()


def test_a_momentum_that_is_divided_back_is_no_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key(100, momentum=1e-10)
    key.coder.restore(np.zeros(100, "f4"), 1, None, np.full(100, 2.5e38, "f4"))

    def break_off(*_: Any) -> Any:
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(DGC, "_cut", break_off)
        with pytest.raises(Broken):
            key.push(np.full(100, 2.0**118, "f4"))  # of which 1e-10 * 2.5e38 is half a last bit
    assert np.isfinite(key.u).all()
    assert np.isfinite(key.push(np.ones(100, "f4"))).all()


def test_a_momentum_beside_sums_that_cancel_is_looked_at() -> None:
    key, g = Key(100), np.zeros(100, "f4")
    key.coder.restore(g.copy(), 3, None, np.full(100, 3e38, "f4"))
    assert key.coder.count_nonfinite(g, key.codec) == (0, -1)
    key.coder.encode(key.codec, g, 400, key.pieces, take, [0], shape=(100,))
    assert key.coder.count_nonfinite(g, key.codec) == (99, 1)  # 2.7e38 and 2.43e38 more


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_found(bad: float) -> None:
    key = Key(100)
    key.push(np.ones(100, "f4"))
    g = np.zeros(100, "f4")
    g[[7, 30]] = bad
    assert key.coder.count_nonfinite(g, key.codec) == (2, 7)


def test_sums_that_would_be_infinite_are_found_before_anything_changes() -> None:
    key, g = Key(100), np.full(100, 1e38, "f4")
    key.push(g)  # u and v 1e38, where they are not sent
    key.push(g)  # 1.9e38, 2.9e38
    u, v = key.u.copy(), key.v.copy()
    assert np.isfinite(v).all()
    bad, first = key.coder.count_nonfinite(g, key.codec)  # 2.71e38 more
    assert (bad, first) == (98, 2)  # those that were sent last began anew
    assert np.array_equal(key.u, u)
    assert np.array_equal(key.v, v)
    key.push(np.zeros(100, "f4") - v)  # smaller ones are taken


def test_small_gradients_come_to_no_infinity_unnoticed() -> None:
    """A momentum next to 1 adds up: the sums grow with the square of the number of pushes."""
    key, g = Key(300, momentum=0.999, ratio=0.001), np.full(300, 2e35, "f4")
    for _ in range(200):
        bad, _ = key.coder.count_nonfinite(g, key.codec)
        if bad:
            break
        key.coder.encode(key.codec, g, 1200, key.pieces, take, [0], shape=(300,))
        assert np.isfinite(key.v).all()
        assert np.isfinite(key.u).all()
    assert bad
    assert np.abs(key.v).max() > 1e38


def test_both_follow_the_learning_rate() -> None:
    key = Key(50, ratio=0.1)
    key.coder.follow(Rate("sgd", 0.5), extra=True)
    key.push(np.random.default_rng(1).normal(size=50).astype("f4"))
    u, v = key.u.copy(), key.v.copy()
    key.coder.follow(Rate("sgd", 0.125), extra=True)
    assert np.array_equal(key.u, 4 * u)
    assert np.array_equal(key.v, 4 * v)
    key.coder.follow(Rate("sgd", 1e-45), extra=True)  # too small for what is kept to follow
    assert key.coder.count_nonfinite(np.ones(50, "f4"), key.codec) == (0, -1)
    assert np.isfinite(key.push(np.ones(50, "f4"))).all()


def test_another_codec_in_between_lets_momentum_and_warm_up_begin_anew() -> None:
    key, g = Key(1000, warmup=3), np.ones(1000, "f4")
    key.push(g)
    v = key.v.copy()
    topk = codecs.made(codecs.checked({"type": "topk"}))
    key.coder.encode(topk, g, 4000, key.pieces, take, [0])
    assert key.u is None
    assert np.count_nonzero(key.v != v + g) == 10
    key.push(g)
    assert sum(payload.nbytes for payload in key.payloads) == 8 * 250
    assert key.coder.pushes == 1


# --------------------------------------------------------------------------------- any course of it


numbers = st.floats(-1e6, 1e6, width=32, allow_nan=False)
steps = st.lists(st.one_of(
    st.tuples(st.just("push"), st.integers(0, 1 << 30)),
    st.tuples(st.just("same"), numbers), st.tuples(st.just("put back"), st.none()),
    st.tuples(st.just("restore"), st.none()), st.tuples(st.just("ratio"), st.floats(1e-3, 1.0)),
), max_size=12)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), steps, st.floats(0, 0.99), st.integers(0, 4),
       st.booleans())
def test_any_course_of_pushes_is_that_of_the_model(
    n: int, step: int, course: list[tuple[str, Any]], momentum: float, warmup: int, half: bool
) -> None:
    options = {"momentum": momentum, "warmup": warmup, "values": "f16" if half else "f32"}
    key = Key(n, step, ratio=0.2, **options)
    model, arrived = key.model, np.zeros(n)
    for what, value in course:
        if what in ("push", "same"):
            g = np.full(n, value, "f4") if what == "same" else (
                np.random.default_rng(value).normal(size=n).astype("f4"))
            sent, expected = key.push(g), model.push(g)
            assert np.array_equal(sent, expected)
            arrived += sent
        elif what == "put back" and key.payloads is not None:
            sent = received(key.codec, n, key.pieces, key.payloads)
            key.put_back()
            key.payloads = None
            model.v = model.v + sent
            model.pushes -= 1
            arrived -= sent
        elif what == "restore":  # as a checkpoint does
            former, key.coder = key.coder, KeyCoder(n)
            key.coder.restore(former.residual, former.pushes, None, former.extra)
            key.payloads = None
        elif what == "ratio":
            key.codec = made(ratio=value, **options)
            model.ratio = value
        if key.v is not None:
            assert np.array_equal(key.v, model.v)
            assert np.array_equal(key.u, model.u)
            assert key.coder.pushes == model.pushes
    scale = 1 + np.abs(model.total).max() + np.abs(arrived).max() + np.abs(model.v).max()
    assert np.allclose(arrived + model.v, model.total, atol=4e-6 * scale * (1 + len(course)))


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(("options", "words"), [
    ({"momentum": 1.0}, "momentum of compression dgc .expected a number of 0 or more, below 1"),
    ({"momentum": -0.1}, "below 1"), ({"momentum": "0.9"}, "below 1"),
    ({"momentum": math.nan}, "below 1"), ({"momentum": True}, "below 1"),
    ({"momentum": 1 - 1e-9}, "below 1"),
    ({"warmup": -1}, "number of pushes"), ({"warmup": 1.5}, "pushes"), ({"warmup": True}, "pushes"),
    ({"clip": 0}, "above 0"), ({"clip": -1.0}, "above 0"), ({"clip": math.inf}, "above 0"),
    ({"clip": "1"}, "above 0"), ({"ratio": 0}, "above 0"), ({"values": "f64"}, "f32 or f16"),
    ({"error_feedback": False}, "error_feedback of compression dgc"), ({"threshold": 1}, "clip"),
])  # fmt: skip
def test_wrong_words_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        codecs.checked({"type": "dgc", **options})


def test_words_are_complete() -> None:
    assert codecs.checked({"type": "dgc"}) == {
        "type": "dgc", "error_feedback": True, "lr_scaled": False, "nonfinite": "error",
        "small_bytes": 65536, "pull": None, "ratio": 0.01, "momentum": 0.9, "warmup": 0,
        "clip": None, "values": "f32"}
    assert codecs.checked({"type": "dgc", "pull": True, "clip": 5, "warmup": 7})["clip"] == 5.0


def test_changes_are_brought_by_topk() -> None:
    assert codecs.made_for_changes(codecs.checked({"type": "dgc"})) is None
    found = codecs.made_for_changes(codecs.checked({"type": "dgc", "pull": True, "ratio": 0.2}))
    assert found is not None
    assert (found[0].name, found[1]) == ("topk", 0.2)


def test_golden_head() -> None:
    assert made().head(8, 0).hex() == "010a0000" "00000000" "0800000000000000" "0000000000000000"
