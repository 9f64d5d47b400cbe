"""A cluster of machines with links trains, where namespaces can be made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adamctl.bench import namespaces
from adamctl.bench.control_groups import control_groups

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
