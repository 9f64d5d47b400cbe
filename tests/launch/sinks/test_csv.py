"""The table: a heading, a line each, and nothing left of what a run went back from."""

from __future__ import annotations

import csv
from pathlib import Path

from adamctl.launch.sinks.csv import open_table
from adamctl.launch.sinks.measurement import Measurement


def test_a_table_has_a_column_for_every_name(tmp_path: Path) -> None:
    table = open_table("a/001", tmp_path / "new")
    table.add(Measurement("progress", 1.5, 100, 2.0, {"loss/train": 0.5}))
    table.add(Measurement("evaluation", 2.5, 200, 4.0, {"loss/test": 0.25, "top-1/test": 0.75}))
    table.flush()
    with (tmp_path / "new" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["step"], row["train_seconds"]) for row in rows] == [
        ("progress", "100", "2.0"), ("evaluation", "200", "4.0")
    ]  # fmt: skip
    assert (rows[0]["loss/train"], rows[0]["loss/test"], rows[1]["top-1/test"]) == ("0.5", "", "0.75")
    table.close()


def test_a_name_that_comes_later_gets_a_column(tmp_path: Path) -> None:
    table = open_table("a/001", tmp_path)
    table.add(Measurement("progress", 1.0, 100, 2.0, {"loss/train": 0.5}))
    for step in (100, 200):
        table.add(Measurement("evaluation", 2.0, step, 3.0, {"loss/test": 0.25, "rmse/test": step / 1000}))
    table.went_back(200)
    table.add(Measurement("evaluation", 4.0, 300, 5.0, {"rmse/test": 0.3, "recall, mean/test": 0.5}))
    table.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rmse/test"] for row in rows] == ["", "0.1", "0.3"]
    assert [row["recall, mean/test"] for row in rows] == ["", "", "0.5"]
    assert [row["loss/train"] for row in rows] == ["0.5", "", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_what_a_run_went_back_from_is_removed_and_an_earlier_table_is_written_anew(tmp_path: Path) -> None:
    for _ in range(2):
        table = open_table("a/001", tmp_path)
        for step in (100, 300, 200):
            table.add(Measurement("progress", 1.0, step, 2.0, {"loss/train": float(step)}))
        table.went_back(200)
        table.add(Measurement("progress", 1.0, 250, 2.0, {"loss/train": 250.0}))
        table.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["100", "250"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
