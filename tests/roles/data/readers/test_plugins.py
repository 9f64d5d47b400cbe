"""Readers are found by name; one that somebody else's package registers is one like any other."""

from __future__ import annotations

import errno
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.config import formats
from adamctl.config.data import DataConfig
from adamctl.config.formats import BUILT_IN, READERS
from adamctl.errors import ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.plugins import PluginGroup
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.describe.look import Needs, look
from adamctl.roles.data.readers import can_peek, open_source, peek_source
from adamctl.roles.data.readers.plugins import GuardedSource, Reader, find, find_by_content, find_by_suffix
from tests import packages
from tests.roles.data.readers import third_party

NEEDS = Needs(input_shape=(3,), outputs=2, batch=2, seed=0)


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the format of somebody else's package, which is installed for this test."""
    third_party.use(tmp_path, monkeypatch)
    path = tmp_path / "data.lines"
    path.write_text("0 1 2 3\n1 4 5 6\n0 7 8 9\n")
    return path


@pytest.mark.parametrize(
    ("error", "of_the_file"),
    [
        (OSError(errno.ESTALE, "Stale file handle", "/nfs/x"), False),
        (OSError("image file is truncated"), True),
        (KeyError("seven"), True),
    ],
)
def test_only_damage_is_skipped_and_not_a_file_system_that_fails(error: Exception, of_the_file: bool) -> None:
    class Failing:
        origin = "/nfs/x"

        def load(self, *arguments: object) -> None:
            raise error

    source = GuardedSource(Reader("mine", (), open="mine:open_mine"), Failing())
    with pytest.raises(DamagedDataError, match="/nfs/x: train, example 3: ") as caught:
        source.load("train", np.array([3]), np.empty((1, 1), np.float32))
    assert isinstance(caught.value, ChangedDataError) != of_the_file


def test_built_in_ones_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginGroup, "installed", lambda group: pytest.fail("it searched the installed packages"))
    assert [find(name).name for name in BUILT_IN] == list(BUILT_IN)
    assert find_by_suffix("data.NPZ") is find("npz")
    without = [name for name in BUILT_IN if not can_peek(name)]
    assert without == ["digits", "csv", "parquet"]


def test_entry_points_name_the_built_in_readers() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    points = [EntryPoint(name, value, READERS.group) for name, value in project["entry-points"][READERS.group].items()]
    assert [point.name for point in points] == list(BUILT_IN)
    assert all(point.load() is find(point.name) for point in points)
    extras = {find(name).extra for name in BUILT_IN} - {""}
    assert extras and extras <= project["optional-dependencies"].keys()


def test_examples_of_another_package_are_read(lines: Path) -> None:
    source = open_source(DataConfig(format="lines", source="."), lines, [3])
    out = np.empty((2, 3), np.float32)
    source.load("train", np.array([1, 0]), out)
    assert out.tolist() == [[7, 8, 9], [4, 5, 6]] and source.labels("train").tolist() == [1, 0]


def test_a_reader_that_asks_for_it_is_told_the_configuration(lines: Path) -> None:
    source = open_source(DataConfig(format="told", source=lines.name), lines.with_name("elsewhere"), [3])
    assert len(source.labels("train")) == 2


def test_a_bare_name_may_lack_the_suffix_of_its_format(lines: Path) -> None:
    assert find_source(DataConfig(format="lines", source="data", search=(str(lines.parent),))) == lines
    with pytest.raises(ConfigurationError, match="no data set called 'data'"):
        find_source(DataConfig(format="peeked", source="data", search=(str(lines.parent),)))


def test_a_run_looks_at_what_has_no_peek_by_opening_it(lines: Path) -> None:
    assert look(DataConfig(format="lines", source=str(lines)), NEEDS).examples["train"] == 2
    lines.write_text("0 1 2 3\n1 4 nan 6\n0 7 8 9\n")
    with pytest.raises(DamagedDataError, match=r"data\.lines: train: expected finite numbers, found nan in example 0"):
        look(DataConfig(format="lines", source=str(lines)), NEEDS)
    assert look(DataConfig(format="peeked", source=str(lines)), NEEDS).examples["train"] == 2
    assert peek_source(DataConfig(format="peeked", source="."), lines, [3], 1, 1.0).classes == ("peeked", "peeked too")


