"""What becomes of a checkpoint when its copy fails, or its run; and what a run goes on beside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from adamctl.config.experiment import TrainConfig
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.copies import CheckpointCopies
from adamctl.roles.coordinator.checkpoint.writer import CheckpointWriter
from adamctl.wire.messages import CheckpointFile
from tests.roles.coordinator.checkpoint.test_manifest import EXPERIMENT, LAYOUT, SNAPSHOT, seen, written

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
URL = "memory://bucket/runs/one"


class Servers:
    """Each writes its part, or fails."""

    failure: Exception | None = None

    async def checkpoint(self, folder: str, **given: Any) -> tuple[CheckpointFile, ...]:
        if self.failure is not None:
            raise self.failure
        return tuple(written(Path(folder), b"first part", b"second part"))


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


class World:
    """A writer of a run in a folder, whose checkpoints are copied; what it told people is in `told`."""

    def __init__(self, folder: Path, **train: Any) -> None:
        self.servers, self.told = Servers(), list[str]()
        experiment = replace(EXPERIMENT, train=TrainConfig(checkpoint_url=URL, **train))
        holders: Any = self.servers
        self.writer = CheckpointWriter(folder, "small", experiment, LAYOUT, holders, self.told.append)

    async def write(self, number: int, validation_top1: float | None = None) -> Path:
        """Writes a checkpoint, which was evaluated if its result is given."""
        snapshot = SNAPSHOT
        if validation_top1 is not None:
            snapshot = replace(SNAPSHOT, evaluated=True, evaluations=[seen(validation_top1, "validation")])
        return await self.writer.write(number, snapshot, complete=False)

    @property
    def finished(self) -> list[str]:
        return [path.name for path in manifest.finished(self.writer.folder)]


def copied() -> set[str]:
    paths = fsspec.filesystem("memory").find("/bucket")
    return {path.split("/")[-2] for path in paths if path.endswith("manifest.json")}


@pytest.mark.parametrize(
    "failure", [PermissionError("expired"), OSError("no more room"), TimeoutError("nobody answers")]
)
async def test_a_copy_that_fails_is_told_and_the_checkpoint_is_finished(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = World(tmp_path)

    def refused(*given: Any, **options: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(type(fsspec.filesystem("memory")), "open", refused)
        folder = await w.write(1)
    assert w.finished == ["000001"] and not copied()
    assert manifest.verify(folder).number == 1
    (text,) = w.told
    assert text.startswith(f"{folder} is finished, but copying it failed: {URL}/000001") and str(failure) in text
    await w.write(2)
    assert copied() == {"000002"} and len(w.told) == 1


async def test_a_checkpoint_that_fails_is_neither_there_nor_copied(tmp_path: Path) -> None:
    w = World(tmp_path)
    w.servers.failure = UnreachableError("ps-0 is gone")
    with pytest.raises(UnreachableError, match="ps-0 is gone"):
        await w.write(1)
    assert not w.finished and not copied() and not w.told


async def test_copies_are_kept_as_long_as_checkpoints_are(tmp_path: Path) -> None:
    w = World(tmp_path, checkpoint_keep=2)
    for number in (1, 2, 3):
        await w.write(number)
    assert w.finished == ["000002", "000003"] and copied() == {"000002", "000003"}
    assert CheckpointCopies(URL, "--resume").fetch(tmp_path / "again").name == "000003"


async def test_the_best_copy_stays_when_the_run_goes_on_in_another_folder(tmp_path: Path) -> None:
    before = World(tmp_path / "1", checkpoint_keep=3)
    for number in range(4, 11):
        await before.write(number, 0.9 if number == 4 else 0.5 if number < 8 else None)
    assert copied() == {"000004", "000008", "000009", "000010"}
    after = World(tmp_path / "2", checkpoint_keep=3)
    await after.writer.prepare(10)
    await after.write(11)
    assert copied() == {"000004", "000009", "000010", "000011"}
    await after.write(12, 0.8)
    assert copied() == {"000004", "000010", "000011", "000012"}
    await after.write(13, 0.95)
    assert copied() == {"000011", "000012", "000013"}, "another one is better"


async def test_no_earlier_copy_stays_for_being_the_best_where_that_is_not_wanted(tmp_path: Path) -> None:
    before = World(tmp_path / "1", checkpoint_keep=1)
    for number in (4, 5):
        await before.write(number, 0.9 if number == 4 else None)
    after = World(tmp_path / "2", checkpoint_keep=1, keep_best=False)
    await after.writer.prepare(5)
    await after.write(6)
    assert copied() == {"000006"}


async def test_a_run_that_goes_on_from_an_earlier_checkpoint_is_refused_beside_later_copies(tmp_path: Path) -> None:
    before = World(tmp_path / "1")
    for number in (10, 11, 12):
        await before.write(number)
    fsspec.filesystem("memory").rm(f"{URL}/000012/manifest.json")
    after = World(tmp_path / "2")
    await after.writer.prepare(11)  # 12 does not count: it has no manifest
    with pytest.raises(ConfigurationError, match=rf"after 000010, .*; found 000011 in {URL}, .*train\.checkpoint_url"):
        await after.writer.prepare(10)
    with pytest.raises(ConfigurationError, match="of another run"):
        await after.writer.prepare(None)
    assert copied() == {"000010", "000011"}


async def test_it_is_refused_beside_later_checkpoints_of_its_own_folder(tmp_path: Path) -> None:
    w = World(tmp_path)
    for number in (1, 2, 3):
        await w.write(number)
    with pytest.raises(ConfigurationError, match=r"after 000001, .*; found 000002, 000003 in .*--run-dir"):
        await w.writer.prepare(1)
    assert w.finished == ["000001", "000002", "000003"]
    await w.writer.prepare(3)


async def test_a_run_that_begins_anew_is_refused_in_a_folder_with_checkpoints(tmp_path: Path) -> None:
    """Old ones have higher numbers, so they would be kept, and each new one removed."""
    w = World(tmp_path)
    await w.write(8)
    fsspec.filesystem("memory").rm(URL, recursive=True)
    with pytest.raises(ConfigurationError, match=r"--run-dir: found checkpoint 000008 of another run .*--resume auto"):
        await w.writer.prepare(None)
    assert w.finished == ["000008"]
    (w.writer.folder / "000008" / "manifest.json").unlink()
    await w.writer.prepare(None)  # what was never finished is in nobody's way
    await w.write(1)
    assert w.finished == ["000001"]


async def test_a_run_that_ends_while_a_checkpoint_is_finished_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, finish, abandon = World(tmp_path), manifest.finish, manifest.abandon
    begun, go_on, order = threading.Event(), threading.Event(), list[str]()

    def slowly(*given: Any) -> None:
        begun.set()
        go_on.wait()
        finish(*given)
        order.append("finished")

    def noted(folder: Path) -> None:
        order.append("abandoned")
        abandon(folder)

    monkeypatch.setattr(manifest, "finish", slowly)
    monkeypatch.setattr(manifest, "abandon", noted)
    writing = asyncio.create_task(w.write(1))
    await asyncio.to_thread(begun.wait)
    writing.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert order == ["finished", "abandoned"] and not w.finished
