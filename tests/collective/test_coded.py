"""Sums in few bytes: what each codec makes of them, that no bit is lost, and that all hear of what
is wrong."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncps
from asyncps.codedsum import CodedSum, Encoded
from asyncps.communicator import Communicator
from asyncps.errors import (
    AsyncPSError,
    CollectiveMismatch,
    ConfigError,
    Disagreement,
    ShapeMismatch,
    TensorError,
)
from tests.support.group import Group, group

SHAPE = (300, 401)  # not a whole number of anything
SIZE = SHAPE[0] * SHAPE[1]
BIG = (1200, 701)  # several pieces

TYPES: list[dict[str, Any]] = [
    {"type": "f16"}, {"type": "bf16"}, {"type": "int8"}, {"type": "1bit", "threshold": 0.1},
    {"type": "2bit", "threshold": 0.5}, {"type": "onebit"}, {"type": "topk", "ratio": 0.02},
    {"type": "topk", "ratio": 0.02, "values": "f16"}, {"type": "threshold", "threshold": 1.5},
    {"type": "randomk", "ratio": 0.05}, {"type": "dgc", "ratio": 0.01, "momentum": 0.0},
    {"type": "powersgd", "rank": 3},
]  # fmt: skip


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Group]:
    """So many ranks."""
    with group(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def two() -> Iterator[Group]:
    """Two ranks."""
    with group(2) as opened:
        yield opened


_names = iter(range(10**9))


def fresh() -> str:
    """Return a name that nothing is kept of."""
    return f"w{next(_names)}"


def gradients(rank: int, step: int, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.random.default_rng((rank, step)).standard_normal(shape).astype("f4")


def kept(comm: Communicator, name: str) -> Any:
    """What a rank has not sent of a name."""
    assert comm._coded is not None
    coder = comm._coded._compression.coder_of(name)
    if coder is None or coder.residual is None:
        return np.float32(0)
    return coder.residual.copy()


def lost(spec: dict[str, Any], world: int, steps: int) -> float:
    """How far what came and what all keep may be from what went in."""
    # A sum that travels as halves is rounded to such once more, which nobody keeps.
    halves = {"f16": 2.5e-3, "bf16": 3e-2}
    if world > 2 and spec["type"] in halves:
        return halves[spec["type"]] * steps
    return 1e-5 if spec["type"] == "powersgd" else 1e-6 * world


def ids(spec: dict[str, Any]) -> str:
    return "-".join(map(str, spec.values()))


@pytest.mark.parametrize("shape", [SHAPE, BIG], ids=["one", "pieces"])
@pytest.mark.parametrize("spec", TYPES, ids=ids)
def test_no_bit_is_lost_and_all_have_the_same(
    ranks: Group, spec: dict[str, Any], shape: tuple[int, ...]
) -> None:
    """All that came out, and all that is kept, is all that went in."""
    world, name, steps = len(ranks.ranks), fresh(), 4

    def work(comm: Communicator) -> tuple[list[Any], Any]:
        comm.set_gradient_compression(spec, name)
        found = [comm.all_reduce(gradients(comm.rank, step, shape), name=name)
                 for step in range(steps)]
        return found, kept(comm, name)

    each = ranks.run(work)
    for found, _ in each:
        for one, other in zip(found, each[0][0], strict=True):
            assert np.array_equal(one, other)
    came = sum(one.astype("f8") for one in each[0][0])
    left = sum(np.asarray(rest, "f8").reshape(np.shape(rest) and shape) for _, rest in each)
    went = sum(gradients(rank, step, shape).astype("f8")
               for rank in range(world) for step in range(steps))
    np.testing.assert_allclose(came + left, went, rtol=1e-6, atol=lost(spec, world, steps))
    report = ranks.ranks[0].compression_report()[name]
    assert report["codec"] == spec["type"]
    size = 4 * steps * shape[0] * shape[1]
    assert report["bytes_before"] == size
    assert 0 < report["bytes_sent"] <= size * 0.55


def top(x: Any, k: int) -> Any:
    flat = x.reshape(-1).copy()
    order = np.lexsort((np.arange(flat.size), -np.abs(flat)))
    flat[order[k:]] = 0
    return flat.reshape(x.shape)


MODELS: list[tuple[dict[str, Any], Any]] = [
    ({"type": "f16"}, lambda x: x.astype("f2").astype("f4")),
    ({"type": "bf16"}, lambda x: x.astype(ml_dtypes.bfloat16).astype("f4")),
    ({"type": "2bit", "threshold": 0.5},
     lambda x: np.where(x >= 0.5, 0.5, np.where(x <= -0.5, -0.5, 0)).astype("f4")),
    ({"type": "topk", "ratio": 0.02}, lambda x: top(x, int(np.ceil(x.size * 0.02)))),
    ({"type": "threshold", "threshold": 1.5}, lambda x: np.where(np.abs(x) >= 1.5, x, 0)),
]


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize(("spec", "model"), MODELS, ids=[ids(spec) for spec, _ in MODELS])
def test_the_sum_is_that_of_what_each_has_sent(
    ranks: Group, spec: dict[str, Any], model: Any, op: str
) -> None:
    """Against NumPy: with what was not sent in the step before."""
    world, name = len(ranks.ranks), fresh()

    def work(comm: Communicator) -> list[Any]:
        comm.set_gradient_compression(spec, [name])
        return [comm.all_reduce(gradients(comm.rank, step), op, name, prescale=2.0)
                for step in range(3)]

    rests = [np.zeros(SHAPE, "f4") for _ in range(world)]
    found = ranks.run(work)[0]
    for step in range(3):
        want = np.zeros(SHAPE, "f4")
        for rank, rest in enumerate(rests):
            rest += gradients(rank, step)
            sent = model(rest)
            rest -= sent
            want += sent
        want *= np.float32(2.0 / world if op == "mean" else 2.0)
        half = world > 2 and spec["type"] in ("f16", "bf16")
        rtol = {"f16": 1e-3, "bf16": 8e-3}[spec["type"]] if half else 1e-6
        np.testing.assert_allclose(found[step], want, rtol=rtol, atol=1e-6)


def test_factors_bring_back_what_they_can(ranks: Group) -> None:
    """powersgd: a sum of rank 2 is brought back whole by rank 2, though no part of it is; and what
    comes is what the best matrix of that rank would be, when it is asked again and again."""
    world, name = len(ranks.ranks), fresh()
    rng = np.random.default_rng(1)
    total = (rng.standard_normal((SHAPE[0], 2)) @ rng.standard_normal((2, SHAPE[1]))).astype("f4")
    parts = [gradients(rank, 0) for rank in range(world - 1)]
    parts.append(total - sum(parts, np.zeros(SHAPE, "f4")))

    def work(comm: Communicator) -> list[Any]:
        comm.set_gradient_compression({"type": "powersgd", "rank": 2}, name)
        once = comm.all_reduce(parts[comm.rank].copy(), name=name)
        comm.set_gradient_compression({"type": "powersgd", "rank": 2, "error_feedback": False},
                                      name)
        full = np.random.default_rng(9).standard_normal(SHAPE).astype("f4")
        again = [comm.all_reduce(full.copy(), "mean", name) for _ in range(40)]
        return [once, again[-1]]

    once, again = ranks.run(work)[0]
    np.testing.assert_allclose(once, total, atol=1e-3 * world)
    full = np.random.default_rng(9).standard_normal(SHAPE).astype("f4")
    u, s, v = np.linalg.svd(full.astype("f8"))
    best = np.linalg.norm(full - (u[:, :2] * s[:2]) @ v[:2])
    assert np.linalg.norm(full - again) <= best * 1.001


def test_powersgd_sends_the_first_pushes_as_they_are(two: Group) -> None:
    name = fresh()

    def work(comm: Communicator) -> list[Any]:
        comm.set_gradient_compression({"type": "powersgd", "rank": 2, "start": 2}, name)
        return [comm.all_reduce(gradients(comm.rank, step), name=name) for step in range(3)]

    found = two.run(work)[1]
    for step in range(2):
        np.testing.assert_array_equal(found[step], gradients(0, step) + gradients(1, step))
    assert np.linalg.matrix_rank(found[2].astype("f8"), tol=1e-2) == 2


@pytest.mark.parametrize("huge", [1e36, 3e38])
def test_powersgd_of_a_matrix_that_has_no_factors_is_sent_whole(two: Group, huge: float) -> None:
    """One rank's is too large to be multiplied: all send theirs as they are."""
    name = fresh()

    def work(comm: Communicator) -> Any:
        comm.set_gradient_compression({"type": "powersgd", "rank": 2}, name)
        g = gradients(comm.rank, 0)
        if comm.rank:
            g[3, 4] = huge
        return comm.all_reduce(g, name=name)

    want = gradients(0, 0) + gradients(1, 0)
    want[3, 4] = np.float32(huge) + gradients(0, 0)[3, 4]
    for got in two.run(work):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("kind", ["topk", "f16", "powersgd"])
