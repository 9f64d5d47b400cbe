"""Adam 3.2.5 from runs that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.adam import section_3_2_5
from adamctl.bench.figures.machines import check_machines
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.runs import Training
from adamctl.bench.figures.session import FigureSettings, Session
from tests.bench.figures.distbelief.fake_speech import no_groups

ALONE = 15_000.0
"""Examples a second of a whole core."""


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """Makes trainings up: a pass ends 20% sooner with 0.75 where ranges are long and a worker is slow."""
    asked: list[Training] = []

    def train(training: Training, groups: ControlGroups | None = None) -> dict[str, Any]:
        assert training.machines is not None and groups is not None
        asked.append(training)
        workers = [cores for node, cores in training.machines.items() if node.startswith("worker")]
        if len(workers) == 1:
            return {"result": {"images_per_s": ALONE * workers[0]}, "evaluations": []}
        early = training.settings["train.pass_fraction"] == 0.75
        saves = early and training.settings["train.range_batches"] == 58 and min(workers) == 0.1
        pass_s = (4.0 if saves else 5.0) + training.seed / 1000
        ends = [9.0 + pass_s * number for number in range(training.settings["train.passes"])]
        evaluations = [{"train_seconds": end_s} for end_s in ends]
        return {"result": {"test_top1": 0.99 - 0.0001 * early}, "evaluations": evaluations}

    monkeypatch.setattr(section_3_2_5, "train", train)
    monkeypatch.setattr(section_3_2_5, "core_shares", no_groups)
    return asked


def measured() -> Rounds:
    rounds = Rounds()
    section_3_2_5.measure(Session(FigureSettings(), rounds))
    return rounds


def test_settings_alternate_within_a_seed_and_machines_fit(trainings: list[Training]) -> None:
    keys = list(measured().to_json()["rounds"])
    assert keys[3:7] == [f"slow/{batches}/{fraction}/seed-1" for batches in (8, 58) for fraction in ("0.75", "1.0")]
    assert len(keys) == 3 + 4 * 10 + 4 * 3 and keys[-1] == "even/58/1.0/seed-3"
    for training in trainings:
        assert training.machines is not None
        check_machines(training.machines)


def test_the_first_pass_of_a_run_does_not_count() -> None:
    assert section_3_2_5.pass_seconds([{"train_seconds": at_s} for at_s in (9.0, 14.0, 18.5)]) == [5.0, 4.5]


def test_a_setting_that_was_not_measured_is_missing() -> None:
    with pytest.raises(MissingRoundError, match=r"slow/8/0\.75/seed-1"):
        section_3_2_5.figure_of(Rounds())


def test_what_is_saved_and_what_it_costs_is_judged(trainings: list[Training]) -> None:
    figure = section_3_2_5.figure_of(measured())
    assert [bar.outcome for bar in figure.bars] == ["met", "met", "met", "met"]
    times, costs = figure.panels
    slow, even = ([point.y for point in line.points] for line in times.lines)
    assert slow == pytest.approx([1.0, 0.8], abs=1e-3) and even == [1.0, 1.0]
    assert [point.y for point in costs.lines[0].points] == pytest.approx([-0.0001, -0.0001])
    row = figure.tables[0].rows[0]
    assert row[3].startswith("5.01 ") and row[4] == f"{60_000 / ALONE / 1.3:.2f}"


def test_a_pass_that_is_no_faster_is_not_called_so(trainings: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = measured().to_json()["rounds"]
    for key, value in rounds.items():
        if key.startswith("slow/58/0.75"):
            value["pass_s"] = [6.0] * 7
            value["top1"] -= 0.002
    changed = Rounds()
    changed.take_over({"starts": [], "rounds": rounds, "done": True})
    assert [bar.outcome for bar in section_3_2_5.figure_of(changed).bars] == ["missed", "met", "met", "missed"]
