"""The layers of a model as cases: forward alone, and forward with backward, on synthetic numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import prod

import msgspec
import numpy as np

from adamctl.bench.kernels.cases import Case
from adamctl.bench.kernels.measuring import Call
from adamctl.kernels.backend import Backend
from adamctl.kernels.operation import Array, Operation
from adamctl.kernels.step.build import build_operation
from adamctl.kernels.step.network import Network
from adamctl.model.description import Model
from adamctl.model.shapes import LayerShape, infer

ELEMENT_BYTES = 4
Build = Callable[[Backend], Operation]


def layer_cases(model: Model, batch: int) -> Iterator[Case]:
    """Yields two cases per layer, and two per operation that fuses layers."""
    shapes = infer(model)
    first = next(shape.index for shape in shapes if shape.connections)
    for shape in shapes:
        yield from _both(
            f"{shape.name} {_size(shape)}",
            (shape,),
            batch,
            partial(build_operation, model, shape),
            with_input_error=shape.index > first,
        )
    for start, stop in _fused(model, batch):
        group = shapes[start:stop]
        yield from _both(
            "+".join(shape.name for shape in group),
            group,
            batch,
            partial(_operation_at, model, batch, start),
            with_input_error=start > first,
            backends=("numba",),
        )


def _fused(model: Model, batch: int) -> list[tuple[int, int]]:
    """Returns the ranges of layers that one operation computes if numba is installed."""
    starts = [layer.shape.index for layer in Network(model, batch).layers] + [len(model.layers)]
    return [(a, b) for a, b in pairwise(starts) if b - a > 1]


def _operation_at(model: Model, batch: int, index: int, backend: Backend) -> Operation:
    return next(layer.operation for layer in Network(model, batch, backend).layers if layer.shape.index == index)


def _size(shape: LayerShape) -> str:
    return f"{'x'.join(map(str, shape.input))} -> {'x'.join(map(str, shape.output))}"


def _both(
    name: str,
    shapes: tuple[LayerShape, ...],
    batch: int,
    build: Build,
    with_input_error: bool,
    backends: tuple[Backend, ...] = ("numpy", "numexpr", "numba"),
) -> Iterator[Case]:
    connections = sum(shape.connections for shape in shapes)
    moved = ELEMENT_BYTES * batch * (prod(shapes[0].input) + prod(shapes[-1].output))
    layers = [msgspec.to_builtins(shape.layer) for shape in shapes]
    for step in (False, True):
        products = 1 + step + (step and with_input_error)
        work = 2.0 * batch * connections * products if connections else float(moved * (1 + step))
        yield Case(
            name=f"{name} {'step' if step else 'forward'}",
            group="layer",
            work=work,
            bound="product" if connections else "memory",
            make=partial(_call, build, batch, step, with_input_error),
            peer={
                "layers": layers,
                "input": list(shapes[0].input),
                "batch": batch,
                "step": step,
                "with_input_error": with_input_error,
            },
            backends=backends,
        )


def _call(build: Build, batch: int, step: bool, with_input_error: bool, backend: Backend) -> Call:
    operation = build(backend)
    generator = np.random.default_rng(1)

    def numbers(*shape: int) -> Array:
        return generator.standard_normal(shape, np.float32)

    inputs = np.maximum(numbers(batch, *operation.input_shape), 0)
    weights = [
        numbers(*shape) * np.float32(prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0) for shape in operation.parameters
    ]
    gradients: list[Array | None] = [np.zeros(shape, np.float32) for shape in operation.parameters]
    buffers, key = operation.allocate(batch, with_input_error), np.ones(2, np.uint32)

    def forward() -> None:
        operation.forward(inputs, weights, buffers, True, key)

    if not step:
        return forward
    kept = numbers(batch, *operation.output_shape)
    error = kept.copy()

    def both() -> None:
        forward()
        operation.backward(error, inputs, weights, gradients, buffers, with_input_error)

    def both_again() -> None:
        np.copyto(error, kept)
        both()

    both()
    # Many operations change the error in place; repeated, it would shrink to denormal numbers, which are slow.
    return both if np.array_equal(error, kept) else both_again