def test_halves_are_summed_in_float32_and_rounded_once(
    ranks: Group, dtype: Any, kind: str
) -> None:
    name, world = fresh(), len(ranks.ranks)
    half_an_ulp = 2.0 ** (-11 if dtype == "float16" else -8)

    def work(comm: Communicator) -> Any:
        comm.set_gradient_compression({"type": kind, "error_feedback": False}, name)
        x = np.zeros(SHAPE, dtype)
        x[7, 11], x[8, 11] = comm.rank + 1, [1, half_an_ulp, half_an_ulp / 64][comm.rank]
        got = comm.all_reduce(x, name=name)
        assert got is x
        return got

    want = np.zeros(SHAPE, dtype)
    # Of three the sum is just beyond half a step above 1; added in halves it would stay 1.
    want[7, 11], want[8, 11] = world * (world + 1) / 2, 1 + (2 * half_an_ulp if world > 2 else 0)
    for got in ranks.run(work):
        if kind == "topk":
            assert np.array_equal(got, want)
        np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), atol=1e-2)


@pytest.mark.parametrize("spec", TYPES, ids=ids)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_gradient_that_is_not_finite_is_told_to_all_and_nothing_has_changed(
    ranks: Group, spec: dict[str, Any], bad: float
) -> None:
    name, last = fresh(), len(ranks.ranks) - 1

    def work(comm: Communicator) -> tuple[Any, str]:
        comm.set_gradient_compression(spec, name)
        first = comm.all_reduce(gradients(comm.rank, 0), name=name)
        before = kept(comm, name)
        g = gradients(comm.rank, 1)
        if comm.rank == last:
            g[5, 6] = bad
        as_it_was = g.copy()
        with pytest.raises(TensorError, match="not finite") as error:
            comm.all_reduce(g, name=name)
        np.testing.assert_array_equal(g, as_it_was)
        np.testing.assert_allclose(kept(comm, name), before, rtol=1e-6, atol=1e-6)
        g = gradients(comm.rank, 1)
        second = comm.all_reduce(g, name=name)
        return (first, second, kept(comm, name)), f"{error.value}"

    world = last + 1
    found = ranks.run(work)
    for _, text in found:
        assert name in text
        assert f"rank {last}" in text
    came = sum(found[0][0][step].astype("f8") for step in (0, 1))
    left = sum(np.asarray(rest[2], "f8").reshape(np.shape(rest[2]) and SHAPE) for rest, _ in found)
    went = sum(gradients(rank, step).astype("f8") for rank in range(world) for step in (0, 1))
    np.testing.assert_allclose(came + left, went, rtol=1e-6, atol=lost(spec, world, 2))


