"""Gradients that are not finite: refused at their worker, or their round is skipped for all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np

from asyncps.errors import TensorError
from asyncps.protocol.messages import Key
from asyncps.tensor.codecs import Codec, Floats
from asyncps.tensor.feedback import KeyCoder

log = logging.getLogger(__name__)

Count = Callable[[], None]  # counts a gradient that is skipped, and warns of it


def is_skipped(
    coder: KeyCoder, g: Floats, key: Key, rank: int, *, skip: bool, codec: Codec | None = None
) -> Count | None:
    """Tell whether a gradient, on top of what was not sent, is none that can be sent.

    Args:
        coder: Of the key.
        g: float32, the gradient.
        key, rank: Whose.
        skip: Say so; else it is an error.
        codec: By which it is to be encoded, if that keeps more than what is not sent.

    Returns:
        What counts it, once it is skipped: the call may still be refused. None if it is finite.

    Raises:
        TensorError: It is not finite, and nobody said that it may be skipped.
    """
    bad, at = coder.count_nonfinite(g, codec)
    return is_told(coder, g, coder.residual, bad, at, key, rank, skip=skip) if bad else None


def is_told(
    coder: KeyCoder, g: Floats, residual: Floats | None, bad: int, at: int, key: Key, rank: int, *,
    skip: bool,
) -> Count:
    """Tell of a gradient that is not finite; returns as `is_skipped`.

    Args:
        coder, g, key, rank, skip: As `is_skipped` has them.
        residual: What was not sent, element by element of g.
        bad: How many values are not finite.
        at: The first.

    Raises:
        TensorError: Nobody said that it may be skipped.
    """
    got = f"{bad} of {g.size} values, the first at {at}: {g[at]}"
    if np.isfinite(g[at]) and residual is not None:
        got += f" beside {residual[at]} that was not sent yet"
    if not skip:
        raise TensorError("a gradient of a key with a compression is not finite", key=key,
                          rank=rank, expected="no NaN and no infinity", got=got)
    return partial(_count, coder, key, rank, got)


def _count(coder: KeyCoder, key: Key, rank: int, got: str) -> None:
    coder.skipped += 1
    if not coder.skipped & (coder.skipped - 1):  # the first, and then fewer and fewer
        log.warning("a gradient of key %r at rank %d is not finite (%s): its round is skipped "
                    "(%d of them so far)", key, rank, got, coder.skipped)
