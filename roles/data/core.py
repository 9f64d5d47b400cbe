"""The decisions of data servers that need no file: order, splits, ranges, memory, what to prepare ahead.

Everything here is a pure function or a small state machine, so that any number of data servers agree on the position of
every example in a pass without communication.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence, Set
from itertools import pairwise
from typing import Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.config.neighbours import data_for_neighbours
from adamctl.kernels.numeric.mix import KEY_STEP, scrambled

FILE_ORDER: Final = -1  # pass number: in the order of the files
SKIPPED: Final = -1
"""The label of an example that is damaged and left out (`data.on_error = "skip"`); its values are zero."""
STILL_OPENING: Final = "opening"
"""In the details of NOT_READY: the server is opening the data set, and will be for longer than the asker waits."""
PROCESS_BYTES: Final = 8
"""At the beginning of what a server says of a set's files: which process says so. The rest is their state."""
_ORDER_STREAM: Final = 0x4441_5441 << 32  # "DATA": keeps these Philox streams apart from those of initial weights
VALIDATION_STREAM: Final = 0x5641_4C49 << 32  # "VALI"
_TRANSLATION_STREAM: Final = 0x5452_414E << 32  # "TRAN"

Split = Literal["train", "validation", "test"]
Indices = NDArray[np.int64]
Shifts = NDArray[np.int64]
"""[n, 2]: how many pixels each image is moved down and to the right."""


class Range(NamedTuple):
    """Examples [start, stop) of a split in the order of a pass."""

    split: str
    pass_number: int
    start: int
    stop: int


# --- identity and order ---------------------------------------------------------------------------------------------


def dataset_identity(config: DataConfig, input_shape: Sequence[int], seed: int) -> str:
    """Returns the name of a data set in reads: 32 hex digits, equal on all servers for the same request."""
    material = msgspec.msgpack.encode([data_for_neighbours(config), list(input_shape), seed])
    return hashlib.blake2b(material, digest_size=16).hexdigest()


def files_changed(before: bytes, now: bytes) -> bool:
    """Whether a data server has opened other files since: never known of another process, which may be elsewhere."""
    return before != now and before[:PROCESS_BYTES] == now[:PROCESS_BYTES]


def split_validation(examples: int, share: float, seed: int) -> tuple[Indices, Indices]:
    """Returns (training, validation): disjoint ascending file indices that together are all training examples."""
    held_out = round(examples * share)
    drawn = permutation(examples, seed, VALIDATION_STREAM)
    return np.sort(drawn[held_out:]), np.sort(drawn[:held_out])


def pass_order(examples: int, seed: int, pass_number: int) -> Indices:
    """Returns the order in which a pass visits `examples` examples; FILE_ORDER gives 0, 1, 2, ...

    A fresh random order each pass, the same on every server for the same (seed, pass).
    """
    if pass_number == FILE_ORDER:
        return np.arange(examples, dtype=np.int64)
    return permutation(examples, seed, _ORDER_STREAM ^ pass_number)


def permutation(examples: int, seed: int, stream: int, part: int = 0) -> Indices:
    """Returns 0 .. examples - 1 in a random order, [examples]; each (seed, stream, part) has one of its own.

    Sorts random keys: the raw output of Philox never changes between numpy versions, `Generator.permutation` may.
    """
    return np.argsort(random_bits(seed, stream, examples, part), kind="stable").astype(np.int64, copy=False)


def random_bits(seed: int, stream: int, count: int, part: int = 0) -> NDArray[np.uint64]:
    """Returns numbers of a stream, [count]; `part` is the second word of the counter: 2^66 numbers lie between two."""
    key = np.array([seed & (2**64 - 1), stream & (2**64 - 1)], np.uint64)
    counter = np.array([0, part, 0, 0], np.uint64)
    return np.random.Philox(counter=counter, key=key).random_raw(count).astype(np.uint64, copy=False)


# --- transformations ------------------------------------------------------------------------------------------------


