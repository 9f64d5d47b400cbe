"""The groups of a run: who holds which partition of which replica, in which group epoch; how groups ended (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from adamctl.roles.coordinator.core.lobby import Guest
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import GroupMember

ENDED_KEPT_MAX = 256
"""Of how many dissolved groups it is remembered why, so that members that ask later are told."""


@dataclass(slots=True)
class Member:
    """One process of a group. `watch`: the token of its waiting request, and the latest time to answer it.

    `heard_s`: when it last asked, or was answered. `plan_hash`: as it has told, "" before that; `state`: likewise.
    """

    told: GroupMember
    partition: int
    heard_s: float
    watch: tuple[int, float] | None = None
    plan_hash: str = ""
    state: str = ""

    @property
    def key(self) -> WorkerKey:
        return self.told.node, self.told.incarnation

    @property
    def name(self) -> str:
        return f"partition {self.partition} ({self.told.node})"

    def deadline_s(self, silent_after_s: float) -> float:
        """Returns when its wait is over, or when it is to be declared dead."""
        return self.watch[1] if self.watch is not None else self.heard_s + silent_after_s


@dataclass(slots=True)
class Group:
    """The processes of one replica. `begun`: its lead has asked for ranges, so all partitions are ready."""

    epoch: int
    members: tuple[Member, ...]
    formed_s: float
    replica: int = -1
    begun: bool = False

    @property
    def lead(self) -> Member:
        """The member with partition 0: it alone takes ranges and reports them."""
        return self.members[0]

    @property
    def names(self) -> str:
        return ", ".join(member.told.node for member in self.members)


class Ended(NamedTuple):
    """A dissolved group. `dropped`: the member that it was dissolved because of, or None."""

    cause: str
    members: frozenset[WorkerKey]
    dropped: WorkerKey | None


class Seat(NamedTuple):
    """A member and its group."""

    group: Group
    member: Member


class GroupBook:
    """All groups of one run.

    Invariants: no process is in two groups, and no two processes of one name are in any. Group epochs rise by one with
    each group that is formed and with each that is dissolved, and are never used again.

    Attributes:
        groups: those that exist, by group epoch.
        epoch: the last one used.
        seats: the members of all groups by node, and after the end of the run those that do not know of it yet.
    """

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.epoch = 0
        self.seats: dict[str, Seat] = {}
        self._ended: dict[int, Ended] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def form(self, guests: Sequence[Guest], now_s: float) -> Group:
        """Makes a group of workers that have none; the first one leads."""
        assert not any(guest.joins.node in self.seats for guest in guests), "a worker would be in two groups"
        self.epoch += 1
        told = [GroupMember(*guest.key, guest.joins.host, guest.joins.addresses) for guest in guests]
        group = Group(self.epoch, tuple(Member(one, place, now_s) for place, one in enumerate(told)), now_s)
        self.groups[self.epoch] = group
        for member in group.members:
            self.seats[member.told.node] = Seat(group, member)
        return group

    def dissolve(self, group: Group, cause: str, dropped: WorkerKey | None) -> None:
        """Ends a group. Its members have no seat from now on; `ended` tells them why."""
        del self.groups[group.epoch]
        for member in group.members:
            del self.seats[member.told.node]
        self.epoch += 1
        self._ended[group.epoch] = Ended(cause, frozenset(member.key for member in group.members), dropped)
        for epoch in list(self._ended)[: max(len(self._ended) - ENDED_KEPT_MAX, 0)]:
            del self._ended[epoch]

    @property
    def last_cause(self) -> str:
        """Why the group was dissolved that was dissolved last; "" if none was."""
        return next(reversed(self._ended.values())).cause if self._ended else ""

    def seat(self, worker: WorkerKey, epoch: int | None = None) -> Seat | None:
        """Returns a worker's place in a group of this epoch, or of any; None if it has none."""
        seat = self.seats.get(worker[0])
        if seat is None or seat.member.key != worker or (epoch is not None and epoch != seat.group.epoch):
            return None
        return seat

    def keys_of(self, node: str) -> list[WorkerKey]:
        """Returns the process of this name that is in a group, if one is."""
        return [self.seats[node].member.key] if node in self.seats else []

    def ended(self, worker: WorkerKey, epoch: int) -> Ended | None:
        """Returns how a group ended that this worker was in; None if it was not, or if that is forgotten."""
        found = self._ended.get(epoch)
        return found if found is not None and worker in found.members else None

    def refusal(self, worker: WorkerKey, epoch: int) -> str:
        """Returns why a worker gets no tasks; "" if it leads the group of this epoch."""
        seat, ended = self.seat(worker, epoch), self.ended(worker, epoch)
        if ended is not None:
            return f"group {epoch} is dissolved: {ended.cause}; join again"
        if seat is None:
            return self.not_in(worker, epoch)
        if seat.member.partition:
            return f"{seat.member.name} takes no ranges; the lead of group {epoch} is {seat.group.lead.told.node}"
        return ""

    def not_in(self, worker: WorkerKey, epoch: int) -> str:
        """Says that a worker is not a member of a group."""
        return f"worker {worker[0]} is not, or no longer, in group {epoch}; join again"

    def release(self, worker: WorkerKey) -> None:
        """Takes away the seat of a member that knows that the run is over."""
        if self.seat(worker) is not None:
            del self.seats[worker[0]]

    def wakeup_s(self, silent_after_s: float, ready_s: float) -> float:
        """Returns when a member's deadline, or that of a group that has not begun, is over; inf for never."""
        times: list[float] = [seat.member.deadline_s(silent_after_s) for seat in self.seats.values()]
        times += [group.formed_s + ready_s for group in self.groups.values() if not group.begun]
        return min(times, default=inf)
