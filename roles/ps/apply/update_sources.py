"""Returns the content of an update's source as arrays over the body of its push; nothing is copied."""

from __future__ import annotations

import numpy as np

from adamctl.kernels.numeric.convert import Narrow, type_of
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import address
from adamctl.roles.ps.core.push import Source, Update
from adamctl.roles.ps.core.shard import Batch


def values_of(source: Source) -> Array | Narrow:
    """Returns the rows of a gradient or delta as a flat array."""
    if source.arrays is None:
        header = source.header
        size = (header.row_stop - header.row_start) * source.row_size
        source.arrays = (np.frombuffer(source.push.body, type_of(header.dtype), size, header.offset),)
    return source.arrays[0]


def address_of(source: Source) -> int:
    """Returns the address where the tensor's first row would be, for a float32 gradient or delta."""
    if source.address is None:
        source.address = address(values_of(source)) - 4 * source.header.row_start * source.row_size
    return source.address


def part_of(update: Update, batch: Batch) -> Array | Narrow:
    """Returns the shard's part of a gradient or delta."""
    source, shard = update.source, batch.shard
    assert source is not None
    start = (shard.row_start - source.header.row_start) * shard.row_size
    return values_of(source)[start : start + shard.size]


def factors_of(source: Source) -> tuple[Array | Narrow, ...]:
    """Returns errors [k, rows] and activations [k, inputs]."""
    if source.arrays is None:
        header, body = source.header, source.push.body
        rows = header.row_stop - header.row_start
        kind = type_of(header.dtype)
        errors = np.frombuffer(body, kind, header.examples * rows, header.offset)
        activations = np.frombuffer(body, kind, header.examples * source.row_size, header.activations_offset)
        source.arrays = (errors.reshape(-1, rows), activations.reshape(-1, source.row_size))
    return source.arrays
