"""Servers killed, stopped, cut off one way or both, out of disk: nothing lost, nothing twice, all copies equal."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from adamctl.bench.failover.cluster import FailoverCluster
from adamctl.bench.namespaces import missing
from tests.faults.any_fault import inside
from tests.faults.servers_under_fire import Progress
from tests.faults.tended_servers import COPIES, QUICK_LEASE_S, SHORT_LEASE_S
from tests.faults.training_under_fire import Training

ROUNDS = 300
BLOCK = 25
BLOCK_S = 1800.0


def run_inside(work: str, rounds: int, seed: int, lease_s: float, *faults: str) -> None:
    """Skips where the machine allows no namespaces with file systems of their own."""
    command, settings = inside(work, rounds, seed, lease_s, *faults)
    unshared = command[: command.index("--mount") + 1]
    if missing() or shutil.which("mount") is None:
        pytest.skip(missing() or "there is no mount here")
    if subprocess.run([*unshared, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted in a namespace here")
    environment = {**os.environ, **settings, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BLOCK_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.slow
def test_a_full_disk_of_one_server_stops_nobody() -> None:
    run_inside("counting", 1, 1, QUICK_LEASE_S, "full")


def test_servers_that_are_all_cut_off_from_controllers_that_live_lose_nothing() -> None:
    """They are all given up, and begin anew from what they have written down when they learnt of it."""
    run_inside("counting", 1, 1, QUICK_LEASE_S, "cut-all")


async def test_training_goes_on_when_a_server_dies() -> None:
    """Needs no namespaces."""
    with FailoverCluster(COPIES, QUICK_LEASE_S) as cluster:
        training = Training(cluster)
        try:
            await training.open()
            training.kill("ps-2")
            await training.progress(2)
            await training.start("ps-2")
            await training.whole()
            await training.check()
        finally:
            await training.close()


@pytest.mark.slow
@pytest.mark.parametrize("work", ["counting", "training"])
def test_300_faults_of_any_kind(work: str) -> None:
    """Goes on from the file that ADAMCTL_TROUBLE_PROGRESS names (and the work is added to), if that is set."""
    progress = Progress("ADAMCTL_TROUBLE_PROGRESS", work)
    for done in range(progress.done, ROUNDS, BLOCK):
        run_inside(work, BLOCK, 1 + done, SHORT_LEASE_S)
        progress.reached(done + BLOCK)
