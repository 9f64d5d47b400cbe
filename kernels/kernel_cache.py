"""Where compiled kernels are kept on disk: one folder per version of their source.

numba detects changes of a kernel's own file, not of helpers that it calls from other files, so an upgraded installation
could run old code. Here the folder is named by a hash of all of `adamctl.kernels.compiled`, of what its modules take
constants from, and of the versions of numba and Python. Folders of other versions are removed when no process has
started with them for a day, so that two installations can alternate.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

PREFIX = "kernels-"
UNUSED_S_MAX = 24 * 3600.0
VARIABLE = "NUMBA_CACHE_DIR"
_SOURCE = Path(__file__).parent / "compiled"
BAKED_IN = (Path(__file__).parent / "numeric" / "mix.py",)
"""Sources of constants that are a part of compiled kernels."""
_PREPARING = threading.Lock()
LOCK_S_MAX = 120.0
"""Seconds that a process waits for another one that compiles the same kernel, before it compiles it itself."""
LOCK_POLL_S = 0.02


def source_hash(source: Path = _SOURCE) -> str:
    """Returns the hash that names the folder: of all kernel sources and of the compiler's versions."""
    import importlib.metadata  # imports a mail parser, which processes with an inherited folder do not need

    digest = hashlib.sha256()
    for name in ("numba", "llvmlite"):
        with suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    digest.update(f"{sys.implementation.cache_tag}\n".encode())
    for path in (*sorted(source.glob("*.py")), *BAKED_IN):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def choose_folder(parent: Path, source: Path = _SOURCE) -> Path:
    """Makes and returns the folder of these sources under `parent`; removes others that are long unused.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder = parent / f"{PREFIX}{source_hash(source)}"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder}: not writable")
    os.utime(folder)
    for other in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if other != folder and time.time() - other.stat().st_mtime > UNUSED_S_MAX:
                shutil.rmtree(other, ignore_errors=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file's lock, so that one process compiles a kernel while others wait for its code.

    Continues without the lock if the file cannot be locked, or its holder does not finish.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        until_s = time.monotonic() + LOCK_S_MAX
        while time.monotonic() < until_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_POLL_S)
            except OSError:
                break
        yield
    finally:
        os.close(file)


def folder() -> Path:
    """Returns the folder of these sources' kernels."""
    prepare()
    return Path(os.environ[VARIABLE])


def mark(name: str) -> None:
    """Notes that a kernel's code is in the cache."""
    with suppress(OSError):
        _marker(name).touch()


def unmarked(names: Sequence[str]) -> list[str]:
    """Returns the kernels that are not marked as cached, in order, each once."""
    return [name for name in dict.fromkeys(names) if not _marker(name).exists()]


def _marker(name: str) -> Path:
    return folder() / f"{name.replace(':', '-')}.compiled"


def prepare() -> None:
    """Makes numba keep compiled kernels in the folder of these sources, under the one that NUMBA_CACHE_DIR names.

    If that is not set, the parent is the user's cache folder, which outlives an installation; if that is not writable,
    the sources' own folder, or else a folder for this process and its children only.
    """
    with _PREPARING:  # otherwise a thread might use numba while another one is still importing it
        _prepare()


@cache
def _prepare() -> None:
    parents = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else _usual_parents()
    for parent in parents:
        if parent.name.startswith(PREFIX):  # set by the process that started this one
            parent = parent.parent
        with suppress(OSError):
            folder = choose_folder(parent)
            break
    else:
        folder = choose_folder(Path(tempfile.mkdtemp(prefix="adamctl-")))
    os.environ[VARIABLE] = str(folder)
    if (config := getattr(sys.modules.get("numba"), "config", None)) is not None:
        config.CACHE_DIR = str(folder)


def _usual_parents() -> list[Path]:
    import platformdirs

    return [Path(platformdirs.user_cache_dir("adamctl")), _SOURCE / "__pycache__"]
