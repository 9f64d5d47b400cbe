"""What groups were formed, who is in them, and what they were given: truth, apart from the coordinator's core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.group_book import Ended
from adamctl.roles.coordinator.core.instructions import TakeSeat
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.state import RunState
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import GroupMember, TrainTask
from tests.sim.engine import ViolationError
from tests.sim.runs.ledger import RunLedger


class GroupLedger(RunLedger):
    """Sees every seat that is given, every task and report, and what members are told.

    Attributes:
        formed: group epoch -> its members, in order.
        dissolved: how many groups are no more.
    """

    formed: dict[int, tuple[GroupMember, ...]]
    dissolved = 0

    def before(self, core: RunCore, named: int, now_s: float) -> None:
        """Before each event: who is in which group, and waits for news of it. `named`: as for `check_groups`."""
        run = core.run
        if not hasattr(self, "formed"):
            self.formed, self._seats = {}, Counter[tuple[int, int]]()
        self._groups = {epoch: [member.key for member in group.members] for epoch, group in run.groups.groups.items()}
        self._watching = {seat.member.key for seat in run.groups.seats.values() if seat.member.watch is not None}
        self._due: dict[int, Ended | None] = {}
        if named and named not in self._groups and run.wakeup_s() <= now_s:
            self._due = self._ended_by_time(core, now_s)

    def _ended_by_time(self, core: RunCore, now_s: float) -> dict[int, Ended | None]:
        """How the groups would end that a tick ends now: deadlines are looked at after every event."""
        twin = deepcopy(core)
        twin.step(events.Tick(), now_s)
        gone = self._groups.keys() - twin.run.groups.groups.keys()
        return {epoch: twin.run.groups.ended(self._groups[epoch][0], epoch) for epoch in gone}

    def seats(self, worker: WorkerKey, seat: TakeSeat) -> None:
        """A worker is told that it is in a group."""
        members = self.formed.setdefault(seat.group_epoch, seat.members)
        if seat.group_epoch < max(self.formed):
            raise ViolationError(f"group epochs do not rise: {seat.group_epoch} after {max(self.formed)}")
        if members != seat.members:
            raise ViolationError(f"members of group {seat.group_epoch} are told of different ones")
        self._seats[seat.group_epoch, seat.partition] += 1
        if self._seats[seat.group_epoch, seat.partition] > 1:
            raise ViolationError(f"partition {seat.partition} of group {seat.group_epoch} is given twice")
        if (members[seat.partition].node, members[seat.partition].incarnation) != worker:
            raise ViolationError(f"{worker} is told that it is {members[seat.partition]}")

    def answers(self, worker: WorkerKey, epoch: int, tasks: Sequence[TrainTask], run: RunState) -> None:
        """A request for tasks is answered: only the lead of a group that is there is given any."""
        for task in tasks:
            self.gave(worker, task)
        if tasks and self.plan.partitions > 1:
            group = run.groups.groups.get(epoch)
            if group is None or group.lead.key != worker:
                raise ViolationError(f"{worker} is given ranges for group {epoch}, which is {group}")

    def check_groups(self, run: RunState, told: Sequence[tuple[WorkerKey, str]], named: int) -> None:
        """After each event. `told`: which members were told which state; `named`: the group that a member spoke of."""
        if run.final_state or self.plan.partitions == 1:
            return
        groups = run.groups.groups
        nodes = Counter(member.told.node for group in groups.values() for member in group.members)
        if nodes and nodes.most_common(1)[0][1] > 1:
            raise ViolationError(f"a member is in two groups: {nodes.most_common(1)[0][0]}")
        if (
            any(len(group.members) != self.plan.partitions for group in groups.values())
            or len(groups) > run.plan.workers
        ):
            raise ViolationError(f"groups that there should not be: {groups}")
        if set(run.workers) != {group.lead.key for group in groups.values()}:
            raise ViolationError(f"replicas are {list(run.workers)}, but groups are {groups}")
        if both := nodes.keys() & run.lobby.guests.keys():
            raise ViolationError(f"in the lobby and in a group: {both}")
        gone = [epoch for epoch in self._groups if epoch not in groups]
        self.dissolved += len(gone)
        ended = {epoch: run.groups.ended(self._groups[epoch][0], epoch) for epoch in gone}
        if named and named not in self._groups and ended.items() - self._due.items():
            raise ViolationError(f"what a member says of group {named} ends {gone}")
        heard = {worker: state for worker, state in told if state != "alive"}
        for worker in {worker for epoch in gone for worker in self._groups[epoch]} & self._watching:
            if worker not in heard:
                raise ViolationError(f"a survivor is not told: {worker} of {gone}")
        dropped = [worker for worker, state in heard.items() if state == "dropped"]
        for epoch in gone:
            if sum(worker in self._groups[epoch] for worker in dropped) > 1:
                raise ViolationError(f"more than one member of group {epoch} is to blame: {dropped}")

    def check_lost(self, worker: WorkerKey, run: RunState) -> None:
        """After a process is reported lost: it is nowhere."""
        guest = run.lobby.guests.get(worker[0])
        if run.groups.seat(worker) is not None or (guest is not None and guest.key == worker):
            raise ViolationError(f"{worker} is lost, and is in a group or in the lobby")
