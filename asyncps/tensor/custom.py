"""Optimizers of the user's own: their code works on copies, and what it breaks stays theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncps import optim
from asyncps.errors import OptimizerError, is_text, shown
from asyncps.tensor.dtypes import Array
from asyncps.tensor.words import MASTER, Span, Words

log = logging.getLogger(__name__)

_MOST_LETTERS = 100  # of the name of a state array, which is saved


def step(
    name: str, out: Array, w: Array, g: Array, state: dict[str, Array], words: Words, t: int,
    spans: Sequence[Span],
) -> None:
    """Carry out one step; weights and state change only if all of it went well.

    Args:
        name: Of the optimizer.
        out: Written; may be `w`. Of a float dtype.
        w, g: Weights and the sum of the round, of the same.
        state: State arrays by name, of the size of `w`; made when they are missing.
        words: Hyper-parameters.
        t: Counts updates from 1.
        spans: The keys that the arrays are made of.

    Raises:
        OptimizerError: The user's code raised, or its state is no arrays of the right size.
    """
    kind = optim.by_name(name)
    try:
        if words.made is None:
            words.made = kind(**words)
        made: optim.Optimizer = words.made
        if not state:
            fresh = _state(made, w, spans)
        else:
            fresh = {key: array.copy() for key, array in state.items()}
        weights = w.copy()
        for key, begin, end in spans:
            hyper = {**words.at(t, words.factors(key)), "t": t}
            made.update(weights[begin:end], g[begin:end],
                        {name: array[begin:end] for name, array in fresh.items()}, hyper)
    except OptimizerError:
        raise
    except BaseException as error:
        # A Ctrl-C in a local store's step is the caller's; on a server the same word is only what
        # the user's code raised, and would end its thread.
        if (isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()):
            raise
        log.exception("optimizer %s failed", name)
        raise OptimizerError(f"optimizer {name} failed: {shown(error, 900)}") from error
    state.update(fresh)
    np.copyto(out, weights)


def _state(made: optim.Optimizer, w: Array, spans: Sequence[Span]) -> dict[str, Array]:
    pieces: dict[str, list[Array]] = {}
    for position, (key, begin, end) in enumerate(spans):
        given: Any = made.init(optim.Spec(key, (end - begin,), w.dtype.name))
        if not isinstance(given, dict) or (position and given.keys() != pieces.keys()):
            raise OptimizerError(f"init of optimizer {made.name} must return the same names for "
                                 "all keys", expected="a dict of arrays", got=shown(given))
        for name, array in given.items():
            if not is_text(name) or not 0 < len(name) <= _MOST_LETTERS:
                raise OptimizerError(
                    f"a state of optimizer {made.name} cannot have that name", got=shown(name),
                    expected=f"text of 1 to {_MOST_LETTERS} characters")
            if (name == MASTER or not isinstance(array, np.ndarray)
                    or array.shape != (end - begin,) or array.dtype.kind not in "fiu"):
                raise OptimizerError(
                    f"state {name!r} of optimizer {made.name} is no array that fits",
                    expected=f"numbers of shape ({end - begin},)",
                    got=f"{type(array).__name__} {getattr(array, 'shape', '')}")
            pieces.setdefault(name, []).append(array)
    return {name: np.concatenate(parts) for name, parts in pieces.items()}
