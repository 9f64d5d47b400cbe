"""Data sets known by a bare name (their files, checksums and origins), and the search for a data source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from adamctl.config.check import suggestion
from adamctl.config.data import DataConfig
from adamctl.config.urls import Url, checked_url, is_url, without_file_scheme
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.access import exists, reported
from adamctl.roles.data.readers.plugins import find
from adamctl.roles.data.readers.tar_shards import is_pattern

_NAMES_MAX: Final = 1000
_NAMES_SHOWN_MAX: Final = 5


@dataclass(frozen=True)
class CatalogueFile:
    """One file, as its publisher offers it. Checksums are hex digits."""

    name: str
    size_bytes: int
    md5: str
    sha256: str


@dataclass(frozen=True)
class CatalogueArchive:
    """A `.tar.gz` that its publisher packs anew at will, so that only what is in it has a checksum.

    Attributes:
        name: of the archive, below a mirror's address.
        folder, ending: the files that are wanted, as their paths in the archive, below its first folder, begin and end.
        files, size_bytes: how many there are, and their bytes together.
        sha256: checksum of their contents and names (`contents_checksum` of `fetch_archive`).
    """

    name: str
    folder: str
    ending: str
    files: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set. `mirrors` are base addresses that end in a slash; they are tried in order.

    It is of `files`, or of an `archive` whose files are kept in a tar NAME.tar. `settings` are keys of `[data]` that it
    is read with unless an experiment says otherwise.
    """

    name: str
    format: str
    about: str
    licence: str
    files: tuple[CatalogueFile, ...]
    mirrors: tuple[str, ...]
    archive: CatalogueArchive | None = None
    settings: dict[str, str] = field(default_factory=dict)


