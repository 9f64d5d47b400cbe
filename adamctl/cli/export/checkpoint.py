"""Makes a checkpoint from arrays that did not come from a run, for `adamctl import`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ParameterLayout, build_layout
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import Manifest, ManifestTensor
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.manifest_bytes import FORMAT_VERSION
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage, ShardRecord, file_name
from adamctl.roles.ps.core.exactly_once import MemoryRecord

NODE = "import"
PROBLEMS_SHOWN_MAX = 8


def check_arrays(layout: ParameterLayout, values: Mapping[str, NDArray[Any]], file: Path) -> None:
    """Raises ConfigurationError, which lists each problem, if names or shapes do not fit or values are not finite."""
    problems = []
    for tensor in layout.tensors:
        found = values.get(tensor.name)
        if found is None:
            problems.append(f"{tensor.name}: expected {list(tensor.shape)}; found nothing")
        elif found.shape != tensor.shape:
            problems.append(f"{tensor.name}: expected {list(tensor.shape)}; found {list(found.shape)}")
        elif found.dtype.kind not in "fiu":
            problems.append(f"{tensor.name}: expected numbers; found {found.dtype}")
        elif not np.isfinite(found).all():
            problems.append(f"{tensor.name}: expected finite values; found NaN or infinite ones")
    names = {tensor.name for tensor in layout.tensors}
    problems += [f"{name}: the model has no such parameters" for name in values if name not in names]
    if problems:
        more = [f"... and {len(problems) - PROBLEMS_SHOWN_MAX} more"] if len(problems) > PROBLEMS_SHOWN_MAX else []
        raise ConfigurationError("\n".join(f"{file}: {line}" for line in (*problems[:PROBLEMS_SHOWN_MAX], *more)))


def write_checkpoint(folder: Path, experiment: Experiment, values: Mapping[str, NDArray[Any]]) -> None:
    """Writes a finished checkpoint that can start a run: parameters without rule state, at the first version.

    Raises:
        ConfigurationError: the folder is in use or cannot be written.
    """
    layout = build_layout(experiment.model, experiment.cluster.ps)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder}: expected an empty folder or one that does not exist")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, experiment, layout, values)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigurationError(f"{folder}: cannot be written: {error.strerror}") from error


def _write(folder: Path, experiment: Experiment, layout: ParameterLayout, values: Mapping[str, NDArray[Any]]) -> None:
    descriptor = FileDescriptor(experiment.name, NODE, layout.hash, "add", (), layout.tensors)
    writer = CheckpointWriter(folder, file_name(NODE), descriptor)
    for shard in layout.shards:
        rows = values[layout.tensors[shard.tensor].name][shard.row_start : shard.row_stop]
        record = ShardRecord(shard.index, shard.tensor, shard.row_start, shard.row_stop, 1, 0, 0, MemoryRecord())
        writer.add(ShardImage(record, np.ascontiguousarray(rows, np.float32).reshape(-1), ()))
    file = writer.finish()
    manifest.finish(
        folder,
        (file,),
        lambda files: Manifest(
            format_version=FORMAT_VERSION,
            job=experiment.name,
            number=0,
            seed=experiment.seed,
            layout_hash=layout.hash,
            servers_expected=experiment.cluster.ps,
            tensors=tuple(ManifestTensor.of(tensor) for tensor in layout.tensors),
            files=files,
            state=RunSnapshot(passes=[], pass_examples=0),
            experiment=experiment,
            written_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )
