"""A data set visited in block order: its splits, its order, and what is held of it in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import CachePlan, Indices, Range
from adamctl.roles.data.order.sampling import weights_of
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Source, is_sequential, keeps_examples
from adamctl.roles.data.scaling import STATISTICS_EXAMPLES_MAX
from adamctl.roles.data.sets.decode import ExampleCache
from adamctl.roles.data.streaming.blocks import (
    sample_of,
    shared_out,
    split_blocks,
    window_problem,
)
from adamctl.roles.data.streaming.windows import Owned, WindowCache, frames_of

_log = logging.getLogger("adamctl.data")


class BlockVisits:
    """The examples of a source in block order. Thread-safe.

    A source that keeps its values in memory is copied from; of others, the blocks that are needed are kept in memory.
    """

    def __init__(
        self, config: DataConfig, source: Source, seed: int, budget_bytes: int, share_bytes: int | None = None
    ) -> None:
        """
        Args:
            budget_bytes: memory for examples that no other data set uses.
            share_bytes: what it would have alone; None: as much as it needs.

        Raises:
            ConfigurationError: a window does not fit into `share_bytes`, the source's blocks are wrong, or its passes
                cannot be drawn as `DataConfig.sampling` says.
        """
        self._source = source
        self._splits = split_blocks(source, config.validation, seed, config.window_blocks)
        self._shared: Indices = np.concatenate([shared_out(source, blocks) for blocks in self._splits.values()])
        self.examples = {split: blocks.examples for split, blocks in self._splits.items()}
        if config.sampling != "all" and self.examples["train"]:
            train = self._splits["train"].members()
            weights = weights_of(config, source, train)
            assert weights is not None
            self._splits["train"].weigh(source.labels("train")[train], weights)
        self.forms: dict[str, str] = dict.fromkeys(FILE_SPLITS, "none" if keeps_examples(source) else "windows")
        self.whole_ranges = True
        self._cache: WindowCache | None = None
        self._kept: dict[FileSplit, ExampleCache] = {}  # of a source that keeps its examples: they are only checked
        if keeps_examples(source):
            self._kept = {split: ExampleCache(CachePlan("none", 0, 0), source, split) for split in FILE_SPLITS}
        if self._kept or not self.examples["train"]:
            return
        windows = frames_of(self._splits, source).window_bytes(self._splits["train"], config.window_blocks)
        room_bytes = windows[-1] if share_bytes is None else share_bytes
        if problem := window_problem(windows, room_bytes, config.window_blocks, source.origin):
            raise ConfigurationError(problem)
        if windows[-1] > budget_bytes:
            _log.warning(
                "%s: no memory left for a window of %d bytes; its examples are read from the files one by one",
                source.origin,
                windows[-1],
            )
        self._cache = WindowCache(source, self._splits, config.window_blocks, budget_bytes)

    def file_split(self, split: str) -> FileSplit:
        """Returns the part of the files that a split is in."""
        return self._splits[split].file_split

    def members(self, split: str) -> Indices:
        """Returns the file indices of a split, ascending."""
        return self._splits[split].members()

    def draws(self, wanted: Range) -> Indices:
        """Returns the draws [n] of a range: file indices, plus a multiple of the file's examples for repeats."""
        file_examples = len(self._source.labels(self.file_split(wanted.split)))
        return self._splits[wanted.split].draws(wanted.pass_number, wanted.start, wanted.stop, file_examples)

    def blocks_of(self, wanted: Range) -> Indices:
        """Returns what servers share out, [n]: the blocks of a range's examples, or files that are fetched whole."""
        places = self._splits[wanted.split].find(wanted.pass_number, wanted.start, wanted.stop)
        blocks = np.concatenate([place.blocks for place in places]) if places else np.empty(0, np.int64)
        shared: Indices = self._shared[blocks]
        return shared

    def sample(self) -> Indices:
        """Returns the file indices of the training examples that statistics are taken of."""
        return sample_of(self._splits["train"], STATISTICS_EXAMPLES_MAX, sequential=is_sequential(self._source))

    def gather(self, wanted: Range, images: NDArray[Any], positions: Indices | None = None) -> None:
        """Writes a range, or those at `positions` of it, into `images` [n, elements] of the source's type.

        Raises:
            DamagedDataError: a file cannot be read, or a value is not finite.
        """
        if self._cache is not None:
            self._cache.gather(wanted, images, positions)
            return
        indices = self.draws(wanted) % len(self._source.labels(self.file_split(wanted.split)))
        indices = indices if positions is None else indices[positions]
        self._kept[self.file_split(wanted.split)].gather(indices, images)

    def own(self, owned: Owned) -> None:
        """Says which blocks this server reads for windows, from now on; all of them until then."""
        if self._cache is not None:
            self._cache.own(lambda blocks: blocks[self._is_owned(blocks, owned)])

    def _is_owned(self, blocks: Indices, owned: Owned) -> NDArray[np.bool_]:
        shared = self._shared[blocks]
        return np.isin(shared, owned(np.unique(shared)))

    def ahead_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks that read what is needed next."""
        return [] if self._cache is None else self._cache.ahead_tasks()

    @property
    def size_bytes(self) -> int:
        """Memory that it may use at most."""
        return 0 if self._cache is None else self._cache.size_bytes

    @property
    def held_bytes(self) -> int:
        """Memory of the examples that are held now."""
        return 0 if self._cache is None else self._cache.held_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the examples that the source was asked for, as they are in memory."""
        caches = self._kept.values() if self._cache is None else (self._cache,)
        example_bytes = prod(self._source.example_shape) * self._source.dtype.itemsize
        return sum(cache.loaded_examples for cache in caches) * example_bytes
