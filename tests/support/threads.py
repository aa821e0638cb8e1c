"""Work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def together(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own; raise what the first that failed raised, when all ended."""
    errors: list[BaseException] = []

    def carry(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=carry, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
