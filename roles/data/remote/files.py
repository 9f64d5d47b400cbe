"""Files behind a URL, by fsspec: listed, read in parts, and fetched whole into the disk cache."""

from __future__ import annotations

import io
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from adamctl.config.data import DataConfig
from adamctl.config.partitioning import parse_size
from adamctl.config.urls import Url
from adamctl.errors import ChangedDataError, ConfigurationError, UnreachableError
from adamctl.roles.data.remote.cache import DiskCache, Entry, cache_folder
from adamctl.roles.file_system import file_system, reaching

KEY: Final = "data.source"
FILES_MAX: Final = 100_000
ATTEMPTS: Final = 4
_WAIT_S: Final = 0.5
_PART_BYTES: Final = 1 << 20
_FETCHES: Final = 4
_HASHES: Final = ("ETag", "etag", "md5Hash")
_IDENTITY: Final = (*_HASHES, "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")


class RemoteShard:
    """One file behind a URL, which is fetched whole when it is opened, if it is not in the cache."""

    fetched = True

    def __init__(self, files: RemoteFiles, url: str, name: str, info: dict[str, Any]) -> None:
        self.name = name
        self.origin = url
        self.size_bytes = int(info["size"])
        self.identity = _identity(info)
        self._in_parts = bool(info.get("partial", not _is_web(files.url)))
        self._files = files
        self._entry = Entry(url, self.identity, self.size_bytes)
        self._begun: Future[None] | None = None

    def ahead(self) -> None:
        """Begins to fetch it in the background; an error shows when it is opened."""
        if self._begun is None or self._begun.done():
            self._begun = _fetchers().submit(self._touch)

    def _touch(self) -> None:
        self.open().close()

    def open(self) -> BinaryIO:
        """Opens it.

        Raises:
            ConfigurationError: it is gone, or there is no room for it.
            ChangedDataError: it has changed since the set was opened.
            UnreachableError: it cannot be fetched.
        """
        return self._files.cache.open(self._entry, "file", self._fetch)

    def open_part(self) -> BinaryIO:
        """Opens it without fetching all of it: for headers and single columns. Raises like `open`."""
        if not self._in_parts:
            return self.open()
        with reaching(self.origin, KEY):
            opened = self._files.system.open(self.origin, "rb", block_size=_PART_BYTES, cache_type="readahead")
        return cast(BinaryIO, _Part(opened, self.origin))

    def _fetch(self, folder: Path) -> None:
        self._files.fetch(self.origin, self.size_bytes, self.identity, folder / "file")


class Copy(NamedTuple):
    """A file or folder of this machine with what is behind a URL. It may be removed once `pin`, a lock, is closed."""

    path: Path
    pin: int

    def keep_for(self, user: object) -> None:
        """Keeps it as long as an object lives."""
        weakref.finalize(user, os.close, self.pin)

    def let_go(self) -> None:
        os.close(self.pin)


