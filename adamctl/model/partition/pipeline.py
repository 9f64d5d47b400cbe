"""The interval between finished flights where partitions wait for each other, by following some flights through a plan.

With F flights open, a partition works on another flight while one waits. How much of the waiting that hides depends on
which blocks come when, which no bound tells: a link and a processor that are each busy for nine tenths of the time
cannot always be so at the same time. So flights are followed, event by event: every partition computes its steps in
their order, the oldest flight first, by its threads; every block takes its share of its sender's and its receiver's
link (`adamctl.model.partition.transfers`). Nothing is drawn at random.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Computing
from adamctl.model.partition.transfers import SERVERS, Ending, Transfers

EVENTS_MOST = 30_000
"""Steps and blocks that are followed, about: some tenths of a second."""
Block: TypeAlias = Hashable


class Send(NamedTuple):
    """A block that leaves when a step is done. `receiver` None: parameter servers, in both directions."""

    receiver: int | None
    block: Block
    sent_bytes: float
    received_bytes: float = 0.0


@dataclass
class PipelineStep:
    """What a partition does without waiting. `needs`: (sender, block) of what has to be there first."""

    seconds: float
    needs: Set[tuple[int, Block]] = frozenset()
    sends: list[Send] = field(default_factory=list)


Pipeline: TypeAlias = list[list[PipelineStep]]
"""The steps of one flight, of each partition."""


def pipeline_of(
    plan: PartitionPlan, computing: Sequence[Computing], batch: int, pushed: Sequence[tuple[float, float]],
    processor_s_per_byte: float = 0.0, processor_s_per_block: float = 0.0,
) -> Pipeline:  # fmt: skip
    """Returns the steps of a flight.

    Args:
        computing: of each partition.
        pushed: bytes that each partition pushes and fetches for a flight.
        processor_s_per_byte, processor_s_per_block: as of a `adamctl.model.partition.cost.Link`.
    """
    pipeline = [list(_steps(plan, p, computing[p], batch, pushed[p])) for p in range(plan.partitions)]
    if processor_s_per_byte or processor_s_per_block:
        _add_transfers(pipeline, processor_s_per_byte, processor_s_per_block)
    return pipeline


def _add_transfers(pipeline: Pipeline, s_per_byte: float, s_per_block: float) -> None:
    """Adds to steps the time that their senders take to send blocks, and that they take to receive them."""
    received: Counter[tuple[int, int, Block]] = Counter()
    for p, steps in enumerate(pipeline):
        for step in steps:
            for send in step.sends:
                step.seconds += (send.sent_bytes + send.received_bytes) * s_per_byte
                if send.receiver is not None:
                    step.seconds += s_per_block
                    received[send.receiver, p, send.block] += int(send.sent_bytes)
    for p, steps in enumerate(pipeline):
        for step in steps:
            step.seconds += sum(received[p, *need] for need in step.needs) * s_per_byte
            step.seconds += len(step.needs) * s_per_block


def _steps(
    plan: PartitionPlan, p: int, computing: Computing, batch: int, pushed: tuple[float, float]
) -> Iterator[PipelineStep]:
    stages, last, holders = plan.stages, len(plan.stages) - 1, plan.stages[-1].holders
    own = [stage.index for stage in stages if stage.parts[p].outputs is not None]
    trained = [i for i in reversed(own) if stages[i].tensors or plan.needs_input_error(i)]

    def size(elements: int) -> float:
        return elements * ELEMENT_BYTES * batch

    for i in own:
        seconds = computing.stages_s[i] * computing.forward_shares[i]
        step = PipelineStep(seconds, {(e.producer, ("output", i)) for e in plan.edges(i) if e.consumer == p})
        if i < last:
            step.sends += [
                Send(e.consumer, ("output", i + 1), size(e.elements)) for e in plan.edges(i + 1) if e.producer == p
            ]
        elif plan.head != "whole":
            step.sends += [Send(q, "head", size(plan.head_elements(p))) for q in holders if q != p]
        yield step
    if p in holders and plan.head in ("gather", "exchange"):
        yield PipelineStep(0.0, {(q, "head") for q in holders if q != p})
    for i in trained:
        step = PipelineStep(computing.stages_s[i] * (1 - computing.forward_shares[i]))
        if i < last:
            step.needs = {(e.consumer, ("error", i + 1)) for e in plan.backward_edges(i + 1) if e.producer == p}
        step.sends += [
            Send(e.producer, ("error", i), size(e.elements)) for e in plan.backward_edges(i) if e.consumer == p
        ]
        step.sends += [
            Send(one.owner, ("partial", one.tensor), one.elements * ELEMENT_BYTES)
            for one in plan.partials(i)
            if one.sender == p
        ]
        yield step
    for i in trained:
        mine = [one for one in plan.partials(i) if one.owner == p]
        if mine:
            step = PipelineStep(0.0, {(one.sender, ("partial", one.tensor)) for one in mine})
            step.sends = [Send(one.sender, ("sum", one.tensor), one.elements * ELEMENT_BYTES) for one in mine]
            yield step
    sums = {(one.owner, ("sum", one.tensor)) for i in trained for one in plan.partials(i) if one.sender == p}
    yield PipelineStep(computing.update_s, sums, [Send(None, "push", *pushed)] if any(pushed) else [])


def interval_s(pipeline: Pipeline, flights: int, threads: int, bytes_per_s: float, latency_s: float) -> float:
    """Returns the time between two finished flights, once as many as may be are open.

    Args:
        flights: that may be open, F.
        threads: of each partition.
        bytes_per_s: of each partition's link, in each direction.
        latency_s: from the last byte that leaves to the step that may begin.
    """
    begun = 2 * flights + 2
    each = max(sum(1 + len(step.sends) for steps in pipeline for step in steps), 1)
    count = begun + min(max(EVENTS_MOST // each - begun, 4), max(12, 3 * flights))
    run = _Run(pipeline, flights, threads, bytes_per_s, latency_s)
    finished = run.finish_times(count + flights)  # the last ones have less beside them
    return (finished[count - 1] - finished[begun - 1]) / (count - begun)


class _Event(NamedTuple):
    """What happens at a time: a link has carried a block (Ending), it is there (sender, block), or a step ends."""

    at_s: float
    number: int
    flight: int
    partition: int
    what: tuple[int, Block] | Ending | None


class _Run:
    """Flights on their way."""

    def __init__(self, pipeline: Pipeline, flights: int, threads: int, bytes_per_s: float, latency_s: float) -> None:
        self._pipeline, self._flights, self._latency_s = pipeline, flights, latency_s
        self._idle = [threads for _ in pipeline]
        self._ready: list[list[int]] = [[] for _ in pipeline]  # flights, a heap
        self._place: dict[tuple[int, int], int] = {}  # (flight, partition) -> its step
        self._there: dict[tuple[int, int], set[tuple[int, Block]]] = {}
        self._left: dict[int, int] = {}
        self._transfers = Transfers(bytes_per_s)
        self._events: list[_Event] = []
        self._number, self._count = 0, 0

    def finish_times(self, count: int) -> list[float]:
        self._count = count
        for flight in range(min(self._flights, count)):
            for p in range(len(self._pipeline)):
                self._open(flight, p)
        for p in range(len(self._pipeline)):
            self._take(p, 0.0)
        finished, now_s = [0.0] * count, 0.0
        while self._events:
            event = heapq.heappop(self._events)
            now_s = event.at_s
            if isinstance(event.what, Ending):
                self._carried(event.what)
            elif self._happened(event.at_s, event.flight, event.partition, event.what):
                finished[event.flight] = event.at_s
            if not self._transfers.are_divided and (not self._events or self._events[0].at_s > now_s):
                for ending in self._transfers.divide(now_s):
                    self._put(ending.at_s, 0, 0, ending)
        return sorted(finished)

    def _happened(self, now_s: float, flight: int, p: int, came: tuple[int, Block] | None) -> bool:
        """A block has come, or a step ends; returns whether that ends the flight everywhere."""
        ended = False
        if came is not None:
            self._there.setdefault((flight, p), set()).add(came)
            self._look(flight, p)
        else:
            ended = self._done(flight, p, now_s)
        self._take(p, now_s)
        return ended

    def _open(self, flight: int, p: int) -> None:
        self._place[flight, p] = 0
        self._look(flight, p)

    def _look(self, flight: int, p: int) -> None:
        """Queues a flight's next step if all that it needs is there."""
        place = self._place.get((flight, p), -1)
        if place >= 0 and self._pipeline[p][place].needs <= self._there.get((flight, p), set()):
            self._place[flight, p] = -1 - place  # queued or at work
            heapq.heappush(self._ready[p], flight)

    def _take(self, p: int, now_s: float) -> None:
        while self._idle[p] and self._ready[p]:
            flight = heapq.heappop(self._ready[p])
            self._idle[p] -= 1
            step = self._pipeline[p][-1 - self._place[flight, p]]
            self._put(now_s + step.seconds, flight, p)

    def _done(self, flight: int, p: int, now_s: float) -> bool:
        """Ends a step; returns whether that ends the flight everywhere."""
        self._idle[p] += 1
        place = -1 - self._place[flight, p]
        for send in self._pipeline[p][place].sends:
            self._send(flight, p, send, now_s)
        if place + 1 < len(self._pipeline[p]):
            self._place[flight, p] = place + 1
            self._look(flight, p)
            return False
        del self._place[flight, p]
        self._there.pop((flight, p), None)
        if flight + self._flights < self._count:
            self._open(flight + self._flights, p)
        self._left[flight] = self._left.get(flight, len(self._pipeline)) - 1
        return not self._left[flight]

    def _send(self, flight: int, p: int, send: Send, now_s: float) -> None:
        receiver = SERVERS if send.receiver is None else send.receiver
        self._transfers.add(now_s, (p, receiver), send.sent_bytes, (flight, send.block))
        if send.received_bytes:
            self._transfers.add(now_s, (SERVERS, p), send.received_bytes, (flight, send.block))

    def _carried(self, ending: Ending) -> None:
        found = self._transfers.end(ending)
        sender, receiver = ending.pair
        if found is not None and SERVERS not in ending.pair:
            flight, block = found
            self._put(ending.at_s + self._latency_s, flight, receiver, (sender, block))

    def _put(self, at_s: float, flight: int, partition: int, what: tuple[int, Block] | Ending | None = None) -> None:
        self._number += 1
        heapq.heappush(self._events, _Event(at_s, self._number, flight, partition, what))
