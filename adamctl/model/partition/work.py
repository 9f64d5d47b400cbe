"""What a partition of a plan computes, keeps in memory and sends in one flight: counts, from the plan alone.

No array is allocated. `adamctl.model.partition.cost` turns the counts into time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec

from adamctl.model.layout import ELEMENT_BYTES, Tensor
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.protocol import choose_protocol, factors_bytes, gradient_bytes, has_factors
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WireType

PROCESS_BYTES = 128 << 20
"""A worker's interpreter and libraries with the compiled kernels loaded: about 100 MiB as measured, and some room."""


class Work(NamedTuple):
    """One partition's part of a stage, as the time it takes depends on it.

    Attributes:
        kind: the types of its layers, such as `dense` or `conv2d+maxpool2d`.
        label: the shapes of the whole stage's input and output.
        amount: multiply-adds of one example, forward and backward, or elements read and written where there are none.
        working_set_bytes: its parameters and one example's inputs and outputs (Adam 3.2.4).
    """

    kind: str
    label: str
    amount: int
    working_set_bytes: int


class Memory(NamedTuple):
    """Bytes of one partition's process.

    Attributes:
        process: the interpreter and libraries.
        parameters: weights, fetched ones and those of an evaluation, and accrued and computed gradients.
        activations: outputs and errors of all flights.
        edges: what comes from other partitions, in all flights.
    """

    process: int
    parameters: int
    activations: int
    edges: int

    @property
    def total(self) -> int:
        return sum(self)


class Pushing(NamedTuple):
    """How replicas push and fetch, as far as it decides bytes.

    Attributes:
        examples: of one push of one thread.
        servers: that hold the parameters.
        protocol: `auto`, `gradient` or `factors`.
        fetch_per_push: fetches for each push.
    """

    examples: int
    servers: int
    protocol: str = "auto"
    wire_push: WireType = "float32"
    wire_pull: WireType = "float32"
    fetch_per_push: float = 1.0


def work_of(plan: PartitionPlan, stage: int, partition: int) -> Work | None:
    """Returns the work of a partition's part of a stage; None if it has none."""
    cut = plan.stages[stage]
    part = cut.parts[partition]
    if part.outputs is None:
        return None
    kind = cut.kind if part.convolved is None else f"{cut.kind}+maxpool2d"
    label = f"{_shape(cut.input)} -> {_shape(cut.output)}"
    held = sum(region_size(region) for region in part.parameters)
    moved = region_size(part.inputs) + region_size(part.outputs)
    directions = 1 + plan.needs_input_error(stage)
    if not part.parameters:
        amount = moved * directions
    else:
        weight = part.parameters[0]
        assert weight is not None
        products = region_size(weight)
        if cut.kind == "conv2d":  # every place has the same weights
            window = prod(stop - start for start, stop in weight[1:])
            products = region_size(part.convolved or part.outputs) * window
        amount = products * (1 + directions)
    return Work(kind, label, amount, (held + moved) * ELEMENT_BYTES)


def held_elements(plan: PartitionPlan, partition: int) -> int:
    """Returns how many parameters a partition computes with."""
    return sum(region_size(region) for stage in plan.stages for region in stage.parts[partition].parameters)


def memory_of(plan: PartitionPlan, partition: int, batch: int, threads: int, slots: int, flights: int) -> Memory:
    """Returns the memory of a partition's process: parameters x (3 + slots x threads + F) + F x (activations + edges).

    Args:
        batch: examples of a flight.
        slots: accrued gradients of one thread.
        flights: F.
    """
    vectors = 3 + slots * threads + flights
    kept = edges = 0
    for stage in plan.stages:
        part = stage.parts[partition]
        outputs, inputs = region_size(part.outputs), region_size(part.inputs)
        kept += outputs * (1 if part.convolved is None else 2)  # pooling keeps which pixel won
        if plan.needs_input_error(stage.index):
            kept += inputs
        if stage.index == 0 or any(edge.consumer == partition for edge in plan.edges(stage.index)):
            edges += inputs
    for stage in plan.stages:
        edges += sum(edge.elements for edge in plan.backward_edges(stage.index) if edge.producer == partition)
    edges += sum(plan.head_elements(other) for other in plan.stages[-1].holders if other != partition)
    per_flight = batch * ELEMENT_BYTES * flights
    parameters = held_elements(plan, partition) * ELEMENT_BYTES * vectors
    return Memory(PROCESS_BYTES, parameters, kept * per_flight, edges * per_flight)


def parameter_traffic(
    plan: PartitionPlan, tensors: Sequence[Tensor], partition: int, pushing: Pushing
) -> tuple[float, float]:
    """Returns the bytes that a partition pushes, and those that it fetches, for each push of one thread.

    Dense weights go as gradient or as factors, whichever is fewer bytes for its own servers (Adam 3.2.6).

    Args:
        tensors: of the model.
    """
    servers = max(pushing.servers // plan.partitions, 1)
    push = 0
    for stage in plan.stages:
        part = stage.parts[partition]
        for place, index in enumerate(stage.tensors):
            rows = part.owned[place]
            if rows is not None:
                shape = (rows[1] - rows[0], *tensors[index].shape[1:])
                push += _push_bytes(msgspec.structs.replace(tensors[index], shape=shape), servers, pushing)
    pulled = held_elements(plan, partition) * WIRE_ELEMENT_BYTES[pushing.wire_pull]
    return push, pulled * pushing.fetch_per_push


def _push_bytes(tensor: Tensor, servers: int, pushing: Pushing) -> int:
    wanted = pushing.protocol
    if wanted == "auto" or not has_factors(tensor):
        wanted = choose_protocol(tensor, pushing.examples, servers, pushing.wire_push)
    if wanted == "factors":
        return factors_bytes(tensor, pushing.examples, servers, pushing.wire_push)
    return gradient_bytes(tensor, pushing.wire_push)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
