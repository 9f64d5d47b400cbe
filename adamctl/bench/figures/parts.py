"""The figures of `adamctl bench figures`, by name. Imports none of what measures.

To add a figure: a module in the folder of its paper with the functions of `Module`, and an entry of `PARTS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import Session


class Module(Protocol):
    """What a figure's module has."""

    def measure(self, session: Session) -> None:
        """Takes all rounds that are not there yet. Raises ConfigurationError, RunFailedError."""
        ...

    def figure_of(self, rounds: Rounds) -> Figure:
        """Returns the figure, once all rounds are there; planned points are computed here, nothing is measured."""
        ...


@dataclass(frozen=True)
class Part:
    """One figure.

    Attributes:
        title: what it shows.
        minutes: that it takes, on two cores.
        module: in this package.
        has_machines: it emulates machines with shares of cores, which need control groups.
        has_links: its machines have links of their own, which need network namespaces: all of it runs inside one.
        runs_links: the commands that it runs make such links; it stays outside itself.
        has_rates: they are chosen anew by `--search`.
    """

    title: str
    minutes: float
    module: str
    has_machines: bool = True
    has_links: bool = False
    runs_links: bool = False
    has_rates: bool = False

    def load(self) -> Module:
        return cast("Module", importlib.import_module(f"adamctl.bench.figures.{self.module}"))


PARTS: Mapping[str, Part] = {
    "distbelief-3": Part(
        "DistBelief figure 3: speed-up of a mini-batch over machines", 40, "distbelief.figure_3", runs_links=True
    ),
    "distbelief-4": Part("DistBelief figure 4: accuracy over time", 60, "distbelief.figure_4", has_rates=True),
    "distbelief-5": Part(
        "DistBelief figure 5: time to an accuracy over machines and cores", 40, "distbelief.figure_5", has_rates=True
    ),
    "adam-3.2.5": Part("Adam 3.2.5: passes that end early, with one slow worker", 35, "adam.section_3_2_5"),
    "adam-8": Part("Adam figure 8: compute threads of one machine", 5, "adam.figure_8", has_machines=False),
    "adam-9": Part(
        "Adam figure 9: updates per second of one parameter server", 10, "adam.figure_9", has_machines=False,
        runs_links=True,
    ),
    "adam-10": Part("Adam figure 10: networks that machines train well", 30, "adam.figure_10", has_links=True),
    "adam-11": Part("Adam figure 11: replicas, with servers and without", 40, "adam.figure_11", has_links=True),
    "adam-12": Part("Adam figure 12: accuracy over the size of a network", 30, "adam.figure_12", has_machines=False),
    "adam-table-1": Part(
        "Adam table 1: MNIST, threads without locks and one thread", 75, "adam.table_1", has_machines=False,
        has_rates=True,
    ),
}  # fmt: skip
