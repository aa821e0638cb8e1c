"""All-reduce of several arrays in one call, and SINGA's names for sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.allended import wait_for_all
from asyncps.collectivecall import CollectiveHandle
from asyncps.errors import DtypeMismatch, ShapeMismatch, TensorError, shown
from asyncps.fusing import Fusing, Kind
from asyncps.roles.made import Verb
from asyncps.tensor import dtypes
from asyncps.tensor.arrays import to_host
from asyncps.tensor.dtypes import Array

_HALF = np.dtype(np.float16)


class GroupedVerbs:
    """Verbs over lists of arrays, and those that `wait` ends."""

    if TYPE_CHECKING:  # the communicator's
        _fusing: Fusing
        rank: int
        world_size: int

        def _in_place(self, x: Any, name: str | None) -> CollectiveHandle: ...
        def _name(self, name: str | None) -> str: ...
        def _reduction(
            self, verb: Verb, op: object, dtype: np.dtype[Any], prescale: float, postscale: float
        ) -> Kind: ...

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._begun: list[CollectiveHandle] = []  # what `wait` waits for

    # ---- several at once ----

    def grouped_all_reduce(
        self, xs: Sequence[Any], op: str = "sum", name: str | None = None, async_op: bool = False,
        prescale: float = 1.0, postscale: float = 1.0, out: Sequence[Any] | None = None,
    ) -> Any:
        """Reduce several arrays over all ranks as one call: all of them or none.

        Args:
            xs: Arrays of one dtype, as in `all_reduce`; all ranks have the same shapes in one
                order. They are read now, and written when the call has ended well and is waited
                for.
            op, name, async_op, prescale, postscale: As in `all_reduce`; one name for all.
            out: As many arrays, for the results, each as in `all_reduce`; None: `xs`, in place.

        Returns:
            A list of `xs`, or of `out` if it was given; or a handle whose `wait` returns it.

        Raises:
            CollectiveMismatch: The ranks have called differently, in whatever array: none has
                changed.
            DtypeMismatch: Arrays of several dtypes.
            As `all_reduce`.
        """
        targets = xs if out is None else out
        places = self._places(targets)
        arrays = [place.array for place in places]
        if out is not None:
            if not isinstance(xs, (list, tuple)) or len(xs) != len(arrays):
                raise TensorError("not as many arrays as outs", expected=len(arrays), got=shown(xs))
            arrays = [values_like(array, x) for array, x in zip(arrays, xs, strict=True)]
        found = {dtypes.name_of(array.dtype) for array in arrays}
        if len(found) > 1:
            raise DtypeMismatch("arrays of several dtypes in one call", expected="one",
                                got=", ".join(sorted(found)))
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        kind = self._reduction(Verb.ALL_REDUCE, op, flat.dtype, prescale, postscale)
        handle = self._post_grouped(kind, name, flat, places, list(targets), 1.0)
        return handle if async_op else handle.wait()

    # ---- SINGA's names ----

    def synch(self, x: Any) -> None:
        """Begin the sum of an array over all ranks, in place; `wait` brings it.

        Args:
            x: As in `all_reduce`.
        """
        self.fusedSynch([x])

    def fusedSynch(self, xs: Sequence[Any], send: bool = True) -> None:
        """Begin the sums of several arrays of one dtype, as one call; `wait` brings them.

        Args:
            xs: As in `grouped_all_reduce`.
            send: False looks only whether they can be summed. SINGA copies then; here values are
                those of the moment of sending.
        """
        if send:
            self._begun.append(self.grouped_all_reduce(xs, async_op=True))
        else:
            self._places(xs)

    def synchHalf(self, x: Any) -> None:
        """Begin the sum of an array with float16 on the wire; `wait` brings it.

        Args:
            x: Floats. Elements are rounded to float16 and added in float32; the sum is rounded once
                more, divided by a power of two meanwhile, so that it may be beyond float16.
        """
        self.fusedSynchHalf([x])

    def fusedSynchHalf(self, xs: Sequence[Any], send: bool = True) -> None:
        """Begin the sums of several arrays as `synchHalf` does, as one call; `wait` brings them.

        Args:
            xs: Floats, of several dtypes too.
            send: As in `fusedSynch`.
        """
        places = self._places(xs)
        for place in places:
            name = dtypes.name_of(place.array.dtype)
            if not dtypes.by_name(name).is_float:
                raise DtypeMismatch("no halves of integers", expected="floats", got=name)
        if not send:
            return
        with np.errstate(over="ignore"):  # what is beyond float16 is an infinity
            flat = np.concatenate([place.array.reshape(-1).astype(_HALF) for place in places])
        scale = float(1 << (self.world_size - 1).bit_length())
        kind = self._reduction(Verb.ALL_REDUCE, "sum", _HALF, 1.0 / scale, 1.0)
        self._begun.append(self._post_grouped(kind, None, flat, places, list(xs), scale))

    def wait(self) -> None:
        """Wait for all that `synch` and its like have begun; their arrays are written then.

        Raises:
            AsyncPSError: The first failure, once all have ended.
        """
        begun, self._begun = self._begun, []
        self._fusing.flush()
        wait_for_all(begun)

    # ---- inside ----

    def _places(self, xs: Sequence[Any]) -> list[CollectiveHandle]:
        """Return arrays on the host, and the ways back."""
        if not isinstance(xs, (list, tuple)) or not xs:
            raise TensorError("not several arrays", expected="a list of one or more",
                              got=type(xs).__name__)
        return [self._in_place(x, None) for x in xs]

    def _post_grouped(
        self, kind: Kind, name: str | None, flat: Array, places: list[CollectiveHandle],
        xs: list[Any], scale: float,
    ) -> CollectiveHandle:
        handle = CollectiveHandle(self._fusing, self._name(name), flat, None,
                                  partial(_put, flat, places, xs, scale))
        self._fusing.post(kind, handle, [], [place.array.shape for place in places])
        return handle


def _put(
    flat: Array, places: list[CollectiveHandle], xs: list[Any], scale: float, _: Any
) -> list[Any]:
    """Bring the result to the user's arrays, times `scale`."""
    begin = 0
    for place in places:
        size = place.array.size
        part = flat[begin : begin + size].reshape(place.array.shape)
        begin += size
        if scale != 1.0:
            part = part.astype(np.float32) * np.float32(scale)
        with np.errstate(over="ignore"):
            place.array[...] = part
        place.put()
    return xs


def host_of(x: Any) -> Array:
    """Return an array of the user's on the host, contiguous.

    Raises:
        TensorError: It is none of numbers.
    """
    try:
        return np.asarray(to_host(x))
    except TypeError as error:
        raise TensorError(f"not an array of numbers: {error}", got=type(x).__name__) from None


def values_like(place: Array, x: Any) -> Array:
    """Return the values of an array of the user's, whose result is to be in another place.

    Raises:
        ShapeMismatch, DtypeMismatch: They do not fit there.
    """
    values = host_of(x)
    if values.shape != place.shape:
        raise ShapeMismatch("an out of another shape", expected=values.shape, got=place.shape)
    if values.dtype != place.dtype:
        raise DtypeMismatch("an out of another dtype", expected=values.dtype, got=place.dtype)
    return values
