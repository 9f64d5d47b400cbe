"""The part of a run's state machine that makes replicas of several workers, one for each partition of the model.

    a worker      is                                          until
    in the lobby  waiting for a group, or a spare             enough others are there
    in a group    holding one partition of a replica          one of its members is lost, leaves, or is dropped
    told          of the end of its group, and not lost       it joins again, and is in the lobby

For everything else in a run a group is one worker, under the name of its lead, the member with partition 0. The other
members are never given tasks. A group ends as a whole: what its lead had is handed out again, as when a worker is lost,
and the other members are told, which counts against none of them.
"""

from __future__ import annotations

from collections.abc import Callable

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.group_book import Group, Member, Seat
from adamctl.roles.coordinator.core.instructions import AnswerWatch, Confirm, KeepInLobby, Outbox, TakeSeat
from adamctl.roles.coordinator.core.lobby import Guest
from adamctl.roles.coordinator.core.misfits import ATTEMPTS_MAX, remember
from adamctl.roles.coordinator.core.report import lobby_text
from adamctl.roles.coordinator.core.state import RunState
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import GroupWatchReply


class Groups:
    """Forms and dissolves the groups of a run whose replicas have several partitions."""

    def __init__(
        self,
        run: RunState,
        out: Outbox,
        admit: Callable[[WorkerKey, int], int],
        give_up: Callable[[WorkerKey, str, int, str], None],
        end: Callable[[str], None],
    ) -> None:
        """`run` is the run it belongs to, `out` takes its instructions.

        Args:
            admit: takes in a lead, with its number of threads, as a worker; returns the number of its replica.
            give_up: takes back what a lead has; what users are told, and with which code and text its requests that
                wait are refused.
            end: ends the run as failed, for this reason, after a checkpoint of what was trained.
        """
        self._run, self._out, self._admit, self._give_up, self._end = run, out, admit, give_up, end
        self._drops: dict[str, int] = {}

    # --- what members say -------------------------------------------------------------------------------------------

    def is_former(self, event: events.WorkerJoins) -> bool:
        """Whether a later process of the same name is known: this one's request was on its way for long."""
        run = self._run
        guest = run.lobby.guests.get(event.node)
        known = [incarnation for _, incarnation in run.groups.keys_of(event.node)]
        known += [] if guest is None else [guest.joins.incarnation]
        return event.incarnation < max(known, default=0)

    def join(self, event: events.WorkerJoins) -> None:
        """Takes a worker without a group into the lobby, while the run is ready and not over."""
        run, out = self._run, self._out
        key = (event.node, event.incarnation)
        misfit = run.misfits.find(key)
        if event.plan_hash and run.plan.plan_hash and event.plan_hash != run.plan.plan_hash:
            text = self._other_plan(event.node, event.plan_hash, f"run {run.plan.job}", run.plan.plan_hash)
            run.misfits.add(key, ErrorCode.PLAN_MISMATCH, text, run.now_s)
            out.refuse(event.token, ErrorCode.PLAN_MISMATCH, text)
        elif misfit is not None:
            out.refuse(event.token, misfit.code, misfit.text)
        elif not event.addresses:
            text = f"worker {event.node} told no address at which other partitions of its replica could reach it"
            out.refuse(event.token, ErrorCode.BAD_CONFIGURATION, f"{text}; start it with the coordinator's version")
        elif run.lobby.full and event.node not in run.lobby.guests:
            out.refuse(event.token, ErrorCode.OVER_QUOTA, f"the lobby of run {run.plan.job} is full; try another run")
        else:
            before = run.lobby.put(event, run.now_s, self._drops.get(event.node, 0))
            if before is not None and before.waits and before.joins.incarnation == event.incarnation:
                out.put(KeepInLobby(before.joins.token, lobby_text(run)))
            elif before is not None:
                self._leave_lobby(before, "it has joined again")

    def watch(self, event: events.GroupWatched) -> None:
        """A member waits for news of its group."""
        run, request, token = self._run, event.request, event.token
        key = (request.node, request.incarnation)
        seat = run.groups.seat(key, request.group_epoch)
        ended = run.groups.ended(key, request.group_epoch)
        if run.final_state:
            run.groups.release(key)
            self._answer(token, "ended", run.end_text)
        elif ended is not None:
            self._answer(token, "dropped" if ended.dropped == key else "dissolved", ended.cause)
        elif seat is None:
            self._out.refuse(token, ErrorCode.STALE_GROUP, run.groups.not_in(key, request.group_epoch))
        elif request.leaving:
            self._answer(token, "dissolved", "it left")
            self.lose(key, "it left")
        else:
            member, group = seat.member, seat.group
            self._answer_watch(member, "alive")
            member.heard_s, member.state = run.now_s, request.state
            member.watch = (token, run.now_s + request.wait_s)
            if request.plan_hash:
                member.plan_hash = request.plan_hash
                self._compare_plans(group, member)

    def drop(self, event: events.GroupDropWanted) -> None:
        """A member says that another one hangs, or cannot be reached."""
        run, request = self._run, event.request
        key = (request.node, request.incarnation)
        seat = run.groups.seat(key, request.group_epoch)
        if run.final_state:
            self._out.refuse(event.token, ErrorCode.RUN_ENDED, f"run {run.plan.job} is over ({run.final_state})")
        elif seat is None:
            self._out.refuse(event.token, ErrorCode.STALE_GROUP, run.groups.not_in(key, request.group_epoch))
        elif not -1 <= request.partition < len(seat.group.members):
            text = f"expected partition 0 to {len(seat.group.members) - 1}, or -1; found {request.partition}"
            self._out.refuse(event.token, ErrorCode.BAD_MESSAGE, text)
        else:
            self._out.put(Confirm(event.token))
            dropped = None if request.partition < 0 else seat.group.members[request.partition]
            told = request.cause
            if dropped is not None and not told.startswith(dropped.name):
                told = f"{dropped.name}: {told}"
            if dropped is not seat.member:
                told = f"{told}, as {seat.member.name} reports"
            self._judge(seat, dropped, request.fault, told)
            self._dissolve(seat.group, told, dropped)

    def _judge(self, seat: Seat, dropped: Member | None, fault: str, told: str) -> None:
        """Notes who can never be used: who says so of itself, or is out of another one's reach again and again."""
        misfits, now_s = self._run.misfits, self._run.now_s
        if dropped is None:
            return
        if fault == "unfit" and dropped is seat.member:
            misfits.add(dropped.key, ErrorCode.PLAN_MISMATCH, told, now_s)
        elif fault == "unreachable" and dropped is not seat.member and not seat.group.begun:
            self._note_drop(seat.member)  # either of the two may be the one at fault
            if (count := misfits.apart(seat.member.key, dropped.key)) >= ATTEMPTS_MAX:
                text = f"{told}; so {count} replicas in a row could not begin"
                misfits.add(dropped.key, ErrorCode.NEIGHBOUR_UNREACHABLE, text, now_s)

    def begin(self, lead: WorkerKey) -> None:
        """Notes that a lead has asked for ranges: its group works, so that nobody in it is to blame for others."""
        seat = self._run.groups.seat(lead)
        if seat is not None and not seat.group.begun:
            seat.group.begun, self._run.workers[lead].starting = True, False
            self._run.misfits.began(member.key for member in seat.group.members)
            for member in seat.group.members:
                self._drops.pop(member.told.node, None)

    def _compare_plans(self, group: Group, member: Member) -> None:
        """Ends a group whose members would not cut the model alike. Who differs from the run's plan stays out of it."""
        run = self._run
        right, whose = run.plan.plan_hash, f"run {run.plan.job}"
        other = next((one for one in group.members if one.plan_hash and one is not member), None)
        if not right and other is not None:
            right, whose = other.plan_hash, f"worker {other.told.node}"
        if not right or member.plan_hash == right:
            return
        text = self._other_plan(member.told.node, member.plan_hash, whose, right)
        if run.plan.plan_hash:
            run.misfits.add(member.key, ErrorCode.PLAN_MISMATCH, text, run.now_s)
        if member.watch is not None:
            self._out.refuse(member.watch[0], ErrorCode.PLAN_MISMATCH, text)
            member.watch = None
        self._dissolve(group, f"{member.name}: {text}", member)

    def _other_plan(self, node: str, found: str, whose: str, right: str) -> str:
        return (
            f"worker {node} has partition plan {found}, {whose} has {right}; all must run the same version of adamctl"
        )

    # --- what becomes of groups -------------------------------------------------------------------------------------

    def lose(self, worker: WorkerKey, cause: str) -> None:
        """A worker is gone, wherever it was: its group ends with it. Does nothing if it has neither group nor wait."""
        run = self._run
        guest = run.lobby.remove(worker)
        if guest is not None:
            self._leave_lobby(guest, cause)
        seat = run.groups.seat(worker)
        if seat is None:
            return
        if run.final_state:
            run.groups.release(worker)
            run.workers.pop(worker, None)
        else:
            self._dissolve(seat.group, f"{seat.member.name}: {cause}", seat.member)

    def look(self) -> None:
        """Dissolves groups of silent members and those that do not begin, forms new ones, and ends waits."""
        run = self._run
        for group in list(run.groups.groups.values()):
            self._look_at(group)
        for _, member in list(run.groups.seats.values()):  # after all who have news were told
            if member.watch is not None and run.now_s >= member.watch[1]:
                self._answer_watch(member, "alive")
        while len(run.groups) < run.plan.workers and (guests := run.lobby.choose(run.now_s)):
            self._form(guests)
        for guest in run.lobby.expire(run.now_s):
            self._out.put(KeepInLobby(guest.joins.token, lobby_text(run)))
        if run.misfits.cause and run.needs_worker and run.now_s >= run.misfits.due_s(run.alone_since_s):
            run.desk.cancel()
            self._end(run.misfits.cause)

    def _look_at(self, group: Group) -> None:
        run, silent_after_s = self._run, self._run.plan.silent_after_s
        for member in group.members:
            if member.watch is None and run.now_s >= member.deadline_s(silent_after_s):
                self.lose(member.key, f"no message from it for {silent_after_s:g} s")
                return
        if not group.begun and run.now_s >= group.formed_s + run.plan.group_ready_s:
            self.lose(group.lead.key, f"its replica was not ready within {run.plan.group_ready_s:g} s")

    def _form(self, guests: list[Guest]) -> None:
        run = self._run
        group = run.groups.form(guests, run.now_s)
        group.replica = self._admit(group.lead.key, guests[0].joins.threads)
        run.workers[group.lead.key].starting = True
        told = tuple(member.told for member in group.members)
        for guest, member in zip(guests, group.members, strict=True):
            self._out.put(TakeSeat(guest.joins.token, group.replica, group.epoch, member.partition, told))

    def _dissolve(self, group: Group, cause: str, dropped: Member | None) -> None:
        """Ends a group; `dropped` is the member that is to blame, if one is."""
        run = self._run
        run.groups.dissolve(group, cause, None if dropped is None else dropped.key)
        if dropped is not None:
            self._note_drop(dropped)
        gone = f"replica {group.replica} of {group.names} (group {group.epoch}) is dissolved: {cause}"
        told = f"group {group.epoch} is dissolved: {cause}; join again"
        self._give_up(group.lead.key, gone, ErrorCode.STALE_GROUP, told)
        for member in group.members:
            self._answer_watch(member, "dropped" if member is dropped else "dissolved", cause)

    def _note_drop(self, member: Member) -> None:
        remember(self._drops, member.told.node, self._drops.get(member.told.node, 0) + 1)

    def tell_the_end(self) -> None:
        """Answers everyone who waits, as the run is over. Members still in `groups` afterwards have not been told."""
        run = self._run
        for guest in run.lobby.clear():
            if guest.waits:
                text = f"run {run.plan.job} is over ({run.final_state})"
                self._out.refuse(guest.joins.token, ErrorCode.RUN_ENDED, text)
        for _, member in list(run.groups.seats.values()):
            if member.watch is not None:
                self._answer_watch(member, "ended", run.end_text)
                run.groups.release(member.key)

    def _leave_lobby(self, guest: Guest, cause: str) -> None:
        if guest.waits:
            self._out.refuse(guest.joins.token, ErrorCode.STALE_INCARNATION, cause)

    def _answer_watch(self, member: Member, state: str, cause: str = "") -> None:
        if member.watch is not None:
            token, member.watch, member.heard_s = member.watch[0], None, self._run.now_s
            self._answer(token, state, cause)

    def _answer(self, token: int, state: str, cause: str) -> None:
        self._out.put(AnswerWatch(token, GroupWatchReply(state, cause)))
