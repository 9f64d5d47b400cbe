"""Clients' memory that a server maps: what a client may register, checks before mapping, and a bound on the total.

A client on this machine names one of its descriptors. The kernel tells its process (SO_PEERCRED of the Unix socket),
and `/proc/<pid>/fd/<descriptor>` opens the same file here; no descriptor is passed, since not every event loop can do
that. A process of the same user could do anything to this one anyway; the checks guard against mistakes of honest
clients and keep the bounds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
import weakref
from collections import deque
from typing import Any

from adamctl.errors import RemoteError
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import MemoryRegisterRequest

SUPPORTED = sys.platform == "linux" and hasattr(fcntl, "F_GET_SEALS")


class RegionQuota:
    """How much of all its clients' memory a server maps; pages that it touches first may count as its own memory.

    A mapping counts until nothing reads or writes it any more, even after its connection has ended. Used on the loop's
    thread, except that the last user of a mapping reports its end from any thread.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._mapped_bytes = 0
        # Appended without a lock: the garbage collector may run anywhere.
        self._unmapped: deque[int] = deque()

    @property
    def mapped_bytes(self) -> int:
        while self._unmapped:
            self._mapped_bytes -= self._unmapped.popleft()
        return self._mapped_bytes

    def map(self, descriptor: int, size_bytes: int) -> memoryview:
        """Maps `size_bytes` of a file, writable, and returns them.

        Raises:
            RemoteError: OVER_QUOTA.
            OSError, ValueError: it cannot be mapped.
        """
        if self.mapped_bytes + size_bytes > self.bytes_max:
            raise RemoteError(
                ErrorCode.OVER_QUOTA,
                f"this server maps at most {self.bytes_max} bytes of its clients' memory; "
                f"it has mapped {self.mapped_bytes}, and {size_bytes} more were requested",
            )
        mapped = mmap.mmap(descriptor, size_bytes)
        self._mapped_bytes += size_bytes
        weakref.finalize(mapped, self._unmapped.append, size_bytes).atexit = False
        return memoryview(mapped)


class RegionTable:
    """The regions that one connection has registered; used on the loop's thread."""

    def __init__(self, quota: RegionQuota, regions_max: int) -> None:
        self.size_bytes = 0
        self._quota, self._regions_max = quota, regions_max
        self._views: dict[int, memoryview] = {}

    def __len__(self) -> int:
        return len(self._views)

    def find(self, number: int) -> memoryview | None:
        """Returns all bytes of a region, writable; they stay mapped as long as they are referenced."""
        return self._views.get(number)

    def register(self, sock: Any, request: MemoryRegisterRequest) -> None:
        """Maps a region of the process at the other end of a socket; one that is already mapped stays unchanged.

        Raises:
            RemoteError: NOT_SHAREABLE, with the reason; OVER_QUOTA.
        """
        if request.number in self._views:
            return
        size_bytes = request.size_bytes
        if size_bytes < 1 or size_bytes % mmap.PAGESIZE:
            raise _refused(f"expected whole pages of {mmap.PAGESIZE} bytes; found {size_bytes} bytes")
        if len(self._views) >= self._regions_max:
            raise RemoteError(ErrorCode.OVER_QUOTA, f"a connection may register at most {self._regions_max} regions")
        descriptor = _open(peer_process(sock), request.descriptor)
        try:
            check_region(descriptor, request)
            self._views[request.number] = self._quota.map(descriptor, size_bytes)
        except (OSError, ValueError) as error:
            raise _refused(f"it cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self.size_bytes += size_bytes

    def clear(self) -> None:
        """Drops all regions; those being read or written stay mapped until that is finished."""
        self._views.clear()
        self.size_bytes = 0


def peer_process(sock: Any) -> int:
    """Returns the process at the other end of a Unix socket.

    Raises:
        RemoteError: it is unknown, or belongs to another user.
    """
    if not SUPPORTED or sock is None or sock.family != socket.AF_UNIX:
        raise _refused("memory is shared over Unix sockets on Linux only")
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", found)
    if pid <= 0:
        raise _refused("the client's process cannot be seen from here (it is in another container)")
    if user != os.geteuid():
        raise _refused(f"the client runs as user {user}, this server as {os.geteuid()}")
    return int(pid)


def _open(pid: int, descriptor: int) -> int:
    path = f"/proc/{pid}/fd/{descriptor}"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe or a device may wait, or do something
            raise _refused("it is not a file of memory")
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(f"{path} cannot be opened: {error.strerror}") from error


def check_region(descriptor: int, request: MemoryRegisterRequest) -> None:
    """Raises RemoteError unless a file is the named one, large enough, sealed against shrinking, and in ordinary pages.

    A mapped file that shrinks, or whose huge pages run out, kills the process that touches it.
    """
    status = os.fstat(descriptor)
    if (status.st_ino, status.st_dev) != (request.number, request.device):
        raise _refused("found another file there: the client's process numbers differ here (another container)")
    if status.st_size < request.size_bytes:
        raise _refused(f"expected at least {request.size_bytes} bytes; found {status.st_size}")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise _refused("it is not a file of memory") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise _refused("expected a file sealed against shrinking")
    if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
        raise _refused("expected memory in ordinary pages")


def _refused(why: str) -> RemoteError:
    return RemoteError(ErrorCode.NOT_SHAREABLE, f"this memory cannot be shared: {why}")
