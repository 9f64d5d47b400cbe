"""Memory that can be shared with servers on this machine, so that values need not pass through a socket.

A region is an anonymous file, mapped here and, once registered over a Unix socket (`adamctl.net.regions`), also in a
server: pulled values are written straight into it, pushed values are read straight from it. It is sealed against
shrinking, so no process that maps it can be made to fault. It has no name: nothing is left however a process ends.

A server may be slow, or be cut off and continue later. So a request that was given up unanswered keeps its pages:
`renew` maps fresh pages in their place, under the same arrays, and later reads and writes of the old pages have no
effect. It renews whole arrays as they were created: an array with parts in different regions could no longer be named
in a request.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:  # controllers and commands that watch a run start a quarter faster without numpy
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float32]

SUPPORTED = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether memory can be shared with other processes. Elsewhere `SharedMemory` is ordinary memory."""

_MAP_FIXED = 0x10


class Region(NamedTuple):
    """One anonymous file. `number` is its inode: no other file that this process has open has the same."""

    number: int
    device: int
    descriptor: int
    size_bytes: int


class Place(NamedTuple):
    """Where an array lies in a region, in bytes from its start."""

    region: Region
    offset: int


class _Extent(NamedTuple):
    """The pages of one array that `array` returned: their addresses, and their place in a region."""

    start: int
    stop: int
    place: Place


