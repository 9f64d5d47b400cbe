"""Parquet files, of each kind of column."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from adamctl.config.data import ColumnsConfig, DataConfig
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source, parquet_file
from adamctl.roles.data.readers.columns import in_test_part
from adamctl.roles.data.readers.source import FileSplit, Source
from adamctl.roles.data.sets.skipping import SkippingSource


def write(path: Path, columns: dict[str, Any] | Any, rows: int = 4) -> Path:
    """Writes a file of row groups of `rows` rows, with checksums."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=rows, write_page_checksum=True, compression="zstd")
    return path


def opened(path: Path, shape: tuple[int, ...] | None = None, **columns: Any) -> Any:
    return open_source(DataConfig(format="parquet", source="t", columns=ColumnsConfig(**columns)), path, shape)


def values(of: Source, split: FileSplit = "train") -> list[Any]:
    out = np.empty((len(of.labels(split)), *of.example_shape), of.dtype)
    of.load(split, np.arange(len(out)), out)
    found: list[Any] = out.tolist()
    return found


def lists(kind: Any) -> Any:
    return pa.array([[row, 2] for row in range(6)], kind)


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (3, 3), value).save(file, "PNG")
    return file.getvalue()


TWO_FILES: dict[str, tuple[Any, Any, list[Any]]] = {
    "numbers": ({"x": np.arange(6), "y": np.arange(6) / 2}, np.float32, [[row, row / 2] for row in range(6)]),
    "byte numbers": ({"x": pa.array(range(6), pa.uint8())}, np.uint8, [[row] for row in range(6)]),
    "lists": ({"x": lists(pa.list_(pa.float64()))}, np.float32, [[row, 2] for row in range(6)]),
    "lists of bytes": ({"x": lists(pa.list_(pa.uint8(), 2))}, np.uint8, [[row, 2] for row in range(6)]),
    "bytes": (
        {"x": [bytes([row, 255]) for row in range(6)], "name": ["a"] * 6},
        np.uint8,
        [[r, 255] for r in range(6)],
    ),
    "structs": ({"x": [{"bytes": bytes([row]), "path": None} for row in range(6)]}, np.uint8, [[r] for r in range(6)]),
}


@pytest.mark.parametrize("kind", TWO_FILES)
def test_examples_of_each_kind(tmp_path: Path, kind: str) -> None:
    columns, dtype, expected = TWO_FILES[kind]
    table = pa.table({"label": np.arange(6) % 3, **columns})
    write(tmp_path / "train-0.parquet", table)
    write(tmp_path / "test-0.parquet", table.slice(5))
    source = opened(tmp_path)
    assert source.dtype == dtype and source.value_max == (255 if dtype == np.uint8 else 1)
    assert values(source) == expected and values(source, "test") == expected[5:]
    assert source.labels("train").tolist() == [0, 1, 2, 0, 1, 2] and source.classes == ("0", "1", "2")
    assert source.blocks("train").tolist() == [4, 2] and source.sequential
    out = np.zeros((3, *source.example_shape), np.float32)
    source.load("train", np.array([5, 0, 3]), out)
    assert out.tolist() == [expected[5], expected[0], expected[3]]


@pytest.mark.parametrize("columns", [{}, {"inputs": (0, 2)}, {"targets": (1,), "inputs": (0,)}])
def test_columns_of_the_same_name_are_told(tmp_path: Path, columns: dict[str, Any]) -> None:
    table = pa.Table.from_arrays([pa.array(range(6)) for _ in range(4)], names=["x", "y", "y", "label"])
    write(tmp_path / "train.parquet", table)
    with pytest.raises(ConfigurationError, match="expected columns with different names; found 2 of the name 'y'"):
        opened(tmp_path / "train.parquet", **columns)
    assert opened(tmp_path / "train.parquet", inputs=(0,), label=3).example_shape == (1,)


def test_a_row_group_is_read_once_for_its_examples(tmp_path: Path) -> None:
    columns = {"x": np.random.default_rng(1).random(40), "y": np.zeros(40), "label": np.zeros(40, np.int8)}
    source = opened(write(tmp_path / "train.parquet", columns, 20), inputs=("x",))
    metadata = pq.ParquetFile(tmp_path / "train.parquet").metadata
    once = sum(metadata.row_group(group).column(0).total_compressed_size for group in range(2))
    before, sample = source.read_bytes, metadata.row_group(0).column(0).total_compressed_size
    assert before == sample  # to know what the columns hold
    for _ in range(2):
        values(source)
    assert source.read_bytes - before == once