def test_a_folder_is_known_by_its_files_if_it_has_no_folders(tmp_path: Path) -> None:
    for name, format in (("a.parquet", "parquet"), ("b.npz", "npz"), ("c.tsv", "csv"), ("d.tar", "tar")):
        folder = tmp_path / format
        folder.mkdir()
        (folder / ".hidden.npz").touch()
        (folder / "readme").touch()
        (folder / name).touch()
        assert find_by_content(folder) is find(format) is find_by_content(folder / name)
    (tmp_path / "csv" / "prepared.json").touch()
    assert find_by_content(tmp_path / "csv") is find("prepared")
    (tmp_path / "npz" / "cat").mkdir()
    assert find_by_content(tmp_path / "npz") is None and find_by_content(tmp_path / "none") is None


def test_what_a_reader_does_not_expect_is_damage_that_names_the_file(lines: Path) -> None:
    lines.write_text("0 1 2\n1 two 3\n")
    said = r"data\.lines: expected data of format 'lines'.*open_lines\) failed with ValueError: .*'two'"
    with pytest.raises(DamagedDataError, match=said):
        open_source(DataConfig(format="lines", source="."), lines, [2])


def test_what_a_reader_does_not_expect_while_it_loads_is_damage_too(lines: Path) -> None:
    lines.write_text("0 1 2\n0 1 2\n1 7 7\n")
    source = open_source(DataConfig(format="crumbling", source="."), lines, [2])
    out = np.empty((1, 2), np.float32)
    source.load("train", np.array([0]), out)
    said = r"data\.lines: train, example 1: expected data of format 'crumbling'; its reader \(load, .*KeyError: 'seven'"
    with pytest.raises(DamagedDataError, match=said):
        source.load("train", np.array([1]), out)
    assert source.stored_bytes == lines.stat().st_size


def test_a_readers_own_errors_stay_as_they_are(lines: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^the model's input is \[5\], but the examples of .* are \[3\]"):
        open_source(DataConfig(format="lines", source="."), lines, [5])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "(lines_package.no_such_module:READER) cannot be loaded: No module named"),
        ("nothing", "expected an adamctl.roles.data.readers.plugins.Reader, found int"),
        ("renamed", "expected a reader of that name, found 'lines'"),
        ("needing", "No module named 'no_such_package'; pip install 'lines-package[all]'"),
        ("late", "No module named 'no_such_package'; pip install 'lines-package[all]'"),
        ("absent", "(lines_package.reader:no_such_function) cannot be loaded"),
        ("text", "expected a function, found lines_package.reader:TEXT"),
        ("misfit", "expected example_shape [3, 1], the model's input, found [3]"),
        ("overfull", "expected blocks of train that hold its 2 examples, found 1000 in them"),
        ("half", "returned no usable Source: it has no 'classes'"),
        ("line", f"expected one of {', '.join(BUILT_IN)}, absent, broken"),
    ],
)
def test_what_cannot_be_used_is_named(lines: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_source(DataConfig(format=name, source="."), lines, (3,) if name == "overfull" else (3, 1))
    assert said in str(caught.value)


def test_two_packages_with_one_name_are_refused(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages.use(lines.parent / "other", "other", {}, READERS.group, {"lines": "other:READER"}, monkeypatch)
    with pytest.raises(ConfigurationError, match="two installed packages add a data format called 'lines'"):
        find("lines")


def test_inspect_knows_files_by_their_suffix_and_is_harmed_by_no_broken_package(lines: Path) -> None:
    done = CliRunner().invoke(application, ["data", "inspect", str(lines)])
    assert done.exit_code == 0 and done.output.startswith(f"{lines}: lines, from {lines}")
    done = CliRunner().invoke(application, ["data", "inspect", str(lines), "--format", "lnies"])
    assert isinstance(done.exception, ConfigurationError)
    assert str(done.exception).startswith("--format: found 'lnies'; expected one of digits, idx,")
    assert str(done.exception).endswith('Did you mean "lines"?')


def test_names_alone_load_nothing(lines: Path) -> None:
    assert formats.formats() == [*BUILT_IN, *third_party.NAMES]
    assert formats.is_format("lines") and not formats.is_format("line")
    assert "lines_package" not in sys.modules
    find("lines")
    assert "lines_package.reader" not in sys.modules
