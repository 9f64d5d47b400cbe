"""The predicted time, bytes and memory of a plan, and of whole replicas in its place.

A flight is one batch on its way through a replica. With F of them open, one is finished every

    interval >= max( max over p of compute_p / threads, bytes of the busiest link / its bandwidth, T1 / F )
    T1 = sum over stages of (max over p of compute + latency + bytes / bandwidth)

where T1 is the time of one flight alone, forward and backward. The interval itself is found by following flights
(`adamctl.model.partition.pipeline`), since none of the three can be busy all of the time. Links carry edges and
partial gradients between partitions, and pushes and fetches between workers and parameter servers, each of which has a
link of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from adamctl.model.description import Model
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.pipeline import interval_s as followed_interval_s
from adamctl.model.partition.pipeline import pipeline_of
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Machine, computing
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import Memory, Pushing, memory_of, parameter_traffic

NEVER = 1 << 60
"""Flights per push of what pushes to nobody."""
TCP_PROCESSOR_S_PER_BYTE = 0.8e-9
"""As measured with TCP between two network namespaces of one machine: 0.7 to 1 ns."""


@dataclass(frozen=True)
class Link:
    """The network of one machine, in each direction.

    Attributes:
        processor_s_per_byte: what a byte that is sent or received takes of a thread's time.
        processor_s_per_block: likewise, what a block does, whatever its size, between partitions.
    """

    bytes_per_s: float
    latency_s: float
    processor_s_per_byte: float = 0.0
    processor_s_per_block: float = 0.0


@dataclass(frozen=True)
class Conditions:
    """What a plan is priced for.

    Attributes:
        batch: examples of a flight.
        threads: of each worker.
        flights: F with several partitions. A replica of one process has as many as threads.
        slots: accrued gradients that each thread, or flight, has in use.
        steps_per_push: flights of one thread between its pushes.
        memory_bytes: of one worker; None: no limit.
        read_ahead: examples that a worker has read and not begun.
    """

    batch: int
    threads: int
    flights: int
    slots: int
    steps_per_push: int
    pushing: Pushing
    link: Link
    memory_bytes: int | None = None
    read_ahead: int = 0


@dataclass(frozen=True)
class Price:
    """What a plan costs; lists have an entry per partition.

    Attributes:
        replicas: that train side by side.
        interval_s: time between two finished flights of one replica.
        flight_s: time of one flight alone, T1.
        examples_per_s: of all replicas.
        compute_s: of one flight.
        sent_bytes, received_bytes: of one flight, with what goes to and from parameter servers.
        server_bytes: through the link of one parameter server, of one flight of each replica.
        memory: of the partition's process.
        binds: what the interval comes from, such as `compute in 1`, the partition.
        fits: whether the memory of every partition is enough.
    """

    partitions: int
    replicas: int
    interval_s: float
    flight_s: float
    examples_per_s: float
    compute_s: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    received_bytes: tuple[float, ...]
    server_bytes: float
    memory: tuple[Memory, ...]
    binds: str
    fits: bool

    @property
    def memory_bytes(self) -> int:
        """The memory of the largest partition."""
        return max(memory.total for memory in self.memory)

    @property
    def link_bytes(self) -> float:
        """What the busiest link carries for one flight, in its busier direction."""
        return max(*self.sent_bytes, *self.received_bytes, self.server_bytes)


def price(plan: PartitionPlan, machine: Machine, conditions: Conditions, replicas: int = 1) -> Price:
    """Returns what a plan costs, with as many replicas of it side by side."""
    alone = plan.partitions == 1
    flights = conditions.threads if alone else conditions.flights
    everyone = range(plan.partitions)
    compute = [computing(plan, p, machine, conditions.batch, conditions.pushing) for p in everyone]
    totals = [one.total_s for one in compute]
    sent, received, servers = _link_bytes(plan, conditions, replicas)
    flight_s = sum(max(stages) for stages in zip(*(one.stages_s for one in compute), strict=True))
    flight_s += max(one.update_s for one in compute)
    flight_s += _exchanged_s(plan, conditions)
    bounds = [
        (seconds / conditions.threads, "compute" if alone else f"compute in {p}") for p, seconds in enumerate(totals)
    ]
    busiest = [max(pair) for pair in zip(sent, received, strict=True)]
    bounds += [
        (size / conditions.link.bytes_per_s, "link" if alone else f"link of {p}") for p, size in enumerate(busiest)
    ]
    bounds.append((servers / conditions.link.bytes_per_s, "links of servers"))
    bounds.append((flight_s / flights, f"too few flights: {flights}"))
    interval_s, binds = max(bounds, key=lambda bound: bound[0])
    if not alone:
        pushed = [_pushed_bytes(plan, p, conditions) for p in everyone]
        link = conditions.link
        carrying = link.processor_s_per_byte, link.processor_s_per_block
        pipeline = pipeline_of(plan, compute, conditions.batch, pushed, *carrying)
        followed_s = followed_interval_s(pipeline, flights, conditions.threads, link.bytes_per_s, link.latency_s)
        interval_s = max(interval_s, followed_s)
    memory = memories_of(plan, conditions)
    limit = conditions.memory_bytes
    return Price(
        plan.partitions, replicas, interval_s, flight_s, replicas * conditions.batch / interval_s, tuple(totals),
        tuple(sent), tuple(received), servers, memory, binds,
        limit is None or all(one.total <= limit for one in memory),
    )  # fmt: skip


def price_replicas(model: Model, replicas: int, machine: Machine, conditions: Conditions) -> Price:
    """Returns what as many whole replicas side by side cost, each in one process."""
    return price(make_plan(model, 1), machine, conditions, replicas)


def memories_of(plan: PartitionPlan, conditions: Conditions) -> tuple[Memory, ...]:
    """Returns the memory of each partition's process."""
    one = conditions
    sizes = (one.batch, one.threads, one.slots, one.flights, one.pushing, one.read_ahead)
    return tuple(memory_of(plan, partition, *sizes) for partition in range(plan.partitions))


