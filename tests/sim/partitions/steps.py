"""What servers do with the parts of steps, and what must hold of each: apart from the product.

A shard holds the parts of a step until all are there, then it takes their sum, in the order of parts, as one update. A
part that comes again, from a group in the place of one that has ended, is answered and not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.push import Place
from tests.sim.engine import ViolationError
from tests.sim.partitions.truth import FlightTruth, GroupTruth, ServerTruth, accrued_by

NEAR = 1e-5
"""Norms are added up in another order here."""


class StepServer:
    """The servers of a seed whose replicas are in step. `settled`: the last step that all shards have taken."""

    def __init__(self, server: ServerTruth) -> None:
        self._server, self._truth = server, server.truth
        shards = self._truth.layout.shards
        self._applied = [0] * len(shards)
        self._parts: dict[int, dict[int, tuple[Array, float]]] = {shard.index: {} for shard in shards}
        self._waiting: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._versions = [{0: server.values[part].copy()} for part in self._slices]
        stages = enumerate(self._truth.plan.stages)
        self._stage_of = {tensor: number for number, stage in stages for tensor in stage.tensors}

    @property
    def _slices(self) -> list[slice]:
        return [slice(shard.offset, shard.offset + shard.size) for shard in self._truth.layout.shards]

    @property
    def settled(self) -> int:
        return min(self._applied)

    def push(
        self, group: GroupTruth, partition: int, flights: Sequence[int], held: Sequence[int], shards: Sequence[int],
        gradient: Array, rate: float, place: Place, answered: Callable[[], None],
    ) -> None:  # fmt: skip
        """A member's share of a part comes; `answered` is called for each shard that has taken the step.

        `held`: the shards that the member computes with.
        """
        told = f"step {place.step}, part {place.part}, flights {sorted(flights)} of {group.name} by {partition}"
        if shards or flights:
            self._check_flights(group, flights, place, told)
            if any(self._applied[index] < place.step for index in shards):  # else what a group has redone counts not
                self._check_weights(group, partition, flights, held, place.step, told)
        if shards:
            self._check_gradient(group, partition, sorted(flights), shards, gradient, told)
        for index in shards:
            self._server.contains(group, flights, index)
            if place.step <= self._applied[index]:
                answered()
                continue
            if place.step > self._applied[index] + 1:
                raise ViolationError(f"a step is pushed before the one before is complete: {told}, shard {index}")
            self._waiting.setdefault((index, place.step), []).append(answered)
            part = gradient[self._slices[index]].copy()
            self._parts[index].setdefault(place.part, (part, rate))
            if len(self._parts[index]) == place.parts:
                self._apply(index, place.step)

    def _apply(self, index: int, step: int) -> None:
        parts = [self._parts[index][part] for part in sorted(self._parts[index])]
        total = parts[0][0]
        for part, _ in parts[1:]:
            total = total + part
        values, rate = self._server.values[self._slices[index]], parts[0][1]
        values -= np.float32(rate) * total
        self._server.pushes[index] += len(parts)
        self._parts[index], self._applied[index] = {}, step
        self._versions[index][step] = values.copy()
        for answered in self._waiting.pop((index, step)):
            answered()

    def _check_flights(self, group: GroupTruth, flights: Sequence[int], place: Place, told: str) -> None:
        """They are the parts of the batch that the coordinator has planned there."""
        number, start, stop = self._truth.parts[place.step, place.part]
        at = start
        for flight in (group.flights[one] for one in sorted(flights)):
            batch = flight.batch
            if flight.place != (number, at) or (batch.whole, batch.first) != (stop - start, at - start):
                raise ViolationError(f"a flight is no part of its batch: {told}, {flight.place}, of {start} to {stop}")
            at += flight.examples
        if at != stop:
            raise ViolationError(f"a part of a batch is left out: {told}, {at} of {start} to {stop}")

    def _check_weights(
        self, group: GroupTruth, partition: int, flights: Sequence[int], held: Sequence[int], step: int, told: str
    ) -> None:
        """All of it is computed from the weights that contain the steps before, or, after a group has ended, this."""
        seen = {weights for one in flights for weights in group.flights[one].members[partition].weights}
        if len(seen) > 1:
            raise ViolationError(f"weights change in the middle of a step: {told}")
        for flat in seen:
            weights = np.frombuffer(flat, np.float32)
            for index in held:
                found, versions = weights[self._slices[index]], self._versions[index]
                if not any(_same(found, versions.get(version)) for version in (step - 1, step)):
                    raise ViolationError(f"a step is computed from other weights: {told}, shard {index}")

    def _check_gradient(
        self, group: GroupTruth, partition: int, flights: Sequence[int], shards: Sequence[int], gradient: Array,
        told: str,
    ) -> None:  # fmt: skip
        """What is pushed is the sum of what the parts found, in their order, clipped once."""
        expected, norm_max = accrued_by(group, partition, flights), self._truth.setting.experiment.optimizer.clip_norm
        norms = None if norm_max is None else self._norms(group, [group.flights[one] for one in flights])
        if norm_max is not None and norms is None:
            return  # a member has not told yet what it found, though it has shown its squares
        for index in shards:
            part, shard = self._slices[index], self._truth.layout.shards[index]
            found, right = gradient[part], expected[part]
            norm = 0.0 if norms is None else norms[self._stage_of[shard.tensor]]
            longest = np.inf if norm_max is None else norm_max
            clipped = right * np.float32(longest / norm) if norm > longest and np.isfinite(norm) else right
            good = np.array_equal(found, right, equal_nan=True) if norm <= longest * (1 + NEAR) else False
            if not good and norm >= longest * (1 - NEAR):
                good = np.allclose(found, clipped, rtol=NEAR, atol=1e-12, equal_nan=True)
            if not good:
                raise ViolationError(f"something else is pushed than the parts have found: {told}, shard {index}")

    def _norms(self, group: GroupTruth, flights: Sequence[FlightTruth]) -> list[float] | None:
        """Returns the norm of each stage's gradient; None if a member has not finished yet."""
        truth = self._truth
        if not all(one.finished(truth.partitions) for one in flights):
            return None
        squares = [0.0] * len(truth.plan.stages)
        numbers = [one.number for one in flights]
        found = [accrued_by(group, partition, numbers) for partition in range(truth.partitions)]
        for shard, part in zip(truth.layout.shards, self._slices, strict=True):
            own = found[truth.owner[shard.index]][part].astype(np.float64)
            squares[self._stage_of[shard.tensor]] += float(np.square(own).sum())
        return [sqrt(square) for square in squares]


def _same(found: Array, version: Array | None) -> bool:
    return version is not None and np.array_equal(found, version, equal_nan=True)
