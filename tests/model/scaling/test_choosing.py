"""Machines are shared out so that nothing could be had for nothing: against sizes that were all tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.partition.cost import Conditions, Link
from adamctl.model.partition.work import Pushing
from adamctl.model.scaling.choosing import Planned, binding, check_partitions, choose, run
from adamctl.model.scaling.cluster import Cluster, ReplicaWork, ServerWork
from adamctl.model.scaling.machines import Planner, Size, Training
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates
from adamctl.model.scaling.station import StationRates
from tests.model.partition.machines import Even

MODEL = Model((12, 12, 2), (Conv2D(4, 3, padding="same"), Dense(64), Softmax(10)))
SERVERS = ServerRates("sgd", 0, 1e9, 2e9, 1e10)


def planner(bytes_per_s: float = 1e6, data: DataRates | None = None, **changes: object) -> Planner:
    conditions = Conditions(8, 1, 2, 2, 1, Pushing(8, 1, "gradient"), Link(bytes_per_s, 1e-4))
    return Planner(Training(MODEL, conditions, **changes), Even(1e7), ServingRates(SERVERS, data))  # type: ignore[arg-type]


def chosen(one: Planner, machines: int, **options: object) -> Planned:
    found = choose(one, machines, (1,), **options)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("bytes_per_s", [1e6, 5e6, 1e8])
@pytest.mark.parametrize("machines", [6, 12])
def test_the_choice_is_as_fast_as_the_best_of_all(machines: int, bytes_per_s: float) -> None:
    one = planner(bytes_per_s)
    best = max(
        run(one.cluster(Size(1, machines - servers, servers, 0)), 0).examples_per_s for servers in range(1, machines)
    )
    found = chosen(one, machines)
    assert found.size.machines <= machines
    assert found.outcome.examples_per_s > 0.93 * best


def test_slow_links_need_more_servers_and_fast_ones_few() -> None:
    slow, fast = (chosen(planner(bytes_per_s), 20).size for bytes_per_s in (2e6, 1e9))
    assert slow.servers > fast.servers == 1


def test_more_machines_are_never_slower() -> None:
    rates = [chosen(planner(), machines).outcome.examples_per_s for machines in (2, 4, 8, 16, 32)]
    assert all(more > fewer for fewer, more in pairwise(rates))


def test_as_many_data_servers_as_decoding_needs() -> None:
    alone = chosen(planner(1e9), 20).outcome.examples_per_s / 19
    found = chosen(planner(1e9, DataRates(4 * alone, 100.0, 10**6)), 20)
    assert found.size.data_servers in (4, 5)
    assert found.outcome.data_decode_share < 0.9
    few = chosen(planner(1e9, DataRates(4 * alone, 100.0, 10**6)), 20, data_servers=1)
    assert few.outcome.examples_per_s == pytest.approx(4 * alone, rel=0.02)
    assert few.binds == "data servers' threads"


def test_a_pass_of_few_batches_has_work_for_few() -> None:
    """Ten batches: of twenty replicas at most ten train at a time."""
    many, few = (planner(1e9, DataRates(1e9, 1.0, 8 * batches)) for batches in (10**5, 10))
    size = Size(1, 20, 2, 1)
    whole, short = (run(one.cluster(size), 0) for one in (many, few))
    assert short.examples_per_s < 0.6 * whole.examples_per_s
    assert short.waited_shares["data"] > 0.4
    assert binding(few.cluster(size), short) == "ends of passes"


def test_what_binds_is_named() -> None:
    assert chosen(planner(1e9), 8).binds == "compute"
    assert chosen(planner(2e5), 8, servers=1).binds == "servers' links"
    loops = planner(1e9)
    slow = replace(loops.training.conditions, link=Link(1e9, 1e-4, 1e-6))
    loops = Planner(replace(loops.training, conditions=slow, server_cores=8.0), Even(1e9), loops.serving)
    assert chosen(loops, 8, servers=1).binds == "servers' event loops"
    seldom = replace(loops.training.conditions, steps_per_push=100, link=Link(2e5, 1e-4))  # blocks, not pushes
    cut = Planner(replace(loops.training, conditions=seldom), Even(1e7), loops.serving).cluster(Size(2, 1, 8, 0))
    assert binding(cut, run(cut, 0)) == "workers' links"
    steps = planner(1e6, keeps_to_steps=True)
    found = chosen(steps, 8, servers=4)
    assert binding(found.cluster, found.outcome) in ("steps in step", "compute", "servers' links")


@pytest.mark.parametrize(("replicas", "threads"), [(16, 64), (17, 64), (11, 96), (3, 400), (1, 1000)])
@pytest.mark.parametrize("full", [False, True], ids=["compute", "servers' links"])
def test_of_many_contexts_all_replicas_count_within_1_percent(replicas: int, threads: int, full: bool) -> None:
    computed = replicas * threads * 10  # examples per second: a batch of ten takes a second
    servers = computed * (0.5 if full else 2.0)
    link_bytes_per_s = servers / 10 * 100  # a push and a fetch of 100 bytes for each batch
    work = ReplicaWork(threads, 1.0, 10, slots=2, push_bytes=100.0, fetch_bytes=100.0)
    found = run(Cluster(replicas, work, ServerWork(StationRates(link_bytes_per_s))), 0)
    assert found.examples_per_s == pytest.approx(min(computed, servers), rel=0.01)


def test_too_few_machines_and_too_many_partitions() -> None:
    assert choose(planner(), 2, (3,)) is None
    assert check_partitions(planner(), (1, 2, 200)) == (1, 2)
    with pytest.raises(ConfigurationError, match="partitions"):
        check_partitions(planner(), (200,))
    assert choose(planner(), 4, (1,), servers=4) is None


def test_what_does_not_fit_the_memory_is_left_out() -> None:
    one = planner()
    sizes = [one.inside(Size(number, 1, number, 0)).memory_bytes for number in (1, 2)]
    for limit_bytes, fitting in ((sizes[0], (1, 2)), (sizes[1], (2,))):
        limited = replace(one.training.conditions, memory_bytes=limit_bytes)
        made = Planner(replace(one.training, conditions=limited), Even(1e7), one.serving)
        assert check_partitions(made, (1, 2)) == fitting
    with pytest.raises(ConfigurationError, match="smallest number of partitions that fits is 2"):
        check_partitions(made, (1,))


def test_too_few_machines_for_servers_of_their_own_are_shared() -> None:
    data = DataRates(1e4, 100.0, 1000)
    one, three = (chosen(planner(1e6, data), machines) for machines in (1, 3))
    assert (one.together, one.size) == (True, Size(1, 1, 1, 1))
    assert not three.together
    alone = planner(1e6, data).inside(one.size).examples_per_s
    assert 0.5 * alone < one.outcome.examples_per_s < alone  # servers take some of the worker's time
    pair = choose(planner(1e6, data), 2, (1,))
    assert pair is not None and pair.together and pair.size.replicas == 2


def test_the_servers_that_are_asked_for_are_used() -> None:
    assert chosen(planner(), 10, servers=3).size == Size(1, 7, 3, 0)
