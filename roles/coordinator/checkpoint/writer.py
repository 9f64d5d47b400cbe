"""Writes checkpoints: has every server write its shards, then writes the manifest; keeps the newest ones."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.errors import AdamctlError, ConfigurationError
from adamctl.model.layout import ParameterLayout
from adamctl.model.metric import reaches
from adamctl.optimizers.descent import CHANGE, GRADIENT, PRECISION
from adamctl.optimizers.execution import BUDGET
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.copies import CheckpointCopies, fetched
from adamctl.roles.coordinator.checkpoint.manifest import Manifest, ManifestFile, ManifestTensor
from adamctl.roles.coordinator.checkpoint.members import MemberCheckpoints
from adamctl.roles.coordinator.core.evaluate import best_of
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.coordinator.core.ranges import RangeAllocator
from adamctl.roles.durable_file import to_its_end
from adamctl.roles.manifest_bytes import FORMAT_VERSION
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.saving import NONCE_NAME
from adamctl.wire.messages import CheckpointFile

MAY_CHANGE = frozenset({"gradient_tolerance", "change_tolerance", "evaluations_max"})
"""Settings of a batch algorithm that may be others when a run goes on: what it holds does not depend on them."""

_TOLERANCES = {GRADIENT: "gradient_tolerance", CHANGE: "change_tolerance"}
"""By the reason for which an algorithm stopped: the setting that decided it."""


class CheckpointWriter:
    """Writes the checkpoints of one run into `RUN/checkpoints`, one at a time.

    Attributes:
        classes: names of the classes, once the data are open.
    """

    def __init__(
        self,
        run_folder: Path,
        job: str,
        experiment: Experiment,
        layout: ParameterLayout,
        parameters: ParameterClient | MemberCheckpoints,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`notice` is told of copies that failed."""
        self.folder = (run_folder / manifest.CHECKPOINTS_NAME).absolute()
        self._job, self._experiment, self._layout = job, experiment, layout
        self._parameters, self._notice = parameters, notice
        url = experiment.train.checkpoint_url
        self._copies = CheckpointCopies(url, "train.checkpoint_url") if url else None
        self._best_copy: tuple[str, EvaluationResult] | None = None  # of before the run went on: maybe the only one
        self.classes: tuple[str, ...] = ()

    async def prepare(self, goes_on_from: int | None) -> None:
        """Removes what a crash left unfinished, so that numbers can be reused.

        Args:
            goes_on_from: number of the checkpoint that the run goes on from; None: it begins anew.

        Raises:
            ConfigurationError: a run that begins anew would mix its checkpoints, or copies of them, with those of
                another; or there are later checkpoints than the one that it goes on from, which would be taken for
                its own.
            UnreachableError: what there is behind `train.checkpoint_url` cannot be read.
        """
        train = self._experiment.train
        if goes_on_from is None:
            await asyncio.to_thread(self._expect_none)
        else:
            await asyncio.to_thread(self._expect_none_after, goes_on_from)
            if self._copies is not None and train.keep_best:
                self._best_copy = await asyncio.to_thread(self._copies.best)
        await asyncio.to_thread(manifest.clean, self.folder, train.checkpoint_keep, train.keep_best)

    def _expect_none(self) -> None:
        """Raises ConfigurationError if there are checkpoints: those of higher numbers would be kept, and not ours."""
        found = manifest.finished(self.folder)
        if found:
            raise ConfigurationError(
                f"--run-dir: found checkpoint {found[-1].name} of another run in {self.folder}; expected a folder of "
                "this run alone; choose another --run-dir, or go on from it with --resume auto"
            )
        if self._copies is not None:
            self._copies.expect_none()

    def _expect_none_after(self, number: int) -> None:
        """Raises ConfigurationError if there are checkpoints that a run went on to before, from an earlier one."""
        later = [path.name for path in manifest.finished(self.folder) if int(path.name) > number]
        if later:
            raise _later_ones(number, later, str(self.folder), "--run-dir")
        if self._copies is not None and (later := self._copies.after(number)):
            raise _later_ones(number, later, self._copies.url, "train.checkpoint_url")

    async def write(self, number: int, snapshot: RunSnapshot, complete: bool) -> Path:
        """Writes checkpoint `number`, and removes the oldest ones beyond `checkpoint_keep` except the best.

        Returns its folder.

        Raises:
            UnreachableError, RemoteError: a server did not write its part.
            DamagedDataError, OSError: the files could not be finished. In all these cases nothing of it remains.
        """
        folder = manifest.checkpoint_folder(self.folder, number)

        def described(files: tuple[ManifestFile, ...]) -> Manifest:
            return Manifest(
                format_version=FORMAT_VERSION,
                job=self._job,
                number=number,
                seed=self._experiment.seed,
                layout_hash=self._layout.hash,
                servers_expected=self._experiment.cluster.ps,
                tensors=tuple(ManifestTensor.of(tensor) for tensor in self._layout.tensors),
                files=files,
                state=snapshot,
                experiment=self._experiment,
                complete=complete,
                written_at=datetime.now(UTC).isoformat(timespec="seconds"),
                classes=self.classes,
            )

        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            files = await self._write_shards(folder, snapshot)
            await to_its_end(lambda: manifest.finish(folder, files, described))
        except BaseException:
            await asyncio.shield(asyncio.to_thread(manifest.abandon, folder))
            raise
        train = self._experiment.train
        await asyncio.to_thread(manifest.clean, self.folder, max(train.checkpoint_keep, 1), train.keep_best)
        if self._copies is not None:
            await self._copy(self._copies, folder)
        return folder

    async def _copy(self, copies: CheckpointCopies, folder: Path) -> None:
        """Copies a finished checkpoint. If that fails, the run goes on: the checkpoint itself is there."""

        def copy() -> None:
            copies.put(folder)
            keep = max(self._experiment.train.checkpoint_keep, 1)
            copies.keep(self._names_kept(), keep)

        try:
            await asyncio.to_thread(copy)
        except (AdamctlError, OSError) as error:
            self._notice(f"{folder} is finished, but copying it failed: {error}")

    def _names_kept(self) -> set[str]:
        """Returns which copies stay beside the newest: those in the folder, and an earlier one if it is still best."""
        ours = manifest.finished(self.folder)
        names = {path.name for path in ours}
        if self._best_copy is None:
            return names
        name, result = self._best_copy
        best = manifest.best(ours)
        return names if best is not None and best_of([result, best[1]]) else names | {name}

    async def _write_shards(self, folder: Path, snapshot: RunSnapshot) -> tuple[CheckpointFile, ...]:
        nonce, commit = secrets.token_hex(16), -1 if snapshot.batch is None else snapshot.batch.commit
        await asyncio.to_thread((folder / NONCE_NAME).write_text, nonce)
        try:
            if isinstance(self._parameters, MemberCheckpoints):
                assert snapshot.batch is None, "servers hold the vectors of a batch algorithm"
                return await self._parameters.checkpoint(str(folder), nonce=nonce)
            return await self._parameters.checkpoint(str(folder), commit=commit, nonce=nonce)
        finally:
            await asyncio.to_thread((folder / NONCE_NAME).unlink, missing_ok=True)


