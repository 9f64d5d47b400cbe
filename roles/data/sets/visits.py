"""A data set visited example by example, each from anywhere in its files, in an order drawn by sorting all of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.roles.data.core import Indices, Range, pass_order, plan_cache
from adamctl.roles.data.order.ownership import blocks_of
from adamctl.roles.data.order.sampling import WeightedPasses, hold_out, weights_of
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Source, keeps_examples
from adamctl.roles.data.sets.decode import ExampleCache
from adamctl.roles.data.streaming.windows import Owned

_ORDERS_MAX: Final = 4


class Visits(Protocol):
    """How the examples of one source are divided into splits, ordered, and held in memory. Thread-safe.

    Attributes:
        examples: train, validation and test mapped to their counts.
        forms: train and test mapped to what is kept of them in memory, in one word.
        whole_ranges: a range is best gathered by one call; else by several threads, some examples each.
    """

    examples: dict[str, int]
    forms: dict[str, str]
    whole_ranges: bool

    def file_split(self, split: str) -> FileSplit:
        """Returns the part of the files that a split is in."""
        ...

    def members(self, split: str) -> Indices:
        """Returns the file indices of a split, ascending."""
        ...

    def draws(self, wanted: Range) -> Indices:
        """Returns the draws [n] of a range: file indices, plus a multiple of the file's examples for repeats."""
        ...

    def blocks_of(self, wanted: Range) -> Indices:
        """Returns the numbers [n] of the blocks that the examples of a range are in; servers share them out."""
        ...

    def own(self, owned: Owned) -> None:
        """Says which blocks this server reads and keeps, from now on."""
        ...

    def sample(self) -> Indices:
        """Returns the file indices of the training examples that statistics are taken of."""
        ...

    def gather(self, wanted: Range, images: NDArray[Any], positions: Indices | None = None) -> None:
        """Writes a range, or those at `positions` of it, into `images` [n, elements] of the source's type.

        Raises:
            DamagedDataError: a file cannot be read, or a value is not finite.
        """
        ...

    def ahead_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks that read what is needed next."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory that it may use at most."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that it uses now."""
        ...

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the examples that the source was asked for, as they are in memory."""
        ...


class ExampleVisits:
    """The examples of a source in an order of all of them."""

    def __init__(self, config: DataConfig, source: Source, seed: int, budget_bytes: int) -> None:
        """`budget_bytes`: memory for decoded examples.

        Raises:
            ConfigurationError: the passes cannot be drawn as `DataConfig.sampling` says.
        """
        self._source = source
        self._seed = seed
        labels = source.labels("train")
        self._train, validation = hold_out(source, config, seed)
        self._members: dict[str, tuple[FileSplit, Indices]] = {
            "train": ("train", self._train),
            "validation": ("train", validation),
            "test": ("test", np.arange(len(source.labels("test")), dtype=np.int64)),
        }
        self.examples = {split: len(indices) for split, (_, indices) in self._members.items()}
        weights = weights_of(config, source, self._train) if len(self._train) else None
        self._passes = None if weights is None else WeightedPasses(self._train, labels, weights, seed)
        example_bytes = prod(source.example_shape) * source.dtype.itemsize
        self._caches: dict[FileSplit, ExampleCache] = {}
        for split in FILE_SPLITS:
            plan = plan_cache(
                len(source.labels(split)), example_bytes, resident=keeps_examples(source), budget_bytes=budget_bytes
            )
            budget_bytes -= plan.size_bytes
            self._caches[split] = ExampleCache(plan, source, split)
        self.forms: dict[str, str] = {split: cache.plan.form for split, cache in self._caches.items()}
        self.whole_ranges = source.resident
        self._example_bytes = example_bytes
        self._blocks = {split: blocks_of(source, split) for split in FILE_SPLITS}
        self._orders: OrderedDict[tuple[str, int], Indices] = OrderedDict()
        self._orders_lock = threading.Lock()

    def file_split(self, split: str) -> FileSplit:
        return self._members[split][0]

    def members(self, split: str) -> Indices:
        return self._members[split][1]

    def draws(self, wanted: Range) -> Indices:
        return self._order(wanted.split, wanted.pass_number)[wanted.start : wanted.stop]

    def blocks_of(self, wanted: Range) -> Indices:
        return self._blocks[self.file_split(wanted.split)].of(self._file_indices(wanted))

    def own(self, owned: Owned) -> None:
        """Nothing is read before it is asked for; but where there is not room for all, others' examples give way."""
        for split, cache in self._caches.items():
            if cache.plan.form == "part":
                blocks = self._blocks[split].of(np.arange(len(self._source.labels(split))))
                cache.own(np.isin(blocks, owned(np.unique(blocks))))

    def sample(self) -> Indices:
        return self._train

    def gather(self, wanted: Range, images: NDArray[Any], positions: Indices | None = None) -> None:
        indices = self._file_indices(wanted)
        self._caches[self.file_split(wanted.split)].gather(indices if positions is None else indices[positions], images)

    def ahead_tasks(self) -> list[Callable[[], None]]:
        return []

    @property
    def size_bytes(self) -> int:
        return sum(cache.plan.size_bytes for cache in self._caches.values())

    @property
    def held_bytes(self) -> int:
        return sum(cache.filled_bytes for cache in self._caches.values())

    @property
    def loaded_bytes(self) -> int:
        return sum(cache.loaded_examples for cache in self._caches.values()) * self._example_bytes

    def _file_indices(self, wanted: Range) -> Indices:
        draws = self.draws(wanted)
        return draws if self._passes is None else draws % len(self._source.labels(self.file_split(wanted.split)))

    def _order(self, split: str, pass_number: int) -> Indices:
        """Returns the draws of a split in the order of a pass; the last few are remembered."""
        with self._orders_lock:
            order = self._orders.get((split, pass_number))
            if order is None:
                members = self._members[split][1]
                if split == "train" and self._passes is not None:
                    order = self._passes.order(pass_number)
                else:
                    order = members[pass_order(len(members), self._seed, pass_number)]
                self._orders[split, pass_number] = order
                if len(self._orders) > _ORDERS_MAX:
                    self._orders.popitem(last=False)
            self._orders.move_to_end((split, pass_number))
            return order
