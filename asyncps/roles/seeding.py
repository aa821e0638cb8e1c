"""Seeds: what is drawn for one push, by both ends, and what an encoder with memory begins with."""

from __future__ import annotations

from collections.abc import Sequence

from asyncps.protocol.messages import Key
from asyncps.tensor.codecs import Codec, Stateful
from asyncps.tensor.feedback import KeyCoder
from asyncps_ext.seeds import seed_of

Job = tuple[str, int]  # the name of the job, and the number of the store


def of_chunks(
    codec: Codec, coder: KeyCoder, job: Job, key: Key, begins: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the seed that the head of each chunk has, and the one that it is encoded with.

    Args:
        codec, coder: Of the key.
        job, key: Whose.
        begins: The first element of each chunk; of a table the first row at each server.
    """
    if codec.is_seeded:
        push = coder.next_push()
        heads = [seed_of(*job, key, push, begin) for begin in begins]
        return heads, [seed_of(head, 0) for head in heads]
    return [0] * len(begins), _of_keys(codec, job, [key]) * len(begins)


def of_rows(
    codec: Codec, coders: Sequence[KeyCoder], job: Job, unit: int, rows: Sequence[int],
    keys: Sequence[Key],
) -> tuple[int, list[int]]:
    """Return the seed that the head of a slab's frame has, and those its rows are encoded with.

    Args:
        codec: Of them all.
        coders, rows, keys: Of each row.
        job, unit: Where they are.
    """
    if codec.is_seeded:
        frame = seed_of(*job, unit, max(coder.next_push() for coder in coders))
        return frame, [seed_of(frame, row) for row in rows]
    return 0, _of_keys(codec, job, keys)


def _of_keys(codec: Codec, job: Job, keys: Sequence[Key]) -> list[int]:
    """Return for each key one that is the same at all workers and of all its pushes."""
    if isinstance(codec, Stateful):
        return [seed_of(*job, key) for key in keys]
    return [0] * len(keys)
