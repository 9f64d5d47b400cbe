"""Times the parts of plans on this machine: the rates that the cost model of partitions computes with (Adam 3.2.4).

All parts of a partition are run forward and backward in turn, by one thread, for partitions that between them have the
largest part of every stage. Inputs are what noise becomes on its way through the stages before, with weights drawn as
at the beginning of training: how long a step takes depends on how many numbers a rectifier lets through.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from adamctl.kernels.backend import Backend, choose
from adamctl.kernels.layers.conv2d import Conv2D
from adamctl.kernels.layers.convpool import ConvPool
from adamctl.kernels.layers.maxpool2d import MaxPool2D
from adamctl.kernels.needed import does_pooling
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array, Operation
from adamctl.kernels.slicing import OutputSlice
from adamctl.kernels.step.build import build_operation
from adamctl.model.layout import ELEMENT_BYTES, Tensor, tensors_of
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import Work, held_elements, work_of
from adamctl.model.shapes import infer

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
AMOUNT_MAX = 1e11
"""Most multiply-adds of one way through all parts: about three seconds. A larger batch is timed by fewer examples."""
BYTES_MAX = 1 << 30
"""Most memory of parts that are timed in turn. What needs more finds nothing in the caches anyway."""
OF_BATCHES = frozenset({"dense", "softmax", "logistic", "local2d"})
"""Kinds whose time for an example depends on the batch."""
SECONDS_LEAST = 0.1
RUNS_LEAST, RUNS_MAX = 3, 20
UPDATED_MAX = 1 << 22
EXAMPLES_THROUGH = 4
"""Examples that go through the whole network for the inputs of its stages."""
ELEMENTS_THROUGH_MAX = 1 << 26
"""Most parameters of a stage through which they go: the next one after a larger one begins with noise."""
DIFFERENT = 65521
"""Numbers that are drawn of a large array before they are repeated: a prime, so that no two rows are the same."""
Progress = Callable[[str], None]
Clock = Callable[[], float]


def measure_rates(
    plans: Sequence[PartitionPlan], batch: int, progress: Progress = lambda _: None, clock: Clock = time.perf_counter
) -> Rates:
    """Returns the rates of this machine for the stages of plans of one model.

    Args:
        batch: examples of a flight.
        progress: called with what is timed next.
        clock: by which parts are timed, in seconds.
    """
    backend = choose()
    found: dict[Work, Rate] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        inputs = _inputs_of_stages(plans[0], backend) if plans else []
        for plan in plans:
            largest = [_largest(plan, stage.index) for stage in plan.stages]
            for partition in sorted({partition for partition, work in largest if work not in found}):
                progress(f"partition {partition} of {plan.partitions}")
                for rate, work in _rates_of(plan, partition, batch, backend, inputs, clock):
                    found.setdefault(work, rate)
        parameters = max(held_elements(plan, p) for plan in plans for p in range(plan.partitions))
        update_per_s = _update_per_s(min(max(parameters, 1), UPDATED_MAX), backend, clock)
    return Rates(cache_bytes(2), cache_bytes(3), update_per_s, tuple(found.values()))


def cache_bytes(level: int, folder: Path = CACHES) -> int:
    """Returns the size of this machine's cache of a level, 0 if it is not known."""
    for index in sorted(folder.glob("index*")):
        try:
            found, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if int(found) == level and kind != "Instruction" and size.endswith("K"):
                return int(size[:-1]) << 10
        except (OSError, ValueError):
            continue
    return 0


