"""What holds for every quantizer, in every variant: twins, residuals, awkward arrays."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from asyncps_ext import quantize, reference
from tests.asyncps_ext.arrays import LAYOUTS, Array, assert_bits, assert_same, floats, read_only
from tests.asyncps_ext.codecs import (
    ALL,
    BLOCK,
    BODIES,
    CODECS,
    EVERY_SIZE,
    Codec,
    bit_patterns,
    plain,
)
from tests.asyncps_ext.codecs import variant as variant

layouts = pytest.mark.parametrize("layout", LAYOUTS)
kept = pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])


def bytes_of(arrays: list[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@ALL
@kept
@layouts
def test_every_variant_sends_and_keeps_the_same_bytes_as_the_twin(
    codec: Codec, keep: bool, layout: Callable[[Array], Array]
) -> None:
    for size in EVERY_SIZE:
        for g, before in (
            (floats(size, "float32", 1), floats(size, "float32", 2)),
            (plain(size, 3), plain(size, 4)),
        ):
            ours, twins = (codec.buffers(size) for _ in range(2))
            ours = [layout(array) for array in ours]
            residual, twin = layout(before), before.copy()
            extra = codec.encode(quantize, ours, residual if keep else None, layout(g))
            codec.encode(reference.quantize, twins, twin if keep else None, g)
            assert bytes_of(ours) == bytes_of(twins)
            assert_bits(residual, twin)
            assert keep or before.tobytes() == residual.tobytes()
            out, expected = layout(before), before.copy()
            codec.decode(quantize, out, ours, extra)
            codec.decode(reference.quantize, expected, twins, extra)
            assert_same(out, expected)
            codec.add(quantize, residual, ours, extra)
            codec.add(reference.quantize, twin, twins, extra)
            assert_same(residual, twin)


@ALL
@kept
def test_all_exponents_denormals_and_nans_give_the_same_bytes_as_the_twin(
    codec: Codec, keep: bool
) -> None:
    rng = np.random.default_rng(5)
    for g in (bit_patterns(1), rng.permutation(bit_patterns(2))):
        residual, twin = np.zeros(g.size, np.float32), np.zeros(g.size, np.float32)
        ours, twins = codec.buffers(g.size), codec.buffers(g.size)
        codec.encode(quantize, ours, residual if keep else None, g)
        codec.encode(reference.quantize, twins, twin if keep else None, g)
        assert bytes_of(ours) == bytes_of(twins)
        assert_bits(residual, twin)


@ALL
@BODIES
def test_what_is_kept_is_what_was_not_sent(codec: Codec, body: ModuleType) -> None:
    for size in EVERY_SIZE:
        g, residual = plain(size, 6), plain(size, 7)
        x = g + residual
        sent = codec.buffers(size)
        extra = codec.encode(body, sent, residual, g)
        out = np.empty(size, np.float32)
        codec.decode(body, out, sent, extra)
        assert_same(residual, x - out)


@ALL
@BODIES
def test_all_that_was_sent_and_the_last_residual_are_the_sum_of_all_gradients(
    codec: Codec, body: ModuleType
) -> None:
    residual, out = np.zeros(1000, np.float32), np.empty(1000, np.float32)
    given, arrived = np.zeros(1000), np.zeros(1000)  # in float64: what they lose is the codec's
    for round_ in range(20):
        g = plain(1000, 100 + round_) * np.float32(0.1)
        sent = codec.buffers(1000)
        codec.decode(body, out, sent, codec.encode(body, sent, residual, g))
        given += g
        arrived += out
    np.testing.assert_allclose(arrived + residual, given, rtol=0, atol=1e-6)


@ALL
@BODIES
def test_adding_is_decoding_and_then_a_sum(codec: Codec, body: ModuleType) -> None:
    for size in EVERY_SIZE:
        sent = codec.buffers(size)
        extra = codec.encode(body, sent, None, plain(size, 8))
        acc, out = plain(size, 9), np.empty(size, np.float32)
        codec.decode(body, out, sent, extra)
        expected = acc + out
        codec.add(body, acc, sent, extra)
        assert_same(acc, expected)


@ALL
@BODIES
def test_what_is_only_read_may_be_read_only(codec: Codec, body: ModuleType) -> None:
    g, residual = read_only(plain(40, 1)), plain(40, 2)
    sent = codec.buffers(40)
    codec.encode(body, sent, None, g)
    extra = codec.encode(body, sent, residual, g)
    fixed = [read_only(array) for array in sent]
    codec.decode(body, residual, fixed, extra)
    codec.add(body, residual, fixed, extra)


@BODIES
@pytest.mark.parametrize("name", ["2bit", "onebit", "int8", "f16", "bf16"])
def test_a_zero_stays_zero(body: ModuleType, name: str) -> None:
    zeros = np.array([0.0, -0.0] * 20, np.float32)
    residual, out = np.zeros(40, np.float32), np.ones(40, np.float32)
    sent = CODECS[name].buffers(40)
    extra = CODECS[name].encode(body, sent, residual, zeros)
    CODECS[name].decode(body, out, sent, extra)
    assert not out.any()
    assert not residual.any()


def test_only_variants_that_exist_can_be_chosen(variant: str) -> None:
    with pytest.raises(ValueError, match="no variant 'mmx' here"):
        quantize._set_variant("mmx")
    assert quantize._set_variant(variant) == variant
    assert quantize.BLOCK == reference.quantize.BLOCK == BLOCK
