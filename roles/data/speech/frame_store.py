"""Frames of recordings, computed once and kept as far as memory allows; contexts are gathered when they are read.

Those kept are the first to be read, and none is dropped for another: each is needed once a pass in random order. So a
server that serves a part of the recordings keeps those of its part.

A context of 11 frames is 11 times its frame, so what is kept are frames. Those of a recording lie one after the other,
with its first and last frame repeated at the edges: a context is then one piece of memory, copied as it is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from adamctl.errors import ChangedDataError, DamagedDataError
from adamctl.roles.data.speech.log_mel import LogMel
from adamctl.roles.data.speech.recordings import Recording, Samples, read_samples

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

_NOT_KEPT: Final = -1


class FrameStore:
    """The frames of recordings. Thread-safe: two threads that compute a recording at once write the same values.

    Attributes:
        counts: [recordings], how many frames each has.
        all_fit: whether there is memory for all of them.
        size_bytes: that memory.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        log_mel: LogMel,
        *,
        context: int,
        center: bool,
        budget_bytes: int,
        origin: str,
    ) -> None:
        """
        Args:
            context: frames on each side of one.
            center: subtract from every frame the mean of its recording, band by band.
            budget_bytes: memory for frames.
            origin: what errors call the source.
        """
        self._recordings = recordings
        self._log_mel = log_mel
        self._context = context
        self._center = center
        self._origin = origin
        self.counts: Indices = np.array([log_mel.frame_count(one.samples) for one in recordings], np.int64)
        wanted = int(self.counts.sum()) + 2 * context * len(recordings)
        rows = min(wanted, budget_bytes // (4 * log_mel.bands))
        self.all_fit = rows == wanted
        self._rows = np.empty((rows, log_mel.bands), np.float32)  # what is never written takes no memory
        self._lock = threading.Lock()  # guards _starts and _used
        self._starts: Indices = np.full(len(recordings), _NOT_KEPT)
        self._used = 0
        self._filled = np.zeros(len(recordings), np.bool_)
        self._damages: dict[int, str] = {}  # of recordings that are only decoded as a whole
        self._means = np.zeros((0 if self.all_fit else len(recordings), log_mel.bands), np.float32)
        self._mean_known = np.zeros(len(self._means), np.bool_)
        self.size_bytes = self._rows.nbytes + self._means.nbytes

    @property
    def elements(self) -> int:
        """Numbers of a context."""
        return (2 * self._context + 1) * self._log_mel.bands

    def fill(self, start: int, stop: int) -> None:
        """Computes the frames of recordings [start, stop) that are not there yet, as far as there is memory.

        One that cannot be read is left out: whoever reads it is told.
        """
        for number in range(start, min(stop, len(self.counts))):
            if not self._filled[number] and self._has_place(number):
                with contextlib.suppress(DamagedDataError):
                    self._fill_one(number)

    def gather(self, recordings: Indices, frames: Indices, out: Floats) -> None:
        """Writes the contexts of frames into `out` [n, elements]: frame `frames[k]` of recording `recordings[k]`.

        Raises:
            DamagedDataError: a recording cannot be read.
        """
        kept = self._filled[recordings]
        if not kept.all():
            for number in np.unique(recordings[~kept]):
                if self._has_place(int(number)):
                    self._fill_one(int(number))
            kept = self._filled[recordings]
        if kept.all():
            out[...] = self._contexts(recordings, frames)
            return
        out[kept] = self._contexts(recordings[kept], frames[kept])
        for number in np.unique(recordings[~kept]):
            chosen = np.flatnonzero(recordings == number)
            out[chosen] = self._computed(int(number), frames[chosen])

    def _has_place(self, number: int) -> bool:
        """Returns whether there is memory for a recording's frames, which it then has for good."""
        with self._lock:
            if self._starts[number] == _NOT_KEPT:
                needed = int(self.counts[number]) + 2 * self._context
                if self._used + needed > len(self._rows):
                    return False
                self._starts[number] = self._used
                self._used += needed
            return True

    def _contexts(self, recordings: Indices, frames: Indices) -> Floats:
        bands = self._log_mel.bands
        if not len(recordings):
            return np.empty((0, self.elements), np.float32)
        every = sliding_window_view(self._rows.reshape(-1), self.elements)[::bands]
        found: Floats = every[self._starts[recordings] + frames]
        return found

    def _fill_one(self, number: int) -> None:
        frames, start, context = self._whole(number), self._starts[number], self._context
        rows = self._rows[start : start + len(frames) + 2 * context]
        rows[:context] = frames[0]
        rows[context : context + len(frames)] = frames
        rows[context + len(frames) :] = frames[-1]
        self._filled[number] = True  # last, so that no reader sees anything else

    def _heard(self, number: int) -> Floats:
        """Returns all frames of a recording, not centred."""
        return self._log_mel.frames(self._samples(number, 0, self._recordings[number].samples))

    def _samples(self, number: int, start: int, stop: int) -> Samples:
        """Reads a part of a recording. One of FLAC that is damaged is decoded once, and not for each of its frames."""
        if number in self._damages:
            raise DamagedDataError(self._damages[number])
        recording = self._recordings[number]
        try:
            return read_samples(recording, start, stop, self._origin)
        except ChangedDataError:
            raise
        except DamagedDataError as error:
            if recording.wav is None:
                self._damages[number] = str(error)
            raise

    def _whole(self, number: int) -> Floats:
        frames = self._heard(number)
        if self._center:
            frames -= frames.mean(axis=0, dtype=np.float64).astype(np.float32)
        return frames

    def _computed(self, number: int, frames: Indices) -> Floats:
        """Returns contexts [n, elements] of a recording that is not kept, from as few of its samples as they need."""
        last = int(self.counts[number]) - 1
        wanted = np.clip(frames[:, None] + np.arange(-self._context, self._context + 1), 0, last)
        needed, places = np.unique(wanted, return_inverse=True)
        values = np.empty((len(needed), self._log_mel.bands), np.float32)
        for part in np.split(np.arange(len(needed)), np.flatnonzero(np.diff(needed) > 1) + 1):
            values[part] = self._run(number, int(needed[part[0]]), int(needed[part[-1]]) + 1)
        if self._center:
            values -= self._mean(number)
        return values[places.reshape(wanted.shape)].reshape(len(frames), -1)

    def _run(self, number: int, first: int, stop: int) -> Floats:
        recording, log_mel = self._recordings[number], self._log_mel
        start = first * log_mel.hop_samples
        end = min((stop - 1) * log_mel.hop_samples + log_mel.window_samples, recording.samples)
        return log_mel.frames(self._samples(number, start, end))

    def _mean(self, number: int) -> Floats:
        if not self._mean_known[number]:
            self._means[number] = self._heard(number).mean(axis=0, dtype=np.float64)
            self._mean_known[number] = True
        mean: Floats = self._means[number]
        return mean