def part_operations(plan: PartitionPlan, stage: int, partition: int, backend: Backend) -> list[Operation]:
    """Returns what computes a part, one after the other: two where pooling is not fused into its convolution."""
    cut, shapes = plan.stages[stage], infer(plan.model)
    layers = [build_operation(plan.model, shapes[index], backend) for index in cut.layers]
    convolution, pooling = layers[0], layers[-1]
    if backend == "numba" and isinstance(convolution, Conv2D) and isinstance(pooling, MaxPool2D):
        first, second = (plan.model.layers[index] for index in cut.layers)
        if does_pooling(first, second):
            layers = [ConvPool(convolution, pooling)]
    part = cut.parts[partition]
    if cut.cut.axis == "whole" or part.outputs is None:
        return layers
    axis = cut.cut.axis
    regions = [part.outputs] if len(layers) == 1 else [part.convolved, part.outputs]
    found = []
    for operation, region in zip(layers, regions, strict=True):
        assert region is not None and axis != "groups"
        found.append(operation.slice(OutputSlice(axis, *(region[-1] if axis == "maps" else region[0]))).operation)
    return found


def _largest(plan: PartitionPlan, stage: int) -> tuple[int, Work]:
    """Returns the partition with the most work in a stage, and that work."""
    works = [(partition, work_of(plan, stage, partition)) for partition in range(plan.partitions)]
    return max(((p, work) for p, work in works if work is not None), key=lambda pair: pair[1].amount)


def _inputs_of_stages(plan: PartitionPlan, backend: Backend) -> list[Array]:
    """Returns the inputs of each whole stage, for a few examples."""
    tensors, key = tensors_of(plan.model), np.ones(2, np.uint32)
    whole = make_plan(plan.model, 1)
    values = _noise(EXAMPLES_THROUGH, *plan.model.input)
    found = []
    for stage in whole.stages:
        found.append(values)
        if sum(tensors[index].size for index in stage.tensors) > ELEMENTS_THROUGH_MAX:
            values = np.maximum(_noise(EXAMPLES_THROUGH, *stage.output), 0)
            continue
        for operation in part_operations(whole, stage.index, 0, backend):
            weights = _weights(operation, [tensors[index] for index in stage.tensors])
            values = operation.forward(values, weights, operation.allocate(EXAMPLES_THROUGH, False), True, key)
    return found


