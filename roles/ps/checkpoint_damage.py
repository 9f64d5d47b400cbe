"""Everything that is wrong with a checkpoint on disk, not only the first thing: what `adamctl ckpt verify` says."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from adamctl.errors import DamagedDataError
from adamctl.roles.ps.checkpoint import MANIFEST_NAME, Checkpoint, ShardFile, read_manifest

READ_BYTES = 1 << 20


def find_damage(folder: Path) -> list[str]:
    """Reads and checks all of a checkpoint; returns what is damaged or missing, one sentence each, none if it is whole.

    Checked are the manifest, each file's size, header, record descriptions, end and BLAKE2b, each record's arrays,
    that no file is of another layout, that the shards are those the manifest lists, and that no row is missing.
    """
    try:
        described = read_manifest(folder)
    except DamagedDataError as error:
        return [str(error)]
    entries = described.get("files")
    if not isinstance(entries, list) or not entries:
        return [f'checkpoint {folder / MANIFEST_NAME}: expected a list "files" that is not empty']
    damage: list[str] = []
    files: list[ShardFile] = []
    for entry in entries:
        try:
            files.append(_open(folder, entry, described))
        except DamagedDataError as error:
            damage.append(str(error))
            continue
        damage.extend(_damage_inside(files[-1], entry))
    if len(files) == len(entries) and not damage:
        damage.extend(_missing_rows(folder, files))
    return damage


def _open(folder: Path, entry: Any, described: dict[str, Any]) -> ShardFile:
    try:
        name, size_bytes = str(entry["name"]), int(entry["size_bytes"])
        str(entry["checksum"])
    except (KeyError, TypeError, ValueError) as error:
        what = f'each of "files" needs name, size_bytes and checksum: {error}'
        raise DamagedDataError(f"checkpoint {folder / MANIFEST_NAME}: {what}") from error
    if Path(name).name != name:
        what = f"expected the name of a file in this folder; found {name!r}"
        raise DamagedDataError(f"checkpoint {folder / MANIFEST_NAME}: {what}")
    file = ShardFile(folder / name, size_bytes)
    expected, found = described.get("layout_hash"), file.descriptor.layout_hash
    if expected is not None and expected != found:
        raise DamagedDataError(
            f"checkpoint {file.path}: it belongs to another checkpoint: expected layout {expected}, found {found}"
        )
    return file


def _damage_inside(file: ShardFile, entry: dict[str, Any]) -> Iterator[str]:
    """Yields the shards whose arrays are not what they were; if there is none, a file that is not what it was."""
    whole = True
    for stored in file.shards:
        try:
            file.read(stored)
        except DamagedDataError as error:
            whole = False
            yield str(error)
    listed, found = entry.get("shards"), [stored.record.shard for stored in file.shards]
    if listed is not None and list(listed) != found:
        whole = False
        yield f"checkpoint {file.path}: the manifest lists shards {listed}; found {found}"
    if whole and (checksum := _checksum(file.path)) != entry["checksum"]:
        yield f"checkpoint {file.path}: expected checksum {entry['checksum']}; found {checksum}"


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


def _checksum(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with open(path, "rb") as opened:
        while piece := opened.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
