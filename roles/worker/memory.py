"""Memory that threads share now and processes could share later: weights, accrued gradients, accrued factors."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from adamctl.kernels.operation import Array

ALIGNMENT_BYTES = 64


class SharedMemory:
    """One anonymous file mapped into this process. It has no name, so nothing is left behind however a process ends.

    `descriptor` may be passed to a child process, which maps the same memory.
    """

    def __init__(self, size_bytes: int) -> None:
        self.descriptor = _anonymous_file()
        self.size_bytes = -(-max(size_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.descriptor, self.size_bytes)
        self._map = mmap.mmap(self.descriptor, self.size_bytes)
        self._used_bytes = 0

    def array(self, *shape: int) -> Array:
        """Returns a zeroed float32 array of this shape from the memory not yet taken, on its own cache line.

        Raises:
            MemoryError: less is left.
        """
        count = int(np.prod(shape, dtype=np.int64))
        start = -(-self._used_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if start + 4 * count > self.size_bytes:
            raise MemoryError(f"shared memory: {4 * count} bytes wanted at {start}; {self.size_bytes} in all")
        self._used_bytes = start + 4 * count
        return np.frombuffer(self._map, np.float32, count, start).reshape(shape)

    def close(self) -> None:
        """Closes the descriptor; the mapping goes with the last array that lies in it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("adamctl-replica", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="adamctl-")
    os.unlink(path)
    return descriptor
