"""Native functions that stop where they would wait, and go on."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from adamctl.kernels import native, segments
from adamctl.kernels.backend import compiled
from adamctl.kernels.segments import Post, Segment, Wake, Words, compile_segments, count_sleeper
from tests.kernels.kernel_checks import BACKENDS

pytestmark = pytest.mark.skipif("numba" not in BACKENDS or not native.can_compile(), reason="no compiler here")

ROUNDS = 300


def words(count: int) -> list[Words]:
    return list(np.zeros((count, 8), np.int64)[:, :1])


def row(flight: int, spins: int = 0, *addresses: int) -> np.ndarray:
    return np.array([flight, spins, *addresses], np.int64)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        os.close(end)


def adding(target: np.ndarray, bias: np.ndarray) -> native.NativeCall:
    return native.NativeCall(compiled("elementwise").add_bias, (target, bias, 0))


def test_a_segment_is_run_when_its_words_have_come() -> None:
    first, second, done = words(3)
    total, one = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
    advance = compile_segments(
        [Segment((), [adding(total, one)]), Segment((first, second), [adding(total, one), Post(done)])]
    )
    table = row(1)
    assert advance(address(table), 0) == 1
    assert (total == 1).all()
    first[0] = 1
    assert advance(address(table), 1) == 1, "one of two"
    second[0] = 1
    assert advance(address(table), 1) == 2
    assert (total == 2).all() and done[0] == 1


def test_what_came_early_is_kept_and_nothing_is_reset() -> None:
    (word,) = words(1)
    total, one = np.zeros((1, 2), np.float32), np.ones(2, np.float32)
    advance = compile_segments([Segment((word,), [adding(total, one)])])
    word[0] = 5
    for flight in range(1, 6):
        table = row(flight)
        assert advance(address(table), 0) == 1
    table = row(6, spins=3)
    assert advance(address(table), 0) == 0
    assert (total == 5).all()


def test_arguments_may_lie_anywhere() -> None:
    stand_in, one = np.zeros((2, 2), np.float32), np.ones(2, np.float32)
    advance = compile_segments([Segment((), [adding(stand_in, one)])], {segments.FIRST_FREE_WORD: stand_in})
    other = np.full((2, 2), 3, np.float32)
    table = row(1, 0, address(other))
    assert advance(address(table), 0) == 1
    assert (other == 4).all() and not stand_in.any()


def test_a_check_that_fails_ends_the_function_before_the_next_segment() -> None:
    (done,) = words(1)
    check = native.NativeCheck(native.Word(segments.FIRST_FREE_WORD))
    advance = compile_segments([Segment((), []), Segment((), [check, Post(done)])])
    table = row(1, 0, -1)
    assert advance(address(table), 0) == native.REFUSED
    assert not done[0]
    table[segments.FIRST_FREE_WORD] = 0
    assert advance(address(table), 0) == 2
    assert done[0] == 1


def test_only_those_who_sleep_are_woken(pipe: tuple[int, int]) -> None:
    done, sleepers = words(2)
    advance = compile_segments([Segment((), [Post(done, (Wake(sleepers, pipe[1]),))])])
    table = row(1)
    assert advance(address(table), 0) == 1
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)
    count_sleeper(sleepers, 1)
    count_sleeper(sleepers, 1)
    assert advance(address(table), 0) == 1
    assert len(os.read(pipe[0], 8)) == 1, "a byte for each word"
    count_sleeper(sleepers, -2)
    assert sleepers[0] == 0


def test_two_threads_that_wait_for_each_other_never_miss_a_wake() -> None:
    """They sleep without a limit: a wake that is missed would hang here."""
    posted, sleepers = words(2), words(2)
    pipes = [os.pipe() for _ in range(2)]
    counts = [np.zeros((1, 1), np.float32) for _ in range(2)]
    one = np.ones(1, np.float32)
    woken = [Wake(sleepers[side], pipes[side][1]) for side in range(2)]
    advances = [
        compile_segments(
            [Segment((), [Post(posted[0], (woken[1],))]), Segment((posted[1],), [adding(counts[0], one)])]
        ),
        compile_segments([Segment((posted[0],), [adding(counts[1], one), Post(posted[1], (woken[0],))])]),
    ]
    ends = 2, 1

    def run(side: int) -> None:
        for flight in range(1, ROUNDS + 1):
            table, segment = row(flight, spins=flight % 3), 0
            while (segment := advances[side](address(table), segment)) < ends[side]:
                count_sleeper(sleepers[side], 1)
                reached = advances[side](address(table), segment)
                if reached == segment:
                    select.select([pipes[side][0]], [], [])
                    os.read(pipes[side][0], 64)
                segment = reached
                count_sleeper(sleepers[side], -1)
                if segment == ends[side]:
                    break

    threads = [threading.Thread(target=run, args=(side,), daemon=True) for side in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert counts[0][0, 0] == counts[1][0, 0] == ROUNDS
    for ends_of_pipe in pipes:
        for end in ends_of_pipe:
            os.close(end)
