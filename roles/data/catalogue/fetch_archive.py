"""Fetches a data set whose publisher offers an archive: its files are verified, and kept in a tar."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from adamctl.errors import AdamctlError
from adamctl.roles.data.catalogue.catalogue import CatalogueArchive
from adamctl.roles.data.catalogue.transfer import (
    PIECE_BYTES,
    Progress,
    TransferError,
    reason_of,
    sync,
    take_from_mirrors,
)
from adamctl.roles.data.readers.tar_headers import members

_REST_BYTES_MAX: Final = 64 << 20
"""Bound on what an archive holds beside the wanted files."""

Files = list[tuple[str, bytes]]
"""Names, without folders, and contents."""


def fetch_archive(
    tar: Path, archive: CatalogueArchive, bases: Sequence[str], progress: Progress | None, timeout_s: float
) -> int:
    """Downloads an archive, verifies its wanted files and writes them to `tar`; returns the bytes received.

    Nothing is replaced unless all is right.

    Raises:
        DamagedDataError: a mirror's files are not those of the catalogue, and no other mirror gave them.
        UnreachableError: no mirror gave the archive.
        OSError: the folder cannot be written to.
    """
    part = tar.with_name(f".{archive.name}.part")
    received_bytes = 0

    def take(url: str) -> str:
        nonlocal received_bytes
        received_bytes = _download(url, part, archive, progress, timeout_s)
        files, problem = _wanted(part, archive)
        part.unlink()
        if not problem:
            _write(tar, archive.folder, files)
        return problem

    take_from_mirrors(archive.name, bases, take)
    return received_bytes


def holds(tar: Path, archive: CatalogueArchive) -> bool:
    """Returns whether a tar has the archive's wanted files."""
    if not tar.is_file():
        return False
    try:
        with tar.open("rb") as file:
            descriptor = file.fileno()
            files = [
                (PurePosixPath(member.name).name, os.pread(descriptor, member.size_bytes, member.offset))
                for member in members(descriptor, tar, [])
                if member.name.startswith(archive.folder) and member.name.endswith(archive.ending)
            ]
    except AdamctlError:
        return False
    return not _problem(files, archive)


def contents_checksum(files: Iterable[tuple[str, bytes]]) -> str:
    """Returns the SHA-256, in hex digits, of `NAME \\0 SHA256(CONTENT)` of all files in the order of their names."""
    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


def _download(url: str, part: Path, archive: CatalogueArchive, progress: Progress | None, timeout_s: float) -> int:
    """Raises TransferError: there is no archive, it is too long, or it ended too early."""
    most = archive.size_bytes + _REST_BYTES_MAX
    request = urllib.request.Request(url, headers={"User-Agent": "adamctl"})
    received_bytes = 0
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer, part.open("wb") as stream:
            while piece := answer.read(PIECE_BYTES):
                received_bytes += len(piece)
                if received_bytes > most:
                    raise TransferError(f"expected at most {most:,} bytes, found more")
                stream.write(piece)
                if progress is not None:
                    progress(archive.name, received_bytes, 0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(f"{reason_of(error)} after {received_bytes:,} bytes") from error
    return received_bytes


def _wanted(part: Path, archive: CatalogueArchive) -> tuple[Files, str]:
    """Returns the wanted files of a downloaded archive, and what is wrong with them; empty if nothing is."""
    files: Files = []
    size_bytes = rest_bytes = 0
    try:
        with tarfile.open(part, "r:gz") as packed:
            for member in packed:
                inner = member.name.partition("/")[2]
                if not (member.isreg() and inner.startswith(archive.folder) and inner.endswith(archive.ending)):
                    rest_bytes += member.size
                    if rest_bytes > _REST_BYTES_MAX:
                        return [], f"more than {_REST_BYTES_MAX:,} bytes beside the wanted files"
                    continue
                size_bytes += member.size
                if size_bytes > archive.size_bytes:
                    return [], f"expected {archive.size_bytes:,} bytes of files, found more"
                content = packed.extractfile(member)
                files.append((PurePosixPath(inner).name, content.read() if content is not None else b""))
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        return [], f"expected a .tar.gz, found: {error}"
    return files, _problem(files, archive)


def _problem(files: Files, archive: CatalogueArchive) -> str:
    if len(files) != archive.files:
        return f"expected {archive.files:,} files, found {len(files):,}"
    found = contents_checksum(files)
    return "" if found == archive.sha256 else f"expected sha256 {archive.sha256} of its files, found {found}"


def _write(tar: Path, folder: str, files: Files) -> None:
    new = tar.with_name(f".{tar.name}.new")
    with tarfile.open(new, "w") as packed:
        for name, content in sorted(files):
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    sync(new)
    new.replace(tar)
