"""Settings take turns, and what is there is not measured again."""

from __future__ import annotations

from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import ROUNDS_QUICK, FigureSettings, Session


def taken(session: Session, count: int) -> list[str]:
    """Returns what was measured."""
    found: list[str] = []
    session.in_turn(["a", "b"], lambda name, number: found.append(f"{name}{number}"), count)
    return found


def test_settings_alternate_within_a_round() -> None:
    told: list[str] = []
    session = Session(FigureSettings(), Rounds(), progress=told.append)
    session.take("b/round-1", lambda: None)
    assert taken(session, 3) == ["a1", "a2", "b2", "a3", "b3"]
    assert told == ["b/round-1", "a/round-1", "a/round-2", "b/round-2", "a/round-3", "b/round-3"]


def test_a_quick_one_is_smaller() -> None:
    session = Session(FigureSettings(is_quick=True), Rounds())
    assert len(taken(session, 5)) == 2 * ROUNDS_QUICK and session.sized(60.0, 0.5) == 0.5
    assert Session(FigureSettings(), Rounds()).sized(60.0, 0.5) == 60.0
