"""Tables as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import ColumnsConfig, DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.columns import in_test_part
from adamctl.roles.data.readers.source import FileSplit, Source


def opened(path: Path, shape: tuple[int, ...] | None = None, columns: ColumnsConfig | None = None) -> Source:
    return open_source(DataConfig(format="csv", source="t", columns=columns or ColumnsConfig()), path, shape)


def written(folder: Path, text: str, name: str = "train.csv") -> Path:
    """Writes a table; beside `train.csv` also the same for tests, so that no line of it is taken for them."""
    (folder / name).write_text(text)
    if name == "train.csv":
        (folder / "test.csv").write_text(text)
    return folder / name


def values(of: Source, split: FileSplit = "train") -> list[list[float]]:
    count = len(of.labels(split))
    out = np.empty((count, *of.example_shape), np.float32)
    of.load(split, np.arange(count), out)
    found: list[list[float]] = out.reshape(count, -1).tolist()
    return found


def test_a_table_with_names_and_text_labels(tmp_path: Path) -> None:
    written(tmp_path, 'a,"b, too",kind\n1,2.5,"dog"\n-3e2, 4 ,cat\n\n5,6,dog\n')
    written(tmp_path, "a,b,kind\n7,8,cat\n", "test.csv")
    found = opened(tmp_path)
    assert found.classes == ("cat", "dog") and found.example_shape == (2,) and found.dtype == np.float32
    assert values(found) == [[1, 2.5], [-300, 4], [5, 6]] and values(found, "test") == [[7, 8]]
    assert found.labels("train").tolist() == [1, 0, 1] and found.labels("test").tolist() == [0]


def test_a_table_of_numbers_alone(tmp_path: Path) -> None:
    written(tmp_path, "1;2;0\n3;4;2\n")
    found = opened(tmp_path)
    assert values(found) == [[1, 2], [3, 4]] and found.labels("train").tolist() == [0, 2]
    assert found.classes == ("0", "1", "2")


def test_a_first_line_of_numbers_is_names_if_one_of_them_is_the_labels(tmp_path: Path) -> None:
    written(tmp_path, "0\t1\tlabel\n5\t6\t1\n")
    assert values(opened(tmp_path)) == [[5, 6]]
    written(tmp_path, "1,2,x\n5,6,x\n")
    assert values(opened(tmp_path)) == [[1, 2], [5, 6]]


def test_several_files_are_one_table(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c_test")):
        written(tmp_path, f"{number},x{number}\n", f"{name}.csv")
    found = open_source(DataConfig(format="csv", source="t", test_files="*_test.csv"), tmp_path, None)
    assert values(found) == [[0], [1]] and values(found, "test") == [[2]] and found.classes == ("x0", "x1", "x2")
    assert len(opened(tmp_path).labels("train")) == 3 - int(in_test_part(0, 1)[0]) * 3


def test_columns_are_chosen_and_others_may_hold_anything(tmp_path: Path) -> None:
    written(tmp_path, "id,species,x,y\nrow one,b,1,2\nrow two,a,3,4\n")
    found = opened(tmp_path, (2,), ColumnsConfig(label="species", inputs=("y", 2)))
    assert values(found) == [[2, 1], [4, 3]] and found.labels("train").tolist() == [1, 0]


def targets(of: Source, split: FileSplit = "train") -> list[list[float]]:
    found: list[list[float]] = of.targets(split).tolist()  # type: ignore[attr-defined]
    return found


def test_columns_of_targets_take_the_place_of_the_label(tmp_path: Path) -> None:
    table = "rooms,price,near,rent\n3,120.5,park,7\n2,-1e2,river,0.25\n"
    columns = ColumnsConfig(targets=("rent", "price"), inputs=("rooms",))
    found = opened(written(tmp_path, table).parent, columns=columns)
    assert values(found) == [[3], [2]] and targets(found) == targets(found, "test") == [[7, 120.5], [0.25, -100]]
    assert found.classes == () and found.labels("train").tolist() == [0, 0]
    one = opened(written(tmp_path, "1;2;0.5\n3;4;2\n").parent, columns=ColumnsConfig(targets=(2,)))
    assert values(one) == [[1, 2], [3, 4]] and targets(one) == [[0.5], [2]]


def test_a_fifth_of_the_lines_of_one_file_with_targets_is_for_tests(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("x,y\n" + "".join(f"{row},{row / 2}\n" for row in range(50)))
    found = opened(tmp_path / "one.csv", columns=ColumnsConfig(targets=("y",)))
    for split in ("train", "test"):
        assert targets(found, split) == [[one / 2] for (one,) in values(found, split)] != []
    assert len(targets(found)) + len(targets(found, "test")) == 50


@pytest.mark.parametrize(("cell", "said"), [("", "an empty cell"), ("nan", "'nan'"), ("dear", "'dear'")])
def test_a_target_that_is_no_finite_number_is_named_with_line_and_column(tmp_path: Path, cell: str, said: str) -> None:
    path = written(tmp_path, f"x,y\n1,2\n3,{cell}\n")
    with pytest.raises(DamagedDataError, match=rf"line 3, column 1 \(y\): expected a finite number, found {said}"):
        opened(path.parent, columns=ColumnsConfig(targets=("y",)))


@pytest.mark.parametrize("place", [0, 1])
def test_a_number_that_float32_does_not_hold_is_named_with_line_and_column(tmp_path: Path, place: int) -> None:
    cells = ["3", "4"]
    cells[place] = "-1e39"
    path = written(tmp_path, f"x,y\n1,2\n{','.join(cells)}\n")
    with pytest.raises(
        DamagedDataError, match=rf"line 3, column {place} .*expected a number from -3.4e\+38 .* '-1e39'"
    ):
        opened(path.parent, columns=ColumnsConfig(targets=("y",)))


def test_one_file_gives_a_fifth_to_tests_and_an_added_line_moves_no_other(tmp_path: Path) -> None:
    lines = [f"{row},{row % 2}\n" for row in range(200)]
    first = opened(written(tmp_path, "".join(lines), "all.csv"))
    second = opened(written(tmp_path, "".join([*lines, "200,1\n"]), "all.csv"))
    assert 20 < len(first.labels("test")) < 60
    assert sorted(values(first) + values(first, "test")) == [[row] for row in range(200)]
    moved = [row for row in values(second, "test") if row not in values(first, "test")]
    assert moved in ([], [[200]])


def test_rows_take_the_shape_of_an_image(tmp_path: Path) -> None:
    assert opened(written(tmp_path, "1,2,3,4,0\n" * 9), (2, 2, 1)).example_shape == (2, 2, 1)
    with pytest.raises(ConfigurationError, match=r"input is \[3\], 3 numbers, but .*train\.csv has 4"):
        opened(tmp_path / "train.csv", (3,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,label\n1,2,0\n1,x,0\n", r"train\.csv: line 3, column 1 \(b\): expected a finite number, found 'x'"),
        ("1,2,0\n\n1,,0\n", r"line 3, column 1 \(1\): expected a finite number, found an empty cell"),
        ("1,2,0\n1,nan,0\n", r"line 2, column 1 \(1\): expected a finite number, found 'nan'"),
        ("1,2,0\n1,2\n", r"train\.csv: line 2: expected 3 columns, as in the first line; found 2"),
        ("1,2,0\n1,2,0,4\n", r"line 2: expected 3 columns, as in the first line; found 4"),
        ("a,b,label\n1,2,\n", r"line 2, column 2 \(label\): expected a label, found an empty cell"),
        ("a,b,label\n", "expected at least one row, found none"),
        ("one\n", r"expected columns with commas, semicolons or tabs between them, found \['one'\]"),
        ("", "the file is empty"),
    ],
)
def test_what_is_damaged_is_named_with_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, text)
    with pytest.raises(DamagedDataError, match=said):
        opened(tmp_path)


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"1,2,0\n" * 20_000 + b"\xff\xfe,2,0\n")
    with pytest.raises(DamagedDataError, match=r"train\.csv: expected a table as text in UTF-8"):
        opened(tmp_path)


@pytest.mark.parametrize("cell", [b'"' + b"x" * 140_000, b"1" * 20_000 + b"\xff"])
def test_a_first_row_that_cannot_be_read_is_damage(tmp_path: Path, cell: bytes) -> None:
    """A quote that is never closed takes more for its cell than there may be; the other byte comes after many good."""
    (tmp_path / "train.csv").write_bytes(b"a,b\n" + cell + b",1\n")
    with pytest.raises(DamagedDataError, match=r"train\.csv: expected a table as text in UTF-8, found: "):
        opened(tmp_path / "train.csv")


def test_folders_must_hold_what_they_should_and_tables_be_alike(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected files that end in \.csv or \.tsv, found none"):
        opened(tmp_path)
    written(tmp_path, "1,2,0\n")
    written(tmp_path, "1,0\n", "test.csv")
    with pytest.raises(DamagedDataError, match=r"test\.csv: expected 2 inputs, as in train\.csv; found 1"):
        opened(tmp_path)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "".join(f"1,{row}.5\n" for row in range(9000)))
    with pytest.raises(ConfigurationError, match="at most 8192 classes, found more in the label's column '1'"):
        opened(tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(ConfigurationError, match="its arrays need 72,008 bytes of memory, and 1,000 are available"):
        opened(tmp_path)
