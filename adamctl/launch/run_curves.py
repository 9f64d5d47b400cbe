"""The losses of a run over its passes and over its seconds, from its folder: for `adamctl run plot`."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.roles.coordinator.records import METRICS_NAME
from adamctl.wire.unreadable import UNREADABLE


class Point(NamedTuple):
    """A loss.

    Attributes:
        passes: over the training data by then; evaluations of a batch algorithm.
        seconds: of training.
    """

    passes: float
    seconds: float
    loss: float


@dataclass
class Curves:
    """What is known of a run, in the order of its passes.

    Attributes:
        algorithm: the batch algorithm; "" under the rules of Downpour.
        training: under Downpour of the most recent ranges; of a batch algorithm with the L2 term, at its commits.
        held_out: on `split`.
    """

    algorithm: str = ""
    split: str = "test"
    training: list[Point] = field(default_factory=list)
    held_out: list[Point] = field(default_factory=list)


class _Batch(msgspec.Struct):
    algorithm: str = ""


class _Line(msgspec.Struct):
    """A line of metrics, as far as it is read."""

    kind: str = ""
    train_seconds: float = 0.0
    loss: float | None = None
    evaluations: float = 0.0
    passes: float = msgspec.field(name="pass", default=0.0)
    pass_number: float = 0.0
    pass_share: float = 0.0
    split: str = ""
    batch: _Batch | None = None


def read_curves(folder: Path) -> Curves:
    """Reads the curves of a run. The run may be in progress: the last line may be incomplete.

    Raises:
        ConfigurationError: its metrics cannot be read, or have no loss yet.
    """
    file, decoder, curves = folder / METRICS_NAME, msgspec.json.Decoder(_Line), Curves()
    try:
        with file.open("rb") as stream:
            for text in stream:
                with suppress(*UNREADABLE):
                    _take(curves, decoder.decode(text))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    if not curves.training and not curves.held_out:
        raise ConfigurationError(f"{file}: expected a loss; found none. Let the run train for some seconds first")
    return curves


def _take(curves: Curves, line: _Line) -> None:
    loss = line.loss if line.loss is not None and math.isfinite(line.loss) else math.nan
    if line.kind == "evaluation":
        curves.split = line.split or curves.split
        _add(curves.held_out, Point(line.passes, line.train_seconds, loss))
    elif line.kind == "iteration":
        _add(curves.training, Point(line.evaluations, line.train_seconds, loss))
    elif line.kind == "progress":
        if line.batch is not None:
            curves.algorithm = line.batch.algorithm
        elif not math.isnan(loss):
            _add(curves.training, Point(line.pass_number + line.pass_share, line.train_seconds, loss))


def _add(points: list[Point], point: Point) -> None:
    """Adds a point. A run that was resumed goes back to its checkpoint: what came after that is not of its curve."""
    while points and points[-1].passes >= point.passes:
        points.pop()
    if not math.isnan(point.loss):
        points.append(point)
