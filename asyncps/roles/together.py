"""Save and load at one worker: all come together, one does the work, all hear how it went.

While it lasts this worker begins no push, and at a load no pull either: what the servers keep
stands still. The scheduler brings the workers together and knows nothing of what they save.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from asyncps import optim
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ClusterError,
    ConfigError,
    OptimizerError,
)
from asyncps.protocol import messages
from asyncps.protocol.messages import Key, Word
from asyncps.protocol.saving import MAX_PATH
from asyncps.roles import regiving, storing
from asyncps.roles.client import Client
from asyncps.roles.coders import Kept
from asyncps.roles.course import Course
from asyncps.roles.keeping import Keeping, give
from asyncps.roles.restoring import Loading
from asyncps.roles.storing import Path
from asyncps.roles.worker import Worker

T = TypeVar("T")

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

    carried = 0  # what parcels are called, if there are any

    async def begin() -> Word:
        return course.word(_named() if weights and client.compression is not None else 0)

    async def work() -> Word:
        if not carried:
            await storing.save(worker, client, path, weights=weights)
            return course.word()
        with Keeping(worker, client, course.ranks, carried) as keeping:
            await storing.save(worker, client, path, weights=weights, keeping=keeping)
        return course.word()

    async def steps() -> None:
        nonlocal carried
        # All are here and stand still, whatever becomes of their callers.
        carried = (await course.hear(begin, refusal=_asked(refusal))).course
        if not carried or course.leads:
            await course.hear(work)
            return
        async with _beside(give(worker, client, course.leader, carried)):
            await course.hear()

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
                named = 0 if loading.regiving is None else _named()
                return Word(client.number, course.leader, None, words.optimizer, words.hyper,
                            course=named)

            found = await course.hear(look)
            unknown = None if found.optimizer is None else _unknown(
                found.optimizer, found.hyper, client)
            await course.hear(refusal=unknown or _asked(refusal, found.optimizer))
            if found.optimizer is not None:
                await _use_optimizer(course, client, found.optimizer, found.hyper)

            kept: dict[Key, Kept] = {}

            async def work() -> Word:
                nonlocal kept
                await loading.carry_out()
                kept = await loading.give_back(course.ranks, found.course)
                return course.word()

            if course.leads or not found.course:
                await course.hear(work)
            else:
                async with _beside(
                    regiving.collect(worker, client, course.leader, found.course)
                ) as collecting:
                    await course.hear()
                    kept = await collecting
            if weights:
                regiving.install(worker, client, kept, carried=bool(found.course))

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
        # Other threads encode, which changes what is saved or loaded. From now on they do not; what
        # they have encoded before is refused and put back, or on its way already.
        await client.encodings.over(worker.config.round_s)
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
    return Course(worker, client, answer.leader, answer.ranks)


def _named() -> int:
    """Return a number that no other course of the job has."""
    return 1 + secrets.randbits(62)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Do something beside; at the end it has ended too, one way or another.

    Whoever leads hears if it fails, since it waits for what this brings.
    """
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is not None:
            log.warning("what was not sent yet could not be carried: %s", task.exception())


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


def _unknown(name: str, hyper: Mapping[str, Any], client: Client) -> AsyncPSError | None:
    """What this worker has against an optimizer: each knows its own, and all must hear of it."""
    try:
        optim.by_name(name)
        client.check_momentum(hyper)
    except (ConfigError, OptimizerError) as error:
        return error
    return None


async def _use_optimizer(course: Course, client: Client, name: str, hyper: dict[str, object]
                         ) -> None:
    whole = optim.by_name(name).whole_keys
    message = messages.SetOptimizer(client.number, name, hyper, whole)
    await course.ask(message, "to set the optimizer")
    client.use_optimizer(name, hyper)
