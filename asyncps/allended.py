"""Several things to be ended though one fails: until then arrays are being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def run_all(works: Iterable[Callable[[], Any]]) -> None:
    """Run all.

    Raises:
        Exception: The first failure, when all have run.
    """
    failed: list[Exception] = []
    for work in works:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised when all have ended
            failed.append(error)
    if failed:
        raise failed.pop(0)


def wait_for_all(handles: Iterable[Any]) -> None:
    """Wait for all handles, as `run_all` does."""
    run_all(handle.wait for handle in handles)
