"""From what users hand in to what travels: checks, copies, gathered rows, and the way back.

Runs in the caller's thread, so that a wrong argument raises there before anything is sent, and so
that gathering does not take the loop's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncps.errors import (
    ConfigError,
    DtypeMismatch,
    KeyExists,
    ShapeMismatch,
    TensorError,
    is_text,
    shown,
)
from asyncps.roles.coded import Coded, SlabRows
from asyncps.roles.plan import KeyInfo, Plan, SlabPlan, describe
from asyncps.state.openings import MAX_NAME
from asyncps.tensor import dtypes
from asyncps.tensor.arrays import NotNumbers, to_host
from asyncps.tensor.pool import POOLED_BYTES, Bytes, SharedPool
from asyncps.tensor.rowsparse import RowSparse
from asyncps_ext import wire

Array = npt.NDArray[Any]
Key = int | str

check_rows: Callable[..., int] = wire.check_rows
gather_rows: Callable[..., int] = wire.gather_rows
scatter_rows: Callable[..., int] = wire.scatter_rows
distinct: Callable[..., bool] = wire.distinct

_LARGEST_KEY = 1 << 63
PLAIN_KEYS = {str, int}
_SEVERAL = (list, tuple)  # one value a device
_NO_ARRAYS = (int, float, complex, np.generic, list, tuple)  # bool is an int
_ONE_A_DEVICE = "a list is one value a device; for one array write np.array([...])"


def as_key(key: object) -> Key:
    """Return a key as it travels.

    Raises:
        ConfigError: It is no str and no 64-bit int.
    """
    if type(key) is str:
        return key
    if isinstance(key, (int, np.integer)) and not isinstance(key, (bool, np.bool_)):
        number = int(key)
        if -_LARGEST_KEY <= number < _LARGEST_KEY:
            return number
    if isinstance(key, str):
        return str(key)
    raise ConfigError("a key is a str or a 64-bit int", got=shown(key))


def as_keys(keys: object) -> tuple[tuple[Key, ...], bool]:
    """Return keys as a tuple, and whether a list was given.

    Raises:
        ConfigError: Something that is no key.
        KeyExists: A key twice.
    """
    if not isinstance(keys, (list, tuple)):
        return (as_key(keys),), False
    result = tuple(keys)
    if not set(map(type, result)) <= PLAIN_KEYS:
        result = tuple([as_key(key) for key in keys])
    for number in result:
        if type(number) is int and not -_LARGEST_KEY <= number < _LARGEST_KEY:
            as_key(number)
    if len(set(result)) != len(result):
        twice = next(key for key in result if result.count(key) > 1)
        raise KeyExists("a key twice in one call", key=twice)
    return result, True


def check_text(keys: Sequence[Key]) -> None:
    """Refuse strings that have no UTF-8 form (lone surrogates): keys travel as text.

    Raises:
        ConfigError: There is one.
    """
    for key in keys:
        if isinstance(key, str) and not key.isascii() and not is_text(key):
            raise ConfigError("a key that is no Unicode text", got=shown(key))


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a store.

    Raises:
        ConfigError: It is no text of 1 to 1024 characters, or has no UTF-8 form.
    """
    if not is_text(name) or not 0 < len(str(name)) <= MAX_NAME:
        raise ConfigError("the name of a store cannot be that", got=shown(name),
                          expected=f"text of 1 to {MAX_NAME} characters")


def as_priority(priority: object) -> int:
    """Return a priority as it travels.

    Raises:
        ConfigError: It is no integer of 32 bits.
    """
    if isinstance(priority, (int, np.integer)) and -(1 << 31) <= priority < 1 << 31:
        return int(priority)
    raise ConfigError("a priority is a 32-bit integer", got=shown(priority))


def as_values(count: int, values: object, listed: bool) -> Sequence[Any]:
    """Return one value (or list of device values) a key.

    Raises:
        TensorError: Not as many values as keys.
    """
    if not listed:
        return [values]
    if not isinstance(values, (list, tuple)) or len(values) != count:
        got = len(values) if isinstance(values, (list, tuple)) else type(values).__name__
        raise TensorError("a list of keys takes as many values", expected=count, got=got)
    return values


