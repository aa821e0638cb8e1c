"""SplitSampler reads what the sampler of that name reads in MXNet's distributed example."""

from __future__ import annotations

import random

import numpy as np
import pytest

from asyncps.data import SplitSampler
from asyncps.errors import ConfigError


@pytest.mark.parametrize(
    ("length", "num_parts", "part_index", "expected"),
    [
        (10, 1, 0, range(10)),
        (10, 2, 0, range(5)),
        (10, 2, 1, range(5, 10)),
        (10, 3, 0, range(3)),
        (10, 3, 2, range(6, 9)),  # index 9 belongs to nobody
        (2, 3, 1, range(0)),
        (0, 1, 0, range(0)),
    ],
)
def test_a_part_is_a_run_of_neighbours_of_equal_length(length, num_parts, part_index, expected):
    sampler = SplitSampler(length, num_parts, part_index)

    assert len(sampler) == len(expected)
    assert sorted(sampler) == list(expected)


def test_the_whole_data_set_is_one_part_by_default():
    assert sorted(SplitSampler(7)) == list(range(7))


def test_parts_are_disjoint():
    seen = [index for part in range(7) for index in SplitSampler(100, 7, part)]

    assert len(seen) == len(set(seen)) == 7 * (100 // 7)


def test_each_pass_draws_a_new_order():
    sampler = SplitSampler(1000, 2, 1)

    assert list(sampler) != list(sampler)


def test_the_order_is_that_of_the_global_random_module():
    expected = list(range(50, 100))
    random.seed(3)
    random.shuffle(expected)

    random.seed(3)
    assert list(SplitSampler(100, 2, 1)) == expected


def test_two_passes_at_once_do_not_disturb_each_other():
    sampler = SplitSampler(20)
    first, second = iter(sampler), iter(sampler)

    pairs = list(zip(first, second, strict=True))

    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == list(range(20))


def test_indices_are_python_integers_even_from_numpy_arguments():
    sampler = SplitSampler(np.int64(10), np.int32(2), np.uint8(1))

    assert {type(index) for index in sampler} == {int}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1, 1, 0), "length"),
        ((10, 0, 0), "num_parts"),
        ((10, -2, 0), "num_parts"),
        ((10, 2, 2), "part_index"),
        ((10, 2, -1), "part_index"),
        ((10.0, 2, 0), "length"),
        ((10, "2", 0), "num_parts"),
        ((10, 2, None), "part_index"),
        ((10, True, 0), "num_parts"),
    ],
)
def test_a_bad_argument_is_named(arguments, named):
    with pytest.raises(ConfigError, match=named):
        SplitSampler(*arguments)
