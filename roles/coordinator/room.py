"""Whether parameter servers have room for replicas in step: for one part of each replica, of all jobs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adamctl.config.experiment import Experiment
from adamctl.config.records import JobRecord, LayoutRecord, NodeRecord, job_key, layout_key
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout
from adamctl.net.limits import ServerLimits
from adamctl.roles.configuration import ConfigurationStore, decode_entry, nodes_of
from adamctl.roles.coordinator.job import partitions_of, replicas_of
from adamctl.wire.messages import ConfigEntry

JOBS = "/jobs/"


@dataclass(frozen=True)
class InStep:
    """A job with replicas in step, and the revision at which it began."""

    job: str
    replicas: int
    model_bytes: int
    revision: int
    partitions: int = 1

    def needs_bytes(self, credit_bytes: int) -> int:
        """Returns the bytes a server must be able to hold for the job: what each replica may have in flight.

        Each of its partitions pushes by itself, and has a credit of its own.
        """
        return self.replicas * min(self.model_bytes, self.partitions * credit_bytes)


def check_room(
    experiment: Experiment, layout: ParameterLayout, servers: Sequence[NodeRecord], others: Sequence[InStep] = ()
) -> None:
    """Raises ConfigurationError if a server may not hold one part of each replica, so that a step never completes.

    All replicas send parts in the same order, so the server must hold only what each has in flight at once. Buckets
    move, so other jobs in step count on every server. A server that does not report its capacity has the default
    limits.
    """
    if not experiment.train.in_step:
        return
    usual, replicas, model_bytes = ServerLimits(), replicas_of(experiment), layout.parameter_count * ELEMENT_BYTES
    workers, partitions = experiment.cluster.workers, partitions_of(experiment)
    room = {}
    for server in servers:
        credit_bytes = server.credit_bytes or usual.credit_bytes
        left_bytes = server.bodies_bytes_max or usual.memory_bytes_max
        left_bytes -= sum(other.needs_bytes(credit_bytes) for other in others)
        room[server.node] = max(left_bytes, 0) // min(model_bytes, partitions * credit_bytes)
    least = min(room, key=lambda node: room[node])
    if replicas <= room[least]:
        return
    text = 'cluster.workers: with consistency = "sync" expected at most '
    text += f"{room[least] * partitions} for this model; found {workers}: "
    text += f"parameter server {least} has to hold a part of each of them at once"
    if others:
        names = ", ".join(f"{other.job} ({other.replicas})" for other in others)
        text += f", and of the replicas of other jobs in step: {names}; wait for their end, or take fewer workers"
    raise ConfigurationError(text)


async def jobs_in_step(store: ConfigurationStore, own: str) -> list[InStep]:
    """Returns the running jobs in step with a live coordinator; if `own` is one of them, those begun before it."""
    _, nodes = await store.read("/nodes/")
    _, entries = await store.read(JOBS)
    by_key = {entry.key: entry for entry in entries}
    coordinators = {node.node for node in nodes_of(nodes, "coordinator")}
    mine = by_key.get(job_key(own))
    found = []
    for key, entry in by_key.items():
        job = key.removeprefix(JOBS)
        if "/" in job or job == own or (mine is not None and mine.revision < entry.revision):
            continue
        record = decode_entry(entry, JobRecord)
        if record.state == "running" and record.in_step and record.coordinator in coordinators:
            found.append(InStep(job, record.in_step, *_size_of(by_key, job, entry.revision)))
    return found


def _size_of(by_key: Mapping[str, ConfigEntry], job: str, revision: int) -> tuple[int, int, int]:
    """Returns the bytes of a job's model, the revision, and its partitions."""
    entry = by_key.get(layout_key(job))
    if entry is None:
        return 0, revision, 1
    layout = decode_entry(entry, LayoutRecord)
    model_bytes = sum(tensor.size for tensor in layout.tensors) * ELEMENT_BYTES
    return model_bytes, revision, 1 if layout.owners is None else layout.owners.partitions
