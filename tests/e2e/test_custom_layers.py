"""A layer in a module beside the experiment trains in real processes, in one partition and several."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Runner

EXPERIMENT = """\
name = "own"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "whiten"
size = 3
[[model.layers]]
type = "conv2d"
filters = 8
kernel = 3
[[model.layers]]
type = "beside_the_experiment:LAYER"
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "momentum"
lr = 0.005
[train]
passes = 4
"""
MODULE = """\
import numpy as np
from also_beside_it import NativeRelu, Relu


class Own(NativeRelu):
    pass


class Late(Relu):
    def upward(self, part, inputs, parameters, state, out):
        calls.append(1)
        if len(calls) > 5:
            raise ValueError("no more batches")
        np.maximum(inputs, 0, out=out)


calls = []
"""


@pytest.fixture
def folder(adamctl: Runner, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of experiment and module, in which no command is run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ADAMCTL_MODULES", raising=False)
    place = adamctl.folder / "of mine"
    place.mkdir()
    (place / "beside_the_experiment.py").write_text(MODULE)
    (place / "also_beside_it.py").write_text("from tests.custom_layers import NativeRelu, Relu\n")
    for name in ("Own", "Late"):
        (place / f"{name}.toml").write_text(EXPERIMENT.replace("LAYER", name))
    return place


@pytest.mark.slow
def test_it_trains_in_partitions_and_its_checkpoint_is_read_where_the_module_is_found(
    adamctl: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = ("--workers", "2", "--set", "cluster.partitions=2", "--threads", "1")
    code, stdout, stderr = adamctl.run("train", str(folder / "Own.toml"), "--json", *partitions)
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= 0.8
    assert "whiten has no native calls" in stderr and "Own has no native calls" not in stderr
    code, _, stderr = adamctl.run("eval", "own/001")
    assert code == 2 and "no module beside_the_experiment on " in stderr
    monkeypatch.setenv("ADAMCTL_MODULES", os.pathsep.join(("/nowhere", str(folder))))
    code, stdout, stderr = adamctl.run("eval", "own/001", "--json")
    assert code == 0 and json.loads(stdout)["top1"] >= 0.8, stderr
    code, _, stderr = adamctl.run("export", "own/001", "own.npz", "--order", "torch")
    assert code == 2 and "model.layers[0] (whiten): torch.nn has no such layer" in stderr
    code, _, stderr = adamctl.run(
        "train", str(folder / "Own.toml"), "--resume", "own/001", "--passes", "5", "--threads", "1"
    )
    assert code == 0, stderr


@pytest.mark.slow
@pytest.mark.parametrize("partitions", ["1", "2"])
def test_its_error_ends_the_run_with_layer_method_and_line(adamctl: Runner, folder: Path, partitions: str) -> None:
    cluster = ("--threads", "1", "--workers", partitions, "--set", f"cluster.partitions={partitions}")
    code, _, stderr = adamctl.run("train", str(folder / "Late.toml"), *cluster)
    assert code == 1
    last = stderr.splitlines()[-1]
    assert "late1 (beside_the_experiment:Late)" in last and "upward: ValueError: no more batches (" in last
    assert last.endswith("beside_the_experiment.py:13)")
    assert ("the part of outputs" in last) is (partitions == "2")