@pytest.mark.parametrize("spec", TYPES, ids=ids)
def test_a_sum_that_one_skips_is_skipped_by_all(ranks: Group, spec: dict[str, Any]) -> None:
    name, last = fresh(), len(ranks.ranks) - 1

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({**spec, "nonfinite": "skip"}, name)
        comm.all_reduce(gradients(comm.rank, 0), name=name)
        before = kept(comm, name)
        g = gradients(comm.rank, 1)
        if comm.rank == last:
            g[5, 6] = np.inf
        got = comm.all_reduce(g, name=name)
        assert got is g
        assert not got.any()
        np.testing.assert_allclose(kept(comm, name), before, rtol=1e-6, atol=1e-6)
        assert comm.compression_report()[name]["skipped"] == (comm.rank == last)

    ranks.run(work)


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_ranks_that_call_differently_all_hear_it_and_nothing_is_lost(
    ranks: Group, spec: dict[str, Any]
) -> None:
    world, name = len(ranks.ranks), fresh()
    if world == 1:
        pytest.skip("nobody to differ from")

    def work(comm: Communicator) -> Any:
        comm.set_gradient_compression(spec, name)
        with pytest.raises(CollectiveMismatch, match=name):
            comm.all_reduce(gradients(comm.rank, 0), "min" if comm.rank else "sum", name)
        got = comm.all_reduce(gradients(comm.rank, 0), name=name)
        return got, kept(comm, name)

    found = ranks.run(work)
    total = found[0][0].astype("f8") + sum(np.asarray(rest, "f8").reshape(SHAPE)
                                           for _, rest in found)
    want = sum(gradients(rank, 0).astype("f8") for rank in range(world))
    np.testing.assert_allclose(total, want, atol=2e-3)


