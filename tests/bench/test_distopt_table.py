"""The table of what each way of DistOpt learns: means over seeds, and who is a point behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distopt

PRINTED = """Starting Epoch 0:
Training loss = 1.0, training accuracy = 0.5000
Evaluation accuracy = 0.7500, Elapsed Time = 1.0s
Evaluation accuracy = 0.8100, Elapsed Time = 1.0s
"""


@pytest.mark.parametrize(("text", "accuracies"), [
    (PRINTED, [0.75, 0.81]), ("a warning\n[0.5, 0.625]\n", [0.5, 0.625]), ("", []),
    ("Traceback: no data", []),
])
def test_accuracies_are_read_from_what_a_training_prints(
    text: str, accuracies: list[float]
) -> None:
    assert distopt.learned(text) == accuracies


def test_a_way_that_is_more_than_a_point_behind_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"plain": [[0.5, 0.8], [0.6, 0.9]], "half": [[0.5, 0.84], [0.6, 0.845]],
            "sparseTopK": [[0.5, 0.8], [0.6, 0.879]]}
    path = tmp_path / "records.jsonl"
    path.write_text("".join(
        json.dumps({"bench": "distopt", "op": way, "dataset": "fashion", "epochs": 2,
                    "seed": seed, "after_each_epoch": run}) + "\n"
        for way, each in runs.items() for seed, run in enumerate(each)))

    assert distopt.main(["--table", str(path)]) == 0

    printed = capsys.readouterr().out
    assert "| plain | 2 | 55.00 | 85.00 | 80.00, 90.00 |  |  |" in printed
    assert "| half | 2 | 55.00 | 84.25 | 84.00, 84.50 | -0.75 | holds |" in printed
    assert "| sparseTopK | 2 | 55.00 | 83.95 | 80.00, 87.90 | -1.05 | MISSED |" in printed
    assert "plain after 1: 55.00; PyTorch as named: 76.1" in printed


def test_ways_that_are_none_are_refused() -> None:
    with pytest.raises(SystemExit, match="fast is none of"):
        distopt.main(["--ways", "plain,fast"])