def _rates_of(
    plan: PartitionPlan, partition: int, batch: int, backend: Backend, inputs: Sequence[Array], clock: Clock
) -> Iterator[tuple[Rate, Work]]:
    """Yields the rates of a partition's parts of all stages, and the parts."""
    works = [work_of(plan, stage.index, partition) for stage in plan.stages]
    own = [(stage, work) for stage, work in enumerate(works) if work is not None]
    amount = sum(work.amount for _, work in own)
    examples = int(min(max(AMOUNT_MAX // max(amount, 1), 1), batch))
    for some in _groups(plan, partition, examples, [stage for stage, _ in own]):
        parts = [_Part(plan, stage, partition, examples, backend, inputs[stage], clock) for stage in some]
        for stage, seconds in zip(some, _seconds(parts), strict=True):
            work = works[stage]
            assert work is not None
            counted = examples if work.kind in OF_BATCHES else batch
            yield Rate(work.kind, work.label, work.working_set_bytes, counted, work.amount * examples / seconds), work


def _groups(plan: PartitionPlan, partition: int, examples: int, stages: Sequence[int]) -> list[list[int]]:
    """Returns stages in order, in groups that fit in `BYTES_MAX` if a single one does."""
    found: list[list[int]] = []
    left = 0
    for stage in stages:
        part = plan.stages[stage].parts[partition]
        held = sum(map(region_size, part.parameters))
        moved = sum(map(region_size, (part.inputs, part.outputs, part.convolved)))
        size = 2 * (held + moved * examples) * ELEMENT_BYTES
        if not found or size > left:
            found.append([])
            left = BYTES_MAX
        found[-1].append(stage)
        left -= size
    return found


class _Part:
    """A partition's part of a stage, with what it computes on."""

    def __init__(
        self, plan: PartitionPlan, stage: int, partition: int, examples: int, backend: Backend, inputs: Array,
        clock: Clock,
    ) -> None:  # fmt: skip
        """`inputs`: of the whole stage, for a few examples."""
        self._clock = clock
        cut, tensors = plan.stages[stage], tensors_of(plan.model)
        region = cut.parts[partition].inputs
        assert region is not None
        own = inputs[(slice(None), *(slice(*extent) for extent in region))]
        self._inputs = np.resize(own, (examples, *own.shape[1:]))
        self._operations = part_operations(plan, stage, partition, backend)
        self._trains = plan.needs_input_error(stage) or bool(cut.tensors)
        self._needed = [plan.needs_input_error(stage) or place > 0 for place in range(len(self._operations))]
        self._buffers = [
            one.allocate(examples, needs) for one, needs in zip(self._operations, self._needed, strict=True)
        ]
        self._weights = [_weights(one, [tensors[index] for index in cut.tensors]) for one in self._operations]
        self._gradients = [[np.zeros(shape, np.float32) for shape in one.parameters] for one in self._operations]
        self._kept = _noise(examples, *self._operations[-1].output_shape)
        self._error = np.empty_like(self._kept)
        self._values: list[Array] = []
        self._key = np.ones(2, np.uint32)

    def forward_s(self) -> float:
        """Returns how long the way forward takes."""
        began_s = self._clock()
        self._values = [self._inputs]
        for operation, weights, buffers in zip(self._operations, self._weights, self._buffers, strict=True):
            self._values.append(operation.forward(self._values[-1], weights, buffers, True, self._key))
        return self._clock() - began_s

    def backward_s(self) -> float:
        """Returns how long the way back takes, if it trains."""
        np.copyto(self._error, self._kept)
        began_s = self._clock()
        error: Array | None = self._error
        for place in reversed(range(len(self._operations)) if self._trains else ()):
            assert error is not None
            error = self._operations[place].backward(
                error, self._values[place], self._weights[place], list(self._gradients[place]), self._buffers[place],
                self._needed[place],
            )  # fmt: skip
        return self._clock() - began_s


def _seconds(parts: Sequence[_Part]) -> list[float]:
    """Returns the time of each part: the median of some ways through all of them, forward and backward.

    In turn, as in training: what a part finds in the caches is what the others leave.
    """
    taken: list[list[float]] = []
    while len(taken) <= RUNS_LEAST or (sum(map(sum, taken[1:])) < SECONDS_LEAST and len(taken) <= RUNS_MAX):
        forward = [part.forward_s() for part in parts]
        backward = [part.backward_s() for part in reversed(parts)]
        taken.append([one + other for one, other in zip(forward, reversed(backward), strict=True)])
    return [max(statistics.median(times), 1e-9) for times in zip(*taken[1:], strict=True)]  # the first one compiles


def _weights(operation: Operation, tensors: Sequence[Tensor]) -> list[Array]:
    """Returns weights of an operation's shapes, like those at the beginning of training."""
    found = []
    for shape, tensor in zip(operation.parameters, tensors, strict=False):  # pooling beside a convolution has none
        if tensor.distribution == "constant":
            found.append(np.full(shape, tensor.scale, np.float32))
        elif tensor.distribution == "zeros":
            found.append(np.zeros(shape, np.float32))
        else:
            spread = {"normal": 1.0, "uniform": 3**-0.5}.get(tensor.distribution)
            scale = tensor.row_size**-0.5 if spread is None else tensor.scale * spread
            found.append(_noise(*shape) * np.float32(scale))
    return found


def _noise(*shape: int) -> NDArray[np.float32]:
    """Returns standard normal numbers, some of them repeated: large arrays are filled fast."""
    size = int(np.prod(shape))
    some = np.random.default_rng(size).standard_normal(min(max(size, 1), DIFFERENT), np.float32)
    return np.resize(some, shape).astype(np.float32, copy=False)


def _update_per_s(parameters: int, backend: Backend, clock: Clock) -> float:
    """Returns how many parameters' gradients a thread accrues and applies per second."""
    accrued, weights, gradient = (_noise(parameters) for _ in range(3))
    accrual = Accrual(backend)
    least = float("inf")
    for _ in range(5):
        began = clock()
        accrual.accrue_and_apply(accrued, weights, gradient, 1e-6, False)
        least = min(least, clock() - began)
    return parameters / max(least, 1e-9)
