"""What workers said, compared and repeated in errors."""

from __future__ import annotations

from collections.abc import Sequence

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
    return text if len(text) <= SHOWN_WORDS else text[:SHOWN_WORDS] + "..."


def disagreement(sayings: Sequence[tuple[Sequence[int], msgspec.Struct | None]]) -> Disagreement:
    """Return the error of workers that set different optimizers: (ranks, what these said)."""
    texts = []
    for ranks, words in sayings[:SHOWN_SAYINGS]:
        shown = ", ".join(map(str, ranks))[:SHOWN_WORDS]
        who = f"workers {shown}" if len(ranks) > 1 else f"worker {shown}"
        texts.append(f"{who} said {spelled(words)}")
    return Disagreement("workers set different optimizers: " + "; ".join(texts))
