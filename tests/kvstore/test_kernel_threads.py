"""Large pushes that several threads encode: what arrives is what one thread would have sent."""

from __future__ import annotations

import threading

import pytest

from asyncps.tensor import threads
from tests.kvstore import compressed
from tests.support.cluster import on_cluster


@pytest.mark.parametrize("many", [1, 3])
def test_model_holds_whatever_the_number_of_threads(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    start = threading.Thread.start

    def watched(thread: threading.Thread) -> None:
        if thread.name.startswith("asyncps-kernels"):
            seen.add(thread.name)
        start(thread)

    monkeypatch.setattr(threads, "LEAST_BYTES", 1)
    monkeypatch.setattr(threading.Thread, "start", watched)
    on_cluster(compressed.k5_random_gradients,
               settings={"kernel_threads": many, "chunk_bytes": 65536})
    assert len(seen) == many - 1
