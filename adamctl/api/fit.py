"""`fit`: what `adamctl train` does, for a model and data given in Python."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from adamctl.api.source import Source
from adamctl.config.conflicts import experiment_problems
from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.config.load import data_folders
from adamctl.config.urls import checked_url, is_url
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.kernels.step.network import Network
from adamctl.launch.front import Outcome
from adamctl.launch.run_folder import checkpoints
from adamctl.launch.train import TrainOptions, train
from adamctl.launch.trained import BATCH, choose
from adamctl.live.reporter import choose_reporter
from adamctl.model.custom.loss import Loss, name_of
from adamctl.model.description import Model
from adamctl.model.metric import takes_targets
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.stages import CutAxis
from adamctl.roles.data.readers.plugins import find_by_content, find_by_suffix
from adamctl.roles.ps.client.parameter_client import load_parameters

Arrays = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the run folder: resolved experiment, metrics, logs, checkpoints.
        result: the run's figures: metric_value, test_top1, best_test_top1, train_seconds, images_per_s, time_to and
            others.
        model: the trained model.
    """

    folder: Path
    result: Mapping[str, Any]
    model: Model

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Returns, by name, the arrays of the checkpoint that was best on the validation part, else of the last one.

        Raises:
            RunFailedError: the run ended before it wrote one.
            DamagedDataError: a file does not match its checksum.
        """
        finished = checkpoints(self.folder)
        if not finished:
            raise RunFailedError(f"{self.folder} holds no checkpoint: the run ended before it wrote one")
        return load_parameters(choose(str(self.folder), self.folder.parent.parent)[0])

    def predict(self, examples: ArrayLike) -> NDArray[np.float32]:
        """Returns the outputs [n, units] for examples [n, *input shape], which must be scaled as for training."""
        images = np.ascontiguousarray(examples, np.float32)
        network = Network(self.model, min(max(len(images), 1), BATCH))
        flat = np.zeros(network.flat_size, np.float32)
        stored = self.parameters()
        for tensor, view in zip(network.tensors, network.views(flat), strict=True):
            view[...] = stored[tensor.name]
        context, starts = network.context(training=False), range(0, max(len(images), 1), BATCH)
        found = [np.array(network.predict(context, flat, images[start : start + BATCH])) for start in starts]
        return np.concatenate(found)


def fit(
    model: Model,
    data: str | Path | DataConfig | Source | Arrays,
    *,
    optimizer: OptimizerConfig | None = None,
    name: str = "run",
    loss: str | type[Loss] | Loss | None = None,
    passes: int = 10,
    batch: int = 32,
    workers: int = 1,
    threads: int | Literal["auto"] = "auto",
    ps: int = 1,
    partitions: int | Literal["auto"] = 1,
    cuts: Mapping[str, Cut | CutAxis] | None = None,
    memory_per_worker: str | None = None,
    seed: int = 7,
    target: float | None = None,
    search: Sequence[str | Path] = (),
    resume: str | Path = "none",
    runs: str | Path = "runs",
    quiet: bool = False,
    **train_options: Any,
) -> Run:
    """Trains a model with its own roles on this machine and returns the finished run. Call it in the main thread.

    Args:
        model: from `Sequential`, or a `Model`.
        data: `digits`; a bare name such as `mnist`, looked up in `search` and ADAMCTL_DATA; a path to IDX files, an
            npz file or another file whose ending names its format, a folder of npy files, folders of images, or a
            prepared set; a URL of such a file or of a prepared set; a `DataConfig`; arrays (x_train, y_train, x_test,
            y_test), where y are labels, or the targets of a loss that takes these; or a `Source`.
        optimizer: an update rule, `SGD`, `Momentum`, `Adagrad`, `RMSProp` or `Adam`; or a batch algorithm, `LBFGS`,
            `CG`, `OWLQN` or another package's by `Optimizer`; default SGD(0.05).
        loss: in place of the model's: a name, or a class of one's own derived from `Loss`, which is imported by its
            name in every process of the run.
        passes, batch, target: see `TrainConfig`; its other fields may be given by name.
        workers, threads, ps, partitions, memory_per_worker: see `ClusterConfig`.
        cuts: layer name -> `Cut`, or its axis alone, where the rules of docs/partitions.md are not to cut it.
        resume: `auto`, `none`, or a checkpoint or run folder.
        runs: folder in which the run folder is created.
        quiet: show nothing during training.

    Raises:
        ConfigurationError: a value is wrong.
        RunFailedError: the run ended without a result; the first cause is in the message.
        KeyboardInterrupt: after an interrupt, once a checkpoint is written and every role has ended.
    """
    if loss is not None:
        model = msgspec.structs.replace(model, loss=name_of(loss))
    with ExitStack() as stack:
        experiment = Experiment(
            name=name,
            model=model,
            seed=seed,
            data=_data_config(data, search, stack, takes_targets(model)),
            optimizer=optimizer or OptimizerConfig(),
            train=TrainConfig(passes=passes, batch=batch, target=target, **train_options),
            cluster=ClusterConfig(
                workers=workers, threads=threads, ps=ps, partitions=partitions, memory_per_worker=memory_per_worker
            ),
            partition=dict(cuts or {}),
        )
        problems = experiment_problems(experiment)
        if problems:
            raise ConfigurationError("; ".join(str(problem) for problem in problems))
        stream = stack.enter_context(open(os.devnull, "w")) if quiet else sys.stderr
        reporter = choose_reporter(stream, plain=quiet)
        options = TrainOptions((), str(resume), Path(runs), os.environ, readings=not quiet)
        try:
            outcome, folder = train(experiment, options, reporter)
        finally:
            reporter.close()
    return _finished(outcome, folder, model)


def _finished(outcome: Outcome, folder: Path, model: Model) -> Run:
    """Returns the finished run; raises if it was interrupted or has no result."""
    if outcome.signal:
        raise KeyboardInterrupt
    if outcome.exit_code or outcome.progress is None or outcome.progress.result is None:
        raise RunFailedError(outcome.message or f"the run ended without a result; see {folder}")
    return Run(folder, outcome.progress.result, model)


def _data_config(
    data: str | Path | DataConfig | Source | Arrays, search: Sequence[str | Path], stack: ExitStack, has_targets: bool
) -> DataConfig:
    """Returns the data's configuration; `has_targets`: arrays have targets in place of labels."""
    if isinstance(data, DataConfig):
        return data
    if isinstance(data, Source):
        return data.write(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-source-"))))
    folders = tuple(str(Path(folder).expanduser()) for folder in (*search, *data_folders(os.environ)))
    if isinstance(data, tuple):
        if len(data) != 4:
            raise ConfigurationError(f"data: expected arrays (x_train, y_train, x_test, y_test); found {len(data)}")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-arrays-"))
        path = Path(folder) / "arrays.npz"
        known = "targets" if has_targets else "y"
        names = ("x_train", f"{known}_train", "x_test", f"{known}_test")
        np.savez(path, **{key: np.asarray(array) for key, array in zip(names, data, strict=True)})  # type: ignore[arg-type]
        return DataConfig(format="npz", source=str(path), scale="none", search=folders)
    path = Path(data)
    if str(data) == "digits":
        return DataConfig()
    if is_url(str(data)):
        reader = find_by_suffix(checked_url(str(data)).name)
        return DataConfig(format=reader.name if reader else "prepared", source=str(data), search=folders)
    if (path.suffix or path.is_dir()) and (reader := find_by_content(path)) is not None:
        return DataConfig(format=reader.name, source=str(path.absolute()), search=folders)
    if (path / "x_train.npy").exists():
        return DataConfig(format="npy", source=str(path.absolute()), search=folders)
    if path.is_dir() and not any(path.glob("*idx*ubyte*")):
        return DataConfig(format="imagefolder", source=str(path.absolute()), search=folders)
    source = str(path.absolute()) if path.exists() else str(data)
    return DataConfig(format="idx", source=source, search=folders)
