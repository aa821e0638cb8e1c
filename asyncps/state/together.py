"""Save and load, as the scheduler sees them: all come, one leads, all hear how it went.

Each worker calls in one order: it comes (Together), and then hears the leader's Word once or more.
A worker whose caller gave up before all had come says so as its first word, and all hear that. One
that is out of step all the same is told so with the others, and is in step again after it.
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
            ranks = [rank for rank, _ in calls]
            return [m.Word(coming[0].store, ranks[0], ranks=ranks)] * len(calls)
        texts = [f"worker {rank} said {verb} {path[:SHOWN]!r}"
                 for (verb, path), rank in sorted(said.items(), key=lambda item: item[1])[:4]]
        return _all(calls, Disagreement("workers save or load differently: " + "; ".join(texts)))
    if coming:
        ranks = [rank for rank, words in calls if isinstance(words, m.Together)]
        return _all(calls, Disagreement(
            "workers begin to save or load while others still wait for the end of an earlier one",
            got=f"ranks {ranks}"))
    words = [(rank, word) for rank, word in calls if isinstance(word, m.Word)]
    words.sort(key=lambda said: said[0] != said[1].leader)
    for _, word in words:
        if word.error is not None:
            return [word.error] * len(calls)
    for rank, word in words[:1]:
        if word.leader == rank:
            return [word] * len(calls)
    return _all(calls, ClusterError("the worker that saves or loads has left"))


def _all(calls: Sequence[object], error: AsyncPSError) -> list[m.Message]:
    return [m.error_to_wire(error)] * len(calls)
