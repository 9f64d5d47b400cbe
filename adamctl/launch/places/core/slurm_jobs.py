"""What Slurm's answers mean for hosts: which are lost, which will be taken away, and what a job waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from adamctl.config.names import printable
from adamctl.launch.places.core.slurm_commands import WARNING_S, seconds_of
from adamctl.launch.places.places import Draining, Lost, Notice

JOB_FORMAT = "%i|%T|%L|%N|%r"
NODE_FORMAT = "%N|%T|%E"
LEAVE_S = 3600.0
"""An administrator's drain has no deadline: seconds in which a host is left, where the job has no time limit."""
_WAITS = frozenset({"PENDING", "CONFIGURING"})
_RUNS = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "RESIZING"})
_GONE = ("down", "fail", "error", "powered_down", "power_down", "powering_down", "reboot")
_DRAINS = ("drain",)


@dataclass(frozen=True)
class JobRow:
    """One line of `squeue`. `nodes` is a list as Slurm writes it, such as `h[1-3]`; `left_s` may be infinite."""

    job: str
    state: str
    left_s: float
    nodes: str
    reason: str


@dataclass(frozen=True)
class NodeRow:
    """One line of `sinfo`; `state` without the marks that Slurm appends."""

    node: str
    state: str
    reason: str


@dataclass
class _Job:
    suffix: str
    hosts: dict[str, str] = field(default_factory=dict)
    """Node -> host, of nodes that run or ran an agent of this job and are not lost."""
    said: str = ""


def job_rows(text: str) -> list[JobRow]:
    """Returns the lines of `squeue --noheader --format` JOB_FORMAT; what is not one is left out."""
    rows = [line.split("|", 4) for line in text.splitlines() if line.count("|") >= 4]
    return [JobRow(job, state, seconds_of(left), nodes, reason) for job, state, left, nodes, reason in rows]


def node_rows(text: str) -> list[NodeRow]:
    """Returns the lines of `sinfo --noheader --Node --format` NODE_FORMAT, one a node."""
    rows = [line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return list({node: NodeRow(node, state.rstrip("*$~#!%@^-").lower(), why) for node, state, why in rows}.values())


class SlurmJobs:
    """The jobs of one run, from their submission on. Pure: is told rows, and returns what is new in them."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._draining: set[str] = set()

    def submitted(self, job: str, suffix: str) -> None:
        """Notes a job; the name of each of its hosts is that of the node and `suffix`."""
        self._jobs[job] = _Job(suffix)

    @property
    def names(self) -> list[str]:
        """Jobs that have not ended."""
        return list(self._jobs)

    @property
    def nodes(self) -> list[str]:
        """Nodes that run agents, as far as they are known."""
        return sorted({node for job in self._jobs.values() for node in job.hosts})

    def look(
        self,
        asked: Iterable[str],
        jobs: Sequence[JobRow],
        nodes: Iterable[NodeRow],
        expand: Mapping[str, Sequence[str]],
    ) -> tuple[list[Notice], list[str]]:
        """Returns what is new of hosts, and sentences for the user; each is told once.

        `asked` are the jobs that were asked for, of which those that no row tells of have ended: others may have been
        submitted since. `expand` maps each list of nodes in `jobs` to its nodes.
        """
        rows, notices, said = {row.job: row for row in jobs}, list[Notice](), list[str]()
        states = {row.node: row for row in nodes}
        for name in asked:
            job, row = self._jobs[name], rows.get(name)
            if row is not None and row.state in _WAITS and not job.hosts:
                said += self._waits(job, row)
            elif row is None or row.state not in _RUNS:
                notices += [Lost(host, f"Slurm job {name}: {_ended(row)}") for host in job.hosts.values()]
                if not job.hosts:
                    said.append(f"Slurm job {name} has ended: {_ended(row)}")
                del self._jobs[name]
            else:
                notices += self._lost(job, row, expand.get(row.nodes, []), states)
                notices += self._draining_of(job, row, states)
        return notices, said

    def _waits(self, job: _Job, row: JobRow) -> list[str]:
        reason = printable(row.reason) if row.reason not in ("", "None") else "no reason given yet"
        before, job.said = job.said, reason
        return [] if reason == before else [f"Slurm job {row.job} waits for its hosts: {reason}"]

    def _lost(self, job: _Job, row: JobRow, now: Sequence[str], states: Mapping[str, NodeRow]) -> list[Notice]:
        notices: list[Notice] = []
        for node in now:
            if node not in job.hosts and not _is(states.get(node), _GONE):
                job.hosts[node] = f"{node}{job.suffix}"
        for node, host in list(job.hosts.items()):
            state = states.get(node)
            if _is(state, _GONE) or (now and node not in now):
                del job.hosts[node]
                said = "" if state is None else f": {state.state}, {printable(state.reason)}"
                notices.append(Lost(host, f"Slurm took node {node} out of job {row.job}{said}"))
        return notices

    def _draining_of(self, job: _Job, row: JobRow, states: Mapping[str, NodeRow]) -> list[Notice]:
        notices: list[Notice] = []
        for node, host in job.hosts.items():
            state = states.get(node)
            if host in self._draining:
                continue
            if row.left_s <= WARNING_S:
                notices.append(Draining(host, row.left_s, f"Slurm job {row.job} ends in {row.left_s:.0f} s"))
            elif state is not None and _is(state, _DRAINS):
                deadline_s = LEAVE_S if row.left_s == inf else row.left_s
                notices.append(Draining(host, deadline_s, f"Slurm drains node {node}: {printable(state.reason)}"))
            else:
                continue
            self._draining.add(host)
        return notices


def fitting(text: str, cores: int) -> int:
    """Returns how many nodes of `sinfo --noheader --Node --format "%N|%c|%T"` have so many cores and can be used."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    usable = {node for node, have, state in rows if have.isdecimal() and int(have) >= cores and not _gone(state)}
    return len(usable)


def _gone(state: str) -> bool:
    return state.lower().startswith((*_GONE, *_DRAINS))


def _is(row: NodeRow | None, beginnings: tuple[str, ...]) -> bool:
    return row is not None and row.state.startswith(beginnings)


def _ended(row: JobRow | None) -> str:
    if row is None:
        return "it is not in the queue any more"
    return row.state.lower() + ("" if row.reason in ("", "None") else f", {printable(row.reason)}")
