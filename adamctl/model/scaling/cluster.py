"""What a planned cluster is made of, as far as the simulation needs it: times, bytes and counts (pure).

Replicas, servers and data servers are each alike, but for the spread of speeds. So one server stands for all: a push is
cut into a part for every server, all parts begin together, and a push is applied when its slowest part is. The server
that is simulated is the busiest one, with the largest part of each push; where all are the same size that is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from adamctl.model.scaling.station import StationRates


@dataclass(frozen=True)
class ReplicaWork:
    """What each replica does.

    Attributes:
        contexts: batches under way at once: threads of a whole replica, open flights of one in partitions.
        batch_s: how long one context takes for a batch while all are at work.
        batch: examples; of a group of replicas it may be a fraction.
        steps_per_push: batches of a context between its pushes, n_push.
        pushes_per_fetch: pushes of a context between its fetches.
        fetch_follows: a fetch starts when a push is answered; else together with the push.
        waits_for_fetch: a context begins its next batch when its fetch is there, as long as a round trip takes at most
            `WAIT_SHARE` of the time between its pushes.
        slots: gradients of a context that are accrued or not yet answered, together.
        push_bytes, fetch_bytes: of one push and one fetch, that go to and come from the busiest server.
        keeps_to_steps: replicas go in step; each has one context.
        staleness_most: batches that a replica may be ahead of the slowest; None: no bound.
        waits_for_links: what a context spends most of its time on is the replica's own links.
    """

    contexts: int
    batch_s: float
    batch: float
    steps_per_push: int = 1
    pushes_per_fetch: int = 1
    fetch_follows: bool = True
    waits_for_fetch: bool = False
    slots: int = 4
    push_bytes: float = 0.0
    fetch_bytes: float = 0.0
    keeps_to_steps: bool = False
    staleness_most: int | None = None
    waits_for_links: bool = False


@dataclass(frozen=True)
class ServerWork:
    """What the busiest server does.

    Attributes:
        rates: of its links and cores.
        first_s: that its apply threads take for one push.
        more_s: that they take for each further push of those that are applied together.
        copied_bytes: that it sends to other copies after it has applied what had come; 0 without copies.
    """

    rates: StationRates = field(default_factory=StationRates)
    first_s: float = 0.0
    more_s: float = 0.0
    copied_bytes: float = 0.0


@dataclass(frozen=True)
class DataWork:
    """What data servers do.

    Attributes:
        servers: how many.
        example_s: that one of them takes to decode an example, with all its threads.
        example_bytes_s: that an example takes of its link.
        range_batches: batches that are asked for together.
        ranges_ahead: that a replica has asked for, or holds, and not begun.
        pass_examples: of a pass; None: passes do not end while this is simulated.
        pass_fraction: share of a pass's examples with which it ends, once all are handed out (Adam 3.2.5).
    """

    servers: int = 1
    example_s: float = 0.0
    example_bytes_s: float = 0.0
    range_batches: int = 8
    ranges_ahead: int = 2
    pass_examples: int | None = None
    pass_fraction: float = 1.0


@dataclass(frozen=True)
class Cluster:
    """A cluster.

    Attributes:
        latency_s: of the network, one way.
        spread: standard deviation of the replicas' speeds over their mean; each keeps its own. The mean of those that
            are drawn is that of `work`.
        jitter: the same of one batch's time.
    """

    replicas: int
    work: ReplicaWork
    server: ServerWork = field(default_factory=ServerWork)
    data: DataWork | None = None
    latency_s: float = 0.0
    spread: float = 0.0
    jitter: float = 0.0

    def grouped(self, groups: int) -> Cluster:
        """Returns a cluster of so many groups of replicas, each of which does everything at once, as one replica.

        Where replicas do not divide into groups, each group has a fraction of one, so that all of them count. Links and
        servers have as much to do, in fewer and larger pieces; so a thousand replicas are followed in the time of some
        hundreds. What waits in queues is the same but for chance: speeds differ by less than 1% (tested).
        In step, or with a bound on staleness, all wait for the slowest of all replicas, so groups would not do.
        """
        work, server, members = self.work, self.server, self.replicas / groups
        each = server.rates.in_each_bytes_per_s * members, server.rates.out_each_bytes_per_s * members
        return replace(
            self,
            replicas=groups,
            work=replace(
                work, batch=work.batch * members, push_bytes=work.push_bytes * members,
                fetch_bytes=work.fetch_bytes * members,
            ),
            server=replace(
                server,
                rates=replace(server.rates, in_each_bytes_per_s=each[0], out_each_bytes_per_s=each[1]),
                first_s=server.first_s + (members - 1) * server.more_s,
                more_s=members * server.more_s,
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class Outage:
    """A replica, or the busiest server, does nothing for a time. `replica` None: the server.

    `load_after`: how much larger the part of a push is that goes to each of the servers that are left, and stays.
    """

    from_s: float
    to_s: float
    replica: int | None = None
    load_after: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a simulation found. Shares are of the time that was simulated.

    Attributes:
        examples_per_s: of all replicas, after a beginning that does not count.
        finished_s: when each batch was finished, ascending.
        compute_share: of contexts' time, in which they computed.
        waited_shares: of contexts' time, by what they waited for: `data`, `servers`, `others`.
        server_in_share, server_out_share: of the busiest server's link.
        server_loop_share: of the one thread of its event loop, which receives and sends.
        server_cores_share: of the cores it may use.
        data_decode_share, data_link_share: of the data servers' threads and links.
        pushes, applied, answered: pushes that replicas made, that were applied, and that were answered.
        batches_together: pushes that were applied together, mean.
        fetch_age_s: from the moment that a context pushed until a fetch with that push was there, mean.
        events: of the simulation.
    """

    examples_per_s: float
    finished_s: tuple[float, ...]
    compute_share: float
    waited_shares: dict[str, float]
    server_in_share: float
    server_out_share: float
    server_loop_share: float
    server_cores_share: float
    data_decode_share: float
    data_link_share: float
    pushes: int
    applied: int
    answered: int
    batches_together: float
    fetch_age_s: float
    events: int
