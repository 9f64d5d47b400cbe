"""Checkpoints on disk: one folder per checkpoint, which is finished if and only if it has a `manifest.json`.

    RUN/checkpoints/000012/.shards-ps-0.adam.partial    while servers write
    RUN/checkpoints/000012/shards-ps-0.adam             renamed when every server has written
    RUN/checkpoints/000012/manifest.json                last, by temporary file, sync and rename

A crash at any point leaves the earlier checkpoints intact and this one either finished or invisible. All functions
block, so call them in a thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.neighbours import experiment_for_neighbours
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.model.custom.plain import builtins_of, experiment_from_user
from adamctl.model.layout import Tensor
from adamctl.roles.coordinator.core.evaluate import best_of
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.durable_file import sync_folder
from adamctl.roles.manifest_bytes import decode_manifest, encode_manifest
from adamctl.wire.messages import CheckpointFile
from adamctl.wire.unreadable import UNREADABLE

MANIFEST_NAME: Final = "manifest.json"
CHECKPOINTS_NAME: Final = "checkpoints"
_READ_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"shards-[A-Za-z0-9_.-]+\.adam")


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the checkpoint: `checksum` is the BLAKE2b-128 of its bytes, `shards` are the shards in it."""

    name: str
    size_bytes: int
    checksum: str
    shards: tuple[int, ...]


class ManifestTensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> ManifestTensor:
        return cls(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds, before its checksum. Fields are only ever appended, with a default.

    Attributes:
        number: of the checkpoint; increases within a run and across resumptions.
        layout_hash, servers_expected: of the parameter layout it was written with. Any number of servers can read it.
        state: the state of the run, from which it can be resumed.
        complete: the run had done everything that it was asked for; there is nothing to resume.
        classes: names of the outputs, as the data told them; empty if nobody did.
    """

    format_version: int
    job: str
    number: int
    seed: int
    layout_hash: str
    servers_expected: int
    tensors: tuple[ManifestTensor, ...]
    files: tuple[ManifestFile, ...]
    state: RunSnapshot
    experiment: Experiment
    complete: bool = False
    written_at: str = ""
    classes: tuple[str, ...] = ()


def checkpoint_folder(checkpoints: Path, number: int) -> Path:
    return checkpoints / f"{number:06d}"


def finish(
    folder: Path, files: Iterable[CheckpointFile], manifest: Callable[[tuple[ManifestFile, ...]], Manifest]
) -> None:
    """Finishes a checkpoint that every server has written: renames its files, then writes its manifest.

    Raises:
        DamagedDataError: a file that a server reported is missing or has another length.
        OSError: the disk refused; call `abandon`.
    """
    files = tuple(files)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _rename(descriptor, folder, files)
        entries = tuple(
            ManifestFile(name=f.name, size_bytes=f.size_bytes, checksum=f.checksum, shards=f.shards) for f in files
        )
        described = builtins_of(manifest(entries))
        described["experiment"] = experiment_for_neighbours(described["experiment"])
        _write_manifest(descriptor, encode_manifest(described))
    finally:
        os.close(descriptor)
    sync_folder(folder.parent)


def _write_manifest(folder: int, content: bytes) -> None:
    """Writes the manifest into an open folder: whole or not at all, and through no link that somebody has put there."""
    temporary = f".{MANIFEST_NAME}.partial"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.fsync(folder)  # the shards' names are on disk before the manifest's is
    os.replace(temporary, MANIFEST_NAME, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def _rename(descriptor: int, folder: Path, files: tuple[CheckpointFile, ...]) -> None:
    for file in files:
        path = folder / file.temporary_name
        if _NAME.fullmatch(file.name) is None or file.temporary_name != f".{file.name}.partial":
            raise DamagedDataError(f"checkpoint {folder}: {str(path)!a} is not a file of a server's shards")
        found_bytes = _file_bytes(descriptor, file.temporary_name)
        if found_bytes != file.size_bytes:
            raise DamagedDataError(
                f"checkpoint {path}: expected {file.size_bytes} bytes, found {found_bytes}; do all servers and the "
                "coordinator see the same folder?"
            )
    for file in files:
        os.replace(file.temporary_name, file.name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def _file_bytes(descriptor: int, name: str) -> int | None:
    """Returns the length of a regular file in an open folder; None if there is no such file (a link does not count)."""
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def abandon(folder: Path) -> None:
    """Removes a checkpoint, its manifest first, so that it is invisible from then on."""
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def finished(checkpoints: Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first."""
    if not checkpoints.is_dir():
        return []
    return sorted(path for path in checkpoints.iterdir() if path.name.isdecimal() and (path / MANIFEST_NAME).is_file())


def best(folders: Iterable[Path]) -> tuple[Path, EvaluationResult] | None:
    """Returns the checkpoint with the best result on the validation split, and that result; None if there is none.

    Skips manifests that cannot be read.
    """
    found: list[tuple[Path, EvaluationResult]] = []
    for folder in folders:
        with contextlib.suppress(DamagedDataError):
            result = validation_result(read_manifest(folder))
            if result is not None:
                found.append((folder, result))
    index = best_of([result for _, result in found])
    return None if index is None else found[index]


def validation_result(manifest: Manifest) -> EvaluationResult | None:
    """Returns the result on the validation split of what a checkpoint holds; None if that was not evaluated there."""
    state = manifest.state
    seen = state.evaluated and state.evaluations and state.evaluations[-1].split == "validation"
    return state.evaluations[-1] if seen else None


def clean(checkpoints: Path, keep: int, keep_best: bool = False) -> None:
    """Removes unfinished checkpoints and all but the newest `keep` finished ones. Do not call it during a write.

    With `keep_best`, also keeps the one with the best result on the validation split.
    """
    kept = set(finished(checkpoints)[-keep:]) if keep > 0 else set()
    chosen = best(finished(checkpoints)) if keep_best else None
    if chosen is not None:
        kept.add(chosen[0])
    for path in list(checkpoints.iterdir()) if checkpoints.is_dir() else []:
        if path.name.isdecimal() and path not in kept:
            abandon(path)


def read_manifest(folder: Path) -> Manifest:
    """Reads a checkpoint's manifest.

    Raises:
        DamagedDataError: it is missing or damaged.
    """
    path = folder / MANIFEST_NAME
    try:
        return parsed(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedDataError(
            f"{path}: not found, so this checkpoint was never finished; use an earlier one"
        ) from error
    except (OSError, DamagedDataError, *UNREADABLE) as error:
        raise DamagedDataError(f"{path}: {error}; use an earlier checkpoint") from error


def parsed(content: bytes) -> Manifest:
    """Returns what the bytes of a `manifest.json` say. Raises DamagedDataError, or one of `UNREADABLE`."""
    described = decode_manifest(content)
    described["experiment"] = experiment_from_user(described.get("experiment"))
    return msgspec.convert(described, Manifest, str_keys=True)


def verify(folder: Path, *, checksums: bool = True) -> Manifest:
    """Checks that every file is present, has the right length and, with `checksums`, is unchanged.

    Raises:
        DamagedDataError: it is not; the message names the file, what was expected and what was found.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.name
        if path.parent != folder:
            raise DamagedDataError(f"{folder / MANIFEST_NAME}: {file.name!r} is not the name of a file in this folder")
        found_bytes = path.stat().st_size if path.is_file() else None
        if found_bytes != file.size_bytes:
            what = "nothing" if found_bytes is None else f"{found_bytes} bytes"
            raise DamagedDataError(f"{path}: expected {file.size_bytes} bytes, found {what}; use an earlier checkpoint")
        if checksums and (found := checksum_of(path)) != file.checksum:
            raise DamagedDataError(
                f"{path}: expected checksum {file.checksum}, found {found}; use an earlier checkpoint"
            )
    return manifest


def checksum_of(path: Path) -> str:
    """Returns the BLAKE2b-128 of a file's bytes in hex."""
    digest = blake2b(digest_size=16)
    with open(path, "rb") as opened:
        while piece := opened.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def find_latest(run_folder: Path) -> Path | None:
    """Returns the newest finished checkpoint of a run folder or a folder of checkpoints; None if there is none."""
    inner = run_folder / CHECKPOINTS_NAME
    found = finished(inner if inner.is_dir() else run_folder)
    return found[-1] if found else None


def find_checkpoint(path: str, key: str) -> Path:
    """Returns the checkpoint that a path names: itself, or the newest in a run folder or folder of checkpoints.

    Raises:
        ConfigurationError: there is no finished one; the message begins with `key`, the setting that gave the path.
    """
    folder = Path(path).expanduser()
    found = folder if (folder / MANIFEST_NAME).is_file() else find_latest(folder)
    if found is None:
        raise ConfigurationError(f"{key} {path}: expected a checkpoint or a run folder with one; found none")
    return found


def find_resume(resume: str, run_folder: Path) -> Path | None:
    """Returns the checkpoint that `--resume` names, or None for a fresh start.

    `none`: a fresh start. `auto`: the newest one in this run folder, else in the newest earlier run beside it, else a
    fresh start. Anything else: a checkpoint, a run folder, or a folder of checkpoints.

    Raises:
        ConfigurationError: a path was given and there is no finished checkpoint.
    """
    if resume == "none":
        return None
    if resume != "auto":
        return find_checkpoint(resume, "--resume")
    found = find_latest(run_folder)
    if found is None and run_folder.parent.is_dir():
        earlier = [path for path in run_folder.parent.iterdir() if path.name.isdecimal() and path != run_folder]
        latest = (find_latest(path) for path in sorted(earlier, key=lambda path: int(path.name), reverse=True))
        found = next((path for path in latest if path is not None), None)
    return found
