"""Cuts a push into envelopes: one or more frames per server, each within the limits of the wire format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.convert import format_of
from adamctl.kernels.rules.factors import gradient_rows
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.roles.ps.client.push_set import PushSet, TensorUpdate
from adamctl.roles.ps.client.route_table import Route
from adamctl.roles.ps.client.routing import JobRouting, Run, runs_of
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES, BODY_BYTES_MAX, UpdateKind
from adamctl.wire.messages import PushPart, PushRequest, PushSource

HEADER_BYTES_MAX = 56 << 10  # a typed header may have 64 KiB
HEADER_BYTES_PER_PART = 32
HEADER_BYTES_PER_SOURCE = 64
HEADER_BYTES_PER_EPOCH = 12
ROUNDED_BYTES_MAX = 4 << 20  # of 16-bit gradients: one envelope is sent while the next is rounded

_PADDING = bytes(BODY_ALIGNMENT_BYTES)


@dataclass
class Envelope:
    """Parts of one push for one server, sent as one frame.

    Attributes:
        route: the server that is the primary of all its shards, and the connection they travel on.
        body: buffers in order, padding included; `body_bytes` their sum.
    """

    route: Route
    sources: list[PushSource] = field(default_factory=list)
    parts: list[PushPart] = field(default_factory=list)
    body: list[Any] = field(default_factory=list)
    body_bytes: int = 0
    activations: dict[int, int] = field(default_factory=dict)
    """tensor -> offset of its activations in the body."""

    @property
    def server(self) -> str:
        return self.route.server

    def request(self, push: PushSet, routing: JobRouting, unanswered: set[int] | None = None) -> PushRequest:
        """Returns the frame's header for all its shards or only those still unanswered."""
        parts = self.parts if unanswered is None else [part for part in self.parts if part.shard in unanswered]
        epochs = routing.epochs_of(part.shard for part in parts)
        place = push.place or ()
        return PushRequest(
            routing.job,
            epochs,
            push.learning_rate,
            push.steps,
            push.examples,
            tuple(self.sources),
            tuple(parts),
            *place,
        )

    def append(self, values: np.ndarray[Any, Any]) -> int:
        """Adds a buffer at the next multiple of 64 bytes and returns its offset."""
        padding = -self.body_bytes % BODY_ALIGNMENT_BYTES
        if padding:
            self.body.append(_PADDING[:padding])
        offset = self.body_bytes + padding
        self.body.append(values)
        self.body_bytes = offset + values.nbytes
        return offset

    def arrays(self) -> dict[int, np.ndarray[Any, Any]]:
        """Returns the arrays in the body by their offsets."""
        found: dict[int, np.ndarray[Any, Any]] = {}
        offset = 0
        for buffer in self.body:
            if isinstance(buffer, np.ndarray):
                found[offset] = buffer
            offset += memoryview(buffer).nbytes
        return found

    def has_room(self, more_bytes: int, more_parts: int, more_sources: int = 1) -> bool:
        header_bytes = (
            HEADER_BYTES_PER_PART + HEADER_BYTES_PER_EPOCH  # at worst a bucket for each part
        ) * (len(self.parts) + more_parts) + HEADER_BYTES_PER_SOURCE * (len(self.sources) + more_sources)
        body_bytes = self.body_bytes + more_bytes + (1 + more_sources) * BODY_ALIGNMENT_BYTES
        return header_bytes <= HEADER_BYTES_MAX and body_bytes <= BODY_BYTES_MAX


_EMPTY = Envelope(Route("", 0))


def cut_push(
    push: PushSet, sequences: list[int], routing: JobRouting, only: Iterable[int] | None = None
) -> list[Envelope]:
    """Cuts a push into envelopes; `sequences` has its number for every shard of the layout.

    `only`: send just these shards; they have moved to other servers.

    Raises:
        ConfigurationError: one row of a tensor is larger than a frame's body may be.
    """
    base_pushes = push.base.pushes.tolist() if push.base is not None else [0] * len(sequences)
    base_sequences = push.base.sequences.tolist() if push.base is not None else [0] * len(sequences)
    envelopes: list[Envelope] = []
    for route, runs in _runs(push, routing, only):
        envelope = Envelope(route)
        envelopes.append(envelope)
        for number, run in enumerate(runs):
            update = push.updates[run.tensor]
            if not _fits_alone(update, run):
                update = _as_gradient(update, run)
            full = not envelope.has_room(_bytes(update, run, envelope), len(run.shards))
            full = full or _rounded_enough(update, run, envelope)
            if envelope.parts and (full or _better_apart(update, runs, number, envelope)):
                envelope = Envelope(route)
                envelopes.append(envelope)
            source = len(envelope.sources)
            envelope.sources.append(_source(update, run, envelope))
            envelope.parts.extend(
                PushPart(shard, sequences[shard], source, base_pushes[shard], base_sequences[shard])
                for shard in run.shards
            )
    return envelopes


