"""A replica of several partitions within one process, whose members are advanced in any order."""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.partition.accruing import Accruing, KeptFactors, SlotPlace
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.program import Batch, Program, Row
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors


class Own(NamedTuple):
    """A member's flat vectors, and the factors that its flights keep."""

    weights: Array
    slots: list[Array]
    factors: list[KeptFactors]


class Replica:
    """All members of a replica, with the weights of the whole network."""

    def __init__(
        self, network: CutNetwork, batch: int, flights: int, weights: list[Array], *, clip_norm: float | None = None,
        accrues: bool = False, keeps: Literal["nothing", "beside", "instead"] = "nothing", rows: int = 64,
        in_step: bool = False,
    ) -> None:  # fmt: skip
        """Args:
        weights: of the whole network, one array for each tensor.
        accrues: in two slots, and to the weights.
        in_step: flights are parts of batches, which all accrue in the first slot, in turn.
        keeps: factors of up to `rows` examples in each slot, beside gradients or instead of them.
        """
        self.batch = batch
        self.network, self.flights = network, flights
        layouts = [SharedLayout(network, number, batch, flights) for number in range(network.partitions)]
        memories = [SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8)) for layout in layouts]
        for memory in memories:
            memory.begin(flights)
        self.members: list[Member] = []
        self.own: list[Own] = []
        for number in range(network.partitions):
            tensors = MemberTensors(network, number)
            flat = np.zeros(tensors.flat_size, np.float32)
            for view, (tensor, (start, stop)) in zip(tensors.views(flat), tensors.held, strict=True):
                view[...] = weights[tensor][start:stop]
            neighbours = Neighbours(number, memories, _NoWakes())
            slots = [np.zeros_like(flat) for _ in range(2 * flights)]
            factors = [] if keeps == "nothing" else _room_for_factors(network, tensors, rows)
            own = None if keeps == "instead" else flat
            accruing = [
                Accruing(slots[2 * one : 2 * one + 2], own, None, factors, keeps == "instead")
                for one in range(flights if accrues else 0)
            ]
            if in_step:
                filled, turn = np.zeros(2, np.int64), np.ones(8, np.int64)[:1]
                accruing = [Accruing(slots[:2], None, filled, turn=turn) for _ in range(flights)]
            self.members.append(
                Member(network, neighbours, batch, flights, flat, accruing=accruing, clip_norm=clip_norm)
            )
            self.own.append(Own(flat, slots, factors))

    def run(
        self, batches: list[Batch], random: Random | None = None, evaluations: frozenset[int] = frozenset()
    ) -> list[tuple[list[list[Array]], float, int]]:
        """Runs a flight for each batch; returns (each member's gradients, loss, correct) of each.

        `evaluations`: numbers of batches, from 0, that are only evaluated.

        Without `random` members go as far as they can, one after the other; with it a member chosen by chance goes on
        in a flight chosen by chance, and gives up after some looks.
        """
        results: list[dict[int, tuple[list[Array], Row]]] = [{} for _ in batches]
        slowness = [random.choice((1, 1, 30)) if random is not None else 1 for _ in self.members]
        flights = [dict[int, int]() for _ in self.members]  # of each member: context -> its open flight
        running: list[dict[int, Program]] = [{} for _ in self.members]
        begun, examples = [0] * len(self.members), [len(batch.labels) for batch in batches]
        while any(len(found) < len(self.members) for found in results):
            went_on = False
            for one, member in enumerate(self.members):
                while begun[one] < len(batches) and (begun[one] + 1) % self.flights not in flights[one]:
                    begun[one] += 1
                    flights[one][begun[one] % self.flights] = begun[one]
                    context, number = begun[one] % self.flights, begun[one] - 1
                    choose = member.evaluating if number in evaluations else member.training
                    running[one][context] = choose(context, examples[number])
                    running[one][context].begin(begun[one], batches[number])
            moves = [(one, context) for one, own in enumerate(flights) for context in own]
            if random is not None:
                moves.sort(key=lambda move: random.random() * slowness[move[0]])
            for one, context in moves:
                member, program = self.members[one], running[one][context]
                before = program.position
                if program.advance():
                    gradients = [
                        gradient.copy()
                        for gradient in member.arrays(context, examples[flights[one][context] - 1]).gradients
                    ]
                    results[flights[one].pop(context) - 1][one] = gradients, program.found
                    went_on = True
                went_on = went_on or program.position != before
                if random is not None and went_on:
                    break
            assert went_on, "every partition waits for another one"
        return [self._result(found) for found in results]

    def _result(self, found: dict[int, tuple[list[Array], Row]]) -> tuple[list[list[Array]], float, int]:
        gradients = [found[one][0] for one in range(len(self.members))]
        for one, member in enumerate(self.members):
            if member.arrays(0).outputs[-1] is not None:
                return gradients, found[one][1].loss, found[one][1].correct
        raise AssertionError("nobody computed the loss")

    def train(self, batches: list[Batch], rate: float) -> tuple[list[float], int]:
        """Runs flights one after another, in the second slot; returns their losses and how many layers were clipped."""
        losses, clipped = list[float](), set[int]()
        total = 0
        for flight, batch in enumerate(batches, 1):
            for member in self.members:
                member.programs[0].begin(flight, batch, SlotPlace(1, (flight - 1) * self.batch), rate)
            left = list(self.members)
            while left:
                left = [member for member in left if not member.programs[0].advance()]
            found = [member.programs[0].found for member in self.members]
            losses.append(max(one.loss for one in found))
            clipped = {one.clipped for one in found}
            assert len(clipped) == 1, "all partitions clip the same layers"
            total += clipped.pop()
        return losses, total

    def train_in_parts(self, batch: Batch, first_flight: int, random: Random) -> tuple[float, int, int]:
        """Trains on a batch in parts of up to `self.batch` examples, whose flights go on in any order.

        Returns its loss, how many of it are correct, and how many layers were clipped.
        """
        whole = len(batch.labels)
        places = [slice(at, min(at + self.batch, whole)) for at in range(0, whole, self.batch)]
        parts = [Batch(batch.images[at], batch.labels[at], batch.key, whole, at.start) for at in places]
        rows: list[list[Row]] = [[Row() for _ in parts] for _ in self.members]
        left = [list(enumerate(parts)) for _ in self.members]
        running: list[dict[int, tuple[int, Program]]] = [{} for _ in self.members]
        for own in (member._accruing[0] for member in self.members):
            own.filled[:] = 0
        looks = 0
        while any(left) or any(running):
            looks += 1
            assert looks < 100_000, "every partition waits for another one"
            one = random.randrange(len(self.members))
            if (
                left[one]
                and random.random() < 0.5
                and (first_flight + left[one][0][0]) % self.flights not in running[one]
            ):
                number, part = left[one].pop(0)
                context = (first_flight + number) % self.flights
                program = self.members[one].training(context, len(part.labels), part.is_last)
                program.begin(first_flight + number, part, SlotPlace())
                running[one][context] = number, program
            for context, (number, program) in random.sample(sorted(running[one].items()), len(running[one])):
                if program.advance():
                    rows[one][number] = program.found
                    del running[one][context]
        told = max(rows, key=lambda own: sum(row.loss for row in own))
        clipped = {sum(row.clipped for row in own) for own in rows}
        assert len(clipped) == 1, "all partitions clip the same layers"
        return sum(row.loss for row in told), sum(row.correct for row in told), clipped.pop()

    def whole_of(self, vectors: list[Array]) -> list[Array]:
        """Returns the tensors of the whole network from each member's flat vector."""
        return self.whole_gradients(
            [member.tensors.views(one) for member, one in zip(self.members, vectors, strict=True)]
        )

    def whole_gradients(self, gradients: list[list[Array]]) -> list[Array]:
        """Returns the gradient of each tensor of the whole network; members that share rows must agree."""
        whole = [np.full(tensor.shape, np.nan, np.float32) for tensor in self.network.tensors]
        for member, found in zip(self.members, gradients, strict=True):
            for (tensor, (start, stop)), gradient in zip(member.tensors.held, found, strict=True):
                there = whole[tensor][start:stop]
                known = ~np.isnan(there)
                np.testing.assert_array_equal(there[known], gradient[known])
                there[...] = gradient
        return whole


def _room_for_factors(network: CutNetwork, tensors: MemberTensors, rows: int) -> list[KeptFactors]:
    """Returns room in two slots for the factors of each matrix."""
    kept = []
    for index, held in tensors.held:
        shape = network.tensors[index].shape
        if len(shape) == 2:
            errors, activations = ([np.full((rows, size), np.nan, np.float32) for _ in range(2)] for size in shape)
            kept.append(KeptFactors(index, held, errors, activations))
    return kept


class _NoWakes(dict):  # type: ignore[type-arg]
    """Nobody sleeps here."""

    def __missing__(self, partition: int) -> object:
        from adamctl.kernels.segments import Wake

        return Wake(np.zeros(1, np.int64), -1)
