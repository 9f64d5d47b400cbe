"""A trained model read back from disk, and the data it is looked at with: what `eval` and `predict` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.config.experiment import DataConfig, Experiment
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.kernels.network import Network
from adamctl.launch.run_folder import checkpoints, find_run
from adamctl.roles.data.catalogue import find_source
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.dataset import OpenDataSet
from adamctl.roles.data.readers import open_source
from adamctl.roles.ps.checkpoint import MANIFEST_NAME, load_parameters, read_manifest
from adamctl.wire.unreadable import UNREADABLE

BATCH = 256
CACHE_BYTES_MAX = 256 << 20

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Trained:
    """A model's parameters, the experiment that made them and the checkpoint they were read from."""

    experiment: Experiment
    checkpoint: Path
    network: Network
    parameters: Floats


def load_trained(place: str, runs: Path) -> Trained:
    """Reads a checkpoint folder, or the newest checkpoint of a run (folder, `NAME/NNN` or `NAME`).

    Raises:
        ConfigurationError: there is no such run, or it has no checkpoint yet.
        DamagedDataError: a file of the checkpoint is missing or not what its checksum says.
    """
    folder = find_checkpoint(place, runs)
    manifest = read_manifest(folder)
    try:
        experiment = msgspec.convert(manifest["experiment"], Experiment)
    except (KeyError, *UNREADABLE) as error:
        raise DamagedDataError(f"{folder / MANIFEST_NAME}: its experiment cannot be read: {error}") from error
    network = Network(experiment.model, BATCH)
    flat = np.zeros(network.flat_size, np.float32)
    found = load_parameters(folder)
    for tensor, view in zip(network.tensors, network.views(flat), strict=True):
        values = found.get(tensor.name)
        if values is None or values.shape != tensor.shape:
            shape = "nothing" if values is None else str(list(values.shape))
            raise DamagedDataError(f"checkpoint {folder}: {tensor.name}: expected {list(tensor.shape)}; found {shape}")
        view[...] = values
    return Trained(experiment, folder, network, flat)


def find_checkpoint(place: str, runs: Path) -> Path:
    """Returns the checkpoint folder that `place` names."""
    named = Path(place)
    if (named / MANIFEST_NAME).is_file() or (named.parent.name == "checkpoints" and named.is_dir()):
        return named
    run = find_run(place, runs)
    finished = checkpoints(run)
    if not finished:
        raise ConfigurationError(f"{run} has no finished checkpoint; train it first, or name another run")
    return finished[-1]


def data_of(experiment: Experiment, data: Sequence[str]) -> DataConfig:
    """Returns the experiment's data with the folders of `--data` and ADAMCTL_DATA looked through first."""
    variable = [folder for folder in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep) if folder]
    named = (str(Path(folder).expanduser().absolute()) for folder in (*data, *variable))
    return msgspec.structs.replace(experiment.data, search=tuple(dict.fromkeys((*named, *experiment.data.search))))


def open_data(experiment: Experiment, config: DataConfig) -> OpenDataSet:
    """Opens the data as a data server would.

    Raises:
        ConfigurationError: it is not there or does not fit the model; DamagedDataError: it is not what it should be.
    """
    source = open_source(config.format, find_source(config, ()), experiment.model.input)
    return OpenDataSet("local", config, source, experiment.seed, CACHE_BYTES_MAX)


def evaluate(trained: Trained, data: OpenDataSet, split: str) -> dict[str, Any]:
    """Returns `examples, correct, top1, loss` over a whole split.

    Raises:
        ConfigurationError: the split is empty.
    """
    total = data.examples[split]
    if not total:
        raise ConfigurationError(f"--split {split}: expected examples; this data set has none in that split")
    shape = trained.experiment.model.input
    images = np.empty((min(BATCH, total), prod(shape)), np.float32)
    labels = np.empty(len(images), np.int32)
    context = trained.network.context(0, training=False)
    views = trained.network.views(trained.parameters)
    loss_sum, correct = 0.0, 0
    for start in range(0, total, BATCH):
        size = min(BATCH, total - start)
        data.gather(Range(split, FILE_ORDER, start, start + size), images[:size], labels[:size])
        loss, right = trained.network.evaluate(context, views, images[:size].reshape(size, *shape), labels[:size])
        loss_sum, correct = loss_sum + loss, correct + right
    return {"examples": total, "correct": correct, "top1": correct / total, "loss": loss_sum / total}
