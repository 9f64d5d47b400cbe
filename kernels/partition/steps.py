"""The steps of a flight in one partition: forward, loss, backward, and the sum of gradients that are shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.layers.dropout import Dropout
from adamctl.kernels.layers.losses import Loss
from adamctl.kernels.native import Call, NativeCall, Word, joined
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.accruing import LOSS, SHARE
from adamctl.kernels.partition.flight import FlightArrays
from adamctl.kernels.partition.head import ExchangedHead, GatheredHead, SeparateHead
from adamctl.kernels.partition.memory import Kind
from adamctl.kernels.partition.program import Batch, Row, Step, check_of_labels
from adamctl.kernels.partition.regions import BlockMove, Box, Clear, Held, whole_box
from adamctl.kernels.partition.stages import HeldTensor, MemberTensors
from adamctl.kernels.segments import Post, Words


def training_steps(arrays: FlightArrays, loss: Loss, of_parts: bool = False) -> list[Step]:
    """Returns the steps that find the gradient of one batch; `of_parts`: of the part that a flight has of its batch."""
    stages = range(len(arrays.network.stages))
    steps = _forward_steps(arrays, None)
    head = _loss_steps(arrays, loss)
    steps += head.error
    error = arrays.output_errors[-1]
    if of_parts and error is not None:
        steps.append(_sharing(arrays, error.array))
    for number in reversed(stages):
        if arrays.operations[number] and number >= arrays.network.backward_stop:
            steps.append(_backward(arrays, number))
    return [*steps, *_sum_steps(arrays), *head.later]


def evaluation_steps(arrays: FlightArrays, loss: Loss, weights: Sequence[Array]) -> list[Step]:
    """Returns the steps that find the loss of one batch with other weights, without dropout.

    `weights`: one array for each held tensor.
    """
    head = _loss_steps(arrays, loss.unweighted, evaluates=True)
    return [*_forward_steps(arrays, weights), *head.error, *head.later]


def prediction_steps(arrays: FlightArrays, weights: Sequence[Array], results: Array) -> list[Step]:
    """Returns the steps that find this partition's outputs of the last stage, without dropout.

    Args:
        weights: one array for each held tensor.
        results: takes them, [batch, units of the whole stage]; of a softmax that is cut, these are logits.
    """
    steps, outputs = _forward_steps(arrays, weights), arrays.outputs[-1]
    if outputs is None:
        return steps
    into = Held(results, whole_box(arrays.network.stages[-1].layers[-1].operation.output_shape))
    move = BlockMove(into, outputs, outputs.box)
    return [*steps, Step((), move.native(arrays.network.backend), lambda batch, row: move.make())]


def _forward_steps(arrays: FlightArrays, weights: Sequence[Array] | None) -> list[Step]:
    """Returns the way through all stages; `weights` of an evaluation, None: those that are trained."""
    steps: list[Step] = []
    left = None if weights is None else list(weights)
    for number, operations in enumerate(arrays.operations):
        if operations:
            own = [bound.weights if left is None else [left.pop(0) for _ in bound.weights] for bound in operations]
            steps.append(_forward(arrays, number, own, left is None))
    return steps


def _forward(arrays: FlightArrays, number: int, weights: list[list[Array]], training: bool) -> Step:
    """Gathers a stage's inputs, from this partition and others, and computes its outputs."""
    inputs, own = arrays.inputs[number], arrays.neighbours.own
    assert inputs is not None
    words: list[Words] = []
    moves: list[Move] = []
    if not number:
        images = Held(arrays.images, whole_box(arrays.network.model.input))
        if inputs.array is not images.array:
            moves.append(BlockMove(inputs, images, inputs.box))
    elif inputs is not arrays.outputs[number - 1]:
        for source, box in arrays.network.sources(number, own):
            moves.append(BlockMove(inputs, _outputs_of(arrays, number - 1, source), box))
            if source != own:
                words.append(arrays.word(source, "output", number - 1))
    values, calls = inputs.array, _moved(arrays, moves)
    for bound, own_weights in zip(arrays.operations[number], weights, strict=True):
        if not training and isinstance(bound.operation, Dropout):
            kept = Held(bound.buffers.output, inputs.box)
            made = BlockMove(kept, Held(values, inputs.box), inputs.box).native(arrays.network.backend)
        else:
            made = bound.operation.native_forward(arrays.batch, own_weights, bound.buffers, values, arrays.key)
        calls, values = joined(calls, made), bound.buffers.output

    def work(batch: Batch, row: Row) -> None:
        for move in moves:
            if isinstance(move, BlockMove) and move.source.array is arrays.images:
                move = move._replace(source=move.source._replace(array=batch.images))
            move.make()
        values = batch.images if inputs.array is arrays.images else inputs.array
        for bound, own_weights in zip(arrays.operations[number], weights, strict=True):
            values = bound.operation.forward(values, own_weights, bound.buffers, training, arrays.key)

    posts: list[Post] = []
    if arrays.shares("output", number):
        posts = arrays.post("output", number, {reader for reader, _ in arrays.network.readers(number, own)})
    return Step(tuple(words), calls, work, posts)


