"""Flights of a range: what every member of a group makes of it, each by itself and all alike (pure)."""

from __future__ import annotations

from typing import NamedTuple

from adamctl.config.experiment import Experiment
from adamctl.config.schedule import learning_rate
from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.roles.data.client.data_client import Batch as Examples
from adamctl.roles.worker.core.batches import Task, cut, parts_of
from adamctl.roles.worker.core.bundle_work import PASS
from adamctl.roles.worker.partition.threads import Flight
from adamctl.wire.messages import TrainTask


class Rates(NamedTuple):
    """The learning rates of local updates: `factor` times the push's, or, with no factor, `fixed`."""

    factor: float | None
    fixed: float


def flights_of_task(
    task: Task, examples: Examples, first_flight: int, batch: int, experiment: Experiment, rates: Rates
) -> list[Flight]:
    """Returns the flights of a range, from number `first_flight` on, one for each batch of up to `batch` examples."""
    flights: list[Flight] = []
    pass_number = task.pass_number if isinstance(task, TrainTask) else -1
    for number, piece in enumerate(cut(task, batch), first_flight):
        part = slice(piece.start, piece.stop)
        key = step_key(experiment.seed, pass_number, task.start + piece.start)
        made = Batch(examples.images[part], examples.answers[part], key)
        rate = learning_rate(experiment.optimizer.lr, experiment.optimizer.schedule, piece.progress)
        local = rates.fixed if rates.factor is None else rates.factor * rate
        flights.append(Flight(number, made, isinstance(task, TrainTask), local, rate))
    return flights


def flights_of_step(
    task: TrainTask, number: int, examples: Examples, first_flight: int, size: int, experiment: Experiment
) -> list[Flight]:
    """Returns the flights of a range's batch `number`, from 0, that is this replica's part of a step: its parts.

    Each has up to `size` examples. Nothing is applied to the weights meanwhile.
    """
    piece = cut(task, experiment.train.batch)[number]
    images, labels = examples.images[piece.start : piece.stop], examples.answers[piece.start : piece.stop]
    key = step_key(experiment.seed, task.pass_number, task.start + piece.start)
    rate = learning_rate(experiment.optimizer.lr, experiment.optimizer.schedule, piece.progress)
    return [
        Flight(flight, Batch(images[start:stop], labels[start:stop], key, len(labels), start), True, 0.0, rate)
        for flight, (start, stop) in enumerate(parts_of(len(labels), size), first_flight)
    ]


def portion_range(bundle: int, start: int, stop: int) -> TrainTask:
    """Returns examples [start, stop) of the batch of a batch algorithm as a range, known by their bundle."""
    return TrainTask(bundle, PASS, start, stop, 0.0, 0.0)


def flights_of_portions(images: Array, labels: Answers, first_flight: int, portion: int) -> list[Flight]:
    """Returns the flights of portions that lie side by side, from number `first_flight` on.

    Each has `portion` examples; only the batch's last one may have fewer, and counts by its share. Nothing is applied
    to the weights, and nothing is left to chance.
    """
    parts = [slice(*part) for part in parts_of(len(labels), portion)]
    return [
        Flight(flight, Batch(images[part], labels[part], 0, portion)) for flight, part in enumerate(parts, first_flight)
    ]


class InOrder:
    """Flights of several ranges, whose examples come in any order, in the order of their numbers."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, list[Flight]] = {}

    def add(self, first_flight: int, flights: list[Flight]) -> list[Flight]:
        """Takes the flights of a range; returns those that are next, perhaps also of ranges that came before."""
        if flights:
            self._waiting[first_flight] = flights
        ready: list[Flight] = []
        while (found := self._waiting.pop(self._next, None)) is not None:
            ready += found
            self._next += len(found)
        return ready
