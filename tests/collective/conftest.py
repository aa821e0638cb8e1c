"""Groups of ranks that the tests of a file share, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.group import Group, group


@pytest.fixture(scope="module")
def three() -> Iterator[Group]:
    """Three ranks."""
    with group(3) as opened:
        yield opened


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Group]:
    """So many ranks; a test may ask for other numbers, indirectly."""
    with group(request.param) as opened:
        yield opened
