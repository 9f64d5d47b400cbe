"""Planted faults of replicas of partitions: other functions in the place of some while members are at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from adamctl.kernels.partition import program as program_module
from adamctl.kernels.partition import steps as steps_module
from adamctl.kernels.partition import update as update_module
from adamctl.kernels.partition.flight import FlightArrays
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.program import Batch, Program, Row, Step
from adamctl.kernels.partition.regions import Box, Held
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.kernels.segments import FLIGHT, Post, Words
from adamctl.model.layout import ParameterLayout
from adamctl.roles.worker.core.slots import Base
from adamctl.roles.worker.partition import engine as engine_module
from adamctl.roles.worker.partition.copies import MemoryCopy
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.member_session import MemberSession
from adamctl.roles.worker.partition.sending import Parcel
from adamctl.roles.worker.partition.taking import InOrder
from adamctl.roles.worker.partition.threads import Flight
from adamctl.roles.worker.replica import Replica
from adamctl.roles.worker.session import SessionRunner
from adamctl.wire.messages import FlightReport, PartDataRequest
from tests.sim.partitions.links import worker_at_work
from tests.sim.partitions.member import Seat
from tests.sim.partitions.rig import PartitionFault
from tests.sim.partitions.step_mutants import STEP_MUTANTS

# --- words and blocks -------------------------------------------------------------------------------------------------

_window = FlightArrays.window


def _own_window(self: FlightArrays, flights: int) -> tuple[tuple[Words, ...], list[Post]]:
    return (), _window(self, flights)[1]


def _window_of_each_kind(self: Member, arrays: FlightArrays, steps: Sequence[Step], own: Any) -> Program:
    """What an evaluation reads is less: whoever reads nothing in it does not say that it is done."""
    found = self.arrays
    self.arrays = lambda *of: arrays  # type: ignore[method-assign]
    try:
        return _program(self, arrays, steps, own)
    finally:
        self.arrays = found  # type: ignore[method-assign]


_program = Member._program


def _any_number(self: Program, step: Step) -> bool:
    """A word that is not 0 will do."""
    if not all(int(word[0]) > 0 for word in step.words):
        return False
    assert self._batch is not None
    step.work(self._batch, self._row)
    for post in step.posts:
        program_module.post_by_python(post, int(self._words[FLIGHT]))
    return True


_begin = Program.begin


def _early_words_dropped(self: Program, flight: int, batch: Batch, slot: int = 0, rate: float = 0.0) -> None:
    for step in self._pieces:
        assert isinstance(step, Step)
        for word in step.words:
            if Seat.current.place_of(word)[0][1] != "free":
                word[0] = min(int(word[0]), flight - 1)
    _begin(self, flight, batch, slot, rate)


def _drawn(self: Program, flight: int, batch: Batch, slot: int = 0, rate: float = 0.0) -> None:
    _begin(self, flight, batch._replace(key=Seat.current.view.random.getrandbits(63)), slot, rate)


def _with_trained_weights(self: Member, context: int, examples: int) -> Program:
    arrays = self.arrays(context, examples)
    return self._program(arrays, steps_module.evaluation_steps(arrays, self._loss, self._weights), None)


_sum = steps_module._sum


def _sum_by_arrival(arrays: FlightArrays, tensor: int, sharers: Sequence[int], rows: tuple[int, int]) -> Step:
    step = _sum(arrays, tensor, sharers, rows)

    def work(batch: Batch, row: Row) -> None:
        came = Seat.current.group.blocks.came
        own, context = arrays.neighbours.own, arrays.context
        order = sorted(sharers, key=lambda one: came(own, (one, "partial", tensor), context))
        _sum(arrays, tensor, order, rows).work(batch, row)

    return Step(step.words, step.calls, work, step.posts)


_output_error = FlightArrays._output_error


def _one_error_buffer(self: FlightArrays, number: int) -> Held | None:
    """Flights of all contexts share the array of a stage's output error."""
    found = _output_error(self, number)
    after = self.input_errors[number + 1] if number + 1 < len(self.input_errors) else None
    if found is None or found is after:
        return found
    buffers: dict[tuple[int, int], Any] = vars(self.neighbours).setdefault("error_buffers", {})
    return Held(buffers.setdefault((number, self.batch), found.array), found.box)


_sources = CutNetwork.sources


def _halo_too_small(self: CutNetwork, stage: int, partition: int) -> list[tuple[int, Box]]:
    """The last row that comes from below is forgotten."""
    found: list[tuple[int, Box]] = []
    for source, box in _sources(self, stage, partition):
        if source > partition and len(box) == 3:
            (first, last), *others = box
            box = ((first, last - 1), *others)
        found.append((source, box))
    return found


_place, _content = MemoryCopy.place, Parcel.content


def _shown_at_once(self: MemoryCopy, message: PartDataRequest, size_bytes: int) -> memoryview:
    """The word says that a block is there when it begins to arrive."""
    found = _place(self, message, size_bytes)
    self._words[message.block] = message.flight
    return found


def _packed_once(self: Parcel, examples: int) -> memoryview:
    """What lies apart in a block is copied together for the first flight alone."""
    found = _content(self, examples)
    self._pack = None
    return found


# --- gradients --------------------------------------------------------------------------------------------------------


def _all_that_is_held(layout: ParameterLayout, partition: int) -> tuple[int, ...]:
    return engine_module.held_shards(layout, worker_at_work().scenario.network, partition)


_parts = update_module._parts


def _norms_of_all(arrays: FlightArrays, skipped: frozenset[int]) -> tuple[Any, Any]:
    _, every = _parts(arrays, skipped)
    return every, every


_install = Replica.install


def _install_unsaid(self: Replica, base: Base) -> None:
    told, self._freed = self._freed, None
    _install(self, base)
    self._freed = told


