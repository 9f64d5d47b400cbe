"""`bench data` on little: the parts that are asked for have a row for each of their bars."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from adamctl.bench.bars import Bar
from adamctl.bench.data.data import run_data_benchmark
from adamctl.bench.data.parts import PARTS, DataSettings, Part
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError


def test_the_parts_that_are_asked_for_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = {"one": Bar("what", 2.0), "other": Bar("what", 2.0, at_least=True)}
    parts = {"a": Part(f"{__name__}:measure_a", bars), "b": Part("nowhere:measure", {"three": Bar("what", 1.0)})}
    report = run_data_benchmark(DataSettings(rounds=3), ("a",), parts=parts)
    rows = {row["part"]: row for row in report["results"]}
    assert {name: row["meets"] for name, row in rows.items()} == {"one": False, "other": True}
    assert rows["one"]["details"] == {"rounds": 3}
    with pytest.raises(ModuleNotFoundError):
        run_data_benchmark(DataSettings(), parts=parts)


def measure_a(settings: DataSettings, progress: object) -> dict[str, dict[str, float]]:
    return {name: {"ratio": 3.0, "rounds": settings.rounds} for name in ("one", "other")}


def test_every_part_names_a_function_and_bars_of_its_own() -> None:
    assert all(callable(part.load()) for part in PARTS.values())
    names = [name for part in PARTS.values() for name in part.bars]
    assert len(names) == len(set(names))


def test_a_table_shows_each_row_with_its_bar() -> None:
    line = ["bench", "data", "--only", "warps", "--rounds", "1", "--seconds", "0.001"]
    result = CliRunner().invoke(application, line)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].startswith("warps-scipy") and ">= 10" in result.stdout.splitlines()[1]
    as_json = CliRunner().invoke(application, [*line, "--json"])
    assert [row["part"] for row in json.loads(as_json.stdout)["results"]] == list(PARTS["warps"].bars)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--only: expected some of .*warps.*; found nothing"):
        run_data_benchmark(DataSettings(), ("nothing",))
    assert CliRunner().invoke(application, ["bench", "data", "--only", "nothing"]).exit_code == 2