def translation_problem(pixels: int, shape: Sequence[int]) -> str | None:
    """Returns why examples of this shape cannot be translated by up to `pixels`, or None if they can."""
    if pixels == 0:
        return None
    if len(shape) != 3:
        return f"it moves images, and the examples are {list(shape)}: set model.input = [height, width, channels]"
    if not 0 < 2 * pixels < min(shape[:2]):
        return f"expected at least 0 and less than half of the images' height and width, {shape[0]} x {shape[1]}"
    return None


def translations(indices: Indices, seed: int, pass_number: int, pixels: int) -> Shifts:
    """Returns how far each image is moved in a pass: whole numbers, uniform in -pixels .. pixels, [n, 2].

    Depends only on the arguments: counter-based, like splitmix64 (Steele, Lea, Flood 2014, fig. 15), with an example's
    file index as the counter and the state drawn from (seed, pass).
    """
    start = random_bits(seed, _TRANSLATION_STREAM ^ pass_number, 1)
    mixed = scrambled(start + indices.astype(np.uint64) * np.uint64(KEY_STEP))
    halves = np.stack((mixed >> np.uint64(32), mixed & np.uint64(0xFFFF_FFFF)), axis=1)
    drawn: Shifts = (halves * np.uint64(2 * pixels + 1) >> np.uint64(32)).astype(np.int64)
    return drawn - pixels


# --- ranges ---------------------------------------------------------------------------------------------------------


def range_problem(asked: Range, examples: dict[str, int], examples_per_read_max: int) -> str | None:
    """Returns why a range cannot be read, or None if it can."""
    if asked.split not in examples:
        return f"expected one of the splits {', '.join(examples)}, found {asked.split!r}"
    count = examples[asked.split]
    if asked.pass_number < FILE_ORDER:
        return f"expected a pass number >= {FILE_ORDER}, found {asked.pass_number}"
    if not 0 <= asked.start < asked.stop <= count:
        return (
            f"expected 0 <= start < stop <= {count}, the examples of {asked.split!r}, "
            f"found start {asked.start} and stop {asked.stop}"
        )
    asked_for = asked.stop - asked.start
    if asked_for > examples_per_read_max:
        return f"expected at most {examples_per_read_max} examples in one read, found {asked_for}: read it in parts"
    return None


# --- memory ---------------------------------------------------------------------------------------------------------


class CachePlan(NamedTuple):
    """What to keep in memory of one file split: examples as the source has them, bytes as bytes.

    `all`: every example. `part`: the first `examples` to be decoded (each is needed once per pass in random order, so
    it does not matter which ones stay, and never replacing any gives the most hits). `none`: there is no room, or the
    source itself holds its values in memory.
    """

    form: Literal["all", "part", "none"]
    examples: int
    size_bytes: int


