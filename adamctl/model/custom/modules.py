"""Finds classes of the user's own, layers and losses, by import path, and the modules that they are in.

Nothing is ever unpickled. Modules are found on Python's path, then in the folders of `ADAMCTL_MODULES`, which whoever
starts a run's roles on this machine names (`registry.environment_for`), then in the present folder. On other machines a
module has to be installed.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import threading
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from adamctl.errors import ConfigurationError

FOLDERS_VARIABLE = "ADAMCTL_MODULES"
"""Folders, separated as in PATH, in which modules are looked for after Python's own path."""
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Kind:
    """What classes of one kind derive from, and how experiments name them: `key = "module:Class"`.

    `module`: an example of where a user puts one.
    """

    base: type
    key: str
    module: str


def add_folder(folder: Path) -> None:
    """Has modules looked for in a folder, too, after all others."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.append(place)
        importlib.invalidate_caches()


def class_at(path: str, kind: Kind) -> type[Any]:
    """Returns the class that a path names.

    Raises:
        ConfigurationError: there is no such module or class, it cannot be imported, or it is not of this kind.
    """
    if not _PATH.fullmatch(path):
        example = f'"{kind.module}:My{kind.base.__name__}"'
        raise ConfigurationError(f'expected {kind.key} = "module:Class", such as {example}; found "{path}"')
    module, _, name = path.partition(":")
    if module == "__main__":
        raise ConfigurationError(
            f"{name} is defined in a script or notebook (__main__), which a run's processes cannot import; put the "
            f'class into a file, such as {kind.module}.py, and use {kind.key} = "{kind.module}:{name}"'
        )
    found: Any = _imported(module)
    for part in name.split("."):
        inside, found = found, getattr(found, part, None)
        if found is None:
            raise ConfigurationError(
                f"module {module} ({origin_of(module)}) has no class {name}.{_hint(part, inside, kind)}"
            )
    if not isinstance(found, type) or not issubclass(found, kind.base) or found is kind.base:
        raise ConfigurationError(
            f"{path}: expected a class derived from adam.{kind.base.__name__}; found {found!r:.80}"
        )
    return found


def path_of(given: type[Any], kind: Kind) -> str:
    """Returns the path by which other processes import a class.

    Raises:
        ConfigurationError: they cannot, or another class is there.
    """
    path = f"{given.__module__}:{given.__qualname__}"
    if "<locals>" in path:
        raise ConfigurationError(
            f"{path}: it is defined inside a function, where other processes cannot import it; move it to the top of a "
            "module"
        )
    if (found := class_at(path, kind)) is not given:
        raise ConfigurationError(f"{path}: expected the class of that name; found another there, {found!r:.80}")
    return path


def folder_of(module: str) -> str:
    """Returns the folder from which an imported module is found, or nothing if it is not a file."""
    origin = Path(origin_of(module))
    return folder_of_file(module, origin) if origin.is_file() else ""


def folder_of_file(module: str, file: Path) -> str:
    """Returns the folder from which a module is found that is this file."""
    names = module.split(".")
    up = len(names) if file.stem == "__init__" else len(names) - 1
    return str([file.absolute().parent, *file.absolute().parent.parents][up])


def origin_of(module: str) -> str:
    """Returns the file of an imported module, or its name."""
    found = sys.modules.get(module)
    return str(getattr(found, "__file__", None) or module)


def _imported(module: str) -> Any:
    with _LOCK:
        for folder in filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)):
            add_folder(Path(folder))
        try:
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not _is_missing(module, error):
                    raise
            add_folder(Path.cwd())
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not _is_missing(module, error):
                raise ConfigurationError(f"module {module} cannot be imported: {error}") from error
            raise ConfigurationError(
                f"no module {module} on {platform.node()}: install it there, for {sys.executable}, or name its folder "
                f"in PYTHONPATH or {FOLDERS_VARIABLE}"
            ) from error
        except Exception as error:
            raise ConfigurationError(f"module {module} cannot be imported: {type(error).__name__}: {error}") from error


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether it is the module itself that is not found, or a package that it is in, and nothing that it imports."""
    return error.name is not None and f"{module}.".startswith(f"{error.name}.")


def _hint(part: str, inside: Any, kind: Kind) -> str:
    held = getattr(inside, "__dict__", {})
    offered = [key for key, value in held.items() if isinstance(value, type) and issubclass(value, kind.base)]
    near = get_close_matches(part, [key for key in offered if key != kind.base.__name__], n=1)
    return f' Did you mean "{near[0]}"?' if near else ""
