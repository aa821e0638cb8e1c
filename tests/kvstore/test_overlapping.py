"""Compressed calls that overlap: what was called first is encoded first, and applied first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import AsyncPSError
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

SIZE = 40_000
CHUNKS = {"chunk_bytes": 65536}
SPECS: list[dict[str, Any]] = [
    {"type": "f16"}, {"type": "int8"}, {"type": "2bit", "threshold": 0.5}, {"type": "1bit"},
    {"type": "onebit"}, {"type": "topk", "ratio": 0.05}, {"type": "threshold", "threshold": 1.0},
    {"type": "randomk", "ratio": 0.2}, {"type": "dgc", "ratio": 0.05, "warmup": 3},
    {"type": "powersgd", "rank": 2},
]
DRAWN = ("randomk", "powersgd")  # places, or a first factor, that are others for another key
each_codec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["type"])


def ready(store: KVStore, spec: dict[str, Any]) -> None:
    """Two keys of one shape, and a small one that goes dense beside them."""
    store.init(["a", "b", "bias"], [np.zeros((200, SIZE // 200), "f4")] * 2 + [np.zeros(3, "f4")])
    store.set_gradient_compression({**spec, "small_bytes": 1000})
    store.set_optimizer("test")


def gradient(turn: int) -> Any:
    return np.random.default_rng(turn).normal(size=(200, SIZE // 200)).astype("f4")


def stalled(store: KVStore) -> Any:
    """Let the loop not come to what is to be encoded as it is sent."""
    staging = store._core.client.staging
    staging._go_on = lambda: None  # type: ignore[method-assign]
    return staging


@each_codec
@pytest.mark.parametrize("verbs", ["lent", "copied", "mixed"])
def test_encodings_keep_the_order_of_their_calls(spec: dict[str, Any], verbs: str) -> None:
    """Key a by calls that overlap, key b by the same calls one after the other."""
    def work(store: KVStore) -> None:
        ready(store, spec)
        outs, handles = [], []
        staging = stalled(store)
        for turn in range(4):
            outs.append(np.empty((200, SIZE // 200), "f4"))
            if turn == 0 or verbs == "lent" or (verbs == "mixed" and turn % 2 == 0):
                handles.append(store.pushpull("a", gradient(turn), out=outs[-1], async_op=True))
            else:
                handles.append(store.push("a", gradient(turn)))
                handles.append(store.pull("a", out=outs[-1], async_op=True))
        del staging._go_on
        store._runtime.run(lambda: finish(staging))
        for handle in handles:
            handle.wait(10)
        for turn, out in enumerate(outs):
            alone = store.pushpull("b", gradient(turn), out=np.empty_like(out))
            if spec["type"] not in DRAWN:
                np.testing.assert_allclose(out, alone, rtol=1e-5, atol=1e-5)
        report = store.compression_report()
        if spec["type"] in DRAWN:
            total = sum(gradient(turn).astype("f8") for turn in range(4))
            left = float(np.linalg.norm(total - outs[-1]))
            assert abs(left - report["a"]["error_norm"]) < 1e-3 * left
        else:
            assert abs(report["a"]["error_norm"] - report["b"]["error_norm"]) < 1e-3

    on_cluster(work, workers=1, settings=CHUNKS)


def begun(store: KVStore, g: Any) -> Any:
    """A pushpull of key a that has not reached the loop."""
    core = store._core
    return store._call("a", lambda plan: core.pushpull(plan, "a", g, np.empty_like(g), 0))


async def finish(staging: Any) -> None:
    staging.finish()


@each_codec
def test_small_keys_of_a_call_are_not_overtaken(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        ready(store, spec)
        staging = stalled(store)
        out = np.empty((200, SIZE // 200), "f4")
        first = store.pushpull(["a", "bias"], [gradient(0), np.ones(3, "f4")],
                               out=[out, np.empty(3, "f4")], async_op=True)
        second = store.pull("bias", async_op=True)
        third = store.push("bias", np.full(3, 100, "f4"))
        del staging._go_on
        store._runtime.run(lambda: finish(staging))
        assert first.wait(10)[1].tolist() == [1, 1, 1]
        assert second.wait(10).tolist() == [1, 1, 1]
        third.wait(10)
        assert store.pull("bias").tolist() == [101, 101, 101]

    on_cluster(work, workers=1, settings=CHUNKS)


@each_codec
def test_hyper_parameters_are_of_what_is_called_after_them(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        ready(store, spec)
        staging = stalled(store)
        out = np.empty((200, SIZE // 200), "f4")
        handle = store.pushpull("a", gradient(0), out=out, async_op=True)
        del staging._go_on
        store.set_hyperparameters(rescale_grad=100.0)
        handle.wait(10)
        alone = store.pushpull("b", gradient(0), out=np.empty_like(out))
        if spec["type"] not in DRAWN:
            np.testing.assert_allclose(100 * out, alone, rtol=1e-5, atol=1e-5)
        assert np.abs(out).max() < 50

    on_cluster(work, workers=1, settings=CHUNKS)


@each_codec
def test_what_will_not_be_sent_is_put_back_by_who_had_it_encoded(spec: dict[str, Any]) -> None:
    """The first call ends before it is sent, and the second had encoded the first's value."""
    def work(store: KVStore) -> None:
        ready(store, spec)
        core = store._core
        stale = gradient(0).reshape(-1)
        call = begun(store, gradient(0))
        coder = core.client.compression.coder_of("a")
        assert bool(coder.waiting) == (spec["type"] != "powersgd")  # that takes too long for a loop
        coder.settle()
        assert not coder.waiting
        before = coder.sent_bytes
        assert before > 0
        call.op.part_done(AsyncPSError("refused"))
        assert coder.sent_bytes == 0
        if spec["type"] != "dgc":  # what its masks took from the momentum is gone
            np.testing.assert_allclose(coder.residual, stale, rtol=1e-4, atol=1e-4)

    on_cluster(work, workers=1, settings=CHUNKS)


@each_codec
def test_a_call_that_is_over_is_not_encoded(spec: dict[str, Any]) -> None:
    def work(store: KVStore) -> None:
        ready(store, spec)
        call = begun(store, gradient(0))
        call.op.part_done(AsyncPSError("refused"))
        out = store.pushpull("a", gradient(1), out=np.empty((200, SIZE // 200), "f4"))
        alone = store.pushpull("b", gradient(1), out=np.empty_like(out))
        if spec["type"] not in DRAWN:
            np.testing.assert_allclose(out, alone, rtol=1e-5, atol=1e-5)

    on_cluster(work, workers=1, settings=CHUNKS)
