"""Adam's table 1: MNIST without distortions, threads without locks against one thread in step (Adam 4.3.3).

The paper has 99.63% against 99.39%, for a network of around 2.5 million connections. Its text fits two networks, with
padding and without, and says nothing of dropout, so all four are trained. Rates are chosen once for both modes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import hypot
from typing import Any, NamedTuple

from adamctl.bench.figures.choosing import SEED, VALIDATION, Choice, around, chosen, is_searched, key_of
from adamctl.bench.figures.figure import Figure, Table
from adamctl.bench.figures.judging import SETTLED, Mean, above, mean_of, paired
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training, example
from adamctl.bench.figures.session import Session
from adamctl.bench.figures.trained import (
    PERCENT,
    compared_seeds,
    key_of_seed,
    last_percents,
    of_results,
    seeds_of,
    take_trainings,
)

SEEDS, SEEDS_QUICK = tuple(range(1, 6)), (1,)
PAPER_FREE, PAPER_IN_STEP, OTHERS = 99.63, 99.39, 99.55
"""Percent: table 1. The last is Goodfellow's, to which the paper compares."""
PAPER_CONNECTIONS = 2.5e6
"""Adam 4.3.1 and 4.3.3: around that many."""
FREE, IN_STEP, MANY = "free", "in-step", "free-16"
MODES: Mapping[str, Mapping[str, Any]] = {
    FREE: {"cluster.threads": 2},
    IN_STEP: {"cluster.ps": 0, "cluster.threads": 1},
    MANY: {"cluster.threads": 16},
}
"""`in-step`: without servers one thread has, bit for bit, the weights of `train.consistency = "sync"` with one worker
that pushes and fetches after each step; only the round trips are saved. `free-16`: as many threads as the paper's
machine has cores, on those that there are: gradients are as old."""
SAID = {FREE: "free, 2 threads", IN_STEP: "in step, 1 thread", MANY: "free, 16 threads"}
BOTH = (FREE, IN_STEP)
FIXED, FIXED_SAID = (
    Choice(0.15, 1.0),
    "Where nothing else is said, they are those that were chosen on a validation part for valid padding with dropout "
    "(11-21, of seven settings).",
)
TRIED = around(FIXED.lr, (1.0, 3.0))
QUICK: Mapping[str, Any] = {"train.passes": 1}


class Variant(NamedTuple):
    """A network that the text may mean, and how long it is trained.

    Attributes:
        connections: by its shapes.
    """

    padding: str
    has_dropout: bool
    passes: int
    connections: int

    @property
    def name(self) -> str:
        return self.padding + ("-dropout" if self.has_dropout else "")

    @property
    def said(self) -> str:
        return f"{self.padding}, {'dropout' if self.has_dropout else 'no dropout'}"

    @property
    def settings(self) -> dict[str, Any]:
        padding = {f"model.layers.{layer}.padding": self.padding for layer in (0, 2)}
        return {**padding, "train.passes": self.passes, "train.evaluate_every": 1}


VALID_CONNECTIONS, SAME_CONNECTIONS = 756_000, 1_732_000
VARIANTS = tuple(
    Variant(padding, has_dropout, 30 if has_dropout else 12, connections)
    for has_dropout in (False, True)
    for padding, connections in (("valid", VALID_CONNECTIONS), ("same", SAME_CONNECTIONS))
)
NEAREST = VARIANTS[-1]
"""To the paper's number of connections, with dropout; this one has a line of 16 threads, too."""


def measure(session: Session) -> None:
    """Trains what is not there yet, seed by seed, so that an unfinished table can be compared, too."""
    if session.settings.searches:
        take_trainings(session, _search(session))
    choices = {variant: choice_of(session.rounds, variant) for variant in VARIANTS}
    for seed in session.sized(SEEDS, SEEDS_QUICK):
        free = [(variant, FREE) for variant in VARIANTS] + [(NEAREST, MANY)]
        in_step = [(variant, IN_STEP) for variant in VARIANTS]
        for several, at_a_time in ((free, 1), (in_step, 2)):
            trainings = {
                key_of_seed(setting_of(variant, choices[variant], mode), seed): _training(
                    session, variant, choices[variant], mode, seed
                )
                for variant, mode in several
            }
            take_trainings(session, trainings, at_a_time)


