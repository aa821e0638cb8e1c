"""The routing table: where keys go, who waits for them, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.config import Config
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    DtypeMismatch,
    KeyExists,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
    WorkerLost,
)
from asyncps.protocol.messages import KeySpec, Piece
from asyncps.state import keyspecs
from asyncps.state import routing as module
from asyncps.state.keyspecs import size_of
from asyncps.state.routing import Routing

CHUNK, SLAB, SMALL = 64 * 1024, 16 * 1024, 4096
SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
         "int8": 1, "uint8": 1, "int32": 4, "int64": 8}


def spec(key: int | str, *shape: int, dtype: str = "float32") -> KeySpec:
    return KeySpec(key, dtype, shape, SIZES[dtype])


def table(servers: int = 2) -> Routing:
    return Routing(servers, CHUNK, SLAB, SMALL)


def test_large_key_is_cut_into_chunks_on_alternating_servers() -> None:
    (placement,) = table().declare([spec("w", 70000)])  # 280000 bytes: 4 times 65536, 17856
    assert placement.pieces == [
        Piece(0, 0, 0, 65536, -1, 0),
        Piece(1, 1, 65536, 65536, -1, 0),
        Piece(0, 2, 131072, 65536, -1, 0),
        Piece(1, 3, 196608, 65536, -1, 0),
        Piece(0, 4, 262144, 17856, -1, 0),
    ]
    assert placement.fresh


# In bytes of float32, whose edges are 16384 apart; a whole chunk is 65536, half of one 32768.
@pytest.mark.parametrize(("size", "sizes"), [
    (4100, [4100]),
    (32768, [32768]),
    (32772, [32772]),  # no chunk of 4 bytes
    (65536, [32768, 32768]),  # as large as a chunk: two halves
    (65540, [49152, 16388]),
    (98304, [32768] * 3),
    (131072, [32768] * 4),  # twice: four halves
    (160000, [49152] * 3 + [12544]),  # a quarter is 40000, two edges and a bit: three
    (196608, [49152] * 4),  # three times: four of three edges
    (200000, [65536] * 3 + [3392]),
    (262140, [65536] * 3 + [65532]),
    (262144, [65536] * 4),  # four times, and from there on: whole chunks
    (262148, [65536] * 4 + [4]),
    (327680, [65536] * 5),
    (655364, [65536] * 10 + [4]),
])  # fmt: skip
def test_key_is_cut_into_four_unless_chunks_would_be_larger_or_less_than_half(
    size: int, sizes: list[int]
) -> None:
    (placement,) = table().declare([spec("w", size // 4)])
    assert [piece.size for piece in placement.pieces] == sizes


@pytest.mark.parametrize(("mebibytes", "count", "size"), [
    (1, 2, 524288), (2, 4, 524288), (3, 4, 786432), (4, 4, 1048576), (64, 64, 1048576),
])  # fmt: skip
def test_chunks_of_the_default_size(mebibytes: int, count: int, size: int) -> None:
    config = Config()
    routing = Routing(2, config.chunk_bytes, config.slab_bytes, config.small_key_bytes)
    (placement,) = routing.declare([spec("w", mebibytes, 512, 512)])
    assert [piece.size for piece in placement.pieces] == [size] * count


def test_key_of_little_more_than_three_half_chunks_is_three() -> None:
    config = Config()
    routing = Routing(1, config.chunk_bytes, config.slab_bytes, config.small_key_bytes)
    (placement,) = routing.declare([spec("dense", 800, 500)])  # 3.05 times 512 KiB
    assert [piece.size for piece in placement.pieces] == [540672, 540672, 518656]


def test_chunk_goes_to_the_server_with_the_least_bytes() -> None:
    routing = table(3)
    routing.declare([spec("a", 8192), spec("b", 2048)])  # 32768 to 0, 8192 to 1
    (placement,) = routing.declare([spec("c", 4096)])  # 16384 to 2
    assert [piece.server for piece in placement.pieces] == [2]
    (placement,) = routing.declare([spec("d", 4096)])  # 1 holds 8192, the least
    assert [piece.server for piece in placement.pieces] == [1]
    assert routing.loads == (32768, 8192 + 16384, 16384)


@pytest.mark.parametrize(("dtype", "chunk_bytes", "size"), [
    ("float32", 20000, 16384),  # one edge of 4096 * 4 bytes fits
    ("float64", 4096, 32768),  # not even one fits: one all the same
    ("int8", 10000, 8192),
    ("float16", 49152, 49152),  # a quarter of it is 50000
    ("float16", 65536, 57344),
])
def test_chunk_edges_are_multiples_of_4096_elements(
    dtype: str, chunk_bytes: int, size: int
) -> None:
    routing = Routing(1, chunk_bytes, 4096, 4096)
    (placement,) = routing.declare([spec("w", 100000, dtype=dtype)])
    assert {piece.size for piece in placement.pieces[:-1]} == {size}
    assert 0 < placement.pieces[-1].size <= size


def test_small_keys_share_a_slab_in_the_order_declared() -> None:
    placements = table().declare([spec("a", 100), spec("b", 50), spec("c", 10)])
    assert [placement.pieces for placement in placements] == [
        [Piece(0, 0, 0, 400, 0, 0)], [Piece(0, 0, 0, 200, 1, 400)], [Piece(0, 0, 0, 40, 2, 600)],
    ]


def test_slab_is_filled_before_another_is_opened_on_the_lightest_server() -> None:
    placements = table().declare([spec(i, 1024) for i in range(9)])  # 4 of 4096 fill 16384
    pieces = [placement.pieces[0] for placement in placements]
    assert [(piece.server, piece.unit, piece.row) for piece in pieces] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3),
        (1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3), (0, 2, 0),
    ]


def test_later_call_continues_the_open_slab() -> None:
    routing = table()
    routing.declare([spec("a", 10)])
    (placement,) = routing.declare([spec("b", 10)])
    assert placement.pieces == [Piece(0, 0, 0, 40, 1, 40)]


def test_slab_holds_one_dtype() -> None:
    first, second = table().declare([spec("a", 10), spec("b", 10, dtype="int32")])
    assert first.pieces[0].unit != second.pieces[0].unit


def test_slab_holds_at_most_4096_rows() -> None:
    routing = Routing(1, CHUNK, 1 << 20, SMALL)
    placements = routing.declare([spec(i, 1) for i in range(4097)])
    assert placements[4095].pieces[0].unit == 0
    assert placements[4096].pieces == [Piece(0, 1, 0, 4, 0, 0)]


def test_key_that_fits_no_slab_is_cut_into_chunks() -> None:
    (placement,) = Routing(1, CHUNK, 4096, 32768).declare([spec("a", 2048)])
    assert placement.pieces == [Piece(0, 0, 0, 8192, -1, 0)]


def test_scalar_is_a_small_key_and_an_empty_key_has_no_pieces() -> None:
    scalar, empty = table().declare([spec("s"), spec("e", 0, 5)])
    assert scalar.pieces == [Piece(0, 0, 0, 4, 0, 0)]
    assert empty.pieces == []
    assert empty.fresh


def test_integer_and_string_of_the_same_digits_are_two_keys() -> None:
    number, text = table().declare([spec(5, 2), spec("5", 3)])
    assert number.spec.shape == (2,)
    assert text.spec.shape == (3,)


def test_key_stays_fresh_until_it_is_ready_and_never_moves() -> None:
    routing = table()
    (first,) = routing.declare([spec("w", 40000)])
    (again,) = routing.declare([spec("w", 40000)])
    assert again == first
    assert again.fresh
    routing.ready(["w"])
    (later,) = routing.declare([spec("w", 40000)])
    assert later.pieces == first.pieces
    assert not later.fresh


def test_version_rises_with_every_change_and_only_then() -> None:
    routing = table()
    assert routing.version == 0
    routing.declare([spec("a", 1), spec("b", 1)])
    assert routing.version == 1
    routing.declare([spec("a", 1)])
    assert routing.version == 1
    routing.declare([spec("c", 1)])
    assert routing.version == 2


def test_existing_key_with_another_dtype_or_shape_is_refused_and_nothing_changes() -> None:
    routing = table()
    routing.declare([spec("w", 2, 3)])
    with pytest.raises(ShapeMismatch) as shape:
        routing.declare([spec("new", 4), spec("w", 3, 2)])
    assert (shape.value.key, shape.value.expected, shape.value.got) == ("w", "(2, 3)", "(3, 2)")
    with pytest.raises(DtypeMismatch) as dtype:
        routing.declare([spec("w", 2, 3, dtype="float64")])
    assert (dtype.value.key, dtype.value.expected, dtype.value.got) == ("w", "float32", "float64")
    assert routing.version == 1
    assert routing.loads == (24, 0)
    with pytest.raises(UnknownKey):
        routing.ready(["new"])


@pytest.mark.parametrize(("bad", "error"), [
    (KeySpec("k", "float8", (1,), 1), DtypeMismatch),
    (KeySpec("k", "float32", (1,), 8), DtypeMismatch),
    (KeySpec("k", "float32", (-1,), 4), TensorError),
    (KeySpec("k", "float32", (1 << 61,), 4), TensorError),
    (KeySpec("k", "float32", (1 << 40, 1 << 40), 4), TensorError),
    (KeySpec("k", "float32", (0, 1 << 63), 4), TensorError),
    (KeySpec("k", "float32", (1,) * 65, 4), TensorError),
    (KeySpec("k" * 1025, "float32", (1,), 4), TensorError),
    (KeySpec("\u00e9" * 513, "float32", (1,), 4), TensorError),
    (KeySpec(1 << 64, "float32", (1,), 4), TensorError),
    (KeySpec("k", "int8", ((1 << 63) - 1,), 1), ConfigError),  # a shape, but too many chunks
])
def test_impossible_spec_is_refused(bad: KeySpec, error: type[AsyncPSError]) -> None:
    routing = table()
    with pytest.raises(error):
        routing.declare([spec("good", 1), bad])
    if error is not ConfigError:
        with pytest.raises(error):
            routing.wait((1, 1), [bad])
    assert routing.version == 0


def test_longest_names_and_numbers_are_accepted() -> None:
    keys: list[int | str] = ["k" * 1024, "\u00e9" * 512, 1 << 40, -(1 << 63), (1 << 64) - 1]
    assert len(table().declare([spec(key, 1) for key in keys])) == 5


def test_key_twice_in_one_call_is_refused() -> None:
    routing = table()
    with pytest.raises(KeyExists) as error:
        routing.declare([spec("a", 1), spec("a", 1)])
    assert error.value.key == "a"
    with pytest.raises(KeyExists):
        routing.wait((1, 1), [spec("a", 1), spec("a", 1)])


def test_store_has_a_largest_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, keyspecs):
        monkeypatch.setattr(each, "MAX_KEYS", 3)
    routing = table()
    routing.declare([spec("a", 1), spec("b", 1)])
    with pytest.raises(ConfigError):
        routing.declare([spec("c", 1), spec("d", 1)])
    with pytest.raises(ConfigError):
        routing.wait((1, 1), [spec(i, 1) for i in range(4)])
    routing.declare([spec("c", 1)])


def test_lookup_answers_in_the_order_asked_and_only_ready_keys() -> None:
    routing = table()
    routing.declare([spec("a", 1), spec("b", 1), spec("c", 1)])
    routing.ready(["a", "b"])
    assert [p.spec.key for p in routing.lookup(["b", "a", "b"])] == ["b", "a", "b"]
    assert not any(p.fresh for p in routing.lookup(["a"]))
    for key in ("c", "never"):
        with pytest.raises(UnknownKey) as error:
            routing.lookup(["a", key])
        assert error.value.key == key


def test_waiter_is_released_when_the_last_of_its_keys_is_ready() -> None:
    routing = table()
    assert routing.wait((1, 7), [spec("b", 2), spec("a", 1)]) is None
    routing.declare([spec("a", 1), spec("b", 2)])
    assert routing.ready(["a"]) == []
    ((waiter, placements),) = routing.ready(["b"])
    assert waiter == (1, 7)
    assert [p.spec.key for p in placements] == ["b", "a"]
    assert not any(p.fresh for p in placements)
    assert routing.ready(["a", "b"]) == []


def test_wait_for_ready_keys_needs_no_waiting() -> None:
    routing = table()
    declared = routing.declare([spec("a", 40000)])
    routing.ready(["a"])
    found = routing.wait((1, 1), [spec("a", 40000)])
    assert found is not None
    assert found[0].pieces == declared[0].pieces
    assert not found[0].fresh


def test_wait_with_another_spec_than_the_declared_is_refused_at_once() -> None:
    routing = table()
    routing.declare([spec("a", 1)])
    with pytest.raises(ShapeMismatch):
        routing.wait((1, 1), [spec("b", 1), spec("a", 2)])
    routing.declare([spec("b", 1)])
    assert routing.ready(["a", "b"]) == []


def test_wait_with_another_spec_than_the_later_declared_is_refused_then() -> None:
    routing = table()
    routing.wait((1, 1), [spec("a", 2), spec("b", 1)])
    routing.wait((2, 1), [spec("a", 1), spec("b", 1)])
    routing.declare([spec("a", 1)])
    ((waiter, error),) = routing.mismatched(["a"])
    assert waiter == (1, 1)
    assert isinstance(error, ShapeMismatch)
    assert (error.key, error.expected, error.got) == ("a", "(1,)", "(2,)")
    assert routing.mismatched(["a"]) == []
    routing.declare([spec("b", 1)])
    assert [waiter for waiter, _ in routing.ready(["a", "b"])] == [(2, 1)]


def test_waiter_that_left_is_forgotten() -> None:
    routing = table()
    routing.wait((1, 1), [spec("a", 1)])
    routing.wait((2, 1), [spec("a", 1)])
    routing.forget(1)
    routing.declare([spec("a", 1)])
    assert [waiter for waiter, _ in routing.ready(["a"])] == [(2, 1)]


def test_closed_table_lets_nobody_wait() -> None:
    routing = table()
    routing.wait((1, 1), [spec("a", 1)])
    assert routing.close(WorkerLost("worker 0 is lost", rank=0)) == [(1, 1)]
    with pytest.raises(WorkerLost, match="worker 0 is lost, before") as error:
        routing.wait((1, 2), [spec("a", 1)])
    assert error.value.key == "a"


def test_number_of_awaited_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AWAITED", 3)
    routing = table()
    routing.wait((1, 1), [spec("a", 1), spec("b", 1)])
    with pytest.raises(ConfigError):
        routing.wait((1, 2), [spec("a", 1), spec("b", 1)])
    routing.declare([spec("a", 1), spec("b", 1)])
    routing.ready(["a", "b"])
    assert routing.wait((1, 3), [spec("c", 1), spec("d", 1)]) is None


LARGE = st.builds(lambda n, dtype: (n, dtype), st.integers(4097, 300_000),
                  st.sampled_from(["float32", "float16", "int8", "float64"]))


@given(st.integers(1, 7), st.lists(LARGE, max_size=20), st.integers(0, 20))
def test_chunks_alone_lie_within_one_chunk_of_each_other(
    servers: int, keys: list[tuple[int, str]], split: int
) -> None:
    routing = table(servers)
    specs = [spec(i, n, dtype=dtype) for i, (n, dtype) in enumerate(keys)]
    placements = routing.declare(specs[:split]) + routing.declare(specs[split:])
    largest = max((piece.size for p in placements for piece in p.pieces), default=0)
    assert max(routing.loads) - min(routing.loads) <= largest


ANY = st.tuples(st.integers(0, 60_000), st.sampled_from(sorted(SIZES)))


@given(st.integers(1, 5), st.lists(ANY, max_size=60))
def test_every_byte_has_one_place(servers: int, keys: list[tuple[int, str]]) -> None:
    routing = table(servers)
    specs = [spec(i, n, dtype=dtype) for i, (n, dtype) in enumerate(keys)]
    placements = routing.declare(specs)
    loads = [0] * servers
    rows: dict[int, list[Piece]] = {}
    chunk_units = []
    for placement in placements:
        edge = 4096 * placement.spec.itemsize
        position = 0
        for piece in placement.pieces:
            assert piece.start == position
            position += piece.size
            loads[piece.server] += piece.size
            if piece.row < 0:
                chunk_units.append(piece.unit)
                assert piece.start % edge == 0
                assert piece.offset == 0
            else:
                rows.setdefault(piece.unit, []).append(piece)
        assert position == size_of(placement.spec)
    assert tuple(loads) == routing.loads
    assert sorted(chunk_units + list(rows)) == list(range(len(chunk_units) + len(rows)))
    for pieces in rows.values():
        assert len({piece.server for piece in pieces}) == 1
        assert [piece.row for piece in pieces] == list(range(len(pieces)))
        assert [piece.offset for piece in pieces] == [
            sum(p.size for p in pieces[:i]) for i in range(len(pieces))
        ]
        assert sum(piece.size for piece in pieces) <= SLAB
    small_dtypes = len({p.spec.dtype for p in placements if p.pieces and p.pieces[0].row >= 0})
    largest = max((p.size for pl in placements for p in pl.pieces if p.row < 0), default=0)
    assert max(loads) - min(loads) <= largest + small_dtypes * SLAB


def test_whole_keys_are_placed_on_one_server_and_a_cut_key_forbids_them() -> None:
    routing = Routing(2, 1 << 16, 1 << 16, 1024)
    routing.keep_whole()
    (placed,) = routing.declare([KeySpec("big", "float32", (1 << 20,), 4)])
    assert [piece.size for piece in placed.pieces] == [1 << 22]
    with pytest.raises(ConfigError, match="too large for an optimizer that needs whole keys"):
        routing.declare([KeySpec("huge", "float32", (1 << 29,), 4)])
    cut = Routing(2, 1 << 16, 1 << 16, 1024)
    cut.declare([KeySpec("big", "float32", (1 << 20,), 4)])
    with pytest.raises(OptimizerError, match="cut into chunks"):
        cut.keep_whole()
