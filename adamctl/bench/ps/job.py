"""Values of the parameter server benchmark: blocks of whole numbers, whose sums show what was applied.

Every push of weights adds the same pattern, so a shard with n pushes holds exactly n times the pattern, as long as its
numbers stay below 2^24; a shard torn between two pushes does not. Factors are small whole numbers, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adamctl.config.records import LayoutRecord
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.kernels.operation import Array
from adamctl.model.layout import ELEMENT_BYTES, SHARD_BYTES_MAX, ParameterLayout, Tensor, cut_layout
from adamctl.wire.constants import BODY_BYTES_MAX

PATTERN = 5
"""The pattern of weights is 1, 2, ... PATTERN, repeated."""
EXACT_MAX = 1 << 24
FACTOR_MAX = 2
BLOCK_BYTES_MAX = BODY_BYTES_MAX - 1024
"""Longest block that is one row: a row is sent in one frame, of which a little is not values."""
ROUNDED_OFF = 2.0**-6  # largest relative difference of two numbers rounded to bfloat16


@dataclass(frozen=True)
class FactorsSize:
    """Size of the dense layer that factors are pushed to, and the examples of one push."""

    outputs: int = 4096
    inputs: int = 4096
    examples: int = 128

    @property
    def updates(self) -> int:
        """Parameter updates of one push, as Adam 4.3.2 counts them."""
        return self.examples * self.outputs * self.inputs


def weights_record(model_bytes: int, block_bytes: int, servers: int) -> LayoutRecord:
    """Returns a layout of blocks, each its own shard, of about `model_bytes` in total.

    Raises:
        ConfigurationError: a block is not a whole number of elements, or is longer than the model.
    """
    if block_bytes < ELEMENT_BYTES or block_bytes % ELEMENT_BYTES:
        raise ConfigurationError(f"--block-kib: expected whole float32 elements; found {block_bytes} bytes")
    blocks = round(model_bytes / block_bytes)
    if blocks < 1:
        raise ConfigurationError(
            f"--block-kib: expected at most the model's {model_bytes / 1024:,g}; found {block_bytes / 1024:,g}"
        )
    size = block_bytes // ELEMENT_BYTES
    if 2 * block_bytes > SHARD_BYTES_MAX:  # two rows do not fit into a shard: a row is a block
        return LayoutRecord((Tensor("blocks", 0, (blocks, size), 0, "zeros", 0.0),), servers)
    step = -(-size // 16) * 16
    tensors = tuple(Tensor(f"block-{n}", 0, (1, size), n * step, "zeros", 0.0) for n in range(blocks))
    return LayoutRecord(tensors, servers)


def check_block(block_bytes: int) -> None:
    """Raises ConfigurationError if a block is too long to be pushed."""
    if block_bytes > BLOCK_BYTES_MAX:
        raise ConfigurationError(
            f"--block-kib: expected at most {BLOCK_BYTES_MAX // 1024:,}, since a block is sent in one frame; found "
            f"{block_bytes / 1024:,g}"
        )


def factors_record(size: FactorsSize, servers: int) -> LayoutRecord:
    return LayoutRecord((Tensor("dense", 0, (size.outputs, size.inputs), 0, "zeros", 0.0),), servers)


def layout_of(record: LayoutRecord) -> ParameterLayout:
    return cut_layout(record.tensors, record.servers_expected)


def pattern(size: int) -> Array:
    """Returns the values that a push adds to a flat vector of `size` elements."""
    return (np.arange(size) % PATTERN + 1).astype(np.float32)


def factors(size: FactorsSize) -> tuple[Array, Array]:
    """Returns errors [examples, outputs] and activations [examples, inputs] of small whole numbers."""
    generator = np.random.default_rng(1)

    def some(columns: int) -> Array:
        drawn = generator.integers(-FACTOR_MAX, FACTOR_MAX, (size.examples, columns), endpoint=True)
        return drawn.astype(np.float32)

    return some(size.outputs), some(size.inputs)


def check_weights(layout: ParameterLayout, flat: Array, pushes: int) -> None:
    """Raises RunFailedError unless every shard holds exactly `pushes` times the pattern."""
    if PATTERN * pushes >= EXACT_MAX:
        raise RunFailedError(f"{pushes} pushes are more than float32 counts exactly; run for fewer --seconds")
    added = pattern(layout.flat_size) * np.float32(pushes)
    for shard in layout.shards:
        part = slice(shard.offset, shard.offset + shard.size)
        if not np.array_equal(flat[part], added[part]):
            wrong = int(np.flatnonzero(flat[part] != added[part])[0])
            raise RunFailedError(
                f"after {pushes} pushes, element {wrong} of shard {shard.index} is {flat[part][wrong]:g}; "
                f"expected {added[part][wrong]:g}"
            )


def check_factors(layout: ParameterLayout, flat: Array, size: FactorsSize, pushes: int) -> None:
    """Raises RunFailedError unless the layer is exactly `pushes` times the product."""
    if FACTOR_MAX**2 * size.examples * pushes >= EXACT_MAX:
        raise RunFailedError(f"{pushes} pushes are more than float32 counts exactly; run for fewer --seconds")
    errors, activations = factors(size)
    product = (errors.T @ activations).reshape(-1) * np.float32(pushes)
    found = flat[: layout.tensors[0].size]
    if not np.array_equal(found, product):
        wrong = int(np.flatnonzero(found != product)[0])
        raise RunFailedError(f"after {pushes} pushes, weight {wrong} is {found[wrong]:g}; expected {product[wrong]:g}")


def check_whole(layout: ParameterLayout, flat: Array, *, every_element: bool, rounded: bool = False) -> None:
    """Raises RunFailedError if a shard is torn: neither n times the pattern for one n.

    With `every_element` false, only each shard's ends are checked, which costs nothing. Values that arrived `rounded`
    to 16 bits are compared within rounding.
    """
    off = ROUNDED_OFF if rounded else 0.0
    base = pattern(layout.flat_size) if every_element else None
    for shard in layout.shards:
        first, last = shard.offset, shard.offset + shard.size - 1
        pushes = flat[first] / (1 + first % PATTERN)
        whole = pushes * (1 + last % PATTERN)
        torn = abs(flat[last] - whole) > off * whole
        if base is not None and not torn:
            part = slice(first, last + 1)
            torn = not np.allclose(flat[part], base[part] * pushes, rtol=off, atol=0)
        if torn:
            raise RunFailedError(f"shard {shard.index} is torn: a pull mixed two of its versions")