def choice_of(rounds: Rounds, variant: Variant) -> Choice:
    """Returns the rate and the limit of a variant, in all modes."""
    return chosen(rounds, tried_of(variant), FIXED)


def tried_of(variant: Variant) -> dict[Choice, list[str]]:
    """Returns what a search tries, with the keys of its runs in BOTH modes."""
    return {choice: [key_of(variant.name, choice.name, mode) for mode in BOTH] for choice in TRIED}


def setting_of(variant: Variant, choice: Choice, mode: str) -> str:
    """Returns the part of a round's key before the seed."""
    return f"{variant.name}/{choice.name}/{mode}"


def figure_of(rounds: Rounds) -> Figure:
    found = [_trained(rounds, variant) for variant in VARIANTS]
    return Figure(
        (),
        tuple(
            above(f"{said}: free minus in step, percentage points", gain, 0.0) for said, gain in _gains(rounds, found)
        ),
        (_table(found),),
        tuple(_sentences(rounds, found)),
    )


def _search(session: Session) -> dict[str, Training]:
    found = {}
    for variant in VARIANTS:
        for choice, keys in tried_of(variant).items():
            for key, mode in zip(keys, BOTH, strict=True):
                training = _training(session, variant, choice, mode, SEED)
                settings = {**training.settings, "data.validation": VALIDATION}
                found[key] = replace(training, settings=settings, may_diverge=True)
    return found


def _training(session: Session, variant: Variant, choice: Choice, mode: str, seed: int) -> Training:
    file = example("mnist_dropout.toml" if variant.has_dropout else "mnist.toml")
    settings = {**variant.settings, **choice.settings, **MODES[mode], **session.sized({}, QUICK)}
    return Training(file, settings, seed, data=session.settings.data)


class _Mode(NamedTuple):
    """What seeds of one mode have come to: `last` in percent, `best` of the best evaluations, `age` of gradients."""

    mode: str
    last: Mean
    best: float
    age: float
    seconds: float


class _Trained(NamedTuple):
    """A variant's modes; free and in step with the same seeds."""

    variant: Variant
    choice: Choice
    seeds: tuple[int, ...]
    modes: Mapping[str, _Mode]

    @property
    def distance(self) -> float:
        """How far the two modes' means are from the paper's two numbers."""
        free, in_step = (self.modes[mode].last.value for mode in BOTH)
        return hypot(free - PAPER_FREE, in_step - PAPER_IN_STEP)


def _trained(rounds: Rounds, variant: Variant) -> _Trained:
    choice = choice_of(rounds, variant)
    settings = {mode: setting_of(variant, choice, mode) for mode in MODES}
    seeds = compared_seeds(rounds, [settings[mode] for mode in BOTH], SEEDS)
    modes = {mode: _mode(rounds, mode, settings[mode], seeds) for mode in BOTH}
    many = seeds_of(rounds, [settings[MANY]], SEEDS)
    if many:
        modes[MANY] = _mode(rounds, MANY, settings[MANY], many)
    return _Trained(variant, choice, seeds, modes)


def _mode(rounds: Rounds, mode: str, setting: str, seeds: Sequence[int]) -> _Mode:
    ages, seconds = (of_results(rounds, setting, seeds, name) for name in ("gradient_age_p50", "train_seconds"))
    best = max(of_results(rounds, setting, seeds, "best_test_top1"))
    last = mean_of(last_percents(rounds, setting, seeds))
    return _Mode(mode, last, PERCENT * best, max(age or 0 for age in ages), statistics.median(seconds))


