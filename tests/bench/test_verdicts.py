"""What the records of kernels and of compression are judged as."""

from __future__ import annotations

from typing import Any

import pytest
import verdicts

HELD = {"add_f32": 0.8, "encode_2bit_kept": 3.0, "threshold": 4.0, "topk": 1.5, "adam": 0.7}


def kernel(op: str, value: float, case: str = "64M") -> dict[str, Any]:
    rates = dict.fromkeys(("of_memcpy", "GBps", "input_GBps"), value)
    return {"bench": "kernels", "op": op, "case": case, **rates}


def step(op: str, median_s: float, **more: Any) -> dict[str, Any]:
    return {"bench": "compression", "op": op, "case": "cnn", "link": "1gbit", "median_s": median_s,
            "servers": 1, "workers": 1, "rank": 0, "pass": 0, **more}


def trained(op: str, *values: float) -> list[dict[str, Any]]:
    return [{"bench": "compression", "op": op, "dataset": "mnist", "epochs": 3, "accuracy": value}
            for value in values]


@pytest.mark.parametrize("op", HELD)
def test_a_kernel_at_its_floor_holds_and_one_below_is_missed(op: str) -> None:
    for value, verdict in ((HELD[op], "holds"), (HELD[op] - 0.01, "MISSED")):
        (row,) = (row for row in verdicts.kernel_rows([kernel(op, value)]) if row[2] == op)
        assert row[-1] == verdict


def test_a_kernel_that_was_not_measured_is_told_and_other_sizes_do_not_count() -> None:
    rows = verdicts.kernel_rows([kernel("adam", 1.0), kernel("topk", 9.0, "1M")])

    told = {row[2]: row[-1] for row in rows}
    assert told.pop("adam") == "holds"
    assert set(told.values()) == {"not measured"}
    assert verdicts.kernel_rows([kernel("topk", 9.0, "1M")]) == []


def test_a_gain_is_taken_within_a_pass_and_the_median_counts() -> None:
    both = verdicts.BOTH_WAYS
    records = []
    for number, (whole, coded) in enumerate([(6.0, 1.0), (10.0, 2.0), (70.0, 10.0)]):
        records += [step("f32", whole, **{"pass": number}), step(both, coded, **{"pass": number})]

    (row,) = verdicts.compression_rows(records)

    assert row[-3:] == ["6.00 (5.00 to 7.00)", "", "holds"]


@pytest.mark.parametrize("op", [verdicts.BOTH_WAYS, "all"])
def test_a_codec_or_link_that_was_left_out_is_told_with_its_reason(op: str) -> None:
    left_out = {"bench": "compression", "op": op, "link": "1gbit", "skipped": "why"}

    (row,) = verdicts.compression_rows([step("f32", 1.0), left_out])

    assert row[-3:] == ["why", "", "not measured"]


def test_a_curve_over_a_link_is_no_step() -> None:
    curve = {"bench": "compression", "op": "f32", "link": "1gbit", "seconds": [1.0],
             "learned": [0.9]}

    assert verdicts.compression_rows([curve]) == []


@pytest.mark.parametrize(("median_s", "verdict"), [(1.1, "holds"), (1.11, "MISSED")])
def test_f16_may_cost_a_tenth_on_loopback(median_s: float, verdict: str) -> None:
    records = [step("f32", 1.0, link="loopback"), step("f16", median_s, link="loopback")]

    assert verdicts.compression_rows(records)[0][-1] == verdict


def test_2bit_is_judged_by_the_mean_of_the_workers_of_each_system() -> None:
    def two(system: str, *times: float) -> list[dict[str, Any]]:
        more = {"case": "100M", "link": "loopback", "servers": 2, "workers": 2, "system": system}
        return [step("2bit", t, rank=i, **more) for i, t in enumerate(times)]

    (row,) = verdicts.compression_rows([*two("asyncps", 1, 3), *two("mxnet", 7, 9)])

    assert row[-3:] == ["4.00", "", "holds"]


@pytest.mark.parametrize(("lost", "verdict"), [(0.0099, "holds"), (0.0101, "MISSED")])
def test_accuracy_is_the_mean_of_the_seeds(lost: float, verdict: str) -> None:
    records = [*trained("f32", 0.96, 0.98), *trained("f16", 0.95 - lost, 0.99 - lost)]

    assert [row[-1] for row in verdicts.compression_rows(records)] == [verdict]


def test_the_table_of_steps_has_a_column_a_link() -> None:
    moved = {"encode_s": 0.0, "sent_bytes": 2000, "received_bytes": 3000}
    records = [step("f32", 0.002, **moved), step("f32", 0.004, **moved, **{"pass": 1}),
               step("f32", 0.001, **moved, link="loopback")]

    head, rows = verdicts.link_table(records)

    assert head == ["codec", "B sent", "B received", "encoding", "1gbit", "loopback"]
    assert rows == [["f32", "2,000", "3,000", "0.00", "3.00", "1.00"]]
