"""Which rate a method trains with: chosen on a validation part with seed 0, never on test images (pure).

What was chosen once is fixed in a figure's module, with the date; `--search` chooses again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from adamctl.bench.figures.rounds import Rounds

SEED = 0
"""Of runs that choose; seeds from 1 on are measured."""
VALIDATION: dict[str, Any] = {"data.validation": 0.1}


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


def key_of(method: str, choice: Choice, mode: str) -> str:
    """Returns the key of a run that chooses."""
    return f"search/{method}/{choice.name}/{mode}"


def chosen(rounds: Rounds, method: str, choices: Iterable[Choice], modes: Sequence[str], fixed: Choice) -> Choice:
    """Returns what a method trains with: what was best in a finished search, or else what is fixed.

    The mean over all modes counts, so that no mode gets a rate that suits it and not the others.
    """
    tried = [(choice, [key_of(method, choice, mode) for mode in modes]) for choice in choices]
    if any(key not in rounds for _, keys in tried for key in keys):
        return fixed
    return max(tried, key=lambda one: statistics.fmean(rounds[key]["result"]["top1"] for key in one[1]))[0]