class RemoteFiles:
    """The files at and below a URL."""

    def __init__(self, url: Url, config: DataConfig) -> None:
        """Raises ConfigurationError if no file system for it is installed."""
        self.url = url
        self.cache = DiskCache(cache_folder(), parse_size(config.disk_cache))
        self.system = file_system(url, KEY, "on every machine that reads data")

    def shards(self, endings: Sequence[str] = ()) -> list[RemoteShard]:
        """Returns the file that the URL names, or those below it with these endings (empty: all), in order.

        Raises:
            ConfigurationError: there is none, or there are too many.
            UnreachableError: they cannot be listed.
        """
        base = self.url.text
        with reaching(base, KEY):
            self.system.invalidate_cache()  # or changes since the last look would not be seen
            if self._is_file():
                return [self._shard(base, self.url.name, {})]
            found = self._below(base)
        chosen = [name for name in sorted(found) if name.lower().endswith(tuple(endings) or "")]
        if not chosen:
            wanted = f"files that end in {' or '.join(endings)}" if endings else "files"
            raise ConfigurationError(f"{base}: expected {wanted}, found none")
        if len(chosen) > FILES_MAX:
            raise ConfigurationError(f"{base}: expected at most {FILES_MAX:,} files, found {len(chosen):,}")
        return [self._shard(f"{base}/{name}", name, found[name]) for name in chosen]

    def _is_file(self) -> bool:
        """Web servers do not tell files from folders: there, what has an ending is a file."""
        if _is_web(self.url):
            return "/" in self.url.text.partition("://")[2] and "." in self.url.name
        return bool(self.system.isfile(self.url.text))

    def _below(self, base: str) -> dict[str, dict[str, Any]]:
        """Returns name -> what is known of it, of all files below a folder, but hidden ones."""
        root = self.system._strip_protocol(base).rstrip("/") + "/"
        found = {}
        for path, info in self.system.find(base, detail=True).items():
            name = path.removeprefix(root)
            if path.startswith(root) and info.get("type") == "file" and _is_plain(name):
                found[name] = info
        return found

    def _shard(self, address: str, name: str, info: dict[str, Any]) -> RemoteShard:
        with reaching(address, KEY):
            if info.get("size") is None or not any(info.get(key) for key in _HASHES):  # lists tell times otherwise
                info = self.system.info(address)
        if info.get("size") is None:
            raise ConfigurationError(f"{address}: expected a size of the file, but its server does not say any")
        return RemoteShard(self, address, name, info)

    def whole(self) -> Copy:
        """Fetches all files at and below the URL, which stay in the cache until the copy is let go.

        Raises:
            ConfigurationError: there is none, or they do not fit into the cache.
            ChangedDataError: a file changes while it is fetched.
            UnreachableError: one cannot be fetched.
        """
        shards = self.shards()
        identity = "\n".join(f"{shard.name} {shard.size_bytes} {shard.identity}" for shard in shards)
        entry = Entry(self.url.text, identity, sum(shard.size_bytes for shard in shards))

        def fetch(folder: Path) -> None:
            for shard in shards:
                target = folder / self.url.name / shard.name if shard.origin != self.url.text else folder / shard.name
                target.parent.mkdir(parents=True, exist_ok=True)
                self.fetch(shard.origin, shard.size_bytes, shard.identity, target)

        pin = self.cache.pin(entry, fetch)
        return Copy(self.cache.path(entry) / self.url.name, pin)

    def fetch(self, address: str, size_bytes: int, identity: str, target: Path) -> None:
        """Fetches one file, and checks its length and that it is the one that was listed.

        Raises:
            ChangedDataError, ConfigurationError, UnreachableError: like `RemoteShard.open`.
        """
        for attempt in range(ATTEMPTS):
            try:
                with reaching(address, KEY):
                    self.system.get_file(address, str(target))
                    self.system.invalidate_cache()
                    info = self.system.info(address)
                break
            except UnreachableError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(_WAIT_S * 2**attempt)
        found_bytes = target.stat().st_size
        if found_bytes != size_bytes or _identity(info) != identity:
            raise ChangedDataError(
                f"{address}: expected the file of {size_bytes} bytes that was there when the data were opened, "
                f"found another of {found_bytes} bytes; do not change data while a run reads them"
            )


class _Part(io.RawIOBase):
    """A file that is read through the network, piece by piece. Reading raises our errors."""

    def __init__(self, opened: Any, origin: str) -> None:
        self._opened = opened
        self._origin = origin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self._opened.tell())

    def readinto(self, buffer: Any, /) -> int:
        """Raises UnreachableError, ConfigurationError: as `RemoteShard.open`."""
        with reaching(self._origin, KEY):
            found = self._opened.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._opened.close()
        super().close()


def _is_web(url: Url) -> bool:
    return url.scheme in ("http", "https")


def _identity(info: dict[str, Any]) -> str:
    """Returns what changes when a file does: the first of these that its server tells."""
    key = next((key for key in _IDENTITY if info.get(key)), "")
    return f"{key} {info[key]}" if key else ""


def _is_plain(name: str) -> bool:
    """Returns whether a name, which a server gave, leads to a file below its folder, and not to a hidden one."""
    return all(part and not part.startswith(".") for part in name.split("/"))


@cache
def _fetchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FETCHES, thread_name_prefix="fetch")
