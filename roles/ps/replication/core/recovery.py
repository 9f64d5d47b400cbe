"""Finds buckets that would wait for ever, and plans how an operator's command recovers them from what is left (pure).

When no copy of a bucket is left in memory, its servers wait until all in-sync members of its record are back, because
any of them may have the highest durable version. If one never returns, an operator may remove it. The record is then
changed so that a live server with data in its store becomes the primary, and every other one with data stays in sync.
The takeover that follows (`takeover.py`) takes the highest version of each shard that any of them has.

No server in doubt is removed: one that may hold the bucket in memory, does not answer, or has not yet searched its
store. The change is conditional on the bucket's record and on the node keys of all its members: those that stay must be
the processes that reported, and those that are removed must not have returned meanwhile.

A former member keeps its data on disk while the bucket has too few copies. That data is older, so it is used only if an
operator says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from adamctl.config.records import BucketRecord, bucket_key, node_key
from adamctl.roles.ps.replication.core.job_buckets import VersionedRecord
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.roles.ps.replication.core.proposals import Change, put_together
from adamctl.wire.messages import ConfigChanges


@dataclass(frozen=True, slots=True)
class Kept:
    """The report of a server that should hold a bucket but does not have it in memory (`status.py`).

    Attributes:
        epoch: of the bucket's record as that server knows it.
        looked: it has searched its store.
        shards: how many of the bucket's shards it found there.
        oldest, newest: lowest and highest version (epoch, counter) of those.
        pushes: total number of pushes that they contain.
        failed: this server cannot serve the job.
    """

    epoch: int
    looked: bool
    shards: int = 0
    oldest: tuple[int, int] = (0, 0)
    newest: tuple[int, int] = (0, 0)
    pushes: int = 0
    failed: bool = False

    def values(self) -> list[Any]:
        """Returns plain values for a status, without names to save space."""
        return [self.epoch, self.looked, self.shards, *self.oldest, *self.newest, self.pushes, self.failed]

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Kept:
        """Reverses `values`, of this or a later version. Raises TypeError or ValueError for other input."""
        epoch, looked, shards, old_epoch, old, new_epoch, new, pushes, failed = values[:9]
        return cls(
            int(epoch), bool(looked), int(shards), (int(old_epoch), int(old)), (int(new_epoch), int(new)), int(pushes),
            bool(failed),
        )  # fmt: skip


class State(Enum):
    """A bucket's state, from the operator's point of view."""

    HELD = "held"
    """Nothing to do: it is served, or a server that has it in memory takes it over."""
    UNCERTAIN = "uncertain"
    """Look again later: a live server has not yet reported what it has."""
    RETURNING = "returning"
    """Nothing to do: all members are back and resume it from their stores by themselves."""
    STUCK = "stuck"
    """Members are missing; it can be recovered from the others' data."""
    NOBODY = "nobody"
    """No live server has any data of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The examined state of one bucket.

    Attributes:
        why: explanation of a state in which nothing is recovered, for the operator.
        missing: members that are not registered, or cannot serve the job.
        empty: registered members without data.
        holders: (live member with data, its report), the one with the newest state first.
        former: (live server with data on disk that is not a member, its report).
        conditions: key -> revision that it must still have when the bucket is recovered.
    """

    bucket: int
    state: State
    known: VersionedRecord
    why: str = ""
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    holders: tuple[tuple[str, Kept], ...] = ()
    conditions: Mapping[str, int] | None = None
    former: tuple[tuple[str, Kept], ...] = ()

    @property
    def given_up(self) -> tuple[str, ...]:
        """Members that a recovery would remove."""
        return tuple(node for node in self.known.members if node in self.missing or node in self.empty)

    @property
    def primary(self) -> str:
        """The server that would serve it; empty if none can."""
        return self.holders[0][0] if self.holders else ""

    def recovered(self, unix_s: float) -> BucketRecord:
        """Returns the bucket's record after recovery."""
        assert self.state is State.STUCK
        why = f"recovered by an operator: {', '.join(sorted(self.given_up))} given up"
        in_sync = [node for node, _ in self.holders]
        return self.known.record.changed(unix_s, why, primary=self.primary, in_sync=in_sync, learners=())


