"""`bench sandblaster` on little: every part that is asked for has a row, and is judged by its own ratio and bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.bench.sandblaster import sandblaster
from adamctl.bench.sandblaster.evaluation import EvaluationSpeed
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.sandblaster import BARS, PARTS, SandblasterSettings
from adamctl.cli.bench import sandblaster as cli
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from tests.optimizers.problems import quadratic

LITTLE = ("--only", "kernels", "--only", "evaluations", "--elements", "2048", "--turns", "1", "--evaluations", "3")


@pytest.fixture(autouse=True)
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandblaster, "PROBLEMS", {"bowl": lambda: quadratic(10.0, 8)})


def test_the_parts_that_are_asked_for_are_measured() -> None:
    result = CliRunner().invoke(application, ["bench", "sandblaster", *LITTLE, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = {row["part"]: row for row in report["results"]}
    assert list(rows) == ["evaluations", "kernels"], "not evaluations an iteration, which are measured with them"
    kernels = rows["kernels"]["details"]
    assert rows["kernels"]["ratio"] == pytest.approx((kernels["measure_s"] + kernels["step_s"]) / kernels["copy_s"])
    assert rows["evaluations"]["bar"] == "<= 1.1" and rows["evaluations"]["details"]["problems"] == 1


def test_a_table_shows_each_row_with_its_bar() -> None:
    result = CliRunner().invoke(application, ["bench", "sandblaster", *LITTLE])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["part", "what"]
    assert lines[1].startswith("evaluations") and "<= 1.1" in lines[1]
    assert "elements 2,048" in result.stdout


def test_the_worse_of_threads_alone_and_whole_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = EvaluationSpeed(1, 3.0, 2.0, 1.5, 1.4, (1.3, 1.6))
    monkeypatch.setattr(sandblaster, "measure_evaluation", lambda *arguments, **named: speed)
    for whole, ratio in ((1.2, 1.2), (1.7, 1.5)):
        monkeypatch.setattr(sandblaster, "measure_images", lambda *_, found=whole: {"whole_run_ratio": found})
        settings = SandblasterSettings(only=("images",), workload=Workload("digits"))
        report = sandblaster.run_sandblaster_benchmark(settings)
        (row,) = report["results"]
        assert row["ratio"] == ratio and row["details"]["ratio_vs_downpour"] == 1.5


def test_every_bar_is_measured_by_one_part_and_is_a_choice_of_the_command() -> None:
    assert [name for names in PARTS for name in names] == list(BARS) == list(cli.PARTS)


def test_data_that_are_not_there_are_missed_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mnist"):
        sandblaster.run_sandblaster_benchmark(SandblasterSettings(data=(str(tmp_path),)))


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"--only: expected some of evaluations, .*; found nothing"):
        SandblasterSettings(only=("nothing",))
    assert CliRunner().invoke(application, ["bench", "sandblaster", "--only", "nothing"]).exit_code == 2
