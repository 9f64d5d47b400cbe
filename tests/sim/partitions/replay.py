"""Every flight computed again by members in turn, bit for bit the same; and what the whole network finds.

Members of a replica train on weights that other flights and fetches change meanwhile (Adam 3.2.2). So each step is
computed again with the weights that it had.
"""

from __future__ import annotations

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.program import Batch, Program, Step
from adamctl.kernels.step.clip import LayerNormClip
from adamctl.kernels.step.network import Network
from tests.kernels.partition.replica import Replica
from tests.sim.engine import ViolationError
from tests.sim.partitions.truth import Done, FlightTruth, Truth

TRIES = 3
"""Rounding may turn a maximum over, so that gradients differ; hardly ever with several weights in a row."""
CLOSE = 2e-4


class _Turns:
    """A flight of one member, step by step. `made`: how many steps are."""

    def __init__(self, program: Program, done: Done, weights: Array) -> None:
        self.program, self.done, self._weights, self.made = program, done, weights, 0
        self.steps: list[Step] = program._pieces  # type: ignore[assignment]

    def go_on(self) -> bool:
        """Makes the steps whose words are there; returns whether all are made."""
        while self.made < len(self.steps):
            self.program._piece = self.made
            self._weights[...] = np.frombuffer(self.done.weights[self.made], np.float32)
            if not self.program._run(self.steps[self.made]):
                return False
            self.made += 1
        return True


class Replay:
    """Members in turn."""

    def __init__(self, truth: Truth) -> None:
        self._truth, experiment = truth, truth.setting.experiment
        self.weights = [np.zeros(tensor.shape, np.float32) for tensor in truth.network.tensors]
        self.clip_norm = experiment.optimizer.clip_norm
        self.in_step = experiment.train.in_step
        self.replica = Replica(
            truth.network, experiment.train.batch, 1, self.weights, clip_norm=self.clip_norm, in_step=self.in_step
        )
        self._flights = 0

    def check(self, flight: FlightTruth) -> None:
        """Raises ViolationError unless members in turn find what the group's members found."""
        self._flights += 1
        turns: list[_Turns] = []
        for partition, (member, own) in enumerate(zip(self.replica.members, self.replica.own, strict=True)):
            program = self._program(member, flight.examples, flight.trains, flight.batch.is_last)
            program.begin(self._flights, flight.batch)
            turns.append(_Turns(program, flight.members[partition], own.weights))
        left = list(turns)
        while left:
            before = sum(one.made for one in turns)
            left = [one for one in left if not one.go_on()]
            assert sum(one.made for one in turns) > before, "members in turn wait for each other"
        for partition, (member, one) in enumerate(zip(self.replica.members, turns, strict=True)):
            found, told = one.program.found, f"flight {flight.number} at {partition}, of {flight.place}"
            done = one.done
            if (found.loss, found.correct) != (done.loss, done.correct):
                raise ViolationError(f"a loss is not that of members in turn: {told}: {done.loss}, not {found.loss}")
            if not flight.trains:
                continue
            gradient = member.arrays(0, flight.examples).gradient
            assert done.gradient is not None
            if not np.array_equal(gradient, done.gradient, equal_nan=True):
                raise ViolationError(f"a gradient is not that of members in turn: {told}")
            if found.clipped != done.clipped and not self.in_step:  # the whole batch is clipped: `StepServer`
                raise ViolationError(f"layers are clipped that members in turn do not clip: {told}")

    def _program(self, member: Member, examples: int, trains: bool, is_last: bool) -> Program:
        """Returns the program of a flight; if it is a part of a batch, as if that began with it."""
        if self.in_step:
            own = member._accruing[0]
            assert own.turn is not None
            own.turn[0], own.filled[:] = self._flights, 0
        return member.training(0, examples, is_last) if trains else member.evaluating(0, examples)

    def check_whole(self) -> None:
        """Raises ViolationError unless members in turn find, within rounding, what the whole network finds."""
        for number in range(TRIES):
            if self._agrees_with_whole(np.random.default_rng(number)):
                return
        raise ViolationError("members in turn do not find what the whole network finds")

    def _agrees_with_whole(self, generator: np.random.Generator) -> bool:
        truth, setting = self._truth, self._truth.setting
        model, batch = setting.experiment.model, setting.experiment.train.batch
        images, labels = truth.examples.read("train", 0, 0, min(batch, setting.training))
        made = Batch(images, labels, int(generator.integers(1 << 62)))
        network = Network(model, batch, "numpy")
        context, flat = network.context(), np.zeros(network.flat_size, np.float32)
        for view in network.views(flat):
            view[...] = generator.standard_normal(view.shape) * (0.7 / np.sqrt(max(view[0].size, 1)))
        with np.errstate(all="ignore"):
            loss = network.step(context, flat, images, labels, key=made.key).loss * len(labels)
            clip = None
            if self.clip_norm is not None:
                clip = LayerNormClip(network, context, self.clip_norm)
                clip.apply()
        for member, own in zip(self.replica.members, self.replica.own, strict=True):
            held = member.tensors.held
            for view, (tensor, (start, stop)) in zip(member.tensors.views(own.weights), held, strict=True):
                view[...] = network.views(flat)[tensor][start:stop]
        programs = []
        self._flights += 1
        for member in self.replica.members:
            programs.append(self._program(member, len(labels), True, True))
            programs[-1].begin(self._flights, made)
        left = list(programs)
        while left:
            left = [program for program in left if not program.advance()]
        losses = {program.found.loss for program in programs} - {0.0}
        gradients = [member.arrays(0, len(labels)).gradients for member in self.replica.members]
        if self.in_step:  # what is accrued is clipped
            pairs_of = zip(self.replica.members, self.replica.own, strict=True)
            gradients = [member.tensors.views(own.slots[0]) for member, own in pairs_of]
        found = self.replica.whole_gradients(gradients)
        pairs = zip(found, context.gradient_views, strict=True)
        close = all(_close(one, other) for one, other in pairs)
        return close and all(abs(one - loss) <= CLOSE * max(abs(loss), 1.0) for one in losses)


def _close(one: Array, other: Array) -> bool:
    return bool(np.abs(one - other).max() <= CLOSE * max(float(np.abs(other).max()), 1e-3))


def check_replays(truth: Truth) -> int:
    """Computes all finished flights of all groups again; returns how many. Raises ViolationError."""
    replay = Replay(truth)
    replay.check_whole()
    count = 0
    for group in truth.groups.values():
        for flight in group.flights.values():
            if flight.finished(truth.partitions):
                replay.check(flight)
                count += 1
    return count
