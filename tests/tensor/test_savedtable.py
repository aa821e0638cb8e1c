"""Tables in checkpoints: rows that were made, from some servers onto others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from asyncps import optim
from asyncps.errors import CheckpointError, DtypeMismatch, ShapeMismatch
from asyncps.initializer import Constant, Normal, One
from asyncps.tensor import checkpoint
from asyncps.tensor.dtypes import by_name
from asyncps.tensor.savedtable import SavableTable, give_rows, pieces_of, rows_of
from asyncps.tensor.table import Step, Table

SHAPE = (40, 2, 3)


def tables(dtype: str, edges: list[int]) -> list[Table]:
    """The parts of one table on servers that begin at these rows."""
    stops = [*edges[1:], SHAPE[0]]
    return [Table("emb", SHAPE, by_name(dtype), Normal(0.5, seed=3), first=first, stop=stop)
            for first, stop in zip(edges, stops, strict=True)]


def train(parts: list[Table], turns: range) -> None:
    for turn in turns:
        chosen = np.random.default_rng(turn).choice(SHAPE[0], 9, replace=False)
        ids = np.sort(chosen).astype(np.int64)
        sums = np.random.default_rng(100 + turn).standard_normal((9, 6))
        step = Step("adam", optim.by_name("adam")(learning_rate=0.1).hyper, turn + 1)
        for part in parts:
            mine = (ids >= part.first) & (ids < part.stop)
            part.apply(ids[mine], sums[mine].astype(part.dtype.sum).reshape(-1), step)


def everything(parts: list[Table]) -> bytes:
    found = b""
    for part in parts:
        ids = np.arange(part.first, part.stop)
        out = np.empty(ids.size * part.width, part.dtype.bits)
        part.gather(ids, out)
        found += out.tobytes()
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    dtype=st.sampled_from(["float32", "float16", "float64"]),
    first=st.lists(st.integers(1, 39), unique=True, max_size=3),
    second=st.lists(st.integers(1, 39), unique=True, max_size=3),
)
def test_rows_go_on_on_other_servers_as_if_nothing_had_been(
    tmp_path: Path, dtype: str, first: list[int], second: list[int]
) -> None:
    before = tables(dtype, [0, *sorted(first)])
    train(before, range(4))
    checkpoint.write(tmp_path / "c", {}, {}, {"clocks": [["emb", 4]]},
                     {"emb": rows_of(before)})
    after = tables(dtype, [0, *sorted(second)])
    found = checkpoint.read(tmp_path / "c").tables["emb"]
    assert found.rows.size < SHAPE[0]
    for part in after:
        give_rows(part, found)
    train(before, range(4, 7))
    train(after, range(4, 7))
    assert everything(after) == everything(before)


def test_file_has_rows_values_and_state_and_words(tmp_path: Path) -> None:
    parts = tables("float32", [0, 20])
    train(parts, range(2))
    weights = {"emb/rows": np.ones(2, "f4"), 5: np.ones(1, "f4")}
    checkpoint.write(tmp_path / "c", weights, {}, {}, {"emb": rows_of(parts)})
    file = load_file(tmp_path / "c" / "tables.safetensors")
    ids = np.concatenate([part.used_ids() for part in parts])
    assert file["emb/rows"].tolist() == ids.tolist() == sorted(ids)
    assert file["emb/values"].shape == file["emb/state.mean"].shape == (ids.size, 2, 3)
    found = checkpoint.read(tmp_path / "c")
    assert found.tables["emb"].words.initializer == Normal(0.5, seed=3)
    assert found.tables["emb"].words.shape == SHAPE
    assert found.weights.keys() == weights.keys()
    listed = [(e.key, e.state) for e in checkpoint.show(tmp_path / "c")[0] if e.key == "emb"]
    assert listed == [("emb", None), ("emb", "rows"), ("emb", "state.mean"),
                      ("emb", "state.variance")]


def test_rows_are_taken_out_in_pieces() -> None:
    (table,) = tables("float32", [0])
    train([table], range(3))
    pieces = list(pieces_of(table, piece_bytes=5 * 6 * 4))
    assert [piece.rows.size for piece in pieces[:-1]] == [5] * (len(pieces) - 1)
    whole = rows_of([table])
    assert np.array_equal(np.concatenate([p.values for p in pieces]), whole.values)
    assert np.array_equal(np.concatenate([p.state["mean"] for p in pieces]), whole.state["mean"])


def test_table_that_nobody_has_used_is_saved_as_no_rows(tmp_path: Path) -> None:
    unused = [Table("t", (1 << 40, 4), by_name("float16"), One())]
    checkpoint.write(tmp_path / "c", {}, {}, {}, {"t": rows_of(unused)})
    found = checkpoint.read(tmp_path / "c").tables["t"]
    assert found.values.shape == (0, 4)
    assert found.words.shape == (1 << 40, 4)
    fresh = Table("t", (1 << 40, 4), by_name("float16"), One())
    give_rows(fresh, found)
    assert len(fresh) == 0


def test_rows_of_another_table_are_refused(tmp_path: Path) -> None:
    saved = rows_of([Table("t", (5, 2), by_name("float32"), One())])
    with pytest.raises(ShapeMismatch):
        give_rows(Table("t", (6, 2), by_name("float32"), One()), saved)
    with pytest.raises(DtypeMismatch):
        give_rows(Table("t", (5, 2), by_name("float64"), One()), saved)


@pytest.mark.parametrize("change", [
    ('"shape": [', '"shape": [7, '), ('"float32"', '"float33"'), ('"constant"', '"nothing"'),
    ('"tables": {', '"tables": {"x": 3, '), ('"float32"', '"float64"'),
])
def test_words_that_do_not_fit_are_typed_errors(tmp_path: Path, change: tuple[str, str]) -> None:
    table: SavableTable = Table("t", (5, 2), by_name("float32"), Constant(2.0))
    table.assign(np.array([1, 3]), np.ones(4, "f4"))
    checkpoint.write(tmp_path / "c", {}, {}, {}, {"t": rows_of([table])})
    path: Any = tmp_path / "c" / "checkpoint.json"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(CheckpointError):
        checkpoint.read(tmp_path / "c")
