"""The word that a worker has no gradient for a round: nobody's counts then."""

from __future__ import annotations

from asyncps.tensor.codecs.base import Codec, Floats
from asyncps.tensor.pool import Bytes


class Skip(Codec):
    """No bytes. It is none that a user chooses; a round with one of these changes nothing."""

    name, number = "skip", 255
    is_skip = True

    def nbytes(self, n: int) -> int:
        """As `Codec.nbytes`: none."""
        return 0

    def add(self, acc: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.add`."""

    def decode(self, out: Floats, payload: Bytes, seed: int) -> None:
        """As `Codec.decode`."""
        out[:] = 0
