"""Events as the real TensorBoard package reads them back."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.launch.sinks.measurement import Measurement
from adamctl.launch.sinks.plugins import find, open_sink

pytest.importorskip("tensorboard")


def scalars(folder: Path, name: str) -> list[tuple[int, float, float]]:
    """Returns (step, value, wall time) of each event that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return [(event.step, event.value, event.wall_time) for event in read.Scalars(name)]


def measurement(step: int, value: float) -> Measurement:
    return Measurement("progress", 1000.0 + step, step, 2.0, {"loss/train": value, "staleness/p50": 0.0})


def test_events_are_read_back_while_the_file_is_open_and_afterwards(tmp_path: Path) -> None:
    sink = open_sink(find("tensorboard"), "a/001", tmp_path / "tensorboard")
    sink.add(measurement(100, 0.5))
    sink.flush()
    assert scalars(tmp_path / "tensorboard", "loss/train") == [(100, 0.5, 1100.0)]
    sink.add(measurement(200, 0.25))
    sink.close()
    assert scalars(tmp_path / "tensorboard", "loss/train") == [(100, 0.5, 1100.0), (200, 0.25, 1200.0)]
    assert scalars(tmp_path / "tensorboard", "staleness/p50")[0][:2] == (100, 0.0)


def test_what_a_run_went_back_from_is_not_shown(tmp_path: Path) -> None:
    sink = open_sink(find("tensorboard"), "a/001", tmp_path)
    for step in (100, 200, 300):
        sink.add(measurement(step, 1.0))
    sink.went_back(200)
    sink.add(measurement(250, 0.5))
    sink.close()
    assert [found[:2] for found in scalars(tmp_path, "loss/train")] == [(100, 1.0), (250, 0.5)]


def test_a_second_following_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        sink = open_sink(find("tensorboard"), "a/001", tmp_path)
        for step in (100, 200):
            sink.add(measurement(step, 1.0))
        sink.close()
    assert [found[0] for found in scalars(tmp_path, "loss/train")] == [100, 200]
