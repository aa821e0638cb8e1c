"""What is kept of a key at a worker: whether its codec paid."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps.tensor import codecs
from asyncps.tensor.feedback import KeyCoder


def encoded(size: int) -> KeyCoder:
    """A key that was pushed once, in f16."""
    coder = KeyCoder(size)
    codec = codecs.made(codecs.checked({"type": "f16"}))
    g = np.ones(size, "f4")
    coder.encode(codec, g, g.nbytes, [(0, size)], lambda n: np.empty(n, "u1"), [0])
    return coder


@pytest.mark.parametrize(("link_bytes_s", "paid"), [
    (None, None), (12.5e6, True), (99e6, True), (101e6, False), (2e9, False),
])  # fmt: skip
def test_a_codec_pays_if_what_it_saved_would_have_taken_longer(
    link_bytes_s: float | None, paid: bool | None
) -> None:
    coder = encoded(500_000)  # a million bytes saved
    coder.encode_s = 0.01
    assert coder.paid(link_bytes_s) is paid


def test_nothing_is_said_before_the_first_push() -> None:
    assert KeyCoder(5).paid(1e6) is None


def test_a_codec_that_saves_nothing_has_not_paid() -> None:
    coder = KeyCoder(1)
    codec = codecs.made(codecs.checked({"type": "topk", "ratio": 1.0}))
    coder.encode(codec, np.ones(1, "f4"), 4, [(0, 1)], lambda n: np.empty(n, "u1"), [0])
    assert coder.sent_bytes == 8
    assert coder.paid(1.0) is False


@pytest.mark.parametrize("has_residual", [True, False])
def test_numbers_go_on_when_what_was_kept_is_taken_out(has_residual: bool) -> None:
    """Workers that had kept nothing take nothing out, and all must draw the same places."""
    coder = KeyCoder(3)
    assert coder.draws.next() == 1
    if has_residual:
        coder.residual = np.ones(3, "f4")
    assert (coder.take_out() is not None) is has_residual
    assert coder.draws.next() == 2


def test_a_codec_with_memory_begins_anew_when_what_was_kept_was_taken_out() -> None:
    coder = KeyCoder(8)
    codec = codecs.made(codecs.checked({"type": "dgc", "ratio": 0.5, "momentum": 0.5}))
    for _ in range(2):
        for push in (1, 2):
            coder.encode(codec, np.ones(8, "f4"), 32, [(0, 8)], lambda n: np.empty(n, "u1"), [0],
                         shape=(8,))
            assert coder.pushes == push
        coder.take_out()