def _gains(rounds: Rounds, found: Sequence[_Trained]) -> Iterator[tuple[str, Mean]]:
    """Yields what free threads gain, of each variant and of all, in percentage points, seed by seed."""
    pairs = {
        one.variant.said: {
            seed: [last_percents(rounds, setting_of(one.variant, one.choice, mode), [seed])[0] for mode in BOTH]
            for seed in one.seeds
        }
        for one in found
    }
    for said, of_seeds in pairs.items():
        yield said, paired(*zip(*of_seeds.values(), strict=True))
    common = [seed for seed in SEEDS if all(seed in of_seeds for of_seeds in pairs.values())]
    yield (
        "mean of the four",
        mean_of([statistics.fmean(of[seed][0] - of[seed][1] for of in pairs.values()) for seed in common]),
    )


def _table(found: Sequence[_Trained]) -> Table:
    rows = [
        (
            one.variant.said, f"{one.variant.connections / 1e6:.2f} M", SAID[mode.mode], f"{mode.last.value:.2f}",
            f"{mode.last.low:.2f} to {mode.last.high:.2f}", f"{mode.best:.2f}", f"{mode.last.seeds}", f"{mode.age:g}",
            f"{mode.seconds:.0f} s",
        )
        for one in found
        for mode in one.modes.values()
    ]  # fmt: skip
    columns = (
        "network", "connections", "mode", "mean of the last, %", "smallest to largest", "best of the best", "seeds",
        "gradient age", "training",
    )  # fmt: skip
    paper = ("Adam, table 1", "around 2.5 M")
    said = (("free", f"{PAPER_FREE}"), ("in step", f"{PAPER_IN_STEP}"), ("Goodfellow", f"{OTHERS}"))
    rows += [(*paper, mode, "", "", percent, "", "", "") for mode, percent in said]
    return Table(columns, tuple(rows))


def _sentences(rounds: Rounds, found: Sequence[_Trained]) -> Iterator[str]:
    nearest = min(found, key=lambda one: one.distance)
    yield "Data: MNIST, 60,000 images without distortions. One of the 10,000 test images is 0.01%."
    yield (
        "Free: one worker of two threads, a push and a fetch after 8 steps. In step: one thread whose rule is applied "
        "after each step. No share of a core and no link is emulated, since only accuracy counts."
    )
    searched = [one for one in found if is_searched(rounds, tried_of(one.variant))]
    for one in found:
        how = ", chosen by --search" if one in searched else ""
        yield (
            f"{one.variant.said}: {one.variant.passes} passes, rate {one.choice.lr:g}, gradients clipped to "
            f"{one.choice.clip_norm:g}{how}; seeds {', '.join(map(str, one.seeds))}."
        )
    if len(searched) < len(found):
        yield FIXED_SAID
    yield (
        f"Nearest to {PAPER_CONNECTIONS / 1e6:g} million connections: {NEAREST.padding} padding, "
        f"{NEAREST.connections / 1e6:.2f} million."
    )
    free, in_step = (nearest.modes[mode].last.value for mode in BOTH)
    yield (
        f"Nearest to {PAPER_FREE}% against {PAPER_IN_STEP}%: {nearest.variant.said}, {free:.2f}% against "
        f"{in_step:.2f}%."
    )
    *_, (_, gain) = _gains(rounds, found)
    yield (
        f"Does asynchrony help? {_said_of(gain)}: {gain.value:+.3f} points{_error_of(gain)} as the mean of the four. "
        f"It is settled from {SETTLED:g} standard errors on."
    )


def _said_of(gain: Mean) -> str:
    return {"met": "Yes", "missed": "No", "not settled": "Not settled"}[above("asynchrony helps", gain, 0.0).outcome]


def _error_of(gain: Mean) -> str:
    return f" with a standard error of {gain.error:.3f}" if gain.seeds > 1 else ", of one seed"
