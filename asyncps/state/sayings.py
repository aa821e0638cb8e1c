"""What workers said, compared and repeated in errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from asyncps.errors import Disagreement, OptimizerError

SHOWN_WORDS = 400  # characters of what a worker said that an error repeats
SHOWN_SAYINGS = 4  # different sayings that an error repeats


def canonical(words: msgspec.Struct | None) -> bytes:
    """Return bytes that are equal for equal words, NaN included, in any order of the names.

    Raises:
        OptimizerError: They are no plain data.
    """
    try:
        return msgspec.msgpack.encode(words, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise OptimizerError(f"hyper-parameters must be plain data: {error}") from None


def spelled(value: msgspec.Struct | None) -> str:
    """Return words as an error repeats them."""
    fields = msgspec.structs.asdict(value) if value is not None else {}
    text = ", ".join(f"{name}={said!r}" for name, said in fields.items() if name != "store")
    return _shortened(text)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_WORDS else text[:SHOWN_WORDS] + "..."


def _by_word(words: msgspec.Struct | None) -> dict[tuple[bool, str], Any]:
    """Return what was said word by word; hyper-parameters are those with True."""
    fields = msgspec.structs.asdict(words) if words is not None else {}
    hyper = fields.pop("hyper", {}) or fields.pop("options", {})
    fields.pop("store", None)
    return {**{(False, name): said for name, said in fields.items()},
            **{(True, str(name)): said for name, said in hyper.items()}}


def _differing(sayings: Sequence[dict[tuple[bool, str], Any]]) -> list[tuple[bool, str]]:
    """Return the words that were not said alike by all, in the order in which they come."""
    names = dict.fromkeys(name for words in sayings for name in words)
    return [name for name in names if len({
        msgspec.msgpack.encode(words[name], order="deterministic") if name in words else b""
        for words in sayings
    }) > 1]


def disagreement(sayings: Sequence[tuple[Sequence[int], msgspec.Struct | None]]) -> Disagreement:
    """Return the error of workers that set different optimizers, or compressions.

    Each saying is (ranks, what these said).

    Only the words that differ are repeated.
    """
    texts = []
    by_word = [_by_word(words) for _, words in sayings]
    differing = _differing(by_word)
    for (ranks, _), words in zip(sayings[:SHOWN_SAYINGS], by_word, strict=False):
        shown = ", ".join(map(str, ranks))[:SHOWN_WORDS]
        who = f"workers {shown}" if len(ranks) > 1 else f"worker {shown}"
        said = ", ".join(f"{name[1]}={words[name]!r}" if name in words else f"no {name[1]}"
                         for name in differing)
        texts.append(f"{who} said {_shortened(said)}")
    kinds = {type(words).__name__ for _, words in sayings}
    what = "optimizers" if kinds == {"SetOptimizer"} else "compressions"
    if len(kinds) > 1:
        what = ("things, some an optimizer (set_optimizer) and some a compression "
                "(set_gradient_compression); all call the same verbs in the same order")
    return Disagreement(f"workers set different {what}: " + "; ".join(texts))
