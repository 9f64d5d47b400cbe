"""A run within a Slurm job: what `scancel` sends to all its processes at once ends it in order."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import EXAMPLES, Runner
from tests.launch.places.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = pytest.mark.slow

HOSTS = 2
KILL_WAIT_S = 60
TRAINS_S, GONE_S = 180.0, 2.0 * KILL_WAIT_S


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SlurmCluster]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster(folder, HOSTS, kill_wait_s=KILL_WAIT_S) as started:
        yield started


def test_a_job_that_is_cancelled_leaves_a_checkpoint_of_its_last_moment(
    adamctl: Runner, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its processes get SIGTERM: front, roles, agents, and whatever command of Slurm is at work."""
    long = adamctl.folder / "long.toml"
    text = (EXAMPLES / "digits.toml").read_text().replace("passes = 60", "passes = 100_000")
    long.write_text(re.sub(r"checkpoint_every = \d+", "checkpoint_every = 100_000", text))
    printed = adamctl.start("launch", "slurm", long, "--hosts", str(HOSTS), "--time", "1h", "--print")
    code, script, errors = printed.wait()
    assert not code, errors
    (adamctl.folder / "job.sh").write_text(script)
    monkeypatch.chdir(adamctl.folder)
    job = cluster.command("sbatch", "--parsable", "job.sh").strip()
    until(printed.trained, TRAINS_S)
    cluster.command("scancel", job)
    until(lambda: not cluster.jobs(), GONE_S)
    (log,) = adamctl.folder.glob("*.log")
    told = log.read_text()
    assert "stopped: interrupted by SIGTERM" in told and "Traceback" not in told, told
    (manifest,) = adamctl.folder.glob("runs/*/*/checkpoints/*/manifest.json")
    assert json.loads(manifest.read_text())["job"] == "digits"


def until(true: Callable[[], object], deadline_s: float) -> None:
    end_s = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end_s, os.listdir()
        time.sleep(0.2)