@pytest.mark.parametrize(
    ("order", "budget_bytes", "reads"),
    [("auto", 10**6, 1), ("auto", 2000, 3), ("auto", None, 3), ("blocks", 10**6, 3)],
)
def test_in_example_order_all_row_groups_stay_if_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any, budget_bytes: int | None, reads: int
) -> None:
    """Each range of a few random examples reads from nearly all of them."""
    monkeypatch.setattr(parquet_file, "_HELD_BYTES_MAX", 100)
    columns = {"x": np.random.default_rng(1).random(800), "label": np.zeros(800, np.int8)}
    path = write(tmp_path / "train.parquet", columns, 200)
    source = open_source(DataConfig(format="parquet", order=order), path, (1,), budget_bytes=budget_bytes)
    before, once = source.read_bytes, source.stored_bytes  # type: ignore[attr-defined]
    out = np.empty((2, 1), np.float32)
    for first in range(3):
        source.load("train", np.array([first, len(source.labels("train")) - 1]), out)
        source.load("train", np.array([300, 500]), out)
    read_bytes = source.read_bytes - before  # type: ignore[attr-defined]
    assert (reads - 1) * once * 0.8 < read_bytes <= reads * once
    assert source.resident_bytes >= source._held._held_bytes  # type: ignore[attr-defined]


def test_a_damaged_row_group_is_read_once_and_not_for_each_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"x": np.random.default_rng(1).random(400), "label": np.zeros(400, np.int8)}
    path = write(tmp_path / "train.parquet", columns, 200)
    write(tmp_path / "test.parquet", columns, 200)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    place = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size // 2
    path.write_bytes(damaged(path.read_bytes(), lambda found: found.__setitem__(place, found[place] ^ 64)))
    source = SkippingSource(opened(tmp_path))
    reads: list[int] = []
    read = parquet_file.ParquetSource._read

    def counted(self: Any, group: Any) -> Any:
        reads.append(group.number)
        return read(self, group)

    monkeypatch.setattr(parquet_file.ParquetSource, "_read", counted)
    values(source)
    assert source.skipped == 200 and reads == [0, 1]


def test_images_that_are_larger_in_their_files_count_as_they_are_there(tmp_path: Path) -> None:
    column = [{"bytes": png(row) + bytes(5000), "path": "a.png"} for row in range(40)]
    source = opened(write(tmp_path / "train.parquet", {"image": column, "label": [0] * 40}), (2, 2, 1))
    assert source.unpacked_bytes >= 40 * 5000


def test_nested_lists_and_rows_take_the_shape_of_the_input(tmp_path: Path) -> None:
    nested = [[[1, 2], [3, row]] for row in range(5)]
    write(tmp_path / "train.parquet", {"x": nested, "label": [0] * 5})
    write(tmp_path / "test.parquet", {"x": nested[:1], "label": [0]})
    assert values(opened(tmp_path, (2, 2, 1)))[4] == [[[1], [2]], [[3], [4]]]
    with pytest.raises(ConfigurationError, match=r"input is \[5\], 5 numbers, but .* has 4 in each row"):
        opened(tmp_path, (5,))


def test_images_are_decoded_to_the_input(tmp_path: Path) -> None:
    column = [{"bytes": png(row), "path": "a.png"} for row in range(6)]
    path = write(tmp_path / "test.parquet", {"image": column, "label": [0] * 6})
    source = opened(path, (2, 2, 1))
    every = np.array(values(source) + values(source, "test"))
    assert sorted(every[:, 0, 0, 0].tolist()) == [0, 1, 2, 3, 4, 5] and (every == every[:, :1, :1]).all()
    with pytest.raises(ConfigurationError, match="its images are scaled to the model's input: say which one"):
        opened(path)
    with pytest.raises(ConfigurationError, match=r"its images need a model input of .*, found \[4\]"):
        opened(path, (4,))


