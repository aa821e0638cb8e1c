"""Calls of verbs that speak of row-sparse keys, alone or beside dense ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncps.call import Call
from asyncps.errors import TensorError
from asyncps.roles import tablework
from asyncps.roles.client import Client
from asyncps.roles.joining import takes
from asyncps.roles.operation import Operation
from asyncps.roles.plan import Plan
from asyncps.roles.tableunit import check_optimizer
from asyncps.roles.worker import Worker
from asyncps.tablevalues import Contribution, Fetch
from asyncps.values import Outgoing, as_values, check_apart


class TableCall(Call):
    """One verb; `start` runs on the loop.

    Attributes:
        contributions: Rows that are pushed or assigned.
        fetches: Rows that are pulled; one a key of the call.
    """

    __slots__ = ("contributions", "fetches")

    contributions: Sequence[Contribution]
    fetches: Sequence[Fetch]

    def with_rows(
        self, contributions: Sequence[Contribution], fetches: Sequence[Fetch] = ()
    ) -> TableCall:
        """Give the call its rows; returns itself.

        Raises:
            TensorError: More rows than one server takes at once.
        """
        for each in contributions:
            tablework.check_push(each.info, each.ids)
            self.op.on_success(each.release)
        self.contributions, self.fetches = contributions, fetches
        return self

    @property
    def copied_bytes(self) -> int:
        """As `Call.copied_bytes`."""
        return super().copied_bytes + sum(each.copied_bytes for each in self.contributions)

    def result(self) -> Any:
        """As `Call.result`."""
        found = super().result()
        if not self.fetches:
            return found
        arrays = [fetch.result() for fetch in self.fetches]
        return arrays if self._listed else arrays[0]

    def _send(self) -> None:
        client, op = self._client, self.op
        if takes(client, op):  # else `Client.send` says why not
            op.since = asyncio.get_running_loop().time()
            self._send_rows()
        super()._send()

    def _send_rows(self) -> None:
        client, op = self._client, self.op
        for each in self.contributions:
            if op.verb == "assign":
                tablework.assign(client, op, each.info, each.ids, each.values, self._priority)
            else:
                tablework.push(client, op, each.info, each.ids, each.values, self._priority,
                               each.coded)
        for fetch in self.fetches:
            out = fetch.array.reshape(-1).view("u1").data
            tablework.pull(client, op, fetch.info, fetch.ids, out, self._priority)


class RowCalls:
    """What a store builds for row-sparse keys, in the caller's thread."""

    def __init__(self, worker: Worker, client: Client) -> None:
        self.worker = worker
        self.client = client

    def row_sparse_pull(
        self, plan: Plan, keys: Any, row_ids: Any, out: Any, priority: int
    ) -> TableCall:
        """Build a pull of rows.

        Raises:
            TensorError: Of a dense key, or as `Fetch`.
        """
        for info in plan.infos:
            if not info.is_table:
                raise TensorError("row_sparse_pull of a key that is not row-sparse", key=info.key,
                                  expected="pull")
        count, listed = len(plan.infos), isinstance(keys, (list, tuple))
        given = as_values(count, row_ids, listed)
        outs = [None] * count if out is None else as_values(count, out, listed)
        check_apart([info.key for info in plan.infos], outs)
        fetches = [Fetch(*each) for each in zip(plan.infos, given, outs, strict=True)]
        op = Operation("pull", lent=False)
        return self._table_call(op, plan, None, keys, priority).with_rows((), fetches)

    def rows_call(
        self, verb: str, plan: Plan, keys: Any, values: Any, priority: int, *, copy: bool = False,
        out: Any = None, pull: bool = False,
    ) -> TableCall:
        """Build a call that sends rows, and dense values for the dense keys among its keys.

        Args:
            verb: push, pushpull or assign.
            plan: Where the keys live.
            keys: As they were given.
            values: A RowSparse, or a list of those of several devices, for each row-sparse key.
            priority: Higher goes first.
            copy: The caller keeps its memory.
            out: Arrays for the rows that are pulled.
            pull: Fetch the rows that were pushed; there are row-sparse keys only.
        """
        listed = isinstance(keys, (list, tuple))
        given = as_values(len(plan.infos), values, listed)
        client = self.client
        if verb != "assign" and client.optimizer is not None:
            check_optimizer(client.optimizer)
        rows = [
            Contribution(info, given[index], copy=copy, pool=client.pool,
                         encoded=verb != "assign" and client.compression is not None
                         and client.compression.encodes(info, rule))
            for (index, info), rule in zip(plan.tables, plan.table_rules, strict=True)
        ]
        fetches: list[Fetch] = []
        if pull:
            outs = [None] * len(rows) if out is None else as_values(len(rows), out, listed)
            check_apart([each.info.key for each in rows], outs)
            fetches = [Fetch(each.info, each.ids, place)
                       for each, place in zip(rows, outs, strict=True)]
        dense = Outgoing(plan, given, copy=copy, pool=client.pool)
        op = Operation(verb, lent=not copy)
        return self._table_call(op, plan, dense, keys, priority).with_rows(rows, fetches)

    @staticmethod
    def check_dense(plan: Plan, verb: str, instead: str) -> None:
        """Refuse row-sparse keys where only dense ones may be.

        Raises:
            TensorError: There is one.
        """
        if plan.tables:
            raise TensorError(f"{verb} of a row-sparse key", key=plan.tables[0][1].key,
                              expected=instead)

    def _table_call(
        self, op: Operation, plan: Plan, dense: Outgoing | None, keys: Any, priority: int
    ) -> TableCall:
        listed = isinstance(keys, (list, tuple))
        return TableCall(self.worker, self.client, op, plan, dense, None, priority, listed)
