"""Copies of buckets on one parameter server: events in, instructions out (docs/decisions/0015-replication.md; pure).

It composes what is held for others (core_copies), what is shipped to others (core_replicate), and how a bucket is taken
over (core_takeover), and proposes the changes of buckets' records that follow from all that and from core_plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_copies import HeldShard
from adamctl.roles.ps.core_instructions import Image, Instruction
from adamctl.roles.ps.core_job import Job, ShardContent
from adamctl.roles.ps.core_replication_events import NodeView, ReplicationConfig
from adamctl.roles.ps.core_shard import Shard, Token
from adamctl.roles.ps.following import JobView
from adamctl.roles.ps.replica_body import CopyRecord
from adamctl.wire.messages import ConfigCompareAndSetReply, Message


class ReplicationCore:
    """All copies of buckets on one server. Every method returns what the shell has to do, in this order."""

    def __init__(
        self,
        core: Core,
        node: str,
        config: ReplicationConfig,
        lease_holds: Callable[[], bool],
        clock: Callable[[], float],
        unix_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Makes itself known to `core` (`Core.replication`).

        Args:
            lease_holds: says, by the clock at the moment of the call, whether this server's lease holds.
            clock: what `now` is elsewhere, for calls that come from `core`, which has another.
            unix_s: the host's clock, for what people read in records.
        """
        raise NotImplementedError

    # --- configuration ----------------------------------------------------------------------------------------------

    def registered(self, incarnation: int, revision: int) -> None:
        """This process is known as `incarnation`, by a node key of `revision`; first of all, and when it changes."""
        raise NotImplementedError

    def configured(
        self, name: str, view: JobView | None, nodes: Mapping[str, NodeView], draining: frozenset[str], now: float
    ) -> list[Instruction]:
        """What is known of a job's records and of the living servers (role `ps`, all of them); None: the job is over.

        The job is in `Core.jobs` before it is configured; when it is over, `Core.remove_job` comes after this. It takes
        the place of `Job.configure`, for jobs with one copy as well: `Build` says what is to be made. Also to be called
        when only `nodes` or `draining` have changed. Older records than those known are ignored.
        """
        raise NotImplementedError

    def built(self, name: str, contents: Mapping[int, Sequence[ShardContent]], now: float) -> list[Instruction]:
        """Buckets have been made, as `Build` asked for. Those that are no longer wanted are dropped."""
        raise NotImplementedError

    def loaded(self, name: str, contents: Mapping[int, Sequence[ShardContent] | None], now: float) -> list[Instruction]:
        """What `Load` found: bucket -> all its shards, each with its record's epoch; None: the store has none of it."""
        raise NotImplementedError

    def proposed(self, order: int, reply: ConfigCompareAndSetReply | None, now: float) -> list[Instruction]:
        """A compare-and-set was answered; None: nobody knows whether it was done."""
        raise NotImplementedError

    # --- other servers ----------------------------------------------------------------------------------------------

    def requested(
        self, token: Token, peer: str, incarnation: int, message: Message, records: Sequence[CopyRecord], now: float
    ) -> list[Instruction]:
        """A Replica...Request of server `peer`. Arrays of `records` are ours from now on and nobody writes to them."""
        raise NotImplementedError

    def answered(
        self, order: int, message: Message, records: Sequence[CopyRecord], incarnation: int, now: float
    ) -> list[Instruction]:
        """A Replica...Reply to an `Ask`; `incarnation` as the peer's HELLO says it, 0 if unknown."""
        raise NotImplementedError

    def refused(self, order: int, code: int, why: str, now: float) -> list[Instruction]:
        """An `Ask` was answered with an error (the peer lives)."""
        raise NotImplementedError

    def failed(self, order: int, why: str, now: float) -> list[Instruction]:
        """An `Ask` was not answered: no connection, or its deadline has passed."""
        raise NotImplementedError

    def image(self, token: Token, held: HeldShard) -> Image | None:
        """Holds the state of a copy's shard, for the store; None: it is let go, or nothing has come yet."""
        raise NotImplementedError

    # --- our own shards ---------------------------------------------------------------------------------------------

    def changed(self, job: Job, shards: Iterable[Shard]) -> list[Instruction]:
        """Called by `Core` when batches are done, before the next ones begin: their outcome is shipped."""
        raise NotImplementedError

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline_s(self, now: float) -> float:
        """Returns when `tick` is due: `now` or later, at most a heartbeat later."""
        raise NotImplementedError

    def tick(self, now: float) -> list[Instruction]:
        """Heartbeats, retries, who has been silent, takeovers, what the plan says."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status` and `adamctl shards`."""
        raise NotImplementedError
