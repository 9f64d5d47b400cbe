"""Private folders: gone at the end, found after a kill, and nobody else's is ever touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adamctl.roles.private_folder import OWNER, make_private, private_folder, remove_if_left, remove_stale

HOLD = """
import sys
from pathlib import Path
from adamctl.roles import private_folder as module
module.temporary_folder = lambda: Path(sys.argv[1])
with module.private_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if len(os.fsencode(tmp_path)) > 60:
        monkeypatch.setattr("adamctl.roles.private_folder.temporary_folder", lambda: tmp_path)
    return tmp_path


def held(base: Path) -> tuple[subprocess.Popen[str], Path]:
    """Starts a process that has a private folder in `base` until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_is_gone_at_the_end_and_private_before(temporary: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == temporary and folder.stat().st_mode & 0o077 == 0
        assert (folder / OWNER).read_text() == f"{os.getpid()}\n"
        (folder / "s").touch()
    assert not folder.exists()


def test_that_of_a_killed_process_is_removed_at_the_next_start_and_that_of_a_living_one_stays(temporary: Path) -> None:
    killed, its_folder = held(temporary)
    living, other_folder = held(temporary)
    try:
        killed.kill()
        killed.communicate(timeout=30)
        assert its_folder.is_dir()
        with private_folder():
            assert not its_folder.exists()
            assert other_folder.is_dir()
    finally:
        living.communicate("", timeout=30)
    assert not other_folder.exists()


def test_what_is_not_marked_as_ours_stays(temporary: Path) -> None:
    (temporary / "adamctl-notes").mkdir()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (temporary / "adamctl-link").symlink_to(elsewhere)
    linked = temporary / "adamctl-linked"
    linked.mkdir()
    (linked / OWNER).symlink_to(elsewhere / OWNER)
    (temporary / "adamctl-file").touch()
    assert remove_stale(temporary) == []
    assert len(list(temporary.iterdir())) == 5


def test_what_is_somebody_elses_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = temporary / "adamctl-left"
    folder.mkdir()
    (folder / OWNER).touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not remove_if_left(folder)
    monkeypatch.undo()
    assert remove_if_left(folder) and not folder.exists()


def test_what_is_missing_above_a_folder_is_private_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            make_private(tmp_path / "a" / "b" / "c")
        with pytest.raises(OSError, match="exists"):
            (tmp_path / "file").touch()
            make_private(tmp_path / "file")
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/c"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
