"""Partitions that only predict give together what one network predicts."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from adamctl.kernels.backend import Backend
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.predictor import Predictor, finish, flight_of
from adamctl.kernels.partition.program import Program
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, cut_network
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Dropout, Model, Softmax
from adamctl.model.shapes import infer
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import _NoWakes
from tests.kernels.partition.test_member import (
    BATCH,
    BY_ROWS,
    CASES,
    IMAGES,
    LOCAL,
    MANY,
    NINE,
    PLAIN_BY_ROWS,
    PLAIN_FIRST,
    ROWS_AND_UNITS,
    UNEVEN,
    VECTOR,
    WHOLES,
    cut,
    small_integers,
)

DROPPING = Model((6,), (Dense(8, "relu"), Dropout(0.5), Softmax(4)))
DROPPED = cut(DROPPING, [("units", [3, 8]), ("units", [3, 8]), ("units", [1, 4])])
MANY_CUT = cut(MANY, [("units", [1, 4]), ("units", [2000, 5000])])
ONE = cut(VECTOR, [("units", [9]), ("units", [5]), ("units", [4])])
REAL = {
    "local": (LOCAL, BY_ROWS),
    "rows and units": (IMAGES, ROWS_AND_UNITS),
    "uneven": (IMAGES, UNEVEN),
    "one holds the head": (IMAGES, WHOLES),
    "no parameters first": (PLAIN_FIRST, PLAIN_BY_ROWS),
    "dropout": (DROPPING, DROPPED),
    "many classes": (MANY, MANY_CUT),
}


class Predictors:
    """All partitions in one process, which go on in any order."""

    def __init__(self, network: CutNetwork, flights: int, weights: list[Array]) -> None:
        self.network, self.flights = network, flights
        numbers = range(network.partitions)
        layouts = [SharedLayout(network, one, BATCH, flights, forward_only=True) for one in numbers]
        self.memories = [SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8)) for layout in layouts]
        for memory in self.memories:
            memory.begin(flights)
        units = infer(network.model)[-1].output[0]
        self.results = [np.full((BATCH, units), np.nan, np.float32) for _ in range(flights)]
        self.members = [
            Predictor(network, Neighbours(one, self.memories, _NoWakes()), BATCH, flights, _held(network, one, weights),
                      self.results)
            for one in numbers
        ]  # fmt: skip

    def run(self, parts: list[Array], random: Random) -> list[Array]:
        """Returns the outputs of each part; a flight begins when the one before in its context was read."""
        outputs: list[Array] = []
        open_: dict[int, dict[int, Program]] = {}
        begun = looks = 0
        while len(outputs) < len(parts):
            looks += 1
            assert looks < 100_000, "every partition waits for another one"
            while begun < len(parts) and len(open_) < self.flights:
                begun += 1
                batch, context = flight_of(parts[begun - 1]), begun % self.flights
                open_[begun] = {one: member.program_of(context, batch) for one, member in enumerate(self.members)}
                for program in open_[begun].values():
                    program.begin(begun, batch)
            flight = random.choice(sorted(open_))
            if open_[flight]:
                one = random.choice(sorted(open_[flight]))
                if open_[flight][one].advance():
                    del open_[flight][one]
            oldest = min(open_)
            if not open_[oldest]:
                found = self.results[oldest % self.flights][: len(parts[oldest - 1])]
                outputs.append(found.copy())
                finish(self.network, outputs[-1])
                found[...] = np.nan
                del open_[oldest]
        return outputs


def _held(network: CutNetwork, partition: int, weights: list[Array]) -> list[Array]:
    return [weights[tensor][slice(*rows)].copy() for tensor, rows in MemberTensors(network, partition).held]


def whole(model: Model, backend: Backend, weights: list[Array], images: Array) -> Array:
    network = Network(model, BATCH, backend)
    context, values = network.context(training=False), images
    for layer, buffers in zip(network.layers, context.buffers, strict=True):
        values = layer.operation.forward(values, [weights[one] for one in layer.tensors], buffers, False, context.key)
    return values.copy()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_small_integers_give_the_same_bits(case: str, backend: Backend) -> None:
    model, cuts = CASES[case]
    weights, batch = small_integers(model, 3)
    (found,) = Predictors(cut_network(model, cuts, backend), 1, weights).run([batch.images], Random(1))
    np.testing.assert_array_equal(found, whole(model, backend, weights, batch.images))


@pytest.mark.parametrize("backend", sorted({BACKENDS[0], BACKENDS[-1]}))
@pytest.mark.parametrize("case", REAL)
def test_real_numbers_agree_within_rounding(case: str, backend: Backend) -> None:
    model, cuts = REAL[case]
    generator = np.random.default_rng(5)
    weights, batch = small_integers(model, 4)
    weights = [0.3 * weight + generator.standard_normal(weight.shape).astype(np.float32) for weight in weights]
    images = generator.standard_normal(batch.images.shape).astype(np.float32)
    parts = [images, images[:3], images[1:]]
    found = Predictors(cut_network(model, cuts, backend), 2, weights).run(parts, Random(2))
    for outputs, part in zip(found, parts, strict=True):
        right = whole(model, backend, weights, part)
        np.testing.assert_allclose(outputs, right, atol=2e-5 * max(float(np.abs(right).max()), 1e-3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_partition_gives_the_bits_of_one_network(backend: Backend) -> None:
    weights, batch = small_integers(VECTOR, 8)
    weights = [weight + np.random.default_rng(1).standard_normal(weight.shape).astype(np.float32) for weight in weights]
    (found,) = Predictors(cut_network(VECTOR, ONE, backend), 1, weights).run([batch.images], Random(3))
    np.testing.assert_array_equal(found, whole(VECTOR, backend, weights, batch.images))


@pytest.mark.parametrize("seed", range(3))
def test_delays_change_nothing(seed: int) -> None:
    random = Random(seed)
    model, cuts = random.choice([(IMAGES, UNEVEN), (LOCAL, BY_ROWS), (VECTOR, NINE)])
    network = cut_network(model, cuts, BACKENDS[-1])
    weights = [weight * np.float32(0.3) for weight in small_integers(model, seed)[0]]
    parts = [
        small_integers(model, 10 * seed + one)[1].images[: random.choice([BATCH, BATCH, 1, 3])] for one in range(9)
    ]
    in_turn = Predictors(network, 1, weights).run(parts, Random(0))
    shuffled = Predictors(network, random.choice([2, 3, 8]), weights).run(parts, random)
    for one, other in zip(in_turn, shuffled, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_shown_that_only_training_reads() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    kinds = {name.kind for name in SharedLayout(network, 0, BATCH, 2, forward_only=True).places}
    assert kinds == {"output"}
    trains, predicts = (SharedLayout(network, 0, BATCH, 2, forward_only=one).size_bytes for one in (False, True))
    assert predicts < trains


def test_contexts_keep_one_program_besides_that_of_whole_batches() -> None:
    weights, batch = small_integers(VECTOR, 8)
    (member,) = Predictors(cut_network(VECTOR, ONE, BACKENDS[-1]), 1, weights).members
    three = member.program_of(0, flight_of(batch.images[:3]))
    assert member.program_of(0, flight_of(batch.images[:3])) is three
    member.program_of(0, flight_of(batch.images[:1]))
    assert member.program_of(0, flight_of(batch.images[:3])) is not three
    with pytest.raises(ValueError, match=f"up to {BATCH} examples; found {BATCH + 1}"):
        member.program_of(0, flight_of(np.zeros((BATCH + 1, 6), np.float32)))
