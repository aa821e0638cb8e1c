"""Factors by key and schedules, carried out where keys lie side by side."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps import optim
from asyncps.errors import OptimizerError
from asyncps.tensor import dtypes, updates
from asyncps.tensor.words import Words, prepared

F32 = dtypes.by_name("float32")
BUILTIN = sorted(name for name, kind in optim.REGISTRY.items() if kind.builtin)
Array = np.ndarray[Any, Any]


def test_words_without_factors_or_schedule_are_used_as_they_are() -> None:
    words = prepared(optim.SGD().hyper)
    assert words.at(7) is words
    assert prepared(words) is words
    assert not words.per_key


def test_factors_multiply_the_scheduled_rate_and_the_decay() -> None:
    words = Words(optim.SGD(lr=optim.lr.step(1, 0.5, base_lr=0.8), wd=0.1, momentum=0.9,
                            lr_mult={5: 0.5, "5": 2.0}, wd_mult={"5": 3.0}).hyper)
    first = words.at(1, words.factors(5))
    assert (first["learning_rate"], first["wd"], first["momentum"]) == (0.4, 0.1, 0.9)
    third = words.at(3, words.factors("5"))
    assert (third["learning_rate"], third["wd"]) == (0.4, pytest.approx(0.3))


def test_neighbours_with_equal_factors_take_one_step() -> None:
    words = Words(optim.SGD(lr_mult={"b": 2, "c": 2}).hyper)
    spans = [(key, i * 10, i * 10 + 10) for i, key in enumerate("abcd")]
    assert [g[:2] for g in words.groups(spans, False)] == [(0, 10), (10, 30), (30, 40)]
    assert [g[:2] for g in words.groups(spans, True)] == [(0, 10), (10, 20), (20, 30), (30, 40)]


@given(
    name=st.sampled_from(BUILTIN),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    factors=st.dictionaries(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0, 2.0])),
    scheduled=st.booleans(), master=st.booleans(), dtype=st.sampled_from(["float32", "float16"]),
)
def test_keys_side_by_side_move_as_each_would_alone(
    name: str, sizes: list[int], factors: dict[int, float], scheduled: bool, master: bool,
    dtype: str,
) -> None:
    kind = dtypes.by_name(dtype)
    words: dict[str, Any] = {} if name == "test" else {
        "wd": 0.1, "lr_mult": factors, "wd_mult": dict(reversed(factors.items())),
        "lr": optim.lr.step(1, 0.5, base_lr=0.5) if scheduled else 0.25,
    }  # fmt: skip
    hyper = optim.by_name(name)(**words).hyper
    rng = np.random.default_rng(len(sizes))
    total = sum(sizes)
    together = rng.standard_normal(total).astype(dtype).view(kind.bits)
    ends = np.cumsum(sizes).tolist()
    spans = [(key, ends[key] - size, ends[key]) for key, size in enumerate(sizes)]
    alone = [together[begin:end].copy() for _, begin, end in spans]
    state: dict[str, Array] = {}
    states: list[dict[str, Array]] = [{} for _ in spans]
    for t in (1, 2, 3):
        g = rng.standard_normal(total).astype(kind.sum)
        for (key, begin, end), w, mine in zip(spans, alone, states, strict=True):
            updates.run(name, kind, w, w, g[begin:end].copy(), mine, hyper, t,
                        ((key, 0, end - begin),), master)
        updates.run(name, kind, together, together, g, state, hyper, t, spans, master)
    assert together.tobytes() == b"".join(w.tobytes() for w in alone)
    for word, array in state.items():
        assert array.tobytes() == b"".join(mine[word].tobytes() for mine in states)


def test_a_rate_of_zero_leaves_the_weights() -> None:
    for name in BUILTIN:
        if name == "test":
            continue
        w = np.array([1.0, -2.0, 0.0], np.float32)
        hyper = optim.by_name(name)(lr=0.5, lr_mult={"w": 0.0}).hyper
        updates.run(name, F32, w, w, np.ones(3, np.float32), {}, hyper, 1, (("w", 0, 3),))
        assert w.tolist() == [1.0, -2.0, 0.0]


SPANS = (("a", 0, 2), ("b", 2, 5))


def run(name: str, w: Array, state: dict[str, Array], t: int = 1, **words: Any) -> None:
    hyper = optim.by_name(name)(**words).hyper
    updates.run(name, F32, w, w, np.ones(w.size, np.float32), state, hyper, t, SPANS)


@pytest.mark.usefixtures("registered")
def test_optimizer_of_the_users_own_sees_each_key_with_its_numbers() -> None:
    seen = []

    class Mine(optim.Optimizer):
        def init(self, spec: optim.Spec) -> dict[str, Any]:
            seen.append(spec)
            return {"steps": np.zeros(spec.shape, np.int64)}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            state["steps"] += 1
            weight -= hyper["learning_rate"] * hyper["t"] * grad

    w, state = np.zeros(5, np.float32), {}
    for t in (1, 2):
        run("mine", w, state, t, lr=0.5, lr_mult={"b": 2.0})
    assert w.tolist() == [-1.5, -1.5, -3.0, -3.0, -3.0]
    assert state["steps"].tolist() == [2] * 5
    assert seen == [optim.Spec("a", (2,), "float32"), optim.Spec("b", (3,), "float32")]


@pytest.mark.usefixtures("registered")
def test_failing_update_leaves_weights_and_state_and_is_an_optimizer_error() -> None:
    class Mine(optim.Optimizer):
        def init(self, spec: optim.Spec) -> dict[str, Any]:
            return {"seen": np.zeros(spec.shape)}

        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            weight += 1
            state["seen"] += 1
            if hyper["t"] > 1:
                raise SystemExit("out of ideas")

    w, state = np.zeros(5, np.float32), {}
    run("mine", w, state)
    with pytest.raises(OptimizerError, match=r"optimizer mine failed.*out of ideas"):
        run("mine", w, state, 2)
    assert w.tolist() == [1.0] * 5
    assert state["seen"].tolist() == [1.0] * 5


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("made", [
    None, [], {"m": 3}, {"m": np.zeros(1)}, {"m": np.zeros(5, object)}, {3: np.zeros(5)},
    {"master": np.zeros(5)}, {"\udcff": np.zeros(5)}, {"": np.zeros(5)}, {"n" * 101: np.zeros(5)},
])  # fmt: skip
def test_state_that_is_no_arrays_of_the_right_size_is_refused(made: Any) -> None:
    type("Mine", (optim.Optimizer,), {"init": lambda self, spec: made})
    with pytest.raises(OptimizerError, match="of optimizer mine"):
        run("mine", np.zeros(5, np.float32), {})


@pytest.mark.usefixtures("registered")
def test_optimizer_without_an_update_says_so() -> None:
    type("Mine", (optim.Optimizer,), {})
    with pytest.raises(OptimizerError, match="Mine has no update of its own"):
        run("mine", np.zeros(5, np.float32), {})


class Rude(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


ANY = [Rude(), GeneratorExit(), CancelledError("c"), SystemExit(3), ValueError("\udcff"),
       KeyError(10**5000)]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("where", ["init", "update"])
@pytest.mark.parametrize("raised", ANY, ids=lambda raised: type(raised).__name__)
def test_whatever_users_code_raises_is_an_optimizer_error(
    raised: BaseException, where: str
) -> None:
    def fail(*_: Any) -> None:
        raise raised

    type("Mine", (optim.Optimizer,), {"update": lambda *_: None, where: fail})
    with pytest.raises(OptimizerError, match=r"^optimizer mine failed: ") as caught:
        run("mine", np.zeros(5, np.float32), {})
    caught.value.message.encode()


@pytest.mark.usefixtures("registered")
def test_ctrl_c_in_a_step_of_the_callers_own_thread_is_the_callers() -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    type("Mine", (optim.Optimizer,), {"update": fail})
    with pytest.raises(KeyboardInterrupt):
        run("mine", np.zeros(5, np.float32), {})
