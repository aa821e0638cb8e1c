"""One store at one worker: from arrays to requests, and back.

The caller's thread checks and gathers (`plan`, `values`); the loop gives clocks, cuts keys into
chunks, and puts answers where they belong. Large arrays are sent and received in the caller's own
memory; rows of slabs pass through a buffer of the pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncps.errors import AsyncPSError, ClosedError, ClusterError
from asyncps.protocol.frames import ASSIGN, PULL, PUSH, PUSHPULL, WAIT, Header
from asyncps.protocol.messages import AnyMessage, StoreConfig
from asyncps.roles.coded import Coded, LazyKey, Payload, SlabRows, sending_order
from asyncps.roles.directory import Directory
from asyncps.roles.encodings import Encodings
from asyncps.roles.framing import data_frame
from asyncps.roles.held import Held, Scatter
from asyncps.roles.joining import joined_error, stands_still
from asyncps.roles.landing import Place, landing_of, place_of
from asyncps.roles.operation import Operation, no_worker
from asyncps.roles.plan import Plan, RemoteUnit, SlabPlan
from asyncps.roles.remotetable import HeldRows, post_rows
from asyncps.roles.staging import Staging
from asyncps.state.requests import Step
from asyncps.tensor.pool import Bytes, SharedPool
from asyncps.transport.link import Link
from asyncps.transport.request import Request

log = logging.getLogger(__name__)

# Copies of pushed values and gathered rows that are kept for the next round.
_POOL_BYTES = 256 << 20

# Pushes that failed, and whose Handle nobody has looked at, that are kept for the next barrier.
_FAILED = 64

_KINDS = {"push": PUSH, "pull": PULL, "pushpull": PUSHPULL, "assign": ASSIGN}


class Client(Directory):
    """One store at one worker. Runs on the loop, unless it is said here that any thread may.

    Callers' threads use `plan` (which keeps what it makes), `plan_of`, `pool`, `encodings` and
    `compression`; of the rest they read single attributes, such as `closed`, which the loop
    replaces as a whole. And a thread that holds the lanes begins rounds, when nothing else is under
    way: see `Shortcut`.

    Args:
        number: The store's number.
        config: What all workers said when they opened it.
        incarnation: This worker's.
        links: The servers by rank.
        now: The loop's clock.
        give_up: Ends this worker: a push that counts cannot be sent. Returns what callers hear.
    """

    def __init__(
        self, number: int, config: StoreConfig, incarnation: int, links: Sequence[Link],
        now: Callable[[], float],
        give_up: Callable[[Exception], AsyncPSError] = no_worker,
    ) -> None:
        super().__init__(config, links)
        self.number = number
        self.incarnation = incarnation
        self.pool = SharedPool(_POOL_BYTES)
        self.pushes: set[Operation] = set()  # not accepted yet
        self.failed: deque[Operation] = deque(maxlen=_FAILED)  # whose error nobody has seen
        self.closed = False
        self.still = ""  # the verb that saves or loads the store, while nothing may change it
        self.encodings = Encodings()
        self.joining: asyncio.Future[int] | None = None  # this worker has joined, all have not
        self.given_up: asyncio.Future[int] | None = None  # a join whose end nobody has heard
        self.joins = 0  # how often all have
        self.staging = Staging(give_up)
        self.changing = asyncio.Lock()  # of hyper-parameters: one change at a time
        self._now = now
        self._give_up = give_up

    # ---- verbs, on the loop ----

    def send(
        self,
        op: Operation,
        plan: Plan,
        values: Sequence[memoryview | Coded] | None,
        slabs: Sequence[Bytes | SlabRows] | None,
        outs: Sequence[memoryview] | None,
        rows: Sequence[Sequence[Any]] | None,
        priority: int,
    ) -> None:
        """Carry out one verb over all keys of a plan.

        Args:
            op: Ends when all is answered; its verb is push, pull, pushpull or assign.
            plan: Where the keys live.
            values: Byte views of the large keys' values, in the order of the plan's `large`; or
                what they were encoded as.
            slabs: Gathered rows in the order of the plan's `slabs`, or likewise.
            outs: Byte views that take the large keys' answers.
            rows: The arrays that take each slab's rows.
            priority: Higher goes first.
        """
        op.since = self._now()
        if self.closed:
            op.part_done(ClosedError("the store is closed"))
            return
        kind = _KINDS[op.verb]
        if stands_still(self, op):
            op.part_done(ClusterError(f"{op.verb} while {self.still} is under way"))
            return
        if kind != PULL:
            if self.joining is not None:
                op.part_done(joined_error(op.verb))
                return
            self.pushes.add(op)
            op.on_end(self._pushed)
        walk = self._walk(op, kind, plan, values, slabs, outs, rows, priority)
        if self.staging.concerns(plan) or (
            plan.coded and values is not None and any(type(each) is LazyKey for each in values)
        ):
            self.staging.add(op, plan, walk)
        else:
            for _ in walk:
                pass

    def _walk(
        self, op: Operation, kind: int, plan: Plan, values: Sequence[memoryview | Coded] | None,
        slabs: Sequence[Bytes | SlabRows] | None, outs: Sequence[memoryview] | None,
        rows: Sequence[Sequence[Any]] | None, priority: int,
    ) -> Iterator[None]:
        """Send all of a call; stops behind each chunk that it has encoded.

        Each unit's clock is given out when its frame and all memory for it are there. If something
        fails before the first one, nothing has happened; behind it the call is `counted`, and
        whoever walks ends this worker.
        """
        for is_slab, place in sending_order(plan, values):
            if is_slab:
                self._send_slab(
                    op, kind, plan.slabs[place], None if slabs is None else slabs[place],
                    None if rows is None else rows[place], priority,
                )
                continue
            info = plan.large[place][1]
            value = None if values is None else values[place]
            out = None if outs is None else outs[place]
            for unit, piece in info.pieces:
                begin, end = piece.start, piece.start + piece.size
                if type(value) is LazyKey:
                    op.counted = True  # what it does not send is kept elsewhere already
                self._when_open(
                    op, kind, unit, self._steps(kind, unit, None)[0], piece.size,
                    None if value is None else value[begin:end],
                    None if out is None else place_of(
                        plan.rules[place], info.dtype, out[begin:end]),
                    None, priority,
                )
                if type(value) is LazyKey:
                    yield
        op.part_done()

    def _pushed(self, op: Operation) -> None:
        self.pushes.discard(op)
        if op.error is not None and not op.observed:
            # Those seen meanwhile make room: one that nobody has seen must not be pushed out.
            self.failed = deque([one for one in self.failed if not one.observed], maxlen=_FAILED)
            self.failed.append(op)

    def go_on(
        self, op: Operation, plan: Plan, step: Step, value: memoryview,
        out: memoryview | None, rows: Sequence[Any] | None, priority: int,
    ) -> None:
        """Send a pushpull of one unit whose round was begun on a lane; it counts once."""
        op.since = self._now()
        op.counted = True
        if self.closed:
            op.part_done(ClosedError("the store is closed"))
            return
        self.pushes.add(op)
        op.on_end(self.pushes.discard)
        slab = plan.slabs[0] if plan.slabs else None
        unit = plan.lone
        assert unit is not None
        self._post(
            op, PUSHPULL, unit, step, len(value), value, out,
            None if slab is None or rows is None else (slab.dtype, slab.shapes, rows), priority,
        )
        op.part_done()

    def _steps(self, kind: int, unit: RemoteUnit, rows: list[int] | None) -> list[Step]:
        if kind == PULL or kind == ASSIGN:
            return unit.track.pull(rows)
        return unit.track.coming(rows)

    def _send_slab(
        self, op: Operation, kind: int, slab: SlabPlan, buffer: Bytes | SlabRows | None,
        arrays: Sequence[Any] | None, priority: int,
    ) -> None:
        unit = slab.unit
        out = None if arrays is None else place_of(slab.rule, slab.dtype, None)
        steps = self._steps(kind, unit, slab.spoken_of)
        if isinstance(buffer, SlabRows):
            steps = buffer.apart(steps, slab.rows)
        if len(steps) == 1:
            self._when_open(
                op, kind, unit, steps[0], slab.size, None if buffer is None else buffer.data,
                out, None if arrays is None else (slab.dtype, slab.shapes, arrays), priority,
            )
            return
        # Rows at different clocks: a frame for each clock.
        index = {row: place for place, row in enumerate(slab.rows)}
        starts = dict(zip(slab.rows, _starts(unit, slab.rows), strict=True))
        for step in steps:
            members = slab.rows if step.rows is None else list(step.rows)
            part: memoryview | Payload | None = None
            chosen = [index[row] for row in members]
            if isinstance(buffer, SlabRows):
                part = buffer.part(chosen)
            elif buffer is not None:
                view = buffer.data
                part = memoryview(b"".join(
                    view[starts[row] : starts[row] + unit.sizes[row]] for row in members
                ))
            self._when_open(
                op, kind, unit, step, unit.size_of(members), part, out,
                None if arrays is None else (
                    slab.dtype, tuple([slab.shapes[i] for i in chosen]),
                    [arrays[i] for i in chosen],
                ),
                priority,
            )

    def _when_open(
        self, op: Operation, kind: int, unit: RemoteUnit, step: Step, size: int,
        value: memoryview | Payload | None, out: Place, scatter: Scatter | None,
        priority: int,
    ) -> None:
        """Send now, or step aside until the clock window is open."""
        if kind == PULL or kind == ASSIGN or not (step.wait_for or unit.held.blocks(step.rows)):
            self._post(op, kind, unit, step, size, value, out, scatter, priority)
            return
        self.hold(unit, Held(op, kind, step, size, value, out, scatter, priority))

    def hold(self, unit: RemoteUnit, held: Held) -> None:
        """Give a push its clock, and have it step aside."""
        held.op.counted = True
        unit.track.begin(held.step)
        unit.held.append(held)
        held.op.add()
        self.ask_for_room(unit)

    def ask_for_room(self, unit: RemoteUnit) -> None:
        """Send held pushes that may go, and ask for word of the clocks that the next wait for.

        They have their clocks: if one cannot be sent, this worker ends.
        """
        try:
            self._make_room(unit)
        except Exception as failed:  # noqa: BLE001 - the worker tells it
            self._give_up(failed)

    def fail(self, error: AsyncPSError) -> None:
        """End what has not been sent: no link takes anything any more."""
        self.staging.fail(error)
        for unit in self.units.values():
            unit.held.drop(error)

    def _make_room(self, unit: RemoteUnit) -> None:
        sent = True
        while sent:
            sent = False
            for held in unit.held.heads():
                need = unit.track.must_wait(held.step)
                if not need:
                    sent = True
                    unit.held.remove(held)
                    held.let_go()
                    try:
                        self._post_held(unit, held)
                    except Exception as failed:  # noqa: BLE001 - the worker tells it
                        held.op.part_done(self._give_up(failed))
                        return
                elif held.asking is None or held.asking.ended:
                    self._ask_for_word(unit, held, need)

    def _post_held(self, unit: RemoteUnit, held: Held) -> None:
        if isinstance(held, HeldRows):
            post_rows(
                self, held.op, held.kind, unit, held.step, held.named, held.value, held.priority,
                held=True,
            )
            return
        self._post(
            held.op, held.kind, unit, held.step, held.size, held.value, held.out, held.scatter,
            held.priority, fresh=False,
        )

    def _ask_for_word(self, unit: RemoteUnit, held: Held, need: int) -> None:
        waiting = held.asking = Operation("wait", lent=False)
        waiting.since = self._now()

        def ended(waiting: Operation) -> None:
            if waiting.error is None:
                self.ask_for_room(unit)
            else:
                unit.held.give_up(held, waiting.error)

        waiting.on_end(ended)
        self._post(
            waiting, WAIT, unit, Step(need, held.step.rows, 0),
            unit.size_of(held.step.rows), None, None, None, 1 << 20, fresh=False,
            late=lambda: self.ask_for_room(unit),
        )

    def _post(
        self, op: Operation, kind: int, unit: RemoteUnit, step: Step, size: int,
        value: memoryview | Payload | None, out: Place, scatter: Scatter | None,
        priority: int, *, fresh: bool = True, late: Callable[[], None] | None = None,
    ) -> None:
        """Send one frame.

        Args:
            op: Ends a part of itself with the answer.
            kind, unit, step, size, value: See `data_frame`.
            out: Where the answer goes.
            scatter: Or the rows that it goes to.
            priority: Higher goes first.
            fresh: It is a part of `op` that begins here; a push begins its step.
            late: Called when the answer comes after the caller was told that it took too long.
        """
        link, track = unit.link, unit.track
        clock, rows, _ = step
        number = link.number()
        wants = kind != PUSH and kind != ASSIGN
        tail = unit.tail
        if tail is not None and not tail.sent:
            priority = unit.priority(priority)
        flags, words = 0, b""
        if out is not None and not isinstance(out, memoryview):
            flags = out.flag
            words, priority = out.ask(unit, priority)
        parts, frame_bytes = data_frame(
            self, kind, unit, step, number, priority, size, value, flags, words
        )
        landing = landing_of(self.pool, unit, size, out, scatter)
        place = landing.view if landing is not None else out

        def answered(
            request: Request, header: Header | None, _message: AnyMessage | None,
            error: AsyncPSError | None,
        ) -> None:
            if unit.tail is request:
                unit.tail = None
            if landing is not None:
                landing.over()
            if wants:
                if error is None and header is not None:
                    track.answered(number)
                else:
                    track.failed(number)
            if request.expired:
                if late is not None:
                    late()
                return
            if landing is not None and header is not None and error is None and (
                request.place is not None
            ):
                error = landing.settle(header)
            op.part_done(error)

        assert place is None or isinstance(place, memoryview)
        request = Request(number, priority, parts, frame_bytes, answered, place, unit, op)
        request.room = None if landing is None else landing.room
        request.since = op.since
        # All memory is there. From here on nothing is expected to fail, and a push counts.
        if fresh and (kind == PUSH or kind == PUSHPULL):
            op.counted = True
            track.begin(step)
        op.requests.append((link, request))
        unit.tail = request
        if wants:
            track.asked(number, clock, rows)
        if fresh:
            op.add()
        link.request(request)


def _starts(unit: RemoteUnit, rows: Sequence[int]) -> list[int]:
    starts, begin = [], 0
    for row in rows:
        starts.append(begin)
        begin += unit.sizes[row]
    return starts
