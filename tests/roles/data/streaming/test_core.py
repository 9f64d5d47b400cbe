"""Blocks in bounded memory: each is read once a pass, several readers do not take it from one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.roles.data.streaming.core import IDLE_S, WindowKey, WindowMemory

BLOCK = 8  # examples of a block in these tests; each needs 2 frames


class Server:
    """A memory whose blocks are "read" by counting them; every range is served at once."""

    def __init__(self, blocks: int, frames_max: int, per_window: int = 4, *, sequential: bool = False) -> None:
        self.blocks, self.per_window = blocks, per_window
        self.memory = WindowMemory([2] * blocks, frames_max, 2 * per_window, sequential=sequential)
        self.windows = -(-blocks // per_window)
        self.read: Counter[int] = Counter()
        self.direct: Counter[int] = Counter()
        self.now_s = 0.0
        self.peak_frames = 0

    def of(self, key: WindowKey) -> list[int]:
        """Each pass has the blocks in an order of its own."""
        blocks = list(range(self.blocks))
        Random(key.pass_number).shuffle(blocks)
        return blocks[key.window * self.per_window :][: self.per_window]

    def serve(self, key: WindowKey, start: int, stop: int) -> None:
        blocks = self.of(key)
        self.memory.enter(key, blocks, BLOCK * len(blocks), self.now_s)
        held = []
        for block in blocks:
            claim = self.memory.claim(block)
            assert claim != "wait"
            if claim == "direct":
                self.direct[block] += 1
                continue
            if claim == "read":
                self.read[block] += 1
                self.memory.filled(block)
            held.append(block)
        self.check()
        self.memory.unpin(held)
        self.memory.served(key, start, stop, self.now_s)
        for after in self.memory.unfollowed():
            self.look_ahead(after)
        self.check()

    def look_ahead(self, key: WindowKey) -> None:
        window = (key.window + 1) % self.windows
        following = WindowKey(key.split, key.pass_number + (window == 0), window)
        blocks = self.of(following)
        if self.memory.look_ahead(following, key, blocks, BLOCK * len(blocks), self.now_s):
            for block in self.memory.to_read(following):
                assert self.memory.claim(block, pin=False) == "read"
                self.read[block] += 1
                self.memory.filled(block, pin=False)

    def a_pass(self, number: int, split: str = "train", step: int = 4) -> Iterator[None]:
        """Serves a pass range by range."""
        for window in range(self.windows):
            key = WindowKey(split, number, window)
            examples = BLOCK * len(self.of(key))
            for start in range(0, examples, step):
                self.serve(key, start, min(start + step, examples))
                yield

    def check(self) -> None:
        self.peak_frames = max(self.peak_frames, self.memory.used_frames)
        assert self.memory.used_frames <= self.memory.promised_frames <= self.memory.frames_max


def first_window(server: Server, number: int = 0) -> set[int]:
    return set(server.of(WindowKey("train", number, 0)))


def test_each_block_is_read_once_a_pass_in_memory_for_two_windows() -> None:
    server = Server(40, 16)
    for number in range(3):
        list(server.a_pass(number))
    ahead = first_window(server, 3)  # of the pass that would come next
    # One of a last window that is in the next first window too serves both.
    assert all(1 <= server.read[block] <= 3 + (block in ahead) for block in range(40))
    assert sum(server.read.values()) > 3 * 40 - 2 * 4
    assert not server.direct and server.peak_frames == 16


def test_blocks_that_fit_beside_two_windows_are_read_once_for_all_passes() -> None:
    server = Server(40, 16 + 20)
    for number in range(4):
        list(server.a_pass(number))
    once = [block for block in range(40) if server.read[block] == 1]
    assert len(once) == 10 == server.memory.kept_frames // 2
    assert all(server.read[block] in (1, 3, 4, 5) for block in range(40))


def test_a_set_that_fits_is_read_once() -> None:
    server = Server(40, 80)
    for number in range(3):
        list(server.a_pass(number))
    assert set(server.read.values()) == {1} and len(server.read) == 40


def test_memory_for_one_window_reads_nothing_ahead_and_nothing_twice() -> None:
    server = Server(40, 8)
    list(server.a_pass(0))
    assert server.read == Counter(range(40)) and not server.direct and server.peak_frames == 8


def test_without_memory_everything_is_read_from_the_files() -> None:
    server = Server(12, 7)
    list(server.a_pass(0))
    assert not server.read and server.peak_frames == 0 and len(server.direct) == 12


@pytest.mark.parametrize("passes", [(0, 0), (0, 1)])
@pytest.mark.parametrize("frames", [16, 24, 32])
def test_readers_at_different_positions_do_not_take_blocks_from_one_another(
    frames: int, passes: tuple[int, int]
) -> None:
    """Two jobs, half a pass apart, turn by turn; with room for a window each, both read each block once."""
    server = Server(80, frames)
    first, second = server.a_pass(passes[0]), server.a_pass(passes[1])
    list(zip(range(80), first, strict=False))
    for _ in second:
        next(first, None)
    list(first)
    # A window of each job may wait for room or be taken for a late range; it is then read example by example.
    assert len(server.direct) <= 2 * server.per_window
    assert sum(server.read.values()) <= 2 * 80 + 2 * server.per_window  # and one was read ahead for a pass to come
    assert server.peak_frames <= frames


def test_a_reader_without_room_leaves_the_windows_of_others_alone() -> None:
    server = Server(80, 8)
    first, second = server.a_pass(0), server.a_pass(5)
    next(first)
    for _ in range(7):
        next(second)
        assert server.memory.windows == [WindowKey("train", 0, 0)]
    assert server.read == Counter(first_window(server))
    assert set(server.direct) == first_window(server, 5) - first_window(server)
    list(first)
    assert set(server.read.values()) == {1}


def test_what_is_read_ahead_waits_for_a_reader_that_found_no_room() -> None:
    server = Server(80, 16)
    first, second = server.a_pass(0), server.a_pass(7)
    next(first)
    assert len(server.memory.windows) == 2  # served, and read ahead
    third = server.a_pass(9)
    list(zip(range(8), second, strict=False))  # its whole first window, read directly but for what is there
    for _ in range(8):
        next(first)
    next(second)
    assert {key.pass_number for key in server.memory.windows} == {0, 7}
    next(third)
    assert {key.pass_number for key in server.memory.windows} == {0, 7}


def test_a_window_that_nobody_reads_any_more_gives_way_after_a_while() -> None:
    server = Server(80, 8)
    next(server.a_pass(0))
    gone = server.memory.windows
    later = server.a_pass(3)
    server.now_s = IDLE_S / 2
    next(later)
    assert server.memory.windows == gone
    server.now_s = 2 * IDLE_S
    next(later)
    assert server.memory.windows == [WindowKey("train", 3, 0)]


def test_blocks_of_a_window_that_gives_way_are_not_kept_instead() -> None:
    """There is room for five windows, and to keep six blocks; five are being served when a sixth is asked for."""
    memory = WindowMemory([1] * 12, 10, 2)
    windows = [(WindowKey("train", 0, number), (2 * number, 2 * number + 1)) for number in range(6)]
    for key, blocks in windows[:5]:
        assert memory.enter(key, blocks, 16, 0.0)
        for block in blocks:
            assert memory.claim(block, pin=False) == "read"
            memory.filled(block, pin=False)
    for key, blocks in windows[1:]:
        assert memory.enter(key, blocks, 16, IDLE_S)
    assert memory.windows == [key for key, _ in windows[1:]] and memory.kept_frames == 0


def test_the_rest_of_a_window_gives_way_once_a_whole_one_was_served_after_it() -> None:
    """As when a worker ends with a part of a window in hand, or a pass visits only a share of the set."""
    server = Server(80, 16)
    for _ in zip(range(7), server.a_pass(0), strict=False):
        pass  # 28 of the window's 32 examples
    for window in range(1, 6):
        for start in range(0, 32, 4):
            server.serve(WindowKey("train", 0, window), start, start + 4)
    assert WindowKey("train", 0, 0) not in server.memory.windows
    assert set(server.read.values()) == {1} and not server.direct


def test_a_late_range_of_a_served_window_does_not_read_the_window_again() -> None:
    server = Server(80, 16)
    list(zip(range(9), server.a_pass(0), strict=False))
    before = Counter(server.read)
    server.serve(WindowKey("train", 0, 0), 4, 8)
    assert server.read == before and set(server.direct) == first_window(server)
    server.now_s = 2 * IDLE_S  # or nobody reads the others any more, and so there is room
    for start in (4, 8, 12, 16):
        server.serve(WindowKey("train", 0, 0), start, start + 4)  # somebody does visit it again
    assert WindowKey("train", 0, 0) in server.memory.windows


def test_a_late_range_of_a_sequential_source_reads_whole_blocks_once() -> None:
    server = Server(80, 16, sequential=True)
    list(zip(range(9), server.a_pass(0), strict=False))
    server.now_s = 2 * IDLE_S
    for start in (4, 8, 12):
        server.serve(WindowKey("train", 0, 0), start, start + 4)
    assert not server.direct and {server.read[block] for block in first_window(server)} == {2}


def test_a_range_served_twice_counts_once() -> None:
    server = Server(80, 16)
    for _ in range(12):
        server.serve(WindowKey("train", 0, 0), 0, 8)
    assert WindowKey("train", 0, 0) in server.memory.windows
    server.serve(WindowKey("train", 0, 0), 8, 32)
    assert WindowKey("train", 0, 0) not in server.memory.windows


def test_a_block_that_could_not_be_read_is_tried_again() -> None:
    memory = WindowMemory([2, 2], 4, 4)
    key = WindowKey("train", 0, 0)
    assert memory.enter(key, [0, 1], 16, 0.0)
    assert memory.claim(0) == "read"
    assert memory.claim(0) == "wait"
    memory.failed(0)
    assert memory.used_frames == 0 and memory.to_read(key) == [0, 1]
    assert memory.claim(0) == "read"
    memory.filled(0)
    assert memory.claim(0) == "held"


def test_a_window_dropped_while_its_block_is_read_frees_it_afterwards() -> None:
    memory = WindowMemory([2, 2], 2, 2)
    key = WindowKey("train", 0, 0)
    assert memory.enter(key, [0], 8, 0.0) and memory.claim(0) == "read"
    memory.served(key, 0, 8, 0.0)
    assert memory.windows == [] and memory.used_frames == 2
    assert not memory.enter(WindowKey("train", 0, 1), [1], 8, 0.0)
    memory.filled(0)
    memory.unpin([0])
    assert memory.used_frames == memory.promised_frames == 0


def test_blocks_of_a_server_that_died_are_taken_on() -> None:
    memory = WindowMemory([2, 2, 2], 4, 6)
    key = WindowKey("train", 0, 0)
    assert memory.enter(key, [1], 24, 0.0) and memory.to_read(key) == [1]
    assert memory.enter(key, [0, 1], 24, 0.0) and memory.to_read(key) == [0, 1]
    assert memory.enter(key, [0, 1, 2], 24, 0.0) and memory.to_read(key) == [0, 1]  # no room for the third
    assert memory.claim(2) == "direct"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(0, 30), st.integers())
def test_frames_are_never_shared_and_never_too_many(sizes: list[int], frames_max: int, seed: int) -> None:
    """Whatever is asked in whatever order: blocks of any sizes, windows of any blocks, reads that fail."""
    memory = WindowMemory(sizes, frames_max, 5)
    random = Random(seed)
    held: Counter[int] = Counter()
    reading: set[int] = set()
    now_s = 0.0
    for _ in range(80):
        now_s += random.choice((0.0, 0.1, 30.0))
        window = random.randrange(4)
        blocks = [number for number in range(len(sizes)) if number % 4 == window]
        key = WindowKey("train", random.randrange(2), window)
        what = random.randrange(6)
        number = random.randrange(len(sizes))
        if what == 0 and blocks:
            memory.enter(key, blocks, 8 * len(blocks), now_s)
        elif what == 1 and blocks:
            after = key._replace(window=(window + 1) % 4)
            memory.look_ahead(after, key, [one for one in range(len(sizes)) if one % 4 == after.window], 8, now_s)
        elif what == 2 and blocks:
            memory.served(key, 0, random.randrange(1, 8), now_s)
        elif what == 3:
            claim = memory.claim(number)
            assert (claim == "wait") == (number in reading) and (claim == "held" or not held[number])
            if claim == "held":
                held[number] += 1
            elif claim == "read":
                reading.add(number)
        elif what == 4 and number in reading:
            reading.discard(number)
            if random.random() < 0.3:
                memory.failed(number)
            else:
                memory.filled(number)
                held[number] += 1
        elif what == 5 and held[number]:
            held[number] -= 1
            memory.unpin([number])
        used = [frame for one in range(len(sizes)) if held[one] or one in reading for frame in memory.frames(one)]
        assert len(used) == len(set(used)) and all(0 <= frame < frames_max for frame in used)
        assert all(len(memory.frames(one)) == sizes[one] for one in reading)
        assert memory.used_frames <= memory.promised_frames <= frames_max
