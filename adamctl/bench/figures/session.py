"""What a figure's module measures with: its settings, its rounds, and what is told meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from adamctl.bench.figures.rounds import Rounds

ROUNDS, ROUNDS_QUICK = 5, 2
Progress = Callable[[str], None]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class FigureSettings:
    """What was asked for.

    Attributes:
        data: folders in which data sets are looked up, first match wins.
        is_quick: a tiny size, for trying.
        searches: rates are chosen again on a validation part, instead of those that are fixed in the module.
    """

    data: tuple[str, ...] = ()
    is_quick: bool = False
    searches: bool = False


@dataclass(frozen=True)
class Session:
    """One figure that is being measured.

    Attributes:
        rounds: its own; what is there is not measured again.
        others: finished rounds of other figures, by name, which a figure may use.
        begin: called before anything is measured, may be called again.
    """

    settings: FigureSettings
    rounds: Rounds
    others: Callable[[str], Rounds] = field(default=lambda name: Rounds())
    progress: Progress = lambda text: None
    begin: Callable[[], None] = lambda: None

    def sized(self, full: ValueT, quick: ValueT) -> ValueT:
        """Returns a size: the figure's, or that for trying."""
        return quick if self.settings.is_quick else full

    def take(self, key: str, measure: Callable[[], Any]) -> Any:
        """Returns a round that is there, or else tells its key, measures it and writes it down."""
        if key not in self.rounds:
            self.begin()
            self.progress(key)
        return self.rounds.take(key, measure)

    def in_turn(self, names: Iterable[str], measure: Callable[[str, int], Any], count: int = ROUNDS) -> None:
        """Takes rounds `NAME/round-N`, from 1 on: settings alternate within a round.

        Args:
            measure: of a setting and the number of the round.
            count: of rounds; ROUNDS_QUICK at most in a quick figure.
        """
        every = list(names)
        for number in range(1, self.sized(count, min(count, ROUNDS_QUICK)) + 1):
            for name in every:
                self.take(f"{name}/round-{number}", partial(measure, name, number))
