"""Runs of DistBelief's methods: warm starts, time, going on, and the search of rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.figures.distbelief import speech_runs
from adamctl.bench.figures.distbelief.speech_methods import ADAGRAD, DOWNPOUR, LIMIT_S, SGD
from adamctl.bench.figures.distbelief.speech_runs import what_was_emulated
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.errors import ConfigurationError
from tests.bench.figures.distbelief.fake_speech import WARM_S, FakeTrainings, speed_of


def session(rounds: Rounds | None = None, *, searches: bool = False) -> Session:
    return Session(FigureSettings(searches=searches), Rounds() if rounds is None else rounds)


def test_all_but_plain_sgd_begin_with_one_pass_of_it_by_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrainings(monkeypatch)
    with speech_runs.speech_runs(session()) as runs:
        for method in (SGD, DOWNPOUR, ADAGRAD):
            found = runs.take(method, 2, 0.5)
    assert fake.names == ["sgd/2", "sgd/2", "downpour-4/2", "adagrad-4/2"]
    plain, warm, *others = fake.trainings
    assert not plain[1].train.warmstart_from and warm[1].train.passes == 1
    for training, experiment in others:
        assert Path(experiment.train.warmstart_from) == warm[0].kept
        assert training.seconds_most == LIMIT_S - WARM_S and training.machines == ADAGRAD.machines
    assert plain[0].seconds_most == LIMIT_S and found.rate == ADAGRAD.rate
    assert found.curve.tested[0].seconds == pytest.approx(WARM_S + WARM_S / speed_of("adagrad", 4), abs=1e-3)


def test_what_was_interrupted_makes_its_checkpoint_again_and_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds()
    fake = FakeTrainings(monkeypatch)
    with speech_runs.speech_runs(session(rounds)) as runs:
        runs.take(DOWNPOUR, 1, 0.5)
    with speech_runs.speech_runs(session(rounds)) as runs:
        runs.take(DOWNPOUR, 1, 0.5)
        found = runs.take(ADAGRAD, 1, 0.5)
    assert fake.names == ["sgd/1", "downpour-4/1", "sgd/1", "adagrad-4/1"]
    assert fake.trainings[2][0].machines is None
    assert found.curve.tested[0].seconds == pytest.approx(WARM_S + WARM_S / speed_of("adagrad", 4), abs=1e-3)


def test_a_run_with_another_rate_is_not_taken_for_one_of_this(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrainings(monkeypatch)
    rounds = Rounds()
    with speech_runs.speech_runs(session(rounds)) as runs:
        runs.take(SGD, 1, 0.5)
        with pytest.raises(
            ConfigurationError, match=r"sgd/seed-1: expected a run with the rate 0\.5; found one with 0\.1"
        ):
            runs.take(SGD.with_rate(0.5), 1, 0.5)


def test_a_search_looks_at_no_test_example_and_takes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrainings(monkeypatch, bad_rate=0.1)
    monkeypatch.setattr(speech_runs, "TRIED", {SGD.name: (0.03, 0.1, 0.3)})
    rounds = Rounds()
    with speech_runs.speech_runs(session(rounds, searches=True)) as runs:
        (method,) = runs.methods([SGD])
    assert method.rate == 0.03 and len(fake.trainings) == 3
    for training, experiment in fake.trainings:
        assert experiment.evaluated_on == "validation" and experiment.data.validation == 0.1 and training.seed == 0
    assert "(chosen on 11-26; those of sgd by this run)" in what_was_emulated(rounds)[-1]


def test_a_search_that_is_finished_counts_when_the_figure_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is not finished does not, nor is it said to."""
    fake = FakeTrainings(monkeypatch, bad_rate=0.1)
    rounds, unfinished = Rounds(), Rounds()
    with speech_runs.speech_runs(session(rounds, searches=True)) as runs:
        runs.methods([SGD])
    key, *_ = rounds.to_json()["rounds"]
    unfinished.take(key, lambda: rounds[key])
    fake.trainings.clear()
    for there, rate in ((rounds, 0.03), (unfinished, SGD.rate)):
        with speech_runs.speech_runs(session(there)) as runs:
            assert [method.rate for method in runs.methods([SGD])] == [rate]
    assert not fake.trainings and "by this run" not in what_was_emulated(unfinished)[-1]
