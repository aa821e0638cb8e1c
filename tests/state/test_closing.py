"""Stores that all workers have closed: forgotten here and on the servers, and only then."""

from __future__ import annotations

import pytest

from asyncps.errors import ConfigError
from asyncps.protocol.messages import CloseStore, Done, Install, OpenStore, StoreOpened
from asyncps.state import agreements as module
from asyncps.state.agreements import Answer, Order, Stores
from tests.state.test_agreements import CONFIG, MEAN, SUM, obey, with_store

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


def test_worker_that_opens_it_again_has_not_closed_it() -> None:
    stores = with_store()
    close(stores, 0, 1)
    assert stores.handle(0, 10, OpenStore("s", SUM)) == [Answer(0, 10, StoreOpened(1))]
    assert close(stores, 2) == []
    assert len(close(stores, 0)) == SERVERS


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
