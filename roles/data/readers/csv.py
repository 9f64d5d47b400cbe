"""Tables as text: one line per example, one column the label, or some the targets, the others numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import ColumnsConfig, DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.columns import (
    LABEL_NAMES,
    Columns,
    choose_columns,
    in_test_part,
    labels_of_texts,
    row_shape,
)
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.shards import arrange_shards, local_shards
from adamctl.roles.data.readers.source import (
    CLASSES_MAX,
    FILE_SPLITS,
    FileSplit,
    Labels,
    TableSource,
    Targets,
    check_fits,
)

READER: Final = Reader(
    "csv", (".csv", ".tsv"), open=f"{__name__}:open_csv", reads_config=True, files=f"{__name__}:csv_files"
)
_DELIMITERS: Final = ",;\t"
_ENCODING: Final = "utf-8-sig"
_PIECE_BYTES: Final = 1 << 20
_VALUE_BYTES: Final = 4
_LARGEST: Final = float(np.finfo(np.float32).max)

_Values = NDArray[np.float32]
_Answers = NDArray[Any]
"""Labels [rows] as numbers of texts, int64, or targets [rows, k], float32."""


def open_csv(path: Path, input_shape: Sequence[int] | None = None, *, config: DataConfig) -> TableSource:
    """Opens a table, or a folder of tables, whose files are arranged as `arrange_shards` says.

    Where no file is of the test part, a fifth of the lines of each is.

    The delimiter is the most frequent of comma, semicolon and tab in the first line. That line names the columns if one
    of its cells is `label`, `class` or a configured name of label or target, or if none of them is a number.

    Raises:
        ConfigurationError: there is no such column, the rows do not fit the model's input or the memory, or there are
            too many classes.
        DamagedDataError: a cell is not what its column should hold; the message gives file, line and column.
    """
    shards = local_shards(path, READER.suffixes)
    files, by_line = arrange_shards(shards, config.test_files, str(path))
    texts: dict[str, int] = {}
    tables = {split: [_read(Path(one.origin), config.columns, texts) for one in files[split]] for split in FILE_SPLITS}
    classes, numbers = labels_of_texts(list(texts))
    kinds = np.array(numbers, np.int32)
    first = files["train"][0]
    columns = tables["train"][0][0].shape[1]
    for shard, (values, _) in zip((*files["train"], *files["test"]), (*tables["train"], *tables["test"]), strict=True):
        if values.shape[1] != columns:
            raise DamagedDataError(
                f"{shard.origin}: expected {columns} inputs, as in {first.name}; found {values.shape[1]}"
            )
    if by_line:
        tables = {split: [_part(*table, split) for table in tables["train"]] for split in FILE_SPLITS}
    shape = row_shape(columns, input_shape, str(path))
    arrays: dict[FileSplit, tuple[NDArray[Any], Labels]] = {}
    targets: dict[FileSplit, Targets] = {}
    for split in FILE_SPLITS:
        whole = np.concatenate([*(values for values, _ in tables[split]), np.empty((0, columns), np.float32)])
        answers = [found for _, found in tables[split]]
        if config.columns.targets:
            none = np.empty((0, len(config.columns.targets)), np.float32)
            targets[split] = np.ascontiguousarray(np.concatenate([*answers, none]), np.float32)
            labels = np.zeros(len(whole), np.int32)
        else:
            labels = kinds[np.concatenate([*answers, np.empty(0, np.int64)]).astype(np.int64)]
        arrays[split] = whole.reshape(len(whole), *shape), labels
    return TableSource(
        "csv",
        arrays,
        value_max=1.0,
        stored_bytes=sum(shard.size_bytes for shard in shards),
        input_shape=shape,
        origin=str(path),
        classes=classes,
        targets=targets or None,
    )


def csv_files(path: Path, *, config: DataConfig) -> list[Path]:
    """Returns the tables that `open_csv` would open. Raises ConfigurationError: there is none."""
    return [Path(shard.origin) for shard in local_shards(path, READER.suffixes)]


def _part(values: _Values, answers: _Answers, split: FileSplit) -> tuple[_Values, _Answers]:
    chosen = in_test_part(0, len(values)) == (split == "test")
    return values[chosen], answers[chosen]


@dataclass(frozen=True)
class _Form:
    """How a file is written: its delimiter, the names of its columns, and how many lines come before the first row."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    lines_before: int
    columns: Columns


