"""Who saves or loads waits for calls that encode, and these are refused meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from asyncps.errors import DeadlineExceeded
from asyncps.roles.encodings import Encodings


def test_nothing_under_way_is_not_waited_for() -> None:
    asyncio.run(Encodings().over(0))


@pytest.mark.parametrize("forgotten", [False, True])
def test_another_thread_ends_the_wait(forgotten: bool) -> None:
    async def main() -> None:
        encodings = Encodings()
        mine = [encodings.begin(), encodings.begin()]

        def end() -> None:
            while not encodings.waited_for:
                pass
            mine[0].end()
            mine[0].end()  # once more does no harm
            assert encodings.waited_for
            if forgotten:
                mine.pop()  # such as of a thread in which a signal handler raised
                gc.collect()
            else:
                mine[1].end()

        other = threading.Thread(target=end)
        other.start()
        await encodings.over(30)
        other.join()
        assert not encodings.waited_for
        await encodings.over(0)

    asyncio.run(main())


def test_a_call_that_never_begins_is_not_waited_for_forever() -> None:
    async def main() -> None:
        encodings = Encodings()
        mine = encodings.begin()
        with pytest.raises(DeadlineExceeded, match=r"have not begun within 0\.01 s"):
            await encodings.over(0.01)
        assert not encodings.waited_for
        mine.end()
        await encodings.over(0)

    asyncio.run(main())
