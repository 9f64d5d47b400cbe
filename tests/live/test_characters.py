"""Curves in characters: every point has its mark in its place, lines fit, and axes say where they begin and end."""

from __future__ import annotations

from adamctl.live.characters import Curve, draw_curves


def test_points_are_where_they_belong_and_lines_between_them() -> None:
    curve = Curve("a", (0.0, 10.0), (0.0, 8.0))
    lines = draw_curves("loss", "seconds", [curve], 36, 9)
    assert lines[0].strip() == "loss" and lines[-1].split() == ["0", "seconds", "10"]
    rows = [line.partition("|")[2] for line in lines[1:10]]
    assert len(rows[0]) == 36 - len("8 |") and rows[0].endswith(" aaa") and rows[8] == "aaa"
    assert rows[4] == " " * 14 + "aaaaa", "the middle of the line, in the middle row"
    assert [line.partition("|")[0].strip() for line in lines[1:10:4]] == ["8", "4", "0"]
    assert all("a" in row for row in rows)


def test_where_curves_meet_the_first_is_shown() -> None:
    rows = draw_curves("", "", [Curve("a", (1.0,), (1.0,)), Curve("b", (0.0, 1.0), (1.0, 1.0))], 30, 5)
    assert sum(row.count("a") for row in rows) == 1 and sum(row.count("b") for row in rows) > 10


def test_shares_are_in_percent_and_logarithms_are_even() -> None:
    lines = draw_curves("", "", [Curve("a", (0.0, 1.0), (0.0, 0.2))], 30, 5, share=True, top=0.4)
    assert lines[1].split()[0] == "40.0%" and lines[5].split()[0] == "0.0%"
    lines = draw_curves("", "", [Curve("a", (0.0, 1.0, 2.0), (100.0, 1.0, 0.01))], 30, 9, log=True)
    assert [line.split()[0] for line in lines[1:10:4]] == ["100", "1", "0.01"]
    assert "a" in lines[5]


def test_equal_values_and_one_point_at_0_are_drawn() -> None:
    for value in (0.0, 3.0, -3.0):
        assert any("a" in line for line in draw_curves("", "", [Curve("a", (0.0,), (value,))], 30, 5))


def test_a_narrow_terminal_has_a_least_width() -> None:
    lines = draw_curves("a long title", "passes over the training data", [Curve("a", (0.0, 1.0), (0.0, 1.0))], 5, 5)
    assert max(map(len, lines[1:6])) <= 24
