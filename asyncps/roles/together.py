"""Save and load at one worker: all come together, one does the work, all hear how it went.

While it lasts this worker begins no push, and at a load no pull either: what the servers keep
stands still. The scheduler brings the workers together and knows nothing of what they save.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from asyncps.errors import AsyncPSError, ClosedError, ClusterError
from asyncps.protocol import messages
from asyncps.roles import storing
from asyncps.roles.client import Client
from asyncps.roles.restoring import Loading
from asyncps.roles.storing import Path
from asyncps.roles.worker import Worker

log = logging.getLogger(__name__)

Said = messages.Word
_STATES = "_optimizer_states"


async def save(worker: Worker, client: Client, path: Path, *, weights: bool) -> None:
    """Write a checkpoint of a store; all workers call this with the same words.

    Raises:
        Disagreement: They have not, or not pushed each key equally often.
        CheckpointError, OptimizerError: It could not be written; what stood there still does.
        AsyncPSError: The cluster failed.
    """
    verb = "save" if weights else "save" + _STATES
    with _still(client, verb):
        await worker.accepted(client)
        leader = await _come(worker, client, verb, path)

        async def work() -> Said:
            await storing.save(worker, client, path, weights=weights)
            return Said(client.number, leader)

        await _hear(worker, client, leader, work)


async def load(worker: Worker, client: Client, path: Path, *, weights: bool) -> None:
    """Take a store's content from a checkpoint; all workers call this with the same words.

    Raises:
        Disagreement: They have not, or not pushed each key equally often.
        CheckpointError, ShapeMismatch, DtypeMismatch, OptimizerError: It does not fit; nothing has
            changed.
        AsyncPSError: The cluster, or the disk in the midst of it, failed.
    """
    verb = "load" if weights else "load" + _STATES
    with _still(client, verb), Loading(worker, client, path, weights=weights) as loading:
        await worker.accepted(client)
        leader = await _come(worker, client, verb, path)

        async def look() -> Said:
            words = await loading.open()
            return Said(client.number, leader, None, words.optimizer, words.hyper)

        found = await _hear(worker, client, leader, look)
        if found.optimizer is not None:
            await worker.set_optimizer(client, found.optimizer, found.hyper)

        async def work() -> Said:
            await loading.carry_out()
            return Said(client.number, leader)

        await _hear(worker, client, leader, work)


@contextmanager
def _still(client: Client, verb: str) -> Iterator[None]:
    """Begin nothing else that would change the store."""
    if client.still:
        raise ClusterError(f"{verb} while {client.still} of this store is under way")
    client.still = verb
    try:
        yield
    finally:
        client.still = ""


async def _come(worker: Worker, client: Client, verb: str, path: Path) -> int:
    """Wait until all have come with these words; return who leads."""
    text = os.fsencode(path).decode(errors="backslashreplace")  # messages are Unicode
    message = messages.Together(client.number, verb, text)
    answer = await worker.questions.ask(message, f"to {verb}")
    assert isinstance(answer, Said)
    return answer.leader


async def _hear(
    worker: Worker, client: Client, leader: int, work: Callable[[], Awaitable[Said]]
) -> Said:
    """Do the work if it is ours, and tell; else wait for the word of who leads.

    Raises:
        AsyncPSError: What the leader has met, at everybody.
    """
    said, failed = Said(client.number, leader), None
    if worker.node.rank == leader:
        try:
            said = await work()
        except AsyncPSError as error:
            failed = error
        except asyncio.CancelledError:
            _tell(worker, client, leader, ClosedError("its caller gave up waiting", rank=leader))
            raise
        except Exception as error:
            log.exception("a checkpoint failed")
            failed = AsyncPSError(f"a checkpoint failed: {error!r}")
        if failed is not None:
            told = messages.error_to_wire(failed, socket.gethostname())
            said = Said(client.number, leader, told)
    try:
        answer = await worker.questions.ask(said, "to save or load")
    except AsyncPSError:
        if failed is not None:
            raise failed from None
        raise
    assert isinstance(answer, Said)
    return answer


def _tell(worker: Worker, client: Client, leader: int, error: AsyncPSError) -> None:
    """Say it without waiting: the others shall not wait either."""
    asking: asyncio.Future[messages.AnyMessage] = asyncio.get_running_loop().create_future()
    said = Said(client.number, leader, messages.error_to_wire(error))
    worker.node.spawn(worker.questions.carry(said, asking),
                      "word of a checkpoint that was given up")
