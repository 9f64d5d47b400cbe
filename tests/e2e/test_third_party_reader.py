"""A format of somebody else's package trains in real processes, and its errors end the run with its name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import ROOT, Runner
from tests.roles.data.readers import third_party

EXPERIMENT = """\
name = "lines"
[data]
format = "{format}"
source = "./data.lines"
[model]
input = [2]
[[model.layers]]
type = "dense"
units = 4
[[model.layers]]
type = "softmax"
units = 2
[train]
batch = 8
passes = 3
warmstart_steps = 0
"""


@pytest.fixture
def package(adamctl: Runner, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in, with the package installed for the processes that they start."""
    third_party.install(adamctl.folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(adamctl.folder), str(ROOT))))
    points = np.random.default_rng(2).standard_normal((200, 2)) + np.repeat([[-3.0], [3.0]], 100, axis=0)
    rows = [f"{row // 100} {x:.3f} {y:.3f}\n" for row, (x, y) in enumerate(points)]
    (adamctl.folder / "data.lines").write_text("".join(rows))
    return adamctl.folder


@pytest.mark.slow
def test_it_trains(adamctl: Runner, package: Path) -> None:
    (package / "exp.toml").write_text(EXPERIMENT.format(format="lines"))
    code, stdout, stderr = adamctl.run("train", "exp.toml", "--json", "--threads", "1")
    assert code == 0, stderr
    assert json.loads(stdout)["examples"] == 3 * 199


@pytest.mark.slow
def test_its_error_ends_the_run_with_its_name(adamctl: Runner, package: Path) -> None:
    (package / "exp.toml").write_text(EXPERIMENT.format(format="crumbling"))
    lines = (package / "data.lines").read_text().splitlines(keepends=True)
    (package / "data.lines").write_text("".join([*lines[:150], "1 7 7\n", *lines[150:]]))
    code, _, stderr = adamctl.run("train", "exp.toml", "--threads", "1")
    assert code == 5, stderr
    assert "its reader (load, lines_package.reader:open_crumbling) failed with KeyError: 'seven'" in stderr
