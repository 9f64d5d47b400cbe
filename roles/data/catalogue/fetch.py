"""`adamctl data fetch`: downloads a data set of the catalogue and verifies it."""

from __future__ import annotations

import hashlib
import http.client
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adamctl.errors import ConfigurationError
from adamctl.roles.data.catalogue.catalogue import CATALOGUE, CatalogueArchive, CatalogueEntry, CatalogueFile
from adamctl.roles.data.catalogue.fetch_archive import fetch_archive, holds
from adamctl.roles.data.catalogue.transfer import (
    PIECE_BYTES,
    Progress,
    TransferError,
    reason_of,
    sync,
    take_from_mirrors,
    writing_into,
)

TIMEOUT_S: Final = 30.0
_HTTP_PARTIAL: Final = 206


@dataclass(frozen=True)
class Fetched:
    """The result: `folder` holds the data set; lists the files that were present and those downloaded now."""

    folder: Path
    kept: tuple[str, ...]
    downloaded: tuple[str, ...]
    downloaded_bytes: int


def fetch(
    name: str,
    data_folder: Path,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
    entry: CatalogueEntry | None = None,
) -> Fetched:
    """Makes sure that every file of a data set is in `data_folder/name` and has the right checksum.

    Correct files are kept. A file is downloaded under a temporary name (continuing a partial earlier attempt),
    verified, and only then renamed, so a failed download never replaces a good file.

    Args:
        base_url: the only place to download from, instead of the catalogue's mirrors in turn.
        timeout_s: for connecting and for each piece, not for a whole file.
        entry: used instead of the catalogue's.

    Raises:
        ConfigurationError: there is no such data set, or the folder cannot be written to.
        DamagedDataError: a mirror's file has a wrong checksum, and no other mirror gave the right file.
        UnreachableError: no mirror gave the complete file; the message says why for each.
    """
    entry = entry or CATALOGUE.get(name)
    if entry is None:
        raise ConfigurationError(f"expected one of the data sets {', '.join(sorted(CATALOGUE))}, found {name!r}")
    bases = entry.mirrors if base_url is None else (base_url.rstrip("/") + "/",)
    folder = data_folder.expanduser() / name
    if entry.archive is not None:
        return _fetch_in_archive(name, folder, entry.archive, bases, progress, timeout_s)
    kept: list[str] = []
    downloaded: list[str] = []
    with writing_into(folder):
        for file in entry.files:
            if _is_right(folder / file.name, file):
                kept.append(file.name)
            else:
                _fetch_file(folder, file, bases, progress, timeout_s)
                downloaded.append(file.name)
            if progress is not None:
                progress(file.name, file.size_bytes, file.size_bytes)
    size_bytes = sum(file.size_bytes for file in entry.files if file.name in downloaded)
    return Fetched(folder, tuple(kept), tuple(downloaded), size_bytes)


def _fetch_in_archive(
    name: str,
    folder: Path,
    archive: CatalogueArchive,
    bases: tuple[str, ...],
    progress: Progress | None,
    timeout_s: float,
) -> Fetched:
    tar = folder / f"{name}.tar"
    with writing_into(folder):
        if holds(tar, archive):
            return Fetched(folder, (tar.name,), (), 0)
        received_bytes = fetch_archive(tar, archive, bases, progress, timeout_s)
        return Fetched(folder, (), (tar.name,), received_bytes)


def _is_right(path: Path, file: CatalogueFile) -> bool:
    """Returns whether a file exists with the catalogue's length and SHA-256."""
    return path.is_file() and path.stat().st_size == file.size_bytes and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch_file(
    folder: Path, file: CatalogueFile, bases: tuple[str, ...], progress: Progress | None, timeout_s: float
) -> None:
    part = folder / f".{file.name}.part"

    def take(url: str) -> str:
        _download(url, part, file, progress, timeout_s)
        found = _sha256(part)
        if found != file.sha256:
            part.unlink()
            return f"expected sha256 {file.sha256}, found {found}"
        sync(part)
        part.replace(folder / file.name)
        return ""

    take_from_mirrors(file.name, bases, take)


def _download(url: str, part: Path, file: CatalogueFile, progress: Progress | None, timeout_s: float) -> None:
    """Downloads a file to `part`, continuing what is there. Raises TransferError unless it is then complete."""
    there = part.stat().st_size if part.exists() else 0
    if there >= file.size_bytes:
        part.unlink()
        there = 0
    request = urllib.request.Request(url, headers={"User-Agent": "adamctl"})
    if there:
        request.add_header("Range", f"bytes={there}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TransferError(reason_of(error)) from error
    with answer, part.open("ab") as stream:
        if there and answer.status != _HTTP_PARTIAL:
            stream.truncate(0)  # this mirror only sends whole files
            there = 0
        while there <= file.size_bytes:
            try:
                piece = answer.read(min(PIECE_BYTES, file.size_bytes + 1 - there))
            except (OSError, http.client.HTTPException) as error:
                raise TransferError(f"{reason_of(error)} after {there} of {file.size_bytes} bytes") from error
            if not piece:
                break
            stream.write(piece)
            there += len(piece)
            if progress is not None:
                progress(file.name, min(there, file.size_bytes), file.size_bytes)
    if there < file.size_bytes:
        raise TransferError(f"expected {file.size_bytes} bytes, found {there}: the answer was cut short")
