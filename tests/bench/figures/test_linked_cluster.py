"""A cluster of machines with links: what it is planned to do, and, where namespaces can be made, that it trains."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adamctl.bench import namespaces
from adamctl.bench.control_groups import control_groups
from adamctl.bench.figures.adam_11 import CORES, experiment
from adamctl.bench.figures.linked_cluster import predicted
from adamctl.model.scaling.machines import Size
from tests.bench.figures.test_adam_11 import SERVING, rates

TRAINS = """
import asyncio
from adamctl.bench.figures.linked_cluster import LinkedCluster
from adamctl.bench.figures.machines import core_shares
from adamctl.bench.figures.runs import example
from adamctl.bench.watched_run import WatchedRun
from adamctl.model.scaling.machines import Size

async def train(arguments):
    async with WatchedRun(arguments) as run:
        return await run.result()

size = Size(1, 2, 1, 1)
with core_shares() as groups, LinkedCluster(size, (), groups, 0.3) as cluster:
    cluster.limit(10e6)
    assert len(cluster.beside()) == 2
    result = asyncio.run(train(cluster.arguments(str(example("digits.toml")), size, ["train.passes=2"])))
    cluster.limit(None)
print(result["passes"], result["roles"]["worker"])
"""


def planned(replicas: int, link_bytes_per_s: float | None) -> tuple[float, str]:
    return predicted(experiment(), Size(1, replicas, 1, 1), rates(), SERVING, CORES, link_bytes_per_s)


def test_a_slow_link_binds_and_a_fast_one_does_not() -> None:
    free, slow = planned(2, None), planned(2, 4e5)
    assert free[1] == "compute"
    assert "links" in slow[1]
    assert slow[0] < free[0] / 2


def test_two_replicas_without_a_limit_are_nearly_twice_as_fast_as_one() -> None:
    assert planned(2, None)[0] == pytest.approx(2 * planned(1, None)[0], rel=0.1)


@pytest.mark.slow
def test_machines_with_links_train() -> None:
    with control_groups("cpu") as made:
        if made is None or namespaces.missing():
            pytest.skip("needs network namespaces, and a control group for processor time that this user may write to")
    environment = {**os.environ, **namespaces.settings()}
    done = subprocess.run(
        [*namespaces.UNSHARE, sys.executable, "-c", TRAINS], capture_output=True, text=True, env=environment,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2.0", "2"]
