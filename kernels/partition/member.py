"""One partition of a replica: the contexts of its open flights.

A *flight* is one mini-batch on its way through a replica; each open one has a context of its own (Adam 3.2.1). A
partition computes its parts of all stages forward, its part of the loss, and back. It waits for other partitions where
it needs what they compute, and only for that (dataflow; Adam 3.2.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.kernels.layers.make import make_training_loss
from adamctl.kernels.native import address_of, can_compile
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.accruing import IMAGES, LABELS, Accruing
from adamctl.kernels.partition.flight import FlightArrays, Neighbours
from adamctl.kernels.partition.program import Batch, Program, Row, Step
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.kernels.partition.steps import evaluation_steps, training_steps
from adamctl.kernels.partition.update import Clipping, accruing_steps, passing


class Member:
    """A partition that trains on batches of up to `batch` examples, and evaluates them.

    Flight n, counted from 1, runs in context n % flights, after flight n - flights there. It may begin at any time: it
    waits by itself until nobody reads what it overwrites.

    Attributes:
        tensors: what it holds, and where.
        programs: of each context, for training on whole batches.
    """

    def __init__(
        self,
        network: CutNetwork,
        neighbours: Neighbours,
        batch: int,
        flights: int,
        weights: Array,
        *,
        accruing: Sequence[Accruing] = (),
        clip_norm: float | None = None,
        snapshot: Array | None = None,
    ) -> None:
        """Allocates everything, and compiles what whole batches need.

        Args:
            weights: flat, as `tensors` lays it out; read in place, and changed by others meanwhile (Adam 3.2.2).
            accruing: of each context, where its flights accrue; none: gradients stay in `arrays`. If flights have turns
            there, they are parts of batches, and `batch` is the size of a part. Flights that train and those that
            evaluate have one turn together.
            clip_norm: longest gradient of a layer; None: any.
            snapshot: the parameters of evaluations; None: `weights`.
        """
        self.tensors = MemberTensors(network, neighbours.own)
        self._network, self._neighbours, self._batch, self._flights = network, neighbours, batch, flights
        self._weights = self.tensors.views(weights)
        self._snapshot = self._weights if snapshot is None else self.tensors.views(snapshot)
        self._accruing, self._clip_norm = tuple(accruing), clip_norm
        self._loss = make_training_loss(network.model.loss, network.class_weights, network.backend)
        self._native = network.backend == "numba" and can_compile()
        self._arrays: dict[tuple[int, int], FlightArrays] = {}
        self._evaluating: dict[tuple[int, int], Program] = {}
        self._training: dict[tuple[int, int, bool], Program] = {}
        self._of_parts = bool(self._accruing) and self._accruing[0].turn is not None
        # Last parts first: they read whatever others read, so all programs of a context wait for the same.
        self.programs = [self.training(context, batch) for context in range(flights)]
        for context in range(flights):
            self.training(context, batch, is_last=False)
            self._evaluating[context, batch] = self._evaluate(context, batch)

    def training(self, context: int, examples: int, is_last: bool = True) -> Program:
        """Returns the program that trains on so many examples; those of smaller batches are made when needed.

        `is_last`: no part of their batch comes after them.
        """
        key = context, examples, is_last or not self._clips_whole_batches
        if key not in self._training:
            self._training[key] = self._train(*key)
        return self._training[key]

    def evaluating(self, context: int, examples: int) -> Program:
        """Likewise, for an evaluation of so many examples."""
        if (context, examples) not in self._evaluating:
            self._evaluating[context, examples] = self._evaluate(context, examples)
        return self._evaluating[context, examples]

    def arrays(self, context: int, examples: int | None = None) -> FlightArrays:
        """Returns the arrays of a context, for batches of so many examples (None: whole ones)."""
        key = context, self._batch if examples is None else examples
        if key not in self._arrays:
            skipped = self._accruing[context].skipped if self._accruing else frozenset()
            whole = self._arrays.get((context, self._batch))
            shared = None if whole is None else whole.gradient
            self._arrays[key] = FlightArrays(
                self._network, self._neighbours, *key, self._weights, skipped, gradient=shared
            )
        return self._arrays[key]

    def waits_for(self, program: Program) -> frozenset[int]:
        """Returns the partitions that a program waits for where it stands; any thread may ask."""
        return partitions_awaited(self._neighbours, program)

    def program_of(self, context: int, batch: Batch, trains: bool) -> Program:
        """Returns the program of a context that trains on a batch, or evaluates it."""
        examples = len(batch.labels)
        return self.training(context, examples, batch.is_last) if trains else self.evaluating(context, examples)

    @property
    def _clips_whole_batches(self) -> bool:
        return self._of_parts and self._clip_norm is not None

    def _train(self, context: int, examples: int, is_last: bool) -> Program:
        arrays = self.arrays(context, examples)
        steps = training_steps(arrays, self._loss, self._of_parts)
        own = self._accruing[context] if self._accruing else None
        clipping: list[Step] = []
        if self._clip_norm is not None and is_last:
            clipping = Clipping(arrays, self._clip_norm, own, self._of_parts).steps()
        accruing = accruing_steps(arrays, own) if own is not None else []
        steps += [*accruing, *clipping] if self._of_parts else [*clipping, *accruing]
        return self._program(arrays, steps, own)

    def _evaluate(self, context: int, examples: int) -> Program:
        arrays = self.arrays(context, examples)
        steps = evaluation_steps(arrays, self._loss, self._snapshot)
        if self._of_parts:
            steps.append(passing(self._accruing[context]))
        return self._program(arrays, steps, None)

    def _program(self, arrays: FlightArrays, steps: Sequence[Step], own: Accruing | None) -> Program:
        """Returns a program; smaller batches come once in a pass, and are not worth compiling for.

        All flights of a context wait for, and are counted by, the same partitions, whatever each of them reads: the
        next one may read more than the one before it.
        """
        words, posts = self.arrays(arrays.context).window(self._flights)
        whole = [Step(words, [], _nothing), *steps, Step((), [], _nothing, posts)]
        stand_ins = {IMAGES: arrays.images, LABELS: arrays.labels}
        native = self._native and arrays.batch == self._batch
        return Program(whole, stand_ins, native, arrays.key, own, arrays.firsts)


def partitions_awaited(neighbours: Neighbours, program: Program) -> frozenset[int]:
    """Returns the other partitions whose words have not come and without which a program cannot go on."""
    found: set[int] = set()
    for word in program.awaited:
        address = address_of(word)
        found.update(one for one, memory in enumerate(neighbours.memories) if memory.contains(address))
    return frozenset(found - {neighbours.own})


def _nothing(batch: Batch, row: Row) -> None:
    """A step that only waits or posts."""
