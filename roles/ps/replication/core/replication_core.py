"""Replication on one parameter server: events in, instructions out (docs/decisions/0015-replication.md; pure).

For each job it combines this server's part in each bucket (`job_buckets`), what it holds for others (`held_bucket`,
`secondary`), what it ships to others (`bucket_group`, `replica_link`), takeovers of buckets (`takeover`), and the
changes of records that it proposes (`proposals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from adamctl.model.layout import bucket_ranges
from adamctl.roles.ps.core.instructions import Instruction, Notice, ReadNode
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.job_records import JobView
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.replication.core.bucket_group import ReplicaGroup, ShardReplica
from adamctl.roles.ps.replication.core.held_bucket import HeldCopy
from adamctl.roles.ps.replication.core.job_buckets import JobReplicas
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.roles.ps.replication.core.outbox import Outbox, ReplicationConfig
from adamctl.roles.ps.replication.core.proposals import Proposals
from adamctl.roles.ps.replication.core.recovery import Kept
from adamctl.roles.ps.replication.core.replica_link import Link
from adamctl.roles.ps.replication.core.secondary import Replies, refuse_unknown
from adamctl.roles.ps.replication.core.status import KEPT_MAX, kept_of, status_of
from adamctl.roles.ps.replication.core.takeover import Takeover
from adamctl.wire.messages import (
    ConfigCompareAndSetReply,
    Message,
    ReplicaFetchRequest,
    ReplicaPrepareRequest,
    ReplicaStateRequest,
)


@dataclass(frozen=True, slots=True)
class Replicated:
    """The parts for one job."""

    copies: JobReplicas
    proposals: Proposals
    replies: Replies


class ReplicationCore:
    """All replicated buckets of one server. Every method returns instructions for the shell, in order."""

    def __init__(
        self,
        core: ServerCore,
        node: str,
        config: ReplicationConfig,
        lease_holds: Callable[[], bool],
        clock: Callable[[], float],
        unix_s: Callable[[], float] = lambda: 0.0,
        store_clock: Callable[[], float] | None = None,
        confirmed_s: Callable[[], float] = lambda: inf,
    ) -> None:
        """Registers itself with `core` (`ServerCore.replication`).

        Args:
            lease_holds: returns whether this server's lease holds at the moment of the call.
            confirmed_s: when the last beacon confirmed by the controllers was sent, by `clock`.
            clock: the clock of `now` in other methods, for calls from `core`, which uses another clock.
            unix_s: the host's clock, for times in records.
            store_clock: the clock of the store's log; None: `clock`.
        """
        self.config = config
        self._core = core
        self._outbox = Outbox(core, node, config, lease_holds, confirmed_s, clock, unix_s, store_clock or clock)
        self._jobs: dict[str, Replicated] = {}
        self._asked_s: dict[str, float] = {}
        self._ticked_s: float | None = None
        core.replication, core.lease_holds = self, lease_holds

    def copies(self, name: str) -> dict[int, HeldCopy]:
        """Returns a job's copies held for other servers, by bucket."""
        one = self._jobs.get(name)
        return one.copies.copies if one is not None else {}

    def groups(self, name: str) -> dict[int, ReplicaGroup]:
        """Returns a job's buckets that are served here and may have other copies."""
        one = self._jobs.get(name)
        return one.copies.groups if one is not None else {}

    # --- configuration ----------------------------------------------------------------------------------------------

    def registered(self, incarnation: int, revision: int) -> None:
        """Sets this process's incarnation and its node key's revision; call it first, and when they change."""
        self._outbox.incarnation, self._outbox.registered_revision = incarnation, revision

    def configured(
        self, name: str, view: JobView | None, nodes: Mapping[str, NodeView], draining: frozenset[str], now: float
    ) -> list[Instruction]:
        """Takes in a job's records, all live servers (role `ps`) and the draining ones; `view` None: the job is over.

        Add the job to `ServerCore.jobs` before this; when it is over, call `ServerCore.remove_job` after this. `Build`
        and `Load` say what to make. Call it also when only
        `nodes` or `draining` have changed. Records older than the known ones are ignored.
        """
        self._outbox.follow(nodes, draining, now)
        job, one = self._core.jobs.get(name), self._jobs.get(name)
        if one is not None and (view is None or job is not one.copies.job or one.copies.born != view.revision):
            one.copies.close()
            del self._jobs[name]
            one = None
        if view is None or job is None:
            return self._taken()
        if one is None:
            copies = JobReplicas(self._outbox, job, view)
            one = Replicated(copies, Proposals(self._outbox, copies), Replies(self._outbox, copies))
            self._jobs[name] = one
        one.copies.follow(view, now)
        one.proposals.followed(now)
        self._pump(one, now)
        return self._taken()

    def built(self, name: str, contents: Mapping[int, Sequence[ShardContent]], now: float) -> list[Instruction]:
        """Takes in buckets built for a `Build`. Those that are no longer wanted are dropped."""
        one = self._jobs.get(name)
        if one is not None:
            for bucket, shards in contents.items():
                one.copies.built(bucket, shards)
            self._pump(one, now)
        return self._taken()

    def loaded(self, name: str, contents: Mapping[int, Sequence[ShardContent] | None], now: float) -> list[Instruction]:
        """Takes in what a `Load` found: bucket -> all its shards, each with its record's epoch; None: not in the store.

        For a job that no server has ever served (`JobView.served`), it is the job's initial content, at epoch 0.
        """
        one = self._jobs.get(name)
        if one is not None:
            for bucket, shards in contents.items():
                one.copies.loaded(bucket, shards, now)
            self._pump(one, now)
        return self._taken()

    def proposed(self, order: int, reply: ConfigCompareAndSetReply | None, now: float) -> list[Instruction]:
        """Takes in the answer to a compare-and-set; None: its outcome is unknown."""
        for one in self._jobs.values():
            if one.proposals.proposed(order, reply, now):
                self._pump(one, now)
                break
        return self._taken()

    # --- other servers ----------------------------------------------------------------------------------------------

    def requested(
        self, token: Token, peer: str, message: Message, records: Sequence[CopyRecord], now: float
    ) -> list[Instruction]:
        """Handles a Replica...Request of server `peer`. Takes over the arrays of `records`; they must not change."""
        assert isinstance(message, ReplicaPrepareRequest | ReplicaStateRequest | ReplicaFetchRequest)
        one = self._jobs.get(message.job)
        if one is None or one.copies.born != message.born:
            refuse_unknown(self._outbox, token, message.job, "this server does not know this version of the job yet")
        elif isinstance(message, ReplicaPrepareRequest):
            one.replies.prepare(token, peer, message, records, now)
        elif isinstance(message, ReplicaStateRequest):
            one.replies.state(token, message)
        else:
            one.replies.fetch(token, message)
        return self._taken()

    def answered(
        self, order: int, message: Message, records: Sequence[CopyRecord], incarnation: int, now: float
    ) -> list[Instruction]:
        """Takes in a Replica...Reply to an `Ask`; `incarnation`: from the peer's HELLO, 0 if unknown."""
        asker = self._outbox.asker(order)
        if asker is not None:
            asker.answered(order, message, records, now)
            self._after(asker, now)
        return self._taken()

    def refused(self, order: int, why: str, now: float) -> list[Instruction]:
        """Notes that an `Ask` was answered with an error, so the peer is alive."""
        return self._failed(order, True, why, now)

    def failed(self, order: int, why: str, now: float) -> list[Instruction]:
        """Notes that an `Ask` was not answered: no connection, or its deadline has passed."""
        return self._failed(order, False, why, now)

    def _failed(self, order: int, lives: bool, why: str, now: float) -> list[Instruction]:
        asker = self._outbox.asker(order)
        if asker is not None:
            asker.failed(order, lives, why, now)
            self._after(asker, now)
        return self._taken()

    def _after(self, asker: object, now: float) -> None:
        """Continues after an answer: a record may need a change, or a takeover may be complete."""
        if isinstance(asker, Takeover) or self._outbox.needs_review:
            for one in self._jobs.values():
                self._pump(one, now)
        self._outbox.needs_review = False

    # --- our own shards ---------------------------------------------------------------------------------------------

    def changed(self, job: Job, shards: Iterable[Shard]) -> list[Instruction]:
        """Ships the result of batches; `ServerCore` calls this when they are done, before the next ones begin."""
        one = self._jobs.get(job.name)
        if one is None or one.copies.job is not job:
            return []
        touched: dict[Link, None] = {}
        links_of: dict[ReplicaGroup, list[Link]] = {}
        for shard in shards:
            replica = shard.replica
            if not isinstance(replica, ShardReplica):
                continue
            links = links_of.get(replica.group)
            if links is None:
                links = links_of[replica.group] = one.copies.links.of(replica.group)
                touched.update(dict.fromkeys(links))
            for link in links:
                link.changed(replica)
        now = self._outbox.clock()
        for link in touched:
            link.ship(now)
        return self._taken()

    def abandon(self, job: Job, damaged: set[int]) -> list[Instruction]:
        """Gives up damaged buckets, so that other copies take over; if one has no other copy, all buckets of the job.

        A bucket without another copy stays in `Job.buckets`, so that `ServerCore` gives up the job here.
        """
        one = self._jobs.get(job.name)
        if one is None or one.copies.job is not job:
            return []
        alone = any(not one.copies.has_others(bucket) for bucket in damaged)
        for bucket in tuple(one.copies.groups) if alone else damaged:
            if one.copies.has_others(bucket):
                one.copies.abandon(bucket)
        self._pump(one, self._outbox.clock())
        return self._taken()

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline_s(self, now: float) -> float:
        """Returns when `tick` is due: between `now` and one heartbeat later."""
        due_s = now + self.config.heartbeat_s
        for one in self._jobs.values():
            due_s = min(due_s, one.proposals.next_deadline_s(now))
            for link in one.copies.links:
                due_s = min(due_s, link.next_deadline_s(now))
            for takeover in one.copies.takeovers.values():
                due_s = min(due_s, takeover.next_deadline_s(now))
        return due_s

    def tick(self, now: float) -> list[Instruction]:
        """Does everything that time triggers: heartbeats, retries, silence timeouts, takeovers, the plan."""
        if self._ticked_s is not None and now - self._ticked_s > 2 * self.config.heartbeat_s:
            self.stalled(now)
        self._ticked_s = now
        self._outbox.refill(now)
        for one in self._jobs.values():
            self._pump(one, now)
            self._listen(one.copies, now)
        self._outbox.needs_review = False
        return self._taken()

    def stalled(self, now: float) -> None:
        """Restarts all silence timeouts, as this process did not run for a while; call it before the next event."""
        for one in self._jobs.values():
            for link in one.copies.links:
                link.awoke(now)
            for takeover in one.copies.takeovers.values():
                takeover.awoke(now)
            one.copies.heard_s = dict.fromkeys(one.copies.heard_s, now)

    def _listen(self, copies: JobReplicas, now: float) -> None:
        """Reads the node keys of primaries that have been silent for too long."""
        for bucket in copies.copies:
            primary = copies.known[bucket].record.primary
            if primary == self._outbox.node or bucket in copies.takeovers:
                continue
            silent_s = now - copies.heard_s.setdefault(primary, now)
            asked_s = self._asked_s.get(primary, float("-inf"))
            if silent_s >= self.config.member_silent_s and now - asked_s >= self.config.heartbeat_s:
                self._asked_s[primary] = now
                self._outbox.emit(ReadNode(copies.job.name, primary))

    def _pump(self, one: Replicated, now: float) -> None:
        """Does everything that is due for one job."""
        copies = one.copies
        for bucket, takeover in tuple(copies.takeovers.items()):
            takeover.judge(now)
            takeover.advance(now)
            copies.finish_takeover(bucket)
        for link in copies.links:
            link.judge(now)
            link.tick(now)
        copies.links.forget_unused()
        copies.search(now)
        one.proposals.review(now)
        if copies.taken_up:
            text = f"{bucket_ranges(copies.taken_up)}: taken over, served from now on"
            self._outbox.emit(Notice(copies.job.name, copies.taken_up[0], text))
            copies.taken_up.clear()

    def _taken(self) -> list[Instruction]:
        """Returns the collected instructions, including answers to pushes whose wait has ended."""
        if self._outbox.over and self._core.acknowledgements is not None:
            over, self._outbox.over = self._outbox.over, []
            self._outbox.emit(*self._core.acknowledgements.over(over))
        return self._outbox.taken()

    # --- status -----------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status` and `adamctl shards`: this server's part in each bucket, per job."""
        return {name: status_of(one.copies) for name, one in self._jobs.items()}

    def kept(self, spared: Callable[[str], Mapping[int, Kept]] = lambda _: {}) -> dict[str, dict[int, Kept]]:
        """Returns, per job, what the store has of buckets that this server should hold but does not have in memory.

        `spared`: job -> what the store has of other servers' buckets; listed after those.
        """
        kept: dict[str, dict[int, Kept]] = {}
        for name, one in self._jobs.items():
            count_max = KEPT_MAX - sum(map(len, kept.values()))
            kept[name] = told = kept_of(one.copies, count_max)
            others = [pair for pair in sorted(spared(name).items()) if pair[0] not in told]
            told |= dict(others[: count_max - len(told)])
        return kept
