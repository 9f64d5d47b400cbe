"""What the records of a job's buckets should become next: which copies are missing, too many, or badly placed. Pure.

Every primary asks for the steps of its own buckets and finds the same plan as the others, because it follows from the
records, the living servers and those that are being drained alone (docs/decisions/0015-replication.md). A bucket goes
through one change at a time: while it has a learner nothing else is begun on it.

In the order of their urgency:
    copies are missing       a learner, on the server that holds the fewest bytes
    copies are too many      the drained one goes, else the one on the server that holds the most bytes
    the primary is drained   another member takes over
    bytes held differ        a learner on the server that holds the fewest; the rest follows from "too many"
    primaries differ         another member takes over
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from adamctl.config.records import BucketRecord

COPIES_MIN = 2
"""No copy is taken away below so many, if so many are wanted: one more failure must not lose a bucket."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """`node` is to be given a copy of the bucket."""

    bucket: int
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """`node`, a learner or a member other than the primary, is to lose its copy."""

    bucket: int
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """`node`, an in-sync member, is to be the primary."""

    bucket: int
    node: str
    why: str


Step: TypeAlias = AddLearner | RemoveMember | HandOver


@dataclass(frozen=True)
class Situation:
    """What a plan follows from.

    Attributes:
        job: its name.
        replication: copies that are wanted of each bucket.
        size_bytes: of the buckets.
        records: who holds them.
        living: servers that may hold copies -> memory that they have for all jobs together, in bytes; 0: not said.
        draining: servers that are to hold nothing.
        settled: no server has come or gone lately. Else nothing is done that can wait.
        learners_max: copies under way at once per primary, and per server that receives them.
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
        """Servers that copies may be placed on."""
        return sorted(node for node in self.living if node not in self.draining)


class Loads:
    """How much each server holds, serves and receives; changed as a plan grows."""

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
        """A server is to be given a copy of a bucket."""
        primary = situation.records[index].primary
        self.held_bytes[node] += situation.size_bytes[index]
        self.receiving[node] += 1
        self.sending[primary] = self.sending.get(primary, 0) + 1


def plan(situation: Situation, node: str) -> list[Step]:
    """Returns what `node` should do now about the buckets whose primary it is, at most one step for each.

    Steps for balance are chosen among the buckets of all primaries, so that no two of them even out the same twice.
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
    """Returns how many living members come before `node` in taking a bucket over; None if it is none of them."""
    alive = set(living)
    candidates = [member for member in record.in_sync if member in alive and member != record.primary]
    return candidates.index(node) if node in candidates else None


# --- what cannot wait -------------------------------------------------------------------------------------------------


def _needed(situation: Situation, loads: Loads, index: int) -> Step | None:
    """Returns what is to be done about a bucket whatever the others look like."""
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
            return None  # a place will be free when others have received theirs
    return _superfluous(situation, loads, index, staying)


def _drained(situation: Situation, record: BucketRecord) -> bool:
    return any(member in situation.draining for member in record.in_sync)


def _candidates(situation: Situation, record: BucketRecord) -> list[str]:
    return [node for node in situation.hosts if node not in record.in_sync and node not in record.learners]


def _target(situation: Situation, loads: Loads, index: int) -> str | None:
    """Returns where a further copy is best placed, None if there is no place now."""
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
    """Says whether a place for a further copy may be found later."""
    return bool(_candidates(situation, record))


def _fits(situation: Situation, loads: Loads, node: str, index: int) -> bool:
    capacity_bytes = situation.living[node]
    return not capacity_bytes or loads.held_bytes[node] + situation.size_bytes[index] <= capacity_bytes


def _superfluous(situation: Situation, loads: Loads, index: int, staying: list[str]) -> Step | None:
    """Returns which copy is to go, or who is to be primary first, if one is too many or is being drained."""
    record = situation.records[index]
    leaving = [member for member in record.in_sync if member in situation.draining]
    enough = len(staying) >= min(situation.replication, COPIES_MIN)
    if leaving and enough:
        if record.primary in leaving:
            return HandOver(index, _next_primary(loads, record, staying), f"{record.primary} is being drained")
        return RemoveMember(index, leaving[0], f"{leaving[0]} is being drained")
    if not leaving and len(staying) > situation.replication:  # who is gone is not too many
        heaviest = max(staying, key=lambda node: (loads.held_bytes[node], _tie(situation.job, index, node)))
        if heaviest != record.primary:
            return RemoveMember(index, heaviest, f"{len(staying)} copies, and it holds the most")
        others = [member for member in staying if member != record.primary]
        return HandOver(index, _next_primary(loads, record, others), f"{heaviest} holds the most")
    return None


def _next_primary(loads: Loads, record: BucketRecord, members: list[str]) -> str:
    return min(members, key=lambda node: (loads.primary_bytes.get(node, 0), record.in_sync.index(node)))


# --- what can wait ----------------------------------------------------------------------------------------------------


def _unfinished(situation: Situation) -> bool:
    """Says whether anything else of the job is still on its way, so that nothing is moved only for balance."""
    wanted = min(situation.replication, len(situation.hosts))
    return any(
        record.learners
        or len(record.in_sync) != wanted
        or any(member not in situation.hosts for member in record.in_sync)
        for record in situation.records.values()
    )


def _even_copies(situation: Situation, loads: Loads) -> list[Step]:
    """Returns moves of copies that even the bytes held, the best ones first."""
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
        steps.append(AddLearner(index, lightest, "to even out what servers hold"))
    return steps


def _even_primaries(situation: Situation, loads: Loads) -> list[Step]:
    """Returns the one bucket that another of its members should serve, if there is one."""
    best: tuple[int, int, str] | None = None
    for index, record in situation.records.items():
        size_bytes = situation.size_bytes[index]
        for member in record.in_sync:
            gain = loads.primary_bytes[record.primary] - loads.primary_bytes[member] - size_bytes
            if gain > 0 and (best is None or (gain, -index) > (best[0], -best[1])):
                best = (gain, index, member)
    return [HandOver(best[1], best[2], "to even out what servers serve")] if best is not None else []


def _tie(job: str, bucket: int, node: str) -> bytes:
    return hashlib.blake2b(f"{job}/{bucket}/{node}".encode(), digest_size=8).digest()
