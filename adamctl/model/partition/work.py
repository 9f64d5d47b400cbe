"""What a partition of a plan computes, keeps in memory and sends in one flight: counts, from the plan alone.

No array is allocated. `adamctl.model.partition.cost` turns the counts into time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

import msgspec

from adamctl.model.custom.resolved import Piece, resolve
from adamctl.model.description import Conv2D, Custom
from adamctl.model.layout import ELEMENT_BYTES, Tensor, tensors_of
from adamctl.model.partition.geometry import StagePart, region_size
from adamctl.model.partition.plan import PartitionPlan, StagePlan
from adamctl.model.protocol import KEPT_BYTES_MAX, choose_protocol, factors_bytes, gradient_bytes, has_factors
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WireType

PROCESS_BYTES = 200 << 20
"""A worker's interpreter and libraries with the compiled kernels loaded: 197 MiB as measured, half of it in files."""
VECTORS = 3
"""Vectors of all parameters that a worker holds once: its weights, fetched ones, and those of an evaluation."""
SLOTS_IN_USE = 2
"""Accrued gradients of a thread in memory while servers keep up: one fills while the one before is pushed.

A slot that was never used takes no memory. Those beyond these two are used where servers fall behind.
"""
SLOTS_PER_THREAD = 4
"""Gradients of a thread of a whole replica that accrue, or that servers have not answered, at most."""


class Work(NamedTuple):
    """One partition's part of a stage, as the time it takes depends on it.

    Attributes:
        kind: the types of its layers, such as `dense` or `conv2d+maxpool2d`.
        label: the shapes of the whole stage's input and output.
        amount: multiply-adds of one example, forward and backward, or elements read and written where there are none.
        working_set_bytes: its parameters and one example's inputs and outputs (Adam 3.2.4).
        forward_share: of the amount, what the way forward is.
    """

    kind: str
    label: str
    amount: int
    working_set_bytes: int
    forward_share: float = 0.5


class Memory(NamedTuple):
    """Bytes of one partition's process.

    Attributes:
        process: the interpreter and libraries.
        parameters: weights, fetched ones and those of an evaluation, and accrued and computed gradients; what
            convolutions pack, and the gradients that partitions show each other of what several of them hold.
        factors: of dense layers, kept beside accrued gradients.
        activations: outputs and errors of all flights.
        edges: what comes from other partitions, and what is copied together for them, in all flights.
        examples: read ahead.
    """

    process: int
    parameters: int
    factors: int
    activations: int
    edges: int
    examples: int

    @property
    def total(self) -> int:
        return sum(self)


class Pushing(NamedTuple):
    """How replicas push and fetch, as far as it decides bytes.

    Attributes:
        examples: of one push of one thread.
        servers: that hold the parameters; 0: replicas hold them.
        protocol: `auto`, `gradient` or `factors`.
        fetch_per_push: fetches for each push.
        applied_locally: whether workers apply gradients to their own weights, too.
        clips: whether a layer's gradient has a longest length.
    """

    examples: int
    servers: int
    protocol: str = "auto"
    wire_push: WireType = "float32"
    wire_pull: WireType = "float32"
    fetch_per_push: float = 1.0
    applied_locally: bool = True
    clips: bool = False


class Factored(NamedTuple):
    """What a partition does with the gradients of its dense layers (Adam 3.2.6), as `roles.worker.protocol` decides it.

    Attributes:
        kept: tensors whose factors every slot keeps.
        uncomputed: tensors whose gradient no step computes.
        elements: of the factors of one slot.
    """

    kept: frozenset[int] = frozenset()
    uncomputed: frozenset[int] = frozenset()
    elements: int = 0