# --- groups -----------------------------------------------------------------------------------------------------------

_handle_lead, _handle_member = Lead.handle, MemberSession.handle


def _any_epoch_to_lead(self: Lead, request: Any) -> None:
    request.message = replace(request.message, group_epoch=self._group.epoch)
    _handle_lead(self, request)


def _any_epoch_to_member(self: MemberSession, request: Any) -> None:
    request.message = replace(request.message, group_epoch=self.group.epoch)
    _handle_member(self, request)


async def _no_flush(self: SessionRunner) -> None:
    return


async def _flush_of_lead_alone(self: Lead) -> None:
    await self.engine.flush()


async def _flush_not_awaited(self: engine_module.PartitionEngine) -> None:
    for slot in self.replica.flush():
        self.downpour.push(slot)


_finished = Lead._finished


def _losses_of_all(self: Lead, partition: int, report: FlightReport) -> None:
    out = self._flights.get(report.number)
    if out is not None and partition in out.left and partition != self._reporter:
        out.loss_sum += report.loss_sum
        report = FlightReport(report.number, out.loss_sum, out.correct, report.compute_s, report.wait_s)
    elif out is not None:
        report = FlightReport(
            report.number, out.loss_sum + report.loss_sum, report.correct, report.compute_s, report.wait_s
        )
    _finished(self, partition, report)


def _own_is_all(self: Lead, partition: int, report: FlightReport) -> None:
    out = self._flights.get(report.number)
    if out is not None and partition == self._reporter:
        out.left &= {partition}
    _finished(self, partition, report)


def _as_they_come(self: InOrder, first_flight: int, flights: list[Flight]) -> list[Flight]:
    return flights


_close = Lead.close


async def _end_with_the_lead(self: Lead) -> None:
    await self.end("the lead failed")
    await _close(self)


MUTANTS = STEP_MUTANTS | {
    one.name: one
    for one in (
        PartitionFault(
            "window-from-own-done",
            "a flight overwrites blocks when its own partition is done with the flight before, whoever reads them",
            [(FlightArrays, "window", _own_window)],
        ),
        PartitionFault(
            "window-of-each-kind",
            "who reads nothing in an evaluation does not say that it is done with it",
            [(Member, "_program", _window_of_each_kind)],
        ),
        PartitionFault(
            "word-without-flight",
            "any word that is not 0 says that a block is there",
            [(Program, "_run", _any_number)],
        ),
        PartitionFault(
            "early-data-dropped",
            "a flight that begins forgets what has come for it already",
            [(Program, "begin", _early_words_dropped)],
        ),
        PartitionFault(
            "dropout-by-thread",
            "each thread draws which inputs are dropped",
            [(Program, "begin", _drawn)],
        ),
        PartitionFault(
            "sum-by-arrival",
            "gradients of shared tensors are added as they come",
            [(steps_module, "_sum", _sum_by_arrival)],
        ),
        PartitionFault(
            "error-buffer-shared",
            "flights of all contexts share a buffer of errors",
            [(FlightArrays, "_output_error", _one_error_buffer)],
        ),
        PartitionFault(
            "halo-off-by-one",
            "a partition copies one row too few of the next one's outputs",
            [(CutNetwork, "sources", _halo_too_small)],
        ),
        PartitionFault(
            "word-before-its-block",
            "the word of a copied block is written when the block begins to arrive",
            [(MemoryCopy, "place", _shown_at_once)],
        ),
        PartitionFault(
            "packed-once",
            "what a neighbour reads of a block is copied together for the first flight alone",
            [(Parcel, "content", _packed_once)],
        ),
        PartitionFault(
            "partials-pushed-by-all",
            "all who hold a shared tensor push its gradient",
            [(engine_module, "owned_shards", _all_that_is_held)],
        ),
        PartitionFault(
            "shared-norm-counted-by-all",
            "all who hold a shared tensor add its norm",
            [(update_module, "_parts", _norms_of_all)],
        ),
        PartitionFault(
            "freed-slot-unsaid",
            "threads are not told of slots that a fetch frees",
            [(Replica, "install", _install_unsaid)],
        ),
        PartitionFault(
            "epoch-unchecked",
            "requests between members are served whatever group they are of",
            [(Lead, "handle", _any_epoch_to_lead), (MemberSession, "handle", _any_epoch_to_member)],
        ),
        PartitionFault(
            "evaluation-before-flush",
            "parameters are pulled for an evaluation before what is accrued is pushed",
            [(SessionRunner, "_flush", _no_flush)],
        ),
        PartitionFault(
            "flush-of-lead-alone",
            "only the lead pushes what it has accrued before an evaluation",
            [(Lead, "flush", _flush_of_lead_alone)],
        ),
        PartitionFault(
            "flush-not-awaited",
            "an evaluation begins while pushes before it are unanswered",
            [(engine_module.PartitionEngine, "flush", _flush_not_awaited)],
        ),
        PartitionFault(
            "evaluated-as-trained",
            "evaluations use the weights that are trained",
            [(Member, "_evaluate", _with_trained_weights)],
        ),
        PartitionFault(
            "losses-of-all-counted",
            "the loss of each partition that computes it is counted",
            [(Lead, "_finished", _losses_of_all)],
        ),
        PartitionFault(
            "done-when-one-is",
            "a batch is done when the partition is that tells its loss",
            [(Lead, "_finished", _own_is_all)],
        ),
        PartitionFault(
            "ranges-as-they-come",
            "flights begin in the order in which their examples come",
            [(InOrder, "add", _as_they_come)],
        ),
        PartitionFault(
            "lead-ends-the-run",
            "a lead that fails tells the others that the run is over",
            [(Lead, "close", _end_with_the_lead)],
        ),
    )
}
