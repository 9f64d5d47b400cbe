"""`bench metrics`: the experiment is looked at before anything begins, wherever the command runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "digits.toml"
BEGINS = "adamctl.bench.metrics.run_metrics_benchmark"


def test_an_experiment_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BEGINS, lambda *given: pytest.fail("it began"))
    error = CliRunner().invoke(application, ["bench", "metrics", "nowhere.toml"]).exception
    assert isinstance(error, ConfigurationError) and "nowhere.toml: no such experiment file" in str(error)


def test_an_experiment_is_found_from_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLE, tmp_path / "mine.toml")
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []

    def begin(*given: Any) -> dict[str, Any]:
        asked.extend(given)
        return {"results": [{"meets": True}]}

    monkeypatch.setattr(BEGINS, begin)
    result = CliRunner().invoke(application, ["bench", "metrics", "mine.toml", "--json"])
    assert result.exception is None and str(tmp_path / "mine.toml") in asked  # the run's own folder is another one
