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
from adamctl.roles.data.readers.shards import arrange_shards, local_shards
from adamctl.roles.data.readers.source import CLASSES_MAX, FILE_SPLITS, FileSplit, Labels, TableSource, check_fits

READER: Final = Reader("csv", (".csv", ".tsv"), open=f"{__name__}:open_csv", reads_config=True)
_DELIMITERS: Final = ",;\t"
_ENCODING: Final = "utf-8-sig"
_PIECE_BYTES: Final = 1 << 20
_VALUE_BYTES: Final = 4

_Values = NDArray[np.float32]
_Codes = NDArray[np.int64]


def open_csv(path: Path, input_shape: Sequence[int] | None = None, *, config: DataConfig) -> TableSource:
    """Opens a table, or a folder of tables, whose files are arranged as `arrange_shards` says.

    Where no file is of the test part, a fifth of the lines of each is.

    The delimiter is the most frequent of comma, semicolon and tab in the first line. That line names the columns if one
    of its cells is `label`, `class` or the configured label, or if none of them is a number.

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
    for split in FILE_SPLITS:
        whole = np.concatenate([*(values for values, _ in tables[split]), np.empty((0, columns), np.float32)])
        codes = np.concatenate([*(codes for _, codes in tables[split]), np.empty(0, np.int64)])
        arrays[split] = whole.reshape(len(whole), *shape), kinds[codes]
    return TableSource(
        "csv",
        arrays,
        value_max=1.0,
        stored_bytes=sum(shard.size_bytes for shard in shards),
        input_shape=shape,
        origin=str(path),
        classes=classes,
    )


def _part(values: _Values, codes: _Codes, split: FileSplit) -> tuple[_Values, _Codes]:
    chosen = in_test_part(0, len(values)) == (split == "test")
    return values[chosen], codes[chosen]


@dataclass(frozen=True)
class _Form:
    """How a file is written: its delimiter, the names of its columns, and how many lines come before the first row."""

    path: Path
    delimiter: str
    names: tuple[str, ...]
    lines_before: int
    label: int
    inputs: tuple[int, ...]


def _read(path: Path, columns: ColumnsConfig, texts: dict[str, int]) -> tuple[_Values, _Codes]:
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
