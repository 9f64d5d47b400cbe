"""What columns of an Arrow table hold of an example: an encoded image, bytes, a list of numbers, or one number each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from adamctl.config.data import ColumnsConfig, DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.columns import choose_columns, row_shape
from adamctl.roles.data.readers.images import ImageDecoder
from adamctl.roles.data.readers.source import Targets
from adamctl.roles.data.readers.targets import checked_targets

_HUGGING_FACE: Final = b"huggingface"
_IMAGE_MAGIC: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


@dataclass(frozen=True)
class Chosen:
    """Names of columns: the label's, "" where there are targets, theirs, and the inputs', in order."""

    label: str
    targets: list[str]
    inputs: list[str]

    @property
    def answers(self) -> list[str]:
        """The names of the columns that outputs are compared with."""
        return self.targets or [self.label]


class Cells(Protocol):
    """Turns rows of the inputs' columns into examples of `shape` and `dtype`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def dense(self, table: Any) -> NDArray[Any] | None:
        """Returns all rows as [rows, elements] of this type; None if they must be taken one by one."""
        ...

    def write(self, table: Any, rows: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64], origin: str) -> None:
        """Writes `rows` [n] of a table into `out` at `places` [n].

        Raises:
            DamagedDataError: a row is not like the others; the message begins with `origin` and the row.
        """
        ...


def select(schema: Any, config: ColumnsConfig, origin: str) -> Chosen:
    """Returns which columns are read.

    Raises:
        ConfigurationError: there is no such column, others have the same name, or it is not clear which are inputs.
    """
    names = list(schema.names)
    label, targets, inputs = choose_columns(names, config, origin)
    if not config.inputs:
        whole = [place for place in inputs if _is_whole_example(schema.field(place).type)]
        if len(whole) == 1:
            inputs = tuple(whole)
    kinds = {names[place]: schema.field(place).type for place in inputs}
    if len(inputs) > 1 and (other := [name for name, kind in kinds.items() if not _is_number(kind)]):
        shown = ", ".join(f"{name} ({kinds[name]})" for name in other[:10])
        raise ConfigurationError(
            f"{origin}: expected one column of images, bytes or lists as input, or columns of numbers; found also "
            f"{shown}: name the inputs in data.columns.inputs"
        )
    for place in targets:
        held = schema.field(place).type
        if not _is_number(held) and not (len(targets) == 1 and _is_list(held) and _leaf_is_number(held)):
            raise ConfigurationError(
                f"{origin}: expected columns of numbers, or one column of lists of numbers, as targets; found "
                f"{names[place]} ({held}): name others in data.columns.targets"
            )
    chosen = Chosen(
        "" if label is None else names[label], [names[place] for place in targets], [names[place] for place in inputs]
    )
    for name in (*chosen.answers, *chosen.inputs):  # by which they are read
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{origin}: expected columns with different names; found {names.count(name)} of the name {name!r}: "
                "give them different ones"
            )
    return chosen


def cells_of(
    schema: Any, chosen: Chosen, input_shape: Sequence[int] | None, first: Any, config: DataConfig, origin: str
) -> Cells:
    """Returns how rows become examples. `first`: a table with rows, by which lengths and encodings are known.

    Raises:
        ConfigurationError: the columns hold nothing that can be an input, or the rows do not fit the model's input.
    """
    kind = schema.field(chosen.inputs[0]).type
    if all(_is_number(schema.field(name).type) for name in chosen.inputs):
        kinds = {schema.field(name).type for name in chosen.inputs}
        return _Numbers(row_shape(len(chosen.inputs), input_shape, origin), kinds == {pa.uint8()})
    if _is_bytes(kind):
        value = first.column(0)[0].as_py()
        value = value["bytes"] if isinstance(value, dict) else value
        if value is not None and value.startswith(_IMAGE_MAGIC):
            if input_shape is None:
                raise ConfigurationError(f"{origin}: its images are scaled to the model's input: say which one")
            return _Bytes(tuple(input_shape), ImageDecoder(input_shape, config.decoder, f"{origin}: its images"))
        return _Bytes(row_shape(len(value or b""), input_shape, origin))
    if _is_list(kind):
        leaf, length = _flat(first.column(0)[0:1], origin, np.arange(1))
        return _Lists(row_shape(length, input_shape, origin), leaf.type == pa.uint8())
    raise ConfigurationError(
        f"{origin}: column {chosen.inputs[0]!r} holds {kind}; expected images, bytes, numbers or lists of numbers: "
        "name the inputs in data.columns.inputs"
    )


def labels_of(column: Any, origin: str) -> NDArray[Any]:
    """Returns a label column as whole numbers or texts [rows].

    Raises:
        DamagedDataError: a row has no label, or labels are neither.
    """
    _check_present(column, origin, "a label")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.int64()).to_numpy())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.cast(pa.string()).to_pylist(), np.str_)
    raise DamagedDataError(f"{origin}: expected whole numbers or texts as labels, found {column.type}")


def targets_in(table: Any, origin: str, length: int | None = None) -> Targets:
    """Returns the columns of targets as float32 [rows, k]; `length`: the k of other rows, None while there are none.

    Raises:
        DamagedDataError: a row has no number, or one that is not finite, or lists differ in length.
    """
    rows = table.num_rows
    if _is_list(table.column(0).type):
        flat, length = _flat(table.column(0), origin, np.arange(rows), length)
        values = np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(rows, length)
    else:
        for column in table.columns:
            _check_present(column, origin, "a target")
        values = np.stack([np.asarray(column.to_numpy(), np.float32) for column in table.columns], axis=1)
    return checked_targets(values, rows, origin)


