"""URLs of data: told from paths, checked, and compared with those that a data server may fetch from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from adamctl.errors import ConfigurationError

URL_CHARACTERS_MAX: Final = 4096
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_LOCAL: Final = ("file", "local")


@dataclass(frozen=True)
class Url:
    """A file or folder that fsspec reaches. `text` is checked: it has no steps upwards and no second file system."""

    text: str

    @property
    def scheme(self) -> str:
        return self.text.partition("://")[0]

    @property
    def name(self) -> str:
        """Returns the last part of its path, without a query."""
        return PurePosixPath(self.text.partition("?")[0]).name

    def __str__(self) -> str:
        return self.text


def is_url(source: str) -> bool:
    """Returns whether `data.source` is a URL and no path; `file://` is a path written otherwise."""
    found = _SCHEME.match(source)
    return "::" in source or (found is not None and found[1].lower() not in _LOCAL)


def without_file_scheme(source: str) -> str:
    """Returns the path that a `file://` URL names, and anything else as it is."""
    found = _SCHEME.match(source)
    return unquote(source[found.end() :]) if found is not None and found[1].lower() in _LOCAL else source


def is_any_url(place: str) -> bool:
    """Returns whether a place is written as a URL, a `file://` one too."""
    return _SCHEME.match(place) is not None


def checked_url(source: str, key: str = "data.source") -> Url:
    """Returns a URL that names one place; `key` gave it, for messages.

    Raises:
        ConfigurationError: it is chained, too long, or has parts such as `..` or a password.
    """
    scheme, _, rest = source.partition("://")
    plain = unquote(rest)
    wrong = ""
    if "::" in source:
        wrong = "a chain of file systems"
    elif len(source) > URL_CHARACTERS_MAX or any(character in plain for character in "\\\0\r\n"):
        wrong = "characters that no URL has, or too many"
    elif {".", ".."} & set(plain.partition("?")[0].split("/")):
        wrong = 'a part "." or ".."'
    elif "@" in plain.partition("/")[0]:
        wrong = "a user or a password"
    if wrong or not _SCHEME.match(source) or not rest.strip("/"):
        found = wrong or "none"
        raise ConfigurationError(
            f"{key}: expected one URL such as s3://bucket/folder or https://host/set.parquet, found {found} in "
            f"{source[:200]!a}"
        )
    return Url(f"{scheme.lower()}://{rest.rstrip('/')}")


def is_inside(url: Url, roots: Iterable[str]) -> bool:
    """Returns whether a URL is one of these or below one of them."""
    for root in roots:
        base = checked_url(root).text
        if url.text == base or url.text.startswith(base + "/"):
            return True
    return False