class LossSteps(NamedTuple):
    """Steps that compute the error at this partition's outputs of the last stage, and the loss.

    `later`: those that need not come before the way back.
    """

    error: Sequence[Step] = ()
    later: Sequence[Step] = ()


def _loss_steps(arrays: FlightArrays, loss: Loss, evaluates: bool = False) -> LossSteps:
    last, own = len(arrays.network.stages) - 1, arrays.neighbours.own
    outputs, error = arrays.outputs[last], arrays.output_errors[last]
    if outputs is None or error is None:
        return LossSteps()
    stage, batch = arrays.network.stages[last], arrays.batch
    by_python = evaluates and loss.has_sums
    if stage.is_whole(own):
        calls = loss.native_backward(outputs.array, arrays.labels, error.array, Word(LOSS))

        def whole(batch: Batch, row: Row) -> None:
            row.loss, row.correct = loss.backward(outputs.array, batch.labels, error.array)
            row.sums = loss.sums(outputs.array, batch.labels) if evaluates else ()

        return LossSteps([Step((), None if by_python else joined(calls, check_of_labels()), whole)])
    head = stage.layers[-1].operation
    if arrays.network.head == "exchange":
        return LossSteps(_exchanged_loss(arrays, outputs, error, loss.class_weights))
    if arrays.network.head == "separate":
        return _separate_loss(arrays, outputs, error, loss.class_weights)
    gathered = GatheredHead(head, loss, batch, error, arrays.network.backend)
    into = Held(gathered.outputs, whole_box(head.output_shape))
    sources = [number for number, part in enumerate(stage.parts) if part is not None]
    moves = [BlockMove(into, source, source.box) for source in (_outputs_of(arrays, last, one) for one in sources)]
    words = tuple(arrays.word(source, "output", last) for source in sources if source != own)
    made = None if by_python else gathered.native(arrays.labels, Word(LOSS))
    calls = joined(_moved(arrays, moves), made, check_of_labels())

    def work(batch: Batch, row: Row) -> None:
        for move in moves:
            move.make()
        row.loss, row.correct = gathered.make(batch.labels)
        row.sums = loss.sums(gathered.outputs, batch.labels) if evaluates else ()

    return LossSteps([Step(words, calls, work)])


def _separate_loss(arrays: FlightArrays, logits: Held, error: Held, class_weights: Array | None) -> LossSteps:
    statistics, of_all, sources, words = _statistics(arrays)
    units = arrays.network.stages[-1].layers[-1].operation.output_shape[0]
    head = SeparateHead(logits, error.array, units, statistics, arrays.network.backend, class_weights)
    labels, result = arrays.labels, Word(LOSS)
    found = Step(
        (), joined(head.native_make(labels, result), check_of_labels()), lambda batch, row: head.make(batch.labels),
        arrays.post("statistics", 0, set(sources)),
    )  # fmt: skip

    def count(batch: Batch, row: Row) -> None:
        row.loss, row.correct = head.count(batch.labels, of_all)

    return LossSteps([found], [Step(words, head.native_count(labels, of_all, result), count)])


Statistics: TypeAlias = NDArray[np.float64]


