"""The parts of `adamctl bench data`: what each is measured by, and its bars. Imports none of what measures.

To add a part: a module beside this one with a function of (DataSettings, Progress) that returns what it found for each
of its bars, and an entry of `PARTS`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adamctl.bench.bars import Bar, Found, Progress


@dataclass(frozen=True)
class DataSettings:
    """What parts are given.

    Attributes:
        data: folders in which data sets are looked up, first match wins.
        peer_python: an interpreter with PyTorch, torchvision and OpenCV.
        rounds: of each side; they take turns, and each part says which of its rounds count.
        seconds: how long a round lasts, where one can be as long as wanted.
        waiting_passes: of the runs whose waiting is measured.
    """

    data: tuple[str, ...] = ()
    peer_python: str = sys.executable
    rounds: int = 5
    seconds: float = 0.5
    waiting_passes: int = 3


Measure = Callable[[DataSettings, Progress], Mapping[str, Found]]


@dataclass(frozen=True)
class Part:
    """One measurement: `measured_by`, "module:function", returns what it found for each of `bars`, by their names."""

    measured_by: str
    bars: Mapping[str, Bar]

    def load(self) -> Measure:
        """Returns the function that measures."""
        module, _, name = self.measured_by.partition(":")
        measure: Measure = getattr(importlib.import_module(module), name)
        return measure


PARTS: Mapping[str, Part] = {
    "warps": Part(
        "adamctl.bench.data.warps:measure",
        {
            "warps-scipy": Bar("affine and elastic warps of 28 x 28, one thread, against SciPy", 10, at_least=True),
            "warps-opencv": Bar("the same, against OpenCV", 3, at_least=True),
        },
    ),
    "wire": Part(
        "adamctl.bench.data.wire:measure",
        {
            "wire-bytes": Bar("bytes sent for an image of bytes, against one of float32", 0.27),
            "wire-rate": Bar("images of bytes read and scaled in a second, against float32", 1.0, at_least=True),
        },
    ),
    "serve": Part(
        "adamctl.bench.data.serve:measure",
        {"serve": Bar("photographs from two data servers of one thread each, against one", 1.7, at_least=True)},
    ),
    "decode": Part(
        "adamctl.bench.data.decode:measure",
        {
            "decode-one": Bar("JPEG decoded, scaled, cropped, reflected, against torchvision", 1, at_least=True),
            "decode-two": Bar("the same, two threads, against a DataLoader with two workers", 1, at_least=True),
        },
    ),
    "waiting": Part(
        "adamctl.bench.data.waiting:measure",
        {"waiting": Bar("share of its time that a worker waits, distorted MNIST from one core's data server", 0.02)},
    ),
    "stream": Part(
        "adamctl.bench.data.stream:measure",
        {
            "stream-rate": Bar("a set of four times the memory given, against the set in memory", 0.9, at_least=True),
            "stream-memory": Bar("growth of the data server's resident memory, of what it was given", 1),
            "stream-bytes": Bar("bytes read in all passes, of the set once a pass and two windows ahead", 1),
        },
    ),
}
