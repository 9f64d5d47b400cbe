"""The confusion matrix as tables, as JSON and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.cli.model.confusion import as_json, as_tables, draw

COUNTS = np.array([[5, 0, 1], [0, 1200, 0], [0, 0, 0]], np.int64)
NAMES = ("cat", "dog", "owl")


def test_the_matrix_and_the_classes_as_tables() -> None:
    assert as_tables(COUNTS, NAMES, 80).splitlines() == [
        "label \\ predicted  cat    dog  owl",
        "cat                  5      0    1",
        "dog                  0  1,200    0",
        "owl                  0      0    0",
        "",
        "class  examples  predicted  precision   recall       F1",
        "cat           6          5    100.00%   83.33%   90.91%",
        "dog       1,200      1,200    100.00%  100.00%  100.00%",
        "owl           0          1      0.00%        -    0.00%",
    ]


@pytest.mark.parametrize(("width", "first"), [(34, "label \\ predicted"), (33, "label  predicted  examples")])
def test_a_matrix_wider_than_the_terminal_is_shown_as_pairs(width: int, first: str) -> None:
    assert as_tables(COUNTS, NAMES, width).startswith(first)


def test_pairs_of_many_classes() -> None:
    counts = np.ones((100, 100), np.int64)
    counts[7, 3] = 301
    shown = as_tables(counts, (), 80).split("\n\n")[0].splitlines()
    assert shown[:2] == ["label  predicted  examples  of the label's", "7      3               301          75.25%"]
    assert len(shown) == 11


def test_nothing_confused() -> None:
    assert as_tables(np.diag([1] * 100), (), 80).startswith("no example was taken for another class\n")


def test_as_json() -> None:
    found = as_json(COUNTS, NAMES)
    assert found["counts"] == COUNTS.tolist()
    owl = {"class": "owl", "examples": 0, "predicted": 1, "correct": 0, "precision": 0.0, "recall": None, "f1": 0.0}
    assert found["classes"][2] == owl


@pytest.mark.parametrize("classes", [3, 30, 60])
def test_a_picture(tmp_path: Path, classes: int) -> None:
    pytest.importorskip("matplotlib")
    counts = np.eye(classes, dtype=np.int64) * 1234
    names = tuple(f"$\\of{{{number}$" for number in range(classes))  # would be a broken formula
    draw(counts, names, "animals, test", tmp_path / "a.svg")
    found = (tmp_path / "a.svg").read_text()
    assert "animals, test" in found and "share of the label's examples" in found.replace("&apos;", "'")
    assert ("1,234" in found) == (classes == 3)
    assert (names[-1] in found) == (classes < 60)
