"""Which buckets wait for ever, and how an operator's command has servers go on with what is there (pure).

When no copy of a bucket is left in memory, its servers wait until all in-sync members that its record names are back:
any of them may have the highest durable version. If one never comes back, an operator may give it up. The record is
changed so that a living server that has something in its store is the primary and every other one that has something
stays in sync: the takeover that follows (core_takeover) takes the highest version of each shard that any of them has.

Nobody is given up who is in doubt: a process that may hold the bucket in memory, one that does not answer, one that has
not yet looked into its store. The change is conditional on the bucket's record and on the node keys of all its members:
those that stay must be the processes that have told what they have, and those that are given up must not have come back
meanwhile.

A server that was a member once keeps what it had on disk as long as the bucket has fewer copies than it should. What it
has is older, so it counts only where an operator says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from adamctl.config.records import BucketRecord, bucket_key, node_key
from adamctl.roles.ps.replication.core.instructions import NodeView
from adamctl.roles.ps.replication.core.job_buckets import VersionedRecord
from adamctl.roles.ps.replication.core.proposals import Change, put_together
from adamctl.wire.messages import ConfigChanges


@dataclass(frozen=True, slots=True)
class Kept:
    """What a server that should hold a bucket, and does not have it in memory, says of it (core_status).

    Attributes:
        epoch: of the bucket's record, as that server knows it.
        looked: it has looked into its store.
        shards: how many of the bucket's shards it has found there, 0: none.
        oldest, newest: lowest and highest version (epoch, counter) of those.
        pushes: that they contain, all together.
        failed: this server can serve nothing of the job.
    """

    epoch: int
    looked: bool
    shards: int = 0
    oldest: tuple[int, int] = (0, 0)
    newest: tuple[int, int] = (0, 0)
    pushes: int = 0
    failed: bool = False

    def values(self) -> list[Any]:
        """Returns plain values, as a status holds them: many, so without names."""
        return [self.epoch, self.looked, self.shards, *self.oldest, *self.newest, self.pushes, self.failed]

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Kept:
        """Raises TypeError, ValueError if they are not from `values` of this version or a later one."""
        epoch, looked, shards, old_epoch, old, new_epoch, new, pushes, failed = values[:9]
        return cls(
            int(epoch), bool(looked), int(shards), (int(old_epoch), int(old)), (int(new_epoch), int(new)), int(pushes),
            bool(failed),
        )  # fmt: skip


class State(Enum):
    """What is to be done about a bucket."""

    HELD = "held"
    """Nothing: it is served, or a server has it in memory and takes it over."""
    UNCERTAIN = "uncertain"
    """To look again: a living server has not said yet what it has."""
    RETURNING = "returning"
    """Nothing: all members are back, and take it up from their stores by themselves."""
    STUCK = "stuck"
    """Members are missing; it can be recovered from what the others have."""
    NOBODY = "nobody"
    """No living server has anything of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One bucket, as it is found.

    Attributes:
        why: of a state in which nothing is recovered, for people.
        missing: members that are not there, or that can serve nothing.
        empty: members that are there and have nothing.
        holders: living members that have something -> what, the one with the newest state first.
        former: living servers that are no members (any more) and have something on disk -> what.
        conditions: keys that must be as they were seen, if the bucket is recovered.
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
        """Members that would not be members any more."""
        return tuple(node for node in self.known.members if node in self.missing or node in self.empty)

    @property
    def primary(self) -> str:
        """Who would serve it; empty if nobody can."""
        return self.holders[0][0] if self.holders else ""

    def recovered(self, unix_s: float) -> BucketRecord:
        """Returns the record with which it is recovered."""
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
    """Returns what is to be done about a bucket.

    Args:
        known: its record, with its revision.
        nodes: the living servers.
        told: server -> what it says of the buckets that it should hold and does not have in memory; None: no answer.
        key: of its record.
        chosen: a server that is no member; what it has counts like a member's, as an operator says.
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
            doubts.append(f"{node} has not yet heard of it")
        elif kept.failed:
            missing.append(node)
        elif not kept.looked:
            doubts.append(f"{node} has not yet looked into its store")
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
        text = "all its servers are back, and take it up by themselves"
        return Finding(bucket, State.RETURNING, known, text, *found, former=former)
    views = {node: nodes.get(node) for node in (*known.members, *(node for node, _ in others))}
    conditions = {node_key(node): view.revision if view is not None else 0 for node, view in views.items()}
    return Finding(bucket, State.STUCK, known, "", *found, {**conditions, key: known.revision}, former)


def _age(kept: Kept) -> tuple[int, int, int]:
    """Returns what orders states of a bucket: nothing is lost by it, as the highest of each shard is taken anyway."""
    return kept.newest[0], kept.pushes, kept.newest[1]


def _nobody(missing: Sequence[str], empty: Sequence[str]) -> str:
    parts = [f"{', '.join(empty)} {'have' if len(empty) > 1 else 'has'} nothing of it"] if empty else []
    parts += [f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not there"] if missing else []
    return "; ".join(parts)


def examine_all(
    job: str,
    known: Mapping[int, VersionedRecord],
    nodes: Mapping[str, NodeView],
    told: Mapping[str, Mapping[int, Kept] | None],
    chosen: str = "",
) -> list[Finding]:
    """Returns `examine` of every bucket of a job, in order."""
    return [examine(bucket, known[bucket], nodes, told, bucket_key(job, bucket), chosen) for bucket in sorted(known)]


def recovery(job: str, stuck: Iterable[Finding], unix_s: float) -> list[ConfigChanges]:
    """Returns the compare-and-sets that recover buckets; each is done as a whole or not at all."""
    changes = [Change(one.bucket, one.recovered(unix_s), dict(one.conditions or {})) for one in stuck]
    return [together for _, together in put_together(job, changes)]
