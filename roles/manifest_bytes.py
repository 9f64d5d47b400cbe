"""The bytes of a checkpoint's `manifest.json`: a JSON object whose last field is the checksum of all lines before it.

    {
     "format_version": 2,
     ...
     "checksum": "1b2f4c7d90a3e6581b2f4c7d90a3e658"
    }

The coordinator, the servers and the command line all write and read manifests through this module
(docs/formats/checkpoint.md).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from adamctl.errors import DamagedDataError
from adamctl.wire.unreadable import UNREADABLE

FORMAT_VERSION: Final = 2
_WITHOUT_CHECKSUM: Final = 1
# A manifest of version 1 has no checksum, so it must not contain fields of a later version.
_NAMES_WITHOUT_CHECKSUM: Final = frozenset(
    {
        "format_version",
        "job",
        "number",
        "seed",
        "layout_hash",
        "servers_expected",
        "tensors",
        "files",
        "state",
        "experiment",
        "complete",
        "written_at",
    }
)
_OBJECT_END: Final = b"\n}"


def encode_manifest(manifest: Any) -> bytes:
    """Returns the file of a manifest: a struct or a dictionary whose `format_version` is ours."""
    described = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    summed = described.removesuffix(_OBJECT_END) + b",\n"
    return summed + _last_lines(summed)


def decode_manifest(content: bytes) -> dict[str, Any]:
    """Returns the fields of a manifest, after checking that its bytes have not changed since it was written.

    Raises:
        DamagedDataError: they have, or it is not a manifest; the caller adds the file's name to the message.
    """
    try:
        described = msgspec.json.decode(content)
    except UNREADABLE as error:
        raise DamagedDataError(str(error)) from error
    if not isinstance(described, dict):
        raise DamagedDataError("expected a JSON object")
    version = described.get("format_version")
    if version == _WITHOUT_CHECKSUM:
        if later := sorted(described.keys() - _NAMES_WITHOUT_CHECKSUM):
            raise DamagedDataError(f"expected only fields of format version 1; found {', '.join(later)}")
        return _as_today(described)
    if version != FORMAT_VERSION:
        what = f"expected format version {_WITHOUT_CHECKSUM} or {FORMAT_VERSION}; found {version!r}"
        raise DamagedDataError(f"{what}: it is damaged, or a newer adamctl wrote it")
    expected, found = _last_lines(content[:-_END_BYTES]), content[-_END_BYTES:]
    if found != expected:
        what = f"expected it to end with {_text(expected)}; found {_text(found)}"
        raise DamagedDataError(f"its checksum is wrong: {what}")
    return _as_today(described)


def _as_today(described: dict[str, Any]) -> dict[str, Any]:
    """Leaves out `train.local_lr` of the experiment where it is null: earlier versions wrote that for `auto`."""
    experiment = described.get("experiment")
    train = experiment.get("train") if isinstance(experiment, dict) else None
    if isinstance(train, dict) and train.get("local_lr", "auto") is None:
        del train["local_lr"]
    return described


def content_checksum(content: bytes) -> str:
    """Returns what tells a checkpoint from all others: the BLAKE2b-128 of its whole manifest, in hex."""
    return blake2b(content, digest_size=16).hexdigest()


def _last_lines(summed: bytes) -> bytes:
    return b' "checksum": "' + blake2b(summed, digest_size=16).hexdigest().encode() + b'"' + _OBJECT_END + b"\n"


_END_BYTES: Final = len(_last_lines(b""))


def _text(lines: bytes) -> str:
    return repr(lines.decode(errors="replace"))
