"""Files that others rely on are written whole, however little the system writes at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adamctl.launch.run_folder import create_run_folder
from adamctl.launch.run_token import kept_token, read_token
from adamctl.roles.cluster_binding import bind, bound_to
from adamctl.roles.durable_file import replace_file, sync_folder, write_all


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system writes two bytes at a time; returns the names of what is synced."""
    write, sync, names = os.write, os.fsync, list[str]()
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:2]))

    def noted(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_all_is_written(tmp_path: Path, synced: list[str]) -> None:
    with (tmp_path / "a").open("wb") as file:
        write_all(file.fileno(), b"seven..")
    assert (tmp_path / "a").read_bytes() == b"seven.."
    sync_folder(tmp_path)
    assert synced == [tmp_path.name]


def test_a_file_is_replaced_by_a_whole_one(tmp_path: Path, synced: list[str]) -> None:
    path, temporary = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"before")
    temporary.write_bytes(b"left by a process that was killed")
    temporary.chmod(0o644)
    replace_file(path, b"after..", temporary)
    assert path.read_bytes() == b"after.." and path.stat().st_mode & 0o777 == 0o600
    assert synced == ["b", tmp_path.name] and not temporary.exists()


def test_a_folder_is_bound_to_the_whole_name_of_its_cluster(tmp_path: Path, synced: list[str]) -> None:
    bind(tmp_path, "0a" * 8)
    assert bound_to(tmp_path) == "0a" * 8
    assert synced == ["cluster.new", tmp_path.name]


def test_a_token_is_kept_whole_and_other_machines_see_it(tmp_path: Path, synced: list[str]) -> None:
    """On a shared disk others see what is synced, and the file stays open as long as the run goes on."""
    folder = create_run_folder(tmp_path, "a")
    with kept_token(folder, "secret"):
        assert read_token(folder) == "secret" and synced == ["token.new"]
