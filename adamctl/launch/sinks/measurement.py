"""The lines of a run's metrics as measurements: numbers with names, in the order of steps. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from adamctl.wire.unreadable import UNREADABLE

NAMES: Final = {
    "loss": "loss/train",
    "train_top1": "top-1/train",
    "learning_rate": "learning_rate",
    "images_per_s": "rate/examples_per_s",
    "updates_per_s": "rate/updates_per_s",
    "waiting_share": "waiting_share",
    "staleness_p50": "staleness/p50",
    "staleness_p99": "staleness/p99",
    "gradient_age_p50": "gradient_age/p50",
    "gradient_age_p99": "gradient_age/p99",
    "step_wait_seconds": "step_wait_seconds",
}
"""A field of a line of kind `progress` -> the name of its measurement."""
ITERATION_NAMES: Final = {"loss": "loss/batch", "gradient_max": "batch/gradient_max", "step": "batch/step"}
"""Likewise for lines of kind `iteration`, of a batch algorithm; its loss has the L2 term."""
EVALUATION_NAMES: Final = {"loss": "loss", "top1": "top-1"}
"""Likewise for lines of kind `evaluation`; the split follows, as in `loss/test`."""
HELD_MAX: Final = 100
_OF_DOWNPOUR: Final = frozenset({"loss", "train_top1", "learning_rate", "updates_per_s"})
"""Fields that say nothing of a batch algorithm, or what its iterations say better."""


@dataclass(frozen=True)
class Measurement:
    """What was measured at one time.

    Attributes:
        kind: `progress`, `evaluation`, or `iteration` of a batch algorithm.
        time_s: Unix time in seconds.
        step: training examples processed by then; of a batch algorithm, evaluations of the whole batch.
        train_seconds: of training by then.
        values: name -> finite number.
    """

    kind: str
    time_s: float
    step: int
    train_seconds: float
    values: Mapping[str, float]


class WentBack(int):
    """The run went back to a checkpoint: measurements from this step on no longer count."""


class _Line(msgspec.Struct):
    """What is read of a line beside its numbers."""

    kind: str = ""
    time: float = 0.0
    train_seconds: float = 0.0
    passes_total: int = 0
    examples: int = 0
    examples_total: int = 0
    evaluations: float = 0.0
    passes: float = msgspec.field(name="pass", default=0.0)
    split: str = "test"
    state: str = ""
    batch: dict[str, Any] | None = None


class Measuring:
    """Turns the lines of one run's metrics, as plain values, into measurements.

    An evaluation is held until the next line of kind `progress`, which says how many examples a pass has.
    """

    def __init__(self) -> None:
        self.final_state = ""
        """The last state of the run, if it is a final one."""
        self._held: deque[tuple[_Line, dict[str, Any]]] = deque(maxlen=HELD_MAX)
        self._step = -1
        self._anew = False

    def begin_anew(self) -> None:
        """The metrics begin again: the next measurement is where the run is, whatever came before."""
        self._held.clear()
        self._anew = self._step >= 0

    def taken(self, fields: Mapping[str, Any]) -> Iterator[Measurement | WentBack]:
        """Yields what a line says; nothing if it is not a line of metrics."""
        try:
            line = msgspec.convert(fields, _Line, strict=False)
        except UNREADABLE:
            return
        if line.kind == "evaluation":
            self._held.append((line, dict(fields)))
        elif line.kind == "iteration":
            yield from self._at(round(line.evaluations))
            yield from _measured(line, round(line.evaluations), _numbers(fields, ITERATION_NAMES))
        elif line.kind == "progress":
            yield from self._progress(line, fields)

    def _progress(self, line: _Line, fields: Mapping[str, Any]) -> Iterator[Measurement | WentBack]:
        from adamctl.roles.coordinator.core.progress import FINAL_STATES

        self.final_state = line.state if line.state in FINAL_STATES else ""
        step = line.examples
        names: Mapping[str, str] = NAMES
        if line.batch is not None:
            step = int(line.batch.get("evaluations", 0))
            names = {field: name for field, name in NAMES.items() if field not in _OF_DOWNPOUR}
        if step > 0:  # before, nothing is measured, and a run that is resumed does not say yet where it is
            yield from self._at(step)
        while self._held:
            evaluation, its_fields = self._held.popleft()
            share = evaluation.passes / line.passes_total if line.passes_total else 0.0
            at = round(evaluation.passes if line.batch is not None else share * line.examples_total)
            numbers = _numbers(its_fields, _evaluation_names(its_fields))
            yield from _measured(evaluation, at, {f"{k}/{evaluation.split}": v for k, v in numbers.items()})
        if step > 0:
            yield from _measured(line, step, _numbers(fields, names))

    def _at(self, step: int) -> Iterator[WentBack]:
        if self._anew or step < self._step:
            yield WentBack(step)
        self._step, self._anew = step, False


def _evaluation_names(fields: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the names of what an evaluation measured: its metric is called as the loss calls it."""
    metric = fields.get("metric")
    if not isinstance(metric, str) or metric == EVALUATION_NAMES["top1"]:
        return EVALUATION_NAMES
    return {"loss": EVALUATION_NAMES["loss"], "metric_value": metric}


def _measured(line: _Line, step: int, values: Mapping[str, float]) -> Iterator[Measurement]:
    if values:
        yield Measurement(line.kind, line.time, step, line.train_seconds, values)


def _numbers(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """Returns the finite numbers among the fields, by their new names."""
    found = {name: fields.get(field) for field, name in names.items()}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
