"""Damaged examples that are left out instead of ending the run: `data.on_error = "skip"`."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ChangedDataError, DamagedDataError
from adamctl.roles.data.core import Indices
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Source, check_finite

LOGGED_MAX: Final = 1000
"""Damaged places that a data server names in its log; more are only counted."""

_log = logging.getLogger("adamctl.data")


class SkippingSource:
    """A source of which damaged examples are left out: `load` writes zeros for them, and `damaged` says which they are.

    Each is tried once, and named in the log.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.format, self.origin = source.format, source.origin
        self.classes, self.example_shape = source.classes, source.example_shape
        self.dtype, self.value_max = source.dtype, source.value_max
        self.resident, self.resident_bytes = source.resident, source.resident_bytes
        self.stored_bytes = source.stored_bytes
        self._damaged = {split: np.zeros(len(source.labels(split)), np.bool_) for split in FILE_SPLITS}
        self._lock = threading.Lock()
        self._logged = 0

    def __getattr__(self, name: str) -> Any:
        """Returns what a source may have besides."""
        return getattr(self._source, name)

    def labels(self, split: FileSplit) -> Labels:
        return self._source.labels(split)

    def load(self, split: FileSplit, indices: Indices, out: NDArray[Any]) -> None:
        """Raises ChangedDataError; of all else that is damaged, the examples are left out."""
        whole = ~self._damaged[split][indices]
        if not whole.all():
            values = np.empty((np.count_nonzero(whole), *out.shape[1:]), out.dtype)
            if len(values):
                self.load(split, indices[whole], values)
            out[whole], out[~whole] = values, 0
            return
        try:
            self._load(split, indices, out)
            return
        except ChangedDataError:
            raise
        except DamagedDataError:
            pass  # one by one, to see which
        for row, index in enumerate(indices):
            part = out[row : row + 1]
            try:
                self._load(split, indices[row : row + 1], part)
            except ChangedDataError:
                raise
            except DamagedDataError as error:
                part[...] = 0
                self._note(split, int(index), error)

    @property
    def skipped(self) -> int:
        """How many examples are left out so far."""
        return self._logged

    def damaged(self, split: FileSplit, indices: Indices) -> NDArray[np.bool_]:
        """Returns which of these examples, which have been loaded, are left out."""
        marks: NDArray[np.bool_] = self._damaged[split][indices]
        return marks

    def _load(self, split: FileSplit, indices: Indices, out: NDArray[Any]) -> None:
        self._source.load(split, indices, out)
        if self.dtype.kind == "f":
            check_finite(out.reshape(len(indices), -1), indices, f"{self.origin}: {split}")

    def _note(self, split: FileSplit, index: int, error: DamagedDataError) -> None:
        with self._lock:
            if self._damaged[split][index]:
                return
            self._damaged[split][index] = True
            self._logged += 1
            logged = self._logged
        if logged <= LOGGED_MAX:
            _log.warning("skipped example %d of %s: %s", index, split, error)
        if logged == LOGGED_MAX:
            _log.warning("further damaged examples are skipped without being named here")
