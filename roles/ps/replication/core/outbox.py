"""What the parts of the replication core share: bounds, this server's identity, live servers, pending requests (pure).

Times are in seconds of a monotonic clock of this process that includes suspension. Clocks of different hosts are never
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from adamctl.roles.ps.core.flush import Entry, Waiter
from adamctl.roles.ps.core.instructions import Ask, Instruction
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.roles.ps.core.shard import Image
from adamctl.roles.ps.core.shard_message import CopyRecord
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.wire.messages import Message


@dataclass(frozen=True)
class ReplicationConfig:
    """Bounds.

    Attributes:
        lease_s: how long a lease lasts (D).
        beacon_s: the n-th live member waits n times this before it takes over.
        heartbeat_s: a primary sends to each member at least this often.
        member_silent_s: a member that has not answered for this long is removed; a secondary that has heard nothing
            from its primary for this long reads the primary's key.
        retry_s: pause after a failed request or change.
        settle_s: nothing is moved just for balance for this long after servers came or went.
        back_off_s: this server gives no learner to a server for this long after it did not answer or refused a copy.
        message_bytes_max: size limit of one message, unless one shard alone is larger.
        flights_max: messages with records in flight to one server for one job.
        learner_bytes_per_s: rate limit for filling learners, for all of them together.
    """

    lease_s: float = 4.0
    beacon_s: float = 1.0
    heartbeat_s: float = 1.0
    member_silent_s: float = 2.0
    retry_s: float = 0.05
    settle_s: float = 10.0
    back_off_s: float = 10.0
    message_bytes_max: int = 8 << 20
    flights_max: int = 4
    learner_bytes_per_s: float = 256e6

    @classmethod
    def of_lease(cls, lease_s: float, **others: float) -> ReplicationConfig:
        """Returns the defaults for leases of another length."""
        fields: dict[str, float] = {
            "lease_s": lease_s,
            "beacon_s": lease_s / 4,
            "heartbeat_s": lease_s / 4,
            "member_silent_s": lease_s / 2,
            "settle_s": 2.5 * lease_s,
            "back_off_s": 2.5 * lease_s,
        }
        return cls(**{**fields, **others})  # type: ignore[arg-type]


class Asker(Protocol):
    """Receives the outcome of a request to another server. `lives`: the server refused, so it is alive."""

    def answered(self, order: int, message: Message, records: Sequence[CopyRecord], now: float) -> None: ...

    def failed(self, order: int, lives: bool, why: str, now: float) -> None: ...


class Outbox:
    """This server's view of the others, and the instructions collected for the shell.

    Attributes:
        incarnation, registered_revision: of this process, in the configuration service.
        nodes: the live servers.
        draining: servers that should hold nothing.
        out: instructions for the shell from the current event, in order.
        over: waiters whose wait for copies ended with the current event.
        needs_review: something happened that may require a change of a record.
        fill_bytes: bytes that may be sent to learners now.
    """

    def __init__(
        self,
        core: ServerCore,
        node: str,
        config: ReplicationConfig,
        lease_holds: Callable[[], bool],
        confirmed_s: Callable[[], float],
        clock: Callable[[], float],
        unix_s: Callable[[], float],
        store_clock: Callable[[], float],
    ) -> None:
        self.core, self.node, self.config = core, node, config
        self.lease_holds, self._confirmed_s = lease_holds, confirmed_s
        self.clock, self.unix_s, self.store_clock = clock, unix_s, store_clock
        self.incarnation = self.registered_revision = 0
        self.nodes: Mapping[str, NodeView] = {}
        self.draining: frozenset[str] = frozenset()
        self.out: list[Instruction] = []
        self.fill_bytes = float(config.message_bytes_max)
        self.over: list[Waiter] = []
        self._filled_s: float | None = None
        self.needs_review = False
        self._nodes_changed_s = float("-inf")
        self._order = 0
        self._asked: dict[int, Asker] = {}

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def emit(self, *instructions: Instruction) -> None:
        self.out.extend(instructions)

    def taken(self) -> list[Instruction]:
        """Returns the collected instructions and clears them."""
        out, self.out = self.out, []
        return out

    def changed(self, entry: Entry | None, record: CopyRecord | None = None) -> None:
        """Notes that a shard's state has changed, so that its record in the store's log is outdated.

        `record`: what it was changed by; arrays that this leaves out are as before.
        """
        if entry is not None and self.core.flush is not None:
            arrays = None
            if record is not None and not all(record.copy.lengths):
                arrays = [place for place, length in enumerate(record.copy.lengths) if length]
            self.core.flush.changed(entry, self.store_clock(), arrays=arrays)

    def is_silent(self, since_s: float | None, now: float) -> bool:
        """Returns whether a server that has owed an answer since `since_s` counts as silent.

        Only if the controllers confirmed a beacon of this server when the answer had been due for a while. Otherwise
        this server itself may be cut off, and would remove members that are well and in contact with each other.
        """
        if since_s is None or now - since_s < self.config.member_silent_s:
            return False
        return self._confirmed_s() >= since_s + self.config.member_silent_s / 2

    def silence_due_s(self, since_s: float, now: float) -> float:
        """Returns when to ask `is_silent` again."""
        due_s = since_s + self.config.member_silent_s
        return due_s if due_s > now else now + self.config.beacon_s / 4

    def settled(self, now: float) -> bool:
        """Returns whether no server has come or gone recently."""
        return now - self._nodes_changed_s >= self.config.settle_s

    def follow(self, nodes: Mapping[str, NodeView], draining: frozenset[str], now: float) -> None:
        """Takes in the live and the draining servers."""
        if set(nodes) != set(self.nodes):
            self._nodes_changed_s = now
        self.nodes, self.draining = dict(nodes), draining

    def refill(self, now: float) -> None:
        """Adds what may be sent to learners for the time that has passed."""
        if self._filled_s is not None:
            more = (now - self._filled_s) * self.config.learner_bytes_per_s
            self.fill_bytes = min(self.fill_bytes + more, float(self.config.message_bytes_max))
        self._filled_s = now

    @property
    def fill_wait_s(self) -> float:
        """Seconds until something may be sent to learners."""
        return max(1.0 - self.fill_bytes, 0.0) / self.config.learner_bytes_per_s

    def ask(
        self,
        asker: Asker,
        peer: str,
        message: Message,
        records: Sequence[CopyRecord] = (),
        images: Sequence[Image] = (),
        deadline_s: float | None = None,
    ) -> int:
        """Sends a request to another server; returns its order."""
        order = self.next_order()
        self._asked[order] = asker
        deadline_s = self.config.member_silent_s if deadline_s is None else deadline_s
        self.emit(Ask(order, peer, message, records, images, deadline_s))
        return order

    def asker(self, order: int) -> Asker | None:
        """Returns who made a request that has ended; None if it ended before."""
        return self._asked.pop(order, None)

    def registered_after(self, node: str, revision: int) -> bool:
        """Returns whether the process that a record of `revision` refers to is gone or was replaced by a newer one."""
        view = self.nodes.get(node)
        return view is None or view.revision > revision

    def revision_of(self, node: str) -> int:
        view = self.nodes.get(node)
        return view.revision if view is not None else 0

    def incarnation_of(self, node: str) -> int:
        view = self.nodes.get(node)
        return view.record.incarnation if view is not None else 0
