"""Save and load, as the scheduler sees them: all come, one leads, all hear how it went.

Each worker calls in one order: it comes (Together), and then hears the leader's Word once or more.
A worker that gave up between two of them is one call behind the others; they all hear of that at
once, and after it are in step again.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncps.errors import AsyncPSError, ClusterError, Disagreement
from asyncps.protocol import messages as m

SHOWN = 200  # characters of a path that an error repeats


def conclude(calls: Sequence[tuple[int, object]]) -> list[m.Message]:
    """Return the answer to each call of a meeting that all have come to.

    Args:
        calls: (rank, Together or Word), ranks ascending.
    """
    if not calls:
        return []
    coming = [words for _, words in calls if isinstance(words, m.Together)]
    if len(coming) == len(calls):
        said = {(words.verb, words.path): rank for (rank, _), words in
                zip(reversed(calls), reversed(coming), strict=True)}
        if len(said) == 1:
            return [m.Word(coming[0].store, calls[0][0])] * len(calls)
        texts = [f"worker {rank} said {verb} {path[:SHOWN]!r}"
                 for (verb, path), rank in sorted(said.items(), key=lambda item: item[1])[:4]]
        return _all(calls, Disagreement("workers save or load differently: " + "; ".join(texts)))
    if coming:
        ranks = [rank for rank, words in calls if isinstance(words, m.Together)]
        return _all(calls, Disagreement(
            "workers begin to save or load while others still wait for the end of an earlier one",
            got=f"ranks {ranks}"))
    for rank, word in calls:
        if isinstance(word, m.Word) and word.leader == rank:
            return [word.error or word] * len(calls)
    return _all(calls, ClusterError("the worker that saves or loads has left"))


def _all(calls: Sequence[object], error: AsyncPSError) -> list[m.Message]:
    return [m.error_to_wire(error)] * len(calls)
