"""The hierarchy of errors, and what their texts say."""

from __future__ import annotations

import inspect

import pytest

from asyncps import errors
from asyncps.errors import AsyncPSError, OptimizerError, UnknownKey, class_of_code, shown
from asyncps.protocol import messages

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, AsyncPSError)
]


def test_each_class_has_a_code_of_its_own() -> None:
    codes = {kind.__dict__["code"]: kind for kind in CLASSES}
    assert len(codes) == len(CLASSES)
    for code, kind in codes.items():
        assert class_of_code(code) is kind


def test_code_from_the_future_is_the_root() -> None:
    assert class_of_code(60000) is AsyncPSError


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_crosses_the_wire_as_the_same_class_with_its_host(
    kind: type[AsyncPSError],
) -> None:
    error = kind("wrong", key="w", rank=3, expected=(2, 3), got=[1])
    info = messages.decode(messages.encode(messages.error_to_wire(error, "far")))
    assert isinstance(info, messages.ErrorInfo)
    again = messages.error_from_wire(info)
    assert type(again) is kind
    assert str(again) == "wrong (key 'w', rank 3, expected (2, 3), got [1]) [from far]"
    assert (again.key, again.rank, again.host) == ("w", 3, "far")


@pytest.mark.parametrize(("kind", "base"), [
    (errors.ConfigError, ValueError), (errors.ShapeMismatch, ValueError),
    (errors.DtypeMismatch, ValueError), (errors.UnknownKey, KeyError),
    (errors.OptimizerError, ValueError), (errors.DeadlineExceeded, TimeoutError),
    (errors.RendezvousTimeout, TimeoutError), (errors.TransportError, ConnectionError),
    (errors.WorkerLost, errors.NodeLost), (errors.ServerLost, errors.NodeLost),
    (errors.SchedulerLost, errors.NodeLost), (errors.NodeLost, errors.ClusterError),
    (errors.Disagreement, ValueError), (errors.ConnectionLost, errors.TransportError),
])  # fmt: skip
def test_error_is_what_users_catch(kind: type[AsyncPSError], base: type[Exception]) -> None:
    assert issubclass(kind, base)
    assert issubclass(kind, AsyncPSError)


def test_text_names_what_is_known_and_nothing_else() -> None:
    assert str(AsyncPSError("wrong")) == "wrong"
    assert str(AsyncPSError("wrong", key=5)) == "wrong (key 5)"
    assert str(AsyncPSError("wrong", key="5")) == "wrong (key '5')"
    assert str(AsyncPSError("wrong", got=0)) == "wrong (got 0)"
    assert str(UnknownKey("wrong", key="k")) == "wrong (key 'k')"  # not KeyError's repr


@pytest.mark.parametrize("kind", CLASSES)
def test_copy_says_the_same_and_has_its_own_traceback(kind: type[AsyncPSError]) -> None:
    error = kind("it went wrong", key="w", rank=3, host="h", expected=1, got=2)
    error.__cause__ = KeyError("why")
    with pytest.raises(kind):
        raise error
    copied = error.again()
    assert type(copied) is kind
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
    assert copied.__cause__ is error.__cause__
    assert copied.__traceback__ is None


def test_only_a_lost_connection_is_retriable() -> None:
    assert [kind for kind in CLASSES if kind.retriable] == [errors.ConnectionLost]


def test_what_users_code_says_without_a_utf_8_form_crosses_the_wire_escaped() -> None:
    error = OptimizerError("not \udcff", expected="a \udcfe", got="b \udcfd")
    packed = messages.encode(messages.error_to_wire(error))
    found = messages.decode(packed)
    assert isinstance(found, messages.ErrorInfo)
    assert (found.message, found.expected, found.got) == (
        r"not \udcff", r"a \udcfe", r"b \udcfd")


def test_anything_is_shown() -> None:
    class Shy:
        def __init__(self, said: str | None) -> None:
            self.said = said

        def __repr__(self) -> str:
            if self.said is None:
                raise RuntimeError("nothing to say")
            return self.said

    assert shown("w") == "'w'"
    assert shown([0] * 1000, 5) == "[0, 0"
    assert shown(Shy("\udcff")) == r"\udcff"
    assert shown(Shy(None)) == "a Shy that cannot be shown"
    assert shown(10**5000) == "a int that cannot be shown"
