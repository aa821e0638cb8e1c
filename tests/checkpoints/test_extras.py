"""What codecs keep beside what was not sent is part of a checkpoint, by rank, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asyncps.errors import CheckpointError, RemoteProtocolError
from asyncps.kvstore import KVStore
from asyncps.protocol.parcels import KeptKey, decode_list, encode_list
from asyncps.roles import carrying
from asyncps.roles.carrying import Part, Stream
from asyncps.tensor import checkpoint
from tests.support.cluster import on_cluster

# Elements of each key, and of what its codec keeps of it; 700,000 float32 take several parcels.
SIZES = {"both": (1000, 37), 5: (300_000, 700_001), "residual": (77, 0), "extra": (5, 5),
         "dense": (6, 0)}


def kept(store: KVStore) -> dict[Any, Any]:
    """Copies of all that a worker keeps, by key."""
    compression = store._core.client.compression
    return {} if compression is None else {
        key: (*(None if array is None else array.copy() for array in (one.residual, one.extra)),
              one.pushes)
        for key, one in compression.coders.kept().items()}


def equal(found: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(a, b) if isinstance(b, np.ndarray) else a is b or a == b
        for key in expected for a, b in zip(found[key], expected[key], strict=True))


def begin(store: KVStore, *, without: int | None = None) -> None:
    """Push once, and let some keys have extras, as a codec would."""
    store.init(list(SIZES), [np.zeros(size, "f4") for size, _ in SIZES.values()])
    store.set_gradient_compression({"type": "2bit"}, keys=["both", 5, "residual", "extra"])
    chance = np.random.default_rng(store.rank)
    store.push(list(SIZES), [chance.uniform(-1, 1, n).astype("f4") for n, _ in SIZES.values()])
    store.barrier()
    for key, (_, size) in SIZES.items():
        if size and store.rank != without:
            coder = store._core.client.compression.coders[key]
            coder.extra = chance.normal(size=size).astype("f4")
            coder.pushes = 3 + len(str(key))
            if key == "extra":
                coder.residual = None


@pytest.mark.parametrize("compress", [True, False], ids=["compressed", "not yet"])
def test_all_is_given_back_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    monkeypatch.setattr(carrying, "MAX_WAITING", 2)

    def save(store: KVStore) -> Any:
        begin(store)
        store.save(tmp_path / "c")
        return kept(store)

    def load(store: KVStore) -> Any:
        if compress:
            begin(store)
        store.load(tmp_path / "c")
        store.save(tmp_path / "again")
        return kept(store)

    saved = on_cluster(save, workers=3)
    assert [set(each) for each in saved] == [{"both", 5, "residual", "extra"}] * 3
    loaded = on_cluster(load, workers=3, servers=3)
    for found, expected in zip(loaded, saved, strict=True):
        assert equal({key: found[key] for key in expected}, expected)
    first, again = (load_file(tmp_path / name / "residuals.safetensors") for name in ("c", "again"))
    assert sorted(first) == sorted(
        [f"{key}/{rank}{end}" for rank in range(3) for key in ("both", "5") for end in
         ("", ".extra")] + [f"residual/{rank}" for rank in range(3)]
        + [f"extra/{rank}.extra" for rank in range(3)])
    assert all(np.array_equal(first[name], again[name]) for name in first)
    items, _ = checkpoint.show(tmp_path / "c")
    assert [(item.state, item.shape) for item in items if item.key == "extra"] == [
        (None, (5,)), *((f"extra of rank {rank}", (5,)) for rank in range(3))]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("without", [None, 0])
def test_on_another_number_of_workers_a_rank_keeps_its_own(
    tmp_path: Path, workers: int, without: int | None
) -> None:
    def save(store: KVStore) -> Any:
        begin(store, without=without)
        store.save(tmp_path / "c")
        return kept(store)

    def load(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        return kept(store)

    saved, loaded = on_cluster(save, workers=3), on_cluster(load, workers=workers, servers=1)
    for rank, found in enumerate(loaded):
        sources = [of for of in range(3) if of % workers == rank]
        for key in ("both", 5, "extra"):
            having = [saved[of][key][1] for of in sources if saved[of][key][1] is not None]
            mine = found.get(key, (None, None, 0))
            assert (mine[1] is None) is (not having), (rank, key)
            assert not having or np.array_equal(mine[1], having[0]), (rank, key)
        assert found["both"][2] == 7
    for key in ("both", "residual", 5):  # the sum of what was not sent is what it was
        before, after = (
            sum(each[key][0].astype("f8") for each in run if key in each and
                each[key][0] is not None) for run in (saved, loaded))
        assert np.allclose(before, after, atol=1e-6)


def test_a_codec_that_was_not_told_yet_takes_what_was_loaded(tmp_path: Path) -> None:
    """An extra of a key without a residual waits for the key's first push."""

    def save(store: KVStore) -> None:
        begin(store)
        store.save(tmp_path / "c")

    def load(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        coders = store._core.client.compression.coders
        assert coders.get("extra") is None
        coder = coders.of("extra", 5)
        return coder.extra, coder.pushes, kept(store)["extra"][1]

    on_cluster(save)
    for extra, pushes, again in on_cluster(load):
        assert extra.shape == (5,)
        assert pushes == 8
        assert np.array_equal(extra, again)


@pytest.mark.parametrize(("harm", "words"), [
    ("nan", "what a codec keeps is not finite.*key 'extra'.*rank 1"),
    ("inf", "what a codec keeps is not finite.*key 'extra'.*rank 1"),
    ("size", "does not fit it.*key 'extra'"), ("dtype", "not float32 in a row"),
    ("shape", "not float32 in a row"), ("rank", "has no rank"), ("none", "does not fit it"),
    ("key", "of no known key"),
])  # fmt: skip
def test_what_cannot_be_is_refused_and_nothing_changes(
    tmp_path: Path, harm: str, words: str
) -> None:
    def save(store: KVStore) -> None:
        begin(store)
        store.save(tmp_path / "c")

    on_cluster(save)
    file = tmp_path / "c" / "residuals.safetensors"
    arrays = load_file(file)
    name = "extra/1.extra"
    if harm in ("nan", "inf"):
        arrays[name][3] = float(harm)
    elif harm == "size":
        arrays[name] = arrays[name][:4].copy()
    elif harm == "dtype":
        arrays[name] = arrays[name].astype("f8")
    elif harm == "shape":
        arrays[name] = arrays[name].reshape(5, 1)
    elif harm == "rank":
        arrays["extra/x.extra"] = arrays.pop(name)
    elif harm == "none":
        arrays |= {f"extra/{rank}.extra": np.zeros(0, "f4") for rank in (0, 1)}
    elif harm == "key":
        arrays["other/1.extra"] = arrays.pop(name)
    save_file(arrays, file)

    def load(store: KVStore) -> None:
        begin(store)
        before = kept(store)
        with pytest.raises(CheckpointError, match=words):
            store.load(tmp_path / "c")
        assert equal(kept(store), before)

    on_cluster(load)


def test_a_checkpoint_without_extras_forgets_those_there_are(tmp_path: Path) -> None:
    def work(store: KVStore) -> Any:
        begin(store)
        for _, coder in store._core.client.compression.coders:
            coder.extra = None
        store.save(tmp_path / "c")
        for _, coder in store._core.client.compression.coders:
            coder.extra = np.ones(3, "f4")
        store.load(tmp_path / "c")
        return kept(store)

    for found in on_cluster(work):
        assert [each[1] for each in found.values()] == [None] * len(found)


def test_parts_of_a_stream_tell_extras() -> None:
    stream = Stream([KeptKey("a", 2, 0, 3), KeptKey("b", 0, 1, 1), KeptKey("c", 1, 0)])
    assert stream.total == 28
    assert list(stream.parts(0, 28)) == [
        Part(0, 0, 8, 0), Part(0, 0, 12, 8, True), Part(1, 0, 4, 20, True), Part(2, 0, 4, 24)]
    assert list(stream.parts(12, 8)) == [Part(0, 4, 8, 0, True)]


def test_a_list_tells_of_extras_and_may_be_silent() -> None:
    keys = [KeptKey("w", 5, 2, 7), KeptKey(3, 0, 1)]
    assert decode_list(encode_list(keys)) == keys
    assert decode_list(msgspec.msgpack.encode([["w", 5, 2]])) == [KeptKey("w", 5, 2, 0)]
    assert decode_list(encode_list([KeptKey("w", 5, 2, 7, 0, "dgc")]))[0].codec == "dgc"
    with pytest.raises(RemoteProtocolError):
        decode_list(encode_list([KeptKey("w", 5, 2, 7, 0, "x" * 65)]))
    for extra in (-1, 1 << 33):
        with pytest.raises(RemoteProtocolError):
            decode_list(encode_list([KeptKey("w", 5, 2, extra)]))