def work_of(plan: PartitionPlan, stage: int, partition: int, uncomputed: Collection[int] = frozenset()) -> Work | None:
    """Returns the work of a partition's part of a stage; None if it has none.

    `uncomputed`: tensors whose gradient is not computed.
    """
    cut = plan.stages[stage]
    part = cut.parts[partition]
    if part.outputs is None:
        return None
    kind = cut.kind if part.convolved is None else f"{cut.kind}+maxpool2d"
    label = f"{_shape(cut.input)} -> {_shape(cut.output)}"
    held = sum(region_size(region) for region in part.parameters)
    moved = region_size(part.inputs) + region_size(part.outputs)
    directions = 1 + plan.needs_input_error(stage)
    gradients = int(not part.parameters or cut.tensors[0] not in uncomputed)
    if isinstance(plan.model.layers[cut.layers[0]], Custom):
        amount, parts = (moved + held) * directions, directions
    elif not part.parameters:
        amount, parts = moved * directions, directions
    else:
        weight = part.parameters[0]
        assert weight is not None
        products = region_size(weight)
        if cut.kind == "conv2d":  # every place has the same weights
            window = prod(stop - start for start, stop in weight[1:])
            products = region_size(part.convolved or part.outputs) * window
        parts = gradients + directions
        amount = products * parts
    return Work(kind, label, amount, (held + moved) * ELEMENT_BYTES, 1 / parts)


def gathered_elements(plan: PartitionPlan, stage: int, partition: int) -> int:
    """Returns the elements that a partition copies for an example of a stage, from its own blocks and others'.

    They are the stage's inputs, and on the way back what it adds up as the error of the stage before.
    """
    found = 0
    if any(edge.consumer == partition for edge in plan.edges(stage)):
        found += region_size(plan.stages[stage].parts[partition].inputs)
    read = sum(edge.elements for edge in plan.backward_edges(stage) if edge.producer == partition)
    if read:
        found += read + region_size(plan.stages[stage - 1].parts[partition].outputs)
    return found


def held_elements(plan: PartitionPlan, partition: int) -> int:
    """Returns how many parameters a partition computes with."""
    return sum(region_size(region) for stage in plan.stages for region in stage.parts[partition].parameters)


def memory_of(
    plan: PartitionPlan, partition: int, batch: int, threads: int, slots: int, flights: int, pushing: Pushing,
    read_ahead: int = 0, vectors: int = VECTORS,
) -> Memory:  # fmt: skip
    """Returns the memory of a partition's process, with so many slots of each context in use.

    That is process + parameters x (3 + slots x C + C) + slots x C x factors + C x (packed + exchanged + activations +
    edges), where C, the contexts, are the threads of a whole replica and the flights F of one in partitions. The last C
    of the parameters counts only those whose gradients are computed.

    Args:
        batch: examples of a flight.
        slots: accrued gradients of one context.
        flights: F.
        read_ahead: examples that wait.
        vectors: of all parameters that the process holds once.
    """
    contexts = threads if plan.partitions == 1 else flights
    accrued = slots * contexts
    held = held_elements(plan, partition)
    factored = factored_by(plan, partition, pushing)
    kept, edges = flight_elements(plan, partition)
    computed = computed_elements(plan, partition, factored)
    of_context = computed + packed_elements(plan, partition) + exchanged_elements(plan, partition)
    filled = held if plan.partitions == 1 else computed  # partitions never write to what is not computed
    per_flight = batch * ELEMENT_BYTES * contexts
    return Memory(
        PROCESS_BYTES,
        (held * vectors + filled * accrued + of_context * contexts) * ELEMENT_BYTES,
        factored.elements * accrued * ELEMENT_BYTES,
        kept * per_flight,
        edges * per_flight,
        read_ahead * prod(plan.model.input) * ELEMENT_BYTES,
    )


