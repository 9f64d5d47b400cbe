"""Trainings as rounds: each is kept as it ends, and what is there is not trained again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adamctl.bench.figures import trained
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.runs import Training
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.bench.figures.trained import compared_seeds, key_of_seed, last_percents, seeds_of, take_trainings
from adamctl.errors import RunFailedError
from tests.bench.figures.fake_trainings import FakeTrainings, found_of, keep


def trainings(*keys: str) -> dict[str, Training]:
    return {key: Training(Path("mnist.toml"), seed=number) for number, key in enumerate(keys, 1)}


def test_what_is_missing_is_trained_and_kept_without_what_it_went_through(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, rounds = FakeTrainings(lambda key, training: 0.9), Rounds()
    monkeypatch.setattr(trained, "train_several", fake)
    rounds.take("a/seed-1", lambda: "there")
    take_trainings(Session(FigureSettings(), rounds), trainings("a/seed-1", "b/seed-1"), 2)
    assert list(fake.ran) == ["b/seed-1"]
    assert rounds["a/seed-1"] == "there"
    assert rounds["b/seed-1"]["evaluations"] == [{"pass": 1.0, "top1": 0.9, "loss": 0.1}]
    assert "progress" not in rounds["b/seed-1"]


def test_runs_that_ended_before_another_failed_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(several: Mapping[str, Training], at_a_time: int, ended: Callable[[str, Mapping[str, Any]], None]) -> None:
        ended(next(iter(several)), found_of(0.9))
        raise RunFailedError("the second one")

    monkeypatch.setattr(trained, "train_several", fails)
    rounds = Rounds()
    with pytest.raises(RunFailedError, match="the second one"):
        take_trainings(Session(FigureSettings(), rounds), trainings("a/seed-1", "b/seed-1"))
    assert "a/seed-1" in rounds
    assert "b/seed-1" not in rounds


def test_seeds_are_compared_that_all_settings_have() -> None:
    rounds = Rounds()
    for key, top1 in (("a/seed-1", 0.9), ("a/seed-2", 0.91), ("b/seed-2", 0.8), ("b/seed-3", 0.7)):
        keep(rounds, key, found_of(top1))
    assert seeds_of(rounds, ["a", "b"], (1, 2, 3)) == compared_seeds(rounds, ["a", "b"], (1, 2, 3)) == (2,)
    assert last_percents(rounds, "a", (1, 2)) == [90.0, 91.0]
    with pytest.raises(MissingRoundError, match="c/seed-1"):
        compared_seeds(rounds, ["a", "c"], (1, 2, 3))


def test_a_rounds_key_ends_with_its_seed() -> None:
    assert key_of_seed("width-0.5", 3) == "width-0.5/seed-3"
