"""How servers carry out optimizers on stored values.

Values of f16 and bf16 are widened to f32 for the step and rounded once to be stored; their state
is f32. With a master, the f32 weights are kept beside them, as one more array of the state, and
the stored value is their rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncps import optim
from asyncps.errors import OptimizerError
from asyncps.tensor import custom
from asyncps.tensor.dtypes import Array, Dtype
from asyncps.tensor.steps import STEPS, Update
from asyncps.tensor.words import MASTER, Span, Words, prepared

__all__ = ["MASTER", "check_usable", "prepared", "run"]

Hyper = Mapping[str, Any]


def check_usable(name: str, dtype: Dtype, hyper: Hyper) -> None:
    """Refuse an optimizer that cannot work on values of a dtype.

    Raises:
        OptimizerError: It says which optimizer, and for what.
    """
    if dtype.is_float:
        return
    if name not in STEPS or not STEPS[name].integers:
        raise OptimizerError(f"{name} cannot update {dtype.name} values",
                             expected="a floating dtype, or the test optimizer", got=dtype.name)
    if hyper["rescale_grad"] != int(hyper["rescale_grad"]):
        raise OptimizerError(f"rescale_grad must be whole for {dtype.name} values",
                             got=hyper["rescale_grad"])


def run(
    name: str, dtype: Dtype, out: Array, w: Array, g: Array, state: dict[str, Array],
    hyper: Hyper, t: int, spans: Sequence[Span] = (), master: bool = False,
    steps: Mapping[str, Update] = STEPS,
) -> None:
    """Carry out one step on stored values.

    Args:
        name: The optimizer.
        dtype: Of the stored values.
        out: Stored values to write, `dtype.bits`; may be `w`.
        w: Stored values, `dtype.bits`.
        g: The sum of the round, `dtype.sum`; written over.
        state: State arrays by name, `dtype.sum`; missing ones are made.
        hyper: Hyper-parameters by canonical name; `words.prepared` ones save time.
        t: How many updates this value has had, this one included.
        spans: The keys whose elements these are, side by side; none for one nameless key.
        master: Keep f32 weights of f16 and bf16 values.
        steps: What the names of ours mean; a name that is not there is the user's own.

    Raises:
        OptimizerError: The optimizer is gone, or is of the user's own and failed; weights and
            state are as they were.
    """
    words = prepared(hyper)
    spans = spans or ((None, 0, w.size),)
    if dtype.widen is None or dtype.narrow is None:
        _step(name, dtype, out, w, g, state, words, t, spans, steps)
        return
    if not master:
        wide = dtype.widened(w)
        _step(name, dtype, wide, wide, g, state, words, t, spans, steps)
    else:
        kept = state.pop(MASTER, None)
        if kept is None:
            kept = dtype.widened(w)
        wide = kept
        try:
            _step(name, dtype, wide, wide, g, state, words, t, spans, steps)
        finally:
            state[MASTER] = wide
    dtype.narrow(out, wide)


def _step(
    name: str, dtype: Dtype, out: Array, w: Array, g: Array, state: dict[str, Array],
    words: Words, t: int, spans: Sequence[Span], steps: Mapping[str, Update],
) -> None:
    step = steps.get(name)
    if step is None:
        custom.step(name, out, w, g, state, words, t, spans)
        return
    names = step.state_names(words)
    for key in names:
        if key not in state:
            state[key] = np.zeros(w.size, dtype.sum)
    each = optim.REGISTRY[name].whole_keys
    if len(spans) == 1 or not (each or words.per_key):
        step.step(out, w, g, state, words.at(t, words.factors(spans[0][0])), t)
        return
    for begin, end, factors in words.groups(spans, each):
        step.step(
            out[begin:end], w[begin:end], g[begin:end],
            {key: state[key][begin:end] for key in names}, words.at(t, factors), t,
        )
