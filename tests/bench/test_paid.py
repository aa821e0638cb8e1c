"""What the records of bench/compression.py say of the report: the link's rate, and what paid."""

from __future__ import annotations

from typing import Any

import compression_worker
import pytest


def told(paid: bool | None, codec: str = "2bit", rate: float | None = 5e8) -> dict[str, Any]:
    return {"codec": codec, "paid": paid, "link_bytes_s": rate}


@pytest.mark.parametrize(("report", "record"), [
    ([told(True), told(False), told(True), {"codec": "dense"}],
     {"link_bytes_s": 5e8, "encoded_keys": 3, "paid_keys": 2}),
    ([told(False)], {"link_bytes_s": 5e8, "encoded_keys": 1, "paid_keys": 0}),
    # The link has never been busy: nobody knows, and nobody says 0.
    ([told(None, rate=None), told(None, rate=None)],
     {"link_bytes_s": None, "encoded_keys": 2, "paid_keys": None}),
    ([{"codec": "dense"}], {"link_bytes_s": None, "encoded_keys": 0, "paid_keys": None}),
    ([], {"link_bytes_s": None, "encoded_keys": 0, "paid_keys": None}),
])  # fmt: skip
def test_a_record_says_how_many_keys_paid(
    report: list[dict[str, Any]], record: dict[str, Any]
) -> None:
    assert compression_worker.paid(report) == record
