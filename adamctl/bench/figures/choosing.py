"""Which rate a method trains with: chosen on a validation part with seed 0, never on test images (pure).

What was chosen once is fixed in a figure's module, with the date; `--search` chooses again.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from adamctl.bench.figures.rounds import Rounds

SEED = 0
"""Of runs that choose; seeds from 1 on are measured."""
VALIDATION = 0.1
"""The part of the training examples that choices are made on."""
ChoiceT = TypeVar("ChoiceT")


class Choice(NamedTuple):
    """A rate and a limit of clipping."""

    lr: float
    clip_norm: float

    @property
    def name(self) -> str:
        """Returns its part of a round's key, so that rounds of another rate are not taken for those of this one."""
        return f"lr-{self.lr:g}-clip-{self.clip_norm:g}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"optimizer.lr": self.lr, "optimizer.clip_norm": self.clip_norm}


def around(lr: float, clip_norms: Sequence[float]) -> tuple[Choice, ...]:
    """Returns what is tried: three rates a factor of three apart, with each limit."""
    return tuple(Choice(float(f"{rate:.3g}"), clip) for clip in clip_norms for rate in (lr / 3, lr, lr * 3))


def key_of(method: str, choice: str, *modes: str) -> str:
    """Returns the key of a run that chooses."""
    return "/".join(("search", method, choice, *modes))


def is_searched(rounds: Rounds, tried: Mapping[Any, Sequence[str]]) -> bool:
    """Whether all runs of a search have ended; `tried`: the keys of those of each choice."""
    return all(key in rounds for keys in tried.values() for key in keys)


def chosen(rounds: Rounds, tried: Mapping[ChoiceT, Sequence[str]], fixed: ChoiceT) -> ChoiceT:
    """Returns what a method trains with: the first of what was best in a finished search, or else what is fixed.

    The mean over all runs of a choice counts, so that no mode gets a rate that suits it and not the others. A run
    that diverged has no result, and counts as 0.
    """
    if not is_searched(rounds, tried):
        return fixed

    def mean(choice: ChoiceT) -> float:
        return statistics.fmean(rounds[key]["result"].get("top1", 0.0) for key in tried[choice])

    return max(tried, key=mean)
