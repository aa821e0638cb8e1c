"""What a trainer sees of its user's parameters: arrays of one or several devices, and their host.

A parameter is anything with `data` and `grad`: an array, or a list of arrays, one a local device.
Stores write into NumPy arrays only; where a parameter's own is something else, a buffer on the
host stands between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from asyncps.tensor.arrays import from_host, to_host
from asyncps.tensor.rowsparse import RowSparse
from asyncps.values import Array, Key, as_key, key_spec


class Parameter:
    """One parameter of a trainer.

    Args:
        key: Its key in the store.
        source: The user's object.

    Attributes:
        key: As given.
        fixed: It has no gradient and stays as it is (Gluon's `grad_req = "null"`).
        sparse: Its gradients are RowSparse: it has one already, or says so (`grad_stype =
            "row_sparse"`, as in Gluon).
        devices: How many local devices it has an array on.
        shape, dtype: Of the arrays.

    Raises:
        ConfigError: It has no `data` or no `grad`, or its data is not there yet.
        TensorError: Its arrays differ, or cannot be written or stored.
    """

    def __init__(self, key: Key, source: Any) -> None:
        if not hasattr(source, "data") or not hasattr(source, "grad"):
            raise ConfigError(f"parameter {key!r} is no parameter",
                              expected="something with data and grad", got=type(source).__name__)
        self.key = key
        self._source = source
        self.fixed = getattr(source, "grad_req", "write") == "null"
        given = _per_device(source.data)
        if any(type(each) in (int, float, complex, bool) for each in given):
            raise TensorError("a list is one array a device; for one array write np.array([...])",
                              key=key, got=source.data)
        if not given or any(array is None for array in given):
            raise ConfigError(f"parameter {key!r} has no data yet", expected="initialised weights")
        try:
            first = np.asarray(to_host(given[0]))
        except (TypeError, ValueError) as error:
            raise TensorError(f"not an array: {error}", key=key) from None
        self.devices = len(given)
        self.shape, self.dtype = first.shape, first.dtype
        self.sparse = not self.fixed and (
            getattr(source, "grad_stype", "default") == "row_sparse"
            or any(isinstance(each, RowSparse) for each in _per_device(source.grad))
        )
        key_spec(key, first)  # raises for a dtype that cannot be stored
        for array in given:
            self._check(array)
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                raise TensorError("weights that are read-only", key=key)
        self._hosts: dict[tuple[str, int], Array] = {}
        # What stands for a gradient that was not computed, until the step is over.
        self.stand_in: list[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one device's array."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return count * self.dtype.itemsize

    def weights(self) -> list[Array]:
        """Return one array a device to write weights to; `put_weights` makes them count."""
        return [self._place("data", i, array) for i, array in enumerate(self._data())]

    def read_weights(self) -> list[Array]:
        """Return one array a device with the weights, to be read and written as `weights`."""
        places = self.weights()
        for place, array in zip(places, self._data(), strict=True):
            if place is not array:
                np.copyto(place, to_host(array))
        return places

    def put_weights(self) -> None:
        """Bring what was written into `weights` to the parameter's own arrays."""
        if self.sparse:
            first, *others = self.weights()
            for other in others:
                np.copyto(other, first)
        self._put("data", self._data())

    def has_gradient(self) -> bool:
        """Tell whether there is a gradient on all devices, or something that stands for it."""
        return self.stand_in is not None or not any(
            array is None for array in _per_device(self._source.grad)
        )

    def stand_in_zeros(self) -> None:
        """Let zeros be the gradient of this step."""
        if self.sparse:
            self.stand_in = [RowSparse([], np.empty((0, *self.shape[1:]), self.dtype), self.shape)]
            return
        self.stand_in = [np.zeros(self.shape, self.dtype) for _ in range(self.devices)]

    def check_gradient(self) -> None:
        """Refuse a gradient that does not fit.

        Raises:
            ShapeMismatch, DtypeMismatch: It is not of the weights' devices, shape and dtype.
        """
        if self.stand_in is not None:
            return
        given = _per_device(self._source.grad)
        if len(given) != self.devices:
            raise ShapeMismatch("gradients of another number of devices", key=self.key,
                                expected=self.devices, got=len(given))
        for array in given:
            if isinstance(array, RowSparse) is not self.sparse:
                raise TensorError(
                    "a gradient of another kind", key=self.key, got=type(array).__name__,
                    expected="RowSparse" if self.sparse else "an array, or grad_stype='row_sparse'")
            self._check(array)

    def begin_rows(self, store: Any) -> None:
        """Initialise the row-sparse key of these weights."""
        every = np.arange(self.shape[0])
        store.init(self.key, RowSparse(every, self.read_weights()[0], self.shape))

    def assign(self, store: Any) -> None:
        """Let the store have these weights."""
        value: Any = self.read_weights()[0]
        if self.sparse:
            value = RowSparse(np.arange(self.shape[0]), value, self.shape)
        store.assign(self.key, value)

    def pull_rows(self, store: Any) -> None:
        """Take all rows of the store's table into `weights`."""
        store.row_sparse_pull(self.key, np.arange(self.shape[0]), out=self.weights()[0])

    def exchange_rows(self, store: Any, priority: int) -> Any:
        """Push sparse gradients and pull the weights; return the handle of the pull.

        All rows are pulled: nobody here knows which ones the others have changed.
        """
        store.push(self.key, self.gradients(), priority)
        return self.begin_pull_rows(store, priority)

    def begin_pull_rows(self, store: Any, priority: int) -> Any:
        """Pull the weights, after their gradients were pushed; return the handle."""
        return store.row_sparse_pull(
            self.key, np.arange(self.shape[0]), out=self.weights()[0], priority=priority,
            async_op=True,
        )

    def gradients(self) -> list[Any]:
        """Return one array, or RowSparse, a device with the gradient, to be read."""
        if self.stand_in is not None:
            return self.stand_in
        if self.sparse:
            return _per_device(self._source.grad)
        return [to_host(array) for array in _per_device(self._source.grad)]

    def gradient_places(self) -> list[Array]:
        """Return one array a device to write a gradient to; `put_gradients` makes them count."""
        if self.stand_in is not None:
            return self.stand_in
        given = _per_device(self._source.grad)
        return [self._place("grad", i, array) for i, array in enumerate(given)]

    def put_gradients(self) -> None:
        """Bring what was written into `gradient_places` to the parameter's own arrays."""
        if self.stand_in is None:
            self._put("grad", _per_device(self._source.grad))

    def _data(self) -> list[Any]:
        given = _per_device(self._source.data)
        if len(given) != self.devices:
            raise ShapeMismatch("weights of another number of devices", key=self.key,
                                expected=self.devices, got=len(given))
        for array in given:
            self._check(array)
        return given

    def _place(self, what: str, device: int, array: Any) -> Array:
        if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.writeable:
            return array
        key = what, device
        if key not in self._hosts:
            self._hosts[key] = np.empty(self.shape, self.dtype)
        return self._hosts[key]

    def _put(self, what: str, arrays: Sequence[Any]) -> None:
        for device, array in enumerate(arrays):
            place = self._place(what, device, array)
            if place is array:
                continue
            try:
                from_host(array, place)
            except (TypeError, ValueError) as error:
                raise TensorError(f"{what} cannot be written: {error}", key=self.key) from None

    def _check(self, array: Any) -> None:
        shape = getattr(array, "shape", None)
        if shape is None or tuple(shape) != self.shape:
            raise ShapeMismatch("arrays of one parameter differ", key=self.key,
                                expected=self.shape, got=shape)
        if array.dtype != self.dtype:
            raise DtypeMismatch("arrays of one parameter differ", key=self.key,
                                expected=self.dtype, got=array.dtype)


def parameters_of(params: Any) -> list[Parameter]:
    """Return a trainer's parameters in the order in which they were given.

    Args:
        params: A dict (its keys are the keys in the store) or a list (keys 0, 1, ...).

    Raises:
        ConfigError: It is neither, or parameters have different numbers of devices.
    """
    if isinstance(params, Mapping):
        found = [Parameter(as_key(key), source) for key, source in params.items()]
    elif isinstance(params, (list, tuple)):
        found = [Parameter(index, source) for index, source in enumerate(params)]
    else:
        raise ConfigError("params is a dict or a list of parameters", got=type(params).__name__)
    for parameter in found[1:]:
        if parameter.devices != found[0].devices:
            raise ConfigError(f"parameter {parameter.key!r} has another number of devices",
                              expected=found[0].devices, got=parameter.devices)
    return found


def _per_device(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
