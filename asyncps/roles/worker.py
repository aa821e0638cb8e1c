"""The worker: links to all servers, stores, and the deadlines of what it asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from asyncps import optim
from asyncps.config import Config
from asyncps.errors import AsyncPSError, ClosedError, DeadlineExceeded, WorkerLost
from asyncps.observe.endpoint import Endpoint
from asyncps.protocol import messages
from asyncps.protocol.messages import AnyMessage, Key, KeySpec, Member, Placed, StoreConfig
from asyncps.roles import reporting
from asyncps.roles.client import Client
from asyncps.roles.compressing import Compression
from asyncps.roles.deadlines import Deadlines, cut, take_back
from asyncps.roles.initialising import initialise
from asyncps.roles.joining import join, learn
from asyncps.roles.lane import Lanes
from asyncps.roles.mesh import Mesh
from asyncps.roles.metering import start_metrics
from asyncps.roles.node import Node, Spawn
from asyncps.roles.operation import Operation, result_of, why_failed
from asyncps.roles.questions import Questions
from asyncps.roles.rules import Keys, Words, check_store
from asyncps.roles.shortcut import Shortcut
from asyncps.tensor.threads import threads_of
from asyncps.transport.connection import Connection
from asyncps.transport.link import Link
from asyncps.transport.network import Network
from asyncps.transport.pace import Paces
from asyncps.transport.polling import Polling

log = logging.getLogger(__name__)


class Worker:
    """One worker of a cluster. Everything runs on its loop.

    Args:
        config: The settings of this process.
        network: How to reach the others.
        spawn: Starts a named task in the task group that owns this role.
        polls: Look for answers before sleeping: nobody but the loop needs its thread.
        meets: Be connected with all other workers too, for collective calls.
    """

    def __init__(
        self, config: Config, network: Network, spawn: Spawn, *, polls: bool = False,
        meets: bool = False,
    ) -> None:
        self.config = config
        self._polling = Polling(config.poll_us * 1e-6) if polls else None
        self.node = Node(config, "worker", network, spawn)
        self.node.on_failure.append(self._failed)
        self.node.report = self.report
        self.links: list[Link] = []
        self.paces = Paces()  # of the links to servers
        self.clients: dict[str, Client] = {}
        self.lanes = Lanes(self.node)
        self.questions = Questions(config, self.node)
        self._metrics: Endpoint | None = None
        self._closed = False
        self.mesh = Mesh(self.node) if meets else None

    async def start(self) -> None:
        """Join the cluster and connect to every server.

        Raises:
            AsyncPSError: It names what went wrong.
        """
        node = self.node
        local = await node.reach_scheduler()
        await node.join(*await self.mesh.listen(local) if self.mesh is not None else ())
        servers = sorted((m for m in node.members if m.role == "server"), key=lambda m: m.rank)
        self.links = [self._link_to(member) for member in servers]
        for link in self.links:
            link.start()
        for link in self.links:
            deadlines = Deadlines(
                self.config, link, self.ask_server,
                lambda: self._closed or node.failure is not None,
            )
            node.spawn(deadlines.watch(), f"deadlines of {link.name} at worker {node.rank}")
        self._metrics = start_metrics(self.config, "worker", node.rank, self.report)
        if self.mesh is not None:
            await self.mesh.connect(node.members)

    async def close(self) -> None:
        """Leave for good."""
        if self._closed:
            return
        if self.mesh is not None:
            await self.mesh.close()
        if self._close_links():
            await self.node.leave()

    def abandon(self) -> None:
        """Go without a goodbye: rounds may be half pushed, so the others must hear of a loss."""
        if self.mesh is not None:
            self.mesh.kill(ClosedError("this rank has gone"))
        if self._close_links():
            self.node.abandon()

    def _close_links(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        for client in self.clients.values():
            client.closed = True
        if self._metrics is not None:
            self._metrics.close()
        self.lanes.close()
        error = ClosedError("the store is closed")
        self._end_links(error)
        return True

    def _end_links(self, error: AsyncPSError) -> None:
        for link in self.links:
            link.kill(error)
        for client in self.clients.values():
            client.fail(error)

    def sockets(self) -> list[Any]:
        """Return the sockets of all connections, for a forked child to close."""
        links = [self.node.link, *self.links]
        found = [link.connection.socket() for link in links if link.connection is not None]
        found += [] if self.mesh is None else self.mesh.sockets()
        return [sock for sock in found if sock is not None] + self.lanes.sockets()

    def report(self) -> messages.Report:
        """Say how this worker is."""
        return reporting.of_worker(self, self._metrics.port if self._metrics else 0)

    def whom_we_wait_for(self) -> str:
        """Name the servers that owe an answer, for messages."""
        return ", ".join(link.name for link in self.links if link.unanswered) or "the servers"

    # ---- stores ----

    async def open_store(self, name: str, config: StoreConfig) -> Client:
        """Open a store by name; the same name is the same store."""
        client = self.clients.get(name)
        if client is not None and client.config == config:
            return client
        answer = await self.node.ask(messages.OpenStore(name, config))
        assert isinstance(answer, messages.StoreOpened)
        # Another thread may have opened it meanwhile, and pushed: its clocks are the store's.
        client = self.clients.get(name)
        if client is None or client.number != answer.store:
            client = self.clients[name] = Client(
                answer.store, config, self.node.incarnation, self.links,
                asyncio.get_running_loop().time, self.give_up,
            )
        return client

    async def close_store(self, client: Client) -> None:
        """Have no more to do with a store; once all workers say so its values are forgotten."""
        client.closed = True
        for name in [name for name, found in self.clients.items() if found is client]:
            del self.clients[name]
        if self.node.failure is None and not self._closed:
            await self.node.ask(messages.CloseStore(client.number))

    def shortcut(self, client: Client) -> Shortcut | None:
        """Return the lanes of a store that is used by blocking calls, if there can be any."""
        if not self.node.network.has_sockets:
            return None
        return Shortcut(self.node, client, self.lanes)

    async def init(
        self, client: Client, specs: Sequence[KeySpec], values: Sequence[Any]
    ) -> None:
        """Initialise keys: rank 0's values count for everyone; see `initialise`."""
        await initialise(self, client, specs, values)

    async def look_up(self, client: Client, keys: Sequence[Key]) -> None:
        """Learn keys that others initialised.

        Raises:
            UnknownKey: Nobody did.
        """
        answer = await self.node.ask(messages.Lookup(client.number, list(keys)))
        assert isinstance(answer, Placed)
        await learn(client, answer.placements, self.ask_server)

    async def meet(self) -> None:
        """Wait for all workers of the job, of whatever store, or without any."""
        await self.questions.ask(messages.Barrier(0), "at the barrier")

    async def barrier(self, client: Client) -> None:
        """Wait for all workers."""
        await self.questions.ask(messages.Barrier(client.number), "at the barrier")

    async def join(self, client: Client) -> int:
        """Be waited for no longer until all workers have joined; return the last of them."""
        return await join(self, client, self.ask_server)

    async def set_optimizer(
        self, client: Client, name: str, hyper: dict[str, Any], *, keep: bool = False
    ) -> None:
        """Move the update to the servers; every worker says the same."""
        whole = optim.by_name(name).whole_keys
        message = messages.SetOptimizer(client.number, name, hyper, whole, keep)
        await self.questions.ask(message, "to set the optimizer")
        client.use_optimizer(name, hyper)

    async def set_compression(
        self, client: Client, keys: Keys, words: Words, *, default: bool = False
    ) -> None:
        """Encode pushes of some keys from now on; every worker says the same."""
        check_store(client.config, words)
        message = messages.SetCompression(client.number, keys, words, default)
        await self.questions.ask(message, "to set the compression")
        compression = client.compression or Compression(
            self.node.rank, self.node.num_workers, self.config.job, client.number,
            threads_of(self.config.kernel_threads),
        )
        compression.add(keys, words, default=default)
        client.use_compression(compression)

    async def set_hyper(self, client: Client, values: dict[str, Any]) -> None:
        """Change hyper-parameters; pushes from now on carry the new version."""
        client.staging.finish()
        async with client.changing:  # the next change is one of what this one makes
            hyper, version = {**client.hyper, **values}, client.next_hyper_version()
            await self.ask_all(messages.SetHyper(client.number, version, hyper))
            if client.hyper_asked == version:  # no other optimizer was set meanwhile
                client.hyper, client.hyper_version = hyper, version

    async def statistics(self, client: Client) -> list[messages.ServerStatistics]:
        """Ask every server what it did for a store."""
        found = await self.ask_all(messages.AskStatistics(client.number))
        return [answer for answer in found if isinstance(answer, messages.ServerStatistics)]

    async def accepted(self, client: Client) -> None:
        """Wait until the servers have taken all pushes that were made so far.

        A pushpull is answered only when its round is complete. But a question that goes behind it
        is answered as soon as all before it was taken.
        """
        client.staging.finish()
        pushes = list(client.pushes)  # other threads may go on pushing: that is not waited for
        for op in pushes:
            if op.verb != "pushpull":
                await op.end()
        for unit in list(client.units.values()):
            for held in list(unit.held):
                try:
                    await held.wait_gone(self.config.round_s)
                except DeadlineExceeded:
                    _raise_failed(client)  # the same, as its push has heard it
                    raise
        if any(not op.ended for op in pushes):
            await self.ask_all(messages.AskStatistics(client.number), behind=True)
        _raise_failed(client)

    async def ask_server(
        self, link: Link, message: messages.Message, priority: int = 1 << 30
    ) -> AnyMessage:
        """Ask a server; while bytes of its link move it is alive and may take its time."""
        if self.node.failure is not None:
            raise self.node.failure
        asking = link.question(message, self.node.incarnation, priority)
        while True:
            moved = link.moved_bytes
            done, _ = await asyncio.wait({asking}, timeout=self.config.answer_s)
            if done:
                return result_of(asking)
            if link.moved_bytes == moved:
                raise DeadlineExceeded(
                    f"{link.name} did not answer within {self.config.answer_s:g} s"
                )

    async def ask_all(
        self, message: messages.Message, *, behind: bool = False
    ) -> list[AnyMessage]:
        """Ask all servers the same, at once; return the answers by rank.

        Args:
            message: The question.
            behind: It goes behind all that waits to be sent now; what comes later does not hold it
                up, however much that is.

        Raises:
            AsyncPSError: What the first one that failed said, when all have answered or are late.
        """
        found = await asyncio.gather(
            *[self.ask_server(link, message, link.outbox.lowest if behind else 1 << 30)
              for link in self.links],
            return_exceptions=True,
        )
        failed = [answer for answer in found if isinstance(answer, BaseException)][:1]
        if failed:
            found.clear()
            raise failed.pop()  # its traceback leads here, and nothing here leads to it
        return [answer for answer in found if not isinstance(answer, BaseException)]

    def submit(self, op: Operation, work: Callable[[], None]) -> None:
        """Begin an operation, unless the cluster has failed."""
        error = self.node.failure or (ClosedError("the store is closed") if self._closed else None)
        if error is not None:
            op.part_done(error)
            return
        try:
            work()
        except Exception as failed:  # noqa: BLE001 - `why_failed` tells it
            op.part_done(why_failed(op, failed, self.give_up))

    def give_up(self, failed: Exception) -> AsyncPSError:
        """End this worker, which cannot keep its word: a push that counts cannot be sent.

        Its rounds would wait for it, and later pushes would be refused. So all that it does fails,
        and the others hear of a loss.

        Returns:
            What the caller of the push hears.
        """
        log.critical("worker %d gives up", self.node.rank, exc_info=failed)
        self.node.fail(WorkerLost(
            f"worker {self.node.rank} gave up: a push that counts could not be sent: {failed!r}",
            rank=self.node.rank,
        ))
        self.node.abandon()
        return self.node.failure or ClosedError("the store is closed")

    async def settle(self, op: Operation) -> None:
        """Wait for the end of an operation, well or not; a cancelled wait gives its memory back."""
        try:
            await op.end()
        except asyncio.CancelledError:
            self.let_go(op)
            raise

    def let_go(self, op: Operation) -> None:
        """Forget the caller's memory: copy what is still to be sent, drop what still comes.

        What was pushed stays counted; only the answers find nobody.
        """
        error = ClosedError("its caller gave up waiting")
        for client in self.clients.values():
            client.staging.finish()
        op.fail(error)
        op.observed = True
        for client in self.clients.values():
            for unit in client.units.values():
                for held in unit.held:
                    if held.op is op:
                        held.detach(error)
        broken = {link for link, request in op.requests if take_back(link, request, op.lent)}
        for link in broken:
            cut(link)

    # ---- inside ----

    def _link_to(self, member: Member) -> Link:
        async def dial(link: Link) -> Connection:
            node = self.node
            return await node.network.connect(
                lambda: Connection(
                    link, node.hello(), node.config.token, connector=True, paces=self.paces
                ),
                member.host, member.port,
            )

        return Link(
            f"server {member.rank} at {member.hostname}", dial, self._unasked, self.node.spawn,
            on_refused=self.node.fail, handshake_s=self.config.handshake_s, polling=self._polling,
        )

    def _unasked(self, message: AnyMessage, request: int) -> None:
        if isinstance(message, messages.ErrorInfo):
            return  # the answer came before, over the connection that was cut
        log.warning("a message out of place from a server: %s", type(message).__name__)

    def _failed(self, error: AsyncPSError) -> None:
        self.lanes.close()
        self._end_links(error)


def _raise_failed(client: Client) -> None:
    """Raise the error of a push whose Handle nobody has looked at."""
    while client.failed:
        op = client.failed.popleft()
        if not op.observed and op.error is not None:
            op.observed = True
            raise op.error.again()
