"""A folder that one process uses at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.folder_lock import LOCK_NAME, FolderLock

HOLD = """
import sys
from pathlib import Path
from adamctl.roles.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), "--dir", "controller")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_made_locked_and_given_back(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    lock = FolderLock(folder, "--dir", "controller")
    assert (folder / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    with pytest.raises(ConfigurationError, match=f"another controller .process {os.getpid()}. .*another --dir"):
        FolderLock(folder, "--dir", "controller")
    lock.release()
    lock.release()
    FolderLock(folder, "--dir", "controller").release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match=f"another parameter server .process {holder.pid}."):
            FolderLock(tmp_path, "--store", "parameter server")
        holder.kill()
        holder.wait(timeout=30)
    FolderLock(tmp_path, "--store", "parameter server").release()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--store .*file: .*choose a writable one"):
        FolderLock(tmp_path / "file", "--store", "parameter server")
