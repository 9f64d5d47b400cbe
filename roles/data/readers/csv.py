"""Tables as text: one line per example, one column the label, the others numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import ColumnsConfig, DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.columns import LABEL_NAMES, choose_columns, in_test_part, labels_of_texts, row_shape
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import CLASSES_MAX, FileSplit, Labels, TableSource, check_fits

READER: Final = Reader("csv", (".csv", ".tsv"), open=f"{__name__}:open_csv", reads_config=True)
_DELIMITERS: Final = ",;\t"
_ENCODING: Final = "utf-8-sig"
_PIECE_BYTES: Final = 1 << 20
_VALUE_BYTES: Final = 4


def open_csv(path: Path, input_shape: Sequence[int] | None = None, *, config: DataConfig) -> TableSource:
    """Opens a table, or a folder with `train.csv` and `test.csv`; a fifth of a single file becomes the test part.

    The delimiter is the most frequent of comma, semicolon and tab in the first line. That line names the columns if one
    of its cells is `label`, `class` or the configured label, or if none of them is a number.

    Raises:
        ConfigurationError: there is no such column, the rows do not fit the model's input or the memory, or there are
            too many classes.
        DamagedDataError: a cell is not what its column should hold; the message gives file, line and column.
    """
    paths: dict[FileSplit, Path] = {"train": path}
    if path.is_dir():
        paths = {"train": path / "train.csv", "test": path / "test.csv"}
        if not paths["train"].is_file():
            raise ConfigurationError(f"{path}: expected a folder with train.csv and test.csv, found no train.csv")
        if not paths["test"].is_file():
            del paths["test"]
    texts: dict[str, int] = {}
    tables = {split: _read(one, config.columns, texts) for split, one in paths.items()}
    classes, numbers = labels_of_texts(list(texts))
    kinds = np.array(numbers, np.int32)
    arrays: dict[FileSplit, tuple[NDArray[Any], Labels]] = {
        split: (values, kinds[codes]) for split, (values, codes) in tables.items()
    }
    values, labels = arrays["train"]
    if path.is_file():
        test = in_test_part(0, len(values))
        arrays = {"train": (values[~test], labels[~test]), "test": (values[test], labels[test])}
    arrays.setdefault("test", (values[:0], labels[:0]))
    columns = {split: one.shape[1] for split, (one, _) in arrays.items()}
    if columns["train"] != columns["test"]:
        raise DamagedDataError(
            f"{path}: expected as many inputs in test.csv as in train.csv, "
            f"found {columns['test']} and {columns['train']}"
        )
    shape = row_shape(columns["train"], input_shape, str(path))
    return TableSource(
        "csv",
        {split: (one.reshape(len(one), *shape), labels) for split, (one, labels) in arrays.items()},
        value_max=1.0,
        stored_bytes=sum(one.stat().st_size for one in paths.values()),
        input_shape=shape,
        origin=str(path),
        classes=classes,
    )


@dataclass(frozen=True)
class _Form:
    """How a file is written: its delimiter, the names of its columns, and how many lines come before the first row."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    lines_before: int
    label: int
    inputs: tuple[int, ...]


def _read(path: Path, columns: ColumnsConfig, texts: dict[str, int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns inputs [rows, columns], and labels [rows] as numbers of `texts`, to which new ones are added."""
    form = _form(path, columns)
    problems: list[str] = []

    def number_of(text: str) -> float:
        text = text.strip()
        if not text or len(texts) > CLASSES_MAX:
            problems.append(text)
        return float(texts.setdefault(text, len(texts)))

    if not any(True for _ in _rows(form)):
        raise DamagedDataError(f"{path}: expected at least one row, found none")
    check_fits(_lines(path) * len(form.names) * _VALUE_BYTES, str(path))
    unused = set(range(len(form.names))) - {form.label, *form.inputs}
    try:
        table: NDArray[np.float32] = np.loadtxt(
            path,
            np.float32,
            comments=None,
            delimiter=form.delimiter,
            converters={form.label: number_of, **dict.fromkeys(unused, _ignored)},
            skiprows=form.lines_before,
            ndmin=2,
            encoding=_ENCODING,
            quotechar='"',
        )
    except ValueError as error:
        _raise_first_fault(form)
        raise DamagedDataError(f"{path}: expected a table of numbers and one label, found: {error}") from error
    if len(texts) > CLASSES_MAX:
        raise ConfigurationError(
            f"{path}: expected at most {CLASSES_MAX} classes, found more in the label's column "
            f"{form.names[form.label]!r}; name another with data.columns.label"
        )
    inputs = table[:, form.inputs]
    if problems or not np.isfinite(inputs).all():
        _raise_first_fault(form)
    return np.ascontiguousarray(inputs), table[:, form.label].astype(np.int64)


def _ignored(text: str) -> float:
    return 0.0


def _form(path: Path, columns: ColumnsConfig) -> _Form:
    try:
        with path.open(encoding=_ENCODING, newline="") as file:
            first = next((line for line in file if line.strip()), "")
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            rows = csv.reader(file, delimiter=delimiter)
            cells = next((row for row in rows if row), [])
            line = rows.line_num
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedDataError(f"{path}: expected a table as text in UTF-8, found: {error}") from error
    if len(cells) < 2:
        raise DamagedDataError(f"{path}: expected columns with commas, semicolons or tabs between them, found {cells}")
    known = {*LABEL_NAMES, str(columns.label).lower()}
    named = any(cell.strip().lower() in known for cell in cells) or not any(map(_is_number, cells))
    names = tuple(cell.strip() for cell in cells) if named else tuple(map(str, range(len(cells))))
    label, inputs = choose_columns(names, columns, str(path))
    return _Form(path, delimiter, names, line if named else 0, label, tuple(inputs))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return 1 + sum(piece.count(b"\n") for piece in iter(lambda: file.read(_PIECE_BYTES), b""))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _raise_first_fault(form: _Form) -> None:
    """Raises DamagedDataError at the first cell that is not what it should be; returns if there is none."""
    try:
        for line, row in _rows(form):
            if len(row) != len(form.names):
                wanted = f"expected {len(form.names)} columns, as in the first line"
                raise DamagedDataError(f"{form.path}: line {line}: {wanted}; found {len(row)}")
            for place in form.inputs:
                if not _is_number(row[place]) or not math.isfinite(float(row[place])):
                    raise _fault(form, line, place, "a finite number", row[place])
            if not row[form.label].strip():
                raise _fault(form, line, form.label, "a label", "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedDataError(f"{form.path}: expected a table as text in UTF-8, found: {error}") from error


def _rows(form: _Form) -> Iterator[tuple[int, list[str]]]:
    """Yields rows and the lines they end on, from 1. Raises UnicodeDecodeError, csv.Error."""
    with form.path.open(encoding=_ENCODING, newline="") as file:
        for _ in range(form.lines_before):
            next(file)
        rows = csv.reader(file, delimiter=form.delimiter)
        for row in rows:
            if row:
                yield form.lines_before + rows.line_num, row


def _fault(form: _Form, line: int, place: int, wanted: str, found: str) -> DamagedDataError:
    shown = repr(found[:40]) if found.strip() else "an empty cell"
    return DamagedDataError(
        f"{form.path}: line {line}, column {place} ({form.names[place]}): expected {wanted}, found {shown}; "
        "correct it or leave the line out"
    )
