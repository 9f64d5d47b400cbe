"""Plans the next changes of a job's bucket records: copies that are missing, superfluous or badly placed. Pure.

Every primary asks for the steps of its own buckets and gets the same plan as the others, because the plan depends only
on the records, the live servers and the draining ones (docs/decisions/0015-replication.md). A bucket changes one step
at a time: while it has a learner, nothing else starts for it.

In order of urgency:
    copies are missing       add a learner on the server that holds the fewest bytes
    too many copies          remove the drained one, else the one on the server that holds the most bytes
    the primary is drained   hand over to another member
    copies fail together     add a learner in another failure domain; "too many copies" does the rest
    bytes held differ        add a learner on the server that holds the fewest; "too many copies" does the rest
    primaries differ         hand over to another member

Servers that fail together, by default those of one machine, are a failure domain. Two copies of a bucket share one only
while no server of another has room (docs/decisions/0040-copies-by-host.md). So every choice above is first among the
servers that leave the fewest pairs of copies in one domain. Steps lower first that number and then the spread of bytes,
so they come to an end.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
        domain_of: server -> its failure domain; one that is missing here fails alone.
    """

    job: str
    replication: int
    size_bytes: Mapping[int, int]
    records: Mapping[int, BucketRecord]
    living: Mapping[str, int]
    draining: frozenset[str] = frozenset()
    settled: bool = True
    learners_max: int = 2
    domain_of: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def available(self) -> list[str]:
        """Servers on which copies may be placed."""
        return sorted(node for node in self.living if node not in self.draining)

    def domain(self, node: str) -> str:
        """Returns the failure domain of a server."""
        return self.domain_of.get(node, node)

    def together(self, members: Iterable[str]) -> int:
        """Returns how many pairs of servers are in one failure domain."""
        counts = Counter(map(self.domain, members)).values()
        return sum(count * (count - 1) // 2 for count in counts)

    @property
    def domains_missing(self) -> int:
        """How many failure domains there are fewer than copies; 0: there are enough."""
        return max(self.replication - len({self.domain(node) for node in self.available}), 0)


class DomainsTold:
    """Remembers what was said of failure domains, so that it is said once."""

    def __init__(self) -> None:
        self._missing = 0

    def changed(self, situation: Situation) -> str:
        """Returns what to say now: that copies have to share failure domains, or no longer; empty: nothing new."""
        missing = situation.domains_missing
        if not situation.settled or missing == self._missing:
            return ""
        self._missing = missing
        domains = situation.replication - missing
        found = f"{domains} failure domain{'s' * (domains != 1)} for {situation.replication} copies"
        told = "copies share one, and are lost with it; start servers elsewhere" if missing else "enough"
        return f"{found}: {told}"


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
    gone = next((learner for learner in record.learners if learner not in situation.available), None)
    if gone is not None:
        why = "it is being drained" if gone in situation.draining else "it is gone"
        return RemoveMember(index, gone, f"learner removed: {why}")
    if record.learners:
        return None
    staying = [member for member in record.in_sync if member in situation.available]
    if len(staying) < situation.replication:
        target = _target(situation, loads, index, staying)
        urgent = len(staying) < min(COPIES_MIN, situation.replication) or _drained(situation, record)
        if target is not None and (situation.settled or urgent):
            loads.take_in(situation, index, target)
            return AddLearner(index, target, f"{len(staying)} of {situation.replication} copies")
        if target is None and _candidates(situation, record):
            return None  # a server will have room when it has received other copies
    return _superfluous(situation, loads, index, staying) or _apart(situation, loads, index, staying)


def _drained(situation: Situation, record: BucketRecord) -> bool:
    return any(member in situation.draining for member in record.in_sync)


def _candidates(situation: Situation, record: BucketRecord) -> list[str]:
    return [node for node in situation.available if node not in record.in_sync and node not in record.learners]


def _with_room(situation: Situation, loads: Loads, index: int) -> list[str]:
    """Returns the servers that have the memory for a further copy."""
    return [node for node in _candidates(situation, situation.records[index]) if _fits(situation, loads, node, index)]


def _may_begin(situation: Situation, loads: Loads, index: int, node: str) -> bool:
    """Returns whether a copy may be started on a server now, by the number of those in progress."""
    sending = loads.sending.get(situation.records[index].primary, 0)
    return max(sending, loads.receiving[node]) < situation.learners_max


def _target(situation: Situation, loads: Loads, index: int, staying: Sequence[str]) -> str | None:
    """Returns the best server for a further copy beside those that stay, None if there is none now.

    A server of another failure domain that is busy is waited for.
    """
    room = _with_room(situation, loads, index)
    together = {node: situation.together((*staying, node)) for node in room}
    found = [
        node for node in room if together[node] == min(together.values()) and _may_begin(situation, loads, index, node)
    ]
    return min(found, key=lambda node: (loads.held_bytes[node], _tie(situation.job, index, node)), default=None)


def _fits(situation: Situation, loads: Loads, node: str, index: int) -> bool:
    capacity_bytes = situation.living[node]
    return not capacity_bytes or loads.held_bytes[node] + situation.size_bytes[index] <= capacity_bytes


def _superfluous(situation: Situation, loads: Loads, index: int, staying: Sequence[str]) -> Step | None:
    """Returns the step that removes a superfluous or draining copy, or hands over first if it is the primary's."""
    record = situation.records[index]
    leaving = [member for member in record.in_sync if member in situation.draining]
    enough = len(staying) >= min(situation.replication, COPIES_MIN)
    if leaving and enough:
        if record.primary in leaving:
            return HandOver(index, _next_primary(loads, record, staying), f"{record.primary} is being drained")
        return RemoveMember(index, leaving[0], f"{leaving[0]} is being drained")
    if not leaving and len(staying) > situation.replication:  # a lost server's copy is not superfluous
        goes = _leaving(situation, loads, index, staying)
        alone = situation.together(staying) == situation.together(node for node in staying if node != goes)
        why = "holds the most" if alone else "shares a failure domain"
        if goes != record.primary:
            return RemoveMember(index, goes, f"{len(staying)} copies, and it {why}")
        others = [member for member in staying if member != record.primary]
        return HandOver(index, _next_primary(loads, record, others), f"{goes} {why}")
    return None


def _leaving(situation: Situation, loads: Loads, index: int, members: Sequence[str]) -> str:
    """Returns which of too many copies goes: of those that leave the fewest together, where most bytes are held."""
    neighbours = Counter(map(situation.domain, members))
    most = max(neighbours.values())
    return max(
        (node for node in members if neighbours[situation.domain(node)] == most),
        key=lambda node: (loads.held_bytes[node], _tie(situation.job, index, node)),
    )


def _apart(situation: Situation, loads: Loads, index: int, staying: Sequence[str]) -> Step | None:
    """Returns the start of a move of one of the copies that share a failure domain, if there is another with room."""
    together = situation.together(staying)
    if not situation.settled or not together or len(staying) != len(situation.records[index].in_sync):
        return None
    after = {}
    for node in _with_room(situation, loads, index):
        if _may_begin(situation, loads, index, node):
            all_of_them = [*staying, node]
            goes = _leaving(situation, loads, index, all_of_them)
            after[node] = situation.together(member for member in all_of_them if member != goes)
    best = min(
        after,
        key=lambda node: (after[node], loads.held_bytes[node], _tie(situation.job, index, node)),
        default=None,
    )
    if best is None or after[best] >= together:
        return None
    loads.take_in(situation, index, best)
    return AddLearner(index, best, "copies share a failure domain, and this one is in another")


def _next_primary(loads: Loads, record: BucketRecord, members: Sequence[str]) -> str:
    return min(members, key=lambda node: (loads.primary_bytes.get(node, 0), record.in_sync.index(node)))


# --- steps for balance ------------------------------------------------------------------------------------------------


def _unfinished(situation: Situation) -> bool:
    """Returns whether other changes of the job are in progress, so that nothing is moved just for balance."""
    wanted = min(situation.replication, len(situation.available))
    return any(
        record.learners
        or len(record.in_sync) != wanted
        or any(member not in situation.living or member in situation.draining for member in record.in_sync)
        for record in situation.records.values()
    )


def _even_copies(situation: Situation, loads: Loads) -> list[Step]:
    """Returns moves of copies that balance the bytes held, the best first."""
    steps: list[Step] = []
    moved: set[int] = set()
    while len(steps) < situation.learners_max:
        best: tuple[int, int, str, str] | None = None
        lowest = min((loads.held_bytes[node] for node in situation.available), default=0)
        for index, record in situation.records.items():
            at_most = max(loads.held_bytes[node] for node in record.in_sync) - lowest - situation.size_bytes[index]
            if index in moved or at_most <= 0 or (best is not None and at_most < best[0]):
                continue
            move = _best_move(situation, loads, index)
            if move is not None and (best is None or (move[0], -index) > (best[0], -best[1])):
                best = (move[0], index, *move[1:])
        if best is None:
            break
        _, index, heaviest, lightest = best
        moved.add(index)
        loads.held_bytes[heaviest] -= situation.size_bytes[index]
        loads.take_in(situation, index, lightest)
        steps.append(AddLearner(index, lightest, "to balance what servers hold"))
    return steps


def _best_move(situation: Situation, loads: Loads, index: int) -> tuple[int, str, str] | None:
    """Returns what the best move of a bucket's copy gains, from where and to where; None if none gains anything."""
    members, size_bytes = situation.records[index].in_sync, situation.size_bytes[index]
    most_bytes = max(loads.held_bytes[node] for node in members)
    best: tuple[int, str, str] | None = None
    for node in _with_room(situation, loads, index):
        wanted = best[0] if best is not None else 1
        if most_bytes - loads.held_bytes[node] - size_bytes < wanted or not _may_begin(situation, loads, index, node):
            continue
        goes = _leaving(situation, loads, index, (*members, node))
        gain = loads.held_bytes[goes] - loads.held_bytes[node] - size_bytes
        if gain < wanted:
            continue
        if best is None or gain > best[0] or _tie(situation.job, index, node) < _tie(situation.job, index, best[2]):
            best = (gain, goes, node)
    return best


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
