"""Run folders: `runs/NAME/NNN/` with the resolved experiment, metrics, a log per role, checkpoints and a summary."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from adamctl.config.check import suggestion
from adamctl.errors import ConfigurationError
from adamctl.roles.private_folder import make_private

DEFAULT_BASE = Path("runs")
EXPERIMENT = "experiment.toml"
LOGS = "logs"
CHECKPOINTS = "checkpoints"
_ATTEMPTS_MAX = 1000


def create_run_folder(base: Path, name: str) -> Path:
    """Makes the next free `base/name/NNN` with its subfolders; two runs that start at once get two folders.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    try:
        number = max(_numbers(base / name), default=0)
        for candidate in range(number + 1, number + 1 + _ATTEMPTS_MAX):
            folder = base / name / f"{candidate:03d}"
            try:
                for outer in (base, folder.parent):
                    make_private(outer)
                folder.mkdir(mode=0o700)  # only the owner may read a run's data, weights and secrets
            except FileExistsError:
                continue
            for part in (LOGS, CHECKPOINTS):
                (folder / part).mkdir(mode=0o700)
            return folder
    except OSError as error:
        raise ConfigurationError(
            f"{base / name}: cannot make a run folder: {error.strerror}; choose another --run-dir"
        ) from error
    raise ConfigurationError(f"{base / name}: no free run number found; remove old runs or choose another --run-dir")


def find_run(run: str, base: Path = DEFAULT_BASE) -> Path:
    """Returns the folder that `run` names: a run folder's path, `NAME/NNN`, or `NAME` for its newest run.

    Raises:
        ConfigurationError: there is no such run.
    """
    for folder in (Path(run), base / run):
        if _is_run(folder):
            return folder
        try:
            numbers = _numbers(folder)
        except PermissionError as error:
            text = f"{error.filename or folder}: {error.strerror}; it is another user's: look at it as that user"
            raise ConfigurationError(text) from error
        if numbers:
            return folder / f"{max(numbers):03d}"
    names = [entry.name for entry in base.iterdir() if entry.is_dir()] if base.is_dir() else []
    known = f"Runs in {base}: {', '.join(sorted(names))}." if names else f"There are no runs in {base}."
    why = f" {run} holds no {EXPERIMENT}." if Path(run).exists() else suggestion(run, names)
    raise ConfigurationError(f"no run {run!r}.{why} {known} Use --run-dir DIR for another folder.")


def run_name(folder: Path) -> str:
    """Returns the name of a run, NAME/NNN, by its folder."""
    return "/".join(folder.absolute().parts[-2:])


def runs_of(named: Path) -> list[Path]:
    """Returns the run folders in `base/NAME`, oldest first, without those that this user may not look into."""
    found = [named / name for name in _names(named) if name.isdecimal()]
    return sorted((path for path in found if _is_run(path)), key=lambda path: int(path.name))


def run_folders(base: Path) -> Iterator[Path]:
    """Yields all run folders in `base`, by name and then oldest first."""
    for name in sorted(_names(base)):
        yield from runs_of(base / name)


def checkpoints(folder: Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first; a checkpoint without a manifest is unfinished."""
    found = (folder / CHECKPOINTS).glob("*/manifest.json")
    return sorted((manifest.parent for manifest in found), key=lambda path: path.name)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]


def _names(folder: Path) -> list[str]:
    """Returns the names in a folder; none if there is no such folder, or it is another user's."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        return os.listdir(folder)
    return []


def _is_run(folder: Path) -> bool:
    with suppress(PermissionError):
        return (folder / EXPERIMENT).is_file()
    return False
