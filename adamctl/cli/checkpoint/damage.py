"""Finds everything that is wrong with a checkpoint on disk, not only the first thing, for `adamctl ckpt verify`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from adamctl.errors import DamagedDataError
from adamctl.roles.coordinator.checkpoint.manifest import MANIFEST_NAME, ManifestFile, checksum_of, read_manifest
from adamctl.roles.ps.checkpoint_files import Checkpoint, ShardFile


def find_damage(folder: Path) -> list[str]:
    """Reads and checks a whole checkpoint; returns one sentence for each damaged or missing part, none if it is whole.

    It checks the manifest (as a resuming run reads it), each file's size, header, record descriptions, end and BLAKE2b,
    each record's arrays, that no file has another layout, that the shards are those the manifest lists, and that no row
    is missing.
    """
    try:
        described = read_manifest(folder)
    except DamagedDataError as error:
        return [str(error)]
    if not described.files:
        return [f'checkpoint {folder / MANIFEST_NAME}: expected a non-empty list "files"']
    damage: list[str] = []
    files: list[ShardFile] = []
    for entry in described.files:
        try:
            files.append(_open(folder, entry, described.layout_hash))
        except DamagedDataError as error:
            damage.append(str(error))
            continue
        damage.extend(_damage_inside(files[-1], entry))
    if len(files) == len(described.files) and not damage:
        damage.extend(_missing_rows(folder, files))
    return damage


def _open(folder: Path, entry: ManifestFile, layout_hash: str) -> ShardFile:
    if Path(entry.name).name != entry.name:
        what = f"expected the name of a file in this folder; found {entry.name!r}"
        raise DamagedDataError(f"checkpoint {folder / MANIFEST_NAME}: {what}")
    file = ShardFile(folder / entry.name, entry.size_bytes)
    found = file.descriptor.layout_hash
    if layout_hash != found:
        raise DamagedDataError(
            f"checkpoint {file.path}: it belongs to another checkpoint: expected layout {layout_hash}, found {found}"
        )
    return file


def _damage_inside(file: ShardFile, entry: ManifestFile) -> Iterator[str]:
    """Yields the shards whose arrays have changed; if there are none, a file that has changed."""
    whole = True
    for stored in file.shards:
        try:
            file.read(stored)
        except DamagedDataError as error:
            whole = False
            yield str(error)
    listed, found = list(entry.shards), [stored.record.shard for stored in file.shards]
    if listed != found:
        whole = False
        yield f"checkpoint {file.path}: the manifest lists shards {listed}; found {found}"
    if whole and (checksum := checksum_of(file.path)) != entry.checksum:
        yield f"checkpoint {file.path}: expected checksum {entry.checksum}; found {checksum}"


def _missing_rows(folder: Path, files: list[ShardFile]) -> Iterator[str]:
    checkpoint = Checkpoint(folder, files)
    for index, tensor in enumerate(checkpoint.tensors):
        rows = sorted(
            (s.record.row_start, s.record.row_stop) for f in files for s in f.shards if s.record.tensor == index
        )
        reached = 0
        for start, stop in (*rows, (tensor.shape[0], tensor.shape[0])):
            if start > reached:
                yield f"checkpoint {folder}: rows {reached} to {start} of {tensor.name} are missing"
            reached = max(reached, stop)
