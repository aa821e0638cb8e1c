"""K10: what a caller does wrong is told by a typed error, and the store works afterwards."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import asyncps
from asyncps.errors import (
    AsyncPSError,
    ClosedError,
    ConfigError,
    Disagreement,
    DtypeMismatch,
    KeyExists,
    NotYetError,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
)
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

SIZES = pytest.mark.parametrize("shape", [(2, 3), (300, 400)], ids=["small", "large"])


def still_works(store: KVStore, key: str, shape: tuple[int, ...]) -> None:
    value = np.full(shape, store.rank + 1, "f4")
    store.pushpull(key, value)
    n = store.num_workers
    assert np.all(value == n * (n + 1) / 2)


@SIZES
@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_wrong_shape_and_dtype_tell_key_expected_and_got(
    shape: tuple[int, ...], transport: str
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(shape, "f4"))
        wrong_shape, wrong_dtype = np.zeros((3, 2), "f4"), np.zeros(shape, "f8")
        for verb in (
            lambda v: store.push("w", v), lambda v: store.push("w", v, copy=False),
            lambda v: store.pushpull("w", v), lambda v: store.assign("w", v),
            lambda v: store.pull("w", out=v), lambda v: store.push("w", [v, v]),
            lambda v: store.pushpull("w", np.zeros(shape, "f4"), out=v),
        ):
            with pytest.raises(ShapeMismatch) as shape_error:
                verb(wrong_shape)
            told = str(shape_error.value)
            assert "'w'" in told
            assert str(shape) in told
            assert "(3, 2)" in told
            with pytest.raises(DtypeMismatch) as dtype_error:
                verb(wrong_dtype)
            told = str(dtype_error.value)
            assert "'w'" in told
            assert "float32" in told
            assert "float64" in told
        still_works(store, "w", shape)

    on_cluster(work, transport=transport)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_key_that_nobody_initialised_is_unknown_and_5_is_not_its_string(transport: str) -> None:
    def work(store: KVStore) -> None:
        store.init(5, np.zeros((2, 3), "f4"))
        for key in ("5", "nothing", 6):
            for verb in (
                lambda k=key: store.pull(k),
                lambda k=key: store.push(k, np.zeros((2, 3), "f4")),
                lambda k=key: store.pull([5, k]),
            ):
                with pytest.raises(UnknownKey, match=f"key {key!r}"):
                    verb()
        still_works(store, 5, (2, 3))  # type: ignore[arg-type]

    on_cluster(work, transport=transport)


def test_init_of_a_key_that_exists_checks_and_changes_nothing() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.ones(3, "f4"))
        store.barrier()
        store.init("w", np.full(3, 9, "f4"))
        assert store.pull("w").tolist() == [1, 1, 1]
        with pytest.raises(ShapeMismatch, match=r"'w'.*\(3,\).*\(4,\)"):
            store.init("w", np.ones(4, "f4"))
        with pytest.raises(DtypeMismatch, match=r"'w'.*float32.*int32"):
            store.init("w", np.ones(3, "i4"))
        still_works(store, "w", (3,))

    on_cluster(work)


def test_worker_whose_first_value_has_another_shape_hears_of_it() -> None:
    def work(store: KVStore) -> str:
        try:
            store.init("w", np.ones(3 + store.rank, "f4"))
        except ShapeMismatch as error:
            return str(error)
        return "held"

    results = on_cluster(work, workers=3)
    assert results[0] == "held"
    for rank in (1, 2):
        assert "'w'" in results[rank]
        assert "(3,)" in results[rank]


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, 1.5, None, b"w", True, ("w",), np.zeros(2)])
def test_what_is_no_key_is_a_config_error(key: object) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        with pytest.raises((ConfigError, TensorError)):
            store.push([key], [np.zeros(3, "f4")])
        still_works(store, "w", (3,))

    on_cluster(work, workers=1, servers=1)


@pytest.mark.parametrize("priority", [1 << 31, -(1 << 31) - 1, 1.5, "high", None])
@pytest.mark.parametrize("size", [3, 100_000])
def test_priority_that_does_not_fit_is_refused_and_nothing_is_sent(
    priority: object, size: int
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        value = np.ones(size, "f4")
        for verb in (
            lambda: store.push("w", value, priority=priority), lambda: store.pull(
                "w", priority=priority),
            lambda: store.pushpull("w", value, priority=priority, async_op=True),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match="priority"):
                verb()
        store.pull("w", priority=np.int64((1 << 31) - 1))  # type: ignore[arg-type]
        still_works(store, "w", (size,))

    on_cluster(work, workers=1)


def test_key_that_is_no_text_is_a_config_error() -> None:
    def work(store: KVStore) -> None:
        store.init("schlüssel", np.zeros(3, "f4"))
        for verb in (
            lambda: store.init("\ud800", np.zeros(3, "f4")), lambda: store.pull("\ud800"),
        ):
            with pytest.raises(ConfigError, match="Unicode"):
                verb()
        still_works(store, "schlüssel", (3,))

    on_cluster(work, workers=1)


def test_lists_must_fit_and_name_no_key_twice() -> None:
    def work(store: KVStore) -> None:
        store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(3, "f4")])
        one = np.ones(3, "f4")
        with pytest.raises(KeyExists, match="'a'"):
            store.push(["a", "a"], [one, one])
        with pytest.raises(KeyExists, match="'c'"):
            store.init(["c", "c"], [one, one])
        with pytest.raises(TensorError, match=r"expected 2.*got 1"):
            store.push(["a", "b"], [one])
        with pytest.raises(TensorError):
            store.pull(["a", "b"], out=one)
        with pytest.raises(TensorError, match="'a'"):
            store.push("a", [])
        with pytest.raises(TensorError, match="'a'"):
            store.pull("a", out=[])
        still_works(store, "a", (3,))

    on_cluster(work)


@pytest.mark.parametrize("value", [
    "text", object(), None, np.array(["a"]), np.zeros(3, "c8"), np.zeros(3, bool),
    np.array([object()]), np.zeros(3, "M8[s]"), np.zeros(3, [("a", "f4")]), np.zeros(3, ">f4"),
], ids=repr)  # fmt: skip
def test_value_that_cannot_be_stored_is_refused_by_name(value: object) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        with pytest.raises(TensorError, match="'x'"):
            store.init("x", value)
        with pytest.raises(TensorError, match="'w'"):
            store.push("w", value)
        with pytest.raises(TensorError, match="'w'"):
            store.pull("w", out=value if value is not None else object())
        still_works(store, "w", (3,))

    on_cluster(work, workers=1, servers=1)


def test_optimizer_that_cannot_be_is_refused() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        with pytest.raises(OptimizerError, match=r"adam.*sgd.*test.*got sgdd"):
            store.set_optimizer("sgdd")
        with pytest.raises(OptimizerError, match=r"learning_rate.*got lrr"):
            store.set_optimizer("sgd", lrr=1.0)
        with pytest.raises(OptimizerError, match="no optimizer"):
            store.set_hyperparameters(learning_rate=1.0)
        still_works(store, "w", (3,))

    on_cluster(work)


def test_optimizer_words_that_differ_are_a_disagreement_on_all() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        with pytest.raises(Disagreement):
            store.set_optimizer("sgd", learning_rate=0.5 if store.rank == 1 else 0.1)
        still_works(store, "w", (3,))
        store.set_optimizer("test", rescale_grad=2)
        store.push("w", np.ones(3, "f4"))
        n = store.num_workers
        assert np.all(store.pull("w") == n * (n + 1) / 2 + 2 * n)

    on_cluster(work, workers=3)


def test_optimizer_that_cannot_update_a_key_fails_its_rounds_for_all() -> None:
    def work(store: KVStore) -> None:
        store.init("i", np.full(3, 7, "i4"))
        store.init("f", np.zeros(3, "f4"))
        store.set_optimizer("sgd", learning_rate=1)
        for _ in range(5):
            store.push("i", np.ones(3, "i4"))
        with pytest.raises(OptimizerError, match=r"'i'.*int32"):
            store.pull("i")
        store.push("f", np.ones(3, "f4"))
        assert np.all(store.pull("f") == -store.num_workers)
        store.barrier()
        store.set_optimizer("test")
        store.push("i", np.ones(3, "i4"))
        assert np.all(store.pull("i") == 7 + store.num_workers)

    on_cluster(work)


def test_mean_of_integers_is_refused_everywhere() -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(DtypeMismatch, match="'i'"):
            store.init("i", np.zeros(3, "i4"))
        store.init("f", np.zeros(3, "f4"))
        value = np.full(3, store.rank + 1, "f4")
        store.pushpull("f", value)
        assert np.all(value == (store.num_workers + 1) / 2)

    on_cluster(work, workers=3, reduce="mean")


@pytest.mark.parametrize("type", ["p3"])
def test_store_type_of_a_later_version_says_so(type: str) -> None:
    with pytest.raises(NotYetError, match=f"{type}.*not there yet"):
        asyncps.create(type)
    with pytest.raises(NotYetError):
        asyncps.connect(type)


@pytest.mark.parametrize("type", ["dist_sink", "", "Local", "dist-sync"])
def test_store_type_with_a_typo_lists_the_known_ones(type: str) -> None:
    with pytest.raises(ConfigError, match="dist_sync") as error:
        asyncps.create(type)
    assert "local" in str(error.value)
    assert "p3" in str(error.value)


def test_options_of_a_later_version_say_so_and_typos_are_listed() -> None:
    with pytest.raises(ConfigError, match="multi_precision must be true or false"):
        asyncps.create("dist_sync", multi_precision="yes")
    with pytest.raises(ConfigError, match=r"ordre.*order"):
        asyncps.create("dist_sync", ordre="rank")
    with pytest.raises(ConfigError, match="arrival or rank"):
        asyncps.create("dist_sync", order="ranks")
    with pytest.raises(ConfigError, match="sum or mean"):
        asyncps.create("dist_sync", reduce="median")


@pytest.mark.parametrize("type", ["local", "dist_sync", "dist_async", "dist_async_device"])
def test_staleness_belongs_to_dist_ssp(type: str) -> None:
    with pytest.raises(ConfigError, match=rf"{type} store has no staleness.*dist_ssp.*got 2"):
        asyncps.create(type, staleness=2)
    with asyncps.create(type, staleness=0) as store:
        assert store.pull(store.init("w", np.ones(3, "f4")) or "w").tolist() == [1, 1, 1]


@pytest.mark.parametrize("staleness", [-1, 1.0, "2", None, (1 << 20) + 1])
def test_staleness_is_a_number_of_clocks(staleness: object) -> None:
    with pytest.raises(ConfigError, match="staleness"):
        asyncps.create("dist_ssp", staleness=staleness)


def test_staleness_may_be_a_numpy_integer() -> None:
    with asyncps.create("dist_ssp", staleness=np.int64(2)) as store:
        assert store.type == "dist_ssp"


@pytest.mark.parametrize(("spelling", "type"), [
    ("dist", "dist_sync"), ("dist_sync_device", "dist_sync"), ("dist_device_sync", "dist_sync"),
    ("dist_async_device", "dist_async"),
])
def test_spellings_of_mxnet_mean_the_same_store(spelling: str, type: str) -> None:
    with asyncps.create(spelling) as store:
        assert store.type == type
        asyncps.create(type).init("w", np.ones(3, "f4"))  # they agree: it is the same store
        store.set_optimizer("test", rescale_grad=2)
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [3, 3, 3]


@pytest.mark.parametrize("type", ["local", "dist_sync"])
def test_verbs_of_a_later_version_say_so(type: str) -> None:
    with asyncps.create(type) as store:
        for name in ("set_updater", "_set_updater") if type == "dist_sync" else ():
            with pytest.raises(NotYetError, match=r"^set_updater is of local stores only: on a "
                                                  r"cluster the servers update \(set_optimizer, "):
                getattr(store, name)("x")
        with pytest.raises(AttributeError):
            store.no_such_verb  # noqa: B018
        with pytest.raises(ConfigError, match="optimizer"):
            store.is_capable("flying")
        assert store.is_capable("optimizer")


VERBS = {
    "init": lambda s: s.init("v", np.zeros(3, "f4")),
    "init again": lambda s: s.init("w", np.zeros(3, "f4")),
    "push": lambda s: s.push("w", np.zeros(3, "f4")).wait(5),
    "pull": lambda s: s.pull("w"),
    "pushpull": lambda s: s.pushpull("w", np.zeros(3, "f4")),
    "pull of another key": lambda s: s.pull("never heard of"),
    "assign": lambda s: s.assign("w", np.zeros(3, "f4")),
    "barrier": lambda s: s.barrier(),
    "set_optimizer": lambda s: s.set_optimizer("test"),
    "set_hyperparameters": lambda s: s.set_hyperparameters(rescale_grad=2.0),
    "statistics": lambda s: s.statistics(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_after_close_raises_closed_error_each_time(verb: str) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("test")
        store.close()
        store.close()
        for _ in range(2):
            with pytest.raises(ClosedError):
                VERBS[verb](store)

    on_cluster(work, workers=1, servers=1, settings={"answer_s": 5.0})


@pytest.mark.parametrize("verb", VERBS)
def test_verb_after_close_of_an_embedded_store_raises_each_time(verb: str) -> None:
    store = asyncps.create("dist_sync", round_s=5.0)
    store.init("w", np.zeros(3, "f4"))
    store.close()
    store.close()
    for _ in range(2):
        with pytest.raises(ClosedError):
            VERBS[verb](store)


@pytest.mark.parametrize("verb", VERBS)
def test_verb_after_close_of_a_local_store_raises(verb: str) -> None:
    store = asyncps.create("local")
    store.init("w", np.zeros(3, "f4"))
    store.close()
    store.close()
    with pytest.raises(ClosedError):
        VERBS[verb](store)


@pytest.mark.parametrize("verb", VERBS)
def test_closed_one_of_two_stores_raises_and_the_other_goes_on(verb: str) -> None:
    with asyncps.create("dist_sync", name="a", round_s=5.0, answer_s=5.0) as other:
        store = asyncps.create("dist_sync", name="b")
        for each in (other, store):
            each.init("w", np.zeros(3, "f4"))
        store.close()
        for _ in range(2):
            with pytest.raises(ClosedError):
                VERBS[verb](store)
        assert other.pushpull("w", np.ones(3, "f4")).tolist() == [1, 1, 1]


def test_hyper_parameters_that_differ_are_named_alone() -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        if store.rank == 0:
            store.set_hyperparameters(learning_rate=0.25)
            said.set()
            return
        assert said.wait(10)
        with pytest.raises(Disagreement, match=(
                r"expected \{'learning_rate': 0\.25\}, got \{'learning_rate': 0\.5\}")):
            store.set_hyperparameters(learning_rate=0.5)

    said = threading.Event()
    on_cluster(work, servers=1)


def test_handle_keeps_the_error_of_its_verb() -> None:
    def work(store: KVStore) -> None:
        store.init("i", np.full(3, 7, "i4"))
        store.set_optimizer("sgd", learning_rate=1)
        handle = store.pushpull("i", np.ones(3, "i4"), async_op=True)
        with pytest.raises(OptimizerError):
            handle.wait(10)
        assert handle.done()
        error = handle.exception()
        assert isinstance(error, AsyncPSError)
        assert error.key == "i"

    on_cluster(work)
