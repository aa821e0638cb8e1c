"""SplitSampler reads what the sampler of that name reads in MXNet's distributed example."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest

from asyncps.data import SplitSampler, data_partition, split_and_load, split_data
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


# ----------------------------------------------------------------------- remainder, seed


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 10, 12])
@pytest.mark.parametrize("parts", [1, 3, 5])
def test_every_example_is_read_as_often_as_the_remainder_says(length, parts, seed):
    def lengths_and_counts(remainder):
        parts_of = [list(SplitSampler(length, parts, i, remainder=remainder, seed=seed))
                    for i in range(parts)]  # fmt: skip
        for index, part in enumerate(parts_of):
            assert len(SplitSampler(length, parts, index, remainder=remainder)) == len(part)
        counts = np.bincount(np.array(list(chain(*parts_of)), int), minlength=length)
        return [len(part) for part in parts_of], counts

    size, rest = divmod(length, parts)
    lengths, counts = lengths_and_counts("drop")
    assert lengths == [size] * parts
    assert counts.sum() == length - rest
    assert set(counts) <= {0, 1}
    lengths, counts = lengths_and_counts("uneven")
    assert lengths == [size + 1] * rest + [size] * (parts - rest)
    assert set(counts) <= {1}
    lengths, counts = lengths_and_counts("pad")
    assert lengths == [size + (rest > 0)] * parts
    assert not length or counts.max() - counts.min() <= 1


def test_parts_of_a_seed_are_runs_of_one_permutation_of_all():
    whole = list(SplitSampler(100, seed=5))

    assert whole != sorted(whole) == list(range(100))
    assert list(chain(*(SplitSampler(100, 4, i, seed=5) for i in range(4)))) == whole
    assert list(SplitSampler(100, seed=6)) != whole
    assert {type(index) for index in whole} == {int}


def test_epochs_have_orders_of_their_own_that_all_ranks_share():
    samplers = [SplitSampler(60, 2, i, seed=1) for i in range(2)]
    orders = []
    for epoch in range(3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        orders.append(list(samplers[0]) + list(samplers[1]))
        assert sorted(orders[-1]) == list(range(60))
        assert list(samplers[0]) + list(samplers[1]) == orders[-1]  # the same until it is changed

    assert orders[0] != orders[1] != orders[2]
    assert orders[0] == list(SplitSampler(60, seed=1))


def test_the_permutation_of_a_seed_stays_what_it_is():
    """It must not differ between the hosts of a job: NumPy's RandomState, as its policy says."""
    bits = np.random.MT19937(np.random.SeedSequence([3, 2]))
    sampler = SplitSampler(10, seed=3)
    sampler.set_epoch(2)

    assert list(sampler) == np.random.RandomState(bits).permutation(10).tolist()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"remainder": "keep"}, "drop, pad, uneven"), ({"seed": -1}, "seed"), ({"seed": 1.5}, "seed")],
)
def test_a_bad_option_is_named(options, named):
    with pytest.raises(ConfigError, match=named):
        SplitSampler(10, **options)


def test_an_epoch_needs_a_seed():
    with pytest.raises(ConfigError, match="seed"):
        SplitSampler(10).set_epoch(1)
    with pytest.raises(ConfigError, match="epoch"):
        SplitSampler(10, seed=1).set_epoch(-1)


# --------------------------------------------------------------- data_partition, split_and_load


def test_data_partition_gives_equal_runs_as_singa_does():
    x, y = np.arange(22).reshape(11, 2), np.arange(11)

    for rank in range(3):
        part_x, part_y = data_partition(x, y, rank, 3)
        assert part_y.tolist() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
        assert np.array_equal(part_x, x[part_y])
        assert part_x.base is not None  # a view


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((range(3), range(4), 0, 1), "length"), ((range(3), range(3), 3, 3), "rank"),
        ((range(3), range(3), -1, 3), "rank"), ((range(3), range(3), 0, 0), "world_size"),
        ((range(3), range(3), 0.0, 1), "rank"),
    ],
)  # fmt: skip
def test_data_partition_names_a_bad_argument(arguments, named):
    with pytest.raises(ConfigError, match=named):
        data_partition(*arguments)


@pytest.mark.parametrize(
    ("count", "even", "sizes"),
    [(1, True, [6]), (3, True, [2, 2, 2]), (4, False, [2, 2, 1, 1]), (7, False, [1] * 6 + [0])],
)
def test_a_batch_is_cut_as_gluon_cuts_it(count, even, sizes):
    batch = np.arange(24).reshape(6, 4)

    for axis, data in ((0, batch), (1, batch.T), (-1, batch.T)):
        parts = split_and_load(data, [f"device {i}" for i in range(count)], axis, even)
        assert [part.shape[axis] for part in parts] == sizes
        assert np.array_equal(np.concatenate(parts, axis), data)
        assert all(part.size == 0 or np.shares_memory(part, batch) for part in parts)
    assert [part.tolist() for part in split_and_load(list(range(6)), 2)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("cut", "named"),
    [
        (lambda: split_data(np.ones((5, 2)), 2), "even_split=False"),
        (lambda: split_data(np.ones(4), 0), "num_slice"),
        (lambda: split_data(np.ones(4), 2, batch_axis=1), "axis"),
        (lambda: split_data(np.float32(4), 2), "axis"),
        (lambda: split_and_load(np.ones(4), []), "devices"),
        (lambda: split_and_load(np.ones(4), 1.5), "devices"),
    ],
)
def test_a_batch_that_cannot_be_cut_says_why(cut, named):
    with pytest.raises(ConfigError, match=named):
        cut()
