"""Readers are plug-ins: each is named by an entry point of the group `adamctl.readers`.

Another package adds `[data] format = "mine"` by declaring

    [project.entry-points."adamctl.readers"]
    mine = "mypackage.reader:READER"

where READER is a `Reader` (docs/readers.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.config.formats import BUILT_IN, READERS
from adamctl.config.urls import Url
from adamctl.errors import AdamctlError, ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.access import reported
from adamctl.roles.data.readers.source import CLASSES_MAX, FILE_SPLITS, FileSplit, Source, own_blocks
from adamctl.roles.data.readers.targets import target_count, targets_of
from adamctl.roles.data.remote.files import RemoteFiles

_ATTRIBUTES = tuple(Source.__annotations__)


@dataclass(frozen=True)
class Reader:
    """One format.

    Attributes:
        name: the value of `data.format`, and the name of the entry point.
        suffixes: endings that a bare name may lack, such as `.npz`; `adamctl data inspect` knows files by them.
        open: `module:function` of (path, input_shape) that returns a `Source`; input_shape is None if any will do.
            The module is imported when data are opened, so that the description stays light.
        extra: the extra of the package that installs what that module imports; empty: the package suffices.
        peek: `module:function` of (path, input_shape, examples_max, seconds_max) that reads headers, all labels and no
            more examples than allowed, and returns a `Peek`; empty: data are opened to be checked.
        reads_urls: all functions take a `Url` in place of a path, and fetch its files one by one; without, all files
            are fetched first, and the path is of the copy.
        reads_config: all functions also take `config`, the `DataConfig` of the experiment, as a keyword.
        files: `module:function` of (path) that returns the paths of the files that would be read; a data server looks
            at them whenever a run opens the data. Empty: the path itself, if it is a file.
        reads_budget: `open` also takes the keyword `budget_bytes`, the memory for what a source with `keeps_examples`
            keeps of them; None: `data.memory_share` of this machine's.
    """

    name: str
    suffixes: tuple[str, ...]
    open: str
    extra: str = ""
    peek: str = ""
    reads_config: bool = False
    reads_urls: bool = False
    reads_budget: bool = False
    files: str = ""


def find(name: str) -> Reader:
    """Returns a reader; built-in ones are found without searching the installed packages.

    Raises:
        ConfigurationError: there is none of this name, there are two, or it cannot be loaded.
    """
    if name in BUILT_IN:
        reader = import_module(f"adamctl.roles.data.readers.{name}").READER
        assert isinstance(reader, Reader)
        return reader
    return READERS.load_named(name, Reader, "a reader")


def find_by_suffix(file_name: str) -> Reader | None:
    """Returns the reader whose files end like this one, ours first; None if there is none that can be loaded."""
    return next((reader for reader in _all() if file_name.lower().endswith(reader.suffixes)), None)


def find_by_content(place: Path) -> Reader | None:
    """Returns the reader of a file by its suffix, of a folder without folders by its files; None if there is none.

    Raises:
        ConfigurationError: this user may not look there.
    """
    with reported(place):
        if not place.is_dir():
            return find_by_suffix(place.name)
        found = sorted(path for path in place.iterdir() if not path.name.startswith("."))
        if any(path.is_dir() for path in found):
            return None
    from adamctl.roles.data.prepared.layout import MANIFEST_NAME  # it imports this package

    if any(path.name == MANIFEST_NAME for path in found):
        return find("prepared")
    return next((reader for path in found if (reader := find_by_suffix(path.name)) is not None), None)


def call(
    reader: Reader, function: str, config: DataConfig, path: Path | Url | None, *arguments: Any, **keywords: Any
) -> Any:
    """Calls `reader.open`, `peek` or `files`, given as `function`; `config` is passed on if the reader reads it.

    Raises:
        ConfigurationError: the function cannot be imported, a file may not be read, or as it raises itself.
        DamagedDataError: as it raises itself, or a file cannot be read; another package's: also for any error that is
            not of adamctl.
        UnreachableError: files behind a URL cannot be fetched.
    """
    called = _import(reader, function)
    if isinstance(path, Url) and not reader.reads_urls:
        copy = RemoteFiles(path, config).whole()
        try:
            found = call(reader, function, config, copy.path, *arguments, **keywords)
        except BaseException as error:
            copy.let_go()
            if isinstance(error, (ConfigurationError, DamagedDataError)):
                raise type(error)(f"{error} (a copy of {path})") from error
            raise
        copy.keep_for(found)
        return found
    if reader.reads_config:
        keywords["config"] = config
    if reader.name in BUILT_IN:
        with reported(path):
            return called(path, *arguments, **keywords)
    try:
        with reported(path):
            return called(path, *arguments, **keywords)
    except AdamctlError:
        raise
    except ImportError as error:
        raise _missing(reader, function, error) from error
    except Exception as error:
        raise _failed(reader, function, str(path), error) from error


def _failed(reader: Reader, function: str, place: str, error: Exception) -> DamagedDataError:
    wanted = f"expected data of format {reader.name!r}; its reader ({function})"
    return DamagedDataError(f"{place}: {wanted} failed with {type(error).__name__}: {error}")


class GuardedSource:
    """Another package's source, of which `load` raises nothing but adamctl's errors. The rest is as it is."""

    def __init__(self, reader: Reader, source: Any) -> None:
        self._reader = reader
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Loads examples, which errors name.

        Raises:
            ChangedDataError: the system could not read a file.
            DamagedDataError: any other error of the reader, which is named.
        """
        try:
            self._source.load(split, indices, out)
        except AdamctlError:
            raise
        except Exception as error:
            examples = f"example {indices[0]}" if len(indices) == 1 else f"examples {min(indices)} to {max(indices)}"
            place = f"{self._source.origin}: {split}, {examples}"
            # Without a number it is Pillow's or gzip's word for damage.
            if isinstance(error, OSError) and error.errno is not None:
                raise ChangedDataError(f"{place}: cannot be read: {error}") from error
            raise _failed(self._reader, f"load, {self._reader.open}", place, error) from error


