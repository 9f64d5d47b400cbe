"""A run's records: whole lines, also on a disk that fills and is emptied again."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from msgspec import structs

from adamctl.errors import ConfigurationError
from adamctl.roles.coordinator.core.progress import BatchProgress, EvaluationResult, RunProgress
from adamctl.roles.coordinator.records import LINES_WAITING_MAX, METRICS_NAME, SUMMARY_NAME, RunRecords

PROGRESS = RunProgress(state="training", job="a", passes_total=1)


def evaluation(passes: float) -> EvaluationResult:
    return EvaluationResult(passes=passes, progress=0.5, train_seconds=1.0, split="test", top1=0.5, loss=1.0)


class Disk:
    """Room for so many more bytes."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes
        self._write = os.write

    def write(self, file: int, content: bytes) -> int:
        taken = content[: self.room_bytes]
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room_bytes -= len(taken)
        return self._write(file, taken)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / METRICS_NAME).read_text().splitlines()]


def test_every_event_is_a_line(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    records.progress(PROGRESS)
    records.evaluation(evaluation(0.5), PROGRESS)
    records.close()
    assert [line["kind"] for line in lines(tmp_path)] == ["progress", "evaluation", "progress"]
    assert (tmp_path / METRICS_NAME).stat().st_mode & 0o077 == 0


BATCH = BatchProgress(
    algorithm="lbfgs", iterations=3, evaluations=5, loss=0.25, gradient_max=0.5, step=0.125, backups=1
)


def test_a_folder_is_one_runs_as_long_as_it_writes_there(tmp_path: Path) -> None:
    first = RunRecords(tmp_path)
    with pytest.raises(ConfigurationError, match="another run writes there; give each run a folder of its own"):
        RunRecords(tmp_path)
    first.close()
    RunRecords(tmp_path).close()


def test_every_iteration_of_a_batch_algorithm_is_a_line(tmp_path: Path) -> None:
    records = RunRecords(tmp_path)
    records.iteration(structs.replace(PROGRESS, train_seconds=1.5, batch=BATCH))
    records.iteration(structs.replace(PROGRESS, batch=BatchProgress(algorithm="mine", evaluations=1)))
    records.iteration(PROGRESS)
    records.close()
    first, second = ({name: v for name, v in line.items() if name != "time"} for line in lines(tmp_path))
    assert first == {
        "kind": "iteration", "iteration": 3, "evaluations": 5, "train_seconds": 1.5, "loss": 0.25, "gradient_max": 0.5,
        "step": 0.125,
    }  # fmt: skip
    assert second["evaluations"] == 1 and second["loss"] is second["iteration"] is None


@pytest.mark.parametrize("room_bytes", [0, 1, 50, 300])
def test_what_finds_no_room_waits_for_it_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    told: list[str] = []
    records, disk = RunRecords(tmp_path, told.append), Disk(room_bytes)
    monkeypatch.setattr("adamctl.roles.coordinator.records.os.write", disk.write)
    for number in range(5):
        records.evaluation(evaluation(number), PROGRESS)
        assert lines(tmp_path) is not None, "no line is torn"
    assert told == [f"{tmp_path / METRICS_NAME} cannot be written: {os.strerror(errno.ENOSPC)}; the run continues"]
    disk.room_bytes = 1 << 20
    records.evaluation(evaluation(5), PROGRESS)
    assert [line["pass"] for line in lines(tmp_path) if line["kind"] == "evaluation"] == [0, 1, 2, 3, 4, 5]
    disk.room_bytes = 0
    records.evaluation(evaluation(6), PROGRESS)
    assert len(told) == 2, "it is full once more"
    records.close()


def test_the_oldest_lines_go_where_too_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, disk = RunRecords(tmp_path), Disk(0)
    monkeypatch.setattr("adamctl.roles.coordinator.records.os.write", disk.write)
    for number in range(LINES_WAITING_MAX):
        records.evaluation(evaluation(number), PROGRESS)
    disk.room_bytes = 1 << 30
    records.evaluation(evaluation(-1), PROGRESS)
    found = [line["pass"] for line in lines(tmp_path) if line["kind"] == "evaluation"]
    assert len(lines(tmp_path)) == LINES_WAITING_MAX + 1, "the last one came when there was room"
    assert found[0] > 0 and found[-1] == -1
    records.close()


def test_a_summary_without_room_ends_nothing_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    records = RunRecords(tmp_path, told.append)

    def full(self: Path, text: str, encoding: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    records.summary(PROGRESS)
    assert told and SUMMARY_NAME in told[0]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_NAME]
    records.close()
