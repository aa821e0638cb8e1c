"""What a worker does after all have come to save or load: in step with the others until the end.

One leads and works; the others wait for its word, and stand still meanwhile. A caller that gives
up does not change that: who only waits goes on without its caller, so the leader never reads, or
writes, what somebody pushes to. A leader whose caller gives up says so instead of its next word.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded
from asyncps.protocol import messages
from asyncps.protocol.messages import AnyMessage, Word
from asyncps.roles.client import Client
from asyncps.roles.worker import Worker

log = logging.getLogger(__name__)


class Course:
    """One save or load at one worker.

    Args:
        worker: The worker.
        client: The store, which stands still already: `take` ends that.
        leader: Rank of who works.
        ranks: Who has come, ascending.
    """

    def __init__(
        self, worker: Worker, client: Client, leader: int, ranks: Sequence[int] = ()
    ) -> None:
        self.leader = leader
        self.ranks = ranks
        self._worker = worker
        self._client = client
        self.leads = worker.node.rank == leader
        self._at_work: asyncio.Future[Word] | None = None
        self._given_up: AsyncPSError | None = None
        self._still = True
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def word(self, course: int = 0) -> Word:
        """Return a word that all is well, and what parcels are called, if any are carried."""
        return Word(self._client.number, self.leader, course=course)

    async def take(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Go through all steps, and wait for their end.

        Raises:
            DeadlineExceeded: The others did not come or the leader did not end within `round_s`.
            AsyncPSError: What the steps raise.
        """
        self._worker.node.spawn(self._go(steps), "a save or load")
        try:
            await asyncio.wait({self._end})
        except asyncio.CancelledError:
            if self.leads:
                await self._give_up()
            raise
        self._end.result()

    async def hear(
        self, work: Callable[[], Awaitable[Word]] | None = None, *,
        refusal: AsyncPSError | None = None,
    ) -> Word:
        """Come to the next meeting; return the leader's word.

        Args:
            work: What the leader does before.
            refusal: Why this worker cannot go on: everybody hears it.

        Raises:
            AsyncPSError: Somebody's error, at everybody.
        """
        said, failed = self.word(), refusal
        if self.leads and failed is None:
            failed = self._given_up
            if failed is None and work is not None:
                try:
                    said = await self._work(work)
                except AsyncPSError as error:
                    failed = error
        if failed is not None:
            told = messages.error_to_wire(failed, socket.gethostname())
            said = Word(self._client.number, self.leader, told)
        try:
            answer = await self.ask(said, "to save or load")
        except AsyncPSError:
            if failed is not None:
                raise failed from None
            raise
        assert isinstance(answer, Word)
        return answer

    async def ask(self, message: messages.Message, tail: str) -> AnyMessage:
        """Ask what waits for the others; the caller hears of a deadline, and this goes on."""
        return await self._worker.questions.ask(message, tail, late=self._late)

    async def _go(self, steps: Callable[[], Awaitable[None]]) -> None:
        try:
            await steps()
        except AsyncPSError as error:
            self._finish(error)
        except asyncio.CancelledError:
            self._finish(ClosedError("the worker is closed"))
            raise
        except Exception as error:
            log.exception("a save or load failed")
            self._finish(AsyncPSError(f"a save or load failed: {error!r}"))
        else:
            self._finish(None)

    async def _work(self, work: Callable[[], Awaitable[Word]]) -> Word:
        """Work, unless the caller gives up.

        Raises:
            AsyncPSError: Of whatever kind the failure was.
        """
        self._at_work = asyncio.ensure_future(work())
        try:
            return await self._at_work
        except AsyncPSError:
            raise
        except asyncio.CancelledError:
            if self._given_up is None:  # the whole worker ends
                raise
            raise self._given_up from None
        except Exception as error:
            log.exception("a checkpoint failed")
            raise AsyncPSError(f"a checkpoint failed: {error!r}") from error
        finally:
            self._at_work = None

    async def _give_up(self) -> None:
        self._given_up = ClosedError("its caller gave up waiting", rank=self.leader)
        work = self._at_work
        if work is not None:
            work.cancel()
            await asyncio.wait({work})
        self._release()

    def _late(self, error: DeadlineExceeded) -> None:
        """Our caller hears that it took too long. Who leads is not at work while it asks."""
        if self.leads:
            self._given_up = error
            self._release()
        self._tell(error)

    def _finish(self, error: AsyncPSError | None) -> None:
        self._release()
        self._tell(error)

    def _tell(self, error: AsyncPSError | None) -> None:
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)
            self._end.exception()  # it may be that nobody waits any more

    def _release(self) -> None:
        if self._still:
            self._still = False
            self._client.still = ""