def examine(
    bucket: int,
    known: VersionedRecord,
    nodes: Mapping[str, NodeView],
    told: Mapping[str, Mapping[int, Kept] | None],
    key: str,
    chosen: str = "",
) -> Finding:
    """Examines a bucket.

    Args:
        known: its record, with its revision.
        nodes: the live servers.
        told: server -> its report on buckets that it should hold but does not have in memory; None: no answer.
        key: the record's key.
        chosen: a server that is not a member; the operator says that its data counts like a member's.
    """
    missing, empty, doubts = [], [], []
    holders: list[tuple[str, Kept]] = []
    for node in known.members:
        view = nodes.get(node)
        if view is None:
            missing.append(node)
            continue
        kept_by = told.get(node)
        if kept_by is None:
            doubts.append(f"{node} is registered and does not answer")
            continue
        kept = kept_by.get(bucket)
        if kept is None and view.revision <= known.revision:
            return Finding(bucket, State.HELD, known, f"{node} has it in memory")
        if kept is None or kept.epoch != known.record.epoch:
            doubts.append(f"{node} has not read its record yet")
        elif kept.failed:
            missing.append(node)
        elif not kept.looked:
            doubts.append(f"{node} has not searched its store yet")
        elif kept.shards:
            holders.append((node, kept))
        else:
            empty.append(node)
    former = tuple(
        (node, by[bucket])
        for node, by in sorted(told.items())
        if by is not None and node in nodes and node not in known.members and bucket in by and by[bucket].shards
    )
    returning = bool(holders) and not missing
    others = [(node, kept) for node, kept in former if node == chosen]
    holders += others
    holders.sort(key=lambda holder: _age(holder[1]), reverse=True)
    found = (tuple(missing), tuple(empty), tuple(holders))
    if doubts:
        return Finding(bucket, State.UNCERTAIN, known, "; ".join(doubts), *found, former=former)
    if not holders:
        return Finding(bucket, State.NOBODY, known, _nobody(missing, empty), *found, former=former)
    if returning:
        text = "all its servers are back and will resume it by themselves"
        return Finding(bucket, State.RETURNING, known, text, *found, former=former)
    views = {node: nodes.get(node) for node in (*known.members, *(node for node, _ in others))}
    conditions = {node_key(node): view.revision if view is not None else 0 for node, view in views.items()}
    return Finding(bucket, State.STUCK, known, "", *found, {**conditions, key: known.revision}, former)


def _age(kept: Kept) -> tuple[int, int, int]:
    """Returns the sort key of reports; it decides nothing else, as the highest version of each shard is taken."""
    return kept.newest[0], kept.pushes, kept.newest[1]


def _nobody(missing: Sequence[str], empty: Sequence[str]) -> str:
    parts = [f"{', '.join(empty)} {'have' if len(empty) > 1 else 'has'} no data of it"] if empty else []
    parts += [f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not there"] if missing else []
    return "; ".join(parts)


def examine_all(
    job: str,
    known: Mapping[int, VersionedRecord],
    nodes: Mapping[str, NodeView],
    told: Mapping[str, Mapping[int, Kept] | None],
    chosen: str = "",
) -> list[Finding]:
    """Examines every bucket of a job, in order."""
    return [examine(bucket, known[bucket], nodes, told, bucket_key(job, bucket), chosen) for bucket in sorted(known)]


def recovery(job: str, stuck: Iterable[Finding], unix_s: float) -> list[ConfigChanges]:
    """Returns the compare-and-sets that recover buckets; each is atomic."""
    changes = [Change(one.bucket, one.recovered(unix_s), dict(one.conditions or {})) for one in stuck]
    return [together for _, together in put_together(job, changes)]
