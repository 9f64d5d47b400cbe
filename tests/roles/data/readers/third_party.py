"""Somebody else's package with a reader, `lines`: one text file, a line per example, its label first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import packages

DESCRIPTIONS = """\
from adamctl.roles.data.readers.plugins import Reader

LINES = Reader("lines", (".lines",), open="lines_package.reader:open_lines")
PEEKED = Reader("peeked", (), open="lines_package.reader:open_lines", peek="lines_package.reader:peek_lines")
NEEDING = Reader("needing", (), open="lines_package.needing:open_lines", extra="all")
LATE = Reader("late", (), open="lines_package.reader:open_late", extra="all")
ABSENT = Reader("absent", (), open="lines_package.reader:no_such_function")
TEXT = Reader("text", (), open="lines_package.reader:TEXT")
MISFIT = Reader("misfit", (), open="lines_package.reader:open_misfit")
TOLD = Reader("told", (), open="lines_package.reader:open_told", reads_config=True)
CRUMBLING = Reader("crumbling", (), open="lines_package.reader:open_crumbling")
OVERFULL = Reader("overfull", (), open="lines_package.reader:open_overfull")
HALF = Reader("half", (), open="lines_package.reader:open_half")
NOTHING = 3
"""
READER = """\
from types import SimpleNamespace
import numpy as np
from adamctl.roles.data.readers.source import Peek, TableSource

TEXT = "no function"

def open_lines(path, input_shape):
    rows = np.array([[float(word) for word in line.split()] for line in path.read_text().splitlines()], np.float32)
    labels, values = rows[:, 0].astype(np.int32), rows[:, 1:]
    arrays = {"train": (values[1:], labels[1:]), "test": (values[:1], labels[:1])}
    return TableSource("lines", arrays, value_max=1.0, stored_bytes=path.stat().st_size, input_shape=input_shape,
                       origin=str(path))

def peek_lines(path, input_shape, examples_max, seconds_max):
    source = open_lines(path, input_shape)
    return Peek(("peeked", "peeked too"), {split: source.labels(split) for split in ("train", "test")})

def open_late(path, input_shape):
    import no_such_package

def open_misfit(path, input_shape):
    return open_lines(path, None)

def open_told(path, input_shape, *, config):
    return open_lines(path.parent / config.source, input_shape)

class Crumbling(TableSource):
    def load(self, split, indices, out):
        super().load(split, indices, out)
        if (out == 7).all(axis=-1).any():
            raise KeyError("seven")

def open_crumbling(path, input_shape):
    source = open_lines(path, input_shape)
    source.__class__ = Crumbling
    return source

def open_overfull(path, input_shape):
    source = open_lines(path, input_shape)
    source.blocks = lambda split: np.array([1000])
    return source

def open_half(path, input_shape):
    return SimpleNamespace(format="half", origin=str(path))
"""
ENTRY_POINTS = {
    "lines": "lines_package.descriptions:LINES",
    "peeked": "lines_package.descriptions:PEEKED",
    "needing": "lines_package.descriptions:NEEDING",
    "late": "lines_package.descriptions:LATE",
    "absent": "lines_package.descriptions:ABSENT",
    "text": "lines_package.descriptions:TEXT",
    "misfit": "lines_package.descriptions:MISFIT",
    "crumbling": "lines_package.descriptions:CRUMBLING",
    "overfull": "lines_package.descriptions:OVERFULL",
    "half": "lines_package.descriptions:HALF",
    "told": "lines_package.descriptions:TOLD",
    "nothing": "lines_package.descriptions:NOTHING",
    "renamed": "lines_package.descriptions:LINES",
    "broken": "lines_package.no_such_module:READER",
    "npz": "lines_package.no_such_module:READER",
}
NAMES = [
    "absent",
    "broken",
    "crumbling",
    "half",
    "late",
    "lines",
    "misfit",
    "needing",
    "nothing",
    "overfull",
    "peeked",
    "renamed",
    "text",
    "told",
]
MODULES = {"descriptions": DESCRIPTIONS, "reader": READER, "needing": "import no_such_package\n"}
PACKAGE = ("lines_package", MODULES, "adamctl.readers", ENTRY_POINTS)


def install(folder: Path) -> None:
    """Writes the package, as an installed one, into a folder; it is found once that is in `sys.path`."""
    packages.install(folder, *PACKAGE)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the package for one test, which finds it not loaded yet."""
    packages.use(folder, *PACKAGE, monkeypatch)
