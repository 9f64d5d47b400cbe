"""One of two data servers is killed in the middle of a pass: every example of it is read once, and trained on once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.bench.data.serving import DataProcesses
from adamctl.bench.role_processes import connect_store, role_hello
from adamctl.config.data import DataConfig
from adamctl.net.stream import StreamTransport
from adamctl.roles.data.client.data_client import DataClient, Range, ReadAhead
from tests.e2e.conftest import Runner

pytestmark = pytest.mark.slow

EXAMPLES = 3000
RANGE = 30

EXPERIMENT = """
name = "two-data-servers"
[data]
format = "npy"
source = "{source}"
[model]
input = [4, 8, 1]
[[model.layers]]
type = "softmax"
units = 4
[train]
batch = 10
passes = 30
[optimizer]
type = "sgd"
lr = 0.001
[cluster]
workers = 2
data = 2
"""


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """A set whose examples say their number in their first two bytes."""
    folder = tmp_path / "numbered"
    folder.mkdir()
    numbers = np.arange(EXAMPLES, dtype="<u2")
    images = np.zeros((EXAMPLES, 32), np.uint8)
    images[:, :2] = numbers.view(np.uint8).reshape(-1, 2)
    labels = (numbers % 4).astype(np.int32)
    for name, values in (("x", images.reshape(-1, 4, 8)), ("y", labels)):
        np.save(folder / f"{name}_train.npy", values)
        np.save(folder / f"{name}_test.npy", values[:40])
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_every_example_of_the_passes_comes_once_though_a_server_is_killed(numbered: Path, seed: int) -> None:
    """Real processes over sockets; the reader asks ahead as a worker does, and counts what it gets."""
    chance = random.Random(seed)

    async def read(farm: DataProcesses) -> None:
        context: Any = SimpleNamespace(
            transport=StreamTransport(),
            controller=connect_store(farm.addresses["controller"]),
            hello=lambda: role_hello("worker", "worker-1"),
        )
        client = DataClient.from_context(context, farm.servers)
        order: Any = ("auto", "blocks")[seed % 2]
        config = DataConfig(format="npy", source=str(numbered), scale="none", order=order)
        data = await client.open(config, (4, 8, 1), 7)
        assert data.by_block and client.servers.alive(data) == list(farm.servers)
        victim, at = chance.choice(farm.servers), chance.randrange(EXAMPLES // RANGE)
        for pass_number in range(2):
            ahead = ReadAhead(client, data, ranges_in_flight=6)
            asking = asyncio.create_task(ask(ahead, pass_number))
            came = np.zeros(EXAMPLES, np.int64)
            for number in range(EXAMPLES // RANGE):
                if pass_number == 0 and number == at:
                    os.kill(farm.roles.pids()[victim], signal.SIGKILL)
                batch = await ahead.take()
                values = batch.images.reshape(len(batch.images), -1)
                found = (values[:, 0] + 256 * values[:, 1]).astype(np.int64)
                np.testing.assert_array_equal(found % 4, batch.labels)
                np.add.at(came, found, 1)
                batch.release()
            assert came.tolist() == [1] * EXAMPLES, f"pass {pass_number}, {victim} killed at range {at}"
            await asking
            await ahead.close()
        assert client.servers.alive(data) == [name for name in farm.servers if name != victim]
        await client.close()
        await context.controller.close()

    async def ask(ahead: ReadAhead, pass_number: int) -> None:
        for start in range(0, EXAMPLES, RANGE):
            await ahead.ask(Range("train", pass_number, start, start + RANGE))

    with DataProcesses(2, 1, [str(numbered.parent)]) as farm:
        asyncio.run(read(farm))


def test_a_run_trains_on_every_example_though_a_server_is_killed(adamctl: Runner, numbered: Path) -> None:
    """The run counts what workers have trained on: all of each pass, and what came twice."""
    experiment = adamctl.folder / "two.toml"
    experiment.write_text(EXPERIMENT.format(source=numbered))
    command = adamctl.start("train", experiment, "--json")
    command.wait_until(command.trained)
    command.roles("data")[1].kill()
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert "killed by SIGKILL; restarting it" in stderr
    assert (result["passes"], result["examples"], result["duplicates"]) == (30, 30 * EXAMPLES, 0)
