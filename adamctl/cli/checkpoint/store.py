"""The checkpoints of a run folder: the state of each, and which ones may be removed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adamctl.cli.checkpoint.damage import find_damage
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.launch.run_folder import CHECKPOINTS, find_run
from adamctl.launch.trained import find_checkpoint
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import MANIFEST_NAME, Manifest
from adamctl.roles.ps.checkpoint_files import read_checkpoint


@dataclass(frozen=True)
class Stored:
    """One checkpoint folder.

    Attributes:
        manifest: None if it is missing or cannot be read.
        damage: why the checkpoint cannot be used, judged by headers, sizes and ends of files; empty if it can.
    """

    folder: Path
    size_bytes: int
    written_at: datetime
    manifest: Manifest | None
    damage: str

    @property
    def number(self) -> int:
        return int(self.folder.name) if self.folder.name.isdecimal() else 0

    @property
    def finished(self) -> bool:
        """Whether its manifest was written, which happens last."""
        return (self.folder / MANIFEST_NAME).is_file()

    @property
    def complete(self) -> bool:
        return not self.damage

    @property
    def state(self) -> str:
        if self.complete:
            return "complete"
        return "damaged" if self.finished else "unfinished"

    def described(self, now: datetime) -> dict[str, Any]:
        """Returns plain values, as `--json` prints them."""
        found = self.manifest
        state = None if found is None else found.state
        evaluations = () if state is None else state.evaluations
        return {
            "checkpoint": self.folder.name,
            "folder": str(self.folder),
            "state": self.state,
            "complete": self.complete,
            "run_complete": found is not None and found.complete,
            "passes": state.examples / state.pass_examples if state is not None and state.pass_examples else None,
            "examples": None if state is None else state.examples,
            "top1": evaluations[-1].top1 if evaluations else None,
            "files": None if found is None else len(found.files),
            "size_bytes": self.size_bytes,
            "written_at": self.written_at.isoformat(timespec="seconds"),
            "age_seconds": max((now - self.written_at).total_seconds(), 0.0),
            "damage": self.damage,
            "metric": evaluations[-1].metric if evaluations else None,
            "metric_value": evaluations[-1].value if evaluations else None,
        }


def folder_of_checkpoints(run: str, runs: Path) -> Path:
    """Returns the folder of checkpoints that `run` names: the folder itself, or a run's (folder, `NAME/NNN` or `NAME`).

    Raises:
        ConfigurationError: there is no such run.
    """
    named = Path(run)
    if any(path.name.isdecimal() and (path / MANIFEST_NAME).is_file() for path in named.glob("*/")):
        return named
    if (named / CHECKPOINTS).is_dir():
        return named / CHECKPOINTS
    return find_run(run, runs) / CHECKPOINTS


def chosen(place: str, runs: Path) -> list[Path]:
    """Returns the checkpoint that `place` names, or all finished ones of a run, oldest first.

    Raises:
        ConfigurationError: there is no such run, or none of its checkpoints was finished.
    """
    named = Path(place)
    if (named / MANIFEST_NAME).is_file() or (named.parent.name == CHECKPOINTS and named.is_dir()):
        return [named]
    found = manifest.finished(folder_of_checkpoints(place, runs))
    return found or [find_checkpoint(place, runs)]  # find_checkpoint says what is missing


def stored(checkpoints: Path) -> list[Stored]:
    """Opens every checkpoint of a run, oldest first; blocks while it opens their files.

    One whose files go meanwhile, as its run removes it (`train.checkpoint_keep`), is left out.
    """
    if not checkpoints.is_dir():
        return []
    found = []
    for path in sorted(checkpoints.iterdir()):
        if path.is_dir() and path.name.isdecimal():
            with suppress(FileNotFoundError):
                found.append(look_at(path))
    return found


def look_at(folder: Path) -> Stored:
    """Opens a checkpoint without reading its arrays. Raises FileNotFoundError: it goes meanwhile."""
    found: Manifest | None = None
    damage = ""
    try:
        found = manifest.read_manifest(folder)
        read_checkpoint(folder)
    except DamagedDataError as error:
        damage = str(error)
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return Stored(folder, sum(sizes), _written_at(folder, found), found, damage)


def _written_at(folder: Path, found: Manifest | None) -> datetime:
    try:
        return datetime.fromisoformat(found.written_at if found is not None else "")
    except ValueError:
        path = folder / MANIFEST_NAME
        return datetime.fromtimestamp((path if path.is_file() else folder).stat().st_mtime, UTC)


def with_newest_verified(found: Sequence[Stored]) -> list[Stored]:
    """Reads the newest complete one in full, then, if it is damaged, the one before it, until one is whole."""
    checked = list(found)
    for index in reversed(range(len(checked))):
        if not checked[index].complete:
            continue
        damage = find_damage(checked[index].folder)
        if not damage:
            break
        checked[index] = replace(checked[index], damage=damage[0])
    return checked


@dataclass(frozen=True)
class Pruning:
    """What `prune` keeps and removes, each oldest first."""

    kept: tuple[Stored, ...]
    removed: tuple[Stored, ...]


def plan_pruning(found: Sequence[Stored], keep: int, every: int | None) -> Pruning:
    """Chooses what stays: the newest `keep` complete ones, those whose number `every` divides, and always at least one.

    The one that was best on the validation part stays, too, if `train.keep_best` is set.

    Damaged ones are removed if a complete one stays. An unfinished one stays if it is newer than all finished ones: it
    may still be being written.

    Raises:
        ConfigurationError: `keep` is negative or `every` is not positive.
    """
    if keep < 0 or (every is not None and every < 1):
        what = f"--keep {keep}" if keep < 0 else f"--every {every}"
        raise ConfigurationError(f"{what}: expected --keep of at least 0 and --every of at least 1")
    complete = [one for one in found if one.complete]
    newest = {one.folder for one in complete[-max(keep, 1) :]}
    chosen = manifest.best([one.folder for one in complete])
    if chosen is not None and chosen[0] in {one.folder for one in complete if _keeps_best(one)}:
        newest.add(chosen[0])
    last_finished = max((one.number for one in found if one.finished), default=0)
    kept: list[Stored] = []
    removed: list[Stored] = []
    for one in found:
        if one.complete:
            stays = one.folder in newest or (every is not None and one.number % every == 0)
        else:
            stays = not complete or (not one.finished and one.number > last_finished)
        (kept if stays else removed).append(one)
    return Pruning(tuple(kept), tuple(removed))


def _keeps_best(one: Stored) -> bool:
    return one.manifest is not None and one.manifest.experiment.train.keep_best
