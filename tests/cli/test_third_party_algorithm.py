"""A batch algorithm that somebody else's package registers by entry point is one like any other on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.config.small_network import NETWORK
from tests.optimizers import third_party


@pytest.fixture
def site(tmp_path: Path) -> Path:
    third_party.install(tmp_path)
    optimizer = '[optimizer]\ntype = "descent"\ngradient_tolerance = 0.001\n[optimizer.settings]\nstep = 0.5\n'
    (tmp_path / "exp.toml").write_text(NETWORK + optimizer)
    return tmp_path


def adamctl(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "ADAMCTL_KERNELS": "numpy",
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        [sys.executable, "-m", "adamctl", *arguments],
        capture_output=True, text=True, timeout=60, env=environment, cwd=site,
    )  # fmt: skip


def test_its_settings_are_shown_with_where_they_come_from(site: Path) -> None:
    result = adamctl(site, "config", "show", "exp.toml", "--origin", "--set", "optimizer.settings.scales=[0.5]")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in result.stdout.splitlines() if line}
    assert rows["optimizer.type"] == ['"descent"', "file exp.toml:11"]
    assert rows["optimizer.settings.step"] == ["0.5", "file exp.toml:14"]
    assert rows["optimizer.settings.scales"] == ["[0.5]", "flag --set optimizer.settings.scales"]
    shown = adamctl(site, "config", "show", "exp.toml").stdout
    (site / "again.toml").write_text(shown)
    assert "[optimizer.settings]\nstep = 0.5\n" in adamctl(site, "config", "show", "again.toml").stdout


def test_a_misspelled_setting_is_refused_before_anything_starts(site: Path) -> None:
    for command in (["config", "check", "exp.toml"], ["train", "exp.toml", "--json"]):
        result = adamctl(site, *command, "--set", "optimizer.settings.setp=0.5")
        said = 'optimizer.settings.setp: unknown setting of "descent". Did you mean "step"? Allowed here: scales, step.'
        assert (result.returncode, said in result.stderr) == (2, True), result.stderr
    assert not (site / "runs").exists()


def test_one_that_is_not_installed_is_refused_with_those_that_are(site: Path) -> None:
    result = adamctl(site, "train", "exp.toml", "--set", "optimizer.type=nadam")
    assert result.returncode == 2
    assert '"owlqn", "broken", "descent"' in result.stderr
    assert "exp.toml:11: " not in result.stderr, "the flag is the place"


def test_more_memory_than_there_is_names_the_key_to_lower(site: Path) -> None:
    wide = ["--set", "optimizer.type=lbfgs", "--set", "model.layers.0.units=1000000000"]
    (site / "exp.toml").write_text(NETWORK)
    result = adamctl(site, "train", "exp.toml", *wide)
    assert (result.returncode, "Lower optimizer.history" in result.stderr) == (2, True), result.stderr


def test_it_is_valid_for_scripts(site: Path) -> None:
    result = adamctl(site, "config", "check", "exp.toml", "--json")
    assert (result.returncode, json.loads(result.stdout)["ok"]) == (0, True), result.stderr


def trained(site: Path, *arguments: str) -> dict[str, Any]:
    result = adamctl(site, "train", "exp.toml", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["batch"]
    return found


def test_it_trains_as_ours_do(site: Path) -> None:
    found = trained(site, "--passes", "3")
    assert (found["algorithm"], found["evaluations"], found["iterations"]) == ("descent", 3, 3)
    assert (found["stop_reason"], found["step"]) == ("budget", 0.5)


@pytest.mark.slow
def test_it_goes_on_from_its_last_commit(site: Path) -> None:
    first, again = trained(site, "--passes", "3"), trained(site, "--passes", "5", "--resume", "auto")
    assert (again["evaluations"], again["iterations"]) == (5, 5)
    assert again["loss"] < first["loss"]
