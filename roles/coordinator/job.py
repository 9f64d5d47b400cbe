"""A job on the cluster: its servers, its keys in the configuration service, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.records import (
    Acks,
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ParameterLayout
from adamctl.model.placement import place_copies
from adamctl.optimizers.configured import rule_of
from adamctl.roles.configuration import ConfigurationStore, decode_entry, nodes_of, read_record, wait_for
from adamctl.wire.messages import ConfigChanges, ConfigEntry

NAMES_TRIED_MAX = 1000
FIRST_EPOCH = 1


def partitions_of(experiment: Experiment) -> int:
    """Returns how many workers make one replica.

    Raises:
        ConfigurationError: that is not settled.
    """
    partitions: int | str = getattr(experiment.cluster, "partitions", 1)
    if isinstance(partitions, str):
        raise ConfigurationError(
            f"cluster.partitions = {partitions}: a coordinator expects a number; adamctl train chooses one, and "
            "adamctl plan says which one is fastest"
        )
    return partitions


def replicas_of(experiment: Experiment) -> int:
    """Returns how many replicas the workers of an experiment make."""
    workers, partitions = experiment.cluster.workers, partitions_of(experiment)
    assert partitions >= 1 and workers % partitions == 0, f"{workers} workers, {partitions} partitions"
    return workers // partitions


@dataclass(frozen=True)
class Servers:
    """The nodes a job uses, in a fixed order."""

    parameter: tuple[NodeRecord, ...]
    data: tuple[NodeRecord, ...]


async def find_servers(
    store: ConfigurationStore,
    experiment: Experiment,
    job: str,
    deadline_s: float,
    tell: Callable[[str], None],
    advise: bool = True,
) -> Servers:
    """Waits until enough servers of each kind are registered for the experiment, and chooses among them.

    Args:
        tell: called with what the run waits for, whenever that changes; "" when it waits no longer.
        advise: whether messages say how to start what is missing.

    Raises:
        UnreachableError: not within `deadline_s`.
    """
    counts = {"ps": experiment.cluster.ps, "data": experiment.cluster.data}
    wanted = {role: count for role, count in counts.items() if count}
    acks = experiment.cluster.acknowledged
    what = {role: _count(role, count) for role, count in wanted.items()}
    command = {role: f"adamctl {role} start" for role in wanted}
    if acks == "durable" and "ps" in wanted:
        what["ps"], command["ps"] = f"{what['ps']} with a store", f"{command['ps']} --store DIR"
    described = " and ".join(what.values())

    def enough(entries: list[ConfigEntry]) -> Servers | None:
        found = {role: spread(job, nodes_of(entries, role)) for role in wanted}
        if "ps" in found:
            found["ps"] = keeping(found["ps"], acks)
        missing = [
            f"{what[role]} ({len(found[role])} there{f'; start one with: {command[role]}' * advise})"
            for role, count in wanted.items()
            if len(found[role]) < count
        ]
        tell("waiting for " + " and ".join(missing) if missing else "")
        if missing:
            return None
        return Servers(*(tuple(found.get(role, [])[:count]) for role, count in counts.items()))

    return await wait_for(store, "/nodes/", enough, deadline_s, described)


def _count(role: str, count: int) -> str:
    name = "parameter server" if role == "ps" else "data server"
    return f"{count} {name}{'s' if count > 1 else ''}"


def keeping(nodes: Sequence[NodeRecord], acks: Acks) -> list[NodeRecord]:
    """Returns the parameter servers that can keep parts of a job with these acknowledgements, in order."""
    return [node for node in nodes if node.can_keep(acks)]


def spread(job: str, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Orders nodes by a stable hash with the job's name, so that jobs of one cluster prefer different servers."""
    return sorted(nodes, key=lambda node: blake2b(f"{job}/{node.node}".encode(), digest_size=8).digest())


