"""Real checkpoints without a run: files as servers write them, a manifest as the coordinator does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig
from adamctl.launch.run_folder import create_run_folder
from adamctl.model.description import Conv2D, Dense, MaxPool2D, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.model.placement import place_buckets
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import Manifest, ManifestTensor
from adamctl.roles.coordinator.core.events import RunSnapshot
from adamctl.roles.coordinator.core.progress import EvaluationResult
from adamctl.roles.manifest_bytes import FORMAT_VERSION
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage, ShardRecord, file_name
from adamctl.roles.ps.core.exactly_once import MemoryRecord

SMALL = Model((6, 6, 2), (Conv2D(3, 3, activation="relu"), MaxPool2D(2), Dense(5, "tanh"), Softmax(4)))
PASS_EXAMPLES = 96


def make_experiment(model: Model = SMALL, servers: int = 2) -> Experiment:
    optimizer = OptimizerConfig(type="momentum", lr=0.1)
    return Experiment(name="small", model=model, optimizer=optimizer, cluster=ClusterConfig(ps=servers))


def values_of(experiment: Experiment, seed: int = 1) -> dict[str, np.ndarray]:
    """Random values of every tensor by name."""
    generator = np.random.default_rng(seed)
    tensors = build_layout(experiment.model, 1).tensors
    return {tensor.name: generator.standard_normal(tensor.shape).astype(np.float32) for tensor in tensors}


def write_checkpoint(
    folder: Path,
    experiment: Experiment,
    values: Mapping[str, np.ndarray],
    *,
    number: int = 1,
    passes: int = 1,
    complete: bool = False,
    written_at: str = "2026-01-02T03:04:05+00:00",
) -> Path:
    """Writes a whole checkpoint of the experiment's servers; the momentum of each element is half of it."""
    layout = build_layout(experiment.model, experiment.cluster.ps)
    servers = [f"ps-{index}" for index in range(experiment.cluster.ps)]
    placement = place_buckets(layout, "small", servers)
    files = []
    for server in servers:
        descriptor = FileDescriptor("small", server, layout.hash, "momentum", ("velocity",), layout.tensors)
        writer = CheckpointWriter(folder, file_name(server), descriptor)
        for shard in layout.shards:
            if placement[layout.bucket_of_shard[shard.index]] == server:
                part = values[layout.tensors[shard.tensor].name][shard.row_start : shard.row_stop].ravel()
                record = ShardRecord(
                    shard.index, shard.tensor, shard.row_start, shard.row_stop, 1, 7, 7, MemoryRecord()
                )
                writer.add(ShardImage(record, part, [part / 2]))
        files.append(writer.finish())
    result = EvaluationResult(passes=passes, progress=0.5, train_seconds=1.0, split="test", top1=0.75, loss=0.5)
    snapshot = RunSnapshot(
        passes=[], pass_examples=PASS_EXAMPLES, examples=passes * PASS_EXAMPLES, evaluations=[result], checkpoint=number
    )
    manifest.finish(
        folder,
        files,
        lambda entries: Manifest(
            format_version=FORMAT_VERSION,
            job="small",
            number=number,
            seed=experiment.seed,
            layout_hash=layout.hash,
            servers_expected=experiment.cluster.ps,
            tensors=tuple(ManifestTensor.of(tensor) for tensor in layout.tensors),
            files=entries,
            state=snapshot,
            experiment=experiment,
            complete=complete,
            written_at=written_at,
        ),
    )
    return folder


def make_run(base: Path, count: int = 1, experiment: Experiment | None = None) -> Path:
    """A run folder with `count` checkpoints, one after each pass; the last has nothing left to train."""
    experiment = experiment or make_experiment()
    folder = create_run_folder(base, experiment.name)
    (folder / "experiment.toml").touch()
    for number in range(1, count + 1):
        path = manifest.checkpoint_folder(folder / "checkpoints", number)
        values = values_of(experiment, number)
        write_checkpoint(path, experiment, values, number=number, passes=number, complete=number == count)
    return folder


def flip(path: Path, position: int) -> None:
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 16
    path.write_bytes(content)
