"""Codecs that send every value in fewer bits: f16, bf16, int8, 1bit, 2bit, onebit.

Sources: MXNet 1.9.1's gradient compression for the formats of 1bit and 2bit (Seide and others 2014;
Strom 2015); Karimireddy and others 2019 for onebit, whose scale is the mean of the magnitudes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncps.tensor.codecs.base import (
    Codec,
    Elementwise,
    Floats,
    Pieces,
    Take,
    cut_room,
    viewed,
)
from asyncps.tensor.pool import Bytes
from asyncps_ext import quantize, reduce


def _words(n: int, bits: int) -> int:
    """Bytes of n values of so many bits, in whole words of 32."""
    return -(-n * bits // 32) * 4


class F16(Elementwise):
    """The nearest float16; what would be infinite is the largest that is not."""

    name, number = "f16", 1

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: two bytes a value."""
        return 2 * n

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        quantize.encode_f16(payload.view(np.uint16), residual, g)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        reduce.add_f16(acc, viewed(payload, np.uint16))

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        reduce.widen_f16(out, viewed(payload, np.uint16))


class BF16(F16):
    """The nearest bfloat16."""

    name, number = "bf16", 2

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        quantize.encode_bf16(payload.view(np.uint16), residual, g)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        reduce.add_bf16(acc, viewed(payload, np.uint16))

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        reduce.widen_bf16(out, viewed(payload, np.uint16))


class Int8(Elementwise):
    """Multiples, from -127 to 127, of a scale that 256 values share; the scales come first."""

    name, number = "int8", 3

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: a byte a value and a float32 a block."""
        return n + self._scale_bytes(n)

    @staticmethod
    def _scale_bytes(n: int) -> int:
        return 4 * -(-n // quantize.BLOCK)

    def _parted(self, n: int, payload: Bytes) -> tuple[Bytes, Floats]:
        scales = self._scale_bytes(n)
        return payload[scales:], viewed(payload[:scales], np.float32)

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        scales = self._scale_bytes(g.size)
        quantize.encode_int8(payload[scales:], payload[:scales].view(np.float32), residual, g)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        quantize.add_int8(acc, *self._parted(acc.size, payload))

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        quantize.decode_int8(out, *self._parted(out.size, payload))


class OneBit(Elementwise):
    """MXNet's 1bit: +1 above the threshold, else -1."""

    name, number, small_bytes = "1bit", 4, 0
    options = {"threshold": 0.0}  # noqa: RUF012 - a class attribute of the base

    def __init__(self, parameter: float = 0.0, *, half: bool = False) -> None:
        super().__init__(0.0, half=half)
        self._threshold = parameter

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`; who decodes need not know the threshold."""
        return cls(options["threshold"])

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: a bit a value, in whole words."""
        return _words(n, 1)

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        quantize.encode_1bit(payload, residual, g, self._threshold)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        quantize.add_1bit(acc, payload)

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        quantize.decode_1bit(out, payload)


class TwoBit(Elementwise):
    """MXNet's 2bit: the threshold, its negative, or nothing."""

    name, number, small_bytes = "2bit", 5, 0
    options = {"threshold": 0.5}  # noqa: RUF012

    @classmethod
    def made(cls, options: dict[str, Any]) -> Codec:
        """As `Codec.made`."""
        return cls(options["threshold"])

    @classmethod
    def is_parameter(cls, value: float) -> bool:
        """As `Codec.is_parameter`: a threshold."""
        return value > 0

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: two bits a value, in whole words."""
        return _words(n, 2)

    def write(self, payload: Bytes, residual: Floats | None, g: Floats) -> None:
        """As `Elementwise.write`."""
        quantize.encode_2bit(payload, residual, g, self.parameter)

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        quantize.add_2bit(acc, payload, self.parameter)

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        quantize.decode_2bit(out, payload, self.parameter)


class Sign(Codec):
    """Onebit: signs, and the mean of the magnitudes of the whole key, which each chunk brings."""

    name, number = "onebit", 6
    loop_bytes = 4 << 20

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: a bit a value, in whole words, behind a float32."""
        return 4 + _words(n, 1)

    def encode(
        self, g: Floats, residual: Floats | None, pieces: Pieces, take: Take,
        seeds: Sequence[int],
    ) -> list[Bytes]:
        """As `Codec.encode`."""
        payloads = cut_room(take, [self.nbytes(stop - begin) for begin, stop in pieces])
        total = quantize.onebit_prepare(residual, g)
        done = 0
        try:
            scale = np.float32(total / g.size)
            x = g if residual is None else residual
            for (begin, stop), payload in zip(pieces, payloads, strict=True):
                payload[:4].view(np.float32)[0] = scale
                quantize.encode_onebit(
                    payload[4:], x[begin:stop], float(scale), residual is not None
                )
                done += 1
        except BaseException:
            if residual is not None:
                for (begin, stop), payload in zip(pieces[:done], payloads, strict=False):
                    self.add(residual[begin:stop], payload, 0)
                residual -= g
            raise
        return payloads

    def check(self, n: int, payload: Bytes, seed: int) -> None:
        """As `Codec.check`; the scale is a finite number, and at least 0."""
        super().check(n, payload, seed)
        scale = self._scale(payload)
        if not 0 <= scale < float("inf"):
            raise self.refusal("a finite scale of 0 or more", scale)

    @staticmethod
    def _scale(payload: Bytes) -> float:
        return float(viewed(payload[:4], np.float32)[0])

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""
        quantize.add_onebit(acc, payload[4:], self._scale(payload))

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        quantize.decode_onebit(out, payload[4:], self._scale(payload))
