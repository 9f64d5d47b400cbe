"""How a number of machines is best shared out among workers, parameter servers and data servers (pure).

How busy servers would be if nothing held the replicas up says how many are worth trying; what each of these is worth,
the simulation says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from adamctl.errors import ConfigurationError
from adamctl.model.partition.cost import Price
from adamctl.model.partition.search import smallest_that_fits, too_large
from adamctl.model.scaling.cluster import Cluster, Outcome
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.simulation import simulate

BUSY_TRIED = (4.0, 2.5, 1.6, 1.1, 0.8, 0.55)
"""Shares of their time that servers would be at work if nobody waited for them, for which their number is tried. Above
1 replicas wait, which may still be the best use of few machines on a slow network."""
DATA_BUSY = 0.8
WORTH = 0.01
"""Share of the speed that more servers must gain, to be worth the workers whose machines they take."""
AT_WORK = 0.5
"""Share of the time below which nothing is called busy: replicas wait for each other and for answers."""
PUSHES_MOST = 8_000
"""Pushes that one simulation follows, about: some tenths of a second."""
CONTEXTS_MOST = 500
"""Contexts that are followed one by one; of more, groups are."""
PASSES_LEAST = 3
"""Passes that a simulation is to see. Where they are longer, they do not end in it."""
WARM_LEAST, COUNTED_LEAST = 6, 6
COUNTED_MOST = 50


@dataclass(frozen=True)
class Planned:
    """A size, and what it was found to do.

    Attributes:
        together: servers and data servers are on the workers' machines, since there are too few for each its own.
        binds: what is at work all of the time, or nearly.
    """

    size: Size
    cluster: Cluster
    outcome: Outcome
    together: bool = False

    @property
    def binds(self) -> str:
        return binding(self.cluster, self.outcome)


def run(cluster: Cluster, seed: int) -> Outcome:
    """Follows a cluster for as long as tells its speed: all replicas, or groups of them where they are many."""
    work = cluster.work
    contexts = cluster.replicas * work.contexts
    members = contexts // CONTEXTS_MOST
    if members > 1 and not work.keeps_to_steps and work.staleness_most is None:
        return _followed(cluster.grouped(max(round(cluster.replicas / members), 1)), seed)
    return _followed(cluster, seed)


def _followed(cluster: Cluster, seed: int) -> Outcome:
    contexts = cluster.replicas * cluster.work.contexts
    counted = min(max(PUSHES_MOST // contexts - WARM_LEAST, COUNTED_LEAST), COUNTED_MOST)
    data, batches = cluster.data, contexts * counted * cluster.work.steps_per_push
    if data is not None and (data.pass_examples or 0) * PASSES_LEAST > batches * cluster.work.batch:
        cluster = replace(cluster, data=replace(data, pass_examples=None))  # what its ends cost hardly counts
    return simulate(cluster, warm=WARM_LEAST, counted=counted, seed=seed)


def choose(
    planner: Planner,
    machines: int,
    partitions: Sequence[int],
    *,
    servers: int | None = None,
    data_servers: int | None = None,
    spread: float = 0.0,
    jitter: float = 0.0,
    seed: int = 0,
) -> Planned | None:
    """Returns the fastest way found to use so many machines; None if they are too few for one replica.

    Where they are too few for servers beside it, one server and one data server share the workers' machines, unless
    their number is given.

    Args:
        partitions: numbers of workers of a replica that are tried.
        servers, data_servers: how many; None: what is best.

    Raises:
        ConfigurationError: the network cannot be cut into any of these numbers.
    """
    best: Planned | None = None
    for number in partitions:
        for size in dict.fromkeys(_sizes(planner, machines, number, servers, data_servers)):
            cluster = planner.cluster(size, spread=spread, jitter=jitter)
            found = Planned(size, cluster, run(cluster, seed))
            if best is None or found.outcome.examples_per_s > best.outcome.examples_per_s * (1 + WORTH):
                best = found
    if best is None and servers is None and data_servers is None:
        return _together(planner, machines, partitions, spread, jitter, seed)
    return best


def _together(
    planner: Planner, machines: int, partitions: Sequence[int], spread: float, jitter: float, seed: int
) -> Planned | None:
    """Returns the fastest way found to use machines that workers share with a server and a data server."""
    data = int(planner.serving.data is not None)
    found = []
    for number in partitions:
        if number <= machines:
            size = Size(number, machines // number, 1, data)
            cluster = planner.together(size, machines, spread=spread, jitter=jitter)
            found.append(Planned(size, cluster, run(cluster, seed), together=True))
    return max(found, key=lambda one: one.outcome.examples_per_s, default=None)


def busy(cluster: Cluster) -> tuple[float, float]:
    """Returns what share of their time the busiest server, and data servers, would be at work if nothing waited."""
    work, server = cluster.work, cluster.server
    rates = server.rates
    pushes_per_s = cluster.replicas * work.contexts / (work.batch_s * work.steps_per_push)
    fetch_bytes = work.fetch_bytes / work.pushes_per_fetch
    loop_s = work.push_bytes * rates.receive_s_per_byte + fetch_bytes * rates.send_s_per_byte
    apply_s = server.more_s
    shares = (
        pushes_per_s * work.push_bytes / rates.link_bytes_per_s,
        pushes_per_s * fetch_bytes / rates.link_bytes_per_s,
        pushes_per_s * loop_s,
        pushes_per_s * apply_s,
        pushes_per_s * (loop_s + apply_s * rates.apply_cores) / rates.cores,
    )
    data = cluster.data
    if data is None:
        return max(shares), 0.0
    examples_per_s = pushes_per_s * work.steps_per_push * work.batch
    return max(shares), examples_per_s * max(data.example_s, data.example_bytes_s) / data.servers


def binding(cluster: Cluster, outcome: Outcome) -> str:
    """Returns what is at work for the largest share of the time, or what replicas wait for where nothing is."""
    work, server = cluster.work, cluster.server
    pushes_per_s = outcome.examples_per_s / work.batch / work.steps_per_push / cluster.replicas
    shares = {
        "compute": outcome.compute_share,
        "servers' links": max(outcome.server_in_share, outcome.server_out_share),
        "servers' event loops": outcome.server_loop_share,
        "servers' cores": outcome.server_cores_share,
        "data servers' threads": outcome.data_decode_share,
        "data servers' links": outcome.data_link_share,
        "workers' links": pushes_per_s
        * max(
            work.push_bytes / server.rates.in_each_bytes_per_s,
            work.fetch_bytes / work.pushes_per_fetch / server.rates.out_each_bytes_per_s,
        ),
    }
    if work.waits_for_links:
        shares["workers' links"] = max(shares["workers' links"], shares.pop("compute"))
    name, share = max(shares.items(), key=lambda one: one[1])
    waited = outcome.waited_shares["data"]
    if cluster.data is not None and waited > max(shares.values()):
        return "ends of passes"  # examples are waited for, and nothing is busy that brings them
    if share < AT_WORK and work.keeps_to_steps:
        return "steps in step"
    return name


def _sizes(
    planner: Planner, machines: int, partitions: int, servers: int | None, data_servers: int | None
) -> Iterator[Size]:
    """Yields sizes that are worth a simulation."""
    for target in BUSY_TRIED:
        data = data_servers if data_servers is not None else int(planner.serving.data is not None)
        size = _with(planner, machines, partitions, servers, data, target)
        for _ in range(2 if data_servers is None and data else 0):  # they take machines from the replicas they serve
            if size is not None:
                data = max(ceil(data * busy(planner.cluster(size, placed=False))[1] / DATA_BUSY), 1)
                size = _with(planner, machines, partitions, servers, data, target)
        if size is not None:
            yield size


def _with(
    planner: Planner, machines: int, partitions: int, servers: int | None, data: int, target: float
) -> Size | None:
    """Returns a size with so many data servers; None where no replica is left."""
    wanted = _fewest(planner, machines - data, partitions, data, target) if servers is None else servers
    replicas = (machines - data - wanted) // partitions
    return Size(partitions, replicas, wanted, data) if replicas >= 1 and wanted >= 1 else None


def _fewest(planner: Planner, machines: int, partitions: int, data: int, target: float) -> int:
    """Returns the fewest servers that would not be busier than `target`; all that leave one replica if none are."""
    low, high = 1, max(machines - partitions, 1)
    while low < high:
        middle = (low + high) // 2
        replicas = max((machines - middle) // partitions, 1)
        if busy(planner.cluster(Size(partitions, replicas, middle, data), placed=False))[0] <= target:
            high = middle
        else:
            low = middle + 1
    return low


def check_partitions(planner: Planner, partitions: Sequence[int]) -> tuple[int, ...]:
    """Returns those numbers into which the network can be cut, and whose workers have the memory.

    Raises:
        ConfigurationError: there is none.
    """
    found: dict[int, Price] = {}
    problem: ConfigurationError | None = None
    for number in partitions:
        try:
            found[number] = planner.inside(Size(number, 1, number, 0))
        except ConfigurationError as error:
            problem = error
    if problem is not None and not found:
        raise problem
    fitting = tuple(number for number, price in found.items() if price.fits)
    if not fitting:
        training = planner.training
        least_bytes = min(price.memory_bytes for price in found.values())
        smallest = smallest_that_fits(training.model, training.conditions, training.cuts)
        raise too_large("workers", training.conditions.memory_bytes or 0, least_bytes, smallest)
    return fitting
