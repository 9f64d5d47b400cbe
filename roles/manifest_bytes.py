"""The bytes of a checkpoint's `manifest.json`: a JSON object whose last field is the checksum of all lines before it.

    {
     "format_version": 2,
     ...
     "checksum": "1b2f4c7d90a3e6581b2f4c7d90a3e658"
    }

What is written and what is read meet here, for the coordinator, the servers and the command line
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
# A manifest of version 1 is taken as it is, so nothing in it may be of a later one.
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
    """Returns the fields of a manifest whose bytes are what they were when it was written.

    Raises:
        DamagedDataError: they are not, or it is none; the message leaves it to the caller to name the file.
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
            raise DamagedDataError(f"expected what format version 1 has; found {', '.join(later)}")
        return described
    if version != FORMAT_VERSION:
        what = f"expected format version {_WITHOUT_CHECKSUM} or {FORMAT_VERSION}; found {version!r}"
        raise DamagedDataError(f"{what}: it is damaged, or a newer adamctl wrote it")
    expected, found = _last_lines(content[:-_END_BYTES]), content[-_END_BYTES:]
    if found != expected:
        what = f"expected it to end with {_text(expected)}; found {_text(found)}"
        raise DamagedDataError(f"its checksum is wrong: {what}")
    return described


def _last_lines(summed: bytes) -> bytes:
    return b' "checksum": "' + blake2b(summed, digest_size=16).hexdigest().encode() + b'"' + _OBJECT_END + b"\n"


_END_BYTES: Final = len(_last_lines(b""))


def _text(lines: bytes) -> str:
    return repr(lines.decode(errors="replace"))
