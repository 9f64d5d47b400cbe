"""Threads of several partitions train together, each asleep while it has nothing to do."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from adamctl.errors import CustomError, RunFailedError
from adamctl.kernels import segments
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.program import Batch, Program
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, StageCut, cut_network
from adamctl.roles.worker.core.open_flights import DONE, SERVERS, who_hangs
from adamctl.roles.worker.partition.sleeping import NAMELESS, Sleeping, Waker, unique_name
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import BATCH, IMAGES, ROWS_AND_UNITS, UNEVEN, small_integers

FLIGHTS = 12
WAIT_S = 60.0


class Partitions:
    """The threads of all partitions of a replica, in one process."""

    def __init__(self, network: CutNetwork, flights: int, threads: int, weights: list[Array]) -> None:
        count = network.partitions
        layouts = [SharedLayout(network, number, BATCH, flights) for number in range(count)]
        memories = [SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8)) for layout in layouts]
        self.sleeping: list[Sleeping] = []
        for number, memory in enumerate(memories):
            memory.begin(flights)
            self.sleeping.append(Sleeping(memory.sleepers, unique_name(f"w{number}") if NAMELESS else ""))
        self.wakers: list[Waker] = []
        self.members: list[Member] = []
        self.threads: list[FlightThreads] = []
        self.done: list[dict[int, FlightDone]] = [{} for _ in range(count)]
        self.all_done = threading.Semaphore(0)
        self.seen: dict[int, dict[int, list[Array]]] = defaultdict(dict)
        for number in range(count):
            wakes = {}
            for other in range(count):
                if NAMELESS:
                    waker = Waker(memories[other].sleepers, self.sleeping[other].name)
                    self.wakers.append(waker)
                    wakes[other] = waker.wake
                else:
                    wakes[other] = self.sleeping[other].wake
            tensors = MemberTensors(network, number)
            flat = np.zeros(tensors.flat_size, np.float32)
            for view, (tensor, (start, stop)) in zip(tensors.views(flat), tensors.held, strict=True):
                view[...] = weights[tensor][start:stop]
            member = Member(network, Neighbours(number, memories, wakes), BATCH, flights, flat)
            self.members.append(member)
            self.threads.append(FlightThreads(member, flights, threads, self.sleeping[number], self._taker(number)))
        for own in self.threads:
            own.start()

    def _taker(self, number: int) -> Callable[[FlightDone], None]:
        def take(done: FlightDone) -> None:
            self.done[number][done.flight.number] = done
            self.all_done.release()

        return take

    def close(self) -> None:
        for own in self.threads:
            own.stop()
        for own in self.threads:
            own.join(WAIT_S)
        for sleeping in self.sleeping:
            sleeping.close()
        for waker in self.wakers:
            waker.close()
        self.threads, self.sleeping, self.wakers = [], [], []


@contextmanager
def partitions(network: CutNetwork, flights: int, threads: int, weights: list[Array]) -> Iterator[Partitions]:
    made = Partitions(network, flights, threads, weights)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("flights", [1, 2, 4])
@pytest.mark.parametrize("cuts", [ROWS_AND_UNITS, UNEVEN])
def test_partitions_find_what_they_find_in_turn(cuts: list[StageCut], flights: int, threads: int) -> None:
    network = cut_network(IMAGES, cuts, BACKENDS[-1])
    weights = [weight * np.float32(0.3) for weight in small_integers(IMAGES, 3)[0]]
    batches = [small_integers(IMAGES, seed)[1] for seed in range(FLIGHTS)]
    expected = Replica(network, BATCH, 1, weights).run(batches)
    with partitions(network, flights, threads, weights) as made:
        for number, batch in enumerate(batches, 1):
            for own in made.threads:
                own.submit(Flight(number, batch))
        for _ in range(FLIGHTS * network.partitions):
            assert made.all_done.acquire(timeout=WAIT_S)
        lead = next(one for one, member in enumerate(made.members) if member.arrays(0).outputs[-1] is not None)
        found = [made.done[lead][number].found for number in range(1, FLIGHTS + 1)]
        assert [(row.loss, row.correct) for row in found] == [(loss, correct) for _, loss, correct in expected]
        for one, member in enumerate(made.members):
            for gradient, right in zip(member.arrays(FLIGHTS % flights).gradients, expected[-1][0][one], strict=True):
                np.testing.assert_array_equal(gradient, right)
        assert not any(own.open_flights for own in made.threads)


def test_a_failure_is_reported_and_ends_the_threads() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)
    with partitions(network, 2, 1, weights) as made:
        for own in made.threads:
            own.submit(Flight(1, Batch(batch.images, batch.labels + np.int32(99))))
        for _ in range(2):
            assert made.all_done.acquire(timeout=WAIT_S)
        for found in made.done:
            with pytest.raises(ValueError, match="labels"):
                raise found[1].failure or AssertionError


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (
            MemoryError("cannot get 9 bytes"),
            RunFailedError("a flight of 4 examples does not fit in memory: cannot get 9"),
        ),
        (CustomError("own1: whole batches alone"), CustomError("own1: whole batches alone")),
    ],
)
def test_a_flight_that_cannot_be_laid_out_is_reported_and_ends_the_threads(
    why: Exception, told: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)
    with partitions(network, 2, 1, weights) as made:

        def refuse(context: int, batch: Batch, trains: bool) -> Program:
            raise why

        monkeypatch.setattr(made.members[1], "program_of", refuse)
        for own in made.threads:
            own.submit(Flight(1, batch))
        while 1 not in made.done[1]:
            assert made.all_done.acquire(timeout=WAIT_S)
        with pytest.raises(type(told), match=f"^{told}"):
            raise made.done[1][1].failure or AssertionError
        made.threads[1].join(WAIT_S)
        assert not made.threads[1].running


def test_a_thread_that_fails_between_flights_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, _ = small_integers(IMAGES, 3)

    def fail() -> None:
        raise OSError("nowhere to sleep")

    with partitions(network, 2, 1, weights) as made:
        monkeypatch.setattr(made.sleeping[1], "begin", fail)
        assert made.all_done.acquire(timeout=WAIT_S)
        (found,) = made.done[1].values()
        assert isinstance(found.failure, OSError)


def test_without_a_compiler_flights_go_on_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_function(*_: object) -> None:
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(segments, "can_compile", lambda: False)
    monkeypatch.setattr(segments, "compile_function", compile_function)
    segments._counting.cache_clear()
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    weights, batch = small_integers(IMAGES, 3)
    with partitions(network, 2, 2, weights) as made:
        for number in range(1, 4):
            for own in made.threads:
                own.submit(Flight(number, batch))
        for _ in range(6):
            assert made.all_done.acquire(timeout=WAIT_S)
        assert [sorted(done) for done in made.done] == [[1, 2, 3]] * 2
        assert not any(one.failure for done in made.done for one in done.values())
    assert not any(own.sleepers[0] for own in made.sleeping)


def test_threads_stop_in_the_middle_of_a_flight() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)
    with partitions(network, 2, 2, weights) as made:
        first = made.threads[0]
        first.submit(Flight(1, batch))  # the other partition never begins
        made.close()
        assert list(first.open_flights) in ([], [1])


@pytest.mark.parametrize("hanging", [0, 1])
def test_a_thread_that_hangs_is_told_from_threads_that_wait_for_it(
    hanging: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)
    go_on, hangs, advance = threading.Event(), threading.Event(), FlightThreads._advance
    with partitions(network, 2, 1, weights) as made:

        def advance_or_hang(self: FlightThreads, one: Any, spins: int) -> tuple[bool, bool]:
            if self is made.threads[hanging] and one.flight.number == 2 and not hangs.is_set():
                hangs.set()
                assert go_on.wait(WAIT_S)
            return advance(self, one, spins)

        monkeypatch.setattr(FlightThreads, "_advance", advance_or_hang)
        for number in (1, 2, 3):
            for own in made.threads:
                own.submit(Flight(number, batch))
        assert hangs.wait(WAIT_S)
        waiting = made.threads[1 - hanging]
        while min(own.standing(2).still_s for own in made.threads) < 0.3:
            time.sleep(0.01)
        oldest = min(number for number in (1, 2) if any(own.standing(number).state != DONE for own in made.threads))
        told = {one: own.standing(oldest) for one, own in enumerate(made.threads)}
        left = [one for one, standing in told.items() if standing.state != DONE]
        assert who_hangs(left, told).partition == hanging, told
        assert waiting.standing(2).waits_for == (hanging,)
        assert waiting.waiting.share > 0.1 and list(waiting.waiting.waits_for) == [hanging]
        assert waiting.standing(4).state == SERVERS, "nobody has submitted it"
        go_on.set()
        for _ in range(6):
            assert made.all_done.acquire(timeout=WAIT_S)
        assert {own.standing(3).state for own in made.threads} == {DONE}


def test_waiting_for_another_partition_is_not_waiting_for_data() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)
    with partitions(network, 1, 1, weights) as made:
        first, late = made.threads
        first.submit(Flight(1, batch))
        while first.waiting.share == 0.0:  # it needs what the other has not begun
            time.sleep(0.01)
        late.submit(Flight(1, batch))
        for _ in range(2):
            assert made.all_done.acquire(timeout=WAIT_S)
        told, its = made.done[0][1], made.done[1][1]
        assert told.wait_s > told.idle_s, "it slept because of the other"
        assert its.idle_s > 0, "the other had nothing to do meanwhile"
        while first.open_flights or late.open_flights:
            time.sleep(0.01)


def test_a_flight_without_a_slot_waits_for_servers() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    weights, batch = small_integers(IMAGES, 3)

    class NoSlots:
        def begin(self, context: int, flight: Flight) -> int | None:
            return None

    with partitions(network, 2, 1, weights) as made:
        made.threads[0]._slots = NoSlots()
        made.threads[0].submit(Flight(1, batch))
        while made.threads[0].standing(1).state != SERVERS:
            time.sleep(0.01)
