"""Threads that take whatever flight can go on: none waits for one flight's data while another's is there.

A flight has a context of its own (`adamctl.kernels.partition.member`); any thread may advance it, one at a time.
Threads prefer the oldest. A thread that finds no flight able to go on sleeps until another partition or the event loop
wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from adamctl.errors import RunFailedError
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.program import Batch, Program, Row
from adamctl.kernels.threads import Binder
from adamctl.roles.worker.core.open_flights import DONE, SERVERS, WAITS, WORKS, Standing
from adamctl.roles.worker.core.waiting import OF_SERVERS, Waiting, WaitLedger
from adamctl.roles.worker.partition.sleeping import Sleeping

SPINS = 400
"""How often a word is looked at again before the flight is left: up to about 50 us, where a core is to spare."""


class Flight(NamedTuple):
    """A mini-batch on its way.

    Attributes:
        number: from 1, without gaps.
        batch: what it computes; valid until it is done.
        trains: False for an evaluation.
        rate: learning rate of its local update.
        learning_rate: of the push that it becomes a part of.
    """

    number: int
    batch: Batch
    trains: bool = True
    rate: float = 0.0
    learning_rate: float = 0.0


class FlightDone(NamedTuple):
    """The result of a flight. A `failure` ends the worker.

    `compute_s`: seconds that threads worked on it; `wait_s`: that they slept since the flight before was done;
    `idle_s`: of those, while no flight was open, for want of examples.
    """

    flight: Flight
    found: Row
    compute_s: float
    wait_s: float
    failure: BaseException | None = None
    idle_s: float = 0.0


_NO_FLIGHT = Flight(0, Batch(np.zeros((0, 0), np.float32), np.zeros(0, np.int32)))
"""Stands for the flight of a failure that is none's."""

Made = TypeVar("Made")


def laid_out(make: Callable[[], Made], examples: int) -> Made:
    """Returns what `make` lays out for flights of so many examples. Raises RunFailedError: memory does not suffice."""
    try:
        return make()
    except MemoryError as error:
        why = str(error) or "none is left"
        raise RunFailedError(
            f"a flight of {examples} examples does not fit in memory: {why}; take smaller batches, fewer threads, more "
            "partitions, or a machine with more memory"
        ) from error


class Slots(Protocol):
    """Where flights accrue."""

    def begin(self, context: int, flight: Flight) -> SlotPlace | None:
        """Returns where the next flight of a context accrues; None while all of its slots are in use."""
        ...


class Partition(Protocol):
    """What flights run in: a `Member` that trains, or a `Predictor`."""

    def program_of(self, context: int, batch: Batch, trains: bool) -> Program: ...

    def waits_for(self, program: Program) -> frozenset[int]: ...


class _Open:
    """An open flight."""

    __slots__ = ("begun", "compute_s", "flight", "lacks_slot", "program", "taken", "taken_s")

    def __init__(self, flight: Flight, program: Program) -> None:
        self.flight, self.program = flight, program
        self.begun = self.taken = self.lacks_slot = False
        self.compute_s = self.taken_s = 0.0


