"""The picture of a run's losses."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.cli.run.plot import draw
from adamctl.errors import ConfigurationError
from adamctl.launch.run_curves import Curves, Point
from tests.launch.test_run_curves import iteration, written

pytest.importorskip("matplotlib")

HELD_OUT = [Point(2.0, 1.0, 1.5)]


def texts(picture: Path) -> str:
    """Returns what a picture says; matplotlib draws letters, and notes in comments what they are."""
    ElementTree.parse(picture)
    return picture.read_text()


def test_of_a_batch_algorithm_over_evaluations_and_seconds(tmp_path: Path) -> None:
    training = [Point(float(n), n / 10, 10.0**-n) for n in range(1, 5)]
    draw(Curves("lbfgs", "test", training, HELD_OUT), "digits/001", tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    for text in ("digits/001: lbfgs", "evaluations of the whole batch", "seconds of training", "with the L2 term"):
        assert text in found
    assert "10^{-3}" in found, "a logarithmic axis"


@pytest.mark.parametrize("losses", [(2.0, 1.0), (100.0, 0.0), (3.0, -1.0)])
def test_losses_near_each_other_or_not_above_0_are_on_a_linear_axis(tmp_path: Path, losses: tuple[float, ...]) -> None:
    draw(Curves("", "test", [Point(1.0, 1.0, loss) for loss in losses]), "digits/001", tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert "passes over the training data" in found and "10^{" not in found and "L2" not in found


def test_the_command(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "digits" / "001"
    run.mkdir(parents=True)
    (run / "experiment.toml").touch()
    picture = tmp_path / "losses.png"
    arguments = ["run", "plot", "digits", str(picture), "--run-dir", str(tmp_path / "runs")]
    found = CliRunner().invoke(application, arguments)
    assert isinstance(found.exception, ConfigurationError) and "metrics.jsonl cannot be read" in str(found.exception)
    written(run, iteration(1, 2.0), iteration(2, 0.1))
    found = CliRunner().invoke(application, arguments)
    assert found.exit_code == 0 and picture.read_bytes()[:4] == b"\x89PNG", found.output
