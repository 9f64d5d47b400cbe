"""Which role runs where: promises that hold for any experiment on any hosts, under many seeds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from adamctl.config.experiment import ClusterConfig, Experiment, TrainConfig
from adamctl.launch.hosts.placement import FRONT, Offer, Placed, place_roles, workers_on
from adamctl.model.description import Model, Softmax

SEEDS = 300


def experiment(cluster: ClusterConfig, train: TrainConfig | None = None) -> Experiment:
    return Experiment(name="small", model=Model((4,), (Softmax(2),)), cluster=cluster, train=train or TrainConfig())


def on(hosts: int, cluster: ClusterConfig, cores: int = 8) -> tuple[Placed, ...]:
    return place_roles(experiment(cluster), [Offer(f"host-{number}", cores) for number in range(1, hosts + 1)])


def homes(placed: tuple[Placed, ...], role: str) -> list[str]:
    return [one.host for one in placed if one.role == role]


def test_two_hosts() -> None:
    placed = on(2, ClusterConfig(ps=2, data=1))
    assert [(one.node, one.host, one.threads) for one in placed] == [
        ("controller", FRONT, 0),
        ("coordinator", FRONT, 0),
        ("worker-1", "host-1", 6),
        ("worker-2", "host-2", 5),
        ("ps-1", "host-1", 2),
        ("ps-2", "host-2", 2),
        ("data-1", "host-2", 1),
    ]


def test_from_three_hosts_on_no_single_host_holds_the_controllers() -> None:
    for hosts in (3, 4, 7, 300):
        assert len(set(homes(on(hosts, ClusterConfig()), "controller"))) == 3
        assert FRONT not in homes(on(hosts, ClusterConfig()), "controller")


def test_partitions_fill_whole_replicas() -> None:
    assert [workers_on(experiment(ClusterConfig(workers=2, partitions=2)), hosts) for hosts in range(1, 6)] == [
        2,
        2,
        2,
        4,
        4,
    ]
    placed = on(1, ClusterConfig(workers=4, partitions=4))
    assert [one.threads for one in placed if one.role == "worker"] == [1, 1, 1, 1], "they share the cores that are left"
    assert len(homes(on(7, ClusterConfig(workers=2, partitions=2)), "worker")) == 6


def test_a_run_without_servers_is_one_replica() -> None:
    assert len(homes(on(4, ClusterConfig(ps=0)), "worker")) == 1


def test_threads_that_are_given_are_kept() -> None:
    placed = on(2, ClusterConfig(threads=3, apply_threads=5))
    assert {one.threads for one in placed if one.role == "worker"} == {3}
    assert {one.threads for one in placed if one.role == "ps"} == {5}
    in_step = place_roles(
        experiment(ClusterConfig(), TrainConfig(consistency="sync")), [Offer("a", 16), Offer("b", 16)]
    )
    assert {one.threads for one in in_step if one.role == "worker"} == {1}


def test_no_host_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one host"):
        place_roles(experiment(ClusterConfig()), [])


def test_any_experiment_on_any_hosts() -> None:
    for seed in range(SEEDS):
        random = Random(seed)
        partitions = random.choice([1, 1, 1, 2, 3, 4])
        cluster = ClusterConfig(
            workers=partitions, partitions=partitions, ps=random.randint(1, 12), data=random.randint(1, 5)
        )
        offers = [Offer(f"h{number}", random.choice([1, 2, 4, 16, 96])) for number in range(random.randint(1, 20))]
        random.shuffle(offers)
        run = experiment(cluster)
        placed = place_roles(run, offers)
        assert placed == place_roles(run, offers), f"seed {seed}: the same twice"
        names, count = {offer.name for offer in offers}, len(offers)
        assert len({one.node for one in placed}) == len(placed), f"seed {seed}"
        found = Counter(one.role for one in placed)
        assert found["ps"] == cluster.ps and found["data"] == cluster.data and found["coordinator"] == 1
        assert found["worker"] % partitions == 0 and found["worker"] >= partitions
        assert {one.host for one in placed if one.role in ("ps", "data", "worker")} <= names, f"seed {seed}"
        for role in ("ps", "data", "worker"):
            spread = Counter(homes(placed, role))
            most, least = max(spread.values()), min(spread.get(name, 0) for name in names)
            assert most - least <= 1, f"seed {seed}: {role} are spread evenly: {spread}"
        assert found["worker"] > count - partitions or found["worker"] == partitions, f"seed {seed}: no host is idle"
        controllers = homes(placed, "controller")
        assert controllers == [FRONT] if count < 3 else len(set(controllers)) == 3, f"seed {seed}"
        cores = {offer.name: offer.cores for offer in offers}
        for name in names:
            busy = sum(one.threads for one in placed if one.host == name)
            roles = sum(one.threads > 0 for one in placed if one.host == name)
            assert busy <= max(cores[name], roles), f"seed {seed}: {name} has {cores[name]} cores and {busy} threads"
