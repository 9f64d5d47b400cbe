"""Who may ask for a checkpoint of parameters that a worker holds, and when."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from adamctl.config.records import JobRecord, encode, job_key
from adamctl.errors import ConfigurationError, RemoteError
from adamctl.roles.ps.client.own_parameters import OwnParameters
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointRequest, ConfigEntry
from tests.roles.ps.client.test_own_parameters import LAYOUT, experiment
from tests.roles.worker.own.test_updates import Asked, World


class Store:
    """A configuration service that knows one job, or none."""

    def __init__(self, restore: str | None, parameters_only: bool = False) -> None:
        self._restore, self._parameters_only = restore, parameters_only

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        if self._restore is None:
            return 1, []
        rule = experiment("sgd").optimizer.rule
        record = JobRecord("running", LAYOUT.hash, rule, 5, "the-coordinator", self._restore)
        record = msgspec.structs.replace(record, parameters_only=self._parameters_only)
        return 1, [ConfigEntry(job_key("small"), encode(record), 1)]


def place(folder: Path, restore: str | None = "", parameters_only: bool = False) -> OwnPlace:
    context: Any = SimpleNamespace(
        options={"checkpoint_root": (str(folder),)}, controller=Store(restore, parameters_only), node="worker-1",
        log=logging.getLogger("test"),
    )  # fmt: skip
    return OwnPlace(context, "small", experiment("sgd"), LAYOUT)


def asked_by(node: str) -> Any:
    asked: Any = Asked()
    asked.peer = SimpleNamespace(node=node)
    return asked


@pytest.mark.parametrize("parameters_only", [False, True])
async def test_the_job_says_what_of_a_checkpoint_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters_only: bool
) -> None:
    begun: list[tuple[Any, ...]] = []
    monkeypatch.setattr(OwnParameters, "begin", lambda self, weights, *start: begun.append(start))
    own, world = place(tmp_path, str(tmp_path), parameters_only), World()
    await own.attach()
    await own.updates_of(world.replica, world.failures.append).start()
    assert begun == [(str(tmp_path), parameters_only)]


async def test_only_the_coordinator_of_the_job_has_a_checkpoint_written(tmp_path: Path) -> None:
    own, world = place(tmp_path), World()
    message = CheckpointRequest("small", str(tmp_path / "1"))
    await own.attach()
    early, stranger, right = asked_by("the-coordinator"), asked_by("stranger"), asked_by("the-coordinator")
    own.save(early, message)
    assert early.answer.code == ErrorCode.NOT_READY
    updates = own.updates_of(world.replica, world.failures.append)
    await updates.start()
    own.save(stranger, message)
    assert stranger.answer.code == ErrorCode.NOT_ALLOWED and not (tmp_path / "1").exists()
    own.save(right, CheckpointRequest("other", str(tmp_path / "1")))
    assert right.answer.code == ErrorCode.NOT_READY
    own.save(right, message)
    async with asyncio.timeout(10):
        while isinstance(right.answer, RemoteError):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(right.answer.files) == 1
    await updates.close()
    await own.close()
    await world.close()


async def test_a_checkpoint_outside_the_allowed_folders_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="--checkpoint-root"):
        await place(tmp_path / "runs", str(tmp_path / "else")).attach()


async def test_a_job_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not known any more"):
        await place(tmp_path, None).attach()