def class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Returns the names of classes that Hugging Face's writer leaves in the file; empty without them."""
    try:
        described = json.loads((schema.metadata or {})[_HUGGING_FACE])["info"]["features"][label]["names"]
        return tuple(map(str, described))
    except (KeyError, TypeError, ValueError):
        return ()


class _Numbers:
    def __init__(self, shape: tuple[int, ...], of_bytes: bool) -> None:
        self.shape = shape
        self.dtype = np.dtype(np.uint8 if of_bytes else np.float32)

    def dense(self, table: Any) -> NDArray[Any] | None:
        if any(column.null_count for column in table.columns):
            return None
        columns = np.empty((table.num_columns, table.num_rows), self.dtype)
        for number, column in enumerate(table.columns):
            columns[number] = column.to_numpy()
        return np.ascontiguousarray(columns.T)

    def write(self, table: Any, rows: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64], origin: str) -> None:
        chosen = table.take(pa.array(rows))
        for name, column in zip(chosen.column_names, chosen.columns, strict=True):
            if column.null_count:
                row = rows[np.flatnonzero(column.is_null().to_numpy())[0]]
                raise DamagedDataError(f"{origin}: column {name}, row {row}: expected a number, found none")
        values = np.stack([column.to_numpy() for column in chosen.columns], axis=1)
        out[places] = values.reshape(len(rows), *out.shape[1:])


class _Lists:
    def __init__(self, shape: tuple[int, ...], of_bytes: bool) -> None:
        self.shape = shape
        self.dtype = np.dtype(np.uint8 if of_bytes else np.float32)

    def dense(self, table: Any) -> NDArray[Any] | None:
        try:
            flat, _ = _flat(table.column(0), "", np.arange(table.num_rows), prod(self.shape))
        except DamagedDataError:
            return None
        return np.asarray(flat.to_numpy(zero_copy_only=False), self.dtype).reshape(table.num_rows, -1)

    def write(self, table: Any, rows: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64], origin: str) -> None:
        column = table.column(0).take(pa.array(rows))
        flat, _ = _flat(column, origin, rows, prod(self.shape))
        out[places] = flat.to_numpy(zero_copy_only=False).reshape(len(rows), *out.shape[1:])


class _Bytes:
    def __init__(self, shape: tuple[int, ...], decoder: ImageDecoder | None = None) -> None:
        """`decoder` is for encoded images; without one, bytes are values."""
        self.shape = shape
        self.dtype = np.dtype(np.uint8)
        self._decoder = decoder

    def dense(self, table: Any) -> NDArray[Any] | None:
        column = table.column(0)
        if self._decoder is not None or column.null_count or not pa.types.is_binary(column.type):
            return None
        values = pa.concat_arrays(column.chunks)
        offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
        if (np.diff(offsets) != prod(self.shape)).any():
            return None
        flat = np.frombuffer(values.buffers()[2], np.uint8, offsets[-1] - offsets[0], offsets[0])
        return flat.reshape(len(values), -1)

    def write(self, table: Any, rows: NDArray[Any], out: NDArray[Any], places: NDArray[np.int64], origin: str) -> None:
        column = table.column(0)
        length = prod(self.shape)
        for row, place in zip(rows, places, strict=True):
            value = column[int(row)].as_py()
            if isinstance(value, dict):
                value = value["bytes"]
            if value is None:
                raise DamagedDataError(
                    f"{origin}, row {row}: expected bytes, found none; a file's path alone is not enough"
                )
            if self._decoder is not None:
                out[place] = self._decoder.decode(value, f"{origin}, row {row}")
                continue
            if len(value) != length:
                raise DamagedDataError(f"{origin}, row {row}: expected {length} bytes, found {len(value)}")
            out[place] = np.frombuffer(value, np.uint8).reshape(out.shape[1:])


def _flat(column: Any, origin: str, rows: NDArray[Any], length: int | None = None) -> tuple[Any, int]:
    """Returns all numbers of a column of lists in one array, and how many each row has.

    Raises:
        DamagedDataError: a list or number is missing, or lists differ in length.
    """
    flat = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    lists = len(flat)
    while _is_list(flat.type):
        missing = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        if len(missing):
            row = rows[missing[0] * lists // len(flat)]
            raise DamagedDataError(f"{origin}, row {row}: expected a list of numbers, found none")
        lengths = np.asarray(flat.value_lengths().to_numpy(zero_copy_only=False))
        inner = flat.flatten()
        if len(lengths) and (lengths != lengths[0]).any():
            odd = int(np.flatnonzero(lengths != lengths[0])[0])
            raise DamagedDataError(
                f"{origin}, row {rows[odd * lists // len(flat)]}: expected lists of {lengths[0]}, found {lengths[odd]}"
            )
        flat = inner
    found = len(flat) // max(lists, 1)
    if length is not None and found != length:
        raise DamagedDataError(f"{origin}, row {rows[0]}: expected {length} numbers, found {found}")
    missing = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
    if len(missing):
        raise DamagedDataError(f"{origin}, row {rows[missing[0] // max(found, 1)]}: expected numbers, found none")
    return flat, found


def _check_present(column: Any, origin: str, wanted: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DamagedDataError(f"{origin}, row {row}: expected {wanted}, found none")


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(
            kind.field(place).name == "bytes" and _is_bytes(kind.field(place).type) for place in range(len(kind))
        )
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_whole_example(kind: Any) -> bool:
    return _is_bytes(kind) or (_is_list(kind) and _leaf_is_number(kind))


def _leaf_is_number(kind: Any) -> bool:
    while _is_list(kind):
        kind = kind.value_type
    return _is_number(kind)