def _read(path: Path, columns: ColumnsConfig, texts: dict[str, int]) -> tuple[_Values, _Answers]:
    """Returns inputs [rows, columns], and targets, or labels as numbers of `texts`, to which new ones are added."""
    form = _form(path, columns)
    chosen = form.columns
    problems: list[str] = []

    def number_of(text: str) -> float:
        text = text.strip()
        if not text or len(texts) > CLASSES_MAX:
            problems.append(text)
        return float(texts.setdefault(text, len(texts)))

    with _read_as_text(path):
        has_rows = any(True for _ in _rows(form))
    if not has_rows:
        raise DamagedDataError(f"{path}: expected at least one row, found none")
    check_fits(_lines(path) * len(form.names) * _VALUE_BYTES, str(path))
    unused = set(range(len(form.names))) - {*chosen.answers, *chosen.inputs}
    converters: dict[int | str, Callable[[str], float]] = dict.fromkeys(unused, _ignored)
    if chosen.label is not None:
        converters[chosen.label] = number_of
    try:
        table: NDArray[np.float32] = np.loadtxt(
            path,
            np.float32,
            comments=None,
            delimiter=form.delimiter,
            converters=converters,
            skiprows=form.lines_before,
            ndmin=2,
            encoding=_ENCODING,
            quotechar='"',
        )
    except ValueError as error:
        _raise_first_fault(form)
        wanted = "expected a table of numbers, and of one label where there are no targets"
        raise DamagedDataError(f"{path}: {wanted}; found: {error}") from error
    if len(texts) > CLASSES_MAX:
        raise ConfigurationError(
            f"{path}: expected at most {CLASSES_MAX} classes, found more in the label's column "
            f"{form.names[chosen.answers[0]]!r}; name another with data.columns.label"
        )
    inputs, targets = (np.ascontiguousarray(table[:, places]) for places in (chosen.inputs, chosen.targets))
    if problems or not np.isfinite(inputs).all() or not np.isfinite(targets).all():
        _raise_first_fault(form)
    return inputs, targets if chosen.label is None else table[:, chosen.label].astype(np.int64)


def _ignored(text: str) -> float:
    return 0.0


def _form(path: Path, columns: ColumnsConfig) -> _Form:
    with _read_as_text(path), path.open(encoding=_ENCODING, newline="") as file:
        first = next((line for line in file if line.strip()), "")
        delimiter = max(_DELIMITERS, key=first.count)
        file.seek(0)
        rows = csv.reader(file, delimiter=delimiter)
        cells = next((row for row in rows if row), [])
        line = rows.line_num
    if not cells:
        raise DamagedDataError(f"{path}: the file is empty")
    if len(cells) < 2:
        raise DamagedDataError(f"{path}: expected columns with commas, semicolons or tabs between them, found {cells}")
    known = {*LABEL_NAMES, *(str(one).lower() for one in (columns.label, *columns.targets) if isinstance(one, str))}
    named = any(cell.strip().lower() in known for cell in cells) or not any(map(_is_number, cells))
    names = tuple(cell.strip() for cell in cells) if named else tuple(map(str, range(len(cells))))
    return _Form(path, delimiter, names, line if named else 0, choose_columns(names, columns, str(path)))


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
    columns = form.columns
    with _read_as_text(form.path):
        for line, row in _rows(form):
            if len(row) != len(form.names):
                wanted = f"expected {len(form.names)} columns, as in the first line"
                raise DamagedDataError(f"{form.path}: line {line}: {wanted}; found {len(row)}")
            for place in (*columns.inputs, *columns.targets):
                if not _is_number(row[place]) or not math.isfinite(float(row[place])):
                    raise _fault(form, line, place, "a finite number", row[place])
                if abs(float(row[place])) > _LARGEST:
                    raise _fault(form, line, place, f"a number from {-_LARGEST:.2g} to {_LARGEST:.2g}", row[place])
            if columns.label is not None and not row[columns.label].strip():
                raise _fault(form, line, columns.label, "a label", "")


@contextmanager
def _read_as_text(path: Path) -> Iterator[None]:
    """Raises DamagedDataError for what `_rows` cannot read, such as a quote that is never closed."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedDataError(f"{path}: expected a table as text in UTF-8, found: {error}") from error


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