def _statistics(arrays: FlightArrays) -> tuple[Statistics, list[Statistics], list[int], tuple[Words, ...]]:
    """Returns this partition's statistics of the head, those of all parts, whose they are, and what tells of them."""
    own = arrays.neighbours.own
    sources = [number for number, part in enumerate(arrays.network.stages[-1].parts) if part is not None]
    of_all: list[Statistics] = [arrays.shown(source, "statistics", 0) for source in sources]  # type: ignore[misc]
    words = tuple(arrays.word(source, "statistics", 0) for source in sources if source != own)
    return of_all[sources.index(own)], of_all, sources, words


def _sharing(arrays: FlightArrays, error: Array) -> Step:
    """Turns the derivative of the mean over a flight into what the flight adds to that of its whole batch."""
    compiled = compiled_if(arrays.network.backend, "losses")
    calls: list[Call] | None = None
    if compiled is not None:
        calls = [NativeCall(compiled.scale_error, (error, Word(SHARE)))]

    def work(batch: Batch, row: Row) -> None:
        np.multiply(error, np.float32(row.share), out=error)

    return Step((), calls, work)


def _exchanged_loss(arrays: FlightArrays, logits: Held, error: Held, class_weights: Array | None) -> list[Step]:
    statistics, of_all, sources, words = _statistics(arrays)
    units = arrays.network.stages[-1].layers[-1].operation.output_shape[0]
    head = ExchangedHead(logits, error.array, units, statistics, arrays.network.backend, class_weights)
    found = Step(
        (), head.native_find(arrays.labels), lambda batch, row: head.find(batch.labels),
        arrays.post("statistics", 0, set(sources)),
    )  # fmt: skip
    calls = joined(head.native_make(arrays.labels, of_all, Word(LOSS)), check_of_labels())

    def work(batch: Batch, row: Row) -> None:
        row.loss, row.correct = head.make(batch.labels, of_all)

    return [found, Step(words, calls, work)]


def _backward(arrays: FlightArrays, number: int) -> Step:
    """Adds up the error at a stage's outputs and goes back through it."""
    network, own = arrays.network, arrays.neighbours.own
    error = arrays.output_errors[number]
    assert error is not None
    words: list[Words] = []
    moves: list[Move] = []
    last = number + 1 == len(network.stages)
    if not last and error is not arrays.input_errors[number + 1]:
        readers = network.readers(number, own)
        whole = bool(readers) and readers[0][1] == error.box
        if not whole:
            moves.append(Clear(error))  # some outputs may be read by nobody
        for place, (reader, box) in enumerate(readers):
            moves.append(BlockMove(error, _error_of(arrays, number + 1, reader), box, bool(place) or not whole))
            if reader != own:
                words.append(arrays.word(reader, "error", number + 1))
    calls, errors = _moved(arrays, moves), error.array
    bound_operations = arrays.operations[number]
    for place in reversed(range(len(bound_operations))):
        bound = bound_operations[place]
        inputs = arrays.inputs_of(number, place)
        calls = joined(
            calls,
            bound.operation.native_backward(
                arrays.batch, bound.weights, bound.gradients, bound.buffers, errors, inputs, bound.needs_input_error
            ),
        )
        errors = bound.buffers.input_error

    def work(batch: Batch, row: Row) -> None:
        for move in moves:
            move.make()
        back: Array | None = error.array
        for place in reversed(range(len(bound_operations))):
            bound, inputs = bound_operations[place], arrays.inputs_of(number, place)
            inputs = batch.images if inputs is arrays.images else inputs
            assert back is not None
            back = bound.operation.backward(
                back, inputs, bound.weights, bound.gradients, bound.buffers, bound.needs_input_error
            )

    posts: list[Post] = []
    if number > network.backward_stop:
        posts += arrays.post("error", number, {source for source, _ in network.sources(number, own)})
    for tensor, owners in network.stages[number].shared.items():
        posts += arrays.post("partial", tensor, {owner.partition for owner in owners})
    return Step(tuple(words), calls, work, posts)


