"""Recycled memory: a buffer is in one place, and what lies unused is bounded."""

from __future__ import annotations

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncps.tensor.pool import ALIGNMENT, Bytes, Pool, SharedPool, aligned_bytes


def test_buffers_begin_at_a_cache_line_and_have_their_size() -> None:
    for size in (0, 1, 63, 64, 65, 100_000):
        buffer = aligned_bytes(size)
        assert buffer.nbytes == size
        assert buffer.flags.c_contiguous
        assert buffer.ctypes.data % ALIGNMENT == 0 or not size


def test_last_buffer_given_back_goes_out_first() -> None:
    pool = Pool(1 << 20)
    one, two = pool.take(8), pool.take(8)
    pool.give(one)
    pool.give(two)
    assert pool.take(8) is two
    assert pool.take(8) is one
    assert pool.take(8) is not one


def test_buffer_larger_than_the_limit_is_dropped() -> None:
    pool = Pool(100)
    pool.give(pool.take(101))
    assert pool.free_bytes == 0


def test_other_sizes_make_room() -> None:
    pool = Pool(100)
    small = [pool.take(10) for _ in range(10)]
    for buffer in small:
        pool.give(buffer)
    large = pool.take(95)
    pool.give(large)
    assert pool.free_bytes <= 100
    assert pool.take(95) is large


def test_shared_pool_gives_no_buffer_to_two_threads() -> None:
    pool = SharedPool(1 << 20)
    wrong: list[str] = []

    def work(mark: int) -> None:
        for _ in range(500):
            buffer = pool.take(64)
            buffer[:] = mark
            if not (buffer == mark).all():
                wrong.append("shared")
            pool.give(buffer)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class PoolMachine(RuleBasedStateMachine):
    """Takes and gives; nothing is out twice, and the counts are right."""

    @initialize(keep=st.integers(0, 200))
    def start(self, keep: int) -> None:
        self.pool = Pool(keep)
        self.out: dict[int, Bytes] = {}

    @rule(size=st.sampled_from([1, 8, 64, 100]))
    def take(self, size: int) -> None:
        buffer = self.pool.take(size)
        assert buffer.nbytes == size
        assert buffer.ctypes.data not in self.out
        self.out[buffer.ctypes.data] = buffer

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.out:
            self.pool.give(self.out.pop(data.draw(st.sampled_from(sorted(self.out)))))

    @invariant()
    def what_lies_unused_is_bounded(self) -> None:
        if not hasattr(self, "pool"):
            return
        free = [buffer for found in self.pool._free.values() for buffer in found]
        assert self.pool.free_bytes == sum(buffer.nbytes for buffer in free)
        assert self.pool.free_bytes <= self.pool.keep_bytes
        assert not {buffer.ctypes.data for buffer in free} & set(self.out)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
