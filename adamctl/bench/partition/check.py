"""One step of a network in one process and in partitions, with the same weights and examples, compared layer by layer.

The members of a replica are those of a run; here they work in turn in one process, on memory that a run would share.
Both sides compute sums of float32 in different orders. A sum of K numbers in any order has a rounding error that grows
with the square root of K where errors are as likely up as down (Higham, Accuracy and Stability of Numerical Algorithms,
2.8); a difference of more than eight times that, of the largest value, is none of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from adamctl.bench.partition.program import network_of
from adamctl.bench.report import make_report
from adamctl.config.experiment import Experiment
from adamctl.errors import RunFailedError
from adamctl.kernels.layers.softmax import Softmax, softmax
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.program import Batch, Program
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.kernels.segments import Wake
from adamctl.kernels.step.build import NetworkLayer
from adamctl.kernels.step.network import Network
from adamctl.model.initial import initial_rows

PACKAGES = ("adamctl", "numpy", "numba")
ROUNDINGS = 8.0
"""How many times the expected rounding of a sum a difference may be."""
NOBODY = Wake(np.zeros(1, np.int64), -1)
CONTEXT = 0

Progress = Callable[[str], None]


class Found(NamedTuple):
    """What a step finds: outputs of each layer, with nothing dropped, None within a stage; gradients; summed loss."""

    outputs: list[Array | None]
    gradients: list[Array]
    loss: float


def check_partitions(
    experiment: Experiment, partitions: Sequence[int], *, batch: int, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Compares and returns the report: a row for each number of partitions and layer, and one for the loss.

    `difference` is the largest of any output, weight or bias, of the largest value among them; `limit` is what it may
    be, for sums of `summed` numbers.

    Args:
        partitions: numbers of partitions, each above 1.
        batch: examples of the step.

    Raises:
        ConfigurationError: the network cannot be cut like that.
    """
    whole = Network(experiment.model, batch)
    weights = [
        initial_rows(tensor, number, 0, tensor.shape[0], experiment.seed).reshape(tensor.shape)
        for number, tensor in enumerate(whole.tensors)
    ]
    made = _made_up(experiment, batch, whole.shapes[-1].output[0])
    progress("one step in one process")
    expected = _whole_step(whole, weights, made)
    rows: list[dict[str, Any]] = []
    for number in partitions:
        progress(f"the same step in {number} partitions")
        network = network_of(experiment, number)
        found = _partitioned_step(network, weights, made)
        rows += [{"partitions": number, **row} for row in _compared(whole, batch, found, expected)]
    report = make_report("partition-check", PACKAGES, rows)
    report["model"], report["batch"] = experiment.name, batch
    return report


def above_limit(report: dict[str, Any]) -> list[str]:
    """Returns, for people, what differs by more than rounding; a difference that is not a number does, too."""
    return [
        f"{row['layer']} with {row['partitions']} partitions: {row['difference']:.2e}, limit {row['limit']:.2e}"
        for row in report["results"]
        if not row["difference"] <= row["limit"]
    ]


