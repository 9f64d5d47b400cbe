"""`bench figures`: what it is asked for is looked at before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from adamctl.bench import namespaces
from adamctl.bench.figures import figures, parts
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from tests.bench.figures.fake_part import PART, FakeModule

pytest.importorskip("matplotlib")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    module = FakeModule()
    for place in (figures, parts):
        monkeypatch.setattr(place, "PARTS", {"fake": PART})
    monkeypatch.setattr(parts.Part, "load", lambda part: module)
    monkeypatch.setattr(figures, "draw", lambda figure, title, path, *, is_quick: path.write_text(title))
    return module


def test_figures_are_listed(module: FakeModule) -> None:
    result = CliRunner().invoke(application, ["bench", "figures", "--list"])
    assert result.output.splitlines()[1].split() == ["fake", "1", *PART.title.split()]
    listed = json.loads(CliRunner().invoke(application, ["bench", "figures", "--list", "--json"]).stdout)
    assert listed["figures"] == {"fake": {"title": PART.title, "minutes": 1}}


def test_it_prints_table_bars_and_words(module: FakeModule, tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["bench", "figures", "fake", "--folder", str(tmp_path), "--quick"])
    assert result.exit_code == 0, result.output
    for said in ("setting  rate", "met: speed of two", "not settled: order", "A network of one layer.", "TINY SIZE"):
        assert said in result.stdout
    assert "a try of tiny size; load before it" in result.stderr


def test_json_is_what_from_takes(module: FakeModule, tmp_path: Path) -> None:
    arguments = ["bench", "figures", "--json", "--folder"]
    first = CliRunner().invoke(application, [*arguments, str(tmp_path / "one"), "fake"])
    file = tmp_path / "report.json"
    file.write_text(first.stdout)
    module.measured.clear()
    again = CliRunner().invoke(application, [*arguments, str(tmp_path / "two"), "--from", str(file)])
    assert json.loads(again.stdout)["results"] == json.loads(first.stdout)["results"] and not module.measured


def test_a_figure_that_is_not_known_is_bad_input(module: FakeModule, tmp_path: Path) -> None:
    error = CliRunner().invoke(application, ["bench", "figures", "adam-99", "--folder", str(tmp_path)]).exception
    assert isinstance(error, ConfigurationError) and "expected some of fake; found adam-99" in str(error)


def test_links_are_measured_inside_a_namespace(
    module: FakeModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = parts.Part(PART.title, 1, "fake", has_machines=False, has_links=True)
    monkeypatch.setattr(figures, "PARTS", {"fake": part})
    monkeypatch.setattr(namespaces, "missing", lambda: "")
    monkeypatch.setattr(namespaces, "is_inside", lambda: False)
    went: list[list[str]] = []

    def go_inside(arguments: list[str]) -> NoReturn:
        went.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(namespaces, "go_inside", go_inside)
    line = ["bench", "figures", "fake", "--folder"]
    CliRunner().invoke(application, [*line, str(tmp_path / "one")])
    assert went == [sys.argv[1:]] and not module.measured
    (tmp_path / "one" / "fake").mkdir(parents=True, exist_ok=True)
    # An earlier version has measured something else, and all of that.
    (tmp_path / "one" / "fake" / "rounds.jsonl").write_text('{"done": true}\n')
    CliRunner().invoke(application, [*line, str(tmp_path / "one")])
    assert len(went) == 2 and not module.measured
    monkeypatch.setattr(namespaces, "missing", lambda: "needs Linux")
    error = CliRunner().invoke(application, [*line, str(tmp_path / "two")]).exception
    assert isinstance(error, ConfigurationError) and str(error) == "needs Linux" and len(went) == 2


def test_what_has_links_is_drawn_again_anywhere(
    module: FakeModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["bench", "figures", "fake", "--folder", str(tmp_path)]
    CliRunner().invoke(application, line)
    part = parts.Part(PART.title, 1, "fake", has_machines=False, has_links=True)
    monkeypatch.setattr(figures, "PARTS", {"fake": part})
    monkeypatch.setattr(namespaces, "missing", lambda: "needs Linux")
    module.measured.clear()
    result = CliRunner().invoke(application, line)
    assert result.exit_code == 0 and not module.measured
