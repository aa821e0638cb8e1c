"""Stores, barriers and optimizers that all workers agree on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.config import Config
from asyncps.errors import (
    ClusterError,
    ConfigError,
    Disagreement,
    OptimizerError,
    RemoteProtocolError,
    ShapeMismatch,
    UnknownKey,
)
from asyncps.protocol.messages import (
    Await,
    Barrier,
    Declare,
    Done,
    ErrorInfo,
    Install,
    KeySpec,
    Lookup,
    OpenStore,
    Placed,
    Ready,
    SetOptimizer,
    StoreConfig,
    StoreOpened,
)
from asyncps.state import agreements as module
from asyncps.state.agreements import Action, Answer, Meeting, Order, Stores

CONFIG = Config(num_workers=3, num_servers=2)
SUM = StoreConfig("dist_sync", "arrival", "sum")
MEAN = StoreConfig("dist_sync", "arrival", "mean")
ERROR = ErrorInfo(OptimizerError.code, "no such optimizer", host="server-0")


def obey(stores: Stores, actions: list[Action], *errors: ErrorInfo) -> list[Action]:
    """Answers all orders, the first ones with `errors`; returns what the last one leads to."""
    orders = [action for action in actions if isinstance(action, Order)]
    after: list[Action] = []
    for i, order in enumerate(orders):
        assert after == []
        answer = errors[i] if i < len(errors) else Done()
        after = stores.answered(order.server, order.request, answer)
    return after


def with_store(config: Config = CONFIG) -> Stores:
    stores = Stores(config)
    obey(stores, stores.handle(0, 1, OpenStore("s", SUM)))
    return stores


def spec(key: int | str, *shape: int) -> KeySpec:
    return KeySpec(key, "float32", shape, 4)


def test_new_store_is_installed_on_every_server_before_anybody_is_answered() -> None:
    stores = Stores(CONFIG)
    install = Install(1, SUM, None, {})
    actions = stores.handle(2, 5, OpenStore("s", SUM))
    assert actions == [Order(0, 1, install), Order(1, 2, install)]
    assert stores.handle(0, 7, OpenStore("s", SUM)) == []
    assert stores.answered(1, 2, Done()) == []
    assert stores.answered(0, 1, Done()) == [Answer(2, 5, StoreOpened(1)),
                                             Answer(0, 7, StoreOpened(1))]
    assert stores.handle(1, 1, OpenStore("s", SUM)) == [Answer(1, 1, StoreOpened(1))]


def test_stores_are_numbered_from_1_and_orders_never_share_a_number() -> None:
    stores = with_store()
    actions = stores.handle(0, 2, OpenStore("other", MEAN))
    assert [a.request for a in actions] == [3, 4]
    assert obey(stores, actions) == [Answer(0, 2, StoreOpened(2))]


def test_repeated_answer_of_a_server_is_ignored() -> None:
    stores = Stores(CONFIG)
    stores.handle(0, 1, OpenStore("s", SUM))
    assert stores.answered(0, 1, Done()) == []
    assert stores.answered(0, 1, Done()) == []
    assert stores.answered(1, 2, Done()) == [Answer(0, 1, StoreOpened(1))]
    assert stores.answered(1, 2, Done()) == []
    assert stores.answered(1, 99, Done()) == []


def test_server_cannot_answer_for_another() -> None:
    stores = Stores(CONFIG)
    stores.handle(0, 1, OpenStore("s", SUM))
    with pytest.raises(RemoteProtocolError):
        stores.answered(1, 1, Done())
    assert stores.owed(0) == [Order(0, 1, Install(1, SUM, None, {}))]


def test_unanswered_orders_of_a_server_are_owed_in_their_order() -> None:
    stores = Stores(CONFIG)
    stores.handle(0, 1, OpenStore("a", SUM))
    stores.handle(0, 2, OpenStore("b", SUM))
    stores.answered(0, 1, Done())
    assert [order.request for order in stores.owed(0)] == [3]
    assert [order.request for order in stores.owed(1)] == [2, 4]


def test_same_name_with_another_config_is_a_disagreement() -> None:
    stores = with_store()
    with pytest.raises(Disagreement) as error:
        stores.handle(2, 1, OpenStore("s", MEAN))
    text = str(error.value)
    assert error.value.rank == 2
    for word in ("'s'", "worker 2", "worker 0", "reduce='sum'", "reduce='mean'"):
        assert word in text


def test_staleness_is_agreed_upon_like_the_type() -> None:
    stores = Stores(CONFIG)
    obey(stores, stores.handle(0, 1, OpenStore("s", StoreConfig("dist_ssp", "rank", "sum", 2))))
    with pytest.raises(Disagreement, match=r"staleness=2.*staleness=3"):
        stores.handle(1, 1, OpenStore("s", StoreConfig("dist_ssp", "rank", "sum", 3)))


@pytest.mark.parametrize(("config", "allowed"), [
    (StoreConfig("dist_sink", "arrival", "sum"), "dist_sync, dist_async, dist_ssp"),
    (StoreConfig("dist_sync", "arrival", "sum", 1), "0 to 0"),
    (StoreConfig("dist_async", "arrival", "sum", 1), "0 to 0"),
    (StoreConfig("dist_ssp", "arrival", "sum", -1), "0 to 1048576"),
    (StoreConfig("dist_ssp", "arrival", "sum", (1 << 20) + 1), "0 to 1048576"),
    (StoreConfig("dist_sync", "random", "sum"), "arrival, rank"),
    (StoreConfig("dist_sync", "rank", "max"), "sum, mean"),
])
def test_unknown_word_of_a_store_is_refused(config: StoreConfig, allowed: str) -> None:
    stores = Stores(CONFIG)
    with pytest.raises(ConfigError) as error:
        stores.handle(0, 1, OpenStore("s", config))
    assert error.value.expected == allowed
    assert stores.owed(0) == []


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_name_of_a_store_has_a_sane_length(name: str) -> None:
    with pytest.raises(ConfigError):
        Stores(CONFIG).handle(0, 1, OpenStore(name, SUM))


def test_number_of_stores_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STORES", 2)
    stores = with_store()
    stores.handle(0, 2, OpenStore("b", SUM))
    with pytest.raises(ConfigError):
        stores.handle(0, 3, OpenStore("c", SUM))


def test_store_that_a_server_refuses_fails_for_all_and_can_be_tried_anew() -> None:
    stores = Stores(CONFIG)
    actions = stores.handle(0, 1, OpenStore("s", SUM))
    stores.handle(1, 1, OpenStore("s", SUM))
    assert obey(stores, actions, ERROR) == [Answer(0, 1, ERROR), Answer(1, 1, ERROR)]
    again = stores.handle(2, 1, OpenStore("s", SUM))
    assert obey(stores, again) == [Answer(2, 1, StoreOpened(2))]


@pytest.mark.parametrize("message", [
    Barrier(2), Declare(2, []), Await(2, []), Lookup(2, []), Ready(2, []),
    SetOptimizer(2, "sgd", {}), Ready(0, []), Barrier(-1),
])
def test_unknown_store_is_refused(message: Any) -> None:
    with pytest.raises(ConfigError) as error:
        with_store().handle(0, 2, message)
    assert error.value.got == str(message.store)


def test_store_cannot_be_used_before_the_servers_have_it() -> None:
    stores = Stores(CONFIG)
    stores.handle(0, 1, OpenStore("s", SUM))
    with pytest.raises(ConfigError):
        stores.handle(0, 2, Barrier(1))


def test_barrier_opens_when_every_worker_has_come() -> None:
    stores = with_store()
    assert stores.handle(2, 9, Barrier(1)) == []
    assert stores.handle(0, 2, Barrier(1)) == []
    assert stores.handle(1, 5, Barrier(1)) == [
        Answer(0, 2, Done()), Answer(1, 5, Done()), Answer(2, 9, Done()),
    ]


def test_second_call_of_a_worker_belongs_to_the_next_generation() -> None:
    stores = with_store()
    for request in (2, 3):
        stores.handle(0, request, Barrier(1))
        assert stores.handle(1, request, Barrier(1)) == []
    assert [a.request for a in stores.handle(2, 7, Barrier(1))] == [2, 2, 7]
    assert [a.request for a in stores.handle(2, 8, Barrier(1))] == [3, 3, 8]


def test_barriers_of_two_stores_are_apart() -> None:
    stores = with_store(Config(num_workers=2, num_servers=1))
    obey(stores, stores.handle(0, 2, OpenStore("t", SUM)))
    assert stores.handle(0, 3, Barrier(1)) == []
    assert stores.handle(1, 3, Barrier(2)) == []
    assert len(stores.handle(1, 4, Barrier(1))) == 2


def test_worker_that_leaves_breaks_the_barrier_that_waits_for_it() -> None:
    stores = with_store()
    stores.handle(0, 2, Barrier(1))
    (answer,) = stores.left(2)
    assert isinstance(answer, Answer)
    assert (answer.rank, answer.request) == (0, 2)
    assert isinstance(answer.message, ErrorInfo)
    assert (answer.message.code, answer.message.rank) == (ClusterError.code, 2)
    assert "worker 2 left" in answer.message.message
    with pytest.raises(ClusterError):  # the straggler belongs to the same, broken generation
        stores.handle(1, 3, Barrier(1))
    assert stores.handle(0, 4, Barrier(1)) == []
    assert len(stores.handle(1, 5, Barrier(1))) == 2


def test_worker_that_leaves_breaks_no_barrier_that_nobody_waits_in() -> None:
    stores = with_store()
    assert stores.left(1) == []
    assert stores.handle(0, 2, Barrier(1)) == []
    assert stores.handle(2, 3, Barrier(1)) == [Answer(0, 2, Done()), Answer(2, 3, Done())]


def test_worker_that_came_and_left_does_not_hold_the_others() -> None:
    stores = with_store()
    stores.handle(0, 2, Barrier(1))
    stores.handle(1, 2, Barrier(1))
    assert stores.left(1) == []
    assert stores.handle(2, 3, Barrier(1)) == [Answer(0, 2, Done()), Answer(2, 3, Done())]


def test_optimizer_is_installed_when_all_have_said_the_same() -> None:
    stores = with_store()
    hyper = {"learning_rate": 0.1, "clip": math.nan}
    backwards = {"clip": math.nan, "learning_rate": 0.1}
    assert stores.handle(1, 2, SetOptimizer(1, "sgd", hyper)) == []
    assert stores.handle(0, 2, SetOptimizer(1, "sgd", backwards)) == []
    orders = stores.handle(2, 4, SetOptimizer(1, "sgd", hyper))
    assert [(o.server, o.request) for o in orders if isinstance(o, Order)] == [(0, 3), (1, 4)]
    assert isinstance(orders[0], Order)
    assert orders[0].message.optimizer == "sgd"
    assert orders[0].message.hyper["learning_rate"] == 0.1
    assert obey(stores, orders) == [
        Answer(0, 2, Done()), Answer(1, 2, Done()), Answer(2, 4, Done()),
    ]


def test_optimizer_that_the_scheduler_does_not_know_may_ask_for_whole_keys() -> None:
    for whole in (False, True):
        stores = with_store()
        for rank in range(3):
            actions = stores.handle(rank, 2, SetOptimizer(1, "of their own", {}, whole))
        obey(stores, actions)
        (answer,) = stores.handle(0, 3, Declare(1, [spec("large", 4_000_000)]))
        assert isinstance(answer, Answer)
        assert isinstance(answer.message, Placed)
        (placed,) = answer.message.placements
        assert (len(placed.pieces) == 1) == whole


def test_different_words_are_a_disagreement_for_all() -> None:
    stores = with_store()
    stores.handle(0, 2, SetOptimizer(1, "sgd", {"lr": 0.1}))
    stores.handle(1, 2, SetOptimizer(1, "adam", {"lr": 0.5}))
    answers = stores.handle(2, 2, SetOptimizer(1, "sgd", {"lr": 0.1}))
    assert [(a.rank, a.request) for a in answers if isinstance(a, Answer)] == [
        (0, 2), (1, 2), (2, 2),
    ]
    for answer in answers:
        assert isinstance(answer.message, ErrorInfo)
        assert answer.message.code == Disagreement.code
        for word in ("workers 0, 2", "worker 1 ", "'sgd'", "'adam'", "0.1", "0.5"):
            assert word in answer.message.message
    assert stores.owed(0) == []


def test_disagreement_repeats_only_the_words_that_differ() -> None:
    stores = with_store()
    stores.handle(0, 2, SetOptimizer(1, "sgd", {"lr": 0.1, "wd": 0.25, "beta": 1}))
    stores.handle(1, 2, SetOptimizer(1, "sgd", {"lr": 0.5, "wd": 0.25, "beta": True}))
    answers = stores.handle(2, 2, SetOptimizer(1, "sgd", {"lr": 0.1, "wd": 0.25}))
    (told,) = {answer.message.message for answer in answers
               if isinstance(answer, Answer) and isinstance(answer.message, ErrorInfo)}
    assert told == ("workers set different optimizers: worker 0 said lr=0.1, beta=1; "
                    "worker 1 said lr=0.5, beta=True; worker 2 said lr=0.1, no beta")


def test_error_of_one_server_goes_to_all_workers_once_all_servers_have_answered() -> None:
    stores = with_store()
    for rank in (0, 1):
        stores.handle(rank, 2, SetOptimizer(1, "sgd", {}))
    orders = stores.handle(2, 2, SetOptimizer(1, "sgd", {}))
    assert obey(stores, orders, ERROR) == [Answer(rank, 2, ERROR) for rank in range(3)]


@pytest.mark.parametrize(("name", "hyper", "error"), [
    ("", {}, ConfigError), ("x" * 1025, {}, ConfigError), ("sgd", {"a": {1: 2}}, OptimizerError),
    ("sgd", {"a": 1 << 70}, OptimizerError), ("sgd", {"a": object()}, OptimizerError),
])
def test_impossible_optimizer_is_refused(name: str, hyper: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        with_store().handle(0, 2, SetOptimizer(1, name, hyper))


def test_worker_that_leaves_breaks_the_optimizer_that_waits_for_it() -> None:
    stores = with_store()
    stores.handle(0, 2, SetOptimizer(1, "sgd", {}))
    stores.handle(1, 2, SetOptimizer(1, "sgd", {}))
    answers = stores.left(2)
    assert {(a.rank, a.request) for a in answers if isinstance(a, Answer)} == {(0, 2), (1, 2)}


def test_worker_that_agreed_and_left_leaves_the_optimizer_to_the_others() -> None:
    stores = with_store()
    for rank in (0, 1):
        stores.handle(rank, 2, SetOptimizer(1, "sgd", {}))
    assert stores.left(0) == []
    orders = stores.handle(2, 2, SetOptimizer(1, "sgd", {}))
    assert obey(stores, orders) == [Answer(1, 2, Done()), Answer(2, 2, Done())]


def test_keys_are_declared_awaited_made_ready_and_found() -> None:
    stores = with_store()
    assert stores.handle(1, 2, Await(1, [spec("w", 2)])) == []
    (declared,) = stores.handle(0, 2, Declare(1, [spec("w", 2)]))
    assert isinstance(declared.message, Placed)
    assert declared.message.version == 1
    assert declared.message.placements[0].fresh
    with pytest.raises(UnknownKey):
        stores.handle(2, 2, Lookup(1, ["w"]))
    done, released = stores.handle(0, 3, Ready(1, ["w"]))
    assert done == Answer(0, 3, Done())
    assert isinstance(released, Answer)
    assert (released.rank, released.request) == (1, 2)
    (found,) = stores.handle(2, 3, Lookup(1, ["w"]))
    assert found.message == released.message
    assert stores.handle(2, 4, Await(1, [spec("w", 2)])) == [Answer(2, 4, found.message)]


def test_waiter_hears_that_its_key_was_declared_otherwise() -> None:
    stores = with_store()
    stores.handle(1, 2, Await(1, [spec("w", 3)]))
    placed, refused = stores.handle(0, 2, Declare(1, [spec("w", 2)]))
    assert isinstance(placed.message, Placed)
    assert isinstance(refused, Answer)
    assert (refused.rank, refused.request) == (1, 2)
    assert isinstance(refused.message, ErrorInfo)
    assert refused.message.code == ShapeMismatch.code


@pytest.mark.parametrize("message", [Declare(1, [spec("w", 1)]), Ready(1, ["w"])])
def test_only_rank_0_initialises(message: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        with_store().handle(1, 2, message)


def test_nobody_waits_for_keys_of_a_rank_0_that_left() -> None:
    stores = with_store()
    stores.handle(1, 2, Await(1, [spec("w", 3)]))
    (answer,) = stores.left(0)
    assert isinstance(answer.message, ErrorInfo)
    assert answer.message.rank == 0
    with pytest.raises(ClusterError):
        stores.handle(1, 3, Await(1, [spec("w", 3)]))
    obey(stores, stores.handle(1, 4, OpenStore("later", SUM)))
    with pytest.raises(ClusterError):
        stores.handle(2, 3, Await(2, [spec("w", 3)]))


def test_waits_of_a_worker_that_left_are_forgotten() -> None:
    stores = with_store()
    stores.handle(1, 2, Await(1, [spec("w", 1)]))
    assert stores.left(1) == []
    stores.handle(0, 2, Declare(1, [spec("w", 1)]))
    assert stores.handle(0, 3, Ready(1, ["w"])) == [Answer(0, 3, Done())]


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=80))
def test_meeting_answers_every_call_of_a_generation_at_once(
    workers: int, steps: list[tuple[bool, int]]
) -> None:
    meeting, live = Meeting(range(workers)), set(range(workers))
    came = dict.fromkeys(live, 0)
    waiting: dict[tuple[int, int], int] = {}  # (rank, request) -> generation
    for request, (leaves, rank) in enumerate(steps):
        if rank not in live:
            continue
        if leaves and len(live) > 1:
            complete, broken = meeting.leave(rank)
            live.discard(rank)
            waiting = {call: gen for call, gen in waiting.items() if call[0] != rank}
            for call in broken:  # only what waited for who left
                assert waiting.pop((call.rank, call.request)) >= came[rank]
        else:
            came[rank] += 1
            waiting[rank, request] = came[rank] - 1
            try:
                calls = meeting.come(rank, request, None)
            except ClusterError:
                del waiting[rank, request]
                continue
            complete = [] if calls is None else [calls]
        for calls in complete:
            assert {call.rank for call in calls} == live
            assert len({waiting.pop((call.rank, call.request)) for call in calls}) == 1
        for generation in set(waiting.values()):  # whoever waits, waits for somebody
            assert {r for (r, _), g in waiting.items() if g == generation} < live
            assert all(came[r] <= generation for r in live - {
                r for (r, _), g in waiting.items() if g == generation})