def plan_cache(examples: int, example_bytes: int, *, resident: bool, budget_bytes: int) -> CachePlan:
    """Decides what to keep of `examples` examples within `budget_bytes`.

    `resident`: the source already holds them in memory.
    """
    kept = min(examples, max(budget_bytes, 0) // example_bytes)
    if resident or kept == 0:
        return CachePlan("none", 0, 0)
    return CachePlan("all" if kept == examples else "part", kept, kept * example_bytes)


class Holder(NamedTuple):
    """An open data set, the memory it holds, and how long it has not been read."""

    dataset: str
    size_bytes: int
    idle_s: float


def datasets_to_close(holders: Sequence[Holder], wanted_bytes: int, budget_bytes: int, idle_s_min: float) -> list[str]:
    """Returns idle data sets, least recently used first, to close so that `wanted_bytes` more fit.

    A data set that was read less than `idle_s_min` ago is never closed for another one. Closing is harmless: a client
    that comes back gets UNKNOWN_DATASET and opens it again.
    """
    missing = sum(holder.size_bytes for holder in holders) + wanted_bytes - budget_bytes
    closed = []
    for holder in sorted(holders, key=lambda holder: -holder.idle_s):
        if missing <= 0 or holder.idle_s < idle_s_min:
            break
        closed.append(holder.dataset)
        missing -= holder.size_bytes
    return closed


# --- what to prepare ahead ------------------------------------------------------------------------------------------


class _Stream:
    """The requests for one split in one pass: recent starts (at most `RECENT`), and the lowest and highest of all."""

    RECENT: Final = 16

    def __init__(self, start: int) -> None:
        self.starts: OrderedDict[int, None] = OrderedDict()
        self.lowest = self.highest = start

    def add(self, start: int) -> None:
        self.starts[start] = None
        self.starts.move_to_end(start)
        if len(self.starts) > self.RECENT:
            self.starts.popitem(last=False)
        self.lowest = min(self.lowest, start)
        self.highest = max(self.highest, start)

    def stride(self, length: int) -> int:
        """The distance between neighbouring ranges: their length, or more if other servers read those in between."""
        ordered = sorted(self.starts)
        gaps = [after - before for before, after in pairwise(ordered)]
        return max(min(gaps, default=length), length)


class AheadPlanner:
    """Predicts the next ranges after each request.

    Several workers request ranges in roughly the order of the pass, and several servers share a pass range by range. So
    the next ranges are the highest start seen plus multiples of the smallest distance seen; past the end, the next pass
    begins.
    """

    STREAMS: Final = 64

    def __init__(self, depth: int) -> None:
        """`depth` is how many ranges are kept ahead."""
        self.depth = depth
        self._streams: OrderedDict[tuple[str, str, int], _Stream] = OrderedDict()

    def asked(self, dataset: str, asked: Range, examples: int) -> list[Range]:
        """Notes a read and returns the ranges to prepare, next one first; `examples` is the size of the split."""
        key = (dataset, asked.split, asked.pass_number)
        stream = self._streams.setdefault(key, _Stream(asked.start))
        self._streams.move_to_end(key)
        if len(self._streams) > self.STREAMS:
            self._streams.popitem(last=False)
        stream.add(asked.start)
        length = asked.stop - asked.start
        if asked.stop == examples and asked.start in stream.starts and len(stream.starts) > 1:
            length = max(length, min(stream.stride(1), examples))  # the last range of a pass may be a short one
        stride = stream.stride(length)
        ahead: list[Range] = []
        start, pass_number = stream.highest + stride, asked.pass_number
        while len(ahead) < self.depth:
            if start >= examples:
                if asked.pass_number == FILE_ORDER or pass_number > asked.pass_number:
                    break
                start, pass_number = stream.lowest, pass_number + 1
            ahead.append(Range(asked.split, pass_number, start, min(start + length, examples)))
            start += stride
        return ahead

    def forget(self, dataset: str) -> None:
        """Drops everything noted about a data set."""
        for key in [key for key in self._streams if key[0] == dataset]:
            del self._streams[key]


KeyT = TypeVar("KeyT", bound=Hashable)


class Ledger(Generic[KeyT]):
    """Accounts for prepared ranges within a bound in bytes; drops the least recently used ones first.

    Invariant: `used_bytes` is the sum of all booked sizes, and <= `bytes_max`.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._sizes: OrderedDict[KeyT, int] = OrderedDict()

    def __contains__(self, key: KeyT) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def admit(self, key: KeyT, size_bytes: int, keep: Set[KeyT] = frozenset()) -> list[KeyT] | None:
        """Books a new key and returns the keys dropped for it; None (no change) if that would drop one of `keep`."""
        self.remove(key)
        dropped = []
        missing = self.used_bytes + size_bytes - self.bytes_max
        for old, old_bytes in self._sizes.items():
            if missing <= 0 or old in keep:
                break
            dropped.append(old)
            missing -= old_bytes
        if missing > 0:
            return None
        for old in dropped:
            self.remove(old)
        self._sizes[key] = size_bytes
        self.used_bytes += size_bytes
        return dropped

    def touch(self, key: KeyT) -> None:
        """Marks a key as recently used."""
        self._sizes.move_to_end(key)

    def remove(self, key: KeyT) -> None:
        self.used_bytes -= self._sizes.pop(key, 0)