def host_array(value: object, key: Key) -> Array:
    """Return one value as a C-contiguous array on the host; itself if it is one.

    Raises:
        TensorError: It is no array.
    """
    if type(value) is np.ndarray and value.flags.c_contiguous:
        return value
    if isinstance(value, RowSparse):
        raise TensorError("rows for a key that is not row-sparse", key=key, expected="an array",
                          got=value)
    if isinstance(value, (list, tuple)):
        raise TensorError(_ONE_A_DEVICE, key=key, got=_short(value))
    try:
        array = np.asarray(to_host(value))  # a subclass of ndarray as what it is inside
    except NotNumbers:
        raise TensorError("not an array of numbers", key=key, got=type(value).__name__) from None
    except (TypeError, ValueError) as error:
        raise TensorError(f"not an array: {error}", key=key, got=type(value).__name__) from None
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def device_values(value: object, key: Key) -> Sequence[Any]:
    """Return the values of several devices for one key; one that is no list is that of one device.

    Raises:
        TensorError: An empty list; or one of plain numbers or lists: an array was meant, and its
            numbers would be summed as those of devices.
    """
    if not isinstance(value, (list, tuple)):
        return (value,)
    if not value:
        raise TensorError("an empty list of device values", key=key)
    if any(isinstance(item, _NO_ARRAYS) for item in value):
        raise TensorError(_ONE_A_DEVICE, key=key, got=_short(value))
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def merged(value: object, key: Key) -> Array:
    """Return one array for a key: a list of device values is summed, f16 and bf16 in f32."""
    if not isinstance(value, (list, tuple)):
        return host_array(value, key)
    arrays = [host_array(item, key) for item in device_values(value, key)]
    first = arrays[0]
    for other in arrays[1:]:
        if other.dtype != first.dtype:
            raise DtypeMismatch("device values of one key differ", key=key, expected=first.dtype,
                                got=other.dtype)
        if other.shape != first.shape:
            raise ShapeMismatch("device values of one key differ", key=key, expected=first.shape,
                                got=other.shape)
    if len(arrays) == 1:
        return first
    dtype = dtypes.by_name(dtypes.name_of(first.dtype))
    flat = [array.reshape(-1).view(dtype.bits) for array in arrays]
    total = dtype.widened(flat[0])
    for array in flat[1:]:
        dtype.add(total, array)
    if dtype.narrow is not None:
        wide, total = total, np.empty(first.size, dtype.bits)
        dtype.narrow(total, wide)
    return total.view(first.dtype).reshape(first.shape)


def check(array: Array, info: KeyInfo) -> Array:
    """Return the array if it has its key's dtype and shape.

    Raises:
        DtypeMismatch: It has not.
        ShapeMismatch: It has not.
    """
    if array.dtype != info.dtype:
        raise DtypeMismatch("a value of another dtype than its key", key=info.key,
                            expected=info.dtype, got=array.dtype)
    if array.shape != info.shape:
        raise ShapeMismatch("a value of another shape than its key", key=info.key,
                            expected=info.shape, got=array.shape)
    return array


def named_keys(keys: Any) -> str | list[Key] | None:
    """Return whom words of compression are of: all, a pattern, or keys; ConfigError for nobody."""
    named = keys if keys is None else str(keys) if isinstance(keys, str) else list(as_keys(keys)[0])
    if named == []:
        raise ConfigError("compression of no keys", got="[]",
                          expected="a pattern, a key, a list of keys, or None for all")
    check_text([named] if isinstance(named, str) else named or [])
    return named