def check_source(reader: Reader, source: Any, input_shape: tuple[int, ...] | None) -> None:
    """Checks what another package's reader returned against the protocol `Source`.

    Raises:
        ConfigurationError: it is none; the message says what is wrong.
    """
    if problem := next(_problems(source, input_shape), None):
        raise ConfigurationError(f"data.format {reader.name!r} ({reader.open}) returned no usable Source: {problem}")


def _problems(source: Any, input_shape: tuple[int, ...] | None) -> Iterator[str]:
    for name in (*_ATTRIBUTES, "labels", "load"):
        if not hasattr(source, name):
            yield f"it has no {name!r}"
            return
    if input_shape is not None and tuple(source.example_shape) != input_shape:
        yield f"expected example_shape {list(input_shape)}, the model's input, found {list(source.example_shape)}"
    if source.dtype not in (np.dtype(np.uint8), np.dtype(np.float32)):
        yield f"expected dtype uint8 or float32, found {source.dtype}"
    if not 0 < source.value_max < float("inf"):
        yield f"expected a value_max above 0, found {source.value_max}"
    if len(source.classes) > CLASSES_MAX:
        yield f"expected at most {CLASSES_MAX} classes, found {len(source.classes)}"
    for split in FILE_SPLITS:
        labels = source.labels(split)
        if not isinstance(labels, np.ndarray) or labels.dtype != np.int32 or labels.ndim != 1:
            yield f"expected labels of {split} as int32 [examples]"
        elif problem := _target_problem(source, split, len(labels)):
            yield problem
        elif not target_count(source) and len(labels) and not 0 <= labels.min() <= labels.max() < len(source.classes):
            yield (
                f"expected labels of {split} from 0 to {len(source.classes) - 1}, one for each class, "
                f"found {labels.min()} to {labels.max()}"
            )
        elif (lengths := own_blocks(source, split)) is not None and lengths.sum() != len(labels):
            yield f"expected blocks of {split} that hold its {len(labels)} examples, found {lengths.sum()} in them"


def _target_problem(source: Any, split: FileSplit, examples: int) -> str | None:
    """Returns what is wrong with a source's targets, or None."""
    train, targets = targets_of(source, "train"), targets_of(source, split)
    if train is None and targets is None:
        return None
    if any(not isinstance(part, np.ndarray) or part.dtype != np.float32 or part.ndim != 2 for part in (train, targets)):
        return "expected targets of train and test as float32 [examples, numbers]"
    count = target_count(source)
    assert targets is not None
    if targets.shape != (examples, count):
        return f"expected targets of {split} as [{examples}, {count}], found {list(targets.shape)}"
    return f"expected targets or classes, found both: {len(source.classes)} classes" if source.classes else None


def _all() -> Iterator[Reader]:
    for name in BUILT_IN:
        yield find(name)
    for name in READERS.added():
        try:
            yield find(name)
        except ConfigurationError:
            continue  # a broken package harms only experiments that name its format


def _import(reader: Reader, function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ImportError as error:
        raise _missing(reader, function, error) from error
    except Exception as error:
        raise ConfigurationError(f"data.format {reader.name!r} ({function}) cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"data.format {reader.name!r}: expected a function, found {function}")
    called: Callable[..., Any] = found
    return called


def _missing(reader: Reader, function: str, error: ImportError) -> ConfigurationError:
    advice = f"; pip install '{_package(reader.name)}[{reader.extra}]'" if reader.extra else ""
    return ConfigurationError(f"data.format {reader.name!r} ({function}) cannot be loaded: {error}{advice}")


def _package(name: str) -> str:
    if name in BUILT_IN:
        return "adamctl"
    distribution = READERS.point(name).dist
    return distribution.name if distribution is not None else "PACKAGE"
