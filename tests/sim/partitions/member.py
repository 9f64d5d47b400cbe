"""The steps of a member's flights, run by the real programs, one at a time, under the eyes of the truth.

Threads are the real `FlightThreads` without threads: a turn of one advances a flight by some steps, and then it is
another's turn.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from adamctl.kernels.partition.accruing import Accruing, SlotPlace
from adamctl.kernels.partition.flight import FlightArrays, Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.program import Batch, Program, Step
from adamctl.kernels.segments import Post, Wake, Words
from adamctl.roles.worker.partition.threads import Flight, FlightThreads, _Open
from tests.sim.engine import ViolationError
from tests.sim.partitions.blocks import Source, address
from tests.sim.partitions.truth import Done, GroupTruth
from tests.sim.processes.process import RunView

STEPS_IN_A_TURN = (1, 1, 2, 3, 6, 1000)
TURN_S = 0.0005


class Seat:
    """One member of one group.

    Attributes:
        budget: how many steps the present turn may still take.
        current: whose step is running.
        check_begin: called when a flight begins that trains.
        send: sends a block: its source, context, flight, value of the word, reader, examples.
        slots: which flights each slot holds, in order.
    """

    current: Seat

    def __init__(self, group: GroupTruth, partition: int, view: RunView, flights: int) -> None:
        self.group, self.partition, self.view, self.flights = group, partition, view, flights
        self.budget = 0
        self.check_begin: Callable[[GroupTruth], None] = lambda group: None
        self.closed = False
        self.send: Callable[[Source, int, int, int, int, int], None]
        self.threads: SimThreads
        self.slots: dict[int, list[int]] = {}
        self.member: SimMember
        self.running: SimProgram
        self._words = group.blocks.words_of(partition)
        self._open: dict[int, int] = {}  # context -> flight
        self._last: dict[bool, bytes] = {}

    @property
    def alive(self) -> bool:
        return not self.closed and self.view.current

    def neighbours(self) -> Neighbours:
        memories = self.group.blocks.seen_by(self.partition)
        wakes = {one: Wake(memory.sleepers, one) for one, memory in enumerate(memories)}
        seen = _SeenNeighbours(self.partition, memories, wakes)
        seen.seat = self
        return seen

    def place_of(self, word: Words) -> tuple[Source, int]:
        return self._words[address(word)]

    def shows(self, word: Words) -> bool:
        """Whether a word is that of a block."""
        return address(word) in self._words

    # --- what programs do -------------------------------------------------------------------------------------------

    def begins(self, program: SimProgram, flight: Flight) -> Done:
        context = flight.number % self.flights
        if context in self._open:
            raise ViolationError(f"too many flights are open: {flight.number} beside {self._open} at {self.partition}")
        self._open[context] = flight.number
        self.view.world.note(self.view.process.name, "begins", flight.number, "of", self.group.name, flight.trains)
        begun = self.group.begins(self.partition, flight)
        if flight.trains:
            self.check_begin(self.group)
        return begun

    def weights(self, trains: bool) -> bytes:
        """Returns what a step computes with now."""
        flat = self.member.flat if trains else self.member.flat_snapshot
        found = flat.tobytes()
        if self._last.get(trains) != found:
            self._last[trains] = found
        return self._last[trains]

    def posts(self, post: Post, flight: int) -> None:
        """In place of `post_by_python`. A turn is no block, and nobody else's."""
        if not self.shows(post.word):
            post.word[0] = flight + post.ahead
            return
        (source, context), blocks, value = self.place_of(post.word), self.group.blocks, flight + post.ahead
        readers = frozenset(wake.descriptor for wake in post.wakes)
        if source[0] != self.partition:
            raise ViolationError(f"a block of another is written: {source} by {self.partition}")
        if source[1] != "free":
            blocks.writes(source, context, flight, readers, self.running.trains)
        post.word[0] = value
        self.view.world.note(self.view.process.name, "shows", source[1], source[2], "of", flight, "to", sorted(readers))
        for reader in sorted(readers):
            self.send(source, context, flight, value, reader, self.running.examples)

    def ran(self, program: SimProgram, place: int, flight: int, weights: bytes) -> None:
        """A step is done."""
        self.budget -= 1
        assert program.done is not None
        if len(program.done.weights) != place:
            raise ViolationError(f"a step runs twice, or is left out: step {place} of flight {flight}")
        program.done.weights.append(weights)
        for source, context in program.reads[place]:
            if source[1] != "free":
                self.group.blocks.reads(source, context, flight, self.partition)

    def finishes(self, flight: Flight, program: SimProgram) -> None:
        """A flight is done, and not yet told."""
        assert program.done is not None
        context, found, done = flight.number % self.flights, program.found, program.done
        if self._open.pop(context) != flight.number:
            raise ViolationError(f"a flight is finished twice: {flight.number} at {self.partition}")
        self.group.blocks.check_read(context, flight.number, self.partition, flight.trains, flight.batch.is_last)
        done.loss, done.correct, done.clipped = found.loss, found.correct, found.clipped
        done.gradient = program.arrays.gradient.copy()
        self.view.world.note(self.view.process.name, "finishes", flight.number, "of", self.group.name, done.loss)
        if flight.trains:
            first = 0 if flight.batch.whole else context * self.member.slots_each
            self.slots.setdefault(first + found.place.slot, []).append(flight.number)


