"""The modules of a user's own that the module of a layer or loss imports, and the hash of each.

A user's own are those that lie beside that module, in the same folder of Python's path, and those in the folders of
ADAMCTL_MODULES. In a folder of installed packages only the modules of the same package are: what others have installed
there is not looked at. Imports are read from the source, so those inside functions count, and those by
`importlib.import_module` do not.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from adamctl.model.custom.modules import FOLDERS_VARIABLE, folder_of, folder_of_file, origin_of

_INSTALLED = frozenset(("site-packages", "dist-packages"))
_PROGRAM = __name__.partition(".")[0]


@lru_cache(maxsize=1024)
def source_hash(module: str) -> str:
    """Returns the hex digest of an imported module's source."""
    origin = origin_of(module)
    return _digest(Path(origin).read_bytes() if os.path.isfile(origin) else module.encode())


@lru_cache(maxsize=1024)
def imported_sources(module: str, beside: tuple[str, ...] = ()) -> dict[str, tuple[Path, str]]:
    """Returns name -> (file, hex digest) of the user's own modules that an imported module reaches, without itself.

    `beside`: folders of other modules of the user's own.
    """
    named = filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep))
    folders = frozenset((folder_of(module), *beside, *(str(Path(folder).absolute()) for folder in named)))
    package, found, waiting = module.partition(".")[0], dict[str, tuple[Path, str]](), [module]
    seen = {module}
    while waiting:
        name = waiting.pop()
        file = module_file(name)
        if file is None or (name != module and not _is_own(name, file, folders, package)):
            continue
        content = file.read_bytes()
        if name != module:
            found[name] = file, _digest(content)
        for imported in _imports(name, file, content):
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return {name: found[name] for name in sorted(found)}


def stamp_of(function: Callable[..., Any]) -> str:
    """Returns the hex digest of all that a function may have taken from sources, or nothing if it is in no file.

    These are its own file and those of the user's own modules that its module imports, as they are now.
    """
    code = getattr(function, "__code__", None)
    if code is None or not os.path.isfile(code.co_filename):
        return ""
    digest = hashlib.blake2b(Path(code.co_filename).read_bytes(), digest_size=8)
    read_anew = imported_sources.__wrapped__  # modules may have been changed and loaded again
    for name, (_, content) in read_anew(function.__module__).items():
        digest.update(f"\0{name} {content}".encode())
    return digest.hexdigest()


def module_file(name: str) -> Path | None:
    """Returns the file of a module, imported or not, or None: it has none, or there is no such module."""
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        spec = _found(name)
        origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin).absolute() if origin and os.path.isfile(origin) else None


def _found(name: str) -> ModuleSpec | None:
    """Finds a module without importing it, or what it is in."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    if parent in sys.modules:
        inside = getattr(sys.modules[parent], "__path__", None)
    else:
        spec = _found(parent)
        inside = spec.submodule_search_locations if spec is not None else None
    return None if inside is None else PathFinder.find_spec(name, list(inside))


def _is_own(name: str, file: Path, folders: frozenset[str], package: str) -> bool:
    if name.partition(".")[0] == _PROGRAM or (folder := folder_of_file(name, file)) not in folders:
        return False
    return not _is_installed(folder) or name.partition(".")[0] == package


def _is_installed(folder: str) -> bool:
    """Whether packages are installed into a folder, or Python's own modules lie in it."""
    return not _INSTALLED.isdisjoint(Path(folder).parts) or folder in sysconfig.get_paths().values()


@lru_cache(maxsize=128)
def _imports(name: str, file: Path, content: bytes) -> tuple[str, ...]:
    """Returns what a module may import: each name with all that it is in, and the module's own packages."""
    return tuple(_each_import(name, file, content))


def _each_import(name: str, file: Path, content: bytes) -> Iterator[str]:
    yield from _with_parents(name.rpartition(".")[0])
    if file.suffix != ".py":
        return
    try:
        tree = _parsed(content)
    except (SyntaxError, ValueError):  # nobody has imported it so far
        return
    package = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from _with_parents(one.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from _with_parents(base)
            yield from (f"{base}.{one.name}" for one in node.names if base and one.name != "*")


def _parsed(content: bytes) -> ast.Module:
    """Returns a source's tree, while the garbage collector waits.

    Python 3.11 counts a tree's depth wrongly if the collector runs other code meanwhile (python/cpython 106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(content)
    finally:
        if collects:
            gc.enable()


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
