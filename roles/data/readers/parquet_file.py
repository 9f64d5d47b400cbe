"""Reads Parquet files: columns of encoded images, bytes, numbers or lists of them, read by whole row groups (pyarrow).

Format: https://parquet.apache.org/docs/file-format/. Checksums of pages are checked where the writer left any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.config.urls import Url
from adamctl.errors import AdamctlError, ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.arrow_columns import (
    Cells,
    cells_of,
    class_names,
    labels_of,
    select,
    targets_in,
)
from adamctl.roles.data.readers.columns import in_test_part
from adamctl.roles.data.readers.late_file import ReadCounter
from adamctl.roles.data.readers.shards import Shard, arrange_shards, local_shards, shards_at
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Labels,
    Targets,
    by_blocks,
    checked_labels,
    named_classes,
    number_names,
)

ENDINGS: Final = (".parquet",)
GROUP_BYTES_MAX: Final = 1 << 30
"""Bound on one row group in memory: a damaged file may claim any size."""
_HELD_BYTES_MAX: Final = 64 << 20
_THRIFT_BYTES_MAX: Final = 64 << 20
_LOCKS: Final = 16


@dataclass(frozen=True)
class _Group:
    """A row group: number `number` of file `shard`, whose first row is number `start` of that file."""

    shard: int
    number: int
    start: int
    rows: int


class ParquetSource:
    """Rows of Parquet files. Row groups are read as a whole, and a few are held as they were read."""

    format = "parquet"
    resident = False
    sequential = True

    def __init__(
        self,
        shards: Sequence[Shard],
        config: DataConfig,
        input_shape: Sequence[int] | None,
        origin: str,
        budget_bytes: int | None = None,
    ) -> None:
        """`budget_bytes`: memory for row groups, where all of them are held. Raises as `open_parquet`."""
        self.origin = origin
        files, by_row = arrange_shards(shards, config.test_files, origin)
        self._shards = [*files["train"], *files["test"]]
        self.stored_bytes = sum(shard.size_bytes for shard in self._shards)
        self._metadata = [self._opened(number) for number in range(len(self._shards))]
        schema = self._checked_schema()
        self._chosen = select(schema, config.columns, origin)
        groups = list(self._row_groups())
        self._counter = ReadCounter()
        self._held = _Held(_HELD_BYTES_MAX)
        answers = list(self._answers_of(groups))
        self._cells: Cells = cells_of(schema, self._chosen, input_shape, self._sample(groups), config, origin)
        self.example_shape, self.dtype = self._cells.shape, self._cells.dtype
        self.value_max = 255.0 if self.dtype == np.uint8 else 1.0
        names = () if self._chosen.targets else class_names(schema, self._chosen.label)
        found: tuple[str, ...] = ()
        if not self._chosen.targets:
            found, numbers = ((), answers) if names else named_classes(answers, origin)
            answers = [
                checked_labels(values, group.rows, self._place(group))
                for group, values in zip(groups, numbers, strict=True)
            ]
        self._arrange(groups, answers, len(files["train"]), by_row)
        self.classes: tuple[str, ...] = ()
        if not self._chosen.targets:
            self.classes = names or found or number_names(self._labels, origin)
            self._check_classes()
        held = (
            *self._labels.values(),
            *self._targets.values(),
            *(rows for rows in self._rows.values() if rows is not None),
        )
        self.unpacked_bytes = self._unpacked_bytes("train")
        self._held.bytes_max = self._bytes_to_hold(config, budget_bytes)
        self.resident_bytes = sum(values.nbytes for values in held) + self._held.bytes_max

    @property
    def read_bytes(self) -> int:
        """Bytes of the inputs' columns that were read from files."""
        return self._counter.total_bytes

    def labels(self, split: FileSplit) -> Labels:
        return self._labels[split]

    def targets(self, split: FileSplit) -> Targets | None:
        return self._targets.get(split)

    def blocks(self, split: FileSplit) -> NDArray[np.int64]:
        """Returns how many examples each row group has of a split, [B]."""
        return self._lengths[split]

    def fetched(self, split: FileSplit) -> NDArray[np.int64] | None:
        """Returns how many examples of a split each file has, if files are fetched, [files]."""
        if not any(shard.fetched for shard in self._shards):
            return None
        lengths = dict.fromkeys((group.shard for group in self._groups[split]), 0)
        for group, length in zip(self._groups[split], self._lengths[split], strict=True):
            lengths[group.shard] += int(length)
        return np.array(list(lengths.values()), np.int64)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with file, row group and row."""
        if not len(indices):
            return
        rows = self._rows[split]
        ends = np.cumsum(self._lengths[split])
        of_group = np.searchsorted(ends, indices, side="right")
        for shard in {self._groups[split][position].shard for position in np.unique(of_group)}:
            self._shards[shard].ahead()
        for position in np.unique(of_group):
            group = self._groups[split][position]
            places = np.flatnonzero(of_group == position)
            if rows is None:
                wanted = indices[places] - (ends[position] - group.rows)
            else:
                wanted = rows[indices[places]]
            values = self._held.get((group.shard, group.number), lambda group=group: self._prepared(group))  # type: ignore[misc]
            if isinstance(values, np.ndarray):
                out[places] = values[wanted].reshape(len(places), *out.shape[1:])
                continue
            with self._naming(group):
                self._cells.write(values, wanted, out, places, self._place(group))

    # --- opening ------------------------------------------------------------------------------------------------------

    def _opened(self, number: int) -> Any:
        with self._reading(self._shards[number].origin), self._file(number, None, part=True) as file:
            return file.metadata

    def _checked_schema(self) -> Any:
        first = self._metadata[0].schema.to_arrow_schema()
        for shard, metadata in zip(self._shards, self._metadata, strict=True):
            with self._reading(shard.origin):
                found = metadata.schema.to_arrow_schema()
            if not found.equals(first):
                raise DamagedDataError(
                    f"{shard.origin}: expected the columns of {self._shards[0].origin}, "
                    f"{_shown(first)}; found {_shown(found)}"
                )
        return first

    def _row_groups(self) -> Iterator[_Group]:
        for shard, metadata in enumerate(self._metadata):
            start = 0
            for number in range(metadata.num_row_groups):
                with self._reading(self._shards[shard].origin):
                    described = metadata.row_group(number)
                rows, size_bytes = described.num_rows, described.total_byte_size
                if not 0 <= rows < 2**31 or not 0 <= size_bytes <= GROUP_BYTES_MAX:
                    raise DamagedDataError(
                        f"{self._shards[shard].origin}: row group {number}: expected at most {GROUP_BYTES_MAX} bytes, "
                        f"found {rows} rows of {size_bytes} bytes; write smaller row groups"
                    )
                if rows:
                    yield _Group(shard, number, start, rows)
                start += rows

    def _sample(self, groups: Sequence[_Group]) -> Any:
        """Returns the inputs of the first row group, by which lengths and encodings are known."""
        if not groups:
            raise ConfigurationError(f"{self.origin}: expected rows, found none")
        return self._read(groups[0])

    def _answers_of(self, groups: Sequence[_Group]) -> Iterator[NDArray[Any]]:
        """Yields the labels or targets of each row group as they are written; each file is opened once."""
        length: int | None = None
        for shard, of_shard in groupby(groups, key=lambda group: group.shard):
            with (
                self._reading(self._shards[shard].origin),
                self._file(shard, self._metadata[shard], part=True) as file,
            ):
                for group in of_shard:
                    with self._naming(group):
                        table = file.read_row_group(group.number, columns=self._chosen.answers)
                        place = self._place(group)
                        if self._chosen.targets:
                            targets = targets_in(table.select(self._chosen.targets), place, length)
                            length = targets.shape[1]
                            yield targets
                        else:
                            yield labels_of(table.column(0), place)

    def _arrange(
        self, groups: Sequence[_Group], answers: Sequence[NDArray[Any]], train_files: int, by_row: bool
    ) -> None:
        """Fills in of each split: its row groups, their lengths, labels or targets, and rows where needed."""
        self._groups: dict[FileSplit, list[_Group]] = {"train": [], "test": []}
        self._labels: dict[FileSplit, Labels] = {}
        self._targets: dict[FileSplit, Targets] = {}
        self._lengths: dict[FileSplit, NDArray[np.int64]] = {}
        self._rows: dict[FileSplit, NDArray[np.int32] | None] = {"train": None, "test": None}
        for split in FILE_SPLITS:
            parts, rows = [], []
            for group, values in zip(groups, answers, strict=True):
                if by_row:
                    chosen = np.flatnonzero(in_test_part(group.start, group.rows) == (split == "test"))
                elif (group.shard < train_files) == (split == "train"):
                    chosen = np.arange(group.rows)
                else:
                    continue
                if len(chosen):
                    self._groups[split].append(group)
                    parts.append(values[chosen])
                    rows.append(chosen.astype(np.int32))
            self._lengths[split] = np.array([len(part) for part in parts], np.int64)
            known = np.concatenate([*parts, answers[0][:0]])
            if self._chosen.targets:
                self._targets[split] = known
            self._labels[split] = np.zeros(len(known), np.int32) if self._chosen.targets else known
            if by_row:
                self._rows[split] = np.concatenate([*rows, np.empty(0, np.int32)])

    def _check_classes(self) -> None:
        for split, labels in self._labels.items():
            beyond = np.flatnonzero(labels >= len(self.classes))
            if len(beyond):
                position = np.searchsorted(np.cumsum(self._lengths[split]), beyond[0], side="right")
                raise DamagedDataError(
                    f"{self._place(self._groups[split][position])}: expected labels of the {len(self.classes)} classes "
                    f"that the file names, found {labels[beyond[0]]}"
                )

    def _unpacked_bytes(self, split: FileSplit) -> int:
        """Returns how many bytes the inputs of a split's row groups have without compression."""
        return sum(
            max(column.total_uncompressed_size, 0) for group in self._groups[split] for column in self._inputs_of(group)
        )

    def _bytes_to_hold(self, config: DataConfig, budget_bytes: int | None) -> int:
        """Returns the memory for row groups: for all of them in example order, of which any range reads nearly all."""
        if budget_bytes is None or by_blocks(config, self):
            return _HELD_BYTES_MAX
        decoded_bytes = sum(map(len, self._labels.values())) * prod(self.example_shape) * self.dtype.itemsize
        whole_bytes = max(decoded_bytes, sum(self._unpacked_bytes(split) for split in FILE_SPLITS))
        return max(whole_bytes, _HELD_BYTES_MAX) if whole_bytes <= budget_bytes else _HELD_BYTES_MAX

    # --- reading ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _file(self, number: int, metadata: Any, *, part: bool = False) -> Iterator[Any]:
        """Opens a file; `part`: only little of it is read, so that one elsewhere is not fetched for that."""
        with (
            self._shards[number].open_part() if part else self._shards[number].open() as opened,
            pq.ParquetFile(
                pa.PythonFile(opened, "r"),
                metadata=metadata,
                page_checksum_verification=True,
                thrift_string_size_limit=_THRIFT_BYTES_MAX,
            ) as file,
        ):
            yield file

    def _read(self, group: _Group) -> Any:
        with self._naming(group), self._file(group.shard, self._metadata[group.shard]) as file:
            table = file.read_row_group(group.number, columns=self._chosen.inputs, use_threads=False)
            if table.num_rows != group.rows:
                raise DamagedDataError(f"{self._place(group)}: expected {group.rows} rows, found {table.num_rows}")
            self._counter.add(sum(column.total_compressed_size for column in self._inputs_of(group)))
            return table.combine_chunks()

    def _inputs_of(self, group: _Group) -> list[Any]:
        """Returns what the file says about the inputs' columns in a row group."""
        described = self._metadata[group.shard].row_group(group.number)
        columns = (described.column(number) for number in range(described.num_columns))
        return [one for one in columns if one.path_in_schema.partition(".")[0] in self._chosen.inputs]

    def _prepared(self, group: _Group) -> Any:
        """Reads a row group: all its examples, if they are alike, or else its table."""
        table = self._read(group)
        with self._naming(group):
            dense = self._cells.dense(table)
        return table if dense is None else dense

    def _place(self, group: _Group) -> str:
        return f"{self._shards[group.shard].origin}: row group {group.number}"

    def _naming(self, group: _Group) -> Any:
        return self._reading(self._place(group))

    @contextmanager
    def _reading(self, place: str) -> Iterator[None]:
        """Raises DamagedDataError, which begins with `place`, for anything that pyarrow cannot read.

        ChangedDataError: the system cannot read it; pyarrow's own errors of reading have no number.
        """
        try:
            yield
        except AdamctlError:
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError, KeyError, OverflowError) as error:
            of_system = isinstance(error, OSError) and error.errno is not None
            kind = ChangedDataError if of_system else DamagedDataError
            raise kind(f"{place}: expected a Parquet file that can be read, found: {error}") from error


