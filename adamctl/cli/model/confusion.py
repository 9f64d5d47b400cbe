"""The confusion matrix of `adamctl eval`: as tables, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adamctl.cli.output import table
from adamctl.launch.metrics import Counts, most_confused, named, of_classes
from adamctl.live.units import share

PAIRS = 10
"""Pairs of classes shown where the matrix is too wide."""

COUNTED = 20
"""Most classes whose cells in the picture have their counts."""

NAMED = 50
"""Most classes whose rows and columns in the picture have their names."""


def as_json(counts: Counts, names: Sequence[str]) -> dict[str, Any]:
    """Returns `counts`, a row per label and a column per prediction, and `classes` with the metrics of each."""
    described = [
        {"class": one.name, "examples": one.examples, "predicted": one.predicted, "correct": one.correct}
        | {"precision": one.precision, "recall": one.recall, "f1": one.f1}
        for one in of_classes(counts, names)
    ]
    return {"counts": counts.tolist(), "classes": described}


def as_tables(counts: Counts, names: Sequence[str], width: int) -> str:
    """Returns the matrix, or the pairs confused most if it is wider than `width` characters, and each class."""
    shown = _matrix(counts, named(names, len(counts)), width) or _pairs(counts, named(names, len(counts)))
    rows = [
        (one.name, f"{one.examples:,}", f"{one.predicted:,}", share(one.precision), share(one.recall), share(one.f1))
        for one in of_classes(counts, names)
    ]
    header = ("class", "examples", "predicted", "precision", "recall", "F1")
    return f"{shown}\n\n{table(header, rows, right=range(1, 6))}"


def _matrix(counts: Counts, names: Sequence[str], width: int) -> str:
    """Returns the matrix as a table; empty if it is wider than `width` characters."""
    if 3 * len(counts) > width:  # a column takes a digit and two spaces at least
        return ""
    rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(names, counts.tolist(), strict=True)]
    text = table(("label \\ predicted", *names), rows, right=range(1, len(counts) + 1))
    return text if max(map(len, text.splitlines())) <= width else ""


def _pairs(counts: Counts, names: Sequence[str]) -> str:
    pairs = most_confused(counts, PAIRS)
    if not pairs:
        return "no example was taken for another class"
    rows = [
        (names[pair.label], names[pair.predicted], f"{pair.count:,}", share(pair.count / pair.examples))
        for pair in pairs
    ]
    return table(("label", "predicted", "examples", "of the label's"), rows, right=(2, 3))


def draw(counts: Counts, names: Sequence[str], title: str, path: Path) -> None:
    """Draws the matrix: a row per label, coloured by the share of the label's examples.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    from adamctl.bench.plot import new_figure, save_figure

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
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    save_figure(figure, path, f"--confusion-picture {path}")
