"""Measurements as a table: one line each, one column for every name, in `metrics.csv`, which is written anew."""

from __future__ import annotations

import csv
import io
import os
from itertools import chain
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.launch.sinks.measurement import EVALUATION_NAMES, ITERATION_NAMES, NAMES, Measurement
from adamctl.launch.sinks.plugins import SinkKind

SINK = SinkKind("csv", "adamctl.launch.sinks.csv:open_table")
TABLE_NAME = "metrics.csv"
SPLITS = ("test", "validation")
_FIRST = ("time", "kind", "step", "train_seconds")
_STEP = _FIRST.index("step")
COLUMNS = (
    *_FIRST,
    *(f"{name}/{split}" for split in SPLITS for name in EVALUATION_NAMES.values()),
    *dict.fromkeys(chain(NAMES.values(), ITERATION_NAMES.values())),
)


def open_table(run: str, folder: Path) -> Table:
    """Opens the table in `folder`."""
    return Table(folder)


class Table:
    """A file of comma-separated values with a heading."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError: the folder cannot be written."""
        self._path = folder / TABLE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", newline="", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{self._path} cannot be written: {error.strerror}; name another --logdir"
            ) from error
        self._file.write(_line(COLUMNS))

    def add(self, measurement: Measurement) -> None:
        first = (measurement.time_s, measurement.kind, measurement.step, measurement.train_seconds)
        self._file.write(_line((*first, *(measurement.values.get(name, "") for name in COLUMNS[len(_FIRST) :]))))

    def went_back(self, step: int) -> None:
        """Removes the lines from a step on."""
        self._file.close()
        kept = self._path.with_suffix(".new")
        with self._path.open(newline="", encoding="utf-8") as old, kept.open("w", newline="", encoding="utf-8") as new:
            rows = csv.reader(old)
            new.write(_line(next(rows)))
            new.writelines(_line(row) for row in rows if int(row[_STEP]) < step)
        os.replace(kept, self._path)
        self._file = self._path.open("a", newline="", encoding="utf-8")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(values: tuple[object, ...] | list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
