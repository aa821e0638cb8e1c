"""Codecs as objects: golden bytes, the rules of ACCEPTANCE 1c, options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import ConfigError, NotYetError, RemoteProtocolError
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Pool
from asyncps_ext import quantize, reduce, select
from tests.support.variants import all_on_each_variant

variant = all_on_each_variant(autouse=True)

SPECS: list[dict[str, Any]] = [
    {"type": "f16"}, {"type": "bf16"}, {"type": "int8"}, {"type": "1bit"}, {"type": "2bit"},
    {"type": "onebit"}, {"type": "topk", "ratio": 0.1}, {"type": "topk", "values": "f16"},
    {"type": "threshold", "threshold": 0.5}, {"type": "threshold", "threshold": 0},
    {"type": "threshold", "threshold": 1, "values": "f16"}, {"type": "randomk"},
    {"type": "randomk", "ratio": 0.3, "values": "f16"},
]
every = pytest.mark.parametrize("spec", SPECS, ids=str)
SIZES = [1, 2, 7, 16, 31, 33, 255, 257, 4096, 10_001]
G = [.6, -.7, .1, .5, -.5, .49, -.2, 1.3]


def take(size: int) -> Any:
    return np.full(size, 0xAA, np.uint8)


def made(spec: dict[str, Any]) -> Codec:
    return codecs.made(codecs.checked(spec))


def cut(n: int, step: int) -> list[tuple[int, int]]:
    return [(begin, min(n, begin + step)) for begin in range(0, n, step)]


def seeds_of(pieces: Any) -> list[int]:
    return [7 * begin + 1 for begin, _ in pieces]


def received(codec: Codec, n: int, pieces: Any, payloads: Any) -> Any:
    """What a server makes of payloads: it knows the head alone."""
    out = np.full(n, 9, "f4")
    for (begin, stop), payload, seed in zip(pieces, payloads, seeds_of(pieces), strict=True):
        other, elements, told = codecs.parse_head(codec.head(stop - begin, seed), codecs.BY_NUMBER)
        assert (elements, told) == (stop - begin, seed)
        other.check(elements, payload, told)
        other.decode(out[begin:stop], payload, told)
    return out


@pytest.mark.parametrize(("spec", "rounds"), [
    ({"type": "2bit", "threshold": .5},
     [("e3830000", [.1, -.2, .1, 0, 0, .49, -.2, .8]), ("e3b30000", None)]),
    ({"type": "1bit", "threshold": 0},
     [("b5000000", [-.4, .3, -.9, -.5, .5, -.51, .8, .3]), ("83000000", None)]),
])  # fmt: skip
def test_golden_bytes_of_mxnet(spec: dict[str, Any], rounds: Any) -> None:
    residual, g = np.zeros(8, "f4"), np.array(G, "f4")
    for bytes_, left in rounds:
        (payload,) = made(spec).encode(g, residual, [(0, 8)], take, [0])
        assert payload.tobytes().hex() == bytes_
        if left is not None:
            assert np.allclose(residual, left, rtol=0, atol=1e-6)


def test_residual_of_mxnets_2bit() -> None:
    g = np.array([-6, -2, 3, 1, 10, 5, -3, 2, -8, 0], "f4")
    residual = np.array([-3, 1, -1, 5, -2, 2, 3, -7, -2, -100], "f4")
    codec = made({"type": "2bit", "threshold": 4})
    payloads = codec.encode(g, residual, [(0, 10)], take, [1])
    assert received(codec, 10, [(0, 10)], payloads).tolist() == [-4, 0, 0, 4, 4, 4, 0, -4, -4, -4]
    assert residual.tolist() == [-5, -1, 2, 2, 4, 3, 0, -1, -6, -96]


@every
@pytest.mark.parametrize("n", SIZES)
def test_what_is_sent_and_what_stays_is_what_there_was(spec: dict[str, Any], n: int) -> None:
    codec = made(spec)
    chance = np.random.default_rng(n)
    residual, total, sent = np.zeros(n, "f4"), np.zeros(n), np.zeros(n)
    pieces = cut(n, 4096)
    for _ in range(4):
        g = chance.normal(size=n).astype("f4")
        x = residual + g
        payloads = codec.encode(g, residual, pieces, take, seeds_of(pieces))
        d = received(codec, n, pieces, payloads)
        if spec["type"] in ("topk", "threshold", "randomk") and spec.get("values") != "f16":
            assert np.array_equal(d + residual, x)  # to the bit
        total += g
        sent += d
    assert np.allclose(sent + residual, total, rtol=0, atol=1e-6)


@every
def test_adding_is_decoding_and_adding(spec: dict[str, Any]) -> None:
    n, codec = 5000, made(spec)
    pieces = cut(n, 4096)
    g = np.random.default_rng(1).normal(size=n).astype("f4")
    payloads = codec.encode(g, None, pieces, take, seeds_of(pieces))
    acc = np.arange(n, dtype="f4")
    expected = acc + received(codec, n, pieces, payloads)
    for (begin, stop), payload, seed in zip(pieces, payloads, seeds_of(pieces), strict=True):
        codec.add(acc[begin:stop], payload, seed)
    assert np.array_equal(acc, expected)


def expected_bytes(spec: dict[str, Any], n: int, x: Any) -> int:
    """The formulas of ACCEPTANCE 1c; f16 values take two bytes less."""
    value = 2 if spec.get("values") == "f16" else 4
    words = codecs.checked(spec)
    k = min(n, max(1, math.ceil(words.get("ratio", 1) * n - 1e-9)))
    nnz = int((np.abs(x) >= words["threshold"]).sum()) if spec["type"] == "threshold" else 0
    return {
        "f16": 2 * n, "bf16": 2 * n, "int8": n + 4 * math.ceil(n / 256),
        "1bit": 4 * math.ceil(n / 32), "onebit": 4 * math.ceil(n / 32) + 4,
        "2bit": 4 * math.ceil(n / 16), "topk": (4 + value) * k, "randomk": value * k,
        "threshold": (4 + value) * nnz,
    }[spec["type"]]


@every
@pytest.mark.parametrize("n", SIZES)
def test_bytes_are_those_of_the_formula(spec: dict[str, Any], n: int) -> None:
    codec = made(spec)
    g = np.random.default_rng(n).normal(size=n).astype("f4")
    pieces = cut(n, 4096)
    sent = sum(p.nbytes for p in codec.encode(g, None, pieces, take, seeds_of(pieces)))
    scales = 4 * (len(pieces) - 1) if spec["type"] == "onebit" else 0  # sent with each chunk
    assert sent == expected_bytes(spec, n, g) + scales


@every
def test_a_zero_stays_zero(spec: dict[str, Any]) -> None:
    if spec["type"] == "1bit":
        return  # +1 or -1, whatever there is
    codec = made(spec)
    residual, g = np.zeros(300, "f4"), np.zeros(300, "f4")
    pieces = cut(300, 300)
    for _ in range(2):
        payloads = codec.encode(g, residual, pieces, take, seeds_of(pieces))
        assert not received(codec, 300, pieces, payloads).any()
        assert not residual.any()


@every
def test_where_a_key_is_cut_changes_nothing_that_is_sent(spec: dict[str, Any]) -> None:
    n, codec = 20_000, made(spec)
    if spec["type"] == "randomk":
        return  # places are drawn for each chunk
    g = np.random.default_rng(2).normal(size=n).astype("f4")
    outs = []
    for step in (4096, 8192, n):
        pieces = cut(n, step)
        outs.append(received(codec, n, pieces, codec.encode(
            g, np.zeros(n, "f4"), pieces, take, seeds_of(pieces))))
    assert np.array_equal(outs[0], outs[2])
    assert np.array_equal(outs[1], outs[2])


def test_topk_is_chosen_over_the_whole_key() -> None:
    g = np.zeros(10_000, "f4")
    g[9000:9100] = 1
    pieces = cut(10_000, 4096)
    codec = made({"type": "topk", "ratio": 0.01})
    sizes = [p.nbytes for p in codec.encode(g, None, pieces, take, [0, 0, 0])]
    assert sizes == [0, 0, 800]


class Broken(Exception):
    """Such as Ctrl-C in the middle."""


@every
def test_an_encoding_that_breaks_off_leaves_the_residual(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, codec = 9000, made(spec)
    pieces = cut(n, 4096)
    g = np.random.default_rng(3).normal(size=n).astype("f4")
    residual = np.zeros(n, "f4")
    codec.encode(g, residual, pieces, take, seeds_of(pieces))
    before = residual.copy()
    count = 0

    def break_off(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == (1 if "_cut" in vars(type(codec).__mro__[1]) else 2):
            raise Broken
        return original(*args)

    name = "write" if hasattr(codec, "write") else "_cut"
    if spec["type"] == "onebit":
        from asyncps.tensor.codecs import bits

        original = bits.quantize.encode_onebit
        monkeypatch.setattr(bits.quantize, "encode_onebit", break_off)
    else:
        original = getattr(codec, name)
        monkeypatch.setattr(codec, name, break_off)
    with pytest.raises(Broken):
        codec.encode(g, residual, pieces, take, seeds_of(pieces))
    assert np.allclose(residual, before, rtol=0, atol=1e-6)


@every
def test_what_is_put_back_was_never_sent(spec: dict[str, Any]) -> None:
    n = 9000
    coder, codec = KeyCoder(n), made(spec)
    pieces = cut(n, 4096)
    g = np.random.default_rng(4).normal(size=n).astype("f4")
    coder.encode(codec, g, 4 * n, pieces, take, seeds_of(pieces))
    assert coder.residual is not None
    before, sent = coder.residual.copy(), coder.sent_bytes
    payloads = coder.encode(codec, g, 4 * n, pieces, take, seeds_of(pieces))
    coder.put_back(codec, 4 * n, pieces, payloads, seeds_of(pieces))
    assert np.allclose(coder.residual, before + g, rtol=0, atol=1e-6)
    assert (coder.sent_bytes, coder.before_bytes) == (sent, 4 * n)


def test_without_feedback_nothing_is_kept() -> None:
    coder, codec, pieces = KeyCoder(4), made({"type": "2bit"}), [(0, 4)]
    coder.encode(codec, np.full(4, .4, "f4"), 16, pieces, take, [0])
    for _ in range(2):
        (payload,) = coder.encode(
            codec, np.full(4, .4, "f4"), 16, pieces, take, [0], feedback=False)
        assert not payload.any()
    assert coder.residual is None
    assert coder.error_norm() == 0


def test_error_norm_is_that_of_the_residual() -> None:
    coder = KeyCoder(3)
    coder.encode(made({"type": "2bit"}), np.array([.3, -.4, 1.2], "f4"), 12, [(0, 3)], take, [0])
    assert math.isclose(coder.error_norm(), math.sqrt(.09 + .16 + .49), rel_tol=1e-6)


# ---------------------------------------------------------------------------------- what is wrong

WRONG_SIZES = pytest.mark.parametrize(("spec", "n", "size"), [
    ({"type": "f16"}, 5, 12), ({"type": "int8"}, 300, 300), ({"type": "1bit"}, 33, 4),
    ({"type": "2bit"}, 17, 4), ({"type": "onebit"}, 5, 4), ({"type": "topk"}, 5, 12),
    ({"type": "topk"}, 5, 48), ({"type": "randomk"}, 5, 24), ({"type": "randomk"}, 5, 3),
])  # fmt: skip


@WRONG_SIZES
def test_a_payload_of_another_size_is_refused(spec: dict[str, Any], n: int, size: int) -> None:
    codec = made(spec)
    with pytest.raises(RemoteProtocolError, match=f"not of codec {spec['type']}"):
        codec.check(n, np.zeros(size, np.uint8), 0)


@pytest.mark.parametrize("indices", [[0, 0], [3, 1], [1, 5], [0, 2**32 - 1]])
def test_indices_that_are_wrong_are_refused(indices: list[int]) -> None:
    payload = np.concatenate([np.array(indices, "<u4"), np.ones(2, "<f4").view("<u4")])
    with pytest.raises(RemoteProtocolError, match="expected indices that ascend, below 5"):
        made({"type": "topk"}).check(5, payload.view(np.uint8), 0)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    payload = np.array([scale, 0], "<f4").view(np.uint8)
    with pytest.raises(RemoteProtocolError, match="finite scale"):
        made({"type": "onebit"}).check(5, payload, 0)


@settings(max_examples=200)
@given(st.binary(min_size=codecs.HEAD_BYTES, max_size=codecs.HEAD_BYTES), st.integers(1, 300),
       st.binary(max_size=700))
def test_any_bytes_are_values_or_an_error(head: bytes, n: int, payload: bytes) -> None:
    for number in (head[1], 1 + head[1] % 10):
        told = bytes([1, number, head[2] % 2, 0]) + head[4:]
        try:
            codec, _, seed = codecs.parse_head(told, codecs.BY_NUMBER)
            data = np.frombuffer(payload, np.uint8)
            codec.check(n, data, seed)
        except RemoteProtocolError:
            continue
        with np.errstate(all="ignore"):
            codec.decode(np.zeros(n, "f4"), data, seed)
            codec.add(np.zeros(n, "f4"), data, seed)


@pytest.mark.parametrize("head", [
    "02050000" "0000003f", "01000000" "00000000", "01630000" "00000000", "01050001" "0000003f",
    "01050000" "00000000", "01050000" "0000c07f", "01050100" "0000003f", "01010000" "0000003f",
    "01070200" "00000000",
])  # fmt: skip
def test_a_head_that_cannot_be_is_refused(head: str) -> None:
    with pytest.raises(RemoteProtocolError):
        codecs.parse_head(bytes.fromhex(head) + bytes(16), codecs.BY_NUMBER)


def test_golden_head() -> None:
    head = made({"type": "2bit", "threshold": .5}).head(8, 3)
    assert head.hex() == "01050000" "0000003f" "0800000000000000" "0300000000000000"


# --------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(("spec", "words"), [
    ({}, "f16, bf16, int8, 1bit, 2bit, onebit, topk, threshold, randomk, dgc"),
    ({"type": "2bits"}, "f16, bf16, int8"), ({"type": ["2bit"]}, "f16"), ("2bit", "such as"),
    ({"type": "2bit", "treshold": 1},
     "type, error_feedback, lr_scaled, nonfinite, small_bytes, pull, threshold"),
    ({"type": "int8", "block": 128}, "type, error_feedback, lr_scaled, nonfinite, small_bytes"),
    ({"type": "2bit", "threshold": 0}, "above 0"), ({"type": "2bit", "threshold": "1"}, "above"),
    ({"type": "2bit", "threshold": 1e300}, "finite"), ({"type": "1bit", "threshold": None}, "fin"),
    ({"type": "2bit", "threshold": True}, "above"), ({"type": "threshold"}, "0 or more"),
    ({"type": "threshold", "threshold": -1}, "0 or more"), ({"type": "topk", "ratio": 0}, "above"),
    ({"type": "topk", "ratio": 10**400}, "at most 1"),
    ({"type": "topk", "ratio": 1.5}, "at most 1"), ({"type": "randomk", "ratio": math.nan}, "1"),
    ({"type": "topk", "values": "f64"}, "f32 or f16"), ({"type": "f16", "small_bytes": -1}, "0 or"),
    ({"type": "f16", "small_bytes": 1.5}, "bytes"), ({"type": "f16", "error_feedback": 1}, "True"),
    ({"type": "f16", "lr_scaled": None}, "lr_scaled is True or False"),
    ({"type": "2bit", "pull": "f32"}, "f16, bf16, True or"), ({"type": "2bit", "pull": 1}, "bf16"),
])  # fmt: skip
def test_wrong_words_are_refused_and_the_known_ones_listed(spec: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as found:
        codecs.checked(spec)
    assert isinstance(found.value, ValueError)


def test_what_is_not_there_yet_says_so() -> None:
    with pytest.raises(NotYetError, match="powersgd is not there yet: it is of topk, threshold, "
                                          "randomk, f16, bf16, int8, 2bit, onebit, dgc, 1bit"):
        codecs.checked({"type": "powersgd", "pull": True})


@pytest.mark.parametrize(("spec", "type", "amount"), [
    ({"type": "f16"}, "f16", 0.0), ({"type": "bf16"}, "bf16", 0.0), ({"type": "int8"}, "int8", 0.0),
    ({"type": "onebit"}, "onebit", 0.0), ({"type": "2bit", "threshold": 0.25}, "2bit", 0.25),
    # Steps of one are for gradients, which a learning rate makes small.
    ({"type": "1bit", "threshold": 0.25}, "onebit", 0.0), ({"type": "topk"}, "topk", 0.01),
    ({"type": "threshold", "threshold": 2}, "threshold", 2.0),
], ids=str)  # fmt: skip
def test_changes_are_brought_by(spec: dict[str, Any], type: str, amount: float) -> None:
    assert codecs.made_for_changes(codecs.checked(spec)) is None
    found = codecs.made_for_changes(codecs.checked({**spec, "pull": True}))
    assert found is not None
    assert (found[0].name, found[1]) == (type, amount)


# ----------------------------------------------------------------------------------- differences


of_changes = pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec["type"] in codecs.DELTAS], ids=str)


@of_changes
@pytest.mark.parametrize("n", SIZES)
def test_difference_is_what_would_be_sent_of_it(spec: dict[str, Any], n: int) -> None:
    codec, pool = made(spec), Pool(1 << 20)
    chance = np.random.default_rng(n)
    value, base = (chance.normal(size=n).astype("f4") for _ in range(2))
    before = value.copy(), base.copy()
    (expected,) = codec.encode(value - base, None, [(0, n)], take, [5])
    payload = codec.encode_difference(value, base, pool, 5)
    assert payload is not None
    assert payload.tobytes() == expected.tobytes()
    assert np.array_equal(value, before[0])
    assert np.array_equal(base, before[1])
    kept = pool.free_bytes
    assert codec.encode_difference(value, base, pool, 5) is not None
    assert pool.free_bytes == kept  # what was borrowed is back


@of_changes
def test_changes_lead_to_the_same_base_on_every_variant(spec: dict[str, Any]) -> None:
    """Server and worker may be of different machines."""
    seen = {}
    before = [(kernels, kernels._set_variant(kernels._variants()[0]))
              for kernels in (quantize, reduce, select)]
    try:
        for variant in quantize._variants():
            for kernels, _ in before:
                kernels._set_variant(variant)
            seen[variant] = changed(made(spec))
    finally:
        for kernels, one in before:
            kernels._set_variant(one)
    assert len(set(seen.values())) == 1, list(seen)


def changed(codec: Codec) -> bytes:
    """Bring a base on thrice; return what was sent, and the base."""
    chance, pool, sent = np.random.default_rng(3), Pool(1 << 20), b""
    base = chance.normal(size=5001).astype("f4")
    value = base.copy()
    for turn in range(3):
        value += (chance.normal(size=5001) * 10.0 ** -chance.integers(0, 9, 5001)).astype("f4")
        payload = codec.encode_difference(value, base, pool, turn)
        assert payload is not None
        codec.add(base, payload, turn)
        sent += payload.tobytes()
    return sent + base.tobytes()


@of_changes
@pytest.mark.parametrize(("value", "base"), [
    (np.inf, 0), (-np.inf, 0), (np.nan, 0), (np.inf, np.inf), (0, np.nan), (3e38, -3e38)])
def test_difference_that_is_not_finite_is_not_sent(
    spec: dict[str, Any], value: float, base: float
) -> None:
    values, bases = np.ones(300, "f4"), np.zeros(300, "f4")
    values[270], bases[270] = value, base
    assert made(spec).encode_difference(values, bases, Pool(1 << 20), 5) is None


def test_words_are_complete() -> None:
    assert codecs.checked({"type": "2bit", "pull": None, "nonfinite": "error"}) == {
        "type": "2bit", "error_feedback": True, "lr_scaled": False, "nonfinite": "error",
        "small_bytes": 0, "pull": None, "threshold": 0.5}
    assert codecs.checked({"type": "topk", "pull": np.True_})["pull"] is True
    assert codecs.checked({"type": "topk", "ratio": 1, "pull": "f16"}) == {
        "type": "topk", "error_feedback": True, "lr_scaled": False, "nonfinite": "error",
        "small_bytes": 65536, "pull": "f16", "ratio": 1.0, "values": "f32"}