@pytest.mark.parametrize(("what", "first", "second"), [
    ("operation mean and sum", {"op": "mean"}, {}),
    ("factor 0.5 and 1.0", {"postscale": 0.5}, {}),
    (r"shape \(300, 401\) and \(401, 300\)", {}, {"shape": SHAPE[::-1]}),
    ("dtype float32 and float16", {}, {"dtype": "f2"}),
])  # fmt: skip
@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_every_way_tells_what_differs_and_the_next_call_works(
    ranks: Group, spec: dict[str, Any], what: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    world, name = len(ranks.ranks), fresh()
    if world == 1:
        pytest.skip("nobody to differ from")

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression(spec, name)
        words = {"op": "sum", **(second if comm.rank else first)}
        shape, dtype = words.pop("shape", SHAPE), words.pop("dtype", "f4")
        x = gradients(comm.rank, 0, shape).astype(dtype)
        with pytest.raises(CollectiveMismatch, match=f"{name!r}.*ranks 0 and 1: {what}"):
            comm.all_reduce(x, name=name, **words)
        np.testing.assert_array_equal(x, gradients(comm.rank, 0, shape).astype(dtype))
        assert not np.any(kept(comm, name))
        wide = gradients(comm.rank, 1, (200, 200))  # nothing is kept: it may be another array
        comm.all_reduce(wide, name=name)

    ranks.run(work)


def test_different_words_are_refused_at_all_ranks(two: Group) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        with pytest.raises(Disagreement, match="topk"):
            comm.set_gradient_compression({"type": ["topk", "f16"][comm.rank]}, name)
        with pytest.raises([Disagreement, ConfigError][comm.rank]):
            comm.set_gradient_compression({"type": ["topk", "topp"][comm.rank]}, name)
        with pytest.raises(ConfigError, match="pull"):
            comm.set_gradient_compression({"type": "topk", "pull": True}, name)
        with pytest.raises(ConfigError, match="no keys"):
            comm.set_gradient_compression({"type": "topk"}, [])
        with pytest.raises([Disagreement, ConfigError][comm.rank]):
            comm.set_gradient_compression({"type": "topk"}, [name, 5.5][comm.rank])
        comm.set_gradient_compression({"type": "topk"}, np.str_("nothing*"))
        assert name not in comm.compression_report()
        got = comm.all_reduce(gradients(comm.rank, 0), name=name)
        np.testing.assert_array_equal(got, gradients(0, 0) + gradients(1, 0))

    two.run(work)


def test_what_was_kept_goes_along_when_compression_ends(ranks: Group) -> None:
    world, name = len(ranks.ranks), fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "ratio": 0.01}, name)
        first = comm.all_reduce(gradients(comm.rank, 0), name=name)
        comm.set_gradient_compression(None, name)
        second = comm.all_reduce(gradients(comm.rank, 1), name=name)
        third = comm.all_reduce(gradients(comm.rank, 2), name=name)
        went = [sum(gradients(rank, step).astype("f8") for rank in range(world))
                for step in range(3)]
        np.testing.assert_allclose(first.astype("f8") + second, went[0] + went[1],
                                   rtol=1e-6, atol=1e-6 * world)
        np.testing.assert_allclose(third, went[2], rtol=1e-6, atol=1e-6)
        assert comm.compression_report()[name]["codec"] == "dense"

    ranks.run(work)


