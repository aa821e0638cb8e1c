"""One call of a user: many requests, one end."""

from __future__ import annotations

import threading

from asyncps.errors import AsyncPSError, ShapeMismatch, UnknownKey
from asyncps.roles.operation import Operation


def test_ends_when_its_last_part_has_ended() -> None:
    op = Operation("push", lent=False)
    op.add()
    op.add()
    op.part_done()
    op.part_done()
    assert not op.ended
    assert not op.wait(0)
    op.part_done()
    assert op.ended
    assert op.wait(0)
    assert op.wait()


def test_keeps_the_first_error_and_still_waits_for_all_parts() -> None:
    op = Operation("pull", lent=False)
    op.add()
    first = UnknownKey("first")
    op.part_done(first)
    assert not op.ended
    op.part_done(ShapeMismatch("second"))
    assert op.error is first


def test_finishing_copies_are_made_before_anyone_hears_of_the_end() -> None:
    op = Operation("pull", lent=False)
    seen: list[str] = []
    op.finishing.append(lambda: seen.append("copied"))
    op.on_end(lambda _: seen.append("told"))
    op.finally_(lambda: seen.append("freed"))
    op.part_done()
    assert seen[0] == "copied"
    assert sorted(seen) == ["copied", "freed", "told"]


def test_nothing_is_copied_after_an_error() -> None:
    op = Operation("pull", lent=False)
    seen: list[AsyncPSError | None] = []
    op.finishing.append(lambda: seen.append(None))
    op.on_end(lambda ended: seen.append(ended.error))
    error = UnknownKey("gone")
    op.part_done(error)
    assert seen == [error]


def test_callback_after_the_end_is_called_at_once() -> None:
    op = Operation("push", lent=True)
    op.part_done()
    seen: list[Operation] = []
    op.on_end(seen.append)
    assert seen == [op]


def test_callback_that_fails_stops_no_other() -> None:
    op = Operation("push", lent=True)
    seen: list[str] = []

    def fails(_: Operation) -> None:
        raise RuntimeError("a loop that was closed")

    op.on_end(fails)
    op.on_end(lambda _: seen.append("told"))
    op.finally_(lambda: seen.append("freed"))
    op.part_done()
    assert seen == ["told", "freed"]
    assert op.error is None


def test_copy_that_fails_at_the_end_is_its_error_and_the_others_are_made() -> None:
    op = Operation("pull", lent=False)
    seen: list[str] = []

    def fails() -> None:
        raise ValueError("read-only")

    op.finishing.extend([fails, lambda: seen.append("copied")])
    op.on_end(lambda _: seen.append("told"))
    op.part_done()
    assert seen == ["copied", "told"]
    assert isinstance(op.error, AsyncPSError)
    assert "read-only" in str(op.error)


def test_several_threads_may_wait_for_one_end() -> None:
    op = Operation("push", lent=False)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(op.wait(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    op.part_done()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
