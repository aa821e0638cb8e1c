"""What a store says of its compression: whether it paid on the link that was measured."""

from __future__ import annotations

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Zero
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_report_says_how_fast_the_links_are_and_whether_it_paid(transport: str) -> None:
    def work(store: KVStore) -> None:
        keys = ["dense", "w"]
        store.init(keys, [np.zeros(1_000_000, "f4")] * 2)
        store.set_gradient_compression({"type": "2bit"}, keys=["w"])
        report = store.compression_report()
        assert report["dense"] == {"codec": "dense", "why": "no compression is set for it",
                                   "bytes_before": 0, "bytes_sent": 0, "error_norm": 0}
        assert report["w"]["paid"] is None  # nothing was encoded
        paces = store._core.worker.paces
        for _ in range(200):  # until something had to wait; as a rule at once
            store.pushpull(keys, [np.ones(1_000_000, "f4"), np.ones(1_000_000, "f4")])
            if paces.link_bytes_s is not None:
                break
        told = store.compression_report()["w"]
        assert told["link_bytes_s"] == paces.link_bytes_s
        assert told["link_bytes_s"] > 0
        # On links that are slower and faster than any.
        for bytes_s, paid in ((1e3, True), (1e18, False)):
            paces.out.bytes, paces.out.seconds = 1 << 30, (1 << 30) / bytes_s
            told = store.compression_report()["w"]
            assert told["link_bytes_s"] == pytest.approx(bytes_s)
            assert told["paid"] is paid

    on_cluster(work, workers=1, transport=transport)


@pytest.mark.slow
def test_a_link_that_was_busy_says_whether_an_encoded_key_paid() -> None:
    """The loopback of this machine, as fast as it is: nothing is written by hand."""
    def work(store: KVStore) -> None:
        x = np.ones(8 << 20, "f4")  # 32 MiB in one go: more than sockets hold
        store.init(["dense", "w"], [np.zeros_like(x), np.zeros_like(x)])
        store.set_gradient_compression({"type": "2bit"}, keys=["w"])
        for _ in range(50):  # as a rule the first does
            store.push(["dense", "w"], [x, x])
            store.barrier()
            told = store.compression_report()["w"]
            if told["link_bytes_s"] is not None:
                break
        saved, took = told["bytes_before"] - told["bytes_sent"], told["encode_s"]
        assert saved > 0
        assert told["paid"] is (saved > took * told["link_bytes_s"])

    on_cluster(work, workers=1, transport="tcp")


def test_report_does_not_guess() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(100, "f4"))
        store.set_gradient_compression({"type": "2bit"})
        store.pushpull("w", np.ones(100, "f4"))
        told = store.compression_report()["w"]
        assert (told["link_bytes_s"], told["paid"]) == (None, None)

    on_cluster(work, workers=1, transport="tcp")


def test_a_key_that_travels_as_it_is_tells_its_bytes_and_what_it_keeps() -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "bias"], [np.zeros(20_000, "f4"), np.zeros(10, "f4")])
        store.init("rows", Zero(), shape=(100, 5))
        assert store.compression_report() == {}
        store.push("bias", np.ones(10, "f4"))  # before anything was said
        store.set_gradient_compression({"type": "topk", "ratio": 0.25}, keys=["w", "bias"])
        for _ in range(2):
            store.push(["w", "bias"], [np.ones(20_000, "f4"), np.ones(10, "f4")])
            store.pushpull("bias", np.ones(10, "f4"))
            store.push("rows", RowSparse([7, 70], np.ones((2, 5), "f4"), (100, 5)))
        kept = store.compression_report()["w"]["error_norm"]
        assert kept > 0
        store.set_gradient_compression({"type": "topk", "small_bytes": 1 << 30}, keys="w")
        store.push("w", np.ones(20_000, "f4"))
        report = store.compression_report()
        assert report["bias"] == {"codec": "dense", "why": "smaller than 65536 bytes",
                                  "bytes_before": 160, "bytes_sent": 160, "error_norm": 0,
                                  "skipped": 0}
        assert report["w"]["why"] == f"smaller than {1 << 30} bytes"
        assert report["w"]["bytes_before"] == 3 * 80_000
        assert report["w"]["bytes_sent"] == 2 * 8 * 5_000 + 80_000
        assert report["w"]["error_norm"] == kept
        assert (report["rows"]["bytes_before"], report["rows"]["bytes_sent"]) == (80, 80)

    on_cluster(work, workers=1)
