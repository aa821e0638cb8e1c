"""A codec that keeps more of a key than what was not sent: a momentum, a factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from asyncps.tensor.codecs.base import Codec, Floats, Pieces, Take
from asyncps.tensor.pool import Bytes
from asyncps_ext import quantize


class Stateful(Codec):
    """One whose encoder has memory beside the residual, of each key.

    Attributes:
        scales_extra: What it keeps beside is in the unit of gradients: with `lr_scaled` it follows
            the learning rate as the residual does, and it may become as large as that.
    """

    scales_extra: ClassVar[bool] = False

    def unfit(self, shape: tuple[int, ...], nbytes: int, pieces: Pieces) -> str:
        """Return why a key travels dense; "" if it need not.

        Args:
            shape: Of the key.
            nbytes: Of its value as it is stored.
            pieces: Where it is cut.
        """
        return ""

    def extra_size(self, shape: tuple[int, ...]) -> int:
        """Return how many float32 it keeps beside the residual, for a key of this shape."""
        raise NotImplementedError

    def encode_with(
        self, g: Floats, residual: Floats, extra: Floats, shape: tuple[int, ...], push: int,
        pieces: Pieces, take: Take, seeds: Sequence[int],
    ) -> list[Bytes]:
        """Return what is sent, a payload a piece, as `Codec.encode`.

        Args:
            g: float32[n], finite; only read.
            residual: float32[n], read and written.
            extra: float32[extra_size(shape)], read and written; zeros before the first push.
            shape: Of the key.
            push: How often this key was encoded by it, this time included, since the first push
                or what a checkpoint says.
            pieces, take: As `Codec.encode` has them.
            seeds: One a piece, each that of the key: the same at all workers and of all pushes.

        If this raises, `residual` and `extra` are what they were, up to a rounding error.
        """
        raise NotImplementedError

    def count_nonfinite(
        self, g: Floats, residual: Floats | None, extra: Floats | None
    ) -> tuple[int, int]:
        """Count where what it would keep of a gradient is no finite number; and the first place,
        -1 for none.

        Args:
            g: float32[n], the gradient.
            residual, extra: As `encode_with` has them; None before the first push.
        """
        return (quantize.count_nonfinite(g, residual), quantize.first_nonfinite(g, residual))
