"""From what a cluster says to numbers with labels (pure).

A status was written by another process, perhaps of another version: what is not a finite number, or not where it should
be, is no sample. Role and node are those of the registration, whatever the status claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from adamctl.config.names import NAME_CHARACTERS_MAX, is_name, printable
from adamctl.metrics.catalogue import METRICS, Metric

Status = Mapping[str, Any]
Labels = tuple[str, ...]
LABELS_MAX: Final = 64
"""Values of one label that one node may bring up, such as its jobs: a bound on what a wrong status can cost."""


@dataclass(frozen=True)
class NodeReading:
    """A registered node. `status`: what it answered; None if it did not in time. `restarts`: seen so far."""

    role: str
    node: str
    status: Status | None = None
    restarts: int = 0


@dataclass(frozen=True)
class JobReading:
    """A running job's buckets, as the configuration says.

    Attributes:
        copies: that each bucket should have.
        in_sync: copies in sync on registered nodes, of the bucket with the fewest.
        without_primary, short_of_copies: buckets for which that is so.
    """

    job: str
    buckets: int
    copies: int
    in_sync: int
    without_primary: int
    short_of_copies: int


@dataclass(frozen=True)
class ClusterReading:
    """A cluster at one moment. `age_s`: since the configuration was last heard; `seconds`: how long reading took."""

    nodes: Sequence[NodeReading] = ()
    jobs: Sequence[JobReading] = ()
    age_s: float = 0.0
    seconds: float = 0.0
    roles: Mapping[str, int] = field(default_factory=dict)


def samples(reading: ClusterReading) -> Iterator[tuple[Metric, list[tuple[Labels, float]]]]:
    """Yields each metric that has samples, with (values of `metric.labels`, number)."""
    for metric in METRICS:
        if metric.where == "cluster":
            found = list(_of_cluster(metric.name, reading))
        else:
            found = [sample for node in reading.nodes for sample in _of_node(metric, node)]
        if found:
            yield metric, found


def _of_cluster(name: str, reading: ClusterReading) -> Iterator[tuple[Labels, float]]:
    match name.removeprefix("adamctl_"):
        case "cluster_nodes":
            yield from (((role,), float(count)) for role, count in sorted(reading.roles.items()))
        case "configuration_age_seconds":
            yield (), reading.age_s
        case "scrape_seconds":
            yield (), reading.seconds
        case "scrape_unanswered_nodes":
            yield (), float(sum(node.status is None for node in reading.nodes))
        case of_job:
            attribute = _OF_JOB[of_job]
            yield from (((job.job,), float(getattr(job, attribute))) for job in reading.jobs)


_OF_JOB: Final = {
    "job_buckets": "buckets",
    "job_buckets_without_primary": "without_primary",
    "job_buckets_short_of_copies": "short_of_copies",
    "job_copies": "copies",
    "job_copies_in_sync": "in_sync",
}


def _of_node(metric: Metric, node: NodeReading) -> Iterator[tuple[Labels, float]]:
    own = (node.role, node.node)
    if metric.name == "adamctl_node_up":
        yield own, float(node.status is not None)
        return
    if metric.name == "adamctl_node_restarts_total":
        yield own, float(node.restarts)
        return
    status = node.status
    if status is None or (metric.roles and node.role not in metric.roles):
        return
    if metric.name == "adamctl_run_state":
        yield from _state(own, status)
    elif metric.name == "adamctl_run_metric_value":
        yield from _judged(metric, own, status)
    elif metric.name == "adamctl_controller_leads":
        yield own, float(status.get("state") == "leader")
    elif metric.where == "run":
        if isinstance(job := status.get("job"), str):
            yield from _numbers(metric, (_shown(job), *own), status)
    elif metric.where == "jobs":
        for job, said in _jobs(metric, status):
            yield from _numbers(metric, (job, *own), said)
    else:
        yield from _numbers(metric, own, status)


def _jobs(metric: Metric, status: Status) -> Iterator[tuple[str, Status]]:
    """Yields the jobs of a parameter server; what it says of copies stands in a place of its own."""
    inside = _mapping(_mapping(status.get("replication")).get("jobs"))
    for job, said in list(_mapping(status.get("jobs")).items())[:LABELS_MAX]:
        if isinstance(job, str):
            yield _shown(job), {**_mapping(said), "replication": inside.get(job)}


def _state(own: Labels, status: Status) -> Iterator[tuple[Labels, float]]:
    job, state = status.get("job"), status.get("state")
    if isinstance(job, str) and isinstance(state, str) and is_name(state):
        yield (_shown(job), *own, state), 1.0


def _judged(metric: Metric, own: Labels, status: Status) -> Iterator[tuple[Labels, float]]:
    job, name, number = status.get("job"), status.get("metric"), _number(status, metric.path)
    if isinstance(job, str) and isinstance(name, str) and name and number is not None:
        yield (_shown(job), *own, _shown(name)), number


def _shown(job: str) -> str:
    return printable(job)[:NAME_CHARACTERS_MAX]


def _numbers(metric: Metric, labels: Labels, said: Status) -> Iterator[tuple[Labels, float]]:
    if not metric.by:
        if (number := _number(said, metric.path)) is not None:
            yield labels, number
        return
    for key, value in list(_mapping(_at(said, metric.path)).items())[:LABELS_MAX]:
        number = _as_number(value)
        if isinstance(key, str) and is_name(key) and number is not None:
            yield (*labels, key), number


def _number(said: Status, path: Sequence[str]) -> float | None:
    found = _at(said, path)
    if path[-1] == "degraded":  # a reason, "" while all is well
        return float(bool(found)) if isinstance(found, str) else None
    return _as_number(found)


def _at(said: Status, path: Sequence[str]) -> Any:
    found: Any = said
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _as_number(value: Any) -> float | None:
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