def test_a_fifth_of_the_rows_of_each_file_where_no_file_is_for_tests(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", {"x": np.arange(100), "label": np.arange(100) % 2}, 30)
    source = opened(tmp_path)
    test = in_test_part(0, 100)
    assert values(source, "test") == [[float(row)] for row in np.flatnonzero(test)] * 2
    assert values(source) == [[float(row)] for row in np.flatnonzero(~test)] * 2
    assert source.labels("train").tolist() == (np.flatnonzero(~test) % 2).tolist() * 2
    lengths = [int((~test[start : start + 30]).sum()) for start in range(0, 100, 30)]
    assert source.blocks("train").tolist() == lengths * 2


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b"), [1, 0, 1]),
        ([True, False, True], ("0", "1"), [1, 0, 1]),
    ],
)
def test_labels(tmp_path: Path, labels: Any, classes: tuple[str, ...], numbers: list[int]) -> None:
    write(tmp_path / "train.parquet", {"species": labels, "x": [1.0, 2.0, 3.0]})
    write(tmp_path / "test.parquet", {"species": labels, "x": [1.0, 2.0, 3.0]})
    source = opened(tmp_path, label="species")
    assert source.classes == classes and source.labels("train").tolist() == numbers


@pytest.mark.parametrize("kind", ["columns", "lists"])
def test_targets(tmp_path: Path, kind: str) -> None:
    """Several columns of numbers, or one of lists; here of row groups of 4 rows."""
    rows = np.arange(10)
    two = [[row / 2, -row] for row in range(10)]
    columns = {"y": rows / 2, "z": pa.array(-rows, pa.int32())} if kind == "columns" else {"y": two}
    write(tmp_path / "train-0.parquet", {"x": rows.astype(np.float32), **columns})
    write(tmp_path / "test-0.parquet", {"x": rows.astype(np.float32), **columns})
    found = opened(tmp_path, targets=tuple(columns))
    assert found.targets("train").tolist() == two and found.targets("train").dtype == np.float32
    assert values(found, "test") == [[row] for row in range(10)] and found.classes == ()
    assert found.labels("test").tolist() == [0] * 10
    (tmp_path / "test-0.parquet").unlink()
    by_row = opened(tmp_path / "train-0.parquet", targets=tuple(columns))
    for split in ("train", "test"):
        assert by_row.targets(split).tolist() == [two[int(row)] for (row,) in values(by_row, split)]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([1.0, None], "row group 0, row 1: expected a target, found none"),
        ([1.0, np.inf], "row group 0: expected finite numbers, found inf in example 1"),
        ([[1.0, 2.0], [3.0]], "row group 0, row 1: expected lists of 2, found 1"),
        (["a", "b"], r"expected columns of numbers, or one column of lists of numbers, as targets; found y \(string\)"),
    ],
)
def test_targets_that_are_no_numbers_are_named(tmp_path: Path, column: Any, said: str) -> None:
    path = write(tmp_path / "one.parquet", {"x": [1.0, 2.0], "y": column})
    with pytest.raises(AdamctlError, match=said):
        opened(path, targets=("y",))


def test_targets_of_another_length_in_another_file_are_named(tmp_path: Path) -> None:
    for name, length in (("train-0", 2), ("train-1", 3)):
        write(tmp_path / f"{name}.parquet", {"x": [1.0, 2.0], "y": [[1.0] * length] * 2})
    with pytest.raises(DamagedDataError, match=r"train-1\.parquet: row group 0, row 0: expected 2 numbers, found 3"):
        opened(tmp_path, targets=("y",))


def test_an_empty_row_group_has_no_targets(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.float64(), "y": pa.list_(pa.float64())})
    with pq.ParquetWriter(tmp_path / "train-0.parquet", schema) as file:
        for rows in (0, 2, 0):
            file.write_table(pa.table({"x": [1.0] * rows, "y": [[1.0, 2.0]] * rows}, schema), row_group_size=4)
    assert pq.read_metadata(tmp_path / "train-0.parquet").num_row_groups == 3
    write(tmp_path / "test-0.parquet", {"x": [1.0], "y": [[3.0, 4.0]]})
    found = opened(tmp_path, targets=("y",))
    assert found.targets("train").tolist() == [[1.0, 2.0]] * 2 and found.targets("test").tolist() == [[3.0, 4.0]]


