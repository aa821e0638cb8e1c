"""Codecs: gradients in few bytes, and back."""

from asyncps.tensor.codecs.base import (
    HEAD_BYTES,
    Codec,
    Elementwise,
    Floats,
    Pieces,
    Take,
    cut_room,
    parse_head,
)
from asyncps.tensor.codecs.options import (
    BY_NUMBER,
    DELTAS,
    KINDS,
    NONE,
    checked,
    made,
    made_for_changes,
    made_of_change,
)
from asyncps.tensor.codecs.skip import Skip
from asyncps.tensor.codecs.sparse import Sparse
from asyncps.tensor.codecs.stateful import Stateful

__all__ = [
    "BY_NUMBER",
    "DELTAS",
    "HEAD_BYTES",
    "KINDS",
    "NONE",
    "Codec",
    "Elementwise",
    "Floats",
    "Pieces",
    "Skip",
    "Sparse",
    "Stateful",
    "Take",
    "checked",
    "cut_room",
    "made",
    "made_for_changes",
    "made_of_change",
    "parse_head",
]