def _link_bytes(plan: PartitionPlan, conditions: Conditions, replicas: int) -> tuple[list[float], list[float], float]:
    """Returns what each partition sends and receives for one flight, and what goes through a server's link."""
    batch = conditions.batch
    sent, received = [0.0] * plan.partitions, [0.0] * plan.partitions
    for pair in plan.traffic():
        size = (pair.up_bytes + pair.down_bytes) * batch + pair.flight_bytes
        sent[pair.sender] += size
        received[pair.receiver] += size
    pushed = fetched = 0.0
    for p in range(plan.partitions):
        push, fetch = _pushed_bytes(plan, p, conditions)
        sent[p] += push
        received[p] += fetch
        pushed, fetched = pushed + push, fetched + fetch
    return sent, received, max(pushed, fetched) * replicas / max(conditions.pushing.servers, 1)


def _pushed_bytes(plan: PartitionPlan, partition: int, conditions: Conditions) -> tuple[float, float]:
    """Returns what a partition pushes and fetches for one flight."""
    push, fetch = parameter_traffic(plan, tensors_of(plan.model), partition, conditions.pushing)
    return push / conditions.steps_per_push, fetch / conditions.steps_per_push


def exchanges(plan: PartitionPlan, batch: int) -> list[int]:
    """Returns how many elements the busiest partition sends or receives, each time that a flight waits for others."""
    holders = plan.stages[-1].holders
    rounds = []
    if plan.head != "separate":  # of those, no error waits for another partition's numbers
        rounds.append(_busiest((q, p, plan.head_elements(q) * batch) for q in holders for p in holders if p != q))
    for stage in range(len(plan.stages)):
        rounds.append(_busiest((e.producer, e.consumer, e.elements * batch) for e in plan.edges(stage)))
        rounds.append(_busiest((e.consumer, e.producer, e.elements * batch) for e in plan.backward_edges(stage)))
        rounds.append(_busiest((p.sender, p.owner, p.elements) for p in plan.partials(stage)))
        rounds.append(_busiest((p.owner, p.sender, p.elements) for p in plan.partials(stage)))
    return [elements for elements in rounds if elements]


def _exchanged_s(plan: PartitionPlan, conditions: Conditions) -> float:
    """Returns the time in which one flight waits for what goes between partitions."""
    link, found = conditions.link, exchanges(plan, conditions.batch)
    each_s = link.latency_s + 2 * link.processor_s_per_block
    return len(found) * each_s + sum(found) * ELEMENT_BYTES / link.bytes_per_s


def _busiest(transfers: Iterable[tuple[int, int, int]]) -> int:
    """Returns the most elements that one partition sends or receives, of (sender, receiver, elements)."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for sender, receiver, elements in transfers:
        sent[sender] += elements
        received[receiver] += elements
    return max((*sent.values(), *received.values()), default=0)
