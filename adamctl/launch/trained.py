"""Finds a trained model on disk, with the data to evaluate it on: shared by `eval` and `predict`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.kernels.layers.losses import Loss
from adamctl.kernels.layers.make import make_loss
from adamctl.launch.finding import find_trained_run
from adamctl.launch.live_runs import state_folder
from adamctl.launch.metrics import Confusion, GroupSums, in_top
from adamctl.launch.prediction.forward import Forward
from adamctl.launch.run_folder import checkpoints
from adamctl.live.units import measured
from adamctl.model.custom.plain import experiment_from_user
from adamctl.model.metric import TOP_1, metric_of, takes_targets, target_numbers
from adamctl.model.shapes import infer
from adamctl.model.tally import Tally
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.client.batches import without_skipped
from adamctl.roles.data.core import FILE_ORDER, SKIPPED, Range
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.targets import check_answers, target_count
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.ps.checkpoint_files import MANIFEST_NAME, read_manifest
from adamctl.wire.unreadable import UNREADABLE

BATCH = 256
CACHE_BYTES_MAX = 256 << 20

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Trained:
    """A model, the experiment that produced it and the checkpoint that has its parameters.

    `class_names` are those of the outputs; empty if the checkpoint tells none.
    """

    experiment: Experiment
    checkpoint: Path
    chosen: str = ""
    class_names: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> int:
        """How many outputs the network has."""
        return infer(self.experiment.model)[-1].output[0]

    @cached_property
    def loss(self) -> Loss:
        """What compares outputs with answers, and turns them into what a user sees."""
        return make_loss(self.experiment.model.loss)


def load_trained(place: str | None, runs: Path, which: str = "") -> Trained:
    """Finds a checkpoint folder, or the checkpoint of a run (folder, `NAME/NNN` or `NAME`) that `choose` returns.

    Parameters are read by who computes with them (`adamctl.launch.prediction`).

    Raises:
        ConfigurationError: there is no such run, or it has no such checkpoint.
        DamagedDataError: its manifest is missing or cannot be read.
    """
    folder, chosen = choose(place, runs, which)
    described = read_manifest(folder)
    try:
        experiment = msgspec.convert(experiment_from_user(described["experiment"]), Experiment)
        names = msgspec.convert(described.get("classes", ()), tuple[str, ...])
    except (KeyError, *UNREADABLE) as error:
        raise DamagedDataError(f"{folder / MANIFEST_NAME}: cannot be read: {error}") from error
    return Trained(experiment, folder, chosen, names)


def find_checkpoint(place: str, runs: Path) -> Path:
    """Returns the checkpoint folder that `place` names; for a run, its last one."""
    return choose(place, runs, "last")[0]


def choose(place: str | None, runs: Path, which: str = "") -> tuple[Path, str]:
    """Returns a checkpoint folder, and in words which one of its run it is; empty if it was named itself.

    Args:
        place: a checkpoint folder, a run folder, `NAME/NNN`, `NAME`; None for the live run or the newest with one.
        runs: folder of run folders.
        which: `best` on the validation part, `last`, or a number. Empty: the best if the run had a validation part
            and `train.keep_best`, else the last: the test part never decides.

    Raises:
        ConfigurationError: there is no such run, or it has no such checkpoint.
    """
    named = Path(place or "")
    if place and ((named / MANIFEST_NAME).is_file() or (named.parent.name == "checkpoints" and named.is_dir())):
        return named, ""
    run = find_trained_run(place, runs, state_folder(os.environ))
    finished = checkpoints(run)
    if not finished:
        raise ConfigurationError(f"{run} has no finished checkpoint; train longer, or name another run")
    if which not in ("", "best", "last"):
        return _numbered(run, finished, which), ""
    best = None if which == "last" else manifest.best(finished)
    if which == "best" and best is None:
        raise ConfigurationError(
            f"{run}: none of its checkpoints was evaluated on a validation part, so none is the best; use "
            "--checkpoint last, or train with data.validation"
        )
    if best is None or (not which and not _keeps_best(finished[-1])):
        return finished[-1], "the last"
    value = measured(best[1].metric, best[1].value)
    return best[0], f"the best on the validation part ({best[1].metric} {value} after pass {best[1].passes:g})"


def _numbered(run: Path, finished: Sequence[Path], which: str) -> Path:
    for folder in finished:
        if which.isdecimal() and int(folder.name) == int(which):
            return folder
    numbers = ", ".join(str(int(folder.name)) for folder in finished if folder.name.isdecimal())
    raise ConfigurationError(f"--checkpoint {which}: expected best, last or a number that {run} has: {numbers}")


def _keeps_best(newest: Path) -> bool:
    try:
        return manifest.read_manifest(newest).experiment.train.keep_best
    except DamagedDataError:
        return False  # reading it will report this


def data_of(experiment: Experiment, data: Sequence[str]) -> DataConfig:
    """Returns the experiment's data, with the folders of `--data` and ADAMCTL_DATA searched first."""
    variable = [folder for folder in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep) if folder]
    named = (str(Path(folder).expanduser().absolute()) for folder in (*data, *variable))
    return msgspec.structs.replace(experiment.data, search=tuple(dict.fromkeys((*named, *experiment.data.search))))


