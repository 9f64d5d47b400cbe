"""The runs in a folder of run folders: the state of each, its size on disk, and what of it may be removed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import is_live, live_runs
from adamctl.launch.plan import STORES
from adamctl.launch.run_folder import EXPERIMENT, checkpoints, run_folders, run_name
from adamctl.launch.run_token import SECRETS, TOKEN
from adamctl.model.metric import TOP_1, value_of
from adamctl.roles.coordinator.core.progress import BatchProgress
from adamctl.roles.coordinator.records import METRICS_NAME, SUMMARY_NAME, write_summary
from adamctl.roles.folder_lock import any_locked, is_locked
from adamctl.wire.unreadable import UNREADABLE

STORES_KEPT_S = 86_400.0
"""Seconds that parameter servers' stores of a crashed run are kept after their last change, for inspection."""
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class KnownRun:
    """One run folder.

    Attributes:
        state: its coordinator's while it is live; else `ended`, `stopped` or `failed` from its summary; without a
            summary `failed` if nothing was ever trained, else `crashed`.
        live: whether it is in progress on this machine.
        passes, top1, best_top1, failure: as far as its records tell; so is `batch`, of a batch algorithm, and
            `metric_value` and `best_metric_value`, the latest and the best of the `metric`.
        size_bytes, stores_bytes: size on disk; the first includes the second.
        started_at: Unix time in seconds.
    """

    folder: Path
    state: str
    live: bool
    passes: float | None
    top1: float | None
    best_top1: float | None
    failure: str
    checkpoints: int
    size_bytes: int
    stores_bytes: int
    started_at: float
    batch: BatchProgress | None = None
    metric: str = TOP_1.name
    metric_value: float | None = None
    best_metric_value: float | None = None

    @property
    def name(self) -> str:
        return run_name(self.folder)

    def described(self) -> dict[str, Any]:
        """Returns plain values, as `--json` prints them."""
        return {
            "run": self.name,
            "run_folder": str(self.folder),
            "state": self.state,
            "live": self.live,
            "passes": self.passes,
            "top1": self.top1,
            "best_top1": self.best_top1,
            "failure": self.failure,
            "checkpoints": self.checkpoints,
            "size_bytes": self.size_bytes,
            "stores_bytes": self.stores_bytes,
            "started_at": self.started_at,
            "batch": None if self.batch is None else msgspec.to_builtins(self.batch),
            "metric": self.metric,
            "metric_value": self.metric_value,
            "best_metric_value": self.best_metric_value,
        }


def known_runs(base: Path, state: Path) -> list[KnownRun]:
    """Returns the runs in `base` by name and number, and live ones elsewhere on this machine."""
    folders = list(run_folders(base))
    here = {os.path.realpath(folder) for folder in folders}
    elsewhere = {Path(run.folder) for run in live_runs(state) if os.path.realpath(run.folder) not in here}
    return [look_at(folder, state) for folder in (*folders, *sorted(elsewhere))]


def look_at(folder: Path, state: Path) -> KnownRun:
    """Reads a run's state from its folder; `state` is the folder of notes of live runs."""
    live = is_live(folder, state)
    last = _last_progress(folder / METRICS_NAME)
    summary = _object(folder / SUMMARY_NAME)
    evaluations = [e for e in summary.get("evaluations", ()) if isinstance(e, dict)]
    keys = ("top1", "best_top1", "metric_value", "best_metric_value")
    top1, best_top1, value, best = (summary.get(key, last.get(key)) for key in keys)
    if top1 is None and evaluations:
        top1 = evaluations[-1].get("top1")
    metric = str(summary.get("metric", last.get("metric", TOP_1.name)))
    passes = summary.get("passes")
    if passes is None and last:
        passes = round(min(last.get("pass_number", 0) + last.get("pass_share", 0.0), last.get("passes_total", 0)), 4)
    if live:
        word = str(last.get("state", "starting"))
    else:
        word = str(summary.get("state") or ("crashed" if last.get("examples") or checkpoints(folder) else "failed"))
    started_at = (folder / EXPERIMENT).stat().st_mtime if (folder / EXPERIMENT).is_file() else 0.0
    return KnownRun(
        folder=folder,
        state=word,
        live=live,
        passes=passes,
        top1=top1,
        best_top1=best_top1,
        failure=str(summary.get("failure", "")),
        checkpoints=len(checkpoints(folder)),
        size_bytes=_size(folder),
        stores_bytes=_size(folder / STORES),
        started_at=started_at,
        batch=_batch(summary.get("batch", last.get("batch"))),
        metric=metric,
        metric_value=value_of(metric, top1, value),
        best_metric_value=value_of(metric, best_top1, best),
    )