def _sum_steps(arrays: FlightArrays) -> list[Step]:
    """Sums the gradients of tensors that several partitions hold, in the order of partitions, by the rows' owners.

    First all sums are computed and shown, the last layer's first; then all are taken over into the gradient.
    """
    network, own = arrays.network, arrays.neighbours.own
    sums: list[Step] = []
    taken: list[Step] = []
    places = {held.tensor: place for place, held in enumerate(_held_of(arrays))}
    for number in reversed(range(len(network.stages))):
        stage = network.stages[number]
        if stage.parts[own] is None:
            continue
        for tensor, owners in stage.shared.items():
            sharers = [one for one, part in enumerate(stage.parts) if part is not None]
            for owner, rows in owners:
                if owner == own:
                    sums.append(_sum(arrays, tensor, sharers, rows))
            taken.append(_take_sums(arrays, tensor, [(owner, rows) for owner, rows in owners], places[tensor]))
    return [*sums, *taken]


def _sum(arrays: FlightArrays, tensor: int, sharers: Sequence[int], rows: tuple[int, int]) -> Step:
    """Sums the rows of a shared tensor that this partition owns."""
    own, shape = arrays.neighbours.own, arrays.network.tensors[tensor].shape
    size = int(np.prod(shape[1:], dtype=np.int64))
    box: Box = ((rows[0] * size, rows[1] * size),)
    total = Held(_flat(arrays.shown(own, "sum", tensor)), box)
    moves: list[BlockMove] = []
    for one in sharers:
        (first, last), *_ = arrays.box(one, "partial", tensor)
        partial = Held(_flat(arrays.shown(one, "partial", tensor)), ((first * size, last * size),))
        moves.append(BlockMove(total, partial, box, bool(moves)))
    words = tuple(arrays.word(one, "partial", tensor) for one in sharers if one != own)
    return _moving(arrays, words, moves, "sum", tensor, set(sharers))


def _take_sums(arrays: FlightArrays, tensor: int, owners: Sequence[tuple[int, tuple[int, int]]], place: int) -> Step:
    """Copies the sums of all rows into this partition's gradient."""
    own, shape = arrays.neighbours.own, arrays.network.tensors[tensor].shape
    size = int(np.prod(shape[1:], dtype=np.int64))
    target = Held(_flat(arrays.gradients[place]), ((0, shape[0] * size),))
    moves: list[Move] = []
    for owner, (start, stop) in owners:
        box: Box = ((start * size, stop * size),)
        moves.append(BlockMove(target, Held(_flat(arrays.shown(owner, "sum", tensor)), box), box))
    words = tuple(arrays.word(owner, "sum", tensor) for owner, _ in owners if owner != own)
    return _moving(arrays, words, moves, None, tensor, set())


def _moving(
    arrays: FlightArrays, words: tuple[Words, ...], moves: Sequence[Move], kind: Kind | None, number: int,
    readers: set[int],
) -> Step:  # fmt: skip
    def work(batch: Batch, row: Row) -> None:
        for move in moves:
            move.make()

    return Step(words, _moved(arrays, moves), work, [] if kind is None else arrays.post(kind, number, readers))


Move: TypeAlias = BlockMove | Clear


def _moved(arrays: FlightArrays, moves: Sequence[Move]) -> list[Call] | None:
    return joined(*(move.native(arrays.network.backend) for move in moves))


def _outputs_of(arrays: FlightArrays, number: int, partition: int) -> Held:
    """Returns what a partition shows of a stage's outputs; for this one, its own."""
    own = arrays.outputs[number]
    if partition == arrays.neighbours.own and own is not None:
        return own
    box = arrays.box(partition, "output", number)
    return Held(arrays.shown(partition, "output", number), box)  # type: ignore[arg-type]


def _error_of(arrays: FlightArrays, number: int, partition: int) -> Held:
    """Returns what a partition found of the error at a stage's inputs."""
    own = arrays.input_errors[number]
    if partition == arrays.neighbours.own and own is not None:
        return own
    box = arrays.box(partition, "error", number)
    return Held(arrays.shown(partition, "error", number), box)  # type: ignore[arg-type]


def _flat(array: NDArray[np.generic]) -> Array:
    """Returns an array as one example with one axis."""
    return array.reshape(1, array.size)  # type: ignore[return-value]


def _held_of(arrays: FlightArrays) -> tuple[HeldTensor, ...]:
    return MemberTensors(arrays.network, arrays.neighbours.own).held
