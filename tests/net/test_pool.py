"""Buffers in powers of two, counted, within a quota."""

from __future__ import annotations

import gc
import mmap
import threading
from random import Random

import numpy as np
import pytest

from adamctl.errors import BackpressureError
from adamctl.net.pool import SIZE_BYTES_MAX, BufferPool, PooledBuffer, capacity_for


def test_sizes_are_powers_of_two_from_4_kib_to_32_mib() -> None:
    assert [capacity_for(size) for size in (0, 1, 4096, 4097, 1 << 20, (1 << 20) + 1)] == [
        4096,
        4096,
        4096,
        8192,
        1 << 20,
        2 << 20,
    ]
    assert capacity_for(SIZE_BYTES_MAX) == 32 << 20
    with pytest.raises(ValueError, match="33554433"):
        capacity_for(SIZE_BYTES_MAX + 1)


def test_buffers_are_page_aligned_and_as_long_as_asked_for() -> None:
    pool = BufferPool(1 << 20)
    for size in (1, 5000, 100_000):
        buffer = pool.allocate(size)
        assert len(buffer.view) == size
        assert np.frombuffer(buffer.view, np.uint8).ctypes.data % mmap.PAGESIZE == 0
        buffer.view[-1] = 7
        buffer.release()


def test_the_last_release_gives_a_buffer_back_and_it_is_used_again() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.allocate(5000)
    buffer.retain()
    buffer.release()
    assert pool.statistics().outstanding_bytes == 8192
    buffer.release()
    assert (pool.statistics().outstanding_bytes, pool.statistics().cached_bytes) == (0, 8192)
    pool.allocate(6000).release()
    assert pool.statistics().reused == 1


def test_one_release_too_many_is_our_mistake() -> None:
    buffer = BufferPool(1 << 20).allocate(1)
    buffer.release()
    with pytest.raises(RuntimeError, match="too often"):
        buffer.release()
    with pytest.raises(RuntimeError, match="after its last release"):
        buffer.retain()


def test_beyond_the_quota_there_is_nothing() -> None:
    pool = BufferPool(64 << 10)
    held = [pool.allocate(16 << 10) for _ in range(4)]
    with pytest.raises(BackpressureError, match="65536 of 65536"):
        pool.allocate(1)
    assert pool.try_allocate(1) is None
    assert pool.statistics().refused == 2
    held.pop().release()
    held.append(pool.allocate(16 << 10))
    for buffer in held:
        buffer.release()


def test_cached_buffers_make_way_and_count_within_the_quota() -> None:
    pool = BufferPool(64 << 10, cached_bytes_max=64 << 10)
    for buffer in [pool.allocate(16 << 10) for _ in range(4)]:
        buffer.release()
    assert pool.statistics().cached_bytes == 64 << 10
    large = pool.allocate(40 << 10)
    statistics = pool.statistics()
    assert statistics.outstanding_bytes + statistics.cached_bytes <= 64 << 10
    large.release()


def test_no_more_is_cached_than_allowed() -> None:
    pool = BufferPool(1 << 20, cached_bytes_max=8192)
    for buffer in [pool.allocate(4096) for _ in range(10)]:
        buffer.release()
    assert pool.statistics().cached_bytes == 8192


def test_who_waits_is_told_of_the_next_release() -> None:
    pool = BufferPool(8192)
    calls: list[int] = []
    first, second = pool.allocate(1), pool.allocate(1)
    pool.when_released(lambda: calls.append(1))
    pool.when_released(lambda: calls.append(2))
    first.release()
    second.release()
    assert calls == [1, 2]


def test_a_buffer_dropped_without_release_is_not_lost_to_the_quota() -> None:
    pool = BufferPool(8192)
    buffer: PooledBuffer | None = pool.allocate(8192)
    assert buffer is not None
    del buffer
    gc.collect()
    pool.allocate(8192).release()
    assert pool.statistics().lost == 1


def test_threads_may_release_while_others_allocate() -> None:
    pool = BufferPool(256 << 10)

    def work(seed: int) -> None:
        random = Random(seed)
        held: list[tuple[PooledBuffer, int]] = []
        for number in range(2000):
            if held and random.random() < 0.5:
                buffer, mark = held.pop(random.randrange(len(held)))
                assert buffer.view[0] == mark
                buffer.release()
            elif (found := pool.try_allocate(random.randrange(1, 20_000))) is not None:
                found.view[0] = number % 256
                held.append((found, number % 256))
        for buffer, _ in held:
            buffer.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = pool.statistics()
    assert (statistics.outstanding_bytes, statistics.outstanding_buffers) == (0, 0)
    assert statistics.peak_outstanding_bytes <= 256 << 10
