"""The parameters of a replica that has no servers: its own weights, which the job's rule updates in place.

That is how one machine trains in Adam 4.3.1 and 4.4.1 and on the reference line of its figure 11. With several
partitions each member holds the shards that it computes with; members that share a tensor find the same sums, and apply
them in the same order, so they hold the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from adamctl.config.experiment import Experiment
from adamctl.kernels.native import address_of
from adamctl.kernels.operation import Array
from adamctl.kernels.rules import Rule, make_rule
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter, ShardEncoder
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage, ShardRecord, file_name
from adamctl.roles.ps.client.remote_checkpoint import Start
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.roles.ps.initial_values import build_shards
from adamctl.roles.ps.options import CHECKPOINT_ROOT
from adamctl.roles.rooted import Roots
from adamctl.wire.messages import CheckpointFile

FIRST_EPOCH = 1
PORTION_BYTES = 32 << 20
"""Shards that are encoded at once for whoever fetches a file of a checkpoint."""


def checkpoint_roots(options: Mapping[str, Any]) -> Roots:
    """Returns the folders in which checkpoints may be written and read, from the flags of who holds parameters."""
    return Roots(options.get("checkpoint_root") or (CHECKPOINT_ROOT,), "--checkpoint-root")


class OwnParameters:
    """See the module. All methods block; only one thread at a time may be in any of them.

    Attributes:
        pushes: how many gradients have been applied since the job began.
        owned: the shards that this member writes to checkpoints; together members write each shard once.
    """

    def __init__(
        self, experiment: Experiment, layout: ParameterLayout, held: Collection[int], owned: Collection[int]
    ) -> None:
        """`held`: the shards that this member computes with."""
        self._layout, self._seed = layout, experiment.seed
        self._held, self.owned = tuple(sorted(held)), tuple(sorted(owned))
        self._rule: Rule = make_rule(experiment.optimizer.rule)
        largest = max((layout.shards[index].size for index in self._held), default=0)
        self._spare = np.empty(largest, np.float32)
        self._values: dict[int, Array] = {}
        self._state: dict[int, list[Array]] = {}
        self.pushes = 0

    @property
    def updates_per_push(self) -> int:
        """Parameters that this member counts as updated by each push: those that it owns."""
        return sum(self._layout.shards[index].size for index in self.owned)

    def begin(self, weights: Array, restore: Start, parameters_only: bool = False) -> None:
        """Sets weights to the values of the seed, or of the checkpoint in folder `restore` unless that is "".

        `parameters_only`: rule state begins afresh.

        Raises:
            DamagedDataError: the checkpoint is damaged, or belongs to another model.
        """
        for content in build_shards(self._layout, self._held, self._rule, self._seed, restore, parameters_only):
            shard = self._layout.shards[content.index]
            values = weights[shard.offset : shard.offset + shard.size]
            values[...] = content.values
            self._values[content.index], self._state[content.index] = values, content.state
            self.pushes = max(self.pushes, content.pushes)

    def apply(self, gradient: Array, learning_rate: float) -> list[int]:
        """Applies a gradient, flat like the weights, while threads read them (Adam 3.2.2); counts it as a push.

        Returns the shards that are unchanged because their gradient or result is not finite.
        """
        self.pushes += 1
        if not self._rule.is_compiled:
            return self._apply_each(gradient, learning_rate)
        address = address_of(gradient)
        shards: list[Any] = [
            (
                self._values[index],
                self._values[index],
                self._state[index],
                [address + self._layout.shards[index].offset * ELEMENT_BYTES],
                [learning_rate],
            )
            for index in self._held
        ]
        refused = self._rule.prepare_shards(shards, self._spare)()
        return [index for index, bad in zip(self._held, refused, strict=True) if bad]

    def _apply_each(self, gradient: Array, learning_rate: float) -> list[int]:
        refused = []
        for index in self._held:
            shard, values = self._layout.shards[index], self._values[index]
            part = gradient[shard.offset : shard.offset + shard.size]
            if np.isfinite(part).all():
                self._rule.apply(values, values, self._state[index], part, learning_rate)
            else:
                refused.append(index)
        return refused

    def copy(self, into: Array) -> None:
        """Copies the values of all held shards."""
        for index, values in self._values.items():
            shard = self._layout.shards[index]
            into[shard.offset : shard.offset + shard.size] = values

    def portions(self) -> list[tuple[int, ...]]:
        """Returns the owned shards in portions of at most PORTION_BYTES of values and state, or one shard."""
        portions: list[tuple[int, ...]] = []
        filled_bytes = PORTION_BYTES
        for index in self.owned:
            size_bytes = ELEMENT_BYTES * self._layout.shards[index].size * (1 + len(self._rule.state_names))
            if filled_bytes + size_bytes > PORTION_BYTES:
                portions.append(())
                filled_bytes = 0
            portions[-1] = (*portions[-1], index)
            filled_bytes += size_bytes
        return portions

    def encoder(self, job: str, node: str, write: Callable[[bytes | memoryview], object]) -> ShardEncoder:
        """Begins this member's file of a checkpoint; `write` takes its bytes."""
        return ShardEncoder(file_name(node), self._descriptor(job, node), write)

    def _descriptor(self, job: str, node: str) -> FileDescriptor:
        rule = self._rule
        return FileDescriptor(job, node, self._layout.hash, rule.name, tuple(rule.state_names), self._layout.tensors)

    def encode(self, writer: ShardEncoder, shards: Iterable[int], exclusive: AbstractContextManager[object]) -> None:
        """Adds shards to a file, in the form that servers write (docs/formats/checkpoint.md).

        `exclusive`: entered for each shard; nobody else may be in any method meanwhile. Raises what the writer does.
        """
        for index in shards:
            shard = self._layout.shards[index]
            place = (shard.tensor, shard.row_start, shard.row_stop)
            with exclusive:
                record = ShardRecord(index, *place, FIRST_EPOCH, self.pushes, self.pushes, MemoryRecord())
                writer.add(ShardImage(record, self._values[index], self._state[index]))

    def save(
        self, job: str, node: str, folder: int, exclusive: AbstractContextManager[object]
    ) -> tuple[CheckpointFile, ...]:
        """Writes the owned shards into an open folder; `exclusive`: see `encode`.

        Raises:
            OSError: the folder cannot be written to, or the disk is full; no file is left behind.
        """
        if not self.owned:
            return ()
        writer = CheckpointWriter(folder, file_name(node), self._descriptor(job, node))
        try:
            self.encode(writer, self.owned, exclusive)
            return (writer.finish(),)
        except BaseException:
            writer.abandon()
            raise
