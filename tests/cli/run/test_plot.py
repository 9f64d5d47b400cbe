"""What runs measured, as a picture and in characters: which runs, under which names, and what is on the axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner, Result

from adamctl.cli.main import application
from adamctl.cli.run.plot import draw, in_characters, run_names
from adamctl.errors import ConfigurationError
from adamctl.launch.run_curves import Curves, Point
from adamctl.launch.run_panels import panels
from tests.launch.test_run_curves import iteration, written

pytest.importorskip("matplotlib")

HELD_OUT = [Point(2.0, 1.0, 1.5)]
DOWNPOUR = Curves(
    training=[Point(1.0, 1.0, 2.0), Point(2.0, 2.0, 1.0)],
    held_out=HELD_OUT,
    metric_values=[Point(2.0, 2.0, 0.9)],
    rate=[Point(1.0, 1.0, 12000.0)],
    staleness=[Point(1.0, 1.0, 0.0)],
    waiting_share=[Point(1.0, 1.0, 0.02)],
)


def lbfgs() -> Curves:
    return Curves("lbfgs", "test", [Point(float(n), n / 10, 10.0**-n) for n in range(1, 5)], HELD_OUT)


def picture(tmp_path: Path, runs: Sequence[Curves], names: Sequence[str]) -> str:
    """Returns what a picture says; matplotlib draws letters, and notes in comments what they are."""
    draw(panels(runs), names, tmp_path / "a.svg")
    ElementTree.parse(tmp_path / "a.svg")
    return (tmp_path / "a.svg").read_text()


@pytest.mark.slow
def test_of_a_batch_algorithm_over_evaluations_and_seconds(tmp_path: Path) -> None:
    found = picture(tmp_path, [lbfgs()], ["digits/001"])
    for text in ("digits/001", "evaluations of the whole batch", "seconds of training", "with the L2 term"):
        assert f"<!-- {text} -->" in found or text in found
    assert "<!-- 0.001 -->" in found and "<!-- 0.0005 -->" in found, "a logarithmic axis with plain numbers"
    assert "staleness" not in found and "top-1" not in found, "what was not measured has no axes"


def test_of_several_runs_each_has_its_name_and_axes_fit_both(tmp_path: Path) -> None:
    found = picture(tmp_path, [DOWNPOUR, lbfgs()], ["digits/001", "digits_lbfgs/002"])
    for text in ("digits/001", "digits_lbfgs/002", "passes; evaluations of a batch algorithm", "training", "test",
                 "staleness, pushes of others", "share of time waiting for data", "12,000", "10.0%"):  # fmt: skip
        assert f"<!-- {text} -->" in found, text


def test_runs_are_told_apart_by_the_ends_of_their_paths() -> None:
    assert run_names([Path("/a/digits/001"), Path("/b/digits/002")]) == ["digits/001", "digits/002"]
    assert run_names([Path("/a/digits/001"), Path("/b/digits/001")]) == ["a/digits/001", "b/digits/001"]


def test_in_characters_every_line_fits_and_every_mark_is_explained() -> None:
    for width in (40, 80, 130):
        lines = in_characters(panels([DOWNPOUR, lbfgs()]), ["digits/001", "digits_lbfgs/002"], width)
        assert max(map(len, lines[:-4])) <= width
    assert lines[-4:] == [
        "a  digits/001: training",
        "A  digits/001: test",
        "b  digits_lbfgs/002: training, with the L2 term",
        "B  digits_lbfgs/002: test",
    ]
    assert sum(line.count("b") for line in lines[:14]) > 40, "the line of the second run"
    alone = in_characters(panels([DOWNPOUR]), ["digits/001"], 80)
    assert alone[-2:] == [".  digits/001: training", "o  digits/001: test"]
    assert "loss" in alone[0] and any("top-1" in line for line in alone)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    found = [tmp_path / "runs" / name for name in ("digits/001", "digits/002", "mnist/001")]
    for folder in found:
        folder.mkdir(parents=True)
        (folder / "experiment.toml").touch()
    return found


def plot(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(application, ["plot", *arguments, "--run-dir", str(tmp_path / "runs")])


def test_the_command(tmp_path: Path, folders: list[Path]) -> None:
    image = tmp_path / "losses.png"
    found = plot(tmp_path, "digits", "--output", str(image))
    assert isinstance(found.exception, ConfigurationError) and "metrics.jsonl cannot be read" in str(found.exception)
    for folder in folders:
        written(folder, iteration(1, 2.0), iteration(2, 0.1))
    found = plot(tmp_path, "digits", "--output", str(image), "--terminal")
    assert found.stdout.startswith(f"wrote {image}\n") and ".  digits/002: training" in found.stdout
    assert image.read_bytes()[:4] == b"\x89PNG", found.output
    found = plot(tmp_path, "mnist", "digits/*", "mnist/001")
    names = [line.partition(":")[0] for line in found.stdout.splitlines()[-3:]]
    assert names == ["a  mnist/001", "b  digits/001", "c  digits/002"], found.output
    assert "digits/002" in plot(tmp_path, "digits").stdout, "its newest run"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "no run 'nothing'"),
        (("nothing/*",), "found none that match"),
        (("digits", "--output", "a.txt"), "ends in one of .svg, .png, .pdf"),
        (("digits", "--output", "no/such/folder/a.png"), "an existing folder"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, folders: list[Path], arguments: tuple[str, ...], said: str
) -> None:
    error: Any = plot(tmp_path, *arguments).exception
    if isinstance(error, SystemExit):
        assert said in plot(tmp_path, *arguments).output
    else:
        assert isinstance(error, ConfigurationError | click.ClickException) and said in str(error)


def test_too_many_runs_are_refused(tmp_path: Path, folders: list[Path]) -> None:
    for number in range(30):
        (tmp_path / "runs" / "many" / f"{number:03d}").mkdir(parents=True)
        (tmp_path / "runs" / "many" / f"{number:03d}" / "experiment.toml").touch()
    error = plot(tmp_path, "many/*").exception
    assert isinstance(error, ConfigurationError) and "expected at most 20 runs, found 30" in str(error)
