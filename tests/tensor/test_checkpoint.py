"""The form of a checkpoint: what is written is read, whole or not at all."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from asyncps.errors import AsyncPSError, CheckpointError
from asyncps.tensor import checkpoint, checkpointwriter, dtypes, safefile

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [dtypes.numpy_dtype(name) for name in dtypes.NAMES]


def weights() -> dict[Any, Any]:
    made: dict[Any, Any] = {
        f"w {dtype.name}": np.arange(5).astype(dtype) for dtype in DTYPES
    }
    made |= {"none": np.zeros((0, 3), "f4"), "scalar": np.array(3, "i8"), "ä/b": np.ones((2, 1, 3))}
    return made | {5: np.full(2, 5, "f4"), "5": np.full(3, 55, "f2"), -(2**63): np.ones(1, BF16)}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = {5: {"momentum": np.arange(2, dtype="f4")}, "ä/b": {"m": np.ones(6), "v": np.zeros(6)}}
    meta = {"clocks": [[5, 7], ["5", 8]], "optimizer": None, "x": [1.5, True, "ß"]}
    checkpoint.write(tmp_path / "c", weights(), state, meta)
    found = checkpoint.read(tmp_path / "c")
    assert found.meta == meta
    same_arrays(found.weights, weights())
    assert found.state.keys() == state.keys()
    for key, arrays in state.items():
        same_arrays(found.state[key], arrays)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "checkpoint.json", "state.safetensors", "weights.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def same_arrays(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    assert {(type(key), key) for key in found} == {(type(key), key) for key in expected}
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        assert found[key].shape == array.shape
        assert found[key].tobytes() == array.tobytes()
        assert found[key].flags.writeable


KEYS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from(["5", "int:5", "__metadata__", "str:5", ""]),
    st.sampled_from([5, 0]), st.text(max_size=6).filter(lambda t: t.isascii() or t.isprintable()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(KEYS, unique=True, max_size=8), data=st.data())
def test_any_keys_stay_apart(tmp_path: Path, keys: list[Any], data: st.DataObject) -> None:
    arrays = {}
    for key in keys:
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = data.draw(st.sampled_from(DTYPES))
        arrays[key] = np.random.default_rng(len(arrays)).integers(0, 100, shape).astype(dtype)
    state = {key: {"s": array} for key, array in arrays.items()}
    checkpoint.write(tmp_path / "c", arrays, state, {})
    found = checkpoint.read(tmp_path / "c")
    same_arrays(found.weights, arrays)
    same_arrays({key: each["s"] for key, each in found.state.items()}, arrays)


def test_safetensors_alone_reads_the_weights(tmp_path: Path) -> None:
    made = weights()
    checkpoint.write(tmp_path / "c", made, {}, {})
    path = tmp_path / "c" / "weights.safetensors"
    with safe_open(path, framework="np") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        assert np.array_equal(file.get_tensor("ä/b"), made["ä/b"])
        assert file.get_tensor("int:5").tolist() == [5, 5]
        assert file.get_tensor("5").tolist() == [55, 55, 55]
    assert types["w bfloat16"] == "BF16"
    assert types["w float16"] == "F16"
    checkpoint.write(tmp_path / "d", {"w": made["ä/b"]}, {}, {})
    assert np.array_equal(load_file(tmp_path / "d" / "weights.safetensors")["w"], made["ä/b"])


def test_weights_that_safetensors_has_written_are_read(tmp_path: Path) -> None:
    made = {f"w {dtype.name}": np.arange(5).astype(dtype) for dtype in DTYPES}
    checkpoint.write(tmp_path / "c", made, {}, {})
    save_file(made, tmp_path / "c" / "weights.safetensors", metadata={"by": "another"})
    same_arrays(checkpoint.read(tmp_path / "c").weights, made)


def test_an_older_checkpoint_is_replaced(tmp_path: Path) -> None:
    for number in range(3):
        checkpoint.write(tmp_path / "c", {f"w{number}": np.full(3, number, "f4")}, {}, {})
        assert list(checkpoint.read(tmp_path / "c").weights) == [f"w{number}"]
    (tmp_path / "empty").mkdir()
    checkpoint.write(tmp_path / "empty", {"w": np.ones(3)}, {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "empty"]


def test_open_one_is_the_same_after_a_newer_one_has_taken_its_place(tmp_path: Path) -> None:
    def write(more: int) -> None:
        names = ["w", *(f"more {i}" for i in range(more))]
        checkpoint.write(tmp_path / "c", {name: np.full(1000, more, "f4") for name in names}, {}, {
            "more": more})

    write(1)
    with checkpoint.Reader(tmp_path / "c") as reader:
        write(3)
        assert reader.meta == {"more": 1}
        found = reader.read_whole()
        assert set(found.weights) == {"w", "more 0"}
        assert all((array == 1).all() for array in found.weights.values())


def test_one_that_is_replaced_while_it_is_opened_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened, turn = safefile._open_in, 0, 0

    def open_slowly(place: int, path: str, flags: int) -> int:
        nonlocal opened
        opened += 1
        if opened == turn:
            checkpoint.write(tmp_path / "c", {"new": np.ones(30)}, {}, {"new": True})
        return real(place, path, flags)

    monkeypatch.setattr(safefile, "_open_in", open_slowly)
    for turn in range(1, 5):  # noqa: B007 - the function above looks at it
        checkpoint.write(tmp_path / "c", {"old": np.zeros(3)}, {}, {"new": False})
        opened = 0
        found = checkpoint.read(tmp_path / "c")
        assert list(found.weights) == (["new"] if found.meta["new"] else ["old"])


def test_where_names_cannot_be_exchanged_an_older_one_is_put_aside_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        def renameat2(self, *_: Any) -> int:
            return -1

    monkeypatch.setattr(checkpointwriter.ctypes, "CDLL", lambda *_, **__: Libc())
    for number in range(2):
        checkpoint.write(tmp_path / "c", {f"w{number}": np.ones(3)}, {}, {})
    assert list(checkpoint.read(tmp_path / "c").weights) == ["w1"]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond 64 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_one(tmp_path: Path, full_disk: None) -> None:
    checkpoint.write(tmp_path / "c", {"w": np.ones(3, "f4")}, {}, {"old": True})
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.write(tmp_path / "c", {"w": np.ones(100_000, "f4")}, {}, {})
    assert checkpoint.read(tmp_path / "c").meta == {"old": True}
    with pytest.raises(CheckpointError, match="could not be written"):
        checkpoint.write(tmp_path / "d", {"w": np.ones(100_000, "f4")}, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_what_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter 1").write_text("It")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(mine)
    for name in ("thesis", "file", "link", "no folder/c"):
        with pytest.raises(CheckpointError):
            checkpoint.write(tmp_path / name, {"w": np.ones(3)}, {}, {})
    assert (mine / "chapter 1").read_text() == "It"
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(("arrays", "state", "meta"), [
    ({"w": np.ones(3, "c8")}, {}, {}), ({"w": np.ones((4, 4))[:, ::2]}, {}, {}),
    ({"\ud800": np.ones(3)}, {}, {}), ({}, {"w": {"a/b": np.ones(3)}}, {}),
    ({}, {}, {"x": float("nan")}), ({}, {}, {"x": object()}),
])  # fmt: skip
def test_what_cannot_be_written_is_a_typed_error(
    tmp_path: Path, arrays: Any, state: Any, meta: Any
) -> None:
    with pytest.raises(AsyncPSError):
        checkpoint.write(tmp_path / "c", arrays, state, meta)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["checkpoint.json", "state.safetensors", "weights.safetensors"])
def test_a_cut_or_foreign_file_is_a_typed_error(tmp_path: Path, name: str) -> None:
    checkpoint.write(tmp_path / "c", {"w": np.ones(9)}, {"w": {"m": np.ones(9)}}, {"a": 1})
    path = tmp_path / "c" / name
    whole = path.read_bytes()
    foreign = [b"", b"PK\x03\x04" + b"x" * 99, b"\xff" * 200, b"[]", b'{"format": 3}', b"[" * 99999]
    for bad in [whole[:n] for n in range(len(whole))] + [whole + b"x", *foreign]:
        path.write_bytes(bad)
        with pytest.raises(CheckpointError):
            checkpoint.read(tmp_path / "c")
        with pytest.raises(CheckpointError):
            checkpoint.show(tmp_path / "c")
    path.unlink()
    with pytest.raises(CheckpointError):
        checkpoint.read(tmp_path / "c")
    path.mkdir()
    with pytest.raises(CheckpointError):
        checkpoint.read(tmp_path / "c")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        checkpoint.write(tmp_path / name, {name: np.ones(3)}, {}, {})
    (tmp_path / "a" / "weights.safetensors").replace(tmp_path / "b" / "weights.safetensors")
    with pytest.raises(CheckpointError, match="belong together"):
        checkpoint.read(tmp_path / "b")
    save_file({"b": np.ones(3, bool)}, tmp_path / "b" / "weights.safetensors")
    with pytest.raises(CheckpointError, match="BOOL"):
        checkpoint.read(tmp_path / "b")
    path = tmp_path / "b" / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(CheckpointError, match="version"):
        checkpoint.read(tmp_path / "b")


def test_show_tells_what_is_there_without_reading_it(tmp_path: Path) -> None:
    checkpoint.write(
        tmp_path / "c", {5: np.ones((2, 3), "f2"), "5": np.ones(4)}, {5: {"m": np.ones(6, "f4")}},
        {"a": 1},
    )
    entries, meta = checkpoint.show(tmp_path / "c")
    assert meta == {"a": 1}
    assert [(e.key, e.state, e.dtype, e.shape) for e in entries] == [
        (5, None, "float16", (2, 3)), (5, "m", "float32", (6,)), ("5", None, "float64", (4,))]


def test_what_a_killed_writer_has_left_is_removed_and_what_another_writes_is_not(
    tmp_path: Path,
) -> None:
    left = tmp_path / ".c.0123abcd.tmp"
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    others = [".d.0123abcd.tmp", ".c.0123abcd.tmp.old", ".c.x.tmp"]
    for name in others:
        (tmp_path / name).mkdir()
    contents = checkpoint.Contents({"w": checkpoint.Entry("float32", (3,))}, {})
    with checkpoint.Writer(tmp_path / "c", contents, {}) as slow:
        assert not left.exists()
        checkpoint.write(tmp_path / "c", {"w": np.ones(3, "f4")}, {}, {})
        slow.write("w", None, 4, np.full(2, 7, "f4").view(np.uint8).data)
        slow.finish()
    assert checkpoint.read(tmp_path / "c").weights["w"].tolist() == [0, 7, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "c"])


def test_writers_of_one_place_do_not_take_each_other_for_left_over(tmp_path: Path) -> None:
    def many(number: int) -> None:
        for turn in range(10):
            checkpoint.write(tmp_path / "c", {"w": np.full(3, number, "f4")}, {}, {"turn": turn})

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(many, range(6)))
    assert len(set(checkpoint.read(tmp_path / "c").weights["w"].tolist())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("name", ["checkpoint.json", "weights.safetensors", "state.safetensors"])
def test_what_is_no_file_is_refused_and_holds_nobody(tmp_path: Path, name: str) -> None:
    checkpoint.write(tmp_path / "c", {"w": np.ones(3, "f4")}, {}, {})
    (tmp_path / "c" / name).unlink()
    os.mkfifo(tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match="no file"):
        checkpoint.read(tmp_path / "c")
