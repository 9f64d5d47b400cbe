"""Plans the next changes of a job's bucket records: copies that are missing, superfluous or badly placed. Pure.

Every primary asks for the steps of its own buckets and gets the same plan as the others, because the plan depends only
on the records, the live servers and the draining ones (docs/decisions/0015-replication.md). A bucket changes one step
at a time: while it has a learner, nothing else starts for it.

In order of urgency:
    copies are missing       add a learner on the server that holds the fewest bytes
    too many copies          remove the drained one, else the one on the server that holds the most bytes
    the primary is drained   hand over to another member
    bytes held differ        add a learner on the server that holds the fewest; "too many copies" does the rest
    primaries differ         hand over to another member
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from adamctl.config.records import BucketRecord

COPIES_MIN = 2
"""No copy is removed below this number, if that many are wanted: one more failure must not lose a bucket."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Give `node` a copy of the bucket."""

    bucket: int
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove the copy of `node`, a learner or a member other than the primary."""

    bucket: int
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Make `node`, an in-sync member, the primary."""

    bucket: int
    node: str
    why: str


Step: TypeAlias = AddLearner | RemoveMember | HandOver


@dataclass(frozen=True)
class Situation:
    """The input of a plan.

    Attributes:
        job: the job's name.
        replication: wanted number of copies of each bucket.
        size_bytes: bucket -> its size.
        records: bucket -> its record.
        living: servers that may hold copies -> their memory for all jobs together, in bytes; 0: unknown.
        draining: servers that should hold nothing.
        settled: no server has come or gone recently; if False, only urgent steps are planned.
        learners_max: copies in progress at once per primary, and per receiving server.
    """

    job: str
    replication: int
    size_bytes: Mapping[int, int]
    records: Mapping[int, BucketRecord]
    living: Mapping[str, int]
    draining: frozenset[str] = frozenset()
    settled: bool = True
    learners_max: int = 2

    @property
    def hosts(self) -> list[str]:
        """Servers on which copies may be placed."""
        return sorted(node for node in self.living if node not in self.draining)


class Loads:
    """How much each server holds, serves and receives; updated as a plan grows."""

    def __init__(self, situation: Situation) -> None:
        self.held_bytes = dict.fromkeys(situation.living, 0)
        self.primary_bytes = dict.fromkeys(situation.living, 0)
        self.receiving = dict.fromkeys(situation.living, 0)
        self.sending = dict.fromkeys(situation.living, 0)
        for index, record in situation.records.items():
            size_bytes = situation.size_bytes[index]
            for node in {*record.in_sync, *record.learners}:
                self.held_bytes[node] = self.held_bytes.get(node, 0) + size_bytes
            for node in record.learners:
                self.receiving[node] = self.receiving.get(node, 0) + 1
                self.sending[record.primary] = self.sending.get(record.primary, 0) + 1
            self.primary_bytes[record.primary] = self.primary_bytes.get(record.primary, 0) + size_bytes

    def take_in(self, situation: Situation, index: int, node: str) -> None:
        """Counts a planned new copy of a bucket on a server."""
        primary = situation.records[index].primary
        self.held_bytes[node] += situation.size_bytes[index]
        self.receiving[node] += 1
        self.sending[primary] = self.sending.get(primary, 0) + 1


def plan(situation: Situation, node: str) -> list[Step]:
    """Returns the next steps for the buckets whose primary is `node`, at most one step per bucket.

    Steps for balance are chosen among the buckets of all primaries, so that two primaries do not both fix the same
    imbalance.
    """
    loads = Loads(situation)
    steps: list[Step] = []
    for index in sorted(situation.records):
        if situation.records[index].primary == node:
            step = _needed(situation, loads, index)
            if step is not None:
                steps.append(step)
    if situation.settled and not steps and not _unfinished(situation):
        even = _even_copies(situation, loads) or _even_primaries(situation, loads)
        steps = [step for step in even if situation.records[step.bucket].primary == node]
    return steps


def takeover_rank(record: BucketRecord, node: str, living: Iterable[str]) -> int | None:
    """Returns how many live members precede `node` in the order of takeover; None if it is not a candidate."""
    alive = set(living)
    candidates = [member for member in record.in_sync if member in alive and member != record.primary]
    return candidates.index(node) if node in candidates else None


# --- urgent steps -----------------------------------------------------------------------------------------------------


def _needed(situation: Situation, loads: Loads, index: int) -> Step | None:
    """Returns the step that a bucket needs regardless of the other buckets."""
    record = situation.records[index]
    gone = next((learner for learner in record.learners if learner not in situation.hosts), None)
    if gone is not None:
        why = "it is being drained" if gone in situation.draining else "it is gone"
        return RemoveMember(index, gone, f"learner removed: {why}")
    if record.learners:
        return None
    staying = [member for member in record.in_sync if member in situation.hosts]
    if len(staying) < situation.replication:
        target = _target(situation, loads, index)
        urgent = len(staying) < min(COPIES_MIN, situation.replication) or _drained(situation, record)
        if target is not None and (situation.settled or urgent):
            loads.take_in(situation, index, target)
            return AddLearner(index, target, f"{len(staying)} of {situation.replication} copies")
        if target is None and _open(situation, record):
            return None  # a server will have room when it has received other copies
    return _superfluous(situation, loads, index, staying)


