"""Stores that all workers have closed: forgotten here and on the servers, and only then."""

from __future__ import annotations

import pytest

from asyncps.errors import ClosedError, ClusterError, ConfigError
from asyncps.protocol.messages import (
    AllJoined,
    Attendance,
    Await,
    Barrier,
    CloseStore,
    Done,
    ErrorInfo,
    Install,
    JoinStore,
    OpenStore,
    SetOptimizer,
    StoreOpened,
)
from asyncps.state import agreements as module
from asyncps.state.agreements import Action, Answer, Order, StoreRequest, Stores
from tests.state.test_agreements import CONFIG, MEAN, SUM, obey, spec, with_store

WORKERS, SERVERS = CONFIG.num_workers, CONFIG.num_servers


def close(stores: Stores, *ranks: int, store: int = 1) -> list[Order]:
    """These workers close it; the orders that follow from the last one."""
    orders: list[Order] = []
    for rank in ranks:
        actions = stores.handle(rank, 9, CloseStore(store))
        assert actions[0] == Answer(rank, 9, Done())
        assert orders == []
        orders = [action for action in actions[1:] if isinstance(action, Order)]
        assert len(orders) == len(actions) - 1
        told = [order for order in orders if isinstance(order.message, Attendance)]
        assert all(order.message == Attendance(store, rank, closed=True) for order in told)
        assert obey(stores, list(told)) == []
        orders = [order for order in orders if order not in told]
    return orders


def test_servers_forget_it_when_the_last_worker_closes_it() -> None:
    stores = with_store()
    assert close(stores, 0, 2, 0) == []
    orders = close(stores, 1)
    assert [order.server for order in orders] == list(range(SERVERS))
    assert all(order.message == Install(1, SUM, None, {}, dropped=True) for order in orders)
    assert stores.owed(1) == [orders[1]]
    assert obey(stores, list(orders)) == []
    assert stores.owed(1) == []
    with pytest.raises(ConfigError, match="no such store"):
        stores.handle(0, 10, CloseStore(1))
    assert stores.summaries() == []


def test_name_may_be_given_anew_in_other_words() -> None:
    stores = with_store()
    obey(stores, list(close(stores, 0, 1, 2)))
    opened = obey(stores, stores.handle(1, 11, OpenStore("s", MEAN)))
    assert opened == [Answer(1, 11, StoreOpened(2))]


def test_worker_that_has_closed_it_has_no_more_to_do_with_it_while_others_have() -> None:
    stores = with_store()
    close(stores, 0, 1)
    for message in (OpenStore("s", SUM), Barrier(1), JoinStore(1), Await(1, [])):
        with pytest.raises(ClosedError, match="worker 0 has closed store 's'"):
            stores.handle(0, 10, message)
    obey(stores, list(close(stores, 2)))
    opened = obey(stores, stores.handle(0, 10, OpenStore("s", SUM)))
    assert opened == [Answer(0, 10, StoreOpened(2))]


def heard(actions: list[Action]) -> list[tuple[int, int, type]]:
    return [(action.rank, action.request, type(action.message)) for action in actions
            if isinstance(action, Answer)]


@pytest.mark.parametrize("message", [
    Barrier(1), SetOptimizer(1, "test", {"rescale_grad": 1.0}), Await(1, [spec("w")]),
])
def test_who_waits_for_a_worker_that_closes_it_hears_an_error(message: StoreRequest) -> None:
    stores = with_store()
    assert stores.handle(1, 5, message) == []
    actions = stores.handle(0, 6, CloseStore(1))
    assert heard(actions) == [(0, 6, Done), (1, 5, ErrorInfo)]
    obey(stores, actions)
    if isinstance(message, Await):
        with pytest.raises(ClusterError, match="left"):
            stores.handle(2, 7, message)
        return
    with pytest.raises(ClusterError, match="left"):  # that one was waited for
        stores.handle(2, 7, message)
    assert stores.handle(1, 8, message) == []
    actions = stores.handle(2, 8, message)
    assert heard(actions + obey(stores, actions)) == [(1, 8, Done), (2, 8, Done)]


@pytest.mark.parametrize("closes_first", [True, False])
def test_join_does_not_wait_for_a_worker_that_has_closed_it(*, closes_first: bool) -> None:
    stores = with_store()
    if closes_first:
        close(stores, 2)
    obey(stores, stores.handle(0, 5, JoinStore(1)))
    joined = obey(stores, stores.handle(1, 6, JoinStore(1)))
    if not closes_first:
        assert joined == []
        joined = obey(stores, stores.handle(2, 9, CloseStore(1)))
    assert joined == [Answer(0, 5, AllJoined(1)), Answer(1, 6, AllJoined(1))]


def test_worker_that_closes_it_while_it_joins_has_not_joined() -> None:
    stores = with_store()
    obey(stores, stores.handle(2, 5, JoinStore(1)))
    actions = stores.handle(2, 6, CloseStore(1))
    assert heard(actions) == [(2, 6, Done), (2, 5, ErrorInfo)]
    obey(stores, actions)
    obey(stores, stores.handle(0, 7, JoinStore(1)))
    assert heard(obey(stores, stores.handle(1, 8, JoinStore(1)))) == [
        (0, 7, AllJoined), (1, 8, AllJoined)]
    assert stores.missing() == []


def test_worker_that_leaves_need_not_close_it() -> None:
    stores = with_store()
    close(stores, 0, 1)
    actions = stores.left(2)
    assert [a.message for a in actions if isinstance(a, Order)] == [
        Install(1, SUM, None, {}, dropped=True)] * SERVERS


def test_nobody_is_told_when_all_have_left() -> None:
    stores = with_store()
    close(stores, 0, 1)
    for rank in (0, 1):
        assert stores.left(rank) == []
    assert stores.left(2) == []


def test_closed_stores_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STORES", 2)
    stores = Stores(CONFIG)
    for number in range(1, 10):
        obey(stores, stores.handle(0, number, OpenStore(f"store {number}", SUM)))
        obey(stores, list(close(stores, 0, 1, 2, store=number)))
    for number in (10, 11):
        obey(stores, stores.handle(0, number, OpenStore(f"store {number}", SUM)))
    with pytest.raises(ConfigError, match="too many stores"):
        stores.handle(0, 12, OpenStore("one more", SUM))
