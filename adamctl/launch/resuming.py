"""Resolves `--resume` before anything starts: which checkpoint, and whether anything is left to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.launch.finding import find_trained_run
from adamctl.model.layout import build_layout


def find_resume(resume: str, experiment: Experiment, runs: Path, state: Path, note: Callable[[str], None]) -> str:
    """Returns the path of the checkpoint that a run continues from, or `none`.

    Args:
        resume: `none`, `auto` (the newest run of the experiment's name), a checkpoint, a run as other commands
            accept it: a folder, NAME/NNN or NAME; or a URL (`train.checkpoint_url`), from which it is fetched.
        runs: folder of run folders.
        state: folder of notes of live runs.
        note: called with what `auto` found.

    Raises:
        ConfigurationError: there is no such checkpoint, or its run has already done all that is asked for.
        DamagedDataError: its manifest cannot be read.
        UnreachableError: the URL cannot.
    """
    if resume == "none":
        return resume
    from adamctl.roles.coordinator.checkpoint import manifest  # most runs start from nothing and need not load it

    if resume == "auto":
        found = manifest.find_resume("auto", runs / experiment.name / "0")
        if found is None:
            note(f"--resume auto: no run in {runs / experiment.name} has a checkpoint; starting from the beginning")
            return "none"
        note(f"--resume auto: continuing from {found}")
    else:
        from adamctl.roles.coordinator.checkpoint.copies import fetched

        found = _find(fetched(resume, "--resume", runs / experiment.name), runs, state)
    from adamctl.roles.coordinator.checkpoint.writer import (  # imports the servers' client, too
        check_goes_on,
        check_resumable,
    )

    described = manifest.read_manifest(found)
    check_resumable(described, found, experiment, build_layout(experiment.model, experiment.cluster.ps))
    check_goes_on(described, found, experiment)
    return str(found.absolute())


def _find(resume: str, runs: Path, state: Path) -> Path:
    from adamctl.roles.coordinator.checkpoint import manifest

    try:
        return manifest.find_checkpoint(resume, "--resume")
    except ConfigurationError:
        try:
            run = find_trained_run(resume, runs, state)
        except ConfigurationError:
            run = None
        found = None if run is None else manifest.find_latest(run)
        if found is None:
            raise
        return found