def test_what_is_not_compressed_goes_as_it_is(two: Group) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "ratio": 0.01}, f"{name}*")
        both = gradients(0, 0) + gradients(1, 0)
        for way in ("unnamed", "other", "f8", "i4", "small", "min"):
            x = gradients(comm.rank, 0)
            if way == "unnamed":
                assert np.array_equal(comm.all_reduce(x), both)
            elif way == "other":
                assert np.array_equal(comm.all_reduce(x, name=f"another {name}"), both)
            elif way == "min":
                got = comm.all_reduce(x, "min", name=f"{name} min")
                assert np.array_equal(got, np.minimum(gradients(0, 0), gradients(1, 0)))
            elif way == "small":
                assert np.array_equal(comm.all_reduce(x[:8].copy(), name=f"{name} small"), both[:8])
            else:
                got = comm.all_reduce(x.astype(way), name=f"{name} {way}")
                assert np.array_equal(got, sum(gradients(rank, 0).astype(way) for rank in (0, 1)))
        report = comm.compression_report()
        assert "smaller" in report[f"{name} small"]["why"]
        assert "float64" in report[f"{name} f8"]["why"]

    two.run(work)


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_handles_end_in_any_order_and_then_the_sum_is_there(
    ranks: Group, spec: dict[str, Any]
) -> None:
    world = len(ranks.ranks)
    names = [fresh() for _ in range(6)]

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression(spec, names)
        order = np.random.default_rng(comm.rank).permutation(len(names)).tolist()
        xs = [gradients(comm.rank, at) for at in range(len(names))]
        handles = {}
        for at in order:
            handles[at] = comm.all_reduce(xs[at], name=names[at], async_op=True)
        for at in reversed(order):
            if at % 2:
                assert handles[at].wait() is xs[at]
            else:
                while not handles[at].done():
                    pass
                assert handles[at].exception() is None
        for at, name in enumerate(names):
            rest = comm.all_reduce(
                np.asarray(kept(comm, name), "f8").reshape(SHAPE), name=f"{name} rest")
            want = sum(gradients(rank, at).astype("f8") for rank in range(world))
            np.testing.assert_allclose(xs[at] + rest, want, atol=1e-2)

    ranks.run(work)


def test_an_array_that_is_not_contiguous_is_written_in_its_place(two: Group) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "ratio": 1.0}, name)
        x = np.asfortranarray(gradients(comm.rank, 0))
        assert comm.all_reduce(x, name=name) is x
        np.testing.assert_array_equal(x, gradients(0, 0) + gradients(1, 0))

    two.run(work)


def test_a_name_is_that_of_one_array(two: Group) -> None:
    name, refused = fresh(), threading.Event()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk"}, name)
        comm.all_reduce(gradients(comm.rank, 0), name=name)
        with pytest.raises(ShapeMismatch, match="another array"):
            comm.all_reduce(gradients(comm.rank, 0)[:-1].copy(), name=name)
        if comm.rank:
            assert refused.wait(10)
        held = comm.all_reduce(gradients(comm.rank, 1), name=name, async_op=True)
        if not comm.rank:
            before = kept(comm, name)
            with pytest.raises(ConfigError, match="under way"):
                comm.all_reduce(gradients(comm.rank, 2), name=name)
            np.testing.assert_allclose(kept(comm, name), before, atol=1e-6)
            refused.set()
        held.wait()

    two.run(work)


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_sums_are_of_those_who_have_not_joined(spec: dict[str, Any]) -> None:
    with group(3) as three:
        def work(comm: Communicator) -> Any:
            comm.set_gradient_compression({**spec, "error_feedback": False}, "w")
            x = np.zeros(SHAPE, "f4")
            x[1, 2] = comm.rank + 1
            if comm.rank == 1:
                comm.join()
                return None
            got = comm.all_reduce(x, "mean", "w")
            comm.join()
            return got[1, 2]

        assert three.run(work) == [pytest.approx(2.0, abs=1e-3), None,
                                   pytest.approx(2.0, abs=1e-3)]


def test_a_set_of_ranks_has_words_of_its_own() -> None:
    with group(3) as three:
        def work(comm: Communicator) -> None:
            pair = comm.process_set([0, 2])
            if pair is not None:
                pair.set_gradient_compression({"type": "topk", "ratio": 1.0}, "w")
                got = pair.all_reduce(gradients(comm.rank, 0), name="w")
                np.testing.assert_array_equal(got, gradients(0, 0) + gradients(2, 0))
                assert pair.compression_report()["w"]["codec"] == "topk"
            assert comm.compression_report() == {}

        three.run(work)


