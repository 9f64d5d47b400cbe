"""What docs/algorithms.md shows works as it stands there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adamctl.config.batch_conflicts import FIXED_STEPS, REFUSED
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.optimizers.configured import check, settings_of
from tests import packages
from tests.config.small_network import NETWORK

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def loaded(folder: Path, text: str) -> Experiment:
    path = folder / "exp.toml"
    path.write_text(NETWORK + text)
    return load_experiment(path).experiment


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ((group, points),) = tomllib.loads(TOML[1])["project"]["entry-points"].items()
    packages.use(tmp_path, "mypackage", {"descent": PYTHON[0]}, group, points, monkeypatch)
    return tmp_path


def test_our_own_keys_are_taken(tmp_path: Path) -> None:
    found = loaded(tmp_path, TOML[0])
    check(found)
    assert (found.optimizer.type, found.train.passes) == ("lbfgs", 100)


def test_the_package_is_found_takes_its_settings_and_runs_on_numpy(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = loaded(package, TOML[2])
    settings: Any = settings_of(found)
    assert (settings.step, settings.gradient_tolerance) == (0.5, 1e-3)
    scope: dict[str, Any] = {}
    exec(PYTHON[0] + PYTHON[1], scope)
    assert capsys.readouterr().out.startswith("gradient 18 [")


def test_every_refused_key_is_told() -> None:
    for key in (*REFUSED, *FIXED_STEPS, "cluster.ps", "optimizer.batch"):
        assert f"`{key}" in PAGE.partition("## What is refused")[2].partition("## One of")[0], key
