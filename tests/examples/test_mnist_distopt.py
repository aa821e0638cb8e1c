"""DistOpt's job: what it learns and prints, on ranks that are threads, and as processes."""

from __future__ import annotations

import re
from pathlib import Path

import mnist_distopt
import numpy as np
import pytest
from cnn import singa_cnn, softmax_cross_entropy

import asyncps
from tests.support import threadgroup
from tests.support.starters import STARTERS, lines_of
from tests.support.stripes import stripes, write_idx

SCRIPT = Path(__file__).parents[2] / "examples" / "mnist_distopt.py"


def train(data, *words: str, workers: int = 1):
    """The histories of all workers, by rank."""
    args = mnist_distopt._parse(["--batch-size", "16", "--lr", "0.05", *words])

    def work(comm):
        opt = asyncps.DistOpt(asyncps.optim.SGD(lr=args.lr, momentum=0.9), communicator=comm)
        return mnist_distopt.train(opt, data, args, np)

    return threadgroup.run(workers, work)


@pytest.mark.parametrize(
    "words",
    [
        ("plain",), ("fp32",), ("half",), ("fp16",), ("partialUpdate",),
        ("sparseTopK", "--spars", "0.2"), ("sparseThreshold", "--spars", "0.001"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_way_learns_the_stripes(data, words):
    first, second = train(
        data, "--epochs", "6", "--batch-size", "8", "--dist-option", *words, workers=2
    )

    assert first.loss[-1] < first.loss[0] / 2
    assert first.evaluation_accuracy[-1] > 0.8
    assert first.images == 6 * 80
    assert second.evaluation_accuracy == []


def test_gradients_come_as_backward_makes_them_and_are_those_of_backward():
    rng = np.random.default_rng(1)
    one, other = singa_cnn(np, 0), singa_cnn(np, 0)
    images, labels = stripes(rng, 4)
    for network in (one, other):
        _, gradient = softmax_cross_entropy(np, network.forward(images), labels)
        if network is one:
            network.backward(gradient)
    pairs = other.gradients(gradient)
    first, _ = next(pairs)
    assert first is other.layers["dense2"].params["weight"]
    assert not other.layers["conv1"].grads
    found = [grad for _, grad in other.gradients(gradient)]
    layers = list(reversed(one.layers.values()))
    wanted = [grad for layer in layers for grad in layer.grads.values()]
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, right)
    assert len(found) == 8


def test_a_part_smaller_than_a_batch_is_an_error_that_says_so(data):
    with pytest.raises(asyncps.errors.ConfigError, match=r"40 images, .* batch of 64"):
        train(data, "--batch-size", "64", workers=2)


@pytest.mark.parametrize("how", ["-w 2", *STARTERS])
def test_rank_0_prints_singas_lines_however_the_ranks_are_started(data, tmp_path, how):
    write_idx(tmp_path, data)
    starter, words = ("alone", ["-w", "2"]) if how == "-w 2" else (how, [])
    lines = lines_of(starter, SCRIPT, "--data", str(tmp_path), "--epochs", "2", "--batch-size",
                     "16", "--device", "cpu", "--no-progress", *words)
    lines = [line.removeprefix("[worker 0] ") for line in lines]  # as the launcher tells them

    number = r"\d+\.\d+"
    (head,) = [line for line in lines if " images to train on, " in line]
    assert f"{1 if how == 'alone' else 2} workers" in head
    for epoch in range(2):
        at = lines.index(f"Starting Epoch {epoch}:")
        pattern = f"Training loss = {number}, training accuracy = {number}"
        assert re.fullmatch(pattern, lines[at + 1])
        pattern = f"Evaluation accuracy = {number}, Elapsed Time = {number}s"
        assert re.fullmatch(pattern, lines[at + 2])
    assert re.fullmatch(rf"Final evaluation accuracy = {number}, \d+ images/s", lines[-1])


def test_what_a_worker_cannot_do_is_its_exit_code(tmp_path, capsys):
    assert mnist_distopt.main(["--data", str(tmp_path / "none"), "--device", "cpu"]) == 2
    assert "is not a directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        mnist_distopt.main(["--dist-option", "plainn"])
    assert "sparseThreshold" in capsys.readouterr().err
