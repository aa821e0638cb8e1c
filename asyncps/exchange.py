"""What travels between a trainer and its store: gradients out, weights or sums back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncps.allended import wait_for_all
from asyncps.parameters import Parameter
from asyncps.values import Key
from asyncps.wholecalls import Pull, Send

# Values up to this size travel together, as the store keeps them together (`small_key_bytes`).
_SMALL_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Travel:
    """How one parameter travels.

    Attributes:
        parameter: Its gradient goes out.
        key: Under this key.
        priority: Higher goes first.
        weights: What comes back is written into its weights, else into its gradient.
    """

    parameter: Parameter
    key: Key
    priority: int
    weights: bool

    def places(self) -> list[Any]:
        """Return one array a device for what comes back."""
        return self.parameter.weights() if self.weights else self.parameter.gradient_places()

    def put(self) -> None:
        """Bring what came back to the parameter's own arrays."""
        if self.weights:
            self.parameter.put_weights()
        else:
            self.parameter.put_gradients()


def exchange(store: Any, travels: Sequence[Travel], hyper: Mapping[str, Any]) -> None:
    """Push all gradients and pull what comes of them; returns when all is in its place.

    Args:
        store: Of a cluster, or a local one.
        travels: What goes, and where what comes is put.
        hyper: Hyper-parameters of who updates, for what compression has kept.

    Raises:
        AsyncPSError: The first failure, when all have ended: until then arrays are being written.
            One that a gradient or weights are the cause of comes before anything is pushed.
    """
    if hasattr(store, "_use_own"):
        store._use_own(hyper, [each.key for each in travels if not each.weights])
    sparse = [each for each in travels if each.parameter.sparse]
    dense = [each for each in travels if not each.parameter.sparse]
    small = [each for each in dense if each.parameter.nbytes <= _SMALL_BYTES]
    groups = [[each] for each in dense if each.parameter.nbytes > _SMALL_BYTES]
    groups += [small] if small else []
    groups.sort(key=lambda group: -group[0].priority)
    pulls = [Pull(each.key, np.arange(each.parameter.shape[0]), each.parameter.weights()[0],
                  each.priority) for each in sparse]  # all rows: who knows which others change
    handles: list[Any] = []
    lone = len(groups) + len(sparse) == 1  # a lone call is quicker when it blocks
    try:
        if not lone and hasattr(store, "_whole") and (sparse or store._is_compressed):
            sends = [Send(*_sent(group), group[0].priority) for group in groups]
            _begin_whole(store, sends, sparse, pulls, handles)
        else:
            handles.extend(
                store.pushpull(*_sent(group), priority=group[0].priority, async_op=not lone)
                for group in groups
            )
            handles.extend(each.parameter.exchange_rows(store, each.priority) for each in sparse)
    except BaseException:
        with contextlib.suppress(Exception):
            wait_for_all(handles)
        raise
    if not lone or sparse:
        wait_for_all(handles)
    for each in travels:
        each.put()


def _begin_whole(
    store: Any, sends: Sequence[Send], sparse: Sequence[Travel], pulls: Sequence[Pull],
    handles: list[Any],
) -> None:
    """Begin all, or nothing: what may be refused is looked at before the first begins."""
    calls: list[Send | Pull] = list(sends)
    for each, pull in zip(sparse, pulls, strict=True):
        calls += [Send(each.key, each.parameter.gradients(), None, each.priority), pull]
    whole = store._whole(calls)
    try:
        for call in calls:
            handle = whole.begin()
            if isinstance(call, Pull) or call.out is not None:  # else the pull behind it waits
                handles.append(handle)
    finally:
        whole.drop()


def _sent(group: Sequence[Travel]) -> tuple[list[Key], list[Any], list[Any]]:
    return ([each.key for each in group], [each.parameter.gradients() for each in group],
            [each.places() for each in group])


def init_weights(store: Any, parameters: Sequence[Parameter]) -> None:
    """Make the keys of parameters, with rank 0's weights if they are not there, and pull all.

    A store that keeps no values brings rank 0's, whether it knows the keys or not.
    """
    if not getattr(store, "keeps_values", True):
        _share_weights(store, parameters)
        return
    dense = [parameter for parameter in parameters if not parameter.sparse]
    if dense:
        store.init([each.key for each in dense], [each.read_weights()[0] for each in dense])
    for parameter in parameters:
        if parameter.sparse:
            parameter.begin_rows(store)
    take_weights(store, parameters)


def init_sums(store: Any, parameters: Sequence[Parameter], names: Mapping[Key, Key]) -> None:
    """Make the keys under which gradients are summed.

    Args:
        store: Where.
        parameters: Whose gradients; those of fixed ones are not summed.
        names: The parameter's key of each of these keys, in the parameters' order.
    """
    if hasattr(store, "_let_stand"):
        store._let_stand(names)
    if names:
        store.init(list(names), [np.zeros(each.shape, each.dtype) for each in parameters
                                 if not each.fixed])


def take_weights(store: Any, parameters: Sequence[Parameter]) -> None:
    """Pull all weights, into the parameters' own arrays."""
    dense = [parameter for parameter in parameters if not parameter.sparse]
    if dense:
        store.pull([each.key for each in dense], [each.weights() for each in dense])
    for parameter in parameters:
        if parameter.sparse:
            parameter.pull_rows(store)
        parameter.put_weights()


def assign_weights(store: Any, parameters: Sequence[Parameter]) -> None:
    """Let all have rank 0's weights; all workers call it between the same two steps."""
    if not getattr(store, "keeps_values", True):
        _share_weights(store, parameters)
        return
    store.barrier()  # nobody is in a step any more
    if store.rank == 0:
        for parameter in parameters:
            parameter.assign(store)
    store.barrier()
    take_weights(store, parameters)


def _share_weights(store: Any, parameters: Sequence[Parameter]) -> None:
    """Bring rank 0's weights to all workers, in place."""
    for parameter in parameters:
        if parameter.sparse:
            parameter.begin_rows(store)  # which says why it cannot be
    if parameters:
        store.broadcast([each.key for each in parameters],
                        [each.read_weights()[0] for each in parameters],
                        [each.weights() for each in parameters])
    for parameter in parameters:
        parameter.put_weights()
