"""What a run measured over its passes and over its seconds, from its folder: for `adamctl plot`."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model.metric import TOP_1, value_of
from adamctl.roles.coordinator.records import METRICS_NAME
from adamctl.wire.unreadable import UNREADABLE


class Point(NamedTuple):
    """A value.

    Attributes:
        passes: over the training data by then; evaluations of a batch algorithm, each of which is one pass.
        seconds: of training.
    """

    passes: float
    seconds: float
    value: float


@dataclass
class Curves:
    """What is known of a run, each in the order of its passes.

    Attributes:
        algorithm: the batch algorithm; "" under the rules of Downpour.
        training: its loss; under Downpour of the most recent ranges; of a batch algorithm with the L2 term, at its
            commits.
        split: what is held out; `held_out` is the loss there, `metric_values` are those of the `metric`.
        rate: training examples per second, the mean since training began.
        staleness: median in pushes of other workers; a batch algorithm has none.
        waiting_share: of the compute threads' time, waiting for data.
    """

    algorithm: str = ""
    split: str = "test"
    training: list[Point] = field(default_factory=list)
    held_out: list[Point] = field(default_factory=list)
    metric_values: list[Point] = field(default_factory=list)
    rate: list[Point] = field(default_factory=list)
    staleness: list[Point] = field(default_factory=list)
    waiting_share: list[Point] = field(default_factory=list)
    metric: str = TOP_1.name


class _Batch(msgspec.Struct):
    algorithm: str = ""
    evaluations: float = 0.0


class _Line(msgspec.Struct):
    """A line of metrics, as far as it is read."""

    kind: str = ""
    train_seconds: float = 0.0
    loss: float | None = None
    top1: float | None = None
    examples: int = 0
    images_per_s: float | None = None
    staleness_p50: float | None = None
    waiting_share: float | None = None
    evaluations: float = 0.0
    passes: float = msgspec.field(name="pass", default=0.0)
    pass_number: float = 0.0
    pass_share: float = 0.0
    split: str = ""
    batch: _Batch | None = None
    metric: str = TOP_1.name
    metric_value: float | None = None


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
    if line.kind == "evaluation":
        curves.split = line.split or curves.split
        _add(curves.held_out, line.passes, line.train_seconds, line.loss)
        curves.metric = line.metric
        value = value_of(line.metric, line.top1, line.metric_value)
        _add(curves.metric_values, line.passes, line.train_seconds, value)
    elif line.kind == "iteration":
        _add(curves.training, line.evaluations, line.train_seconds, line.loss)
    elif line.kind == "progress":
        passes = line.pass_number + line.pass_share
        if line.batch is not None:
            curves.algorithm, passes = line.batch.algorithm, line.batch.evaluations
        elif line.loss is not None:
            _add(curves.training, passes, line.train_seconds, line.loss)
        if line.examples and line.train_seconds > 0:
            _add(curves.rate, passes, line.train_seconds, line.images_per_s)
            _add(curves.staleness, passes, line.train_seconds, line.staleness_p50)
            _add(curves.waiting_share, passes, line.train_seconds, line.waiting_share)


def _add(points: list[Point], passes: float, seconds: float, value: float | None) -> None:
    """Adds a point. A run that was resumed goes back to its checkpoint: what came after that is not of its curve."""
    while points and points[-1].passes >= passes:
        points.pop()
    if value is not None and math.isfinite(value):
        points.append(Point(passes, seconds, value))
