"""What a run has measured is read from its folder; a run that cannot be used says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.experiment import ClusterConfig, Experiment
from adamctl.config.partitioning import plan_of
from adamctl.config.resolved import write_resolved
from adamctl.errors import ConfigurationError
from adamctl.launch.measured_run import read_measured
from adamctl.model.description import Dense, Model, Softmax

MODEL = Model((20,), (Dense(30), Softmax(4)))
EXPERIMENT = Experiment(name="cut", model=MODEL, cluster=ClusterConfig(workers=2, partitions=2))


def made(folder: Path, *lines: Any, experiment: Experiment = EXPERIMENT) -> Path:
    """Writes a run folder; lines that are text are written as they are."""
    run = folder / "cut" / "001"
    run.mkdir(parents=True, exist_ok=True)
    write_resolved(experiment, run)
    text = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
    (run / "metrics.jsonl").write_text("".join(text))
    return run


def progress(*computed: tuple[float, int]) -> dict[str, Any]:
    return {"time": 1.0, "kind": "progress", "state": "training", "computed": computed}


def test_the_last_line_that_tells_is_taken(tmp_path: Path) -> None:
    """The run may be running: the end of the file is half a line. At its end nobody is left to tell anything."""
    lines = (progress(), progress((1.0, 50), (1.0, 50)), progress((3.0, 200), (5.0, 250)), progress(), '{"kind": "pro')
    run = made(tmp_path, *lines)
    for name in ("cut", "cut/001", str(run)):
        found = read_measured(name, tmp_path, EXPERIMENT)
        assert found.folder == run and found.batch == EXPERIMENT.train.batch
        assert found.compute_s == (0.015, 0.02) and found.examples == 200
        assert found.plan.hash == plan_of(EXPERIMENT).hash


def test_whole_replicas_tell_too(tmp_path: Path) -> None:
    whole = msgspec.structs.replace(EXPERIMENT, cluster=ClusterConfig())
    made(tmp_path, progress((2.0, 1000)), experiment=whole)
    found = read_measured("cut", tmp_path, EXPERIMENT)
    assert found.plan.partitions == 1 and found.compute_s == (0.002,)


@pytest.mark.parametrize(
    "lines", [(), (progress(),), (progress((1.0, 99), (1.0, 200)),), (progress((1.0, 500)),), ("\xff\n", "[1]\n")]
)
def test_a_run_that_tells_nothing_is_refused(tmp_path: Path, lines: tuple[Any, ...]) -> None:
    run = made(tmp_path, *lines)
    message = r"--measured cut: expected compute seconds of 2 partition\(s\), for 100 or more examples, in .*; found"
    with pytest.raises(ConfigurationError, match=message):
        read_measured("cut", tmp_path, EXPERIMENT)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_measured("cut", tmp_path, EXPERIMENT)


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (Model((21,), MODEL.layers), r"input \[20\] instead of \[21\]"),
        (Model((20,), (Dense(31), Softmax(4))), "layer 1 differs"),
        (Model((20,), (Dense(30), Softmax(4), Softmax(4))), "2 layers instead of 3"),
        (Model((20,), MODEL.layers, loss="squared_error"), "its loss differs"),
    ],
)
def test_a_run_of_another_network_is_refused(tmp_path: Path, model: Model, difference: str) -> None:
    made(tmp_path, progress((3.0, 200), (5.0, 200)))
    with pytest.raises(ConfigurationError, match=f"expected a run of this network; .*{difference}"):
        read_measured("cut", tmp_path, msgspec.structs.replace(EXPERIMENT, model=model))


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no run 'other'"):
        read_measured("other", tmp_path, EXPERIMENT)
