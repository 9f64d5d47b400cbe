"""One partition of a replica: the contexts of its open flights.

A *flight* is one mini-batch on its way through a replica; each open one has a context of its own (Adam 3.2.1). A
partition computes its parts of all stages forward, its part of the loss, and back. It waits for other partitions where
it needs what they compute, and only for that (dataflow; Adam 3.2.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.kernels.layers.losses import make_loss
from adamctl.kernels.native import can_compile
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import FlightArrays, Neighbours
from adamctl.kernels.partition.program import IMAGES, LABELS, Batch, Program, Row, Step
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.kernels.partition.steps import training_steps
from adamctl.kernels.partition.update import Accruing, Clipping, accruing_step


class Member:
    """A partition that trains on batches of exactly `batch` examples.

    Attributes:
        tensors: what it holds, and where.
        arrays: of each context.
        programs: likewise; flight n, counted from 1, runs in context n % flights, after flight n - flights. It may
            begin there at any time: it waits by itself until nobody reads what it overwrites.
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
    ) -> None:
        """Compiles and allocates everything.

        Args:
            weights: flat, as `tensors` lays it out; read in place, and changed by others meanwhile (Adam 3.2.2).
            accruing: of each context, where its flights accrue; none: gradients stay in `arrays`.
            clip_norm: longest gradient of a layer; None: any.
        """
        self.tensors = MemberTensors(network, neighbours.own)
        views = self.tensors.views(weights)
        self.arrays = [FlightArrays(network, neighbours, context, batch, views) for context in range(flights)]
        loss, native = make_loss(network.model.loss, network.backend), network.backend == "numba" and can_compile()
        self.programs: list[Program] = []
        for context, arrays in enumerate(self.arrays):
            steps = training_steps(arrays, loss)
            if clip_norm is not None:
                steps += Clipping(arrays, clip_norm).steps()
            own = accruing[context] if accruing else None
            if own is not None:
                steps.append(accruing_step(arrays, own))
            words, posts = arrays.window(flights)
            steps = [Step(words, [], _nothing), *steps, Step((), [], _nothing, posts)]
            stand_ins = {IMAGES: arrays.images, LABELS: arrays.labels}
            slots, filled = (own.slots, own.filled) if own is not None else ((), None)
            self.programs.append(Program(steps, stand_ins, native, slots, filled))


def _nothing(batch: Batch, row: Row) -> None:
    """A step that only waits or posts."""