def open_data(experiment: Experiment, config: DataConfig) -> OpenDataSet:
    """Opens the data as a data server would.

    Raises:
        ConfigurationError: the data are missing or do not fit the model; DamagedDataError: they are damaged.
    """
    source = open_source(config, find_source(config, ()), experiment.model.input)
    model = experiment.model
    wanted = target_numbers(model, infer(model)[-1].output[0])
    inputs = prod(model.input) if config.targets == "inputs" else 0
    check_answers(target_count(source), wanted, takes_targets(model), source.origin, inputs)
    return OpenDataSet("local", config, source, experiment.seed, CACHE_BYTES_MAX)


def evaluate(
    trained: Trained, forward: Forward, data: OpenDataSet, split: str, confusion: Confusion | None = None
) -> dict[str, Any]:
    """Returns `examples, correct, top1, top5, loss, skipped, by_group, metric, metric_value` over a whole split.

    Of a model with another metric than top-1, `correct`, `top1` and `by_group` are None. `top5` is None of a model that
    was trained on targets, or if there are no more than five classes. `skipped` are damaged and left out where
    `data.on_error` says so; the others are counted in `examples`. `by_group` has `groups, correct, top1` of groups of
    examples, such as the frames of a recording; None, too, if there are none, or some have several labels. Examples are
    counted in `confusion`.

    Raises:
        ConfigurationError: the split is empty, or `confusion` is given and there are no classes.
        DamagedDataError: an example is damaged, or all are, and left out.
    """
    if confusion is not None and takes_targets(trained.experiment.model):
        raise ConfigurationError(
            "--confusion: this model was trained on targets, numbers in place of classes: leave it out"
        )
    total = data.examples[split]
    if not total:
        others = ", ".join(name for name, count in data.examples.items() if count)
        raise ConfigurationError(f"--split {split}: expected examples; this data set has none there, but in {others}")
    has_classes, loss = not takes_targets(trained.experiment.model), trained.loss
    metric = metric_of(trained.experiment.model)
    by_group = _group_sums(data, split, trained.classes) if metric is TOP_1 else None
    examples = _Examples(trained.experiment, data, split, min(forward.batch, total))
    tally, in_top5 = Tally(0, 0.0), 0
    for outputs in forward.outputs(examples):
        start, wanted, labels = examples.answers.popleft()
        found = loss.evaluate(outputs, wanted)
        tally = tally.plus(Tally(len(wanted), found.loss_sum, found.correct, loss.sums(outputs, wanted)))
        if has_classes:
            in_top5 += in_top(outputs, wanted, 5)
        if confusion is not None:
            confusion.add(outputs, wanted)
        if by_group is not None:
            finished = np.zeros(
                (len(labels), outputs.shape[1]), np.float32
            )  # what is skipped adds nothing to its group
            finished[labels != SKIPPED] = loss.finish(outputs)
            by_group.add(start, finished)
    seen = total - examples.skipped
    if not seen:
        raise DamagedDataError(f"--split {split}: each of its {total} examples is damaged")
    result: dict[str, Any] = {"examples": seen, "correct": None, "top1": None, "top5": None}
    result["loss"] = tally.loss_sum / seen
    if metric is TOP_1:
        result |= {"correct": tally.correct, "top1": tally.correct / seen}
    if has_classes and trained.classes > 5:
        result["top5"] = in_top5 / seen
    result |= {"skipped": examples.skipped, "by_group": None if by_group is None else by_group.result()}
    return result | {"metric": metric.name, "metric_value": metric.value(tally)}


class _Examples:
    """A split's examples in parts, without those that are damaged and left out.

    Attributes:
        answers: of each part that was taken: its first example, what outputs are compared with, and the labels with
            those that are left out.
        skipped: how many were left out.
    """

    def __init__(self, experiment: Experiment, data: OpenDataSet, split: str, batch: int) -> None:
        self._data, self._split, self._batch = data, split, batch
        self._shape, self._as_targets = experiment.model.input, experiment.data.targets == "inputs"
        self.answers: deque[tuple[int, NDArray[Any], NDArray[Any]]] = deque()
        self.skipped = 0

    def __iter__(self) -> Iterator[Floats]:
        data, split, total = self._data, self._split, self._data.examples[self._split]
        images = np.empty((self._batch, prod(self._shape)), np.float32)
        raw = np.empty(images.shape, data.form.numpy_dtype)
        for start in range(0, total, self._batch):
            size = min(self._batch, total - start)
            labels = np.empty(data.form.label_shape(size), data.form.label_dtype)
            data.gather(Range(split, FILE_ORDER, start, start + size), raw[:size], labels)
            data.scaling.write(raw[:size], images[:size])
            values, wanted = without_skipped(images[:size], labels)
            self.skipped += size - len(wanted)
            if len(wanted):
                targets = values.reshape(len(values), -1).copy() if self._as_targets else wanted
                self.answers.append((start, targets, labels))
                yield values.reshape(-1, *self._shape)


def _group_sums(data: OpenDataSet, split: str, classes: int) -> GroupSums | None:
    groups = data.groups(split)
    sums = None if groups is None else GroupSums(groups, data.labels(split), classes)
    return sums if sums is not None and sums.has_one_label_each else None
