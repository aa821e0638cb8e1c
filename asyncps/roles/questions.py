"""What a worker asks the scheduler that is answered when others have come: barriers and the like.

A wait tells now and then whom it waits for, and at its end as well: the scheduler knows.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from asyncps.config import Config
from asyncps.errors import AsyncPSError, ConfigError, DeadlineExceeded
from asyncps.protocol import messages
from asyncps.protocol.messages import AnyMessage
from asyncps.roles.node import Node
from asyncps.roles.operation import result_of

log = logging.getLogger(__name__)

_ASK_S = 5.0  # to be told whom we wait for; without it the deadline's error says less

# What the scheduler calls the things that workers wait for.
_WHAT = {
    messages.Barrier: "barrier", messages.SetOptimizer: "optimizer",
    messages.SetCompression: "optimizer", messages.Await: "init",
    messages.Together: "checkpoint", messages.Word: "checkpoint", messages.JoinStore: "join",
}


class Questions:
    """The questions of one worker that wait for other workers.

    Args:
        config: The deadlines.
        node: The way to the scheduler.
    """

    def __init__(self, config: Config, node: Node) -> None:
        self._config = config
        self._node = node
        self._asked: dict[
            tuple[type, int], tuple[messages.Message, asyncio.Future[AnyMessage]]
        ] = {}  # whose answers nobody has taken
        self._waiting: dict[asyncio.Future[AnyMessage], int] = {}  # how many callers

    async def ask(
        self, message: messages.Message, tail: str, *, limit_s: float | None = None,
        late: Callable[[DeadlineExceeded], None] | None = None,
        unheard: Callable[[], None] | None = None,
    ) -> AnyMessage:
        """Ask something that waits for others.

        A question whose deadline passed, or whose caller gave up, stays asked, for it is counted;
        the same question again gets the same answer, also one that has come meanwhile (but not one
        that `unheard` was called for).

        Args:
            message: The question.
            tail: What the others have to do, for messages: "at the barrier".
            limit_s: The deadline in seconds; default `round_s`.
            late: Told of a deadline that has passed, once; then the wait goes on until the answer.
            unheard: Called if there is an answer, and no error, when everybody who waited for it
                has given up.

        Raises:
            DeadlineExceeded: It names the ranks that have not come.
            AsyncPSError: The answer is an error, or the cluster failed.
        """
        limit_s = self._config.round_s if limit_s is None else limit_s
        asking = self._begin(message, unheard)
        self._waiting[asking] = self._waiting.get(asking, 0) + 1
        try:
            return await self._wait(message, asking, tail, limit_s, late)
        except BaseException:
            # It came while we were told to give up: nobody else hears it.
            if self._waiting[asking] == 1 and unheard is not None and _is_good(asking):
                unheard()
            raise
        finally:
            self._waiting[asking] -= 1
            if not self._waiting[asking]:
                del self._waiting[asking]

    async def _wait(
        self, message: messages.Message, asking: asyncio.Future[AnyMessage], tail: str,
        limit_s: float, late: Callable[[DeadlineExceeded], None] | None,
    ) -> AnyMessage:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            left_s = max(0.0, began + limit_s - loop.time())
            done, _ = await asyncio.wait(
                {asking}, timeout=min(left_s, self._config.round_warning_s)
            )
            if done:
                return self._take(asking)
            over = loop.time() - began >= limit_s
            whom = await self._whom(message)
            if asking.done():
                return self._take(asking)
            if over:
                error = DeadlineExceeded(f"waited {limit_s:g} s for {whom} {tail}")
                if late is None:
                    raise error
                late(error)
                limit_s = math.inf
            log.warning("worker %d has waited %.0f s for %s %s", self._node.rank,
                        loop.time() - began, whom, tail)

    async def carry(
        self, message: messages.Message, asking: asyncio.Future[AnyMessage]
    ) -> None:
        """Ask, and put the answer where it is waited for."""
        try:
            answer = await self._node.ask(message)
        except Exception as error:
            if not isinstance(error, AsyncPSError):
                log.exception("a question failed")
                error = AsyncPSError(f"a question failed: {error!r}")
            asking.set_exception(error)
            asking.exception()  # it may be that nobody waits any more
        else:
            asking.set_result(answer)

    async def tell(self, message: messages.Message) -> None:
        """Say something that is counted as a question; its answer is of no interest."""
        await self.carry(message, asyncio.get_running_loop().create_future())

    def _begin(
        self, message: messages.Message, unheard: Callable[[], None] | None
    ) -> asyncio.Future[AnyMessage]:
        kind = (type(message), getattr(message, "store", 0))
        if kind in self._asked:
            asked, asking = self._asked[kind]
            # A Word is said once for each save: the answer to an earlier one tells of that.
            kept = unheard is None and not isinstance(message, messages.Word)
            if asked == message and (kept or not asking.done()):
                return asking
            if not asking.done():
                raise ConfigError("an earlier call of this kind still waits for the others",
                                  expected=asked, got=message)
        asking = asyncio.get_running_loop().create_future()
        self._asked[kind] = (message, asking)
        if unheard is not None:
            asking.add_done_callback(
                lambda done: unheard() if done not in self._waiting and _is_good(done) else None
            )
        self._node.spawn(self.carry(message, asking), f"a question of worker {self._node.rank}")
        return asking

    def _take(self, asking: asyncio.Future[AnyMessage]) -> AnyMessage:
        """Return an answer, or raise it; the next question of its kind is a new one."""
        for kind in [kind for kind, (_, other) in self._asked.items() if other is asking]:
            del self._asked[kind]
        return result_of(asking)

    async def _whom(self, message: messages.Message) -> str:
        question = messages.AskAbsent(getattr(message, "store", 0), _WHAT[type(message)])
        try:
            async with asyncio.timeout(_ASK_S):
                answer = await self._node.ask(question)
        except (TimeoutError, AsyncPSError):
            return "others"  # the cluster failed: whoever waits hears of that
        ranks = answer.ranks if isinstance(answer, messages.MissingRanks) else []
        return f"ranks {ranks}" if ranks else "the servers"


def _is_good(asking: asyncio.Future[AnyMessage]) -> bool:
    return asking.done() and not asking.cancelled() and asking.exception() is None
