"""Which role runs on which host: a pure function of the experiment and of what hosts offer.

controllers          below three hosts one, beside the front; else three, each on a host of its own
coordinator          beside the front, where experiment and run folder are
parameter servers    spread over hosts, so that copies find hosts of their own
data servers         spread over hosts, from the other end
workers              one on each host, or, with fewer hosts than partitions, as many as a replica needs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from adamctl.config.experiment import Experiment

FRONT = ""
"""Stands for the host of the front."""
CONTROLLERS = 3
APPLY_SHARE, DECODE_SHARE = 4, 8
"""Of a host's cores, a quarter applies updates where there are parameter servers, and an eighth decodes where there are
data servers."""


@dataclass(frozen=True)
class Offer:
    """A host, and what of it may be used."""

    name: str
    cores: int


@dataclass
class KnownHost:
    """A host of a run, lost or there.

    `until_s`: when it is taken away; infinity: not known to be. `replaced`: whether another one was asked for.
    """

    offer: Offer
    lost: bool = False
    until_s: float = inf
    replaced: bool = False

    @property
    def usable(self) -> bool:
        return not self.lost and self.until_s == inf


@dataclass(frozen=True)
class Placed:
    """A role on a host. `threads`: of a worker's steps, of a server's updates, of decoding; 0 for other roles."""

    role: str
    node: str
    host: str
    threads: int = 0


def place_roles(experiment: Experiment, hosts: Sequence[Offer]) -> tuple[Placed, ...]:
    """Returns every role of a run on these hosts, in the order in which they are started.

    There are as many workers as `workers_on` says. `cluster.ps` and `cluster.data` say how many of these there are.

    Raises:
        ValueError: there is no host.
    """
    if not hosts:
        raise ValueError("expected at least one host")
    count, names = len(hosts), [host.name for host in hosts]
    cluster = experiment.cluster
    homes = [names[number * count // CONTROLLERS] for number in range(CONTROLLERS)] if count >= CONTROLLERS else [FRONT]
    controllers = [(_numbered("controller", number, len(homes)), home) for number, home in enumerate(homes, 1)]
    servers = [(f"ps-{number + 1}", names[number % count]) for number in range(cluster.ps)]
    data = [(f"data-{number + 1}", names[-1 - number % count]) for number in range(cluster.data)]
    workers = [(f"worker-{number + 1}", names[number % count]) for number in range(workers_on(experiment, count))]
    here = {
        "ps": Counter(home for _, home in servers),
        "data": Counter(home for _, home in data),
        "worker": Counter(home for _, home in workers),
    }
    cores = {host.name: host.cores for host in hosts}
    return (
        *(Placed("controller", node, home) for node, home in controllers),
        Placed("coordinator", "coordinator", FRONT),
        *(
            Placed(role, node, home, threads_of(experiment, role, cores[home], {one: here[one][home] for one in here}))
            for role, found in (("worker", workers), ("ps", servers), ("data", data))
            for node, home in found
        ),
    )


def workers_on(experiment: Experiment, hosts: int) -> int:
    """Returns how many workers a run has on so many hosts: one each, in whole replicas, and at least one replica."""
    partitions = partitions_of(experiment)
    if experiment.has_own_parameters:
        return partitions  # the only replica
    return max(hosts // partitions, 1) * partitions


def partitions_of(experiment: Experiment) -> int:
    """Returns the workers of a replica; the number must be settled."""
    partitions = experiment.cluster.partitions
    assert partitions != "auto", "settled before roles are placed"
    return partitions


def threads_of(experiment: Experiment, role: str, cores: int, beside: Mapping[str, int]) -> int:
    """Returns the threads of one role on a host with so many cores.

    Args:
        beside: role -> how many of them the host has, this one included.
    """
    given = experiment.cluster.apply_threads
    apply = _share(cores // APPLY_SHARE, beside.get("ps", 0)) if given == "auto" else given
    decode = _share(cores // DECODE_SHARE, beside.get("data", 0))
    if role == "ps":
        return apply
    if role == "data":
        return decode
    if role != "worker":
        return 0
    if experiment.train.in_step:
        return 1
    if experiment.cluster.threads != "auto":
        return experiment.cluster.threads
    left = cores - apply * beside.get("ps", 0) - decode * beside.get("data", 0)
    return max(left // max(beside.get("worker", 1), 1), 1)


def _share(threads: int, roles: int) -> int:
    """Returns what each of some roles gets of so many threads, at least 1."""
    return max(threads // max(roles, 1), 1)


def _numbered(role: str, number: int, count: int) -> str:
    return role if count == 1 else f"{role}-{number}"
