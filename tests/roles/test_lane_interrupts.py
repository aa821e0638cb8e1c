"""Ctrl-C, and signal handlers, while lanes are held and the loop has closed them."""

from __future__ import annotations

import dis
import sys
import threading
from types import CodeType, FrameType
from typing import Any

import pytest

from asyncps.errors import ConfigError
from asyncps.roles import lane as module
from asyncps.roles.lane import Lanes
from tests.roles.lanes import Pair

CODES: set[CodeType] = {
    Lanes.drop.__code__, Lanes._close_all.__code__,
    Lanes.held.__wrapped__.__code__,  # type: ignore[attr-defined]
}
NAMES = {code: {i.offset: i.opname for i in dis.get_instructions(code)} for code in CODES}


class Interrupt:
    """Raises KeyboardInterrupt at one of the places where Python looks for signals.

    That is behind a call, and where a function begins or goes on.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.where = ""
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in CODES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, name = self._last.get(frame, ""), NAMES[frame.f_code][frame.f_lasti]
            self._last[frame] = name
            if before.startswith("CALL") or name == "RESUME":
                self.seen += 1
                if self.seen == self.at:
                    self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self


def close_elsewhere(pair: Pair) -> None:
    """Close the lanes as the loop does, in its own thread."""
    thread = threading.Thread(target=pair.lanes.close, name="the loop")
    thread.start()
    thread.join()


def hold_while_closed(pair: Pair, interrupt: Interrupt) -> bool:
    """Hold the lanes, have them closed meanwhile, and leave; True when Ctrl-C came."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pair.lanes.held():
            close_elsewhere(pair)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces this run")
def test_ctrl_c_anywhere_leaves_no_lock_behind() -> None:
    bad, at, came = [], 0, True
    while came:
        at += 1
        interrupt, pair = Interrupt(at), Pair()
        came = hold_while_closed(pair, interrupt)
        for lock in (pair.lanes.lock, pair.lanes._guard):
            if lock.locked():
                bad.append(interrupt.where)
                lock.release()
        pair.lanes.close()
        pair.close()
    assert at > 3, "there were no places"
    assert not bad


def test_verb_in_a_handler_while_closed_lanes_are_left_is_refused(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    close, said = module.close_quietly, []

    def interrupted(sock: Any) -> None:  # a handler runs between two calls of this thread
        with pytest.raises(ConfigError) as refused, pair.lanes.held():
            said.append("let in")
        said.append(str(refused.value))
        close(sock)

    monkeypatch.setattr(module, "close_quietly", interrupted)
    with pair.lanes.held():
        close_elsewhere(pair)
    pair.close()
    assert len(said) == 1
    assert "middle of another" in said[0]
