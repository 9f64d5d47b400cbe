"""Frames per second of more replicas, planned from rates that were measured."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.distbelief import speech_planned
from adamctl.bench.figures.distbelief.speech_methods import MACHINE_CORES
from adamctl.bench.figures.distbelief.speech_planned import planned_frames_per_s, take_rates
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from tests.bench.figures.distbelief.fake_speech import FakeTrainings


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    FakeTrainings(monkeypatch)
    rounds = Rounds()
    take_rates(Session(FigureSettings(), rounds))
    return rounds


def test_a_server_for_every_eight_replicas_keeps_their_speed(rounds: Rounds) -> None:
    one, two, eight, many = (planned_frames_per_s(rounds, replicas) for replicas in (1, 2, 8, 32))
    assert two == pytest.approx(2 * one, rel=0.1) and one < eight < 8.1 * one
    assert many == pytest.approx(4 * eight, rel=0.15)


def test_a_machine_with_more_of_a_core_is_faster(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned_frames_per_s(rounds, 1)
    monkeypatch.setattr(speech_planned, "MACHINE_CORES", 2 * MACHINE_CORES)
    assert planned_frames_per_s(rounds, 1) == pytest.approx(2 * before, rel=0.1)
