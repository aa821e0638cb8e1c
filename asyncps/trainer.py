"""Trainer: an optimizer over a set of parameters, carried out by a store or here; as Gluon's."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any, Self

from asyncps import optim
from asyncps.cluster import create
from asyncps.errors import (
    AsyncPSError,
    CheckpointError,
    ClosedError,
    ConfigError,
    OptimizerError,
    TensorError,
)
from asyncps.exchange import Travel, assign_weights, exchange, init_sums, init_weights, take_weights
from asyncps.kvstore import AsyncKVStore
from asyncps.localcheckpoints import Path
from asyncps.localstore import LocalStore
from asyncps.parameters import Parameter, parameters_of
from asyncps.tensor import checkpoint
from asyncps.updating import LOCAL, update_on_store
from asyncps.values import Key

log = logging.getLogger(__name__)


class Trainer:
    """Applies an optimizer to parameters, with gradients summed over devices and workers.

    Args:
        params: A dict or list of anything with `data` and `grad`: an array, or a list of arrays of
            several local devices; a `grad` may be a RowSparse. Weights are written in place, into
            NumPy or CuPy arrays. The keys of a dict, or the places in a list, are the keys in the
            store, and their order is that of the layers: parameter i has priority -i, and all
            values of at most 32 KiB travel together, as the first of them. `grad_req = "null"` says
            that a parameter stays as it is.
        optimizer: A name or an Optimizer, which is copied.
        optimizer_params: Hyper-parameters by name. `rescale_grad` is multiplied by 1/batch_size.
        kvstore: A store type, a store made by `asyncps.create`, or None. As in Gluon, the names
            "local" and "device" make no store when there is one device and
            `update_on_kvstore` is not True. A store that is made here is closed by `close`, or at
            the end of the process.
        update_on_kvstore: Where the optimizer runs; None means on the store if it can. Otherwise
            gradients are summed, under keys of their own, and every worker updates.
        compression_params: As `KVStore.set_gradient_compression` takes them, for all keys that no
            call of that, before or after, names by a pattern, a key or a list.

    All workers make the trainer, with the same words: when it is made the store has the optimizer,
    and every worker the same weights. They are rank 0's or, where the store holds these keys
    already (a script that begins again, a store that was loaded), the store's. Gluon does this at
    the first step; then the first gradients would be those of other weights. A store that has this
    optimizer already keeps what it knows, momentum say, and takes these hyper-parameters.

    When the store loads a checkpoint, `data` are its weights as `load` returns, and
    `learning_rate` and the other hyper-parameters are its own; but what `rescale_grad` is divided
    by the batch size for is what this trainer was given. Trainers of one store have different keys
    and the same optimizer and hyper-parameters; give each of others a store of its own name.

    Raises:
        ConfigError, TensorError, OptimizerError: An argument that cannot be right; or other
            compression_params than the store has for all keys.
        NotYetError: A store type or compression that is not there yet.
    """

    def __init__(
        self, params: Any, optimizer: str | optim.Optimizer,
        optimizer_params: dict[str, Any] | None = None, kvstore: Any = "device",
        update_on_kvstore: bool | None = None, compression_params: dict[str, Any] | None = None,
    ) -> None:
        self._parameters = parameters_of(params)
        # Schedules, multipliers and the like are shared with the caller's; the numbers are not.
        self._optimizer = copy.copy(optim.resolve(optimizer, optim.words_of(optimizer_params, {})))
        self._optimizer.hyper = dict(self._optimizer.hyper)
        self._scale = float(self._optimizer.hyper.get("rescale_grad", 1.0))
        devices = self._parameters[0].devices if self._parameters else 1
        sparse = any(parameter.sparse for parameter in self._parameters)
        if sparse and kvstore is None:
            kvstore = "local"  # sparse gradients are applied by a store only
        if isinstance(kvstore, str) and kvstore in LOCAL and devices == 1:
            kvstore = kvstore if update_on_kvstore or sparse else None
        if isinstance(kvstore, AsyncKVStore):
            raise ConfigError("a trainer needs a blocking store", expected="asyncps.create",
                              got=kvstore)
        kind = kvstore if kvstore is None or isinstance(kvstore, str) else kvstore.type
        self._on_store = update_on_store(kind, update_on_kvstore, sparse_gradient=sparse)
        self._mine = create(kvstore) if isinstance(kvstore, str) else None
        self._store = kvstore if self._mine is None else self._mine
        self._distributed = self._store is not None and self._store.num_workers > 1
        self._local: list[LocalStore] = []  # what updates each device here
        self._closed = False
        self._barred: AsyncPSError | None = None  # why it may not train
        try:
            if compression_params:
                (self._store or LocalStore("local"))._compress_others(compression_params)
            keys = frozenset(parameter.key for parameter in self._parameters)
            if self._on_store:
                self._store._followers.check(keys, self._optimizer)
            self._begin(devices)
            if self._store is not None:
                self._store._followers.add(self, keys, self._optimizer, on_store=self._on_store)
        except BaseException:
            self.close()
            raise
    def __repr__(self) -> str:
        where = "the store" if self._on_store else "the worker"
        return f"<Trainer of {len(self._parameters)} parameters: {self._optimizer} on {where}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._end()
        if self._mine is not None:
            self._mine.__exit__(*raised)

    def close(self) -> None:
        """Train no more. Closes the store if this trainer has made it; one handed in stays open."""
        self._end()
        if self._mine is not None:
            self._mine.close()

    @property
    def kvstore(self) -> Any:
        """The store, or None."""
        return self._store

    @property
    def update_on_kvstore(self) -> bool:
        """Whether the optimizer runs on the store."""
        return self._on_store

    @property
    def optimizer(self) -> optim.Optimizer:
        """The optimizer with the hyper-parameters of now; changing it changes nothing."""
        return self._optimizer

    @property
    def learning_rate(self) -> Any:
        """The learning rate.

        Raises:
            OptimizerError: The optimizer has none.
        """
        if "learning_rate" not in self._optimizer.hyper:
            raise OptimizerError(f"{self._optimizer.name} has no learning rate")
        return self._optimizer.hyper["learning_rate"]

    def set_learning_rate(self, lr: float) -> None:
        """Change the learning rate, wherever the optimizer runs; what it keeps stays.

        All workers call this between the same two steps.
        """
        self._check_usable()
        self._change(learning_rate=lr)

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients, update the weights, and return when they are there.

        Args:
            batch_size: The examples behind each worker's gradient: the update scales the sum by
                1/batch_size. It may differ from step to step; in one step all workers must give
                the same one. The sum is over all workers: a mean over them is asked for by
                batch size times workers.
            ignore_stale_grad: Parameters without a gradient (`grad` is None) are left alone;
                where there are several workers they count as zeros, since the others wait.

        Raises:
            ConfigError: A parameter has no gradient, or a batch size that cannot be right.
            ShapeMismatch, DtypeMismatch: A gradient that does not fit; nothing was sent.
            Disagreement: Workers changed their batch size to different ones.
        """
        self._check_usable()
        self._forget_stand_ins()
        chosen = self._chosen(ignore_stale_grad)
        self._set_batch_size(batch_size)
        if self._store is not None:
            self._exchange(chosen)
        if not self._on_store:
            self._update(chosen)
        self._forget_stand_ins()

    def allreduce_grads(self, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over devices and workers in place, for a change before `update`.

        Raises:
            ConfigError: Updates happen on the store, so there are no sums here.
        """
        self._check_here("allreduce_grads")
        self._forget_stand_ins()
        if self._store is not None:
            self._exchange(self._chosen(ignore_stale_grad))

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Update the weights with the gradients as they are, after `allreduce_grads`.

        Args:
            batch_size: As in `step`.
            ignore_stale_grad: As in `step`.

        Raises:
            ConfigError: Updates happen on the store.
        """
        self._check_here("update")
        chosen = self._chosen(ignore_stale_grad)
        self._set_batch_size(batch_size)
        self._update(chosen)
        self._forget_stand_ins()

    def assign_weights(self) -> None:
        """Let the store take `data` as the weights, after you have changed it yourself.

        All workers call this between the same two steps; rank 0's count for everyone, as when the
        trainer is made. What the optimizer keeps stays. Without it the next step brings the
        store's weights back.
        """
        self._check_usable()
        if self._store is not None:
            assign_weights(self._store, self._parameters)

    def save_states(self, path: Path) -> None:
        """Write what the optimizer keeps, and its hyper-parameters.

        Args:
            path: A directory in the form of a checkpoint; an old one is replaced in one step. All
                workers call this; where updates happen here, each writes the same. What compression
                has not sent is not in it: `KVStore.save` has that, of updates on the store.

        Raises:
            CheckpointError: It could not be written.
        """
        self._check_usable()
        if not self._on_store and hasattr(self._store, "_note_unsaved"):
            self._store._note_unsaved("save_states")
        (self._store if self._on_store else self._local[0]).save_optimizer_states(path)

    def load_states(self, path: Path) -> None:
        """Take optimizer states and hyper-parameters from what `save_states` has written.

        Raises:
            OptimizerError: They are another optimizer's.
            CheckpointError: They cannot be read, or are not those of these parameters.
        """
        self._check_usable()
        if self._on_store:
            self._store.load_optimizer_states(path)
            return
        told = checkpoint.show(path)[1].get("optimizer")
        if not isinstance(told, dict) or not isinstance(told.get("hyper"), dict):
            raise CheckpointError("a checkpoint without an optimizer", got=path)
        if told.get("name") != self._optimizer.name:
            raise OptimizerError("states of another optimizer", expected=self._optimizer.name,
                                 got=told.get("name"))
        for store in self._local:
            store.load_optimizer_states(path)
        self._take_hyper(told["hyper"])

    # ---- what asyncps.following asks of it ----

    def _check_places(self) -> None:
        for parameter in self._parameters:
            parameter.weights()

    def _take(self, *, weights: bool) -> None:
        name = self._optimizer.name
        if not self._on_store:
            return
        if self._store.optimizer != name:
            self._bar(OptimizerError("the store has another optimizer than this trainer now",
                                     expected=name, got=self._store.optimizer))
            return
        self._take_hyper(self._store.hyperparameters)
        if weights:
            take_weights(self._store, self._parameters)
        if not self._closed:
            self._barred = None

    def _bar(self, why: AsyncPSError) -> None:
        self._barred = why

    # ---- inside ----

    def _check_usable(self) -> None:
        if self._barred is not None:
            raise copy.copy(self._barred)

    def _end(self) -> None:
        if self._store is not None:
            self._store._followers.discard(self)
        self._closed, self._barred = True, ClosedError("the trainer is closed")

    def _take_hyper(self, told: Any) -> None:
        self._optimizer.hyper = dict(type(self._optimizer)(**told).hyper)

    def _begin(self, devices: int) -> None:
        """Give the optimizer to who runs it, and all devices of all workers the same weights."""
        parameters = self._parameters
        if self._store is not None:
            if self._on_store:
                self._give_optimizer()
            init_weights(self._store, parameters)
        if self._on_store:
            return
        if self._store is not None:
            if getattr(self._store, "optimizer", None) is not None:
                raise ConfigError("update_on_kvstore=False on a store that has an optimizer",
                                  expected="a store of another name", got=self._store.optimizer)
            init_sums(self._store, parameters, {
                self._key(each): each.key for each in parameters if not each.fixed})
        for _ in range(devices):
            local = LocalStore("local")
            local.set_optimizer(self._optimizer)
            self._local.append(local)
        for parameter in parameters:
            if not parameter.fixed:
                for local, weight in zip(self._local, parameter.weights(), strict=True):
                    local.adopt(parameter.key, weight)

    def _give_optimizer(self) -> None:
        """Move the update to the store; what the store keeps for this very optimizer stays."""
        there, name = self._store.optimizer, self._optimizer.name
        if there not in (None, name):
            log.warning("the store's optimizer was %s and is %s now: what %s has kept is dropped",
                        there, name, there)
        self._store._take_optimizer(self._optimizer)

    def _key(self, parameter: Parameter) -> Key:
        # Sums not under the weights' own: a worker that comes later would take one for weights.
        return parameter.key if self._on_store else f"{parameter.key!r}/grad"

    def _check_here(self, verb: str) -> None:
        self._check_usable()
        if self._on_store:
            raise ConfigError(f"{verb} when updates happen on the store",
                              expected="update_on_kvstore=False", got=True)

    def _set_batch_size(self, batch_size: float) -> None:
        try:
            size = float(batch_size)
        except (TypeError, ValueError):
            size = math.nan
        if not (math.isfinite(size) and size > 0):
            raise ConfigError("batch_size is a number above 0", got=repr(batch_size))
        scale = self._scale / size
        if self._optimizer.hyper.get("rescale_grad", 1.0) != scale:
            self._change(rescale_grad=scale)

    def _change(self, **hyper: float) -> None:
        checked = optim.checked(type(self._optimizer), hyper)
        for store in [self._store] if self._on_store else self._local:
            store.set_hyperparameters(**checked)
        self._optimizer.hyper.update(checked)

    def _chosen(self, ignore_stale_grad: bool) -> list[Parameter]:
        """Return the parameters of this step, each with a gradient that fits."""
        chosen = []
        for parameter in self._parameters:
            if parameter.fixed:
                continue
            if not parameter.has_gradient():
                if not ignore_stale_grad:
                    raise TensorError(
                        "a parameter has no gradient", key=parameter.key,
                        expected="a gradient since the last step, or ignore_stale_grad=True")
                if not self._distributed:
                    continue
                parameter.stand_in_zeros()
            chosen.append(parameter)
        for parameter in chosen:
            parameter.check_gradient()
        return chosen

    def _forget_stand_ins(self) -> None:
        for parameter in self._parameters:
            parameter.stand_in = None

    def _exchange(self, chosen: list[Parameter]) -> None:
        """Push all gradients, and pull weights or sums; first layers first."""
        order = {each.key: -index for index, each in enumerate(self._parameters)}
        exchange(self._store, [
            Travel(each, self._key(each), order[each.key], weights=self._on_store)
            for each in chosen
        ], self._optimizer.hyper)

    def _update(self, chosen: list[Parameter]) -> None:
        """Run the optimizer here, on each device's weights with that device's gradient."""
        for each in chosen:
            for local, weight, gradient in zip(
                self._local, each.read_weights(), each.gradients(), strict=True
            ):
                local.adopt(each.key, weight)
                local.push(each.key, gradient)
            each.put_weights()
