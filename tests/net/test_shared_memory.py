"""Memory that can be shown to others: arrays in it, where they lie, and pages that are taken away from others."""

from __future__ import annotations

import gc
import mmap
import os

import numpy as np
import pytest

from adamctl.net import shared_memory
from adamctl.net.shared_memory import SharedMemory, array_bytes, whole_pages

linux_only = pytest.mark.skipif(not shared_memory.SUPPORTED, reason="memory is shared on Linux only")
PAGE = mmap.PAGESIZE


def seen_by_others(memory: SharedMemory, array: np.ndarray) -> np.ndarray:
    """The bytes under an array as another process that mapped its region would see them, writable."""
    place = memory.find(array)
    assert place is not None
    mapped = mmap.mmap(place.region.descriptor, place.region.size_bytes)
    return np.frombuffer(mapped, np.float32, array.size, place.offset)


def test_arrays_are_zeroed_and_lie_on_pages_of_their_own() -> None:
    memory = SharedMemory(array_bytes(3) + array_bytes(2, 5))
    first, second = memory.array(3), memory.array(2, 5)
    assert first.tolist() == [0, 0, 0] and second.shape == (2, 5)
    assert first.ctypes.data % PAGE == second.ctypes.data % PAGE == 0
    with pytest.raises(MemoryError, match="shared memory"):
        memory.array(1)
    memory.close()


def test_sizes_are_whole_pages() -> None:
    assert [whole_pages(size) for size in (0, 1, PAGE, PAGE + 1)] == [PAGE, PAGE, PAGE, 2 * PAGE]
    assert array_bytes(PAGE // 4) == PAGE and array_bytes(PAGE // 4, 2) == 2 * PAGE


@linux_only
def test_arrays_are_found_where_they_lie() -> None:
    memory = SharedMemory(3 * PAGE)
    first, second = memory.array(8), memory.array(PAGE // 2)
    place = memory.find(second[4:7])
    assert place is not None and place.offset == PAGE + 16
    assert place.region.size_bytes == 3 * PAGE
    found = memory.find(first)
    assert found is not None and found.region is place.region
    assert memory.find(np.zeros(4, np.float32)) is None
    assert memory.find(second.reshape(-1, 2)[:, 0]) is None
    memory.close()
    assert memory.find(first) is None


@linux_only
def test_what_others_write_is_seen_until_the_pages_are_taken_away() -> None:
    memory = SharedMemory(3 * PAGE)
    before, array, after = memory.array(8), memory.array(8), memory.array(8)
    theirs = seen_by_others(memory, array)
    theirs[0] = 5.0
    assert array[0] == 5.0
    old = memory.find(array)
    memory.renew(array)
    assert array[0] == 5.0  # the content stays
    theirs[0] = 6.0
    assert array[0] == 5.0
    array[1] = 7.0
    assert theirs[1] == 0.0
    new = memory.find(array)
    assert old is not None and new is not None and new.region.number != old.region.number
    assert seen_by_others(memory, array)[1] == 7.0
    for neighbour in (before, after):
        seen_by_others(memory, neighbour)[2] = 1.0
        assert neighbour[2] == 1.0
    memory.close()


@linux_only
def test_an_array_of_which_parts_were_renewed_still_lies_in_one_region() -> None:
    memory = SharedMemory(9 * PAGE)
    array, other = memory.array(PAGE), memory.array(PAGE)
    array[:] = np.arange(array.size)
    theirs = seen_by_others(memory, array)
    for part in (array[:16], array[PAGE // 2 :]):
        memory.renew(part)
        place = memory.find(array)
        assert place is not None and memory.find(part[4:]).region is place.region
    array[:16] = 0.0
    assert np.array_equal(theirs, np.arange(array.size, dtype=np.float32))
    array[:] = seen_by_others(memory, array)
    assert not array[:16].any() and np.array_equal(array[16:], theirs[16:])
    last = memory.array(8)  # what was not taken yet is still the first region's
    assert memory.find(last).region is memory.find(other).region
    memory.close()


@linux_only
def test_arrays_renewed_together_lie_in_one_region() -> None:
    memory = SharedMemory(4 * PAGE)
    first, between, last = memory.array(8), memory.array(PAGE // 2), memory.array(8)
    for value, array in enumerate((first, between, last)):
        array[:] = value
    memory.renew(last, first[2:], np.zeros(8, np.float32))
    places = [memory.find(array) for array in (first, between, last)]
    assert places[0].region is places[2].region and places[1].region.size_bytes == 4 * PAGE
    assert places[0].region.size_bytes == 2 * PAGE and {places[0].offset, places[2].offset} == {0, PAGE}
    for value, array in enumerate((first, between, last)):
        assert array.min() == array.max() == value
        seen_by_others(memory, array)[1] = 7.0
        assert array[1] == 7.0
    memory.close()


@linux_only
def test_what_cannot_be_renewed_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory(2 * PAGE)
    first, second = memory.array(8), memory.array(8)
    first[:] = 3

    def full(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(shared_memory, "_map_over", full)
        with pytest.raises(MemoryError, match="renewed"):
            memory.renew(first)
    assert memory.find(first) is None and memory.find(second) is not None and first.sum() == 24
    memory.close()


@linux_only
def test_descriptors_are_closed_and_arrays_outlive_them() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    memory = SharedMemory(PAGE)
    array = memory.array(4)
    memory.renew(array)
    array[:] = 3
    del memory
    gc.collect()
    assert array.tolist() == [3, 3, 3, 3]
    del array
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@linux_only
def test_it_can_never_shrink() -> None:
    memory = SharedMemory(PAGE)
    place = memory.find(memory.array(1))
    assert place is not None
    with pytest.raises(PermissionError):
        os.ftruncate(place.region.descriptor, 0)
    memory.close()


@linux_only
def test_where_such_files_are_forbidden_it_is_memory_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", forbidden)
    memory = SharedMemory(PAGE)
    array = memory.array(4)
    array[:] = 1
    memory.renew(array)
    assert memory.find(array) is None and array.sum() == 4
    memory.close()


def test_elsewhere_it_is_memory_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SUPPORTED", False)
    memory = SharedMemory(PAGE)
    array = memory.array(4)
    array[:] = 1
    memory.renew(array)
    assert memory.find(array) is None and array.sum() == 4
    memory.close()


@linux_only
def test_pages_that_were_taken_away_twice_are_not_kept() -> None:
    memory = SharedMemory(4 * PAGE)
    array = memory.array(PAGE)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        memory.renew(array)
    assert len(os.listdir("/proc/self/fd")) == before
    memory.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


@linux_only
def test_pages_that_were_never_touched_stay_so_when_an_array_is_renewed() -> None:
    memory = SharedMemory(64 << 20)
    array = memory.array(16 << 20)
    page = mmap.PAGESIZE // 4
    array[5 * page : 7 * page] = 1
    array[-1] = 2
    memory.renew(array)
    assert array[5 * page] == array[7 * page - 1] == 1 and array[-1] == 2
    place = memory.find(array)
    assert place is not None
    assert os.fstat(place.region.descriptor).st_blocks * 512 <= 16 * mmap.PAGESIZE, "a few pages of 64 MiB"
    assert not array[:page].any()