class SharedMemory:
    """Memory for float32 arrays, each on pages of its own."""

    def __init__(self, size_bytes: int) -> None:
        """Raises MemoryError: the system does not have that much memory."""
        self.size_bytes = whole_pages(size_bytes)
        descriptor, shareable = _anonymous_file(self.size_bytes)
        try:
            self._map = mmap.mmap(descriptor, self.size_bytes)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"shared memory: cannot get {self.size_bytes} bytes: {error}") from error
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._used_bytes = 0
        self._extents: list[_Extent] = []  # one per array, ascending
        self._descriptors = [descriptor]
        self._first = _region(descriptor, self.size_bytes) if shareable else None

    def array(self, *shape: int) -> Array:
        """Returns a zeroed float32 array of this shape from the memory not yet taken.

        Raises:
            MemoryError: too little is left.
        """
        import numpy as np

        count = int(prod(shape))
        start = self._used_bytes
        if start + 4 * count > self.size_bytes:
            raise MemoryError(f"shared memory: {4 * count} bytes requested at {start}; {self.size_bytes} in total")
        self._used_bytes = start + array_bytes(count)
        if self._first is not None:
            place = Place(self._first, start)
            self._extents.append(_Extent(self._start + start, self._start + self._used_bytes, place))
        return np.frombuffer(self._map, np.float32, count, start).reshape(shape)

    @property
    def descriptor(self) -> int:
        """The file in which arrays begin: a child process that inherits it maps the same pages, until `close`."""
        return self._descriptors[0]

    def find(self, array: NDArray[Any]) -> Place | None:
        """Returns where a C-contiguous array lies, or None if it is not part of an array of this memory."""
        start = _address(array)
        index = bisect_right(self._extents, start, key=lambda extent: extent.start) - 1
        if index < 0 or not array.flags.c_contiguous:
            return None
        extent = self._extents[index]
        if start + array.nbytes > extent.stop or start >= extent.stop:
            return None
        return Place(extent.place.region, extent.place.offset + start - extent.start)

    def renew(self, *arrays: NDArray[Any]) -> None:
        """Puts fresh pages with the same content under arrays, which nothing else in this process may be using.

        If only a part of an array that `array` returned is given, the whole array is renewed. Arrays that are renewed
        together lie in one region afterwards. Arrays outside this memory stay unchanged.

        A server that still reads sees the content at this moment; what it still writes is lost.

        Raises:
            MemoryError: the system has no more memory.
        """
        starts = {_address(array) for array in arrays}
        renewed = [e for e in self._extents if any(e.start <= start < e.stop for start in starts)]
        if not renewed:
            return
        size_bytes = sum(extent.stop - extent.start for extent in renewed)
        descriptor = -1
        try:
            descriptor = _sealed_file(size_bytes)
            region = _region(descriptor, size_bytes)
            fresh = self._copied(renewed, region)
            for extent in fresh:
                _map_over(extent.start, extent.stop - extent.start, descriptor, extent.place.offset)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            self._extents = [
                extent for extent in self._extents if extent not in renewed
            ]  # never named in requests again
            raise MemoryError(f"shared memory: {size_bytes} bytes cannot be renewed: {error}") from error
        self._descriptors.append(descriptor)
        self._extents = sorted({extent.start: extent for extent in (*self._extents, *fresh)}.values())
        self._close_unused()

    def _copied(self, extents: list[_Extent], region: Region) -> list[_Extent]:
        """Copies arrays one after another into a new region, and returns where they are there.

        Pages that were never touched stay so: a partition of a model touches some of its vectors.
        """
        found: list[_Extent] = []
        offset = 0
        with mmap.mmap(region.descriptor, region.size_bytes) as fresh:
            for extent in extents:
                inside, size_bytes = extent.start - self._start, extent.stop - extent.start
                for start, stop in _written(extent.place, size_bytes):
                    fresh[offset + start : offset + stop] = memoryview(self._map)[inside + start : inside + stop]
                found.append(_Extent(extent.start, extent.stop, Place(region, offset)))
                offset += size_bytes
        return found

    def _close_unused(self) -> None:
        """Closes the regions that hold no array any more, to free their memory."""
        used = {extent.place.region.descriptor for extent in self._extents}
        if self._first is not None and self._used_bytes < self.size_bytes:
            used.add(self._first.descriptor)  # future arrays will be created there
        for descriptor in set(self._descriptors) - used:
            self._descriptors.remove(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Closes descriptors, so that memory can no longer be shared; it is freed with its last array."""
        self._extents.clear()
        self._first = None
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()


def _written(place: Place, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of an array whose pages have been touched, in bytes from its start."""
    descriptor, first = place.region.descriptor, place.offset
    stop = 0
    while stop < size_bytes:
        try:
            start = os.lseek(descriptor, first + stop, os.SEEK_DATA) - first
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing after that
                return
            raise
        if start >= size_bytes:
            return
        stop = min(os.lseek(descriptor, first + start, os.SEEK_HOLE) - first, size_bytes)
        yield start, stop


def array_bytes(*shape: int) -> int:
    """Returns the bytes that an array of this shape takes in a `SharedMemory`."""
    return whole_pages(4 * prod(shape))


def whole_pages(size_bytes: int) -> int:
    """Returns a size rounded up to pages, at least one."""
    return -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _anonymous_file(size_bytes: int) -> tuple[int, bool]:
    """Returns a descriptor, and whether it can be shared: a sandbox may forbid such files."""
    if SUPPORTED:
        with suppress(OSError):
            return _sealed_file(size_bytes), True
    descriptor, path = tempfile.mkstemp(prefix="adamctl-")
    os.unlink(path)
    os.ftruncate(descriptor, size_bytes)
    return descriptor, False


def _sealed_file(size_bytes: int) -> int:
    import fcntl

    descriptor = os.memfd_create("adamctl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _region(descriptor: int, size_bytes: int) -> Region:
    status = os.fstat(descriptor)
    return Region(status.st_ino, status.st_dev, descriptor, size_bytes)


def _map_over(start: int, size_bytes: int, descriptor: int, offset: int) -> None:
    """Maps a file in place of mapped pages; threads see either the old or the new pages."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found = _system_mmap()(start, size_bytes, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor, offset)
    if found != start:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def _system_mmap() -> Any:
    """Returns the system's mmap: Python's own cannot map at a given address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    return function
