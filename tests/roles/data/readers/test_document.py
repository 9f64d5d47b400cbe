"""What docs/readers.md shows works as it stands there."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.load import load_experiment
from adamctl.errors import DamagedDataError
from adamctl.roles.data.catalogue import find_source
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import Source
from tests.config.small_network import NETWORK

PAGE = (Path(__file__).parents[4] / "docs" / "readers.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's package installed, its experiment and a table."""
    code, information = tmp_path / "mypackage", tmp_path / "mypackage-1.0.dist-info"
    code.mkdir()
    information.mkdir()
    (code / "__init__.py").touch()
    (code / "description.py").write_text(PYTHON[0])
    (code / "csv_reader.py").write_text(PYTHON[1])
    ((group, points),) = tomllib.loads(TOML[0])["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (tmp_path / "exp.toml").write_text(NETWORK + TOML[1])
    (tmp_path / "table.csv").write_text("".join(f"{row % 3},{row},0.5\n" for row in range(10)))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mypackage", "mypackage.description", "mypackage.csv_reader"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def opened(folder: Path) -> Source:
    config = load_experiment(folder / "exp.toml").experiment.data
    return open_source(config, find_source(config), (2,))


def test_the_package_is_found_and_reads_its_table(folder: Path) -> None:
    source = opened(folder)
    out = np.empty((2, 2), np.float32)
    source.load("train", np.array([0, 7]), out)
    assert out.tolist() == [[2, 0.5], [9, 0.5]] and source.labels("test").tolist() == [0, 1]


def test_a_damaged_table_is_refused_with_its_name_and_place(folder: Path) -> None:
    (folder / "table.csv").write_text("0,1,2\n1,x,2\n")
    with pytest.raises(DamagedDataError, match=r"table\.csv: expected a table of numbers, found: .*'x'.* row 1"):
        opened(folder)


def test_every_attribute_of_a_source_is_told() -> None:
    for name in (*Source.__annotations__, "labels(", "load("):
        assert f"`{name}" in PAGE
