"""A picture says what was measured, planned and claimed, and below it every bar with what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adamctl.bench.figures.figure import Claim, Figure, Judged, Line, Panel, Point, Table
from adamctl.bench.figures.picture import LETTERS, draw, text_of, words_of
from adamctl.errors import ConfigurationError

pytest.importorskip("matplotlib")
LINES = (
    Line("measured here", "measured", (Point(1, 1, 0.9, 1.1), Point(2, 1.8, 1.7, 2.0), Point(4, 0, beyond=True))),
    Line("planned beyond", "planned", (Point(8, 3), Point(16, 5))),
    Line("each seed", "seeds", (Point(1, 0.95), Point(1, 1.05)), 1),
    Line("with a band", "measured", (Point(1, 2, 1, 3), Point(2, 3, 2, 4)), 2, is_band=True),
    Line("the diagonal", "theory", (Point(1, 1), Point(16, 16))),
)
CLAIMS = (
    Claim("cross", "2.2 at 8: section 5", 8, 2.2),
    Claim("level", "the paper's level", y=4),
    Claim("vertical", "up to here", x=8),
    Claim("range", "between both", y=8, y_most=16),
    Claim("read off", "the paper's curve", points=(Point(2, 1.5),)),
)
PANEL = Panel(
    "machines", "speed-up", LINES, CLAIMS, "A title", x_logarithmic=True, y_logarithmic=True, ticks=(1, 2, 4, 8)
)
BARS = (Judged("speed: at least 2", "1.5", "missed"), Judged("peak: 4 to 16", "8", "met"))


def drawn(tmp_path: Path, figure: Figure, *, is_quick: bool = False) -> str:
    """Returns the text of a picture: its letters are shapes, and comments say what they are."""
    path = tmp_path / "figure.svg"
    draw(figure, "Speed over machines", path, is_quick=is_quick)
    return path.read_text()


def test_all_of_it_is_in_the_picture(tmp_path: Path) -> None:
    text = drawn(tmp_path, Figure((PANEL,), BARS, (), ("Links of 100 Mbit/s.",)), is_quick=True)
    for said in (
        "Speed over machines", "A title", "machines", "speed-up", *(line.name for line in LINES),
        *(claim.text for claim in CLAIMS), "(read off)", "MISSED: speed: at least 2; found 1.5",
        "met: peak: 4 to 16; found 8", "Links of 100 Mbit/s.", "A TRY OF TINY SIZE",
    ):  # fmt: skip
        assert said in text, said


def test_planned_points_are_hollow_and_dashed_and_measured_ones_filled(tmp_path: Path) -> None:
    def one(kind: str) -> str:
        line = Line("points", kind, (Point(1, 1), Point(2, 2)))  # type: ignore[arg-type]
        text = drawn(tmp_path, Figure((Panel("x", "y", (line,)),), (), (), ()))
        assert "TINY" not in text
        return text

    hollow, dashed = "fill: #ffffff; stroke: #1f77b4", "stroke-dasharray"
    assert hollow in one("planned") and dashed in one("planned")
    assert hollow not in one("measured") and dashed not in one("measured")


def test_a_mean_in_a_band_has_no_points_of_its_own(tmp_path: Path) -> None:
    points = (Point(1, 0.8, 0.7, 0.9), Point(2, 0.9, 0.8, 1.0))
    texts = [
        drawn(tmp_path, Figure((Panel("x", "y", (Line("mean", "measured", points, is_band=is_band),)),), (), (), ()))
        for is_band in (False, True)
    ]
    assert ["fill: #1f77b4; stroke: #1f77b4" in text for text in texts] == [True, False]


def test_an_axis_may_begin_above_zero(tmp_path: Path) -> None:
    panel = Panel("x", "y", (Line("points", "measured", (Point(1, 0.8), Point(2, 0.9))),))
    texts = [drawn(tmp_path, Figure((one,), (), (), ())) for one in (panel, replace(panel, y_least=0.75))]
    assert ["<!-- 0.0 -->" in text for text in texts] == [True, False]


def test_a_figure_without_axes_is_its_table(tmp_path: Path) -> None:
    text = drawn(tmp_path, Figure((), BARS, (Table(("mode", "top-1"), (("free", "99.4"),), "Accuracy"),), ()))
    for said in ("Accuracy", "mode", "99.4", "MISSED"):
        assert said in text


def test_an_axis_begins_at_0_unless_a_panel_says_otherwise(tmp_path: Path) -> None:
    line = Line("accuracy", "measured", (Point(1, 98.1), Point(2, 98.9)))

    def ticks(y_least: float | None) -> str:
        panel = Panel("x", "y", (line,), y_least=y_least)
        return drawn(tmp_path, Figure((panel,), (), (), ()))

    assert "<!-- 20 -->" in ticks(0.0)
    assert "<!-- 20 -->" not in ticks(None)


def test_a_picture_that_cannot_be_written_is_told_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "no-such" / "figure.svg"
    with pytest.raises(ConfigurationError) as error:
        draw(Figure((), (), (), ()), "Speed over machines", path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_long_sentence_is_broken() -> None:
    lines = list(words_of(Figure((), (), (), ("word " * 100,))))
    assert len(lines) > 2 and max(map(len, lines)) <= LETTERS


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    assert text_of(Table(("name", "rate"), (("a", "1.5"), ("bb", "100")))) == "name  rate\na      1.5\nbb     100"
