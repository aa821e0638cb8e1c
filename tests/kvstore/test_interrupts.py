"""What a signal handler raises, anywhere in a verb: no clock is lost, and the store goes on."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from asyncps import budget, call, core, kvstore
from asyncps.kvstore import KVStore
from asyncps.roles import framing, lane, operation, runtime, shortcut
from asyncps.state import requests
from tests.support.cluster import on_cluster

MODULES = (budget, call, core, kvstore, framing, lane, operation, runtime, shortcut, requests)
FILES = {module.__file__ for module in MODULES}


class Raised(Exception):
    """What the handler raises."""


class Signals:
    """Raise in this thread at places where Python looks for signals.

    That is behind a call, and where a function begins or goes on.

    Args:
        places: After how many places each time, counted from the one before.
    """

    def __init__(self, *places: int) -> None:
        self.places = list(places)
        self.seen = 0
        self.where: list[str] = []
        self._last: dict[FrameType, str] = {}
        self._names: dict[CodeType, dict[int, str]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if code not in self._names:
                self._names[code] = {i.offset: i.opname for i in dis.get_instructions(code)}
            before, name = self._last.get(frame, ""), self._names[code][frame.f_lasti]
            self._last[frame] = name
            if self.places and (before.startswith("CALL") or name == "RESUME"):
                self.seen += 1
                if self.seen == self.places[0]:
                    self.seen = 0
                    del self.places[0]
                    self.where.append(f"{code.co_qualname}, line {frame.f_lineno}")
                    raise Raised
        return self


def verb_with_signals(store: KVStore, verb: str, *places: int) -> Signals:
    """One verb, of ones, with something raised in it."""
    signals = Signals(*places)
    one = np.ones(5, "f4")
    sys.settrace(signals)
    try:
        match verb:
            case "pushpull":
                store.pushpull("w", one)
            case "push":
                store.push("w", one)
            case "pull":
                store.pull("w")
            case "init":
                store.init("w", one)
            case _:
                store.barrier()
    except Raised:
        pass
    finally:
        sys.settrace(None)
    return signals


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces this run")
@pytest.mark.parametrize("gap", [0, 1, 2, 3, 5, 8, 13, 21])
@pytest.mark.parametrize("verb", ["pushpull", "push", "pull", "init", "barrier"])
def test_signal_anywhere_in_a_verb_loses_no_clock(verb: str, gap: int) -> None:
    """With a gap, a second signal so many places after the first."""

    def work(store: KVStore) -> list[str]:
        store.init("w", np.zeros(5, "f4"))
        store.set_optimizer("test")
        bad: list[str] = []
        at, value = 0, 0.0
        while True:
            at += 1
            signals = verb_with_signals(store, verb, *([at, gap] if gap else [at]))
            if not signals.where:
                return bad if at > 5 else ["there were no places"]
            got = store.pull("w")[0]
            more = store.pushpull("w", np.ones(5, "f4"))[0]
            counted = (value, value + 1) if verb.startswith("push") else (value,)
            if got not in counted or more != got + 1:
                bad.append(f"{signals.where}: {value} became {got}, then {more}")
            value = more

    (bad,) = on_cluster(work, servers=1, workers=1, transport="tcp")
    assert not bad