DGC = [{"momentum": 0.9}, {"momentum": 0.9, "clip": 1.0}]


@pytest.mark.parametrize("options", DGC, ids=ids)
@pytest.mark.parametrize("nonfinite", ["error", "skip"])
def test_a_sum_that_is_none_leaves_a_momentum_as_it_was(
    two: Group, options: dict[str, Any], nonfinite: str
) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression(
            {"type": "dgc", "ratio": 0.01, "nonfinite": nonfinite, **options}, name)
        comm.all_reduce(gradients(comm.rank, 0), name=name)
        coder = comm._coded._compression.coder_of(name)  # type: ignore[union-attr]
        assert coder is not None
        before = coder.residual.copy(), coder.extra.copy(), coder.pushes
        g = np.full(SHAPE, [1e8, np.nan][comm.rank], "f4")
        if nonfinite == "error":
            with pytest.raises(TensorError, match="rank 1"):
                comm.all_reduce(g, name=name)
        else:
            assert not comm.all_reduce(g, name=name).any()
        assert np.array_equal(coder.residual, before[0])
        assert np.array_equal(coder.extra, before[1])
        assert coder.pushes == before[2]

    two.run(work)


@pytest.mark.parametrize(("spec", "where"), [
    (TYPES[0], "asyncps.codedsum.Encoded.encode"), (TYPES[6], "asyncps.codedsum.Encoded.encode"),
    (TYPES[-1], "asyncps.codedfactors.Factored._first"),
    (TYPES[-1], "asyncps.codedfactors.Factored._second"),
    ({"type": "powersgd", "start": 9}, "asyncps.codedfactors.Factored._whole"),
])  # fmt: skip
def test_a_rank_that_fails_between_the_phases_is_heard_of_by_all(
    ranks: Group, spec: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, last = fresh(), len(ranks.ranks) - 1
    module, kind, method = where.rsplit(".", 2)
    owner = getattr(importlib.import_module(module), kind)
    real = getattr(owner, method)

    def failing(self: Any, *arguments: Any) -> Any:
        if self.what.fusing.rank == last:
            raise MemoryError
        return real(self, *arguments)

    def work(comm: Communicator) -> tuple[Any, Any]:
        comm.set_gradient_compression(spec, name)
        comm.all_reduce(gradients(comm.rank, 0), name=name)
        before = kept(comm, name)

        def fail() -> None:
            g = gradients(comm.rank, 1)
            why = "MemoryError" if comm.rank == last else "a rank"
            with pytest.raises(AsyncPSError, match=why):
                comm.all_reduce(g, name=name)
            assert np.array_equal(g, gradients(comm.rank, 1))

        return before, fail

    both = ranks.run(work)
    with monkeypatch.context() as patched:
        patched.setattr(owner, method, failing)
        ranks.run(lambda comm: both[comm.rank][1]())
    for comm, (before, _) in zip(ranks.ranks, both, strict=True):
        now = kept(comm, name)
        if spec["type"] == "powersgd":
            assert np.array_equal(now, before)
        elif comm.rank != last:  # what it has sent is kept for later
            np.testing.assert_allclose(
                now, before + gradients(comm.rank, 1).reshape(-1), rtol=1e-6, atol=1e-6)
    pushes = {comm._coded._compression.coder_of(name).pushes  # type: ignore[union-attr]
              for comm in ranks.ranks}
    assert len(pushes) == 1
    ranks.run(lambda comm: comm.all_reduce(gradients(comm.rank, 2), name=name))


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_two_threads_that_look_at_one_handle_see_one_result(
    ranks: Group, spec: dict[str, Any]
) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression(spec, name)
        for step in range(20):
            x = gradients(comm.rank, step)
            handle = comm.all_reduce(x, name=name, async_op=True)
            found: list[Any] = []

            def look(handle: Any = handle, found: list[Any] = found, x: Any = x) -> None:
                found.append((handle.wait(), x.copy()))

            threads = [threading.Thread(target=look) for _ in range(3)]
            for thread in threads:
                thread.start()
            others_turn = threading.Event()
            while not handle.done():
                others_turn.wait(0.001)
            found.append((handle.wait(), x.copy()))
            for thread in threads:
                thread.join()
            assert len(found) == 4
            for result, then in found:
                assert result is x
                assert np.array_equal(x, then)  # it was all there when somebody first saw it

    ranks.run(work)


def test_a_result_that_cannot_be_brought_is_an_error_each_time(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh()

    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("asyncps.codedsum.Gathered.result", broken)

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk"}, name)
        handle = comm.all_reduce(gradients(comm.rank, 0), name=name, async_op=True)
        for _ in range(2):
            with pytest.raises(AsyncPSError, match="MemoryError"):
                handle.wait()
        assert handle.done()
        assert handle.exception() is not None

    two.run(work)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_an_array_that_goes_with_what_was_kept_stays_as_it_is_if_the_call_fails(
    two: Group, dtype: str
) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "threshold", "threshold": 6e4}, name)
        comm.all_reduce(np.full(SHAPE, 5e4, dtype), name=name)
        comm.set_gradient_compression(None, name)
        x = np.full(SHAPE, 2e4, dtype)
        with pytest.raises(CollectiveMismatch):
            comm.all_reduce(x, ["sum", "min"][comm.rank], name)
        assert np.all(x == np.asarray(2e4, dtype))
        assert np.all(kept(comm, name) == np.asarray(5e4, dtype))
        got = comm.all_reduce(x, "mean", name)
        assert np.all(got == np.asarray(6.55e4 if dtype == "f2" else 7e4, dtype))

    two.run(work)