def note_end(folder: Path, state: str, failure: str) -> None:
    """Says in a run's summary how it ended, once its coordinator has gone; what else the summary says stays.

    Of `failure` the first line is kept: the end of a log may follow. On a full disk nothing is changed.
    """
    told = {"state": state, "failure": failure.partition("\n")[0]}
    with suppress(OSError):
        write_summary(folder, _object(folder / SUMMARY_NAME) | told)


def remove_run(folder: Path, state: Path, base: Path, *, only_stores: bool = False) -> int:
    """Removes a run folder, or only the parameter servers' stores in it; returns how many bytes that frees.

    With the last run of a name in `base` its folder `base/NAME` goes, too.

    Raises:
        ConfigurationError: the run is in progress, or something in it cannot be removed.
    """
    what = folder / STORES if only_stores else folder
    if is_live(folder, state) or _is_used(folder):
        raise ConfigurationError(
            f"{folder}: the run is in progress; where it was started, end it first: adamctl run stop"
        )
    freed_bytes = _size(what)
    try:
        if what.exists():
            shutil.rmtree(what)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or what} cannot be removed: {error.strerror}") from error
    named = Path(os.path.realpath(folder.parent))
    if not only_stores and named.parent == Path(os.path.realpath(base)):
        with suppress(OSError):  # other runs of the name are left
            named.rmdir()
    return freed_bytes


def _is_used(folder: Path) -> bool:
    """Returns whether a front, a coordinator or a server holds a lock there: notes are of this machine alone."""
    return any(map(is_locked, (folder / SECRETS / TOKEN, folder / METRICS_NAME))) or any_locked(folder / STORES)


def sweep_stores(base: Path, state: Path, now: float | None = None) -> list[Path]:
    """Removes parameter servers' stores of crashed and failed runs in `base`, a day after their last change.

    A run that ends or is stopped removes its own. Returns the run folders from which stores were removed.
    """
    until = (time.time() if now is None else now) - STORES_KEPT_S
    swept = []
    for folder in run_folders(base):
        stores = folder / STORES
        if stores.is_dir() and _last_change(stores) < until and not is_live(folder, state) and not any_locked(stores):
            shutil.rmtree(stores, ignore_errors=True)
            swept.append(folder)
    return swept


def _files(folder: Path) -> Iterator[os.stat_result]:
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield os.lstat(os.path.join(where, name))


def _size(folder: Path) -> int:
    """Returns the bytes on disk, which are fewer than a file's length if it has holes."""
    return sum(found.st_blocks * 512 for found in _files(folder))


def _last_change(folder: Path) -> float:
    return max((found.st_mtime for found in _files(folder)), default=0.0)


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _batch(described: Any) -> BatchProgress | None:
    """Returns what records tell of a batch algorithm; None if they tell nothing that this version can read."""
    try:
        return msgspec.convert(described, BatchProgress | None)
    except UNREADABLE:
        return None


def _last_progress(metrics: Path) -> dict[str, Any]:
    """Returns the last complete progress line of a run's metrics; empty if there is none."""
    try:
        with metrics.open("rb") as stream:
            stream.seek(max(stream.seek(0, 2) - _TAIL_BYTES, 0))
            lines = stream.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("kind") == "progress":
                return found
    return {}
