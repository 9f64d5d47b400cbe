"""The confusion matrix as tables, as JSON and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adamctl.cli.model.confusion import as_json, as_tables, draw
from adamctl.launch.metrics import Confusion

COUNTS = Confusion.of(np.array([[5, 0, 1], [0, 1200, 0], [0, 0, 0]], np.int64))
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
        "",
        "balanced accuracy 91.67%",
        "mean of the 2 classes with examples: precision 100.00%, recall 91.67%, F1 95.45%",
    ]


@pytest.mark.parametrize(("width", "first"), [(34, "label \\ predicted"), (33, "label  predicted  examples")])
def test_a_matrix_wider_than_the_terminal_is_shown_as_pairs(width: int, first: str) -> None:
    assert as_tables(COUNTS, NAMES, width).startswith(first)


def test_pairs_of_many_classes() -> None:
    counts = np.ones((100, 100), np.int64)
    counts[7, 3] = 301
    shown = as_tables(Confusion.of(counts), (), 80).split("\n\n")[0].splitlines()
    assert shown[:2] == ["label  predicted  examples  of the label's", "7      3               301          75.25%"]
    assert len(shown) == 11


def test_of_many_classes_those_with_the_lowest_recall_are_shown() -> None:
    counts = np.diag([4] * 100)
    counts[42] = counts[7] = 1
    counts[99] = 0  # no example
    _, shown, means = as_tables(Confusion.of(counts), (), 80).split("\n\n")
    lines = shown.splitlines()
    assert lines[0] == "the 20 of 100 classes with the lowest recall; --json has all"
    assert [line.split()[0] for line in lines[1:4]] == ["class", "7", "42"] and len(lines) == 22
    assert means.startswith("balanced accuracy 98.00%\nmean of the 99 classes with examples: ")


def test_nothing_confused() -> None:
    assert as_tables(Confusion.of(np.diag([1] * 100)), (), 80).startswith("no example was taken for another class\n")


def test_as_json() -> None:
    found = as_json(COUNTS, NAMES)
    assert found["counts"] == COUNTS.matrix().tolist()
    assert found["balanced_accuracy"] == pytest.approx(11 / 12)
    assert found["mean"] == pytest.approx({"classes": 2, "precision": 1, "recall": 11 / 12, "f1": 21 / 22})
    owl = {"class": "owl", "examples": 0, "predicted": 1, "correct": 0, "precision": 0.0, "recall": None, "f1": 0.0}
    assert found["classes"][2] == owl


def test_of_very_many_classes_json_has_the_cells() -> None:
    counts = Confusion(1001)
    counts.add(np.eye(1001, dtype=np.float32)[[5, 5, 9]], np.array([7, 7, 9]))
    found = as_json(counts, ())
    assert "counts" not in found and found["cells"] == [[7, 5, 2], [9, 9, 1]]
    assert as_json(Confusion(2), ())["balanced_accuracy"] is None


@pytest.mark.parametrize("classes", [3, 30, 60, 2500])
def test_a_picture(tmp_path: Path, classes: int) -> None:
    pytest.importorskip("matplotlib")
    counts = Confusion.of(np.eye(classes, dtype=np.int64) * 1234)
    names = tuple(f"$\\of{{{number}$" for number in range(classes))  # would be a broken formula
    draw(counts, names, "animals, test", tmp_path / "a.svg")
    found = (tmp_path / "a.svg").read_text()
    assert "animals, test" in found and "share of the label's examples" in found.replace("&apos;", "'")
    assert ("1,234" in found) == (classes == 3)
    assert (names[-1] in found) == (classes < 60)
    assert ("3 classes a row" in found) == (classes == 2500)
