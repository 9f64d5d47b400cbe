"""Makes a new run folder that starts from a checkpoint of another run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from adamctl.cli.checkpoint.damage import find_damage
from adamctl.config.experiment import Experiment
from adamctl.config.resolved import read_resolved, write_resolved
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.launch.run_folder import CHECKPOINTS, LOGS, create_run_folder
from adamctl.launch.trained import find_checkpoint
from adamctl.model.layout import build_layout
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.writer import check_model, check_resumable
from adamctl.roles.private_folder import make_private


@dataclass(frozen=True)
class Restored:
    """The new run's `folder`, its `checkpoint`, where that was copied from, and how many servers the run will use."""

    folder: Path
    checkpoint: Path
    source: Path
    servers: int


def restore_run(place: str, runs: Path, into: Path | None, settings: Sequence[str], parameters_only: bool) -> Restored:
    """Verifies a checkpoint, then makes a run folder with a copy of it and of its experiment, changed by `settings`.

    Raises:
        ConfigurationError: there is no such checkpoint, a setting is wrong or changes the model, or `into` is in use.
        DamagedDataError: the checkpoint is damaged; the message lists every damaged part.
    """
    source = find_checkpoint(place, runs)
    damage = find_damage(source)
    if damage:
        raise DamagedDataError("\n".join(damage))
    found = manifest.read_manifest(source)
    folder = create_run_folder(runs, found.experiment.name) if into is None else _made(into)
    try:
        file = write_resolved(found.experiment, folder)
        experiment = read_resolved(file, settings)
        _check(found, source, experiment, parameters_only)
        copied = _copy(source, folder / CHECKPOINTS)
        if parameters_only:
            train = msgspec.structs.replace(experiment.train, warmstart_from=str(copied.absolute()))
            experiment = msgspec.structs.replace(experiment, train=train)
        write_resolved(experiment, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Restored(folder, copied, source, experiment.cluster.ps)


def _check(found: manifest.Manifest, source: Path, experiment: Experiment, parameters_only: bool) -> None:
    layout = build_layout(experiment.model, experiment.cluster.ps)
    if parameters_only:
        check_model(found, source, layout)
    else:
        check_resumable(found, source, experiment, layout)


def _made(folder: Path) -> Path:
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigurationError(
                f"--into {folder}: expected an empty folder or one that does not exist; found files in it"
            )
        make_private(folder)
        for part in (LOGS, CHECKPOINTS):
            (folder / part).mkdir(mode=0o700)
    except OSError as error:
        raise ConfigurationError(f"--into {folder}: cannot be made: {error.strerror}") from error
    return folder


def _copy(source: Path, checkpoints: Path) -> Path:
    """Copies under another name first, so that a crash leaves no partial checkpoint. Only the owner can read it."""
    name = source.name if source.name.isdecimal() else "000001"
    partial = checkpoints / f".{name}.partial"
    partial.mkdir(mode=0o700)
    shutil.copytree(source, partial, dirs_exist_ok=True)
    for copied in (partial, *partial.rglob("*")):
        copied.chmod(0o700 if copied.is_dir() else 0o600)
    return partial.rename(checkpoints / name)