def test_nothing_else_is_called_by_the_name_of_a_sum_under_way(two: Group) -> None:
    name, refused = fresh(), threading.Event()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "powersgd"}, name)
        if comm.rank:
            assert refused.wait(10)
        handle = comm.all_reduce(gradients(comm.rank, 0), name=name, async_op=True)
        if not comm.rank:
            for again in (lambda: comm.all_reduce(gradients(0, 1), name=name),
                          lambda: comm.broadcast(np.ones(3), name=name)):
                with pytest.raises(ConfigError, match="under way"):
                    again()
            refused.set()
        handle.wait()

    two.run(work)


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_who_closes_lets_the_sums_end_that_all_are_at(spec: dict[str, Any]) -> None:
    with group(2) as both:
        def work(comm: Communicator) -> Any:
            comm.set_gradient_compression(spec, "w")
            x = gradients(comm.rank, 0, (900, 800))
            handle = comm.all_reduce(x, name="w", async_op=True)
            if comm.rank:
                return handle.wait()
            while not comm._fusing._several.get(handle, True):  # until all have called it
                pass
            comm.close()
            return handle.wait()

        first, second = both.run(work)
        assert np.array_equal(first, second)


def test_sets_name_the_ranks_of_the_job() -> None:
    with group(3) as three:
        def work(comm: Communicator) -> None:
            pair = comm.process_set([1, 2])
            if pair is None:
                return
            pair.set_gradient_compression({"type": "topk"}, "w")
            with pytest.raises(TensorError, match="rank 2"):
                pair.all_reduce(np.full(SHAPE, [0, 1, np.nan][comm.rank], "f4"), name="w")
            with pytest.raises(Disagreement, match="ranks 1 and 2"):
                pair.set_gradient_compression({"type": ["", "f16", "bf16"][comm.rank]}, "w")

        three.run(work)


@pytest.mark.parametrize("verb", ["sparse", "topk", "powersgd"])
def test_ended_calls_are_not_kept(two: Group, verb: str) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk" if verb == "sparse" else verb}, name)
        if verb == "sparse":
            comm.sparse_all_reduce([5], np.ones(1), 10**5, name=name)
        else:
            comm.all_reduce(gradients(comm.rank, 0), name=name)
        assert not comm._fusing._several
        assert not comm._fusing._names
        assert not comm._coded._turns  # type: ignore[union-attr]

    two.run(work)


