"""Serves a set in block order out of bounded memory: each window's blocks are read once, in order, ahead of need.

`core.WindowMemory` decides; here are the values, the files and the threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import AdamctlError
from adamctl.roles.data.core import FILE_ORDER, Indices, Range
from adamctl.roles.data.readers.source import FileSplit, Source, check_finite, is_sequential
from adamctl.roles.data.streaming.blocks import Place, SplitBlocks
from adamctl.roles.data.streaming.core import WindowKey, WindowMemory

Owned = Callable[[Indices], Indices]
"""Returns those of some blocks that this server owns."""
PATIENCE_S: Final = 5.0
"""How long a range waits for blocks; examples of those that were not read by then are read alone. A server that is read
from alone is given up later than that, and the next range finds more blocks."""
_SEQUENTIAL_PATIENCE_S: Final = 60.0
"""The same for a sequential source: to read examples alone costs as much as to read their blocks, which stay."""
_FRAMES_OF_LONGEST: Final = 16
_FRAME_EXAMPLES_MAX: Final = 256

_log = logging.getLogger("adamctl.data")


class Frames:
    """How blocks of these lengths are cut into frames of `examples` each. `needed` [B]: how many each block takes."""

    def __init__(self, lengths: Indices, example_bytes: int) -> None:
        self.examples = max(1, min(_FRAME_EXAMPLES_MAX, int(lengths.max(initial=1)) // _FRAMES_OF_LONGEST))
        self.needed: Indices = -(-lengths // self.examples)
        self.frame_bytes = self.examples * example_bytes

    def window_bytes(self, split: SplitBlocks, window_blocks: int) -> list[int]:
        """Returns what the largest windows of 1, 2, ... `window_blocks` blocks of a split need."""
        largest = np.sort(self.needed[split.numbers])[::-1][:window_blocks]
        return [int(frames) * self.frame_bytes for frames in np.cumsum(largest)]


def frames_of(splits: Mapping[str, SplitBlocks], source: Source) -> Frames:
    """Returns the frames for all blocks of a data set, by their numbers."""
    lengths = np.concatenate([split.lengths for split in splits.values()])
    return Frames(lengths, prod(source.example_shape) * source.dtype.itemsize)


class WindowCache:
    """The examples of all splits of one data set, as the source has them. Thread-safe.

    Whoever needs a block that nobody reads yet reads it itself, and waits for one only while another thread reads it:
    so no number of threads is too small. A block's values are written before it is said to be held.
    """

    def __init__(
        self, source: Source, splits: Mapping[str, SplitBlocks], window_blocks: int, budget_bytes: int
    ) -> None:
        """`budget_bytes`: for the values. Where not even one window fits, each range is read from the files."""
        self._source = source
        self._splits = splits
        self._elements = prod(source.example_shape)
        sequential = is_sequential(source)
        self._patience_s = _SEQUENTIAL_PATIENCE_S if sequential else PATIENCE_S
        self._frames = frames_of(splits, source)
        needed = self._frames.needed
        whole = int(needed.sum())
        frames_max = min(whole, max(0, budget_bytes) // self._frames.frame_bytes)
        largest = max((self._frames.window_bytes(split, window_blocks) or [0])[-1] for split in splits.values())
        self._memory = WindowMemory(needed, frames_max, largest // self._frames.frame_bytes, sequential=sequential)
        self._values: NDArray[Any] = np.empty((frames_max * self._frames.examples, self._elements), source.dtype)
        self._firsts: Indices = np.cumsum(needed) - needed  # [B]: each block's first entry of _table
        self._table = np.zeros(whole, np.int32)  # which frame holds this part of the set
        self._split_of = np.repeat(np.arange(len(splits)), [len(split.numbers) for split in splits.values()])
        self._changed = threading.Condition()  # guards all below, and is notified when a block was read
        self._owned: Owned | None = None
        self.loaded_examples = 0

    @property
    def size_bytes(self) -> int:
        """Memory that it may use at most."""
        return int(self._values.nbytes + self._table.nbytes)

    @property
    def held_bytes(self) -> int:
        """Memory of the blocks that are held now."""
        with self._changed:
            return self._memory.used_frames * self._frames.frame_bytes

    def own(self, owned: Owned) -> None:
        """Says which blocks this server reads for windows, from now on; all of them until then."""
        with self._changed:
            self._owned = owned

    # --- what is asked for ------------------------------------------------------------------------------------------

    def gather(self, wanted: Range, out: NDArray[Any], positions: Indices | None = None) -> None:
        """Writes a range into `out` [n, elements], of the source's type.

        With `positions` in the range, ascending, it writes those examples alone, one after the other.

        Raises:
            DamagedDataError: a file cannot be read, or a value is not finite.
        """
        split = self._splits[wanted.split]
        passed = written = 0
        for place in split.find(wanted.pass_number, wanted.start, wanted.stop):
            first = wanted.start + passed - place.first
            count = len(place.blocks)
            if positions is not None:
                rows = positions[(positions >= passed) & (positions < passed + count)] - passed
                place = place.at(rows)
            rows_out = out[written : written + len(place.blocks)]
            self._serve(WindowKey(wanted.split, wanted.pass_number, place.window), place, rows_out)
            with self._changed:
                self._memory.served(
                    WindowKey(wanted.split, wanted.pass_number, place.window), first, first + count, time.monotonic()
                )
            passed += count
            written += len(place.blocks)

    def _serve(self, key: WindowKey, place: Place, out: NDArray[Any]) -> None:
        blocks, examples = self._splits[key.split].window(key.pass_number, key.window)
        with self._changed:
            mine = blocks if self._owned is None else self._owned(blocks)
            self._memory.enter(key, map(int, mine), examples, time.monotonic())
        needed = np.unique(place.blocks).tolist()
        held = self._fetch(needed)
        try:
            self._copy(key.split, place, held, out, all_there=len(held) == len(needed))
        finally:
            with self._changed:
                self._memory.unpin(held)

    def _fetch(self, numbers: Sequence[int]) -> list[int]:
        """Reads blocks that have room and are not there, as many as there is time for, at least one.

        Returns those that are there then; unpin each.
        """
        held: list[int] = []
        pending = deque(numbers)
        until_s = time.monotonic() + self._patience_s
        try:
            while pending:
                number = self._next_to_read(pending, held, until_s)
                if number is None:
                    break
                self._read(number, pin=True)
                held.append(number)
                if time.monotonic() >= until_s:
                    break
            with self._changed:
                held += filter(self._memory.pin, pending)
        except BaseException:
            with self._changed:
                self._memory.unpin(held)
            raise
        return held

    def _next_to_read(self, pending: deque[int], held: list[int], until_s: float) -> int | None:
        """Returns a block that was claimed, once there is one; None if all others are there, or the time is over.

        Blocks that are there are moved from `pending` to `held`, and those that have no room are dropped.
        """
        with self._changed:
            while pending:
                for _ in range(len(pending)):
                    number = pending.popleft()
                    claim = self._memory.claim(number)
                    if claim == "read":
                        return number
                    if claim == "held":
                        held.append(number)
                    elif claim == "wait":
                        pending.append(number)
                left_s = until_s - time.monotonic()
                if pending and (left_s <= 0 or not self._changed.wait(left_s)):
                    return None
        return None

    def _copy(self, split: str, place: Place, held: Sequence[int], out: NDArray[Any], *, all_there: bool) -> None:
        per_frame = self._frames.examples
        frames = self._table[self._firsts[place.blocks] + place.indices // per_frame]
        rows = frames.astype(np.int64) * per_frame + place.indices % per_frame
        if all_there:
            np.take(self._values, rows, axis=0, out=out, mode="clip")  # clip: with "raise" numpy copies twice
            return
        there = np.isin(place.blocks, held)
        out[there] = self._values[rows[there]]
        missing = np.flatnonzero(~there)
        blocks = self._splits[split]
        indices = blocks.starts[place.blocks[missing] - blocks.numbers[0]] + place.indices[missing]
        order = np.argsort(indices, kind="stable")  # a sequential source then reads each block once
        values = np.empty((len(missing), self._elements), out.dtype)
        self._load(blocks.file_split, indices[order], values)
        out[missing[order]] = values

    # --- reading ----------------------------------------------------------------------------------------------------

    def ahead_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks that read the windows after those being served, as far as there is room; each only once."""
        tasks: list[Callable[[], None]] = []
        now_s = time.monotonic()
        with self._changed:
            for key in self._memory.unfollowed():
                after = self._next(key)
                if after is None:
                    continue
                split = self._splits[after.split]
                blocks, examples = split.window(after.pass_number, after.window)
                mine = blocks if self._owned is None else self._owned(blocks)
                if self._memory.look_ahead(after, key, map(int, mine), examples, now_s):
                    tasks += [partial(self._read_ahead, number) for number in self._memory.to_read(after)]
        return tasks

    def _next(self, key: WindowKey) -> WindowKey | None:
        """Returns the next window that has any examples; passes by weight may draw none of one."""
        split = self._splits[key.split]
        for _ in range(split.windows(key.pass_number)):
            key = key._replace(window=key.window + 1)
            if key.window == split.windows(key.pass_number):
                if key.pass_number == FILE_ORDER:
                    return None
                key = key._replace(pass_number=key.pass_number + 1, window=0)
            if split.window(key.pass_number, key.window)[1]:
                return key
        return None

    def _read_ahead(self, number: int) -> None:
        with self._changed:
            claim = self._memory.claim(number, pin=False)
        if claim != "read":
            return
        try:
            self._read(number, pin=False)
        except AdamctlError as error:
            _log.debug("block %d was not read ahead: %s", number, error)  # whoever needs it is told

    def _read(self, number: int, *, pin: bool) -> None:
        """Reads a block that was claimed."""
        split = list(self._splits.values())[self._split_of[number]]
        place = number - int(split.numbers[0])
        start, length = int(split.starts[place]), int(split.lengths[place])
        per_frame = self._frames.examples
        try:
            with self._changed:
                frames = np.array(self._memory.frames(number), np.int64)
            first = int(frames[0]) * per_frame
            side_by_side = bool((np.diff(frames) == 1).all())
            values = (
                self._values[first : first + length]
                if side_by_side
                else np.empty((length, self._elements), self._values.dtype)
            )
            self._load(split.file_split, np.arange(start, start + length, dtype=np.int64), values)
            if not side_by_side:
                rows = np.repeat(frames * per_frame, per_frame)[:length] + np.arange(length) % per_frame
                self._values[rows] = values
            self._table[self._firsts[number] : self._firsts[number] + len(frames)] = frames
        except BaseException:
            with self._changed:
                self._memory.failed(number)
                self._changed.notify_all()
            raise
        with self._changed:
            self._memory.filled(number, pin=pin)
            self._changed.notify_all()

    def _load(self, split: FileSplit, indices: Indices, out: NDArray[Any]) -> None:
        """Raises DamagedDataError: an example cannot be decoded, or is not finite."""
        self._source.load(split, indices, out.reshape(len(indices), *self._source.example_shape))
        if self._source.dtype.kind == "f":
            check_finite(out, indices, f"{self._source.origin}: {split}")
        with self._changed:
            self.loaded_examples += len(indices)
