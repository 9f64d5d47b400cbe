"""Which blocks of a set larger than memory are held, read and dropped: decisions without files, threads or clocks.

A window of a pass (`block_order`) is what is served: all its blocks are in memory at once, and each is read once. So a
window is admitted as a whole, with room for every block, or not at all; one that is not admitted is read from the
files, example by example, and nothing that others hold is lost for it. Beside the windows, as many blocks are kept from
pass to pass as there is room for: the first that come, never replaced, since each is needed once a pass.

Memory is counted in frames, some examples each, so that blocks of any lengths share it without gaps.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.core import Indices

IDLE_S: Final = 10.0
"""A window that nobody has read for so long gives way to one that is needed."""
_REMEMBERED: Final = 64  # windows that were served or refused
_LATE_READS_MAX: Final = 4  # of a window that was served and dropped, before it is admitted again
_ABSENT, _READING, _HELD = 0, 1, 2

Claim = Literal["held", "read", "wait", "direct"]
"""What a reader does about a block: use it; read it into its frames; wait for who reads it; take its examples alone."""


class WindowKey(NamedTuple):
    """A window of one pass over one split."""

    split: str
    pass_number: int
    window: int


@dataclass(eq=False)
class _Window:
    """`unserved` of its examples were not served yet, those where `served` is False. `begun`: some were."""

    blocks: tuple[int, ...]
    served: NDArray[np.bool_]
    unserved: int
    used_s: float
    used_tick: int
    begun: bool = False
    followed: bool = False  # the next one was admitted too


@dataclass
class _Block:
    """What is known of a block that is in memory or promised room. `windows`: how many admitted ones have it."""

    frames: list[int] = field(default_factory=list)
    state: int = _ABSENT
    windows: int = 0
    pins: int = 0
    kept: bool = False

    @property
    def idle(self) -> bool:
        return not (self.windows or self.pins or self.kept or self.state == _READING)


class WindowMemory:
    """The blocks of one data set in a bounded number of frames. Not thread-safe.

    Invariant: blocks that are held, being read, kept, or promised to an admitted window need at most `frames_max`.
    """

    def __init__(
        self, frames_of: Sequence[int] | Indices, frames_max: int, window_frames_max: int, *, sequential: bool = False
    ) -> None:
        """
        Args:
            frames_of: [B], how many frames each block needs.
            window_frames_max: what the largest window needs; room for two of them is not given to kept blocks.
            sequential: examples alone cost as much to read as their whole blocks.
        """
        self.frames_of: Indices = np.array(frames_of, np.int64)
        self.frames_max = frames_max
        self.promised_frames = 0
        self.kept_frames = 0
        whole = int(self.frames_of.sum())
        self._kept_frames_max = whole if whole <= frames_max else max(0, frames_max - 2 * window_frames_max)
        self._sequential = sequential
        self._blocks: dict[int, _Block] = {}
        self._windows: dict[WindowKey, _Window] = {}
        self._late: OrderedDict[WindowKey, int] = OrderedDict()  # reads of windows that were served
        self._refused: OrderedDict[WindowKey, float] = OrderedDict()  # when they were last asked for
        self._again: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)  # passes over a split that several readers make
        self._free: dict[int, list[list[int]]] = {}  # groups of frames by their number, as they were given back
        self._fresh = 0  # frames from here on were never used
        self._tick = 0  # examples served so far

    # --- windows ----------------------------------------------------------------------------------------------------

    def enter(self, key: WindowKey, blocks: Iterable[int], examples: int, now_s: float) -> bool:
        """Admits a window that is read now; returns whether its blocks have room.

        `blocks` are those that this server reads of the window's; an admitted window takes on more if there is room.
        """
        wanted = tuple(blocks)
        window = self._windows.get(key)
        if window is not None:
            new = tuple(block for block in wanted if block not in window.blocks)
            if new and self._make_room(new, now_s, keep=key):
                self._promise(new)
                window.blocks += new
        elif self._stays_direct(key, now_s):
            return False
        elif self._make_room(wanted, now_s):
            window = self._admit(key, wanted, examples, now_s)
        else:
            _remember(self._refused, key, now_s)
            return False
        window.begun = True
        window.used_s, window.used_tick = now_s, self._tick
        return True

    def look_ahead(self, key: WindowKey, after: WindowKey, blocks: Iterable[int], examples: int, now_s: float) -> bool:
        """Admits the window that follows `after` before it is asked for, where nobody else needs the room."""
        current = self._windows.get(after)
        if current is None:
            return False
        if key not in self._windows:
            wanted = tuple(blocks)
            waiting = any(now_s - asked_s < IDLE_S for asked_s in self._refused.values())
            if waiting or not self._make_room(wanted, now_s, keep=after, for_need=False):
                return False
            self._admit(key, wanted, examples, now_s)
        current.followed = True
        return True

    def unfollowed(self) -> list[WindowKey]:
        """Returns the windows being served whose next ones were not admitted yet."""
        return [key for key, window in self._windows.items() if window.begun and not window.followed]

    def to_read(self, key: WindowKey) -> list[int]:
        """Returns the blocks of a window that nobody has read or begun to read, in the order of the files."""
        window = self._windows.get(key)
        blocks = () if window is None else window.blocks
        return sorted(block for block in blocks if self._blocks[block].state == _ABSENT)

    def served(self, key: WindowKey, start: int, stop: int, now_s: float) -> None:
        """Notes that examples [start, stop) of a window were served; one that was served whole is dropped."""
        self._tick += stop - start
        window = self._windows.get(key)
        if window is None:
            return
        window.used_s, window.used_tick = now_s, self._tick
        window.unserved -= (stop - start) - int(np.count_nonzero(window.served[start:stop]))
        window.served[start:stop] = True
        if not window.unserved:
            self._drop(key, keep=True)
            _remember(self._late, key, 0)

    @property
    def windows(self) -> list[WindowKey]:
        """Those admitted."""
        return list(self._windows)

    def _stays_direct(self, key: WindowKey, now_s: float) -> bool:
        """Whether a window without room goes on so: to read all of it for the few examples left would cost more."""
        if self._sequential:
            return False
        if key in self._late and (key.split, key.pass_number) not in self._again:
            self._late[key] += 1
            if self._late[key] <= _LATE_READS_MAX:
                return True
            self._again.append((key.split, key.pass_number))
        if key in self._refused and now_s - self._refused[key] < IDLE_S:
            self._refused[key] = now_s
            return True
        return False

    def _admit(self, key: WindowKey, blocks: tuple[int, ...], examples: int, now_s: float) -> _Window:
        self._promise(blocks)
        self._late.pop(key, None)
        self._refused.pop(key, None)
        window = _Window(blocks, np.zeros(examples, np.bool_), examples, now_s, self._tick)
        self._windows[key] = window
        return window

    def _promise(self, blocks: Iterable[int]) -> None:
        for number in blocks:
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = _Block()
                self.promised_frames += int(self.frames_of[number])
            block.windows += 1

    def _drop(self, key: WindowKey, *, keep: bool) -> None:
        """Ends a window; with `keep`, its blocks are kept as far as there is room for that."""
        for number in self._windows.pop(key).blocks:
            block = self._blocks[number]
            block.windows -= 1
            needed = int(self.frames_of[number])
            if keep and block.state == _HELD and not block.kept and self.kept_frames + needed <= self._kept_frames_max:
                block.kept = True
                self.kept_frames += needed
            self._let_go(number, block)

    def _make_room(
        self, blocks: Iterable[int], now_s: float, keep: WindowKey | None = None, *, for_need: bool = True
    ) -> bool:
        """Drops windows, those that nobody waits for first, until blocks fit; none if that would not suffice."""
        wanted = set(blocks)
        over = self._over(wanted)
        if over <= 0:
            return True
        candidates = self._dropped_first(now_s, keep, for_need)
        if sum(self._freed(wanted, candidates)) < over:
            return False
        for key in candidates:
            self._drop(key, keep=False)
            if self._over(wanted) <= 0:
                return True
        return False

    def _over(self, wanted: set[int]) -> int:
        """Returns how many frames too many there would be if all of these blocks were promised room."""
        new = sum(int(self.frames_of[number]) for number in wanted if number not in self._blocks)
        return self.promised_frames + new - self.frames_max

    def _dropped_first(self, now_s: float, keep: WindowKey | None, for_need: bool) -> list[WindowKey]:
        """Windows read ahead of which nothing was read yet, then those that nobody goes on with."""
        unread, stale = [], []
        for key, window in self._windows.items():
            if key == keep:
                continue
            after = self._tick - window.used_tick  # examples served since it was last read
            if for_need and not window.begun and all(self._blocks[one].state == _ABSENT for one in window.blocks):
                unread.append(key)
            elif now_s - window.used_s >= IDLE_S or (window.begun and after >= window.served.size):
                stale.append(key)
        return unread + sorted(stale, key=lambda key: self._windows[key].used_tick)

    def _freed(self, wanted: set[int], dropped: Sequence[WindowKey]) -> Iterator[int]:
        """Yields the frames of each block that is free for sure once these windows are gone."""
        users = Counter(number for key in dropped for number in self._windows[key].blocks)
        for number, count in users.items():
            block = self._blocks[number]
            busy = block.pins or block.kept or block.state == _READING or number in wanted
            if not busy and count == block.windows:
                yield int(self.frames_of[number])

    # --- blocks -----------------------------------------------------------------------------------------------------

    def claim(self, number: int, *, pin: bool = True) -> Claim:
        """Returns what a reader of a block does: `held` (now pinned, if asked), `read`, `wait` or `direct`.

        After `read` the caller fills the block's frames and calls `filled` or `failed`.
        """
        block = self._blocks.get(number)
        if block is None or (block.state == _ABSENT and not block.windows):
            return "direct"
        if block.state == _HELD:
            block.pins += pin
            return "held"
        if block.state == _READING:
            return "wait"
        block.state = _READING
        block.frames = self._take(int(self.frames_of[number]))
        return "read"

    def pin(self, number: int) -> bool:
        """Pins a block if it is there; returns whether it is."""
        block = self._blocks.get(number)
        if block is None or block.state != _HELD:
            return False
        block.pins += 1
        return True

    def frames(self, number: int) -> list[int]:
        """Returns the frames of a block that is held or being read, in the order of its examples."""
        return self._blocks[number].frames

    def filled(self, number: int, *, pin: bool = True) -> None:
        """Notes that a claimed block was read."""
        block = self._blocks[number]
        block.state = _HELD
        block.pins += pin
        self._let_go(number, block)

    def failed(self, number: int) -> None:
        """Notes that a claimed block could not be read; whoever needs it next tries again."""
        block = self._blocks[number]
        block.state = _ABSENT
        self._give_back(block)
        self._let_go(number, block)

    def unpin(self, numbers: Iterable[int]) -> None:
        """Ends the use of blocks that were pinned."""
        for number in numbers:
            block = self._blocks[number]
            block.pins -= 1
            self._let_go(number, block)

    @property
    def used_frames(self) -> int:
        """Frames of blocks that are held or being read."""
        return sum(len(block.frames) for block in self._blocks.values())

    def _let_go(self, number: int, block: _Block) -> None:
        if block.idle:
            self._give_back(block)
            self.promised_frames -= int(self.frames_of[number])
            del self._blocks[number]

    # --- frames -----------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> list[int]:
        """Returns free frames, side by side where it can: a group of that size, or new ones, else any."""
        if group := self._free.get(count):
            return group.pop()
        fresh = min(count, self.frames_max - self._fresh)
        if fresh == count:
            self._fresh += count
            return list(range(self._fresh - count, self._fresh))
        taken: list[int] = []
        for size in sorted(self._free, reverse=True):
            while self._free[size] and len(taken) < count:
                taken += self._free[size].pop()
        if len(taken) < count:
            more = count - len(taken)
            taken += range(self._fresh, self._fresh + more)
            self._fresh += more
        if rest := taken[count:]:
            self._free.setdefault(len(rest), []).append(rest)
        return taken[:count]

    def _give_back(self, block: _Block) -> None:
        if block.frames:
            self._free.setdefault(len(block.frames), []).append(block.frames)
            block.frames = []


def _remember(noted: OrderedDict[WindowKey, int] | OrderedDict[WindowKey, float], key: WindowKey, value: float) -> None:
    noted[key] = value  # type: ignore[assignment]
    noted.move_to_end(key)
    if len(noted) > _REMEMBERED:
        noted.popitem(last=False)
