"""The rule of the threshold, and memory that is used again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncps.distopt.buckets import Groups, Packer, Shelf
from asyncps.distopt.parameters import DistParameter


@given(st.lists(st.integers(0, 20)), st.integers(0, 25))
def test_everything_is_in_one_group_and_each_is_as_large_as_the_rule_says(
    sizes: list[int], threshold: int
) -> None:
    groups: Groups[int] = Groups(threshold)
    closed = [group for i, size in enumerate(sizes) if (group := groups.add(i, size))]
    rest = groups.rest()
    assert sorted(i for group in [*closed, rest] for i in group) == list(range(len(sizes)))
    for group in closed:
        assert group == sorted(group)
        assert sum(sizes[i] for i in group) > threshold
        if len(group) > 1:
            assert sum(sizes[i] for i in group[:-1]) <= threshold
            assert max(sizes[i] for i in group) <= threshold
    assert sum(sizes[i] for i in rest) <= threshold
    shared = [i for group in [*closed, rest] for i in group if sizes[i] <= threshold]
    assert shared == sorted(shared)  # in the order in which they came
    assert groups.rest() == []


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["f4", "f8", "f2"])), max_size=12),
    st.integers(0, 12),
)
def test_gradients_of_several_dtypes_are_packed_once_and_where_the_parts_say(
    made: list[tuple[int, str]], threshold: int
) -> None:
    shelf = Shelf()
    for _ in range(2):  # the second time in the memory of the first
        packer = Packer(threshold, False, shelf, lambda parameter: parameter.numpy)
        buckets, wanted = [], {}
        for number, (size, dtype) in enumerate(made):
            wanted[number] = np.arange(size, dtype=dtype) + 10 * number
            buckets += packer.add(DistParameter(number, np.zeros(size, dtype)), wanted[number])
        buckets += packer.rest()
        seen = []
        for bucket in buckets:
            ends = [0]
            for parameter, begin, end in bucket.parts:
                assert begin == ends[-1]
                ends.append(end)
                seen.append(parameter.number)
                np.testing.assert_array_equal(bucket.values[begin:end], wanted[parameter.number])
                assert bucket.values.dtype == parameter.numpy
            assert bucket.size == ends[-1]
        assert sorted(seen) == list(range(len(made)))
        for i, bucket in enumerate(buckets):
            for other in buckets[:i]:
                assert not np.shares_memory(bucket.values, other.values)
        shelf.restore()
