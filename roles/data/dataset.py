"""One open data set: its examples, their order in each pass, and their preparation."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.augment.augmenter import Augmenter
from adamctl.roles.data.core import (
    FILE_ORDER,
    SKIPPED,
    Indices,
    Range,
    pass_order,
    plan_cache,
    translation_problem,
)
from adamctl.roles.data.decode import ExampleCache
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.ownership import Ownership, Share, blocks_of
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Labels,
    Source,
    groups_of,
    keeps_examples,
    target_count,
    targets_of,
)
from adamctl.roles.data.sampling import WeightedPasses, hold_out, weights_of
from adamctl.roles.data.scaling import scaling_for
from adamctl.roles.data.skipping import SkippingSource

_ORDERS_MAX: Final = 4
_OWNERSHIPS_MAX: Final = 16


class OpenDataSet:
    """A source with its splits, scaling and decoded examples. Its methods may be called from several threads.

    Attributes:
        examples: train, validation and test mapped to their counts.
        class_examples: the training examples of each class.
        form: the size and type of one example, which are the source's: bytes stay bytes.
        scaling: what readers make of those values before they train on them.
        augmenter: what each pass does to training examples.
    """

    def __init__(self, name: str, config: DataConfig, source: Source, seed: int, budget_bytes: int) -> None:
        """`budget_bytes`: memory for decoded examples.

        Raises:
            ConfigurationError: there is nothing to train on, or these examples cannot be translated.
        """
        problem = translation_problem(config.translate, source.example_shape)
        if problem is not None:
            raise ConfigurationError(f"data.translate = {config.translate}: {problem}")
        self.name = name
        self.config = config
        self._skipping = SkippingSource(source) if config.on_error == "skip" else None
        source = self._skipping or source
        self.source = source
        self.seed = seed
        self.form = ExampleForm(prod(source.example_shape), source.dtype.name, target_count(source))
        self.classes = source.classes
        counts = {split: len(source.labels(split)) for split in FILE_SPLITS}
        train, validation = hold_out(source, config, seed)
        if not len(train):
            raise ConfigurationError(f"expected training examples in {config.source!r}, found none")
        self._members: dict[str, tuple[FileSplit, Indices]] = {
            "train": ("train", train),
            "validation": ("train", validation),
            "test": ("test", np.arange(counts["test"], dtype=np.int64)),
        }
        of_classes = np.bincount(source.labels("train")[train], minlength=len(self.classes))[: len(self.classes)]
        self.class_examples: tuple[int, ...] = tuple(of_classes.tolist())
        weights = weights_of(config, source, train)
        self._passes = None if weights is None else WeightedPasses(train, source.labels("train"), weights, seed)
        self.examples = {split: len(indices) for split, (_, indices) in self._members.items()}
        self.augmenter = Augmenter(
            config.augment, source.example_shape, source.dtype, seed, 0, source.value_max, config.translate,
            config.features.bands if source.format == "audio" else 0,
        )  # fmt: skip
        self.scaling = scaling_for(config.scale, source, train)
        self.caches: dict[FileSplit, ExampleCache] = {}
        for split in FILE_SPLITS:
            plan = plan_cache(
                counts[split],
                self.form.example_bytes,
                resident=keeps_examples(source),
                budget_bytes=budget_bytes,
            )
            budget_bytes -= plan.size_bytes
            self.caches[split] = ExampleCache(plan, source, split)
        self._orders: OrderedDict[tuple[str, int], Indices] = OrderedDict()
        self._orders_lock = threading.Lock()  # guards the two below
        self._ownerships: OrderedDict[tuple[FileSplit, tuple[str, ...]], Ownership] = OrderedDict()
        self._shared_by: dict[FileSplit, tuple[str, ...]] = {}
        self._blocks = {split: blocks_of(source, split) for split in FILE_SPLITS}
        self.read_at_s = time.monotonic()

    @property
    def size_bytes(self) -> int:
        """Memory that it may use at most."""
        return self.source.resident_bytes + sum(cache.plan.size_bytes for cache in self.caches.values())

    @property
    def held_bytes(self) -> int:
        """Memory that it uses now."""
        return self.source.resident_bytes + sum(cache.filled_bytes for cache in self.caches.values())

    def order(self, split: str, pass_number: int) -> Indices:
        """Returns the draws of a split in the order of a pass; the last few are remembered.

        A draw is a file index, plus a multiple of the file's examples where a pass repeats it (`WeightedPasses`).
        """
        with self._orders_lock:
            order = self._orders.get((split, pass_number))
            if order is None:
                members = self._members[split][1]
                if split == "train" and self._passes is not None:
                    order = self._passes.order(pass_number)
                else:
                    order = members[pass_order(len(members), self.seed, pass_number)]
                self._orders[split, pass_number] = order
                if len(self._orders) > _ORDERS_MAX:
                    self._orders.popitem(last=False)
            self._orders.move_to_end((split, pass_number))
            return order

    def labels(self, split: str) -> Labels:
        """Returns the labels of a split in the order of its files."""
        file_split, members = self._members[split]
        return self.source.labels(file_split)[members]

    def groups(self, split: str) -> Indices | None:
        """Returns which examples of a split belong together, in the order of its files, as `groups_of` says."""
        file_split, members = self._members[split]
        groups = groups_of(self.source, file_split)
        return None if groups is None else groups[members]

    def positions_of(self, wanted: Range, share: Share) -> Indices:
        """Returns the positions in a range, ascending, of the examples that a share of it has."""
        split, indices = self._files_of(
            self.order(wanted.split, wanted.pass_number)[wanted.start : wanted.stop], wanted
        )
        rows: Indices | None = None
        if share.rows:
            rows = np.frombuffer(share.rows, np.int32).astype(np.int64)
            indices = indices[rows]
        ownership = self._ownership(split, share)
        found = ownership.part(self._blocks[split].of(indices), share.server)
        return found if rows is None else rows[found]

    def _ownership(self, split: FileSplit, share: Share) -> Ownership:
        """Returns who owns what among a share's servers; the cache learns what is this one's when they change."""
        with self._orders_lock:
            ownership = self._ownerships.get((split, share.servers))
            if ownership is None:
                ownership = self._ownerships[split, share.servers] = Ownership(f"{self.name}/{split}", share.servers)
                if len(self._ownerships) > _OWNERSHIPS_MAX:
                    self._ownerships.popitem(last=False)
            if self._shared_by.get(split) != share.servers and self.caches[split].plan.form == "part":
                examples = len(self.source.labels(split))
                owned = np.zeros(examples, np.bool_)
                owned[ownership.part(self._blocks[split].of(np.arange(examples)), share.server)] = True
                self.caches[split].own(owned)
            self._shared_by[split] = share.servers
            return ownership

    def _files_of(self, draws: Indices, wanted: Range) -> tuple[FileSplit, Indices]:
        """Returns the file split that a range is of, and the file indices of its draws."""
        split = self._members[wanted.split][0]
        return split, draws if self._passes is None else draws % len(self.source.labels(split))

    def gather(
        self, wanted: Range, images: NDArray[Any], labels: NDArray[Any], positions: Indices | None = None
    ) -> None:
        """Writes a range into `images` [n, elements], C-contiguous, not scaled, and `labels`, both as `form` says.

        With `positions` [n], only the examples at these places of the range.

        Raises:
            DamagedDataError: a file cannot be decoded, and `data.on_error` does not say to skip it. A skipped
                example has the label SKIPPED.

        In a shuffled pass over the training split each example is changed as the augmenter says; one that comes again
        in a pass is changed otherwise.
        """
        draws = self.order(wanted.split, wanted.pass_number)[wanted.start : wanted.stop]
        if positions is not None:
            draws = draws[positions]
        file_split, indices = self._files_of(draws, wanted)
        self.caches[file_split].gather(indices, images)
        if self.augmenter.changes and wanted.split == "train" and wanted.pass_number != FILE_ORDER:
            self.augmenter.apply(images, draws, wanted.pass_number)
        targets = targets_of(self.source, file_split)
        known = self.source.labels(file_split) if targets is None else targets
        np.take(known, indices, axis=0, out=labels, mode="clip")
        if self._skipping is not None:
            labels[self._skipping.damaged(file_split, indices)] = SKIPPED if targets is None else np.nan

    def fill_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks with which the source prepares examples before they are requested; most have none."""
        tasks: list[Callable[[], None]] = getattr(self.source, "fill_tasks", list)()
        return tasks
