"""Planted faults of replicas of partitions that are in step, or have a bound on staleness."""

from __future__ import annotations

import asyncio
from typing import Any

from adamctl.kernels.partition import update as update_module
from adamctl.kernels.partition.accruing import Accruing, SlotPlace
from adamctl.kernels.partition.flight import FlightArrays
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.program import Batch, Program, Step
from adamctl.kernels.partition.steps import training_steps
from adamctl.roles.ps.client.parameter_client import Place
from adamctl.roles.worker import session as session_module
from adamctl.roles.worker.core.grants import FlightGrants
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.lockstep import place_of
from adamctl.roles.worker.partition import member_session as member_module
from adamctl.roles.worker.partition.engine import PartitionEngine
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.member_session import MemberSession
from adamctl.roles.worker.partition.steps import GroupSteps
from adamctl.roles.worker.partition.threads import Flight
from adamctl.roles.worker.session import SessionRunner
from adamctl.wire.messages import FlightReport, NextTaskReply, PartStepRequest, TaskReport, TrainTask
from tests.sim.partitions.links import worker_at_work
from tests.sim.partitions.rig import PartitionFault

# --- parts ------------------------------------------------------------------------------------------------------------

_accruing = update_module._accruing


def _by_arrival(arrays: FlightArrays, accruing: Accruing) -> Step:
    step = _accruing(arrays, accruing)
    return Step((), step.calls, step.work)


_train = Member._train


def _clipped_each(self: Member, context: int, examples: int, is_last: bool) -> Program:
    if self._clip_norm is None or not self._of_parts:
        return _train(self, context, examples, is_last)
    arrays, own = self.arrays(context, examples), self._accruing[context]
    clipping = update_module.Clipping(arrays, self._clip_norm, own).steps()
    steps = [*training_steps(arrays, self._loss, True), *clipping, *update_module.accruing_steps(arrays, own)]
    return self._program(arrays, steps, own)


_begin = Program.begin


def _as_the_first(self: Program, flight: int, batch: Batch, place: Any = SlotPlace(), rate: float = 0.0) -> None:
    self._firsts = ()
    _begin(self, flight, batch, place, rate)


def _each_part_a_step(self: PartitionEngine, flight: Flight) -> None:
    examples = len(flight.batch.labels)
    actions = self.replica.end_native_steps(0, 1, examples, flight.learning_rate, flight.rate)
    if actions.push is not None:
        self._accrued[flight.number] = actions.push


# --- steps ------------------------------------------------------------------------------------------------------------

_push, _pushed_by_lead = Downpour.push, GroupSteps.push


def _push_without_place(self: Downpour, slot: Any, place: Place | None = None, channel: int = 0) -> asyncio.Task[bool]:
    return _push(self, slot, None, channel)


def _own_answer_is_all(self: GroupSteps, slot: Any, place: Place | None = None, channel: int = 0) -> asyncio.Task[bool]:
    assert place is not None
    self._answers.pop((place, channel))
    return self._downpour.push(slot, place, channel)


_take_step = MemberSession._take_step


async def _not_fetched(self: MemberSession, request: Any, message: PartStepRequest) -> None:
    """The weights of the group's beginning stay."""
    request.message = PartStepRequest(
        message.group_epoch, message.first_flight, message.task, message.number, message.channel, False, message.over
    )
    await _take_step(self, request, request.message)


_push_step = MemberSession._push_step


async def _fetched_after_own_push(self: MemberSession, request: Any, flight: int) -> None:
    """A member fetches as soon as its own push is answered, and not when all are."""
    await _push_step(self, request, flight)
    assert isinstance(self.engine, PartitionEngine) and isinstance(self.engine.downpour, Downpour)
    await self.engine.downpour.fetch()


def _again_as_the_next(task: TrainTask, number: int) -> Place:
    place, settled = place_of(task, number), worker_at_work().scenario.steps.settled
    return place._replace(step=settled + 1) if place.step <= settled else place