def _later_ones(number: int, names: Sequence[str], where: str, key: str) -> ConfigurationError:
    return ConfigurationError(
        f"--resume: expected no checkpoint after {number:06d}, from which the run goes on; found {', '.join(names)} in "
        f"{where}, which the next --resume could take; move them elsewhere, choose another {key}, or go on from the "
        "last one"
    )


def find_start(
    resume: str, run_folder: Path, experiment: Experiment, layout: ParameterLayout
) -> tuple[Path, RunSnapshot | None] | None:
    """Returns the verified checkpoint to begin with, and its state, which is None for a warm start. Blocks.

    Raises:
        ConfigurationError: the named checkpoint does not exist or does not fit, or its run has nothing left to do.
        DamagedDataError: it is damaged.
    """
    found = manifest.find_resume(fetched(resume, "--resume", run_folder), run_folder)
    if found is not None:
        described = manifest.verify(found)
        check_resumable(described, found, experiment, layout)
        check_goes_on(described, found, experiment)
        return found.absolute(), described.state
    start = experiment.train.warmstart_from
    if not start:
        return None
    start = fetched(start, "train.warmstart_from", run_folder)
    found = manifest.find_checkpoint(start, "train.warmstart_from")
    check_model(manifest.verify(found), found, layout)
    return found.absolute(), None