def test_names_of_classes_that_the_writer_left(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "label": [1, 0]})
    told = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    write(tmp_path / "train.parquet", table.replace_schema_metadata({"huggingface": json.dumps(told)}))
    write(tmp_path / "test.parquet", table)
    assert opened(tmp_path).classes == ("cat", "dog")
    table = pa.table({"x": [1.0, 2.0], "label": [1, 2]})
    write(tmp_path / "train.parquet", table.replace_schema_metadata({"huggingface": json.dumps(told)}))
    with pytest.raises(
        DamagedDataError, match=r"train\.parquet: row group 0: expected labels of the 2 classes .* found 2"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [1, 2], "name": ["a", "b"], "label": [0, 1]}, r"found also name \(string\): name the inputs in data"),
        ({"name": ["a", "b"], "label": [0, 1]}, "column 'name' holds string; expected images, bytes, numbers or lists"),
        ({"label": [0, 1]}, "at least one other column"),
        ({"x": pa.array([], pa.int8()), "label": pa.array([], pa.int8())}, "expected rows, found none"),
    ],
)
def test_columns_that_are_no_inputs_are_named(tmp_path: Path, columns: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        opened(write(tmp_path / "a.parquet", columns))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": [1.0] * 6, "label": [0] * 5 + [None]}, "row group 1, row 1: expected a label, found none"),
        ({"x": [1.0] * 6, "label": [0.5] * 6}, "row group 0: expected whole numbers or texts as labels, found double"),
        ({"x": [1.0] * 6, "label": [0] * 5 + [-1]}, "row group 1: expected labels from 0, found -1"),
        ({"x": [1.0] * 5 + [None], "label": [0] * 6}, "row group 1: column x, row 1: expected a number, found none"),
        ({"x": [b"a"] * 5 + [b"ab"], "label": [0] * 6}, "row group 1, row 1: expected 1 bytes, found 2"),
        ({"x": [b"a"] * 5 + [None], "label": [0] * 6}, "row group 1, row 1: expected bytes, found none"),
        ({"x": [[1]] * 5 + [[1, 2]], "label": [0] * 6}, "row group 1, row 1: expected lists of 1, found 2"),
        ({"x": [[1]] * 4 + [[1, 2]] * 2, "label": [0] * 6}, "row group 1, row 0: expected 1 numbers, found 2"),
        ({"x": [[1]] * 5 + [None], "label": [0] * 6}, "row group 1, row 1: expected a list of numbers, found none"),
        ({"x": [[1]] * 5 + [[None]], "label": [0] * 6}, "row group 1, row 1: expected numbers, found none"),
        ({"x": [png(1)] * 5 + [b"no"], "label": [0] * 6}, "row group 1, row 1: expected a complete JPEG or PNG image"),
    ],
)
def test_a_row_unlike_the_others_is_named(tmp_path: Path, columns: Any, said: str) -> None:
    write(tmp_path / "train.parquet", columns)
    write(tmp_path / "test.parquet", {name: column[:1] for name, column in columns.items()})
    shape = (2, 2, 1) if columns["x"][0] == png(1) else None
    with pytest.raises(DamagedDataError, match=r"train\.parquet: " + said):
        values(opened(tmp_path, shape))


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", {"x": [1.0], "label": [0]})
    write(tmp_path / "test.parquet", {"x": [1], "label": [0]})
    with pytest.raises(DamagedDataError, match=r"test\.parquet: expected the columns of .*x: double.*; found x: int64"):
        opened(tmp_path)


def damaged(content: bytes, change: Callable[[bytearray], object]) -> bytes:
    found = bytearray(content)
    change(found)
    return bytes(found)


def test_damage_ends_with_a_typed_error_that_names_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    table = {"x": rng.integers(0, 256, (60, 16)).tolist(), "label": rng.integers(0, 3, 60)}
    path = write(tmp_path / "a.parquet", pa.table(table), 20)
    whole, right = path.read_bytes(), values(opened(path))
    refused = 0
    for seed in range(150):
        place = int(rng.integers(len(whole)))
        if seed % 3:
            path.write_bytes(damaged(whole, lambda found, place=place: found.__setitem__(place, found[place] ^ 64)))  # type: ignore[misc]
        else:
            path.write_bytes(whole[:place])
        try:
            found = values(opened(path))
        except AdamctlError as error:
            refused += 1
            assert "a.parquet" in str(error)
        else:
            assert seed % 3 and (found == right or place > len(whole) - 2500), f"seed {seed}: byte {place}"
    assert refused > 100


def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"x": np.zeros(9), "label": np.zeros(9, np.int8)})
    source = opened(path)
    write(path, {"x": np.ones(90), "label": np.zeros(90, np.int8)})
    with pytest.raises(DamagedDataError, match=r"a\.parquet: expected the file of \d+ bytes that was there when"):
        source.load("train", np.arange(len(source.labels("train"))), np.empty((len(source.labels("train")), 1)))
