"""A backup of the configuration as a file: the header and the one record of docs/formats/controller-store.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.controller.core.service.backup import Backup, decode_backup
from adamctl.roles.controller.log_format import (
    FILE_HEADER,
    PAYLOAD_BYTES_MAX,
    DamagedRecordError,
    decode_records,
    encode_file_header,
    encode_record,
    first_checksum,
)
from adamctl.wire.unreadable import UNREADABLE

BACKUP_MAGIC: Final = b"ADMCBKP1"
_GENERATION = 1
_BYTES_MAX = PAYLOAD_BYTES_MAX + 4096


def write_backup(path: Path, backup: bytes) -> None:
    """Writes an encoded backup to a new file, which only its owner can read, and syncs it.

    Raises:
        ConfigurationError: there is such a file already, or it cannot be written.
    """
    record, _ = encode_record(backup, first_checksum(_GENERATION))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            try:
                file.write(encode_file_header(BACKUP_MAGIC, _GENERATION) + record)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists already; give another name, or remove it first") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}; choose another place") from error


def read_backup(path: Path) -> tuple[bytes, Backup]:
    """Returns a backup, encoded and decoded.

    Raises:
        ConfigurationError: the file cannot be read, or is no backup.
        DamagedDataError: it has changed since it was written.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; expected a file that `adamctl controller backup` made"
        ) from error
    if data[: FILE_HEADER.size] != encode_file_header(BACKUP_MAGIC, _GENERATION):
        raise ConfigurationError(f"{path} is no backup of a configuration; `adamctl controller backup` makes one")
    try:
        records = list(decode_records(data, _GENERATION))
        if len(records) != 1 or records[0][2] != len(data):
            raise DamagedDataError(f"{path} is damaged: it is not one whole record; use another backup")
        encoded = bytes(records[0][0])
        return encoded, decode_backup(encoded)
    except (DamagedRecordError, *UNREADABLE) as error:
        raise DamagedDataError(f"{path} is damaged: {error}; use another backup") from error
