"""A flight's steps, natively and by Python, with waits between them."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

from adamctl.kernels.backend import compiled
from adamctl.kernels.native import Call, NativeCall, can_compile
from adamctl.kernels.partition.program import Batch, Program, Row, Step, address_of, post_by_python
from adamctl.kernels.segments import Post, Wake
from tests.kernels.kernel_checks import BACKENDS

BATCH = Batch(np.zeros((2, 3), np.float32), np.zeros(2, np.int32))
KEY = np.zeros(2, np.uint32)
NATIVE = [False, True] if "numba" in BACKENDS and can_compile() else [False]


def words(count: int) -> list[np.ndarray]:
    return list(np.zeros((count, 8), np.int64)[:, :1])


@pytest.mark.parametrize("native", NATIVE)
def test_a_flight_stops_where_a_word_has_not_come_and_goes_on_there(native: bool) -> None:
    came, done = words(2)
    total, one = np.zeros((1, 2), np.float32), np.ones(2, np.float32)

    def work(batch: Batch, row: Row) -> None:
        nonlocal total
        total += 1

    calls: list[Call] | None = [NativeCall(compiled("elementwise").add_bias, (total, one, 0))] if native else None
    program = Program([Step((), calls, work), Step((came,), calls, work, [Post(done)])], {}, native, KEY)
    assert program.is_native == native
    for flight in (3, 4):
        program.begin(flight, BATCH)
        assert not program.awaited
        assert not program.advance(spins=2)
        assert not program.advance()
        assert [address_of(word) for word in program.awaited] == [address_of(came)]
        came[0] = flight
        assert not program.awaited
        assert program.advance() and program.advance()
        assert not program.awaited
        assert done[0] == flight
    assert (total == 4).all()


@pytest.mark.parametrize("native", NATIVE)
def test_python_stands_between_native_steps(native: bool) -> None:
    total, one = np.zeros((1, 2), np.float32), np.ones(2, np.float32)
    seen: list[float] = []
    calls: list[Call] | None = [NativeCall(compiled("elementwise").add_bias, (total, one, 0))] if native else None

    def add(batch: Batch, row: Row) -> None:
        total[...] += 1

    def look(batch: Batch, row: Row) -> None:
        seen.append(float(total[0, 0]))
        row.loss, row.correct = row.rate, row.place.slot

    program = Program([Step((), calls, add), Step((), None, look), Step((), calls, add)], {}, native, KEY)
    program.begin(1, BATCH, rate=0.5)
    assert program.advance()
    assert seen == [1] and total[0, 0] == 2
    assert program.found.loss == 0.5 and not program.is_native


def test_who_sleeps_is_woken_by_python_too() -> None:
    done, sleepers = words(2)
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    program = Program([Step((), None, lambda batch, row: None, [Post(done, (Wake(sleepers, write),))])], {}, False, KEY)
    program.begin(1, BATCH)
    assert program.advance()
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    sleepers[0] = 1
    program.begin(2, BATCH)
    assert program.advance()
    assert os.read(read, 8) == b"\0"
    os.close(read)
    os.close(write)


def test_a_sleeper_whose_process_has_ended_does_not_end_who_wakes_it() -> None:
    """The connections tell of its end, and the flight is given up then."""
    done, sleepers = words(2)
    own, gone = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sleepers[0] = 1
    gone.close()
    with own:
        post_by_python(Post(done, (Wake(sleepers, own.fileno()),)), 3)
    assert done[0] == 3
