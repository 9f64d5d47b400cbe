"""Carries out work on a batch algorithm's vectors, shard by shard, in an apply thread (docs/decisions/0032)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from adamctl.kernels.numeric.accumulate import Accumulator, accumulate
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.operation import Array
from adamctl.model.commands import ACCUMULATOR
from adamctl.roles.ps.core.shard_message import new_array
from adamctl.roles.ps.core.vector_requests import Addition, Commands, Opening, VectorBatch, vectors_of
from adamctl.wire.constants import ErrorCode

log = logging.getLogger(__name__)

FAILED = "the server failed while it worked on vectors; see its log"


class VectorApplier:
    """What one apply thread does with work on vectors; also usable without a thread."""

    def __init__(self, new: Callable[[int], Array] = new_array) -> None:
        """`new`: makes a flat float32 array."""
        self._new = new
        self._scratch: tuple[PreparedRound | None, Any] = (None, None)  # of the round before, for its next shard

    def carry_out(self, batches: Sequence[VectorBatch]) -> None:
        """Does the work and sets what each batch says its thread sets."""
        for batch in batches:
            try:
                request = batch.request
                if isinstance(request, Opening):
                    self._open(batch)
                elif isinstance(request, Addition):
                    self._add(batch, request)
                elif isinstance(request, Commands):
                    self._run(batch, request)
            except Exception:  # one shard's failure must not affect the others
                log.exception("work on the vectors of shard %d could not be done", batch.shard.index)
                batch.failed(ErrorCode.INTERNAL, FAILED)

    def _open(self, batch: VectorBatch) -> None:
        accumulator = batch.arrays.get(ACCUMULATOR)
        if accumulator is None:
            batch.made[ACCUMULATOR] = np.zeros(batch.shard.size, np.int64)
        else:
            accumulator.fill(0)

    def _add(self, batch: VectorBatch, request: Addition) -> None:
        """Adds a gradient; or nothing, if an element is too large for all bundles to have such elements."""
        shard, vectors = batch.shard, vectors_of(batch.shard)
        part = np.frombuffer(request.body, "<f4", shard.size, request.places[shard.index])
        sums: Any = batch.arrays[ACCUMULATOR]
        batch.begun = True
        largest = accumulate(Accumulator(sums, vectors.fraction_bits), part, request.weight, vectors.bundles)
        if largest is not None and isfinite(largest):
            what = f"an element of size {largest:.3g} is too large; evaluate again with fewer fraction bits"
            batch.failed(ErrorCode.OUT_OF_RANGE, what)
        elif largest is not None:
            batch.failed(ErrorCode.NOT_FINITE, "the gradient holds NaN or infinite values")

    def _run(self, batch: VectorBatch, request: Commands) -> None:
        for name in batch.new:
            batch.made[name] = self._new(batch.shard.size)
        for name in batch.copied:
            batch.made[name] = self._new(batch.shard.size)
            batch.made[name][:] = batch.arrays[name]
        arrays: dict[str, Any] = {**batch.arrays, **batch.made}
        sums, totals = arrays.pop(ACCUMULATOR, None), request.prepared.new_totals()
        accumulator = Accumulator(sums, vectors_of(batch.shard).fraction_bits) if sums is not None else None
        batch.begun = True
        prepared, scratch = self._scratch
        totals.scratch = scratch if prepared is request.prepared else None
        request.prepared.run(arrays, batch.shard.row_size, totals, accumulator)
        self._scratch, totals.scratch = (request.prepared, totals.scratch), None
        batch.found = totals