class _Held:
    """The row groups read last, up to some bytes. Two threads that want one read it once, and so do all that fail."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()  # guards the three below
        self._held: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._held_bytes = 0
        self._damages: dict[tuple[int, int], str] = {}
        self._reading = [threading.Lock() for _ in range(_LOCKS)]

    def get(self, key: tuple[int, int], read: Callable[[], Any]) -> Any:
        with self._reading[hash(key) % _LOCKS]:
            with self._lock:
                if key in self._held:
                    self._held.move_to_end(key)
                    return self._held[key]
                if key in self._damages:
                    raise DamagedDataError(self._damages[key])
            try:
                table = read()
            except ChangedDataError:
                raise
            except DamagedDataError as error:
                with self._lock:
                    self._damages[key] = str(error)
                raise
            with self._lock:
                self._held[key] = table
                self._held_bytes += table.nbytes
                while self._held_bytes > self.bytes_max and len(self._held) > 1:
                    self._held_bytes -= self._held.popitem(last=False)[1].nbytes
            return table


def open_parquet(
    path: Path | Url,
    input_shape: Sequence[int] | None = None,
    *,
    config: DataConfig,
    budget_bytes: int | None = None,
) -> ParquetSource:
    """Opens a file, or a folder of files that end in `.parquet`. `budget_bytes`: memory for its row groups.

    The files are arranged as `arrange_shards` says; where none is of the test part, a fifth of the rows of each is.
    `[data.columns]` says which column is what: by default the label is `label` or `class`, else the last, and the
    input is the only column of images, bytes or lists, else all other columns, which must be numbers.

    Raises:
        ConfigurationError: no such columns, files or rows, or rows that do not fit the model's input.
        DamagedDataError: a file cannot be read or its rows differ in kind; the message gives file, row group and row.
    """
    return ParquetSource(shards_at(path, ENDINGS, config), config, input_shape, str(path), budget_bytes)


def parquet_files(path: Path, *, config: DataConfig) -> list[Path]:
    """Returns the files that `open_parquet` would open. Raises ConfigurationError: there is none."""
    return [Path(shard.origin) for shard in local_shards(path, ENDINGS)]


def _shown(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in list(schema)[:20])
