"""The files of authorities and nodes: private, written beside their place and then moved: no reader sees half."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.net.tls.authority import Described, Pair, describe, need_cryptography
from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE, KEY
from adamctl.roles.private_folder import make_private

AUTHORITY_KEY = "ca.key"
REQUEST = "node.csr"
_FILE_BYTES_MAX = 1 << 20


def private_folder(path: Path) -> Path:
    """Makes a folder that only its owner can enter. Raises ConfigurationError: it cannot be made."""
    try:
        make_private(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror}; choose another folder") from error
    return path


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes or replaces a file at once. Raises ConfigurationError: it cannot be written."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(new, path)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path, what: str) -> bytes:
    """Returns a file's content. Raises ConfigurationError: it cannot be read; the message says `what` it should be."""
    try:
        with path.open("rb") as stream:
            return stream.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; expected {what}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file that a block reads before what it finds wrong with it."""
    need_cryptography()
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def described(path: Path, what: str) -> list[Described]:
    """Returns what the certificates in a file say.

    Raises:
        ConfigurationError: it cannot be read; the message says `what` it should be.
    """
    content = read(path, what)
    with naming(path):
        return describe(content)


def read_authority(folder: Path) -> Pair:
    """Returns the authority in a folder.

    Raises:
        ConfigurationError: there is none, its certificate cannot be read, or others may read its key.
    """
    what = f"{AUTHORITY} and {AUTHORITY_KEY} there, as adamctl tls create-ca makes them; give --ca DIR"
    described(folder / AUTHORITY, what)
    pair = Pair(read(folder / AUTHORITY, what), read(folder / AUTHORITY_KEY, what))
    mode = stat.S_IMODE((folder / AUTHORITY_KEY).stat().st_mode)
    if mode & 0o077:
        raise ConfigurationError(
            f"{folder / AUTHORITY_KEY}: other users may read it (mode {mode:04o}), and whoever has can be anyone; "
            "expected 0600: make another authority if others may have read this one"
        )
    return pair


def write_node(folder: Path, made: Pair, authorities: bytes) -> None:
    """Writes a node's files: the certificate last, so that a process that sees it has its key."""
    private_folder(folder)
    write(folder / AUTHORITY, authorities)
    if made.key:
        write(folder / KEY, made.key)
    write(folder / CERTIFICATE, made.certificate)


def with_authority(bundle: bytes, authority: bytes) -> bytes:
    """Returns a bundle of authorities that has this one, too, first."""
    return bundle if authority.strip() in bundle else authority.rstrip() + b"\n" + bundle
