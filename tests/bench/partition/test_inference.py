"""The benchmark of inference in partitions says what its ratio is beside training's, in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.partition.inference import TRAINING_BAR, Measured, rows_of, run_inference_benchmark
from adamctl.config.load import load_experiment

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"


@pytest.mark.parametrize(("speeds", "meets"), [([90.0, 86.0, 88.0], True), ([84.0, 80.0, 83.0], False)])
def test_inference_is_held_against_training_of_the_same_run(speeds: list[float], meets: bool) -> None:
    training = Measured([100.0, 100.0, 100.0], [92.0, 95.0, 90.0])
    rows = rows_of({"training": training, "inference": Measured([100.0] * 3, speeds)}, 2, 0.5)
    assert [(row["part"], row["bar"], row["meets"]) for row in rows] == [
        ("training", f">= {TRAINING_BAR:g}", True), ("inference", ">= 0.87", meets)
    ]  # fmt: skip
    assert rows[0]["ratio"] == pytest.approx(0.92) and rows[1]["details"]["lowest_to_highest"] == [
        min(speeds) / 100, max(speeds) / 100
    ]  # fmt: skip


@pytest.mark.slow
def test_it_measures_all_four_in_turn() -> None:
    said: list[str] = []
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    report = run_inference_benchmark(experiment, 2, threads=2, batch=4, rounds=2, seconds=0.05, progress=said.append)
    assert [row["part"] for row in report["results"]] == ["training", "inference"]
    assert all(row["details"]["images_per_s"] > 0 and row["ratio"] > 0 for row in report["results"])
    assert said[-1] == "round 2 of 2" and len(said) == 6
