"""Arrays of every kind go in and come out with the right numbers, or a typed error says why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps.errors import DtypeMismatch, TensorError
from asyncps.kvstore import KVStore
from tests.kvstore.scenarios import BF16, DTYPES
from tests.support.cluster import on_cluster

Array = np.ndarray[Any, Any]

SHAPES: dict[str, tuple[int, ...]] = {
    "nothing": (0,), "nothing in two": (3, 0, 2), "one": (1,), "scalar": (), "odd": (7,),
    "five": (2, 3, 1, 2, 5), "odd large": (100_003,), "five large": (7, 5, 3, 2, 211),
}


def numbers(shape: tuple[int, ...], dtype: Any = "f4", start: int = 0) -> Array:
    """Different small whole numbers, exact in every dtype."""
    size = int(np.prod(shape))
    return ((np.arange(size) + start) % 11).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_every_shape_of_every_dtype_is_summed(dtype: str, transport: str) -> None:
    kind = DTYPES[dtype]

    def work(store: KVStore) -> None:
        n = store.num_workers
        for name, shape in SHAPES.items():
            store.init(name, numbers(shape, kind, 5))
            assert np.array_equal(store.pull(name), numbers(shape, kind, 5))
        for name, shape in SHAPES.items():
            store.push(name, numbers(shape, kind, store.rank))
        for name, shape in SHAPES.items():
            got = store.pull(name)
            assert got.dtype == kind
            assert got.shape == shape
            expected = sum(numbers(shape, "f8", rank) for rank in range(n))
            assert np.array_equal(got.astype("f8"), expected), name

    on_cluster(work, transport=transport)


def views_of(plain: Array) -> dict[str, Array]:
    """The same numbers in arrays of other layouts (shape (2, k))."""
    wide = np.zeros((plain.shape[0], plain.shape[1] * 2), plain.dtype)
    wide[:, ::2] = plain
    read_only = plain.copy()
    read_only.flags.writeable = False
    raw = np.zeros(plain.nbytes + 1, "u1")
    odd = raw[1:].view(plain.dtype).reshape(plain.shape)  # unaligned
    odd[...] = plain
    return {
        "strided": wide[:, ::2], "fortran": np.asfortranarray(plain),
        "negative": plain[::-1, ::-1].copy()[::-1, ::-1], "read-only": read_only,
        "broadcast": np.broadcast_to(plain[:1], plain.shape), "unaligned": odd,
        "subclass": plain.copy().view(type("Mine", (np.ndarray,), {})),
    }


@pytest.mark.parametrize("columns", [3, 50_000])
def test_values_of_any_layout_are_right(columns: int) -> None:
    def work(store: KVStore) -> None:
        plain = numbers((2, columns))
        for name, value in views_of(plain).items():
            expected = np.array(value)
            for verb in ("init", "assign", "push", "lend", "pushpull", "devices"):
                key = f"{name} {verb}"
                zero = np.zeros_like(expected)
                store.init(key, value if verb == "init" else zero)
                out = np.zeros_like(expected)
                if verb == "assign":
                    store.assign(key, value)
                elif verb == "push":
                    store.push(key, value)
                elif verb == "lend":
                    store.push(key, value, copy=False).wait(10)
                elif verb == "devices":
                    store.push(key, [value, value])
                elif verb == "pushpull":
                    store.pushpull(key, value, out=out)
                    assert np.array_equal(out, expected), key
                times = 2 if verb == "devices" else 1
                assert np.array_equal(store.pull(key), expected * times), key

    on_cluster(work, workers=1, servers=2)


@pytest.mark.parametrize("columns", [3, 50_000])
def test_outs_of_any_layout_are_filled_or_refused(columns: int) -> None:
    def work(store: KVStore) -> None:
        plain = numbers((2, columns))
        store.init("w", plain)
        for name, out in views_of(np.zeros_like(plain)).items():
            if not out.flags.writeable:
                with pytest.raises(TensorError, match="'w'"):
                    store.pull("w", out=out)
                with pytest.raises(TensorError, match="'w'"):
                    store.pushpull("w", out)
                continue
            assert store.pull("w", out=out) is out
            assert np.array_equal(out, plain), name
        big_endian = np.zeros_like(plain, dtype=">f4")
        for verb in (
            lambda: store.pull("w", out=big_endian), lambda: store.push("w", big_endian),
            lambda: store.pushpull("w", plain, out=big_endian), lambda: store.pushpull(
                "w", big_endian),
        ):  # fmt: skip
            with pytest.raises(DtypeMismatch, match="'w'"):
                verb()
        with pytest.raises(DtypeMismatch, match="'x'"):
            store.init("x", big_endian)
        mine = numbers((2, columns), start=3)
        strided = np.zeros((2, columns * 2), "f4")[:, ::2]
        strided[...] = mine
        assert store.pushpull("w", strided) is strided
        assert np.array_equal(strided, mine)

    on_cluster(work, workers=1, servers=2)


@pytest.mark.parametrize("size", [3, 300_000])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: [v, v]],
                         ids=["array", "one device", "two devices"])
def test_pushed_value_may_change_at_once(size: int, wrap: Any) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.barrier()
        times = 2 if isinstance(wrap(0), list) and len(wrap(0)) == 2 else 1
        for turn in range(3):
            value = np.full(size, turn + 1, "f4")
            store.push("w", wrap(value))
            value[:] = -99
            assert np.all(store.pull("w") == times * (turn + 1) * store.num_workers)

    on_cluster(work, transport="tcp")


def test_other_holders_of_memory_are_copied_too() -> None:
    class Holder:
        def __init__(self, array: Array) -> None:
            self.array = array

        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            return self.array

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(300_000, "f4"))
        for turn in range(3):
            value = np.full(300_000, turn + 1, "f4")
            store.push("w", Holder(value))
            value[:] = -99
            assert np.all(store.pull("w") == turn + 1)

    on_cluster(work, workers=1, transport="tcp")


def test_lent_value_is_read_until_the_handle_resolves_and_then_free() -> None:
    def work(store: KVStore) -> None:
        value = np.zeros(300_000, "f4")
        store.init("w", value)
        for turn in range(3):
            value[:] = turn + 1
            handle = store.push("w", value, copy=False)
            assert handle.wait(10) is None
            value[:] = -99
            assert np.all(store.pull("w") == (turn + 1) * store.num_workers)

    on_cluster(work, transport="tcp")


def test_lists_of_keys_keep_their_order_large_and_small_mixed() -> None:
    def work(store: KVStore) -> None:
        shapes: dict[str | int, tuple[int, ...]] = {
            "b": (3,), "big": (200, 300), 7: (2, 2), "none": (0,), "a": (5,), "large": (70_000,),
        }
        keys = list(shapes)
        store.init(keys, [np.full(shapes[k], i, "f4") for i, k in enumerate(keys)])
        for order in (keys, keys[::-1], keys[2:] + keys[:2], tuple(keys)):
            got = store.pull(order)
            assert isinstance(got, list)
            for key, value in zip(order, got, strict=True):
                assert value.shape == shapes[key]
                assert np.all(value == keys.index(key))
        values = [np.full(shapes[k], 10 * i + store.rank, "f4") for i, k in enumerate(keys)]
        outs = [np.zeros(shapes[k], "f4") for k in keys]
        got = store.pushpull(keys, values, out=outs)
        assert all(a is b for a, b in zip(got, outs, strict=True))
        n = store.num_workers
        for i, out in enumerate(outs):
            assert np.all(out == 10 * i * n + n * (n - 1) / 2)
        assert store.pull([]) == []
        assert store.push([], []).wait(5) is None
        devices = [[value, value] for value in values]
        store.push(keys, devices)
        for i, value in enumerate(store.pull(keys)):
            assert np.all(value == 2 * (10 * i * n + n * (n - 1) / 2))

    on_cluster(work)


def test_bfloat16_sums_are_rounded_once() -> None:
    def work(store: KVStore) -> None:
        store.init("b", np.zeros(3, BF16))
        value = np.full(3, 1e-3, BF16)
        got = store.pushpull("b", [value] * 64, out=np.zeros(3, BF16))
        expected = (np.float32(value[0]) * np.float32(64 * store.num_workers)).astype(BF16)
        assert np.all(got == expected)

    on_cluster(work)


def test_nan_and_infinities_travel_unchanged() -> None:
    def work(store: KVStore) -> None:
        for name, dtype in DTYPES.items():
            if "f" not in name:
                continue
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 1], "f4").astype(dtype)
            store.init(name, special)
            assert store.pull(name).tobytes() == special.tobytes(), name

    on_cluster(work)


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_one_array_is_no_place_for_two_keys(kind: str, size: int) -> None:
    with asyncps.create(kind) as store:
        store.init(["a", "b"], [np.zeros(size, "f4"), np.ones(size, "f4")])
        one, two = np.full(size, 7, "f4"), np.full(size, 7, "f4")
        for verb in (
            lambda: store.pull(["a", "b"], out=[one, one]),
            lambda: store.pull(["a", "b"], out=[[two, one], [one]]),
            lambda: store.pushpull(["a", "b"], [one, one]),
            lambda: store.pushpull(["a", "b"], [one, two], out=[two, two]),
        ):
            with pytest.raises(TensorError, match=r"two keys \(key 'b'.*got that of key 'a'"):
                verb()
        assert (one == 7).all()
        store.pull(["a", "b"], out=[[one, one], two])  # twice of one key does no harm
        assert (one == 0).all()
        assert (two == 1).all()
        store.push(["a", "b"], [two, two])  # what is only sent may be one
        assert all((value == 1).all() for value in store.pull(["a", "b"]))


@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_one_array_is_no_place_for_rows_of_two_keys(kind: str) -> None:
    rows = asyncps.RowSparse([1], np.ones((1, 2), "f4"), (5, 2))
    with asyncps.create(kind) as store:
        store.init(["s", "t"], [asyncps.initializer.Zero(), asyncps.initializer.One()],
                   shape=(5, 2))
        out = np.full((1, 2), 7, "f4")
        for verb in (
            lambda: store.row_sparse_pull(["s", "t"], [[1], [2]], out=[out, out]),
            lambda: store.pushpull(["s", "t"], [rows, rows], out=[out, out]),
        ):
            with pytest.raises(TensorError, match=r"two keys \(key 't'.*got that of key 's'"):
                verb()
        assert (out == 7).all()
        found = store.row_sparse_pull(["s", "t"], [[1], [2]], out=[out, out.copy()])
        assert [each.values[0, 0] for each in found] == [0, 1]
