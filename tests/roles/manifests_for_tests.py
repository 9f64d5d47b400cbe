"""Manifests changed on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from adamctl.roles.manifest_bytes import FORMAT_VERSION, decode_manifest, encode_manifest
from adamctl.wire.messages import CheckpointFile


def flips(content: bytes) -> Iterator[bytes]:
    """Yields the content with each of its bits flipped, one at a time."""
    changed = bytearray(content)
    for position in range(len(content)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield bytes(changed)
            changed[position] ^= 1 << bit


def cuts(content: bytes) -> Iterator[bytes]:
    """Yields all shorter beginnings."""
    return (content[:length] for length in range(len(content)))


def as_version_1(content: bytes) -> bytes:
    """Returns a manifest as it was written before there were checksums."""
    described = decode_manifest(content) | {"format_version": 1}
    for later in ("checksum", "classes"):
        described.pop(later, None)
    return msgspec.json.format(msgspec.json.encode(described), indent=1)


def change_manifest(folder: Path, changes: dict[str, Any]) -> None:
    """Changes what a manifest says, and its checksum with it: as if it had been written so."""
    path = folder / "manifest.json"
    described = decode_manifest(path.read_bytes()) | changes
    del described["checksum"]
    path.write_bytes(encode_manifest(described))


def finish(folder: Path, files: tuple[CheckpointFile, ...], layout_hash: str) -> None:
    """What the coordinator does when all servers have written."""
    for file in files:
        (folder / file.temporary_name).rename(folder / file.name)
    described = [
        {"name": f.name, "size_bytes": f.size_bytes, "checksum": f.checksum, "shards": list(f.shards)} for f in files
    ]
    manifest = {"format_version": FORMAT_VERSION, "files": described, "layout_hash": layout_hash, "tensors": []}
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
