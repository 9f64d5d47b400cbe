"""Copies of checkpoints behind a URL count only when they are whole, and come back with every byte checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.copies import CheckpointCopies, fetched
from tests.roles.coordinator.checkpoint.test_manifest import finish

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
URL = "memory://bucket/runs/one"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def copies(url: str = URL) -> CheckpointCopies:
    return CheckpointCopies(url, "train.checkpoint_url")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_copied_comes_back(tmp_path: Path) -> None:
    for number in (1, 2):
        copies().put(finish(tmp_path / "a", number))
    newest = copies().fetch(tmp_path / "b")
    assert newest == tmp_path / "b" / "000002" and contents(newest) == contents(tmp_path / "a" / "000002")
    named = CheckpointCopies(f"{URL}/000001", "--resume").fetch(tmp_path / "b")
    assert contents(named) == contents(tmp_path / "a" / "000001")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["000001"], "what was fetched before is gone"
    assert manifest.find_checkpoint(str(tmp_path / "b"), "--resume") == named


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    copies(f"file://{tmp_path}/copies").put(finish(tmp_path / "a", 1))
    assert contents(tmp_path / "copies" / "000001") == contents(tmp_path / "a" / "000001")
    found = fetched(f"file://{tmp_path}/copies", "--resume", tmp_path / "run")
    assert found == str(tmp_path / "run" / "fetched" / "000001")
    assert fetched("runs/one", "--resume", tmp_path / "run") == "runs/one"


def test_the_manifest_is_the_last_to_come_and_the_first_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies().put(finish(tmp_path / "a", 1))
    order: list[str] = []
    system = type(fsspec.filesystem("memory"))
    original, removed = system.open, system.rm_file

    def opened(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb":
            order.append(f"write {path.rpartition('/')[2]}")
        return original(self, path, mode, **options)

    def removes(self: Any, path: str) -> None:
        order.append(f"remove {path.rpartition('/')[2]}")
        removed(self, path)

    monkeypatch.setattr(system, "open", opened)
    monkeypatch.setattr(system, "rm_file", removes)
    copies().put(finish(tmp_path / "a", 1))
    assert order[0] == "remove manifest.json" and order[-1] == "write manifest.json" and len(order) == 6


def test_a_copy_that_broke_off_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies().put(finish(tmp_path / "a", 1))
    system = type(fsspec.filesystem("memory"))
    original = system.open

    def full(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and path.endswith("shards-ps-1.adam"):
            raise OSError("no more room")
        return original(self, path, mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(system, "open", full)
        with pytest.raises(
            UnreachableError, match=r"memory://bucket/runs/one/000002 cannot be reached: OSError: no more room"
        ):
            copies().put(finish(tmp_path / "a", 2))
    assert copies().fetch(tmp_path / "b").name == "000001"


def test_old_copies_go_as_the_checkpoints_do_and_the_newest_stay(tmp_path: Path) -> None:
    for number in range(1, 7):
        copies().put(finish(tmp_path / "a", number))
    copies().keep({"000002"}, newest=2)
    system = fsspec.filesystem("memory")
    assert sorted(path.rpartition("/")[2] for path in system.ls("/bucket/runs/one", detail=False)) == [
        "000002",
        "000005",
        "000006",
    ]


def test_a_run_that_begins_anew_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    copies().expect_none()
    copies().put(finish(tmp_path / "a", 3))
    with pytest.raises(ConfigurationError, match=r"found checkpoint 000003 of another run in memory://bucket/runs/one"):
        copies().expect_none()


def test_damage_is_found(tmp_path: Path, memory: Any) -> None:
    copies().put(finish(tmp_path / "a", 1))
    path = "/bucket/runs/one/000001/shards-ps-0.adam"
    memory.pipe_file(path, memory.cat_file(path)[:-1] + b"?")
    with pytest.raises(DamagedDataError, match=r"shards-ps-0\.adam"):
        copies().fetch(tmp_path / "b")


@pytest.mark.parametrize("url", [URL, f"{URL}/000009"])
def test_where_there_is_none_the_url_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{url}: expected a checkpoint or a folder with one; found none"):
        copies(url).fetch(tmp_path / "b")


@pytest.mark.parametrize("url", ["nothing", "s3://", "s3://a/../b", "s3://key:secret@bucket/a", "nosuchscheme://a/b"])
def test_what_is_no_url_of_a_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.checkpoint_url: "):
        copies(url)
