"""Seeds: what is drawn for one push, by both ends, and what an encoder with memory begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncps.protocol.messages import Key
from asyncps.tensor.codecs import Codec, Stateful
from asyncps.tensor.feedback import KeyCoder
from asyncps_ext.seeds import seed_of

Job = tuple[str, int]  # the name of the job, and the number of the store


def number_of(
    codec: Codec, coder: KeyCoder, clock: int, undo: list[Callable[[], None]]
) -> int:
    """Return the number of a push, by its round, if something is to be drawn for it.

    To be called for each push, those too that are skipped: it counts what has not begun.

    Args:
        codec, coder: Of the key.
        clock: Of the key.
        undo: What is to be called if it is not sent.
    """
    if not codec.is_seeded:
        return 0
    undo.append(coder.draws.undo)
    return coder.draws.next(clock)


def of_chunks(
    codec: Codec, number: int, job: Job, key: Key, begins: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the seed that the head of each chunk has, and the one that it is encoded with.

    Args:
        codec: Of the key.
        number: Of the push.
        job, key: Whose.
        begins: The first element of each chunk; of a table the first row at each server.
    """
    if codec.is_seeded:
        heads = [seed_of(*job, key, number, begin) for begin in begins]
        return heads, [seed_of(head, 0) for head in heads]
    return [0] * len(begins), _of_keys(codec, job, [key]) * len(begins)


def of_rows(
    codec: Codec, numbers: Sequence[int], job: Job, unit: int, rows: Sequence[int],
    keys: Sequence[Key],
) -> tuple[list[int], list[int]]:
    """Return the seed that the head of each row's frame has, and the one it is encoded with.

    Rows of one number may share a frame.

    Args:
        codec: Of them all.
        numbers, rows, keys: Of each row.
        job, unit: Where they are.
    """
    if codec.is_seeded:
        frames = [seed_of(*job, unit, number) for number in numbers]
        return frames, [seed_of(*each) for each in zip(frames, rows, strict=True)]
    return [0] * len(rows), _of_keys(codec, job, keys)


def _of_keys(codec: Codec, job: Job, keys: Sequence[Key]) -> list[int]:
    """Return for each key one that is the same at all workers and of all its pushes."""
    if isinstance(codec, Stateful):
        return [seed_of(*job, key) for key in keys]
    return [0] * len(keys)
