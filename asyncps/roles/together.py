"""Save and load at one worker: all come together, one does the work, all hear how it went.

While it lasts this worker begins no push, and at a load no pull either: what the servers keep
stands still. The scheduler brings the workers together and knows nothing of what they save.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ClusterError,
    ConfigError,
    OptimizerError,
)
from asyncps.protocol import messages
from asyncps.protocol.messages import Word
from asyncps.protocol.saving import MAX_PATH
from asyncps.roles import storing
from asyncps.roles.client import Client
from asyncps.roles.course import Course
from asyncps.roles.restoring import Loading
from asyncps.roles.storing import Path
from asyncps.roles.worker import Worker

log = logging.getLogger(__name__)

_STATES = "_optimizer_states"


async def save(
    worker: Worker, client: Client, path: Path, *, weights: bool,
    refusal: Callable[[], AsyncPSError | None] = lambda: None,
) -> None:
    """Write a checkpoint of a store; all workers call this with the same words.

    Args:
        worker, client: Whose.
        path: On the host of the worker that writes.
        weights: Not only what the optimizer keeps.
        refusal: Returns what this worker has against it.

    Raises:
        Disagreement: They have not, or not pushed each key equally often.
        CheckpointError, OptimizerError: It could not be written.
        AsyncPSError: The cluster failed.
    """
    course = await _come(worker, client, "save" if weights else "save" + _STATES, path)

    async def work() -> Word:
        await storing.save(worker, client, path, weights=weights)
        return course.word()

    async def steps() -> None:
        # All are here and stand still, whatever becomes of their callers.
        await course.hear(refusal=_asked(refusal))
        await course.hear(work)

    await course.take(steps)


async def load(
    worker: Worker, client: Client, path: Path, *, weights: bool,
    refusal: Callable[[str | None], AsyncPSError | None] = lambda optimizer: None,
) -> None:
    """Take a store's content from a checkpoint; all workers call this with the same words.

    Args:
        worker, client: Whose.
        path: On the host of the worker that reads.
        weights: Not only what the optimizer keeps.
        refusal: Returns what this worker has against the optimizer that it brings, if any.

    Raises:
        Disagreement: They have not, or not pushed each key equally often.
        CheckpointError, ShapeMismatch, DtypeMismatch, OptimizerError: It does not fit; nothing has
            changed.
        AsyncPSError: The cluster, or the disk in the midst of it, failed.
    """
    course = await _come(worker, client, "load" if weights else "load" + _STATES, path)

    async def steps() -> None:
        await course.hear(refusal=_asked(refusal, None))
        async with Loading(worker, client, path, weights=weights) as loading:

            async def look() -> Word:
                words = await loading.open()
                return Word(client.number, course.leader, None, words.optimizer, words.hyper)

            found = await course.hear(look)
            unknown = None if found.optimizer is None else _unknown(found.optimizer)
            await course.hear(refusal=unknown or _asked(refusal, found.optimizer))
            if found.optimizer is not None:
                await _use_optimizer(course, client, found.optimizer, found.hyper)

            async def work() -> Word:
                await loading.carry_out()
                return course.word()

            await course.hear(work)

    await course.take(steps)


async def _come(worker: Worker, client: Client, verb: str, path: Path) -> Course:
    """Begin nothing else that would change the store, and wait until all have come."""
    if client.still:
        raise ClusterError(f"{verb} while {client.still} of this store is under way")
    text = os.fsencode(path).decode(errors="backslashreplace")  # messages are Unicode
    if len(text) > MAX_PATH:
        raise ConfigError("a path that is too long", expected=f"at most {MAX_PATH} characters",
                          got=len(text))
    client.still = verb
    try:
        await worker.accepted(client)
        message = messages.Together(client.number, verb, text)

        def unheard() -> None:
            # All have come now, but our caller has gone, and may push: the others must not begin.
            _give_up(worker, client)

        answer = await worker.questions.ask(message, f"to {verb}", unheard=unheard)
    except BaseException:
        client.still = ""
        raise
    assert isinstance(answer, Word)
    return Course(worker, client, answer.leader)


def _give_up(worker: Worker, client: Client) -> None:
    error = ClosedError("its caller gave up waiting", rank=worker.node.rank)
    said = Word(client.number, -1, messages.error_to_wire(error))
    worker.node.spawn(worker.questions.tell(said), "word of a checkpoint that was given up")


def _asked(refusal: Callable[..., AsyncPSError | None], *words: Any) -> AsyncPSError | None:
    """Ask for what is against it; whatever comes of that, all workers must hear it."""
    try:
        return refusal(*words)
    except AsyncPSError as error:
        return error
    except Exception as error:
        log.exception("asking for what is against a save or load failed")
        return AsyncPSError(f"asking for what is against it failed: {error!r}")


def _unknown(name: str) -> AsyncPSError | None:
    """What this worker has against an optimizer: each knows its own, and all must hear of it."""
    try:
        optim.by_name(name)
    except OptimizerError as error:
        return error
    return None


async def _use_optimizer(course: Course, client: Client, name: str, hyper: dict[str, object]
                         ) -> None:
    whole = optim.by_name(name).whole_keys
    message = messages.SetOptimizer(client.number, name, hyper, whole)
    await course.ask(message, "to set the optimizer")
    client.use_optimizer(name, hyper)
