"""Codecs: gradients in few bytes, and back."""

from asyncps.tensor.codecs.base import HEAD_BYTES, Codec, Floats, Pieces, Take, parse_head
from asyncps.tensor.codecs.options import BY_NUMBER, KINDS, checked, made

__all__ = [
    "BY_NUMBER", "HEAD_BYTES", "KINDS", "Codec", "Floats", "Pieces", "Take", "checked", "made",
    "parse_head",
]
