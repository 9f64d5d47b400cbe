"""From a network, its cuts and measured rates to a cluster that can be simulated (pure).

Every worker, every parameter server and every data server has a machine of its own, all alike, with one link to the
others. The front, with controllers and coordinator, is one more machine and has next to nothing to do. What a replica
does inside is priced with what pushes, fetches and examples leave of its links; the processor time that pushes and
fetches take is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from adamctl.model.description import Model
from adamctl.model.layout import ELEMENT_BYTES, build_layout, tensors_of
from adamctl.model.partition.cost import NEVER, Conditions, Price, price
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Machine
from adamctl.model.partition.rules import cuts_for, make_plan
from adamctl.model.partition.stages import CutAxis
from adamctl.model.partition.work import (
    SLOTS_PER_THREAD,
    Factored,
    Pushing,
    factored_by,
    parameter_traffic,
    pushed_work,
)
from adamctl.model.placement import place_buckets
from adamctl.model.scaling.cluster import Cluster, DataWork, ReplicaWork, ServerWork
from adamctl.model.scaling.rates import ServingRates
from adamctl.model.scaling.station import UNLIMITED_BYTES_PER_S, StationRates

PLACED_MOST = 64
"""Most servers for which buckets are placed one by one; with more, all are taken to have as much as each other."""
RANGES_PER_REPLICA = 8
"""That of `adamctl.roles.coordinator.core.ranges`, likewise."""
AGREEING, AGREEING_MOST = 0.01, 10
"""How near two intervals are that agree, and after how many tries the last one is taken."""


class Size(NamedTuple):
    """How many there are of each: replicas of `partitions` workers each, parameter servers, data servers."""

    partitions: int
    replicas: int
    servers: int
    data_servers: int

    @property
    def machines(self) -> int:
        return self.partitions * self.replicas + self.servers + self.data_servers


@dataclass(frozen=True)
class Training:
    """How an experiment trains, as far as its speed depends on it.

    Attributes:
        conditions: of one replica; its link is that of every machine.
        steps_per_fetch: n_fetch; None: a fetch follows each push.
        may_wait: a thread waits for its fetch where that is near, for as long as the run is.
        copies: of each part of the model.
        apply_threads, decode_threads: of each parameter server and data server.
        server_cores: of a parameter server's machine.
        core_share: of a core, that a worker's thread has for sending and receiving.
    """

    model: Model
    conditions: Conditions
    steps_per_fetch: int | None = None
    may_wait: bool = False
    keeps_to_steps: bool = False
    staleness_most: int | None = None
    copies: int = 1
    apply_threads: int = 1
    decode_threads: int = 1
    server_cores: float = 2.0
    core_share: float = 1.0
    range_batches: int = 8
    pass_fraction: float = 1.0
    cuts: Mapping[str, Cut | CutAxis] = field(default_factory=dict)


class Planner:
    """Makes clusters of any size for one experiment on one kind of machine."""

    def __init__(self, training: Training, machine: Machine, serving: ServingRates) -> None:
        """`machine`: what computes."""
        self.training, self.serving = training, serving
        self._machine = machine
        self._tensors = tensors_of(training.model)
        self._plans: dict[int, PartitionPlan] = {}
        self._prices: dict[tuple[int, tuple[Factored, ...], float, float], Price] = {}
        self._shares: dict[tuple[int, int], float] = {}

    def cluster(self, size: Size, *, spread: float = 0.0, jitter: float = 0.0, placed: bool = True) -> Cluster:
        """Returns a cluster of a size; `spread`, `jitter`: see `Cluster`.

        `placed`: buckets are placed, to find the busiest server; else all servers have as much, which is faster.

        Raises:
            ConfigurationError: the network cannot be cut into so many partitions.
        """
        plan, pushing = self._plan(size.partitions), self._pushing(size)
        link = self.training.conditions.link
        pushed, fetched = self._traffic(plan, pushing)
        share, per_push = self._share(plan, size.servers, placed), self.training.conditions.steps_per_push
        example_bytes = self._example_bytes(plan)
        sent, received = pushed / per_push, fetched / (self.training.steps_per_fetch or per_push)
        examples = max(example_bytes) * self.training.conditions.batch
        inside = self._beside(size, sent, received + examples)
        own_out = _left(link.bytes_per_s, sent, max(inside.sent_bytes), inside.interval_s)
        own_in = _left(link.bytes_per_s, received, max(inside.received_bytes) + examples, inside.interval_s)
        rates = StationRates(
            link.bytes_per_s, own_out * share, own_in * share, link.processor_s_per_byte, link.processor_s_per_byte,
            self.training.server_cores, self.training.apply_threads,
        )  # fmt: skip
        work = self._work(inside, size, pushed, fetched)
        work = replace(work, push_bytes=work.push_bytes * share, fetch_bytes=work.fetch_bytes * share)
        server = self._server(plan, pushing, share, rates)
        data = self._data(size, sum(example_bytes))
        return Cluster(size.replicas, work, server, data, link.latency_s, spread, jitter)

    def together(self, size: Size, machines: int, *, spread: float = 0.0, jitter: float = 0.0) -> Cluster:
        """Returns a cluster whose server and data server are on machines of workers, whose cores they use, too.

        What servers compute is spread over all workers' threads. On one machine nothing goes through a link.
        """
        cluster = self.cluster(size, spread=spread, jitter=jitter)
        work, server, conditions = cluster.work, cluster.server, self.training.conditions
        loop_s = work.push_bytes * server.rates.receive_s_per_byte
        loop_s += work.fetch_bytes / work.pushes_per_fetch * server.rates.send_s_per_byte
        served_s = (server.first_s * server.rates.apply_cores + loop_s) / work.steps_per_push
        if self.serving.data is not None:
            served_s += work.batch / self.serving.data.examples_per_s
        threads = machines * conditions.threads
        work = replace(work, batch_s=work.batch_s + served_s * size.replicas * work.contexts / threads)
        if machines > 1:
            return replace(cluster, work=work)
        free = UNLIMITED_BYTES_PER_S
        rates = replace(server.rates, link_bytes_per_s=free, in_each_bytes_per_s=free, out_each_bytes_per_s=free)
        data = None if cluster.data is None else replace(cluster.data, example_bytes_s=0.0)
        return replace(cluster, work=work, server=replace(server, rates=rates), data=data)

    def inside(self, size: Size) -> Price:
        """Returns what one replica costs by itself, without pushes and fetches."""
        return self._beside(size, 0.0, 0.0)

    def _beside(self, size: Size, sent: float, received: float) -> Price:
        """Returns what one replica costs whose links carry so many other bytes, too, for each batch."""
        plan, pushing = self._plan(size.partitions), self._pushing(size)
        factored = tuple(factored_by(plan, p, pushing) for p in range(plan.partitions))
        if plan.partitions == 1:
            sent = received = 0.0  # it has no blocks that would wait
        key = (size.partitions, factored, sent, received)
        if key not in self._prices:
            if sent or received:
                self._prices[key] = self._agreed(size, sent, received)
            else:
                self._prices[key] = self._priced(plan, pushing, self.training.conditions.link.bytes_per_s)
        return self._prices[key]

    def _agreed(self, size: Size, sent: float, received: float) -> Price:
        """Returns a price whose interval is that at which a link has room for all.

        The longer an interval is, the more of a link do other bytes leave for blocks, and the shorter it can be.
        """
        plan, pushing, rate = (
            self._plan(size.partitions),
            self._pushing(size),
            self.training.conditions.link.bytes_per_s,
        )
        found = self.inside(size)
        interval_s, blocks = found.interval_s, (max(found.sent_bytes), max(found.received_bytes))
        for _ in range(AGREEING_MOST):
            left = (_left(rate, own, other, interval_s) for own, other in zip(blocks, (sent, received), strict=True))
            found = self._priced(plan, pushing, min(left))
            if abs(found.interval_s - interval_s) <= AGREEING * interval_s:
                break
            interval_s = (interval_s + found.interval_s) / 2
        return found

    def _priced(self, plan: PartitionPlan, pushing: Pushing, link_bytes_per_s: float) -> Price:
        conditions = self.training.conditions
        link = replace(conditions.link, bytes_per_s=link_bytes_per_s)
        return price(plan, self._machine, replace(conditions, pushing=pushing, steps_per_push=NEVER, link=link))

    def _pushing(self, size: Size) -> Pushing:
        """Returns how replicas push to so many servers; one fetch is of all that a partition holds."""
        return self.training.conditions.pushing._replace(servers=size.servers, fetch_per_push=1.0)

    def _plan(self, partitions: int) -> PartitionPlan:
        if partitions not in self._plans:
            cuts = cuts_for(self.training.cuts, partitions)
            self._plans[partitions] = make_plan(self.training.model, partitions, cuts)
        return self._plans[partitions]

    def _traffic(self, plan: PartitionPlan, pushing: Pushing) -> tuple[float, float]:
        """Returns the bytes of one push and of one fetch of the partition that has most."""
        found = [parameter_traffic(plan, self._tensors, p, pushing) for p in range(plan.partitions)]
        return max(push for push, _ in found), max(fetch for _, fetch in found)

    def _work(self, inside: Price, size: Size, pushed: float, fetched: float) -> ReplicaWork:
        training, conditions = self.training, self.training.conditions
        per_push, link, contexts = conditions.steps_per_push, conditions.link, conditions.threads
        to_fetch = 1.0 if training.steps_per_fetch is None else training.steps_per_fetch / per_push
        fetched /= min(to_fetch, 1.0)  # several fetches for a push are one of as many bytes
        network_s = (pushed + fetched / max(to_fetch, 1.0)) / per_push * link.processor_s_per_byte
        network_s /= training.core_share
        if size.partitions > 1:
            contexts = conditions.flights
            batch_s = (inside.interval_s + network_s / conditions.threads) * contexts
        else:
            batch_s = inside.compute_s[0] + network_s
        if training.keeps_to_steps:
            if size.partitions > 1:  # the batch's flights follow each other
                batch_s = inside.interval_s + (inside.flight_s - inside.interval_s) / conditions.flights + network_s
            contexts = 1
        return ReplicaWork(
            contexts, batch_s, conditions.batch, per_push, max(round(to_fetch), 1), training.steps_per_fetch is None,
            training.may_wait, SLOTS_PER_THREAD, pushed, fetched, training.keeps_to_steps, training.staleness_most,
            inside.binds.startswith("link"),
        )  # fmt: skip

    def _server(self, plan: PartitionPlan, pushing: Pushing, share: float, rates: StationRates) -> ServerWork:
        serving, training = self.serving.servers, self.training
        works = [pushed_work(plan, self._tensors, p, pushing) for p in range(plan.partitions)]
        additions, products = (max(column) * share / training.apply_threads for column in zip(*works, strict=True))
        factors_s = products / serving.products_per_s
        held_bytes = sum(tensor.size for tensor in self._tensors) * ELEMENT_BYTES / plan.partitions * share
        return ServerWork(
            rates,
            additions / serving.apply_per_s + factors_s,
            additions / serving.apply_more_per_s + factors_s,
            (training.copies - 1) * held_bytes * (1 + serving.state_vectors),
        )

    def _data(self, size: Size, example_bytes: float) -> DataWork | None:
        rates, training = self.serving.data, self.training
        if rates is None or not size.data_servers:
            return None
        range_batches, workers = training.range_batches, size.replicas * size.partitions
        if workers > 1 and not training.keeps_to_steps:  # several workers share a short pass in shorter ranges
            shared = rates.examples // training.conditions.batch // (RANGES_PER_REPLICA * workers)
            range_batches = max(min(range_batches, shared), 1)
        return DataWork(
            size.data_servers,
            1 / (rates.examples_per_s * training.decode_threads),
            example_bytes / training.conditions.link.bytes_per_s,
            range_batches,
            pass_examples=rates.examples,
            pass_fraction=training.pass_fraction,
        )

    def _example_bytes(self, plan: PartitionPlan) -> list[float]:
        """Returns what of each example goes to each partition."""
        if self.serving.data is None:
            return [0.0] * plan.partitions
        whole = prod(self.training.model.input)
        regions = [region_size(part.inputs) for part in plan.stages[0].parts]
        return [self.serving.data.example_bytes * region / whole for region in regions]

    def _share(self, plan: PartitionPlan, servers: int, placed: bool) -> float:
        """Returns what the busiest server has, over what the largest partition holds."""
        key = (plan.partitions, servers)
        if not placed or servers > PLACED_MOST:
            return plan.partitions / servers
        if key not in self._shares:
            layout = build_layout(self.training.model, servers, plan.owners)
            held = [0] * plan.partitions
            place = place_buckets(layout, "", [f"ps-{number:03}" for number in range(servers)])
            loads = dict.fromkeys(place.values(), 0)
            for bucket in layout.buckets:
                held[layout.partition_of_bucket[bucket.index]] += bucket.size_bytes
                loads[place[bucket.index]] += bucket.size_bytes
            self._shares[key] = max(loads.values()) / max(held)
        return self._shares[key]


def _left(link_bytes_per_s: float, own_bytes: float, other_bytes: float, batch_s: float) -> float:
    """Returns what a worker's link has for some bytes of each batch, beside others that it carries.

    That is what is left of it or, where the link itself is what binds, its share.
    """
    if own_bytes <= 0:
        return link_bytes_per_s
    shared = link_bytes_per_s * own_bytes / (own_bytes + other_bytes)
    return max(shared, link_bytes_per_s - other_bytes / batch_s)
