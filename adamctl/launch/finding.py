"""Finds the run that a command is about: the named one, the one in progress on this machine, or the newest."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import the_live_run
from adamctl.launch.run_folder import EXPERIMENT, checkpoints, find_run, runs_of


def find_any_run(run: str | None, base: Path, state: Path) -> Path:
    """Returns the folder that `run` names; without a name, the folder of the live run, or of the newest one in `base`.

    A live run is found by its name in any folder. `state` is the folder of notes of live runs.

    Raises:
        ConfigurationError: there is no such run, or several are live and none was named.
    """
    try:
        if run:
            return find_run(run, base)
    except ConfigurationError:
        live = the_live_run(state, run or "")
        if live is None:
            raise
        return Path(live.folder)
    live = the_live_run(state)
    if live is not None:
        return Path(live.folder)
    found = [folder for named in (base.iterdir() if base.is_dir() else ()) for folder in runs_of(named)]
    if not found:
        raise ConfigurationError(f"there are no runs in {base}, and none in progress on this machine; name one")
    return max(found, key=lambda folder: (folder / EXPERIMENT).stat().st_mtime)


def find_runs(runs: Sequence[str], base: Path, state: Path, runs_max: int) -> list[Path]:
    """Returns the folders that `runs` name, each once, as `find_any_run`; a name may be a pattern for several.

    A pattern such as `digits/*`, of paths or within `base`, means all run folders that match, and the newest run of
    each NAME that does.

    Raises:
        ConfigurationError: one names no run, or they are more than `runs_max`.
    """
    found: dict[Path, Path] = {}
    for run in runs or (None,):
        for folder in _matching(run, base) if run and glob.has_magic(run) else (find_any_run(run, base, state),):
            found.setdefault(folder.absolute(), folder)
    if len(found) > runs_max:
        raise ConfigurationError(f"expected at most {runs_max} runs, found {len(found)}: {', '.join(runs)}; name fewer")
    return list(found.values())


def _matching(pattern: str, base: Path) -> list[Path]:
    paths = {Path(path).absolute(): Path(path) for place in (pattern, str(base / pattern)) for path in glob.glob(place)}
    found = []
    for path in sorted(paths.values(), key=lambda path: (path.parent, len(path.name), path.name)):
        if (path / EXPERIMENT).is_file():
            found.append(path)
        else:
            found += runs_of(path)[-1:]
    if not found:
        raise ConfigurationError(
            f"{pattern}: expected a pattern of run folders here or in {base}; found none that match"
        )
    return found


def find_exact_run(run: str, base: Path) -> Path:
    """Returns the folder that `run` names by its path or as NAME/NNN, so that nothing is removed by guessing.

    Raises:
        ConfigurationError: it names no run, or is a name with several runs.
    """
    for folder in (Path(run), base / run):
        if (folder / EXPERIMENT).is_file():
            return folder
        if found := runs_of(folder):
            names = ", ".join(f"{run}/{one.name}" for one in found[-5:])
            raise ConfigurationError(f"{run}: expected one run, a folder or NAME/NNN; its newest are {names}")
    return find_run(run, base)


def find_trained_run(run: str | None, base: Path, state: Path) -> Path:
    """Returns the folder that `run` names, for a command that needs a checkpoint.

    Given only a name, or nothing, it is the newest run that has a checkpoint: a run that failed to start, or has just
    begun, does not hide an earlier good one.

    Raises:
        ConfigurationError: there is no such run.
    """
    if run:
        found = find_any_run(run, base, state)
        others = [] if (Path(run) / EXPERIMENT).is_file() or (base / run / EXPERIMENT).is_file() else [found.parent]
    else:
        others = list(base.iterdir()) if base.is_dir() else []
        found = Path()
    trained = [folder for named in others for folder in runs_of(named) if checkpoints(folder)]
    if trained:
        return max(trained, key=lambda folder: (checkpoints(folder)[-1] / "manifest.json").stat().st_mtime)
    return found if run else find_any_run(None, base, state)