def test_a_call_that_is_refused_for_its_name_has_changed_nothing(two: Group) -> None:
    name, refused = fresh(), threading.Event()

    def work(comm: Communicator) -> Any:
        comm.set_gradient_compression({"type": "topk", "ratio": 0.1}, name)
        if comm.rank:
            assert refused.wait(10)
        x = gradients(comm.rank, 0)
        handle = comm.all_reduce(x, name=name, async_op=True)
        if not comm.rank:
            with pytest.raises(ConfigError, match="under way"):
                comm.all_reduce(gradients(0, 1, (200, 200)), name=name)
            refused.set()
        return handle.wait(), kept(comm, name)

    found = two.run(work)
    left = sum(rest.astype("f8").reshape(SHAPE) for _, rest in found)
    want = gradients(0, 0).astype("f8") + gradients(1, 0)
    np.testing.assert_allclose(found[0][0] + left, want, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("spec", [TYPES[0], TYPES[6], TYPES[-1]], ids=ids)
def test_a_rank_that_cannot_look_at_its_array_is_heard_of_by_all(
    ranks: Group, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, last = fresh(), len(ranks.ranks) - 1
    real = CodedSum.gradient

    def failing(self: Any) -> Any:
        if self.what.fusing.rank == last:
            raise MemoryError
        return real(self)

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression(spec, name)
        with pytest.raises(AsyncPSError, match=f"rank {last} has failed .*MemoryError"):
            comm.all_reduce(gradients(comm.rank, 0), name=name)

    with monkeypatch.context() as patched:
        patched.setattr(CodedSum, "gradient", failing)
        ranks.run(work)
    ranks.run(lambda comm: comm.all_reduce(gradients(comm.rank, 1), name=name))


def test_what_cannot_be_put_back_ends_its_own_call_only(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh()
    real = Encoded.encode

    def failing(self: Any) -> Any:
        if self.what.fusing.rank:
            raise MemoryError
        return real(self)

    def broken(*_: Any) -> None:
        raise MemoryError

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk"}, name)
        with pytest.raises(AsyncPSError):
            comm.all_reduce(gradients(comm.rank, 0), name=name)

    with monkeypatch.context() as patched:
        patched.setattr(Encoded, "encode", failing)
        patched.setattr(Encoded, "put_back", broken)
        two.run(work)
    two.run(lambda comm: comm.all_reduce(gradients(comm.rank, 1), name=name))


@pytest.mark.parametrize(("value", "kind"), [(3e-7, "small"), (6e4, "large")])
def test_halves_of_many_ranks_are_neither_lost_nor_infinite(value: float, kind: str) -> None:
    """What one of five ranks has, however small, and what all have, however large."""
    with group(5) as five:
        def work(comm: Communicator) -> Any:
            comm.set_gradient_compression({"type": "f16"}, "w")
            x = np.full(SHAPE, value if kind == "large" or not comm.rank else 0, "f4")
            return comm.all_reduce(x, name="w")

        total = value if kind == "small" else 5 * value
        for got in five.run(work):
            np.testing.assert_allclose(got, total, rtol=0.2 if kind == "small" else 1e-2)


def test_what_distopt_sums_is_not_touched(two: Group) -> None:
    """Its names are used once: what was kept of one would never be sent."""
    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "ratio": 0.01})
        weights = np.zeros(SHAPE, "f4")
        opt = asyncps.DistOpt(asyncps.optim.SGD(lr=1.0), communicator=comm)
        opt([(weights, np.ones(SHAPE, "f4"))])
        assert np.all(weights == -1)
        comm.set_gradient_compression(None)
        assert not any("distopt" in str(name) for name in comm.compression_report())

    two.run(work)


def test_a_skipped_sum_is_told_of_though_none_was_made(two: Group) -> None:
    name = fresh()

    def work(comm: Communicator) -> None:
        comm.set_gradient_compression({"type": "topk", "nonfinite": "skip"}, name)
        comm.all_reduce(np.full(SHAPE, np.nan, "f4"), name=name)
        assert comm.compression_report()[name]["skipped"] == 1

    two.run(work)


@pytest.mark.parametrize("x", [[1.0, 2.0], 3.0, (1,), range(3)], ids=str)
def test_what_cannot_be_written_is_refused_before_anything_is_sent(two: Group, x: Any) -> None:
    with pytest.raises(TensorError, match="an array"):
        two.ranks[0].all_reduce(x)