def check_model(found: Manifest, folder: Path, layout: ParameterLayout) -> None:
    """Raises ConfigurationError if a checkpoint is not of this model, naming the tensors that differ."""
    ours = tuple(ManifestTensor.of(tensor) for tensor in layout.tensors)
    if found.tensors != ours:
        differing = sorted(
            {tensor.name for tensor in set(found.tensors) ^ set(ours)} or {tensor.name for tensor in ours}
        )
        raise ConfigurationError(
            f"{folder}: expected a checkpoint of this model, found one that differs in {', '.join(differing[:4])}; "
            "use the model it was made with, or start over without it"
        )


def check_resumable(found: Manifest, folder: Path, experiment: Experiment, layout: ParameterLayout) -> None:
    """Raises ConfigurationError if an experiment cannot go on from a checkpoint, naming what differs."""
    check_model(found, folder, layout)
    if not found.state.pass_examples:
        raise ConfigurationError(
            f"{folder}: expected a checkpoint of a run, found an imported one, from which no run can be resumed; "
            f"start a run from it with --set train.warmstart_from={folder}"
        )
    if found.seed != experiment.seed:
        raise ConfigurationError(
            f"{folder}: it was made with seed {found.seed}, which decides the order of the examples; found seed = "
            f"{experiment.seed}; set seed = {found.seed}, or start over with --resume none"
        )
    if found.experiment.optimizer.type != experiment.optimizer.type:
        raise ConfigurationError(
            f"{folder}: it holds the state of rule {found.experiment.optimizer.type!r}; found optimizer.type = "
            f"{experiment.optimizer.type!r}; use the same one, or begin anew from its parameters with --resume none "
            f"--set train.warmstart_from={folder}"
        )
    if experiment.optimizer.is_batch:
        _check_algorithm(found.experiment.optimizer, folder, experiment.optimizer)


def _check_algorithm(found: OptimizerConfig, folder: Path, wanted: OptimizerConfig) -> None:
    """Raises ConfigurationError if the vectors of a checkpoint are those of an algorithm with other settings."""
    for key in sorted(set(wanted.__struct_fields__) - MAY_CHANGE):
        before, now = getattr(found, key), getattr(wanted, key)
        if before != now:
            raise ConfigurationError(
                f"{folder}: its vectors were made with optimizer.{key} = {before}; found {now}; use the same, or begin "
                f"anew from its parameters with --resume none --set train.warmstart_from={folder}"
            )


def check_goes_on(found: Manifest, folder: Path, experiment: Experiment) -> None:
    """Raises ConfigurationError if a checkpoint's run has already done what the experiment asks for, and says what."""
    done = _what_is_done(found, experiment)
    if done:
        what, more = done
        raise ConfigurationError(f"{folder}: its run has {what}; to continue, {more}; to start over, use --resume none")


def _what_is_done(found: Manifest, experiment: Experiment) -> tuple[str, str] | None:
    """Returns how a run has finished, and what to ask for so that it can continue; None if it has not finished."""
    train, state = experiment.train, found.state
    book = RangeAllocator(train.passes, max(state.pass_examples, 1), 1 << 62, train.pass_fraction)
    book.restore(state.passes)
    if book.finished:
        return f"finished its {train.passes} passes", f"ask for more with --passes {train.passes + 1} or above"
    if found.complete and state.batch is not None and state.batch.stop_reason not in ("", BUDGET):
        more = _what_stopped(state.batch.stop_reason, found.experiment.optimizer, experiment.optimizer)
        if more:
            return f"ended by itself ({state.batch.stop_reason})", more
    seen = [result for result in state.evaluations if result.split == experiment.evaluated_on]
    best = best_of(seen)
    if not found.complete or best is None:
        return None
    if train.target is not None and reaches(seen[best].value, train.target, seen[best].larger_is_better):
        return f"reached its target of {train.target:g}", "set another --target, or none"
    if train.patience is not None and len(seen) - 1 - best >= train.patience:
        worse = f"ended after {len(seen) - 1 - best} evaluations without improvement"
        return worse, "set another train.patience, or none"
    return None


def _what_stopped(reason: str, before: OptimizerConfig, now: OptimizerConfig) -> str:
    """Returns what to ask for so that a batch algorithm goes on that has stopped; "" if that was asked for."""
    key = _TOLERANCES.get(reason)
    if key is None:
        precise = "there is nothing to ask for, since float32 tells no better point"
        return precise if reason == PRECISION else "change the setting that ended it"
    tolerance: float = getattr(before, key)
    return "" if getattr(now, key) < tolerance else f"set optimizer.{key} below {tolerance:g}"
