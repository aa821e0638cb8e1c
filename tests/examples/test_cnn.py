"""Every layer's backward is the derivative of its forward."""

from __future__ import annotations

import numpy as np
import pytest
from cnn import (
    Convolution,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    ReLU,
    singa_cnn,
    softmax_cross_entropy,
)

STEP = 1e-6


def in_double_precision(layer: Layer) -> Layer:
    layer.params = {name: value.astype("f8") for name, value in layer.params.items()}
    return layer


def numerical_gradient(function, values, places):
    """Central differences of ``function()`` with respect to some places of ``values``."""
    slopes = []
    for place in places:
        kept = values[place]
        values[place] = kept + STEP
        above = function()
        values[place] = kept - STEP
        below = function()
        values[place] = kept
        slopes.append((above - below) / (2 * STEP))
    return slopes


def some_places(rng, values, count=40):
    flat = rng.choice(values.size, min(count, values.size), replace=False)
    return [np.unravel_index(index, values.shape) for index in flat]


RNG = np.random.default_rng(7)
LAYERS = {
    "dense": (lambda: Dense(np, RNG, 12, 7), (5, 12)),
    "convolution of one channel": (lambda: Convolution(np, RNG, 1, 4, 3), (2, 6, 7, 1)),
    "convolution of three channels": (lambda: Convolution(np, RNG, 3, 4, 5), (2, 8, 6, 3)),
    "relu": (lambda: ReLU(np), (3, 4, 4, 2)),
    "pool": (lambda: MaxPool(np), (2, 6, 4, 3)),
    "flatten": (lambda: Flatten(np), (3, 2, 4, 2)),
}


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_a_layers_gradients_are_those_of_numerical_differences(make, shape):
    rng = np.random.default_rng(1)
    layer = in_double_precision(make())
    x = rng.normal(size=shape)
    weights_of_output = rng.normal(size=layer.forward(x).shape)

    def loss():
        return float((layer.forward(x) * weights_of_output).sum())

    loss()
    input_gradient = layer.backward(weights_of_output)

    assert input_gradient.shape == x.shape
    assert layer.grads.keys() == layer.params.keys()
    checked = [(x, input_gradient)]
    checked += [(layer.params[name], layer.grads[name]) for name in layer.params]
    for values, gradient in checked:
        places = some_places(rng, values)
        expected = numerical_gradient(loss, values, places)
        np.testing.assert_allclose([gradient[p] for p in places], expected, rtol=1e-6, atol=1e-8)


def test_a_first_convolution_has_the_same_gradients_but_none_for_the_images():
    rng = np.random.default_rng(2)
    first = Convolution(np, np.random.default_rng(3), 2, 4, 3, first=True)
    other = Convolution(np, np.random.default_rng(3), 2, 4, 3)
    x = rng.normal(size=(2, 6, 6, 2)).astype("f4")
    g = rng.normal(size=(2, 4, 4, 4)).astype("f4")

    np.testing.assert_array_equal(first.forward(x), other.forward(x))
    assert first.backward(g) is None
    assert other.backward(g) is not None

    for name in ("weight", "bias"):
        np.testing.assert_array_equal(first.grads[name], other.grads[name])


def test_a_convolution_is_the_sum_over_the_patch_under_the_kernel():
    rng = np.random.default_rng(4)
    layer = in_double_precision(Convolution(np, rng, 2, 3, 3))
    x = rng.normal(size=(2, 5, 6, 2))
    kernel = layer.params["weight"].reshape(3, 3, 2, 3)

    y = layer.forward(x)

    assert y.shape == (2, 3, 4, 3)
    expected = (x[1, 2:5, 1:4, :, None] * kernel).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(y[1, 2, 1], expected)


def test_of_equal_values_in_a_square_one_gets_the_gradient():
    pool = MaxPool(np)

    pool.forward(np.ones((1, 2, 2, 1)))

    assert pool.backward(np.full((1, 1, 1, 1), 5.0)).ravel().tolist() == [5, 0, 0, 0]


def test_the_loss_is_minus_the_log_of_the_right_labels_probability():
    logits, labels = np.random.default_rng(5).normal(size=(4, 10)), np.array([3, 0, 9, 3])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    loss, gradient = softmax_cross_entropy(np, logits, labels)

    assert loss == pytest.approx(-np.log(probabilities[np.arange(4), labels]).sum())
    np.testing.assert_allclose(gradient, probabilities - np.eye(10)[labels])


def test_large_logits_do_not_overflow():
    logits = np.array([[1e4, 0, -1e4], [-1e4, 0, 1e4]], "f4")

    loss, gradient = softmax_cross_entropy(np, logits, np.array([0, 0]))

    assert loss == pytest.approx(2e4)
    assert np.isfinite(gradient).all()


def test_the_whole_networks_gradients_are_those_of_numerical_differences():
    rng = np.random.default_rng(6)
    network = singa_cnn(np, seed=0)
    for layer in network.layers.values():
        in_double_precision(layer)
    images, labels = rng.random((2, 28, 28, 1)), np.array([1, 8])

    def loss():
        return float(softmax_cross_entropy(np, network.forward(images), labels)[0])

    network.backward(softmax_cross_entropy(np, network.forward(images), labels)[1])

    for layer in network.layers.values():
        for name, values in layer.params.items():
            gradient = layer.grads[name]
            places = some_places(rng, values, count=4)
            expected = numerical_gradient(loss, values, places)
            found = [gradient[place] for place in places]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_the_network_is_singas():
    network = singa_cnn(np, seed=0)

    assert network.count_parameters() == 431_080
    sizes = {
        name: sum(p.size for p in layer.params.values())
        for name, layer in network.layers.items()
        if layer.params
    }
    assert sizes == {"conv1": 520, "conv2": 25_050, "dense1": 400_500, "dense2": 5_010}
    assert network.forward(np.zeros((3, 28, 28, 1), "f4")).shape == (3, 10)
    assert network.forward(np.zeros((3, 28, 28, 1), "f4")).dtype == np.float32


def test_the_seed_decides_the_initial_weights():
    one, same, other = (singa_cnn(np, seed).layers["conv2"].params["weight"] for seed in (1, 1, 2))

    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_parameters_are_the_layers_arrays_with_their_gradients_in_the_order_of_the_walk():
    network = singa_cnn(np, seed=0)
    parameters = network.parameters()

    assert list(parameters)[:3] == ["conv1.weight", "conv1.bias", "conv2.weight"]
    assert list(parameters)[-1] == "dense2.bias"
    assert all(parameter.grad is None for parameter in parameters.values())
    network.backward(network.forward(np.ones((1, 28, 28, 1), "f4")))
    for name, parameter in parameters.items():
        layer, which = name.split(".")
        assert parameter.data is network.layers[layer].params[which]
        assert parameter.grad is network.layers[layer].grads[which]
        assert parameter.grad.shape == parameter.data.shape


def test_correct_answers_are_counted_over_several_batches():
    network = singa_cnn(np, seed=0)
    images = np.random.default_rng(8).random((7, 28, 28, 1)).astype("f4")
    answers = network.forward(images).argmax(axis=1)
    labels = np.where(np.arange(7) < 5, answers, (answers + 1) % 10)

    assert network.count_correct(images, labels, batch_size=3) == 5
