"""What tests of a replica's own parameters share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adamctl.roles.manifest_bytes import encode_manifest
from adamctl.wire.messages import CheckpointFile


def finished(folder: Path, files: Sequence[CheckpointFile]) -> None:
    """Finishes a checkpoint, with as much of a manifest as its readers need."""
    for file in files:
        (folder / file.temporary_name).rename(folder / file.name)
    entries = [
        {"name": one.name, "size_bytes": one.size_bytes, "checksum": one.checksum, "shards": list(one.shards)}
        for one in files
    ]
    (folder / "manifest.json").write_bytes(encode_manifest({"format_version": 2, "files": entries}))
