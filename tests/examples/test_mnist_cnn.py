"""The job's loop against a store in threads: what it sends, waits for, prints and returns."""

from __future__ import annotations

import re
from dataclasses import dataclass

import mnist_cnn
import numpy as np
import pytest
from datasets import Dataset

import asyncps.errors
from tests.examples.fake_store import FakeCluster, FakeStore


def stripes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that are easy to learn: class c has a bright row at 2c + 4, and noise."""
    labels = np.arange(count) % 10
    images = rng.random((count, 28, 28, 1)).astype("f4") * 0.2
    images[np.arange(count), 2 * labels + 4] = 1
    return images, labels


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return Dataset("stripes", *stripes(rng, 80), *stripes(rng, 20))


def arguments(*words: str):
    return mnist_cnn._parse(["--batch-size", "16", "--epochs", "1", *words])


@pytest.fixture
def command(monkeypatch, data):
    """``main`` with a store in threads and the stripes in place of MNIST."""

    def run(*words: str) -> int:
        return mnist_cnn.main(["--batch-size", "16", "--epochs", "1", "--device", "cpu", *words])

    monkeypatch.setattr(mnist_cnn, "load", lambda *_: data)
    monkeypatch.setattr(
        mnist_cnn.asyncps, "create", lambda _: FakeStore(FakeCluster()), raising=False
    )
    return run


def test_a_few_epochs_lower_the_loss_and_learn_the_stripes(data):
    history = mnist_cnn.train(FakeStore(FakeCluster()), data, arguments("--epochs", "5"), np)

    assert history.loss[-1] < history.loss[0] / 2
    assert history.evaluation_accuracy[-1] > 0.8
    assert history.images == 5 * 80


def test_a_layers_gradient_is_pushed_before_the_next_layers_backward(data):
    store = FakeStore(FakeCluster())

    mnist_cnn.train(store, data, arguments(), np)

    first_wait = [entry[0] for entry in store.log].index("wait")
    walk = [(verb, keys[0].split(".")[0], priority) for verb, keys, priority in store.log]
    assert walk[:first_wait] == [  # everybody's first weights
        ("pull", "conv1", 0), ("pull", "conv2", -1), ("pull", "dense1", -2), ("pull", "dense2", -3)
    ]  # fmt: skip
    one_batch = walk[first_wait : first_wait + 12]
    assert one_batch == [
        *[("wait", name, 0) for name in ("conv1", "conv2", "dense1", "dense2")],
        ("push", "dense2", -3), ("pull", "dense2", -3),
        ("push", "dense1", -2), ("pull", "dense1", -2),
        ("push", "conv2", -1), ("pull", "conv2", -1),
        ("push", "conv1", 0), ("pull", "conv1", 0),
    ]  # fmt: skip
    assert walk[-4:] == [("wait", name, 0) for name in ("conv1", "conv2", "dense1", "dense2")]


def test_two_workers_together_do_what_one_does_with_both_batches(data):
    @dataclass
    class InOrder:
        """A part that is not shuffled: worker r has every batch's r-th half."""

        length: int
        num_parts: int
        part_index: int

        def __len__(self):
            return self.length // self.num_parts

        def __iter__(self):
            batches = np.arange(self.length).reshape(-1, self.num_parts, 16 // self.num_parts)
            return iter(batches[:, self.part_index].ravel().tolist())

    def weights_of(workers):
        cluster = FakeCluster(workers)
        args = arguments("--batch-size", str(16 // workers))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mnist_cnn, "SplitSampler", InOrder)
            histories = cluster.run(lambda store: mnist_cnn.train(store, data, args, np))
        assert [history.images for history in histories] == [80] * workers
        return cluster.weights

    one, two = weights_of(1), weights_of(2)

    for key in one:
        np.testing.assert_allclose(one[key], two[key], rtol=1e-3, atol=1e-5)


def test_only_rank_0_prints_and_evaluates(data, capsys):
    first, second = FakeCluster(2).run(
        lambda store: mnist_cnn.train(store, data, arguments("--batch-size", "8"), np)
    )

    assert len(first.evaluation_accuracy) == 1
    assert second.evaluation_accuracy == []
    assert capsys.readouterr().out.count("Starting Epoch 0:") == 1


def test_a_part_smaller_than_a_batch_is_an_error_that_says_so(data):
    with pytest.raises(asyncps.errors.ConfigError, match=r"40 images, .* batch of 64"):
        mnist_cnn.train(FakeStore(FakeCluster(2)), data, arguments("--batch-size", "64"), np)


def test_the_printout_has_singas_lines(command, capsys):
    assert command("--epochs", "2") == 0

    number = r"\d+\.\d+"
    lines = capsys.readouterr().out.splitlines()
    for epoch in range(2):
        at = lines.index(f"Starting Epoch {epoch}:")
        pattern = f"Training loss = {number}, training accuracy = {number}"
        assert re.fullmatch(pattern, lines[at + 1])
        pattern = f"Evaluation accuracy = {number}, Elapsed Time = {number}s"
        assert re.fullmatch(pattern, lines[at + 2])
        assert re.fullmatch(rf"Epoch {epoch}: \d+ images/s over all workers", lines[at + 3])
    assert re.fullmatch(rf"Final evaluation accuracy = {number}, \d+ images/s", lines[-1])


def test_an_accuracy_below_the_target_is_exit_code_1(command, capsys):
    assert command("--target-accuracy", "1.01") == 1

    assert "is below the target 1.01" in capsys.readouterr().out


def test_an_accuracy_at_the_target_is_exit_code_0(command):
    assert command("--target-accuracy", "0") == 0


@pytest.fixture(scope="module")
def warm_matplotlib(tmp_path_factory):
    """Its first drawing opens font files and keeps them, which is not a leak of ours."""
    pytest.importorskip("matplotlib")
    history = mnist_cnn.History([1.0], [0.5], [0.5])
    mnist_cnn.draw(history, tmp_path_factory.mktemp("warm") / "figure.png")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_matplotlib")
def test_a_figure_is_drawn_where_it_was_asked_for(command, tmp_path, capsys):
    path = tmp_path / "new folder" / "figure.png"

    assert command("--figure", str(path)) == 0

    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out


def test_data_that_is_missing_is_told_on_stderr_with_exit_code_2(command, monkeypatch, capsys):
    def missing(*_):
        raise mnist_cnn.DatasetError("the images are not there")

    monkeypatch.setattr(mnist_cnn, "load", missing)

    assert command() == 2
    assert "the images are not there" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--epochs", "0"], ["--batch-size", "-1"], ["--dataset", "x"]])
def test_a_wrong_option_ends_with_a_usage_line(words, capsys):
    with pytest.raises(SystemExit) as ended:
        mnist_cnn.main(words)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
