"""A backup as a file: whole, its owner's alone, and never in the place of another file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.controller.backup_file import read_backup, write_backup
from adamctl.roles.controller.core.service.backup import Backup, encode_backup
from adamctl.roles.controller.core.service.state import KeyState

DATA = encode_backup(KeyState(), "c1")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_backup(tmp_path / "b", DATA)
    finally:
        os.umask(before)
    assert read_backup(tmp_path / "b") == (DATA, Backup("c1", 0, 0, 0, ()))
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_no_file_is_written_over_and_no_link_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("of the owner")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(ConfigurationError, match="exists already; give another name"):
            write_backup(tmp_path / name, DATA)
    assert (tmp_path / "there").read_text() == "of the owner" and not (tmp_path / "elsewhere").exists()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_backup(tmp_path / "no" / "b", DATA)


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    write_backup(tmp_path / "b", DATA)
    whole = (tmp_path / "b").read_bytes()
    for place in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((DamagedDataError, ConfigurationError)):
            read_backup(tmp_path / "b")
    for size in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:size])
        with pytest.raises((DamagedDataError, ConfigurationError)):
            read_backup(tmp_path / "b")
    (tmp_path / "b").write_bytes(whole + b"more")
    with pytest.raises(DamagedDataError):
        read_backup(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_backup(tmp_path / "none")
