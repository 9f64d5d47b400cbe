"""A bucket's arrays lie in one piece of memory, each on its own cache lines, and say the same as before."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.roles.ps.memory_budget import MemoryAccount, RecycledMemory, side_by_side


@pytest.mark.parametrize("sizes", [(1, 17, 300), (0, 5), (), (700_000, 3)])
def test_copies_lie_one_after_another(sizes: tuple[int, ...]) -> None:
    arrays = [np.random.default_rng(number).random(size, np.float32) for number, size in enumerate(sizes)]
    copies = side_by_side(arrays)
    assert len(copies) == len(arrays)
    end = 0
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(array, copy) and copy.flags.writeable and copy.flags.c_contiguous
        if array.size:
            address = copy.__array_interface__["data"][0]
            assert address % 64 == 0 and address >= end
            end = address + copy.nbytes
            copy += 1  # nobody else's
    assert all(np.array_equal(array + 1, copy) for array, copy in zip(arrays, copies, strict=True))


def test_memory_comes_back_with_the_last_view_of_it() -> None:
    memory = RecycledMemory(idle_bytes_max=1 << 20)
    first = memory.new(1 << 16)
    first[:] = 7
    view = np.ndarray((100,), np.float32, first[50:].data)
    part = view[10:]
    del first, view
    second = memory.new(1 << 16)
    second[:] = 1
    assert set(part.tolist()) == {7.0} and not np.shares_memory(part, second)
    del part
    third = memory.new(1 << 16)
    assert third[0] == 7.0  # the first one's
    assert all(a.__array_interface__["data"][0] % 64 == 0 and a.flags.writeable for a in (second, third))


def test_idle_memory_has_a_bound() -> None:
    memory = RecycledMemory(idle_bytes_max=1 << 20)
    arrays = [memory.new(1 << 16) for _ in range(20)]
    assert memory.new(3).size == 3
    del arrays
    assert sum(len(idle) for idle in memory._idle.values()) == 4


def test_no_memory_of_the_sizes_of_an_ended_job_is_kept() -> None:
    memory = RecycledMemory(idle_bytes_max=1 << 20)
    lasting = memory.new(1 << 15)
    for size in range(1 << 16, (1 << 16) + 10):  # of copies that are freed before and after
        memory.new(size)
    memory.forget()
    held = memory._idle
    assert not held
    del lasting
    assert not held and memory.new(1 << 15).size == 1 << 15


def test_an_account_counts_what_is_made_held_and_kept_for_others() -> None:
    account = MemoryAccount("ps-0", 1000, lambda: 100)
    account.begin("a", 300)
    account.begin("a", 100)
    account.copies["a", 1], account.copies["b", 1] = 200, 50
    assert account.held_bytes == 750 and account.problem("a", 250) is None
    problem = account.problem("a", 251)
    assert problem is not None and "--memory" in problem
    account.end("a", 300)
    account.end("a", 100)
    account.free_copies("a")
    assert account.held_bytes == 150 and not account.building