def _runs(push: PushSet, routing: JobRouting, only: Iterable[int] | None) -> Iterator[tuple[Route, list[Run]]]:
    if only is None:
        for route, by_tensor in routing.runs.items():
            found = [run for tensor, runs in by_tensor.items() if tensor in push.updates for run in runs]
            if found:
                yield route, found
        return
    by_route: dict[Route, list[int]] = {}
    for shard in sorted(only):
        by_route.setdefault(routing.route_of(shard), []).append(shard)
    for route, shards in by_route.items():
        yield route, list(runs_of(routing.layout, shards))


def _bytes(update: TensorUpdate, run: Run, envelope: Envelope) -> int:
    if update.activations is None:
        return run.size * update.values.itemsize
    shared = 0 if run.tensor in envelope.activations else update.activations.nbytes
    return len(update.values) * (run.row_stop - run.row_start) * update.values.itemsize + shared


def _rounded_enough(update: TensorUpdate, run: Run, envelope: Envelope) -> bool:
    """Whether to send an envelope of 16-bit gradients before it is full, since the rest is not rounded yet."""
    is_rounded = update.activations is None and update.values.itemsize < ELEMENT_BYTES
    return is_rounded and envelope.body_bytes + _bytes(update, run, envelope) > ROUNDED_BYTES_MAX


def _better_apart(update: TensorUpdate, runs: list[Run], number: int, envelope: Envelope) -> bool:
    """Whether all runs of a tensor, which share activations, fit into a new envelope but not into this one.

    Asked for run `number`; a tensor's runs follow each other.
    """
    if update.activations is None:
        return False
    run = runs[number]
    together = [run]
    if number == 0 or runs[number - 1].tensor != run.tensor:
        together = list(takewhile(lambda other: other.tensor == run.tensor, islice(runs, number, None)))
    rows = sum(one.row_stop - one.row_start for one in together)
    needed_bytes = len(update.values) * rows * update.values.itemsize + update.activations.nbytes
    parts = sum(len(one.shards) for one in together)
    return not envelope.has_room(needed_bytes, parts, len(together)) and Envelope(envelope.route).has_room(
        needed_bytes, parts, len(together)
    )


def _fits_alone(update: TensorUpdate, run: Run) -> bool:
    if _EMPTY.has_room(_bytes(update, run, _EMPTY), len(run.shards)):
        return True
    if update.activations is None:
        size_bytes = _bytes(update, run, _EMPTY)
        raise ConfigurationError(
            f"tensor {run.tensor}, rows {run.row_start} to {run.row_stop}: {size_bytes} bytes do not fit into a frame "
            f"of {BODY_BYTES_MAX} bytes; use a layer with fewer inputs, or split it in two"
        )
    return False


def _as_gradient(update: TensorUpdate, run: Run) -> TensorUpdate:
    """Multiplies factors on the client: with very many examples they are larger than their product."""
    assert update.activations is not None
    rows = run.row_stop - run.row_start
    product = np.empty((rows, update.activations.shape[1]), np.float32)
    factors = np.asarray(update.values, np.float32), np.asarray(update.activations, np.float32)
    gradient_rows(*factors, run.row_start, run.row_stop, product)
    return TensorUpdate(UpdateKind.GRADIENT, product)


def _source(update: TensorUpdate, run: Run, envelope: Envelope) -> PushSource:
    if update.activations is not None:
        errors = np.ascontiguousarray(update.values[:, run.row_start : run.row_stop])
        offset = envelope.append(errors)
        activations = envelope.activations.get(run.tensor)
        if activations is None:
            activations = envelope.activations[run.tensor] = envelope.append(update.activations)
        examples = len(errors)
        return PushSource(
            UpdateKind.FACTORS,
            run.tensor,
            run.row_start,
            run.row_stop,
            offset,
            examples,
            activations,
            format_of(errors),
        )
    values = update.values
    if values.ndim == 1:  # the whole tensor; a product made here is the run itself
        row_size = run.size // (run.row_stop - run.row_start)
        values = values[run.row_start * row_size : run.row_stop * row_size]
    offset = envelope.append(values)
    return PushSource(update.kind, run.tensor, run.row_start, run.row_stop, offset, dtype=format_of(values))