async def choose_name(store: ConfigurationStore, wanted: str, asked_for: bool) -> str:
    """Returns a job name that was never used, `wanted` if possible: servers may still be freeing parts of an old job.

    Raises:
        ConfigurationError: the user chose the name (`asked_for`), and a job of this name is running.
    """
    if not wanted or "/" in wanted or len(wanted) > 200:
        raise ConfigurationError(f"--job: expected a name of at most 200 characters without slashes; found {wanted!r}")
    found = await read_record(store, job_key(wanted), JobRecord)
    if found is None:
        return wanted
    alive = found[0].state == "running" and await read_record(store, node_key(found[0].coordinator), NodeRecord)
    if asked_for and alive:
        raise ConfigurationError(
            f"job {wanted!r} is already running, its coordinator is {found[0].coordinator}; choose another --job"
        )
    _, entries = await store.read(job_key(wanted))
    taken = {entry.key for entry in entries}
    for number in range(2, NAMES_TRIED_MAX):
        if job_key(f"{wanted}-{number}") not in taken:
            return f"{wanted}-{number}"
    raise ConfigurationError(f"job names {wanted} to {wanted}-{NAMES_TRIED_MAX} are all used; choose another --job")


async def create_job(
    store: ConfigurationStore,
    job: str,
    experiment: Experiment,
    layout: ParameterLayout,
    servers: Sequence[NodeRecord],
    coordinator: str,
    restore: str,
    parameters_only: bool = False,
    restore_checksum: str = "",
) -> bool:
    """Writes all keys of a job at one revision; the servers then create their parts.

    `parameters_only`: of the checkpoint in folder `restore`; rule state begins afresh. `restore_checksum`: of its
    manifest, if the coordinator gives it to servers that cannot read it.
    Returns False and writes nothing if another coordinator has taken the name since it was chosen.
    """
    cluster = experiment.cluster
    record = JobRecord(
        "running",
        layout.hash,
        rule_of(experiment),
        experiment.seed,
        coordinator,
        restore,
        cluster.acknowledged,
        cluster.replication,
        cluster.least_in_sync,
        replicas_of(experiment) if experiment.train.in_step else 0,
        parameters_only,
        restore_checksum,
    )
    changes = job_changes(job, record, layout, experiment.cluster.ps, servers)
    return not (await store.compare_and_set(changes)).conflicts


def job_changes(
    job: str, record: JobRecord, layout: ParameterLayout, servers_expected: int, servers: Sequence[NodeRecord]
) -> ConfigChanges:
    """Returns all keys of a new job, its buckets placed on the servers, on condition that none of the keys exists.

    Without servers no buckets are placed: the replica holds the parameters.

    Raises:
        ConfigurationError: there are fewer servers than copies.
    """
    names, domain_of = [node.node for node in servers], {node.node: node.fails_with for node in servers}
    placement = place_copies(layout, job, names, record.replication, domain_of) if servers_expected else {}
    described = LayoutRecord(layout.tensors, servers_expected, layout.owners)
    puts = {job_key(job): encode(record), layout_key(job): encode(described)}
    now_unix_s = time.time()
    for bucket, nodes in placement.items():
        first = BucketRecord(FIRST_EPOCH, nodes[0], nodes, (), now_unix_s, "the job began")
        puts[bucket_key(job, bucket)] = encode(first)
    return ConfigChanges(dict.fromkeys(puts, 0), puts)


async def end_job(store: ConfigurationStore, job: str, *, ours: bool = False) -> None:
    """Sets a job to `ended`, so that servers free it; does nothing if its key is gone. May raise UnreachableError.

    `ours`: the caller is its coordinator, which also removes what said where its buckets are: of ended jobs the
    controllers keep two keys, by which a server that was away learns that it has ended.

    Raises:
        DamagedDataError: its record cannot be read.
    """
    while True:
        _, entries = await store.read(job_key(job))
        entry = next((entry for entry in entries if entry.key == job_key(job)), None)
        if entry is None:
            return
        old = decode_entry(entry, JobRecord)
        ended = msgspec.structs.replace(old, state="ended")
        below = (f"{job_key(job)}/buckets/", f"{job_key(job)}/served/")
        deletes = tuple(one.key for one in entries if one.key.startswith(below)) if ours else ()
        changes = ConfigChanges({entry.key: entry.revision}, {entry.key: encode(ended)}, deletes)
        if not (await store.compare_and_set(changes)).conflicts:
            return
