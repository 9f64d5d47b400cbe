"""Somebody else's package with a batch algorithm, `descent`: plain gradient descent with a step of a fixed length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import packages

ALGORITHM = """\
import msgspec
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import dot, max_abs

class Settings(msgspec.Struct, forbid_unknown_fields=True):
    step: float = 0.1
    scales: tuple[float, ...] = (1.0,)
    gradient_tolerance: float = 0.5

def descend(v, settings, state):
    h = v.scratch("h")
    iteration = state.get("iteration", 0)
    while True:
        loss = yield v.evaluate(at=v.x, into=h)
        (largest,) = yield v.round(max_abs(h))
        if largest <= settings.gradient_tolerance:
            return "flat"
        step, iteration = settings.step * settings.scales[0], iteration + 1
        shown = {"iteration": iteration, "loss": loss, "gradient_max": largest, "step": step}
        yield v.commit(v.x.set(v.x - step * h), state=shown)

def stumble(v, settings, state):
    v.kept("g")
    yield v.evaluate(at=v.x, into=[][0])

def twice(v, settings, state):
    yield v.evaluate(at=v.kept("g"), into=v.kept("g"))

class Renamed(msgspec.Struct, rename="kebab"):
    first_step: float = 0.1

class Taken(msgspec.Struct):
    weight_decay: float = 0.1

ALGORITHM = BatchAlgorithm("Plain descent", descend, Settings)
STUMBLING = BatchAlgorithm("Fails before it asks for anything", stumble, Settings)
TAKING = BatchAlgorithm("Has a setting that is not its own", descend, Taken)
TWICE = BatchAlgorithm("Declares a vector twice", twice, Renamed)
PLAIN = BatchAlgorithm("Has no settings type", descend, {"step": 0.1})
NOTHING = 3
"""
ENTRY_POINTS = {
    "descent": "descent_package.algorithm:ALGORITHM",
    "broken": "descent_package.no_such_module:ALGORITHM",
    "nothing": "descent_package.algorithm:NOTHING",
    "stumbling": "descent_package.algorithm:STUMBLING",
    "taking": "descent_package.algorithm:TAKING",
    "twice": "descent_package.algorithm:TWICE",
    "plain": "descent_package.algorithm:PLAIN",
    "sgd": "descent_package.no_such_module:ALGORITHM",
}
NAMES = ["broken", "descent", "nothing", "plain", "stumbling", "taking", "twice"]
PACKAGE = ("descent_package", {"algorithm": ALGORITHM}, "adamctl.optimizers", ENTRY_POINTS)


def install(folder: Path) -> None:
    """Writes the package, as an installed one, into a folder; it is found once that is in `sys.path`."""
    packages.install(folder, *PACKAGE)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the package for one test, which finds it not loaded yet."""
    packages.use(folder, *PACKAGE, monkeypatch)
