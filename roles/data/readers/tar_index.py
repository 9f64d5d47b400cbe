"""What examples a tar shard holds, and where: its index, kept in the user's cache folder if it took long to make.

A shard is in WebDataset's convention (https://github.com/webdataset/webdataset) if it has members that end in `.cls`,
`.json` or `.txt`: members with the same name up to the first dot stand together and are one sample, an image or an
array and its class. Otherwise each image or array is an example, and its name says its class.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Container, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.splits import is_hidden
from adamctl.roles.data.readers.tar_headers import BLOCK_BYTES, Member, damaged, members
from adamctl.wire.unreadable import UNREADABLE

EXAMPLE_ENDINGS: Final = ("jpg", "jpeg", "png", "npy")
LABEL_ENDINGS: Final = ("cls", "json", "txt")
"""In this order: the first that a sample has says its class."""
KEPT_MEMBERS_MIN: Final = 10_000
"""An index of fewer members is made in less than 0.1 s, and is not kept."""
_JSON_KEYS: Final = ("cls", "class", "label")
_LABEL_BYTES_MAX: Final = 1 << 20
_CLASS_CHARACTERS_MAX: Final = 200
_VERSION: Final = 4
"""1: ended in silence at the first block of zeros; 2: ended at the first link; 3: samples with a link counted twice."""


class ShardIndex(msgspec.Struct, frozen=True):
    """Where a shard's examples are.

    Attributes:
        version: of this form.
        size_bytes, modified_ns: of the shard when its index was made.
        names: an example's member, [examples].
        offsets, sizes_bytes: of its content, [examples].
        labels: what says its class, a number or a name, [examples]; None: the members' names do.
        damages: what was found damaged, each with the shard's name and the byte; such examples are left out.
    """

    version: int
    size_bytes: int
    modified_ns: int
    names: list[str]
    offsets: list[int]
    sizes_bytes: list[int]
    labels: list[int | str] | None
    damages: list[str]


def index_of(path: Path) -> ShardIndex:
    """Returns a shard's index, from the cache if the shard has not changed since.

    Raises:
        ConfigurationError: it cannot be read, or is compressed.
    """
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            if (kept := _kept(path)) and _fits(kept, state):
                return kept
            index, count = _build(file.fileno(), path, state)
    except OSError as error:
        raise ConfigurationError(f"{path}: expected a tar file, found: {error}") from error
    if count >= KEPT_MEMBERS_MIN:
        _keep(path, index)
    return index


def _build(descriptor: int, path: Path, state: os.stat_result) -> tuple[ShardIndex, int]:
    """Returns the index and the number of members."""
    found: list[Member] = []
    damages: list[str] = []
    links: list[tuple[str, str]] = []
    try:
        for member in members(descriptor, path, links):
            if not is_hidden(member.name):
                found.append(member)
    except DamagedDataError as error:
        damages.append(str(error))
    labels: list[int | str] | None = None
    labelled = any(_ending(member.name) in LABEL_ENDINGS for member in found)
    linked = {_key(name) if labelled else name: said for name, said in links}
    damages = [*linked.values(), *damages]
    if labelled:
        labels, examples = [], []
        for member, label in _samples(descriptor, path, found, linked, damages):
            examples.append(member)
            labels.append(label)
    else:
        examples = [member for member in found if member.name.rpartition(".")[2].lower() in EXAMPLE_ENDINGS]
    names, offsets, sizes = ([*column] for column in zip(*examples, strict=True)) if examples else ([], [], [])
    index = ShardIndex(_VERSION, state.st_size, state.st_mtime_ns, names, offsets, sizes, labels, damages)
    return index, len(found)


def _samples(
    descriptor: int, path: Path, found: Sequence[Member], linked: Container[str], damages: list[str]
) -> Iterator[tuple[Member, int | str]]:
    """Yields the examples with their classes, and notes samples that have none or are no example.

    Of those in `linked` a part is a link, which has been noted.
    """
    for key, group in groupby(found, key=lambda member: _key(member.name)):
        parts: dict[str, Member] = {}
        at = 0
        for member in group:
            at = at or member.offset - BLOCK_BYTES
            parts.setdefault(_ending(member.name), member)
        example = next((parts[ending] for ending in EXAMPLE_ENDINGS if ending in parts), None)
        label = next((parts[ending] for ending in LABEL_ENDINGS if ending in parts), None)
        endings = ", ".join(parts)
        if (example is None or label is None) and key in linked:
            continue
        if example is None:
            damages.append(str(damaged(path, at, f"{_listed(EXAMPLE_ENDINGS)} of sample {key!r}", endings)))
        elif label is None:
            damages.append(str(damaged(path, at, f"{_listed(LABEL_ENDINGS)} of sample {key!r}", endings)))
        else:
            try:
                yield (
                    example,
                    _class(os.pread(descriptor, min(label.size_bytes, _LABEL_BYTES_MAX), label.offset), label),
                )
            except ValueError as error:
                at = label.offset - BLOCK_BYTES
                damages.append(str(damaged(path, at, f"a class in {label.name!r}", str(error))))


def _class(content: bytes, member: Member) -> int | str:
    """Returns a class, its number or its name. Raises ValueError with what was found."""
    try:
        text = content.decode().strip()
        if _ending(member.name) != "json":
            value: object = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text
        else:
            table = json.loads(text)
            named = {key: table[key] for key in _JSON_KEYS if key in table} if isinstance(table, dict) else {}
            if not named:
                raise ValueError(f"none of the keys {', '.join(_JSON_KEYS)}")
            value = next(iter(named.values()))
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(str(error)) from error
    if isinstance(value, str) and 0 < len(value) <= _CLASS_CHARACTERS_MAX and value.isprintable():
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    raise ValueError(repr(value)[:60])


def _listed(endings: Sequence[str]) -> str:
    return f"one of {', '.join(f'.{ending}' for ending in endings)}"


def _key(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def _ending(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[2].lower()


# --- the cache ------------------------------------------------------------------------------------------------------


def _place(path: Path) -> Path:
    import platformdirs

    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
    return Path(platformdirs.user_cache_dir("adamctl")) / "tar" / f"{name}.index"


def _kept(path: Path) -> ShardIndex | None:
    try:
        return msgspec.msgpack.decode(_place(path).read_bytes(), type=ShardIndex)
    except (OSError, *UNREADABLE):
        return None


def _fits(index: ShardIndex, state: os.stat_result) -> bool:
    return (index.version, index.size_bytes, index.modified_ns) == (_VERSION, state.st_size, state.st_mtime_ns)


def _keep(path: Path, index: ShardIndex) -> None:
    """Writes an index as a whole; a cache that cannot be written is left."""
    place = _place(path)
    with contextlib.suppress(OSError, UnicodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            try:
                file.write(msgspec.msgpack.encode(index))
                file.close()
                os.replace(file.name, place)
            except BaseException:
                os.unlink(file.name)
                raise
