"""One partition of a replica that only predicts: flights go forward, and nothing is there for the way back.

DistBelief 3 has partitions for training and for inference. Stages, blocks, words and the order of flights are those of
a partition that trains (`adamctl.kernels.partition.member`); of the parameters it has the rows that it computes with,
in no common vector, and nobody changes them. Each flight's outputs of the last stage go where whoever asked reads them.
Who asks also says when a flight may begin: when all partitions are done with the one before in its context. So no
partition has to wait until others have read its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.softmax import Softmax, softmax
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.accruing import IMAGES
from adamctl.kernels.partition.flight import FlightArrays, Neighbours
from adamctl.kernels.partition.member import partitions_awaited
from adamctl.kernels.partition.program import Batch, Program
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.kernels.partition.steps import prediction_steps


class Predictor:
    """A partition that predicts batches of up to `batch` examples, in flights as a `Member`'s.

    Programs of whole batches are made at once. Of other sizes each context keeps the last one, so that memory does not
    grow with the sizes that are asked for.
    """

    def __init__(
        self,
        network: CutNetwork,
        neighbours: Neighbours,
        batch: int,
        flights: int,
        weights: Sequence[Array],
        results: Sequence[Array],
    ) -> None:
        """Allocates everything, and compiles what whole batches need.

        Args:
            neighbours: with memory that is laid out for flights that only go forward.
            weights: one array for each tensor that `MemberTensors` says this partition holds.
            results: of each context, what its flights' outputs of the last stage go into, [batch, units]: each
                partition writes its own units. `finish` makes of them those of the network.
        """
        self._network, self._neighbours = network, neighbours
        self._batch, self._weights, self._results = batch, list(weights), tuple(results)
        self._native = network.backend == "numba" and can_compile()
        self._programs = [self._program(context, batch) for context in range(flights)]
        self._smaller: dict[int, tuple[int, Program]] = {}  # by context: examples, and what predicts so many

    def program_of(self, context: int, batch: Batch, trains: bool = False) -> Program:
        """Returns the program of a context for as many examples as a batch has.

        Raises:
            ValueError: the flight trains, or has too many examples.
        """
        examples = len(batch.images)
        if trains or examples > self._batch:
            raise ValueError(f"expected a flight that predicts up to {self._batch} examples; found {examples}")
        if examples == self._batch:
            return self._programs[context]
        if self._smaller.get(context, (0, None))[0] != examples:
            self._smaller[context] = examples, self._program(context, examples)
        return self._smaller[context][1]

    def waits_for(self, program: Program) -> frozenset[int]:
        """Returns the partitions that a program waits for where it stands; any thread may ask."""
        return partitions_awaited(self._neighbours, program)

    def _program(self, context: int, examples: int) -> Program:
        arrays = FlightArrays(self._network, self._neighbours, context, examples, self._weights, forward_only=True)
        steps = prediction_steps(arrays, self._weights, self._results[context][:examples])
        native = self._native and examples == self._batch
        return Program(steps, {IMAGES: arrays.images}, native, arrays.key, None, arrays.firsts)


def flight_of(images: Array) -> Batch:
    """Returns examples as a flight that predicts takes them: its labels are read by nobody."""
    return Batch(images, np.zeros(len(images), np.int32))


def finish(network: CutNetwork, outputs: Array) -> None:
    """Makes of a flight's outputs [n, units] what the whole network puts out, in place.

    A softmax that is cut leaves logits, of which whoever asked makes probabilities.
    """
    last = network.stages[-1]
    whole = any(last.is_whole(partition) for partition in range(network.partitions))
    if whole or not isinstance(last.layers[-1].operation, Softmax):
        return
    compiled = compiled_if(network.backend, "losses")
    if compiled is not None:
        compiled.bias_softmax(outputs, np.zeros(outputs.shape[1], np.float32))
    else:
        softmax(outputs, np.zeros((len(outputs), 1), np.float32))