def factored_by(plan: PartitionPlan, partition: int, pushing: Pushing) -> Factored:
    """Returns what a partition does with the gradients of its dense layers.

    Without parameter servers it keeps no factors. Where a gradient is pushed after all, its factors are kept beside it
    if they are small: then no gradient is computed.
    """
    if not pushing.servers:
        return Factored()
    tensors = tensors_of(plan.model)
    sizes: dict[int, int] = {}
    chosen: set[int] = set()
    for stage in plan.stages:
        for place, index in enumerate(stage.tensors):
            rows = stage.parts[partition].owned[place]
            if rows is None or not has_factors(tensors[index]):
                continue
            tensor = _rows_of(tensors[index], rows)
            sizes[index] = (tensor.shape[0] + tensor.row_size) * pushing.examples
            if _protocol(tensor, servers_of(plan, pushing), pushing) == "factors":
                chosen.add(index)
    small = all(size * ELEMENT_BYTES <= KEPT_BYTES_MAX for index, size in sizes.items() if index not in chosen)
    skips = bool(chosen) and not pushing.applied_locally and small
    kept = frozenset(sizes if skips else chosen)
    return Factored(kept, kept if skips else frozenset(), sum(sizes[index] for index in kept))


def servers_of(plan: PartitionPlan, pushing: Pushing) -> int:
    """Returns how many servers hold a partition's parameters."""
    return max(pushing.servers // plan.partitions, 1)


def computed_elements(plan: PartitionPlan, partition: int, factored: Factored) -> int:
    """Returns of how many parameters a partition's steps compute gradients."""
    return sum(
        region_size(region)
        for stage in plan.stages
        for index, region in zip(stage.tensors, stage.parts[partition].parameters, strict=True)
        if index not in factored.uncomputed
    )


def packed_elements(plan: PartitionPlan, partition: int, forward_only: bool = False) -> int:
    """Returns the elements of what compiled convolutions of one context keep of their weights, in the order they read.

    That is a packed copy of the weights, and on the way back their gradient in rows; weights in rows, too, where
    pooling is fused. Of groups one at a time. What else they keep is of one image.

    Args:
        forward_only: flights predict.
    """
    found = 0
    for stage in plan.stages:
        layer, part = plan.model.layers[stage.layers[0]], stage.parts[partition]
        if isinstance(layer, Conv2D) and part.parameters:
            copies = 1 if forward_only else 2 if part.convolved is None else 3
            found += copies * region_size(part.parameters[0]) // layer.groups
    return found


def exchanged_elements(plan: PartitionPlan, partition: int) -> int:
    """Returns the elements of a flight's gradients of tensors that several partitions hold, as they go between them.

    Each has a block for its own, which others read; whoever sums up rows has those of the others, and the sums, which
    the others have then.
    """
    found = 0
    for stage in plan.stages:
        if not (partials := plan.partials(stage.index)):
            continue
        found += sum(region_size(region) for region in stage.parts[partition].parameters)
        found += sum(one.elements for one in partials if partition in (one.sender, one.owner))
        found += sum({one.tensor: one.elements for one in partials if one.owner == partition}.values())
    return found


def _rows_of(tensor: Tensor, rows: tuple[int, int]) -> Tensor:
    return msgspec.structs.replace(tensor, shape=(rows[1] - rows[0], *tensor.shape[1:]))


def flight_elements(plan: PartitionPlan, partition: int, forward_only: bool = False) -> tuple[int, int]:
    """Returns, per example of a flight, the elements of outputs and errors, and of edges.

    Edges are what comes from other partitions and, where these are on other machines, copies of what they read: in
    another order than it was computed, for the network.

    Args:
        forward_only: the flight predicts, on this machine: there are no errors and no copies, and nobody gathers
            outputs of the last stage.
    """
    kept = edges = 0
    for stage in plan.stages:
        part = stage.parts[partition]
        outputs, inputs = region_size(part.outputs), region_size(part.inputs)
        kept += outputs * (1 if part.convolved is None else 2)  # pooling keeps which pixel won
        needs_input_error = plan.needs_input_error(stage.index) and not forward_only
        if needs_input_error:
            kept += inputs
        kept += _kept_by_custom(plan, stage, part, needs_input_error)
        come = sum(edge.elements for edge in plan.edges(stage.index) if edge.consumer == partition)
        if stage.index == 0 or come:
            edges += inputs + come  # put together, and as it comes
    if forward_only:
        return kept, edges
    for stage in plan.stages:
        edges += sum(edge.elements for edge in plan.backward_edges(stage.index) if edge.producer == partition)
        edges += _copied_elements(plan, stage.index, partition)
    edges += sum(plan.head_elements(other) for other in plan.stages[-1].holders if other != partition)
    return kept, edges


def _copied_elements(plan: PartitionPlan, stage: int, partition: int) -> int:
    """Returns what a partition copies together of its outputs and errors for others: unless one reads all of them."""
    outputs, inputs = plan.stages[stage - 1].parts[partition].outputs, plan.stages[stage].parts[partition].inputs
    forward = (edge for edge in plan.edges(stage) if edge.producer == partition and edge.region != outputs)
    back = (edge for edge in plan.backward_edges(stage) if edge.consumer == partition and edge.region != inputs)
    return sum(edge.elements for edge in (*forward, *back))


def _kept_by_custom(plan: PartitionPlan, stage: StagePlan, part: StagePart, needs_input_error: bool) -> int:
    """Returns what a part of a layer of the user's own keeps besides: state, and inputs among zeros."""
    layer = plan.model.layers[stage.layers[0]]
    if not isinstance(layer, Custom) or part.outputs is None or part.inputs is None:
        return 0
    from adamctl.model.custom.parts import kept_elements  # loads NumPy, which other plans do without

    held = tuple(region for region in part.parameters if region is not None)
    own = resolve(layer, stage.input, stage.name)
    return kept_elements(own, Piece(part.inputs, part.outputs, held), needs_input_error)


def parameter_traffic(
    plan: PartitionPlan, tensors: Sequence[Tensor], partition: int, pushing: Pushing
) -> tuple[float, float]:
    """Returns the bytes that a partition pushes, and those that it fetches, for each push of one thread.

    Dense weights go as gradient or as factors, whichever is fewer bytes for its own servers (Adam 3.2.6). Without
    servers nothing goes anywhere.

    Args:
        tensors: of the model.
    """
    if not pushing.servers:
        return 0.0, 0.0
    servers = servers_of(plan, pushing)
    push = 0
    for stage in plan.stages:
        part = stage.parts[partition]
        for place, index in enumerate(stage.tensors):
            rows = part.owned[place]
            if rows is not None:
                push += _push_bytes(_rows_of(tensors[index], rows), servers, pushing)
    pulled = held_elements(plan, partition) * WIRE_ELEMENT_BYTES[pushing.wire_pull]
    return push, pulled * pushing.fetch_per_push


def pushed_work(plan: PartitionPlan, tensors: Sequence[Tensor], partition: int, pushing: Pushing) -> tuple[int, int]:
    """Returns what a partition's servers do for each push of one thread: additions, and multiply-adds of factors.

    Args:
        tensors: of the model.
    """
    servers, additions, products = servers_of(plan, pushing), 0, 0
    for stage in plan.stages:
        part = stage.parts[partition]
        for place, index in enumerate(stage.tensors):
            rows = part.owned[place]
            if rows is None:
                continue
            tensor = _rows_of(tensors[index], rows)
            if _protocol(tensor, servers, pushing) == "factors":
                products += tensor.size * pushing.examples
            else:
                additions += tensor.size
    return additions, products


def _push_bytes(tensor: Tensor, servers: int, pushing: Pushing) -> int:
    if _protocol(tensor, servers, pushing) == "factors":
        return factors_bytes(tensor, pushing.examples, servers, pushing.wire_push)
    return gradient_bytes(tensor, pushing.wire_push)


def _protocol(tensor: Tensor, servers: int, pushing: Pushing) -> str:
    if pushing.protocol == "auto" or not has_factors(tensor):
        return choose_protocol(tensor, pushing.examples, servers, pushing.wire_push)
    return pushing.protocol


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
