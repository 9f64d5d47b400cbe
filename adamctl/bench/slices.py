"""Times the parts of plans on this machine: the rates that the cost model of partitions computes with (Adam 3.2.4).

Each stage's largest part is run forward and backward by itself, by one thread, on synthetic numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.work import Work, held_elements, work_of
from adamctl.model.shapes import infer

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
AMOUNT_MAX = {"dense": 2e10, "softmax": 2e10, "logistic": 2e10, "local2d": 4e10}
"""Most multiply-adds of a timed call for kinds whose time per example depends on the batch."""
AMOUNT_OF_OTHERS_MAX = 1e9
SECONDS_LEAST = 0.02
RUNS_LEAST, RUNS_MAX = 2, 50
UPDATED_MAX = 1 << 22
Progress = Callable[[str], None]


def measure_rates(plans: Sequence[PartitionPlan], batch: int, progress: Progress = lambda _: None) -> Rates:
    """Returns the rates of this machine for the stages of plans of one model.

    Args:
        batch: examples of a flight.
        progress: called with the name of each stage before it is timed.
    """
    backend = choose()
    found: dict[Work, Rate] = {}
    with threadpool_limits(limits=1, user_api="blas"):
        for plan in plans:
            for stage in plan.stages:
                partition, work = _largest(plan, stage.index)
                if work not in found:
                    progress(f"{stage.name}, {stage.cut}")
                    found[work] = _rate(plan, stage.index, partition, work, batch, backend)
        parameters = max(held_elements(plan, p) for plan in plans for p in range(plan.partitions))
        update_per_s = _update_per_s(min(max(parameters, 1), UPDATED_MAX), backend)
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


def _rate(plan: PartitionPlan, stage: int, partition: int, work: Work, batch: int, backend: Backend) -> Rate:
    most = AMOUNT_MAX.get(work.kind)
    examples = int(min(max((most or AMOUNT_OF_OTHERS_MAX) // max(work.amount, 1), 1), batch))
    operations = part_operations(plan, stage, partition, backend)
    needs_input_error = plan.needs_input_error(stage)
    trains = needs_input_error or bool(plan.stages[stage].tensors)
    seconds = _seconds(operations, examples, needs_input_error, trains)
    counted = batch if most is None else examples  # others take as long for an example, whatever the batch
    return Rate(work.kind, work.label, work.working_set_bytes, counted, work.amount * examples / seconds)


def _seconds(operations: Sequence[Operation], examples: int, needs_input_error: bool, trains: bool) -> float:
    """Returns the least time of one call forward and, if it trains, backward."""
    key = np.ones(2, np.uint32)
    needed = [needs_input_error or place > 0 for place in range(len(operations))]
    buffers = [operation.allocate(examples, needs) for operation, needs in zip(operations, needed, strict=True)]
    weights = [[_numbers(*shape) for shape in operation.parameters] for operation in operations]
    gradients = [[np.zeros(shape, np.float32) for shape in operation.parameters] for operation in operations]
    inputs = np.maximum(_numbers(examples, *operations[0].input_shape), 0)
    kept = _numbers(examples, *operations[-1].output_shape)
    error = np.empty_like(kept)
    least, spent, runs = float("inf"), 0.0, 0
    while runs <= RUNS_LEAST or (spent < SECONDS_LEAST and runs < RUNS_MAX):
        np.copyto(error, kept)
        began = time.perf_counter()
        values = [inputs]
        for operation, own, held in zip(operations, weights, buffers, strict=True):
            values.append(operation.forward(values[-1], own, held, True, key))
        back: Array | None = error
        for place in reversed(range(len(operations)) if trains else ()):
            assert back is not None
            back = operations[place].backward(
                back, values[place], weights[place], list(gradients[place]), buffers[place],
                needed[place],
            )  # fmt: skip
        took = time.perf_counter() - began
        if runs:  # the first call loads or compiles
            least, spent = min(least, took), spent + took
        runs += 1
    return max(least, 1e-9)


def _numbers(*shape: int) -> NDArray[np.float32]:
    """Returns numbers like those in training, some of them repeated: large arrays are filled fast."""
    size = int(np.prod(shape))
    some = np.random.default_rng(size).standard_normal(min(max(size, 1), 1 << 16), np.float32)
    scale = np.float32(np.prod(shape[1:]) ** -0.5) if len(shape) > 1 else np.float32(1)
    return np.resize(some * scale, shape).astype(np.float32, copy=False)


def _update_per_s(parameters: int, backend: Backend) -> float:
    """Returns how many parameters' gradients a thread accrues and applies per second."""
    accrued, weights, gradient = (_numbers(parameters) for _ in range(3))
    accrual = Accrual(backend)
    least = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        accrual.accrue_and_apply(accrued, weights, gradient, 1e-6, False)
        least = min(least, time.perf_counter() - began)
    return parameters / max(least, 1e-9)