class FlightThreads:
    """The threads of one partition. They call `done` after every flight; it must only pass the result on."""

    def __init__(
        self,
        member: Partition,
        flights: int,
        threads: int,
        sleeping: Sleeping,
        done: Callable[[FlightDone], None],
        slots: Slots | None = None,
        *,
        spins: int = 0,
    ) -> None:
        """`slots`: None if flights do not accrue. `spins`: see SPINS; 0 where no core is to spare."""
        self._member, self._flights, self._sleeping, self._done = member, flights, sleeping, done
        self._slots, self._spins = slots, spins
        self._lock = threading.Lock()
        self._waiting: list[Flight] = []
        self._open: dict[int, _Open] = {}  # by context
        self._stopping = False
        self._slept_s = self._idle_s = 0.0
        self._ledger = WaitLedger()
        self._last = 0
        self._moved_s = time.perf_counter()
        self._binder = Binder(threads)
        self._limits = threadpool_limits(limits=1, user_api="blas")
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"flights-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, flight: Flight) -> None:
        """Takes the next flight, in the order of their numbers; it begins when its context is free."""
        with self._lock:
            self._waiting.append(flight)
            self._last = flight.number
        self._sleeping.awaken()

    def look(self) -> None:
        """Says that a slot has become free."""
        self._sleeping.awaken()

    def stop(self) -> None:
        """Stops the threads after their current work, wherever their flights are."""
        self._stopping = True
        for _ in self._threads:
            self._sleeping.awaken()

    def join(self, timeout_s: float) -> None:
        """Waits until all threads have ended; for so long at most."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until_s - time.monotonic(), 0.0))

    @property
    def running(self) -> bool:
        """Whether a thread has not ended."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def open_flights(self) -> dict[int, tuple[int, int]]:
        """Returns the open flights' numbers, and where each stands."""
        with self._lock:
            return {one.flight.number: one.program.position for one in self._open.values()}

    @property
    def held_s(self) -> float:
        """For how long, in seconds, a thread has been in the same call; 0 while none is in one."""
        with self._lock:
            now_s = time.perf_counter()
            return max((now_s - one.taken_s for one in self._open.values() if one.taken), default=0.0)

    def standing(self, number: int) -> Standing:
        """Returns where a flight stands, also while threads hang."""
        with self._lock:
            still_s = time.perf_counter() - self._moved_s
            if number > self._last:
                return Standing(SERVERS, (), still_s)  # its examples have not come, or parameters before them
            one = next((one for one in self._open.values() if one.flight.number == number), None)
            if one is None:
                waiting = any(flight.number == number for flight in self._waiting)
                return Standing(WORKS if waiting else DONE, (), still_s)
            all_busy = sum(other.taken for other in self._open.values()) >= len(self._threads)
            if one.taken:
                return Standing(WORKS, (), still_s)
            if not one.begun:  # what a thread saw last counts only if some thread looks again
                return Standing(SERVERS if one.lacks_slot and not all_busy else WORKS, (), still_s)
        waits_for = tuple(sorted(self._member.waits_for(one.program)))
        return Standing(WAITS if waits_for else WORKS, waits_for, still_s)

    def _run(self, thread: int) -> None:
        try:
            self._binder.bind(thread)
            while not self._stopping:
                if not self._go_on(self._spins):
                    self._rest()
        except BaseException as failure:
            if self._stopping:
                raise
            self._fail(_NO_FLIGHT, failure)  # else flights would wait for this thread without end

    def _rest(self) -> None:
        """Looks once more, and sleeps."""
        self._sleeping.begin()
        try:
            if not self._stopping and not self._go_on(0):
                whom, began_s = self._whom(), time.perf_counter()
                self._sleeping.sleep()
                with self._lock:
                    slept_s = time.perf_counter() - began_s
                    self._slept_s += slept_s
                    if whom is None:
                        self._idle_s += slept_s
                    else:
                        self._ledger.slept(slept_s, whom)
        finally:
            self._sleeping.end()

    def _whom(self) -> Collection[int] | None:
        """Returns whom a thread waits for that finds nothing to do: as the oldest flight in nobody's hands does.

        Nobody where other threads have all open flights; None where none is open.
        """
        with self._lock:
            if not self._open:
                return None
            free = [one for one in self._open.values() if not one.taken]
            one = min(free, key=lambda one: one.flight.number, default=None)
            if one is None or not one.begun:
                return (OF_SERVERS,) if one is not None and one.lacks_slot else ()
        return self._member.waits_for(one.program)

    @property
    def waiting(self) -> Waiting:
        """How much threads wait, and for whom."""
        with self._lock:
            return self._ledger.waiting()

    def _go_on(self, spins: int) -> bool:
        """Advances the oldest flight that can go on; returns whether there was one."""
        if (unopened := self._begin_waiting()) is not None:
            self._fail(*unopened)
            return True
        for one in self._candidates():
            if not self._take(one):
                continue
            finished = went_on = False
            try:
                finished, went_on = self._advance(one, spins)
            except BaseException as failure:
                self._fail(one.flight, failure)
                return True
            finally:
                one.taken = finished  # nobody else may take it any more
            if finished:
                self._finish(one)
            if went_on:
                return True
        return False

    def _fail(self, flight: Flight, failure: BaseException) -> None:
        """Reports a failure, with which whoever is told ends this process's part; the threads end with it."""
        self._stopping = True
        self._done(FlightDone(flight, Row(), 0.0, 0.0, failure))

    def _begin_waiting(self) -> tuple[Flight, BaseException] | None:
        """Opens the flights whose context is free; returns one that cannot be laid out, and why."""
        with self._lock:
            while self._waiting and self._waiting[0].number % self._flights not in self._open:
                flight = self._waiting.pop(0)
                context, batch = flight.number % self._flights, flight.batch
                make = partial(self._member.program_of, context, batch, flight.trains)
                try:
                    self._open[context] = _Open(flight, laid_out(make, len(batch.images)))
                except BaseException as failure:  # it does not fit, or a layer of the user's own refuses so many
                    return flight, failure
        return None

    def _candidates(self) -> list[_Open]:
        """Returns the open flights, oldest first."""
        with self._lock:
            return sorted(self._open.values(), key=lambda one: one.flight.number)

    def _take(self, one: _Open) -> bool:
        with self._lock:
            if one.taken or self._open.get(one.flight.number % self._flights) is not one:
                return False
            one.taken, one.taken_s = True, time.perf_counter()
            return True

    def _advance(self, one: _Open, spins: int) -> tuple[bool, bool]:
        """Returns whether the flight is done, and whether anything was."""
        began_s, flight = time.perf_counter(), one.flight
        if not one.begun:
            place: SlotPlace | None = SlotPlace()
            if self._slots is not None and flight.trains:
                place = self._slots.begin(flight.number % self._flights, flight)
            one.lacks_slot = place is None
            if place is None:
                return False, False
            one.program.begin(flight.number, flight.batch, place, flight.rate)
            one.begun = True
        before = one.program.position
        finished = one.program.advance(spins)
        went_on = finished or one.program.position != before
        if went_on:
            self._moved_s = time.perf_counter()
            one.compute_s += self._moved_s - began_s
        return finished, went_on

    def _finish(self, one: _Open) -> None:
        """Reports a flight before the next one of its context begins, which may use the same slot."""
        with self._lock:
            wait_s, idle_s = self._slept_s, self._idle_s
            self._slept_s = self._idle_s = 0.0
            self._ledger.worked(one.compute_s)
        self._done(FlightDone(one.flight, one.program.found, one.compute_s, wait_s, idle_s=idle_s))
        with self._lock:
            del self._open[one.flight.number % self._flights]
        self._sleeping.awaken()  # the next flight of its context may begin