CATALOGUE: Final[dict[str, CatalogueEntry]] = {
    "mnist": CatalogueEntry(
        name="mnist",
        format="idx",
        about="handwritten digits, 60,000 training and 10,000 test images of 28 x 28 bytes",
        licence="CC BY-SA 3.0 (Y. LeCun, C. Cortes)",
        files=(
            CatalogueFile(
                "train-images-idx3-ubyte.gz",
                9912422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            CatalogueFile(
                "train-labels-idx1-ubyte.gz",
                28881,
                "d53e105ee54ea40749a09fcbcd1e9432",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            CatalogueFile(
                "t10k-images-idx3-ubyte.gz",
                1648877,
                "9fb629c4189551a2d022fa330f9573f3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            CatalogueFile(
                "t10k-labels-idx1-ubyte.gz",
                4542,
                "ec29112dd5afa0611ce80d1b7f02629c",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    "fsdd": CatalogueEntry(
        name="fsdd",
        format="audio",
        about="spoken digits, 3,000 recordings of 8 kHz by six speakers; numbers 0 to 4 of each are the test part",
        licence="CC BY-SA 4.0 (Z. Jackson and contributors)",
        files=(),
        mirrors=("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/",),
        archive=CatalogueArchive(
            "v1.0.10.tar.gz",
            "recordings/",
            ".wav",
            3000,
            21128848,
            "a2e8a660492f28d9eed6270b290d26cbc5c81d6077ce87d3c0ad5adf4d4ee696",
        ),
        settings={"class_from": "name", "test_files": "*_[0-4].wav"},
    ),
}


def find_source(config: DataConfig, search: Iterable[str] = ()) -> Path | Url | None:
    """Returns the path or URL of a configuration's data; None for `digits`, which is installed with scikit-learn.

    A URL is checked, not reached. `file://` is a path.
    A path (anything with a slash, or ~) is used as it is. A bare name is looked up in `config.search`, then in
    `search`; the first match wins: DIR/NAME (DIR/NAME/NAME.tar, if there is one and the format is read from tars),
    DIR/NAME with a suffix of the format (.npz for npz), or DIR itself if it contains the named data set's files.

    Raises:
        ConfigurationError: this user may not look there, there is no such format, or it was not found. Then the
            message says where it was looked for and, for a data set of the catalogue, names its files, sources and
            checksums, and the command that fetches them.
    """
    if config.format == "digits":
        return None
    if is_url(config.source):
        return checked_url(config.source)
    source = without_file_scheme(config.source)
    with reported(Path(source).expanduser()):
        return _found(config, source, search)


def _found(config: DataConfig, source: str, search: Iterable[str]) -> Path:
    if "/" in source or source.startswith("~") or source in (".", ".."):
        path = Path(source).expanduser()
        if exists(path) or (config.format == "tar" and is_pattern(source)):
            return path
        raise ConfigurationError(f"data.source: {path} does not exist (looked for from {Path.cwd()}).{_near(path)}")
    folders = tuple(dict.fromkeys((*config.search, *search)))
    suffixes = find(config.format).suffixes
    for folder in (Path(name).expanduser() for name in folders):
        if found := _find_in(folder, source, suffixes):
            return found
    raise ConfigurationError(_not_found(source, folders))


def _near(path: Path) -> str:
    """Returns what is called almost so or what else is there, or which folder on the way is missing."""
    folder = path.parent
    if not folder.is_dir():
        while not folder.is_dir() and folder != folder.parent:
            path, folder = folder, folder.parent
        return f" The first part of that that is missing is {path}."
    entries = (entry.name for entry in islice(folder.iterdir(), _NAMES_MAX))
    names = sorted(entries, key=lambda name: (name.startswith("."), name))
    shown = ", ".join(names[:_NAMES_SHOWN_MAX]) or "nothing"
    return (
        suggestion(path.name, names)
        or f" In {folder} there is {shown}{', ...' if len(names) > _NAMES_SHOWN_MAX else ''}."
    )


def _find_in(folder: Path, name: str, suffixes: Iterable[str]) -> Path | None:
    if ".tar" in suffixes and (folder / name / f"{name}.tar").is_file():
        return folder / name / f"{name}.tar"
    for found in (folder / f"{name}{suffix}" for suffix in ("", *suffixes)):
        if exists(found):
            return found
    entry = CATALOGUE.get(name)
    if entry is not None and entry.files and all(_have(folder, file.name) for file in entry.files):
        return folder
    return None


def _have(folder: Path, name: str) -> bool:
    return (folder / name).is_file() or (folder / name.removesuffix(".gz")).is_file()


def _not_found(name: str, folders: tuple[str, ...]) -> str:
    where = f"looked in {', '.join(folders)}" if folders else "no folder to look in was given"
    advice = "--data DIR or ADAMCTL_DATA names the folders to look in"
    entry = CATALOGUE.get(name)
    if entry is None:
        known = ", ".join(sorted(CATALOGUE))
        return (
            f"data.source: no data set called {name!r} was found ({where}). {advice}; a path has a slash in it, "
            f"as in ./{name}; names that can be fetched: {known}"
        )
    target = folders[0] if folders else "DIR"
    lines = [f"data.source: the data set {name!r} was not found ({where})."]
    if entry.archive is None:
        lines.append(f"It consists of these files, which belong in {target}/{name}:")
    else:
        count, size_bytes = entry.archive.files, entry.archive.size_bytes
        lines.append(f"It consists of {count:,} files, {size_bytes:,} bytes, in a tar {target}/{name}/{name}.tar; in")
        lines.append(f"  {entry.archive.name}  sha256 of their contents {entry.archive.sha256}")
    lines += [f"  {file.name}  {file.size_bytes} bytes  md5 {file.md5}  sha256 {file.sha256}" for file in entry.files]
    lines += ["from any of:", *(f"  {mirror}" for mirror in entry.mirrors)]
    lines += [f"This fetches and verifies them: adamctl data fetch {name} --data {target}", f"({advice}.)"]
    return "\n".join(lines)