# --- grants -----------------------------------------------------------------------------------------------------------

_submit_granted, _finished = PartitionEngine._submit_granted, Lead._finished


def _grants_ignored(self: PartitionEngine) -> None:
    granted, self._granted = self._granted, 1 << 60
    _submit_granted(self)
    self._granted = granted


def _done_when_the_lead_is(self: Lead, partition: int, report: FlightReport) -> None:
    grants, self._grants = self._grants, None
    out = self._flights.get(report.number)
    own = out is not None and partition == self._group.own and isinstance(out.batch.task, TrainTask)
    if grants is not None and own:
        grants.finish()
    _finished(self, partition, report)
    self._grants = grants


_act, _finish = SessionRunner._act, SessionRunner._finish


def _act_without_rest(self: SessionRunner, reply: NextTaskReply) -> None:
    pacer, self._pacer = self._pacer, None
    try:
        _act(self, reply)
    finally:
        self._pacer = pacer


def _rest_when_done(self: SessionRunner, task: Any, report: TaskReport) -> None:
    _finish(self, task, report)
    if self._pacer is not None and not self._ledger.training:
        self._pacer.gate.rest()


def _both(first: Any, second: Any) -> list[tuple[Any, str, Any]]:
    return [(member_module.MemberSession, "_take_step", first), (member_module.MemberSession, "_push_step", second)]


STEP_MUTANTS = {
    one.name: one
    for one in (
        PartitionFault(
            "part-of-its-own-size",
            "the derivatives of a part of a batch are divided by its own size",
            [(Batch, "share", property(lambda batch: 1.0))],
        ),
        PartitionFault(
            "parts-by-arrival",
            "parts of a batch are added as they come",
            [(update_module, "_accruing", _by_arrival)],
        ),
        PartitionFault(
            "each-part-clipped",
            "each part of a batch is clipped before it is added",
            [(Member, "_train", _clipped_each)],
        ),
        PartitionFault(
            "dropout-of-each-part",
            "each part of a batch drops as if it were the first",
            [(Program, "begin", _as_the_first)],
        ),
        PartitionFault(
            "part-pushed-as-step",
            "each part of a batch is pushed by itself",
            [(PartitionEngine, "_count_part", _each_part_a_step)],
        ),
        PartitionFault(
            "push-without-place",
            "what is pushed in a step is applied at once",
            [(Downpour, "push", _push_without_place)],
        ),
        PartitionFault(
            "own-answer-is-all",
            "a step is complete when the lead's own push is answered",
            [(GroupSteps, "push", _own_answer_is_all)],
        ),
        PartitionFault(
            "weights-not-fetched",
            "a member goes on with the weights of the group's beginning",
            [(MemberSession, "_take_step", _not_fetched)],
        ),
        PartitionFault(
            "weights-of-own-answer",
            "a member fetches when its own push is answered, in the middle of the step of others",
            _both(_not_fetched, _fetched_after_own_push),
        ),
        PartitionFault(
            "step-again-as-the-next",
            "what a new group makes again is pushed as the next step",
            [(session_module, "place_of", _again_as_the_next), (member_module, "place_of", _again_as_the_next)],
        ),
        PartitionFault(
            "grants-ignored",
            "members begin flights that are not granted",
            [(PartitionEngine, "_submit_granted", _grants_ignored)],
        ),
        PartitionFault(
            "grant-from-own-done",
            "a step is done when the lead has finished its flight",
            [(Lead, "_finished", _done_when_the_lead_is)],
        ),
        PartitionFault(
            "grant-kept-at-rest",
            "what was allowed stays allowed when a replica has rested",
            [(FlightGrants, "rest", lambda grants: None)],
        ),
        PartitionFault(
            "rest-when-done",
            "what was allowed is void when a replica has done all it has, and not when it is given more",
            [(SessionRunner, "_act", _act_without_rest), (SessionRunner, "_finish", _rest_when_done)],
        ),
    )
}
