"""Measurements as a table: one line each, one column for every name, in `metrics.csv`, which is written anew.

A name that is not of every run, such as that of a metric, gets its column when it first comes.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
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
        self._columns = COLUMNS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", newline="", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{self._path} cannot be written: {error.strerror}; name another --logdir"
            ) from error
        self._file.write(_line(COLUMNS))

    def add(self, measurement: Measurement) -> None:
        new = [name for name in measurement.values if name not in self._columns]
        if new:
            self._columns = (*self._columns, *new)
            self._write_anew(lambda row: True)
        first = (measurement.time_s, measurement.kind, measurement.step, measurement.train_seconds)
        self._file.write(_line((*first, *(measurement.values.get(name, "") for name in self._columns[len(_FIRST) :]))))

    def went_back(self, step: int) -> None:
        """Removes the lines from a step on."""
        self._write_anew(lambda row: int(row[_STEP]) < step)

    def _write_anew(self, keeps: Callable[[list[str]], bool]) -> None:
        """Writes the lines to be kept to a new file, with today's columns, which takes the place of the old one."""
        self._file.close()
        kept = self._path.with_suffix(".new")
        with self._path.open(newline="", encoding="utf-8") as old, kept.open("w", newline="", encoding="utf-8") as new:
            rows = csv.reader(old)
            next(rows)  # the heading
            new.write(_line(self._columns))
            new.writelines(_line([*row, *[""] * (len(self._columns) - len(row))]) for row in rows if keeps(row))
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
