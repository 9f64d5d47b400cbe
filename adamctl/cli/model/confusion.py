"""The confusion matrix of `adamctl eval`: as tables, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.cli.output import table
from adamctl.launch.metrics import ClassMetrics, Confusion, MeanMetrics, mean_of, named
from adamctl.live.units import share

PAIRS = 10
"""Pairs of classes shown where the matrix is too wide."""

COUNTED = 20
"""Most classes whose cells in the picture have their counts."""

NAMED = 50
"""Most classes whose rows and columns in the picture have their names, and that are all in the table."""

WORST = 20
"""Classes in the table where there are more than that."""

WHOLE = 1000
"""Most classes whose matrix is written whole in JSON, and has a row and a column for each of them in the picture."""


def as_json(confusion: Confusion, names: Sequence[str]) -> dict[str, Any]:
    """Returns `counts`, a row per label and a column per prediction, `classes` with their metrics, and means of those.

    With more than WHOLE classes, `cells` in place of `counts`: [label, predicted, count] of those that are not 0.
    """
    classes = confusion.of_classes(names)
    mean = mean_of(classes)
    described = [
        {"class": one.name, "examples": one.examples, "predicted": one.predicted, "correct": one.correct}
        | {"precision": one.precision, "recall": one.recall, "f1": one.f1}
        for one in classes
    ]
    cells: dict[str, Any]
    if confusion.classes <= WHOLE:
        cells = {"counts": confusion.matrix().tolist()}
    else:
        cells = {"cells": np.stack(confusion.cells(), axis=1).tolist()}
    means = None if mean is None else mean._asdict()
    accuracy = None if mean is None else mean.balanced_accuracy
    return cells | {"classes": described, "balanced_accuracy": accuracy, "mean": means}


def as_tables(confusion: Confusion, names: Sequence[str], width: int) -> str:
    """Returns the matrix, or the pairs confused most if it is wider than `width` characters, the classes and means."""
    names = named(names, confusion.classes)
    classes = confusion.of_classes(names)
    parts = [_matrix(confusion, names, width) or _pairs(confusion, names), _classes(classes)]
    mean = mean_of(classes)
    if mean is not None:
        parts.append(_means(mean, len(classes)))
    return "\n\n".join(parts)


def _matrix(confusion: Confusion, names: Sequence[str], width: int) -> str:
    """Returns the matrix as a table; empty if it is wider than `width` characters."""
    if 3 * confusion.classes > width:  # a column takes a digit and two spaces at least
        return ""
    counts = confusion.matrix().tolist()
    rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, counts, strict=True)]
    text = table(("label \\ predicted", *names), rows, right=range(1, confusion.classes + 1))
    return text if max(map(len, text.splitlines())) <= width else ""


def _pairs(confusion: Confusion, names: Sequence[str]) -> str:
    pairs = confusion.most_confused(PAIRS)
    if not pairs:
        return "no example was taken for another class"
    rows = [
        (names[pair.label], names[pair.predicted], f"{pair.count:,}", share(pair.count / pair.examples))
        for pair in pairs
    ]
    return table(("label", "predicted", "examples", "of the label's"), rows, right=(2, 3))


def _classes(classes: Sequence[ClassMetrics]) -> str:
    """Returns a row for each class; of more than NAMED, those with the lowest recall."""
    shown, note = list(classes), ""
    if len(classes) > NAMED:
        shown = sorted((one for one in classes if one.examples), key=lambda one: one.recall or 0.0)[:WORST]
        note = f"the {len(shown)} of {len(classes):,} classes with the lowest recall; --json has all\n"
    rows = [
        (one.name, f"{one.examples:,}", f"{one.predicted:,}", share(one.precision), share(one.recall), share(one.f1))
        for one in shown
    ]
    return note + table(("class", "examples", "predicted", "precision", "recall", "F1"), rows, right=range(1, 6))


def _means(mean: MeanMetrics, classes: int) -> str:
    of = f"{mean.classes:,} classes" if mean.classes == classes else f"the {mean.classes:,} classes with examples"
    figures = ", ".join(
        f"{word} {share(value)}" for word, value in zip(("precision", "recall", "F1"), mean[1:], strict=True)
    )
    return f"balanced accuracy {share(mean.balanced_accuracy)}\nmean of {of}: {figures}"


def draw(confusion: Confusion, names: Sequence[str], title: str, path: Path) -> None:
    """Draws the matrix: a row per label, coloured by the share of the label's examples.

    With more than WHOLE classes, a row stands for several of them that follow one another, and so does a column.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    from adamctl.bench.plot import new_figure, save_figure

    counts, each = _drawn(confusion)
    side = min(5 + 0.2 * len(counts), 14.0)
    figure, (axes,) = new_figure(width=side + 1, height=side)
    axes.grid(visible=False)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(counts) <= NAMED:
        places, shown = range(len(counts)), named(names, len(counts))
        axes.set_xticks(places, shown, rotation=90 if max(map(len, shown)) > 2 else 0, parse_math=False)
        axes.set_yticks(places, shown, parse_math=False)
    if len(counts) <= COUNTED:
        for label, row in enumerate(counts.tolist()):
            for predicted, count in enumerate(row):
                colour = "white" if shares[label, predicted] > 0.5 else "black"
                axes.text(predicted, label, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xlabel("predicted" if each == 1 else f"predicted, {each} classes a column")
    axes.set_ylabel("label" if each == 1 else f"label, {each} classes a row")
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    save_figure(figure, path, f"--confusion-picture {path}")


def _drawn(confusion: Confusion) -> tuple[NDArray[np.int64], int]:
    """Returns the matrix to draw, of at most WHOLE rows and columns, and how many classes each of those stands for."""
    each = -(-confusion.classes // WHOLE)
    if each == 1:
        return confusion.matrix(), 1
    labels, predicted, found = confusion.cells()
    counts = np.zeros((-(-confusion.classes // each),) * 2, np.int64)
    np.add.at(counts, (labels // each, predicted // each), found)
    return counts, each