def summed_by(layer: NetworkLayer, weights: int, batch: int) -> int:
    """Returns how many numbers the longest sum of a layer with weights adds up: for an output, or for a gradient.

    `weights`: how many it has, without biases.
    """
    connections = layer.shape.connections
    forward = -(-connections // max(prod(layer.shape.output), 1))
    return max(forward, batch * connections // weights, 1)


def _compared(whole: Network, batch: int, found: Found, expected: Found) -> Iterator[dict[str, Any]]:
    longest = summed = 1
    for place, layer in enumerate(whole.layers):
        if layer.tensors:  # another one passes on what it reads, with its rounding
            summed = summed_by(layer, whole.tensors[layer.tensors[0]].size, batch)
        longest = max(longest, summed)
        output, right = found.outputs[place], expected.outputs[place]
        differences = [] if output is None or right is None else [_difference(output, right)]
        gradients = [_difference(found.gradients[one], expected.gradients[one]) for one in layer.tensors]
        yield {
            "layer": layer.shape.name,
            "summed": summed,
            "outputs": differences[0] if differences else None,
            "gradients": max(gradients, default=None),
            "difference": max([*differences, *gradients], default=0.0),
            "limit": _limit(summed),
        }
    difference = abs(found.loss - expected.loss) / max(abs(expected.loss), 1e-30)
    yield {
        "layer": "loss", "summed": longest, "outputs": difference, "gradients": None, "difference": difference,
        "limit": _limit(longest),
    }  # fmt: skip


def _limit(summed: int) -> float:
    return ROUNDINGS * sqrt(summed) * float(np.finfo(np.float32).eps)


def _difference(found: Array, right: Array) -> float:
    """Returns the largest difference, of the largest value; infinite where one side alone is not finite."""
    largest = float(np.abs(right).max(initial=0.0))
    if not np.isfinite(found).all() or not np.isfinite(largest):
        return float("inf")
    return float(np.abs(found - right).max(initial=0.0)) / max(largest, 1e-30)


def _made_up(experiment: Experiment, batch: int, units: int) -> Batch:
    generator = np.random.default_rng(experiment.seed)
    images = generator.standard_normal((batch, *experiment.model.input), np.float32)
    labels = generator.integers(0, units, batch).astype(np.int32)
    return Batch(images, labels, step_key(experiment.seed, 0, 0))


def _whole_step(network: Network, weights: list[Array], made: Batch) -> Found:
    context = network.context()
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    outputs, values, views = list[Array | None](), made.images, network.views(flat)
    for layer, buffers in zip(network.layers, context.buffers, strict=True):
        own = [views[tensor] for tensor in layer.tensors]
        values = layer.operation.forward(values, own, buffers, False, context.key)
        outputs.append(values.copy())
    step = network.step(context, flat, made.images.copy(), made.labels, key=made.key)
    return Found(outputs, [one.copy() for one in context.gradient_views], step.loss * len(made.labels))


def _partitioned_step(network: CutNetwork, weights: list[Array], made: Batch) -> Found:
    """Runs a flight that only goes forward, and one that trains."""
    batch, numbers = len(made.labels), range(network.partitions)
    layouts = [SharedLayout(network, number, batch, 1) for number in numbers]
    memories = [SharedMemory(layout, np.zeros(layout.size_bytes, np.uint8)) for layout in layouts]
    members = []
    for memory in memories:
        memory.begin(1)
    for number in numbers:
        tensors = MemberTensors(network, number)
        flat = np.zeros(tensors.flat_size, np.float32)
        for view, (tensor, (start, stop)) in zip(tensors.views(flat), tensors.held, strict=True):
            view[...] = weights[tensor][start:stop]
        wakes = {other: NOBODY for other in numbers if other != number}
        members.append(Member(network, Neighbours(number, memories, wakes), batch, 1, flat))
    _run([member.evaluating(CONTEXT, batch) for member in members], 1, made)
    outputs = _whole_outputs(network, members, batch)
    programs = [member.training(CONTEXT, batch) for member in members]
    _run(programs, 2, made)
    loss = next(
        program.found.loss for program, part in zip(programs, network.stages[-1].parts, strict=True) if part is not None
    )
    return Found(outputs, _whole_gradients(network, members), loss)


def _run(programs: Sequence[Program], flight: int, made: Batch) -> None:
    """Advances all members until the flight is over."""
    for program in programs:
        program.begin(flight, made)
    left = list(programs)
    while left:
        before = [program.position for program in left]
        waiting = [program for program in left if not program.advance()]
        if waiting == left and before == [program.position for program in left]:
            raise RunFailedError("every partition waits for another one")
        left = waiting


def _whole_outputs(network: CutNetwork, members: Sequence[Member], batch: int) -> list[Array | None]:
    """Returns the outputs of the last layer of each stage, put together, and None for the others."""
    outputs: list[Array | None] = []
    for number, stage in enumerate(network.stages):
        made = np.full((batch, *stage.layers[-1].operation.output_shape), np.nan, np.float32)
        for member in members:
            held = member.arrays(CONTEXT).outputs[number]
            if held is not None:
                made[(slice(None), *(slice(*part) for part in held.box))] = held.array
        cut = not any(stage.is_whole(one) for one in range(network.partitions))
        if cut and isinstance(stage.layers[-1].operation, Softmax):  # its parts make logits
            softmax(made, np.zeros((batch, 1), np.float32))
        outputs += [None] * (len(stage.layers) - 1) + [made]
    return outputs


def _whole_gradients(network: CutNetwork, members: Sequence[Member]) -> list[Array]:
    """Returns the gradient of each tensor; of rows that several members hold, that of the last one."""
    whole = [np.full(tensor.shape, np.nan, np.float32) for tensor in network.tensors]
    for member in members:
        gradients = member.arrays(CONTEXT).gradients
        for (tensor, (start, stop)), gradient in zip(member.tensors.held, gradients, strict=True):
            whole[tensor][start:stop] = gradient
    return whole
