"""Formats made of files: of what class a file is, and which files are the test part.

Decided from the files' names alone, so that all data servers agree, and the same for a folder and for a tar of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.source import CLASSES_MAX, FILE_SPLITS, FileSplit, Labels

TEST_SHARE: Final = 0.2
"""Share of the files, or rows of a table, that are the test part where nothing else says which."""


class Arranged(NamedTuple):
    """Names of files by split, in the order of their classes, then of the names, and a label for each."""

    classes: tuple[str, ...]
    names: dict[FileSplit, list[str]]
    labels: dict[FileSplit, Labels]


class _File(NamedTuple):
    class_name: str
    split: FileSplit
    name: str


def arrange(names: Iterable[str], config: DataConfig, origin: str, *, with_classes: bool = True) -> Arranged:
    """Returns which file is an example of what, as `data.class_from` and `data.test_files` say.

    Args:
        names: of files, below the source, with slashes. What is in no folder has no class under class_from = "folder"
            and is left out.
        origin: what errors call the source.
        with_classes: False if labels come from elsewhere: files need no class then, and all are of the class "".

    Raises:
        ConfigurationError: no class in a name, more than CLASSES_MAX, a class that only the test folder has,
            `data.test_files` matches nothing or stands against a test folder.
    """
    paths = [PurePosixPath(name) for name in names]
    if config.class_from == "folder" and with_classes:
        paths = [path for path in paths if len(path.parts) > 1]
    if not paths:
        wanted = "one folder of files per class" if config.class_from == "folder" else "files"
        raise ConfigurationError(f"{origin}: expected {wanted}, found none")
    given = _by_folder(paths, 2 if config.class_from == "folder" and with_classes else 1)
    if given is not None and config.test_files and "test" in given.values():
        raise ConfigurationError(
            f'data.test_files = "{config.test_files}", but {origin} has a folder "test": leave the key out, or rename '
            'the folders "train" and "test"'
        )
    chosen = paths if given is None else list(given)
    with_test_folder = given is not None and "test" in given.values()
    files = []
    for path in chosen:
        class_name = class_of(path, config, origin) if with_classes else ""
        split = given[path] if given is not None and with_test_folder else split_of(path.name, class_name, config)
        files.append(_File(class_name, split, str(path)))
    files.sort()
    if config.test_files and all(file.split == "train" for file in files):
        raise ConfigurationError(
            f'data.test_files: expected files of {origin} that match "{config.test_files}", found none; one of its '
            f"{len(files)} files is {PurePosixPath(files[0].name).name}"
        )
    return _numbered(files, with_test_folder, origin)


def class_of(path: PurePosixPath, config: DataConfig, origin: str) -> str:
    """Returns the class of a file: its folder, or what stands before the first `_` of its name.

    Raises:
        ConfigurationError: there is none.
    """
    if config.class_from == "folder":
        return path.parent.name
    class_name, mark, _ = path.name.partition("_")
    if not mark or not class_name:
        raise ConfigurationError(
            f'{origin}: expected a class before the first "_" of each file\'s name, found {path}; rename the file, or '
            'set data.class_from = "folder" and put each class into a folder'
        )
    return class_name


def split_of(file_name: str, class_name: str, config: DataConfig) -> FileSplit:
    """Returns the split of a file that no folder decides: by `data.test_files`, or by a hash of class and name.

    So adding files moves no other file.
    """
    if config.test_files:
        return "test" if fnmatchcase(file_name, config.test_files) else "train"
    digest = hashlib.blake2b(f"{class_name}/{file_name}".encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def files_below(folder: Path, endings: Sequence[str], config: DataConfig, kind: str) -> list[str]:
    """Returns the names of a folder's files with these endings (lower case), for `arrange`; hidden ones are left out.

    Under class_from = "folder" they are `CLASS/FILE`, or `train/CLASS/FILE` and `test/CLASS/FILE` where there is a
    folder "train"; under "name" they are at any depth.

    Args:
        kind: what the files are, for messages, such as "JPEG or PNG files".

    Raises:
        ConfigurationError: it is no folder, or it or one of its classes has no such file.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"expected a folder of {kind}, found a file: {folder}; name its folder, or set data.format to what it is"
        )
    if config.class_from == "name":
        found = [path for path in folder.rglob("*") if _is_one(path, endings)]
        names = [path.relative_to(folder).as_posix() for path in found]
        names = [name for name in names if not is_hidden(name)]
        if not names:
            raise ConfigurationError(f"{folder}: expected {kind}, found none; look whether that is the folder you mean")
        return sorted(names)
    train = folder / "train" if any(_folders(folder / "train")) else folder
    names = []
    for part in (train, folder / "test") if train != folder else (train,):
        of_part = list(_folders(part))
        if part == train and not of_part:
            raise ConfigurationError(
                f"{folder}: expected one folder of {kind} per class, found no folder; name the folder that holds those "
                "of the classes"
            )
        for inner in of_part:
            found = [path for path in inner.iterdir() if _is_one(path, endings) and not path.name.startswith(".")]
            if part == train and not found:
                raise ConfigurationError(
                    f"{inner}: expected {kind} of class {inner.name!r}, found none; add some, or remove the folder"
                )
            names += [path.relative_to(folder).as_posix() for path in found]
    return sorted(names)


def is_hidden(name: str) -> bool:
    """Returns whether a file, or a folder that it is in, has a name that begins with a dot; `name` has slashes."""
    return any(part.startswith(".") for part in name.split("/"))


def _is_one(path: Path, endings: Sequence[str]) -> bool:
    return path.suffix.lower() in endings and path.is_file()


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _by_folder(paths: Sequence[PurePosixPath], below: int) -> dict[PurePosixPath, FileSplit] | None:
    """Returns the files in folders "train" and "test", or None if there is no folder "train".

    A tar often has everything in one folder more: those that all names share do not count. `below` is how many names
    follow that of the folder at least: so a class may be called "train".
    """
    depth = _shared_folders([path.parts for path in paths])
    least = depth + 1 + below
    found: dict[PurePosixPath, FileSplit] = {}
    for path in paths:
        for split in FILE_SPLITS:
            if len(path.parts) >= least and path.parts[depth] == split:
                found[path] = split
    return found if "train" in found.values() else None


def _shared_folders(parts: Sequence[tuple[str, ...]]) -> int:
    if not parts:
        return 0
    first, last = min(parts), max(parts)
    most = min(len(first), len(last)) - 1
    return next((depth for depth in range(most) if first[depth] != last[depth]), most)


def _numbered(files: Sequence[_File], with_test_folder: bool, origin: str) -> Arranged:
    trained = {file.class_name for file in files if file.split == "train"}
    every = tuple(sorted({file.class_name for file in files}))
    if with_test_folder and (unknown := sorted(set(every) - trained)):
        raise ConfigurationError(
            f'{origin}: expected classes in its folder "test" that "train" has ({", ".join(sorted(trained))}), '
            f"found {', '.join(unknown)}"
        )
    if len(every) > CLASSES_MAX:
        raise ConfigurationError(f"{origin}: expected at most {CLASSES_MAX} classes, found {len(every)}")
    numbers = {name: number for number, name in enumerate(every)}
    names: dict[FileSplit, list[str]] = {split: [] for split in FILE_SPLITS}
    labels: dict[FileSplit, list[int]] = {split: [] for split in FILE_SPLITS}
    for file in files:
        names[file.split].append(file.name)
        labels[file.split].append(numbers[file.class_name])
    return Arranged(every, names, {split: np.array(values, np.int32) for split, values in labels.items()})
