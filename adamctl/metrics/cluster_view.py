"""A cluster's nodes and jobs, kept up to date from changes of the configuration (pure)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from adamctl.config.records import NodeRecord
from adamctl.metrics.samples import JobReading
from adamctl.roles.configuration import readable
from adamctl.roles.ps.core.job_records import JobKeys, JobView
from adamctl.wire.changes import Changes

NAMES_MAX: Final = 4096
"""Nodes whose restarts are remembered after they are gone; names with random digits never come back."""


class ClusterView:
    """Nodes by key, jobs by name; how often a node or a controller came back as another process."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {}
        self._roles: set[str] = set()
        self._jobs = JobKeys()
        self._readings: list[JobReading] | None = None
        self._incarnations: dict[str, int] = {}
        self._restarts: Counter[str] = Counter()
        self._controllers: dict[str, tuple[float, int]] = {}  # seconds since the last start, restarts

    @property
    def nodes(self) -> list[NodeRecord]:
        """The registered nodes, by name."""
        return [self._nodes[key] for key in sorted(self._nodes)]

    def counts(self) -> dict[str, int]:
        """Returns role -> registered nodes; a role that there was once stays, with 0."""
        counted = Counter(record.role for record in self._nodes.values())
        self._roles |= counted.keys()
        return {role: counted[role] for role in sorted(self._roles)}

    def restarts(self, node: str) -> int:
        """Returns how often a node registered as another process than before."""
        return self._restarts[node]

    def controller_restarts(self, name: str, uptime_s: object) -> int:
        """Returns how often a controller was seen as another process than before; controllers do not register.

        `uptime_s`: the seconds since its start, as it says; what is no number, as of one that is silent, tells nothing.
        """
        before_s, restarts = self._controllers.pop(name, (0.0, 0))
        if isinstance(uptime_s, (int, float)):
            restarts, before_s = restarts + (uptime_s < before_s), uptime_s
        self._controllers[name] = (before_s, restarts)  # last, as the one asked for last
        if len(self._controllers) > NAMES_MAX:
            del self._controllers[next(iter(self._controllers))]
        return restarts

    def take_nodes(self, changes: Changes) -> None:
        """Takes in changes under `/nodes/`."""
        self._readings = None
        if changes.reset:
            self._nodes.clear()
        for key in changes.deleted:
            self._nodes.pop(key, None)
        for entry in changes.entries:
            record = readable(entry, NodeRecord)
            if record is None:
                continue
            self._nodes[entry.key] = record
            before = self._incarnations.get(record.node)
            if before is not None and before != record.incarnation:
                self._restarts[record.node] += 1
            self._incarnations.pop(record.node, None)
            self._incarnations[record.node] = record.incarnation  # last, as the one heard of last
        while len(self._incarnations) > NAMES_MAX:
            oldest = next(iter(self._incarnations))
            del self._incarnations[oldest], self._restarts[oldest]

    def take_jobs(self, changes: Changes) -> None:
        """Takes in changes under `/jobs/`."""
        self._readings = None
        self._jobs.take(changes)

    def jobs(self) -> list[JobReading]:
        """Returns the running jobs whose records are whole."""
        if self._readings is not None:
            return self._readings
        living = {record.node for record in self._nodes.values()}
        found: list[JobReading] = []
        for name in sorted(self._jobs.jobs):
            view = self._jobs.view(name)
            if view is not None and view.buckets:
                found.append(_reading(name, view, living))
        self._readings = found
        return found


def _reading(name: str, view: JobView, living: set[str]) -> JobReading:
    copies = [sum(node in living for node in record.in_sync) for record in view.buckets.values()]
    return JobReading(
        name,
        len(copies),
        view.record.replication,
        min(copies),
        sum(record.primary not in living for record in view.buckets.values()),
        sum(count < view.record.replication for count in copies),
    )
