"""What members of replicas truly do: flights, their weights and gradients, pushes, reports; apart from the product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.model.layout import ParameterLayout
from adamctl.model.partition.plan import PartitionPlan
from adamctl.roles.worker.partition.threads import Flight
from adamctl.wire.messages import EvaluateTask, TaskReport, TrainTask
from tests.sim.engine import ViolationError
from tests.sim.partitions.blocks import Blocks
from tests.sim.partitions.models import Examples, Setting

Task: TypeAlias = TrainTask | EvaluateTask


@dataclass
class Done:
    """What one member has found in a flight. `weights`: what each step computed with, as bytes, in order."""

    weights: list[bytes] = field(default_factory=list)
    gradient: Array | None = None
    loss: float = 0.0
    correct: int = 0
    clipped: int = 0


@dataclass
class FlightTruth:
    """A flight of a group. `place`: pass, -1 in an evaluation, and first example. `told`: it is in a report."""

    number: int
    place: tuple[int, int]
    batch: Batch
    rate: float
    members: dict[int, Done] = field(default_factory=dict)
    told: bool = False

    @property
    def trains(self) -> bool:
        return self.place[0] >= 0

    @property
    def examples(self) -> int:
        return len(self.batch.labels)

    def finished(self, partitions: int) -> bool:
        found = self.members
        return len(found) == partitions and all(one.gradient is not None for one in found.values())


class GroupTruth:
    """One group, from its members' first meeting to its end.

    Attributes:
        name: its epoch, or what stands for it.
        flights: by number.
        contained: evaluation -> the flights whose gradients its parameters must contain.
    """

    def __init__(self, truth: Truth, name: tuple[object, ...], blocks: Blocks) -> None:
        self.truth, self.name, self.blocks = truth, name, blocks
        self.flights: dict[int, FlightTruth] = {}
        self.contained: dict[int, list[int]] = {}
        self.attached: set[int] = set()

    def begins(self, partition: int, flight: Flight) -> Done:
        """A member begins a flight: the same as each other member, of examples that follow from its key."""
        number, batch, truth = flight.number, flight.batch, self.truth
        place = truth.places.get(batch.key)
        if place is not None:
            place = place[0], place[1] + batch.first
        if place is None or (place[0] >= 0) != flight.trains:
            raise ViolationError(f"a flight of nothing: flight {number} at {partition}, place {place}")
        found = self.flights.get(number)
        if found is None:
            images, labels = truth.examples.read(
                "train" if flight.trains else "test", place[0], place[1], place[1] + len(batch.labels)
            )
            found = FlightTruth(number, place, batch._replace(images=images, labels=labels), flight.rate)
            self.flights[number] = found
        same = found.place == place and found.rate == flight.rate and found.examples == len(batch.labels)
        images, labels = found.batch.images, found.batch.labels
        if not (same and np.array_equal(images, batch.images) and np.array_equal(labels, batch.labels)):
            raise ViolationError(f"members differ about a flight: flight {number} at {partition}, {place}")
        if partition in found.members:
            raise ViolationError(f"a flight begins twice: flight {number} at {partition}")
        found.members[partition] = Done()
        return found.members[partition]

    def given(self, task: Task, exclusive: bool) -> None:
        """The lead is given a task; nothing is trained during an evaluation that is `exclusive`."""
        if isinstance(task, EvaluateTask) and exclusive and task.evaluation not in self.contained:
            unreported = [one for one in self.flights.values() if one.trains and not one.told]
            if unreported:
                raise ViolationError(f"training during an evaluation: flight {unreported[0].number} of {self.name}")
            self.contained[task.evaluation] = [one.number for one in self.flights.values() if one.trains]

    def reports(self, task: Task, report: TaskReport) -> None:
        """The lead reports a task: every member has finished its flights, and each of them counts once."""
        number = task.pass_number if isinstance(task, TrainTask) else -1
        found: list[FlightTruth] = []
        at, skipped = task.start, 0
        for _, flight in sorted(self.flights.items()):
            if not flight.told and flight.place == (number, at) and at < task.stop:
                found.append(flight)
                at += flight.examples
        told = f"{task} of {self.name}"
        if isinstance(task, TrainTask) and task.step:
            found, skipped = self._of_steps(task)
            at = task.stop
        if at != task.stop or not all(one.finished(self.truth.partitions) for one in found):
            raise ViolationError(f"a report of what is not done: {told}, done to {at}")
        for one in found:
            one.told = True
        losses = [_agreed(one) for one in found]
        if report.examples != task.stop - task.start - skipped:
            raise ViolationError(f"examples are reported wrong: {report}, and {told}")
        if not isclose(report.loss_sum, sum(loss for loss, _ in losses), rel_tol=1e-9, abs_tol=1e-12):
            raise ViolationError(f"a loss is counted wrong: {report}, and it is {losses}")
        if report.correct != sum(correct for _, correct in losses):
            raise ViolationError(f"correct examples are counted wrong: {report}, and they are {losses}")

    def _of_steps(self, task: TrainTask) -> tuple[list[FlightTruth], int]:
        """Returns the flights of a range in step, and of how many examples others have made the steps."""
        found: list[FlightTruth] = []
        skipped = 0
        for number in range(task.batches[task.part]):
            pass_number, start, stop = self.truth.parts[task.step + number, task.part]
            if task.step + number > self.truth.settled():
                raise ViolationError(f"a report of a step that is not complete: {task} of {self.name}, batch {number}")
            own = [
                flight
                for flight in self.flights.values()
                if not flight.told and flight.place[0] == pass_number and start <= flight.place[1] < stop
            ]
            if sum(flight.examples for flight in own) == stop - start:
                found += sorted(own, key=lambda flight: flight.number)
            elif own:
                raise ViolationError(f"a batch is made in part: {task} of {self.name}, batch {number}")
            else:
                skipped += stop - start
        return found, skipped


def _agreed(flight: FlightTruth) -> tuple[float, int]:
    """Returns loss and correct examples; members that know them agree."""
    found = {(one.loss, one.correct) for one in flight.members.values()} - {(0.0, 0)}
    if len(found) > 1:
        raise ViolationError(f"members differ about a loss: flight {flight.number}, {found}")
    return found.pop() if found else (0.0, 0)


class Truth:
    """Everything that happens in one seed.

    Attributes:
        groups: all there were.
        violation: what does not hold, once something does not.
        parts: step and part -> pass, and the range of its batch, as planned.
        settled: returns the last step that all servers have taken.
    """

    def __init__(self, setting: Setting, plan: PartitionPlan, network: CutNetwork, layout: ParameterLayout) -> None:
        self.setting, self.plan, self.network, self.layout = setting, plan, network, layout
        self.partitions = plan.partitions
        self.examples = Examples(setting)
        self.places = self.examples.places()
        self.groups: dict[tuple[object, ...], GroupTruth] = {}
        self.tasks: dict[int, tuple[Task, GroupTruth]] = {}
        self.violation: ViolationError | None = None
        self.owner = _owners(plan, layout)
        self.parts: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.settled: Callable[[], int] = lambda: 0
        self._evaluated: dict[int, tuple[int, float]] = {}  # evaluation -> examples and loss reported

    def note(self, violation: AssertionError) -> None:
        """Keeps the first violation, wherever the product may catch it."""
        if self.violation is None:
            told = f"an assertion fails: {violation!r}"
            self.violation = violation if isinstance(violation, ViolationError) else ViolationError(told)

    def given(self, task: Task, group: GroupTruth, exclusive: bool) -> None:
        self.tasks[task.id] = task, group
        if isinstance(task, TrainTask) and task.step:
            batch = self.setting.experiment.train.batch
            for number in range(task.batches[task.part]):
                start = task.start + number * batch
                self.parts[task.step + number, task.part] = task.pass_number, start, min(start + batch, task.stop)
        group.given(task, exclusive)

    def reports(self, reports: Iterable[TaskReport]) -> None:
        for report in reports:
            task, group = self.tasks[report.id]
            group.reports(task, report)
            if isinstance(task, EvaluateTask):
                examples, loss = self._evaluated.get(task.evaluation, (0, 0.0))
                self._evaluated[task.evaluation] = examples + report.examples, loss + report.loss_sum

    def check_evaluated(self, loss: float | None) -> None:
        """The coordinator has the result of an evaluation: it is that of a whole one that was reported, once."""
        whole = self.setting.validation
        for number, (examples, total) in self._evaluated.items():
            if loss is not None and examples == whole and isclose(total / whole, loss, rel_tol=1e-9, abs_tol=1e-12):
                del self._evaluated[number]
                return
        raise ViolationError(f"an evaluation's loss is counted wrong: {loss}, and reported are {self._evaluated}")


def _owners(plan: PartitionPlan, layout: ParameterLayout) -> list[int]:
    """Returns who pushes each shard, by the plan."""
    owned: dict[tuple[int, int], int] = {}
    for stage in plan.stages:
        for partition, part in enumerate(stage.parts):
            for tensor, rows in zip(stage.tensors, part.owned, strict=True):
                owned.update(((tensor, row), partition) for row in range(*(rows or (0, 0))))
    found: list[int] = []
    for shard in layout.shards:
        owners = {owned[shard.tensor, row] for row in range(shard.row_start, shard.row_stop)}
        assert len(owners) == 1, "shards lie within one partition"
        found.append(owners.pop())
    return found


class ServerTruth:
    """The parameters on the servers, and whose gradients they contain.

    Attributes:
        values: flat, of the whole network.
        pushes: of each shard.
        sequences: of each client: the last of its pushes to each shard.
    """

    def __init__(self, truth: Truth, values: Array) -> None:
        self.truth, self.values = truth, values
        self.pushes = np.zeros(len(truth.layout.shards), np.int64)
        self.sequences: dict[tuple[object, ...], NDArray[np.int64]] = {}
        self._contains: set[tuple[tuple[object, ...], int, int]] = set()  # group, flight, shard

    def push(
        self, group: GroupTruth, partition: int, flights: Sequence[int], shards: Sequence[int], gradient: Array,
        rate: float,
    ) -> None:  # fmt: skip
        """A push comes: of these flights, to these shards. `gradient`: flat, what the member's memory holds."""
        if not shards:
            return
        layout, expected = self.truth.layout, accrued_by(group, partition, flights)
        for index in shards:
            shard = layout.shards[index]
            part = slice(shard.offset, shard.offset + shard.size)
            told = f"shard {index} of flights {flights} of {group.name} by {partition}"
            if self.truth.owner[index] != partition:
                raise ViolationError(f"a shard is pushed by another than its owner: {told}")
            keys = {(group.name, flight, index) for flight in flights}
            if keys & self._contains:
                raise ViolationError(f"a shard is pushed twice for a flight: {told}")
            self._contains |= keys
            if not np.array_equal(gradient[part], expected[part], equal_nan=True):
                raise ViolationError(f"something else is pushed than was found: {told}")
            self.values[part] -= np.float32(rate) * gradient[part]
            self.pushes[index] += 1

    def contains(self, group: GroupTruth, flights: Sequence[int], shard: int) -> None:
        """A shard has what these flights have found, or will have it with its step."""
        self._contains |= {(group.name, flight, shard) for flight in flights}

    def check_snapshot(self, group: GroupTruth, evaluation: int, shards: Iterable[int]) -> None:
        """The parameters of an evaluation are pulled."""
        for flight in group.contained.get(evaluation, ()):
            for index in shards:
                if (group.name, flight, index) not in self._contains:
                    raise ViolationError(
                        f"an evaluation does not see a push before it: evaluation {evaluation} of {group.name}, "
                        f"flight {flight}, shard {index}"
                    )


def accrued_by(group: GroupTruth, partition: int, flights: Sequence[int]) -> Array:
    """Returns the sum of the gradients that a member found, in the order of the flights."""
    total: Array | None = None
    for number in flights:
        gradient = group.flights[number].members[partition].gradient
        assert gradient is not None
        total = gradient.copy() if total is None else total + gradient
    assert total is not None
    return total
