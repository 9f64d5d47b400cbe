"""Raw values to those that a model is trained on: one factor and one shift for a whole data set, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError
from adamctl.roles.data.core import Indices
from adamctl.roles.data.readers.source import FileSplit, Source, check_finite, decodes
from adamctl.roles.data.sets.skipping import SkippingSource

STATISTICS_EXAMPLES_MAX: Final = 2048
"""For sources that decode files, mean and deviation come from this many evenly spaced training examples."""
_BLOCK_EXAMPLES: Final = 2048
_DEVIATION_MIN: Final = 1e-6

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Scaling:
    """ready = raw * factor + shift, in float32."""

    factor: float = 1.0
    shift: float = 0.0

    def apply(self, values: Floats) -> None:
        """Scales in place."""
        if self.factor != 1.0:
            np.multiply(values, np.float32(self.factor), out=values)
        if self.shift != 0.0:
            np.add(values, np.float32(self.shift), out=values)

    def write(self, raw: NDArray[Any], out: Floats) -> None:
        """Writes scaled values of any type into `out`, of the same shape: bit for bit what `apply` makes of them.

        Two passes of numpy, which a third of a second suffices for a billion bytes: a compiled one gains little.
        """
        if self.factor != 1.0:
            np.multiply(raw, np.float32(self.factor), out=out, dtype=np.float32, casting="unsafe")
        else:
            np.copyto(out, raw, casting="unsafe")
        if self.shift != 0.0:
            np.add(out, np.float32(self.shift), out=out)


def scaling_for(scale: str, source: Source, train: Indices) -> Scaling:
    """Returns the scaling for `DataConfig.scale`.

    `train` are the file indices of the training examples, without those held out. The result is equal on every server.
    """
    if scale == "none":
        return Scaling()
    if scale == "unit":
        return Scaling(1.0 / source.value_max, 0.0)
    mean, deviation = mean_and_deviation(source, train)
    return Scaling(1.0 / max(deviation, _DEVIATION_MIN), -mean / max(deviation, _DEVIATION_MIN))


def mean_and_deviation(source: Source, indices: Indices, split: FileSplit = "train") -> tuple[float, float]:
    """Returns mean and standard deviation of the raw values of examples, one of each over all pixels.

    Block by block: counts, means and squared deviations combine as in Chan, Golub, LeVeque 1979, eq. 2.1.
    Raises DamagedDataError.
    """
    if decodes(source) and len(indices) > STATISTICS_EXAMPLES_MAX:
        indices = indices[:: -(-len(indices) // STATISTICS_EXAMPLES_MAX)]
    total, mean, squares = 0, 0.0, 0.0
    elements = prod(source.example_shape)
    buffer = np.empty((min(_BLOCK_EXAMPLES, len(indices)), elements), np.float32)
    for start in range(0, len(indices), _BLOCK_EXAMPLES):
        block = indices[start : start + _BLOCK_EXAMPLES]
        values = buffer[: len(block)]
        source.load(split, block, values.reshape(len(block), *source.example_shape))
        if isinstance(source, SkippingSource):
            values = values[~source.damaged(split, block)]
            if not len(values):
                continue
        elif source.dtype.kind == "f":
            check_finite(values, block, f"{source.origin}: {split}")
        block_mean = float(values.mean(dtype=np.float64))
        block_squares = float(values.var(dtype=np.float64)) * values.size
        delta = block_mean - mean
        squares += block_squares + delta * delta * total * values.size / (total + values.size)
        total += values.size
        mean += delta * values.size / total
    if not total:
        raise DamagedDataError(f"{source.origin}: every example of {split} that was read for its mean is damaged")
    return mean, sqrt(squares / total)
