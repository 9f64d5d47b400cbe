"""Run folders: `runs/NAME/NNN/` with the resolved experiment, metrics, a log per role, checkpoints and a summary."""

from __future__ import annotations

from collections.abc import Iterator
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
        if (folder / EXPERIMENT).is_file():
            return folder
        numbers = _numbers(folder)
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
    """Returns the run folders in `base/NAME`, oldest first."""
    found = [named / entry.name for entry in named.iterdir() if entry.name.isdecimal()] if named.is_dir() else []
    return sorted((path for path in found if (path / EXPERIMENT).is_file()), key=lambda path: int(path.name))


def run_folders(base: Path) -> Iterator[Path]:
    """Yields all run folders in `base`, by name and then oldest first."""
    for named in sorted(base.iterdir()) if base.is_dir() else ():
        yield from runs_of(named)


def checkpoints(folder: Path) -> list[Path]:
    """Returns the finished checkpoints of a run, oldest first; a checkpoint without a manifest is unfinished."""
    found = (folder / CHECKPOINTS).glob("*/manifest.json")
    return sorted((manifest.parent for manifest in found), key=lambda path: path.name)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