class _SeenNeighbours(Neighbours):
    seat: Seat


class SimProgram(Program):
    """A program that stops after some steps, as if a word had not come, and tells what it does."""

    seat: Seat
    arrays: FlightArrays
    done: Done | None = None
    trains = True
    flight: Flight
    reads: list[list[tuple[Source, int]]]

    @property
    def examples(self) -> int:
        return self.arrays.batch

    def seen(self, arrays: FlightArrays, trains: bool) -> None:
        """Says whose it is. Needed words are as the plan says, too: `Blocks.check_read`."""
        self.seat, self.arrays, self.trains = arrays.neighbours.seat, arrays, trains  # type: ignore[attr-defined]
        shown = self.seat.shows
        self.reads = [[self.seat.place_of(word) for word in step.words if shown(word)] for step in self.steps]

    @property
    def steps(self) -> list[Step]:
        return self._pieces  # type: ignore[return-value]

    def begin(self, flight: int, batch: Batch, place: Any = SlotPlace(), rate: float = 0.0) -> None:
        self.done = self.seat.begins(self, self.flight)
        super().begin(flight, batch, place, rate)

    def _run(self, step: Step) -> bool:
        seat = self.seat
        if seat.budget <= 0:
            return False
        place, flight = self._piece, self.flight.number
        weights = seat.weights(self.trains)
        seat.running = self
        ran = super()._run(step)
        if ran:
            seat.ran(self, place, flight, weights)
        return ran


def post_by_seat(post: Post, flight: int) -> None:
    Seat.current.posts(post, flight)


class SimMember(Member):
    """The real member, whose programs are seen."""

    def __init__(
        self, network: Any, neighbours: Neighbours, batch: int, flights: int, weights: Any, *,
        accruing: Any = (), clip_norm: float | None = None, snapshot: Any = None,
    ) -> None:  # fmt: skip
        self.seat: Seat = neighbours.seat  # type: ignore[attr-defined]
        self.seat.member = self
        self.flat, self.flat_snapshot = weights, snapshot
        self.slots_each = len(accruing[0].slots)
        in_step = accruing[0].turn is not None  # then all contexts have the same slots
        self.slot_arrays = [slot for own in (accruing[:1] if in_step else accruing) for slot in own.slots]
        self.slot_addresses = {address(slot): place for place, slot in enumerate(self.slot_arrays)}
        super().__init__(
            network, neighbours, batch, flights, weights, accruing=accruing, clip_norm=clip_norm, snapshot=snapshot
        )

    def _program(self, arrays: FlightArrays, steps: Any, own: Accruing | None) -> Program:
        program = super()._program(arrays, steps, own)
        assert isinstance(program, SimProgram)
        program.seen(arrays, own is not None)
        return program


class SimThreads(FlightThreads):
    """The threads of one member: their turns are the simulator's."""

    def __init__(self, member: SimMember, flights: int, threads: int, sleeping: Any, *others: Any, **more: Any) -> None:
        super().__init__(member, flights, threads, sleeping, *others, **more)
        self.seat, self._count = member.seat, threads
        self.seat.threads = self
        sleeping.awake = self.wake
        self._asleep: list[int] = []
        random = self.seat.view.random
        self._turn_s = TURN_S * random.choice((0.2, 1.0, 1.0, 5.0))

    def start(self) -> None:
        for thread in range(self._count):
            self._later(thread)

    def join(self, timeout_s: float) -> None:
        """They are nowhere between turns."""

    def wake(self) -> None:
        """Wakes one that sleeps, as a datagram does."""
        if self._asleep:
            self._later(self._asleep.pop(0))

    def _later(self, thread: int) -> None:
        view = self.seat.view
        view.after(view.random.random() * self._turn_s, lambda: self._turn(thread))

    def _turn(self, thread: int) -> None:
        seat, truth = self.seat, self.seat.group.truth
        if self._stopping or not seat.alive:
            return
        seat.budget, Seat.current = seat.view.random.choice(STEPS_IN_A_TURN), seat
        went_on = self._go_on(0)
        if truth.violation is not None:
            raise truth.violation
        if went_on:
            self._later(thread)
        else:
            self._asleep.append(thread)

    def _advance(self, one: _Open, spins: int) -> tuple[bool, bool]:
        assert isinstance(one.program, SimProgram)
        one.program.flight = one.flight
        try:
            with np.errstate(all="ignore"):
                return super()._advance(one, spins)
        except AssertionError as violation:  # a failure ends the worker, but this one ends the seed
            self.seat.group.truth.note(violation)
            raise

    def _finish(self, one: _Open) -> None:
        assert isinstance(one.program, SimProgram)
        try:
            self.seat.finishes(one.flight, one.program)
        except AssertionError as violation:
            self.seat.group.truth.note(violation)
            raise
        super()._finish(one)


TIME_OF_NOBODY = SimpleNamespace(perf_counter=lambda: 0.0)
"""Seconds of compute and of waiting are told to people alone."""