def key_spec(key: Key, array: Array) -> Any:
    """Describe a key by its first value.

    Raises:
        DtypeMismatch: Values of that dtype cannot be stored.
    """
    try:
        name = dtypes.name_of(array.dtype)
    except DtypeMismatch as error:
        error.key = key
        raise
    return describe(key, name, array.shape, array.dtype.itemsize)


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of a contiguous array without a copy (any dtype, ml_dtypes' included)."""
    return array.reshape(-1).view(np.uint8).data


def _is_made_here(array: Array, value: object) -> bool:
    """Tell whether what `merged` made of a value is new memory, and not the caller's."""
    if isinstance(value, (list, tuple)):
        return len(value) > 1
    return isinstance(value, np.ndarray) and not np.may_share_memory(array, value)


class Outgoing:
    """The values of one call, checked and ready to be sent.

    Args:
        plan: Where the keys live.
        values: One value a key.
        copy: Copy large values; small ones are gathered, which is a copy anyhow.
        pool: Where copies live until `release`.

    Attributes:
        large: Bytes of the large values, or what `Compression.encode` makes of them.
        slabs: Gathered rows, or likewise.
        copied_bytes: What the copies take.
    """

    __slots__ = ("_pool", "copied_bytes", "large", "pooled", "slabs")

    def __init__(
        self, plan: Plan, values: Sequence[object], *, copy: bool, pool: SharedPool
    ) -> None:
        self._pool = pool
        self.pooled: list[Bytes] = []
        self.copied_bytes = 0
        self.slabs: list[Bytes | SlabRows] = [
            self._gather(slab, plan, values) for slab in plan.slabs
        ]
        self.large: list[memoryview | Coded] = []
        for index, info in plan.empty:
            check(merged(values[index], info.key), info)
        arrays = [check(merged(values[index], info.key), info) for index, info in plan.large]
        for place, array in enumerate(arrays):
            view = as_bytes(array)
            copies = copy and plan.rules[place] is None  # one that is encoded is not kept
            if copies and not _is_made_here(array, values[plan.large[place][0]]):
                mine = self.take(len(view))
                np.copyto(mine, view)
                view = mine.data
            if copies:
                self.copied_bytes += len(view)
            self.large.append(view)

    def _gather(self, slab: SlabPlan, plan: Plan, values: Sequence[object]) -> Bytes:
        buffer = self.take(slab.size)
        chosen = slab.pick(values)
        if gather_rows(chosen, slab.dtype, slab.shapes, buffer) >= 0:
            chosen = [
                check(merged(values[i], plan.infos[i].key), plan.infos[i]) for i in slab.indices
            ]
            bad = gather_rows(chosen, slab.dtype, slab.shapes, buffer)
            if bad >= 0:
                raise TensorError("a value that cannot be sent",
                                  key=plan.infos[slab.indices[bad]].key)
        self.copied_bytes += slab.size
        return buffer

    def release(self) -> None:
        """Give the copies back; the servers have accepted what was made of them."""
        for buffer in self.pooled:
            self._pool.give(buffer)
        self.pooled.clear()

    def take(self, size: int) -> Bytes:
        """Return memory that stays until the servers have accepted what is made of it."""
        if size < POOLED_BYTES:
            return np.empty(size, np.uint8)
        buffer = self._pool.take(size)
        self.pooled.append(buffer)
        return buffer


def check_apart(keys: Sequence[Key], outs: Sequence[Any]) -> None:
    """Refuse one array as the place of two keys' answers; memory that overlaps is not looked at.

    Args:
        keys: Of the call.
        outs: An array, a list of device arrays or None for each.

    Raises:
        TensorError: It names the second key.
    """
    if distinct(outs):
        return
    seen: dict[int, int] = {}
    for at, out in enumerate(outs):
        for each in out if isinstance(out, _SEVERAL) else (out,):
            if isinstance(each, np.ndarray) and seen.setdefault(id(each), at) != at:
                raise TensorError("one array as out of two keys", key=keys[at],
                                  expected="an array of its own",
                                  got=f"that of key {keys[seen[id(each)]]!r}")


class Incoming:
    """Where the answers of one call go.

    Args:
        plan: Where the keys live.
        outs: One array (or list of device arrays) a key, or None to make new ones.

    Attributes:
        arrays: One array a key, filled at the end.
        large: Bytes of the large keys' places.
        slabs: The arrays of each slab's rows.
        finishing: Copies to be made at the end.

    Raises:
        TensorError: An array that cannot take its key's value.
    """

    __slots__ = ("arrays", "finishing", "large", "slabs")

    def __init__(self, plan: Plan, outs: Sequence[Any] | None) -> None:
        self.finishing: list[Callable[[], None]] = []
        if outs is None:
            outs = [np.empty(info.shape, info.dtype) for info in plan.infos]
        elif not distinct(outs):  # else no list of keys is made
            check_apart([info.key for info in plan.infos], outs)
        self.arrays = outs
        self.slabs = [self._rows(slab, plan, outs) for slab in plan.slabs]
        self.large = [as_bytes(self._place(outs[index], info)) for index, info in plan.large]
        for index, info in plan.empty:
            self._place(outs[index], info)

    def _rows(self, slab: SlabPlan, plan: Plan, outs: Sequence[Any]) -> Sequence[Any]:
        chosen = slab.pick(outs)
        if check_rows(chosen, slab.dtype, slab.shapes, True) < 0:
            return chosen
        return [self._place(outs[index], plan.infos[index]) for index in slab.indices]

    def _place(self, out: Any, info: KeyInfo) -> Array:
        targets = list(out) if isinstance(out, _SEVERAL) else [out]
        if not targets:
            raise TensorError("an empty list of arrays", key=info.key)
        for target in targets:
            if not isinstance(target, np.ndarray):
                raise TensorError("out must be a NumPy array", key=info.key,
                                  got=type(target).__name__)
            check(target, info)
            if not target.flags.writeable:
                raise TensorError("out is read-only", key=info.key)
        place: Array = targets[0]
        if not place.flags.c_contiguous or type(place) is not np.ndarray:
            place = np.empty(info.shape, info.dtype)
        for target in targets:
            if target is not place:
                self.finishing.append(partial(np.copyto, target, place))
        return place
