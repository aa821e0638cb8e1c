"""The all-reduce example: what it learns, what all ranks end with, and how it is started."""

from __future__ import annotations

import re
from pathlib import Path

import mnist_allreduce
import numpy as np
import pytest
from cnn import singa_cnn
from datasets import Dataset

import asyncps
from tests.support.group import group
from tests.support.starters import STARTERS, lines_of
from tests.support.stripes import dataset, write_idx

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "mnist_allreduce.py"


@pytest.fixture
def data() -> Dataset:
    return dataset(21)  # of which ranks evaluate parts that are not equal


def parse(*words: str):
    return mnist_allreduce._parse(["--batch-size", "8", "--lr", "0.02", "--no-progress", *words])


def test_two_ranks_learn_the_stripes_and_know_one_accuracy(data):
    args = parse("--epochs", "8")
    with group(2) as two:
        first, second = two.run(lambda comm: mnist_allreduce.train(comm, data, args, np))

    assert first.loss[-1] < first.loss[0] / 2
    assert first.evaluation_accuracy[-1] > 0.8
    assert first.evaluation_accuracy == second.evaluation_accuracy
    assert first.images == second.images == 8 * 80


def test_ranks_begin_as_rank_0_and_step_by_the_mean(data):
    lr = 0.1
    images = [data.train_images[:4], data.train_images[4:12]]
    seeds = [1, 2]

    def gradient_of(network, rank):
        return np.ones_like(network.forward(images[rank])) / (rank + 1)

    def work(comm):
        network = singa_cnn(np, seeds[comm.rank])
        descent = mnist_allreduce.Descent(comm, network, lr)
        for _ in range(2):
            descent.step(gradient_of(network, comm.rank))
        return {name: each.data for name, each in network.parameters().items()}

    with group(2) as two:
        got = two.run(work)

    model = singa_cnn(np, seeds[0])
    momenta = {name: 0 for name in model.parameters()}
    for _ in range(2):
        both = []
        for rank in range(2):
            model.backward(gradient_of(model, rank))
            both.append({name: each.grad for name, each in model.parameters().items()})
        for name, each in model.parameters().items():
            momenta[name] = 0.5 * momenta[name] + (both[0][name] + both[1][name]) / 2
            each.layer.params[each.name] = each.data - lr * momenta[name]
    for name, each in model.parameters().items():
        np.testing.assert_array_equal(got[0][name], got[1][name])
        np.testing.assert_allclose(got[0][name], each.data, rtol=2e-4, atol=2e-5)


def test_a_part_smaller_than_a_batch_is_an_error_that_says_so(data):
    with group(2) as two, pytest.raises(asyncps.errors.ConfigError, match=r"40 images, .* of 64"):
        two.run(lambda comm: mnist_allreduce.train(comm, data, parse("--batch-size", "64"), np))


@pytest.mark.parametrize("how", STARTERS)
def test_rank_0_prints_however_the_ranks_are_started(data, tmp_path, how):
    write_idx(tmp_path, data)
    lines = lines_of(how, SCRIPT, "--data", str(tmp_path), "--epochs", "2", "--batch-size", "16",
                     "--lr", "0.02", "--no-cuda", "--no-progress", "--seed", "3")

    number = r"\d+\.\d+"
    (head,) = [line for line in lines if " images to train on, " in line]
    assert f"{1 if how == 'alone' else 2} workers" in head
    for epoch in range(2):
        (at,) = [i for i, line in enumerate(lines) if line.endswith(f"Starting Epoch {epoch}:")]
        pattern = rf".*Training loss = {number}, training accuracy = {number}"
        assert re.fullmatch(pattern, lines[at + 1])
        pattern = rf".*Evaluation accuracy = {number}, Elapsed Time = {number}s"
        assert re.fullmatch(pattern, lines[at + 2])
    finals = [line for line in lines if "Final evaluation accuracy" in line]
    assert len(finals) == 1


def test_what_a_rank_cannot_do_is_its_exit_code(tmp_path, capsys):
    assert mnist_allreduce.main(["--data", str(tmp_path / "none"), "--no-cuda"]) == 2
    assert "is not a directory" in capsys.readouterr().err