def _drained(situation: Situation, record: BucketRecord) -> bool:
    return any(member in situation.draining for member in record.in_sync)


def _candidates(situation: Situation, record: BucketRecord) -> list[str]:
    return [node for node in situation.hosts if node not in record.in_sync and node not in record.learners]


def _target(situation: Situation, loads: Loads, index: int) -> str | None:
    """Returns the best server for a further copy, None if there is none now."""
    record = situation.records[index]
    if loads.sending.get(record.primary, 0) >= situation.learners_max:
        return None
    found = [
        node
        for node in _candidates(situation, record)
        if loads.receiving[node] < situation.learners_max and _fits(situation, loads, node, index)
    ]
    return min(found, key=lambda node: (loads.held_bytes[node], _tie(situation.job, index, node)), default=None)


def _open(situation: Situation, record: BucketRecord) -> bool:
    """Returns whether a server for a further copy may be found later."""
    return bool(_candidates(situation, record))


def _fits(situation: Situation, loads: Loads, node: str, index: int) -> bool:
    capacity_bytes = situation.living[node]
    return not capacity_bytes or loads.held_bytes[node] + situation.size_bytes[index] <= capacity_bytes


def _superfluous(situation: Situation, loads: Loads, index: int, staying: list[str]) -> Step | None:
    """Returns the step that removes a superfluous or draining copy, or hands over first if it is the primary's."""
    record = situation.records[index]
    leaving = [member for member in record.in_sync if member in situation.draining]
    enough = len(staying) >= min(situation.replication, COPIES_MIN)
    if leaving and enough:
        if record.primary in leaving:
            return HandOver(index, _next_primary(loads, record, staying), f"{record.primary} is being drained")
        return RemoveMember(index, leaving[0], f"{leaving[0]} is being drained")
    if not leaving and len(staying) > situation.replication:  # a lost server's copy is not superfluous
        heaviest = max(staying, key=lambda node: (loads.held_bytes[node], _tie(situation.job, index, node)))
        if heaviest != record.primary:
            return RemoveMember(index, heaviest, f"{len(staying)} copies, and it holds the most")
        others = [member for member in staying if member != record.primary]
        return HandOver(index, _next_primary(loads, record, others), f"{heaviest} holds the most")
    return None


def _next_primary(loads: Loads, record: BucketRecord, members: list[str]) -> str:
    return min(members, key=lambda node: (loads.primary_bytes.get(node, 0), record.in_sync.index(node)))


# --- steps for balance ------------------------------------------------------------------------------------------------


def _unfinished(situation: Situation) -> bool:
    """Returns whether other changes of the job are in progress, so that nothing is moved just for balance."""
    wanted = min(situation.replication, len(situation.hosts))
    return any(
        record.learners
        or len(record.in_sync) != wanted
        or any(member not in situation.hosts for member in record.in_sync)
        for record in situation.records.values()
    )


def _even_copies(situation: Situation, loads: Loads) -> list[Step]:
    """Returns moves of copies that balance the bytes held, the best first."""
    steps: list[Step] = []
    moved: set[int] = set()
    while len(steps) < situation.learners_max:
        best: tuple[int, int, str, str] | None = None
        for index, record in situation.records.items():
            lightest = _target(situation, loads, index) if index not in moved else None
            if lightest is None:
                continue
            heaviest = max(record.in_sync, key=lambda node: loads.held_bytes[node])
            gain = loads.held_bytes[heaviest] - loads.held_bytes[lightest] - situation.size_bytes[index]
            if gain > 0 and (best is None or (gain, -index) > (best[0], -best[1])):
                best = (gain, index, heaviest, lightest)
        if best is None:
            break
        _, index, heaviest, lightest = best
        moved.add(index)
        loads.held_bytes[heaviest] -= situation.size_bytes[index]
        loads.take_in(situation, index, lightest)
        steps.append(AddLearner(index, lightest, "to balance what servers hold"))
    return steps


def _even_primaries(situation: Situation, loads: Loads) -> list[Step]:
    """Returns a handover of the one bucket that best balances the bytes served, if any."""
    best: tuple[int, int, str] | None = None
    for index, record in situation.records.items():
        size_bytes = situation.size_bytes[index]
        for member in record.in_sync:
            gain = loads.primary_bytes[record.primary] - loads.primary_bytes[member] - size_bytes
            if gain > 0 and (best is None or (gain, -index) > (best[0], -best[1])):
                best = (gain, index, member)
    return [HandOver(best[1], best[2], "to balance what servers serve")] if best is not None else []


def _tie(job: str, bucket: int, node: str) -> bytes:
    return hashlib.blake2b(f"{job}/{bucket}/{node}".encode(), digest_size=8).digest()
