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
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Source
from adamctl.roles.data.sampling import WeightedPasses, hold_out, weights_of
from adamctl.roles.data.scaling import scaling_for
from adamctl.roles.data.skipping import SkippingSource

_ORDERS_MAX: Final = 4


class OpenDataSet:
    """A source with its splits, scaling and decoded examples. Its methods may be called from several threads.

    Attributes:
        examples: train, validation and test mapped to their counts.
        form: the size and type of one example, which are the source's: bytes stay bytes.
        scaling: what readers make of those values before they train on them.
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
        self.form = ExampleForm(prod(source.example_shape), source.dtype.name)
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
        weights = weights_of(config, source, train)
        self._passes = None if weights is None else WeightedPasses(train, source.labels("train"), weights, seed)
        self.examples = {split: len(indices) for split, (_, indices) in self._members.items()}
        self._augmenter = Augmenter(
            config.augment, source.example_shape, source.dtype, seed, 0, source.value_max, config.translate
        )  # fmt: skip
        self.scaling = scaling_for(config.scale, source, train)
        self.caches: dict[FileSplit, ExampleCache] = {}
        for split in FILE_SPLITS:
            plan = plan_cache(
                counts[split],
                self.form.example_bytes,
                resident=source.resident,
                budget_bytes=0 if getattr(source, "keeps_examples", False) else budget_bytes,
            )
            budget_bytes -= plan.size_bytes
            self.caches[split] = ExampleCache(plan, source, split)
        self._orders: OrderedDict[tuple[str, int], Indices] = OrderedDict()
        self._orders_lock = threading.Lock()
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

    def gather(self, wanted: Range, images: NDArray[Any], labels: NDArray[np.int32]) -> None:
        """Writes a range into `images` [n, elements], C-contiguous and as `form` says, and `labels` [n]. Not scaled.

        Raises:
            DamagedDataError: a file cannot be decoded, and `data.on_error` does not say to skip it. A skipped
                example has the label SKIPPED.

        In a shuffled pass over the training split each example is changed as the augmenter says; one that comes again
        in a pass is changed otherwise.
        """
        draws = self.order(wanted.split, wanted.pass_number)[wanted.start : wanted.stop]
        file_split = self._members[wanted.split][0]
        indices = draws if self._passes is None else draws % len(self.source.labels(file_split))
        self.caches[file_split].gather(indices, images)
        if self._augmenter.changes and wanted.split == "train" and wanted.pass_number != FILE_ORDER:
            self._augmenter.apply(images, draws, wanted.pass_number)
        np.take(self.source.labels(file_split), indices, out=labels, mode="clip")
        if self._skipping is not None:
            labels[self._skipping.damaged(file_split, indices)] = SKIPPED

    def fill_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks with which the source prepares examples before they are requested; most have none."""
        tasks: list[Callable[[], None]] = getattr(self.source, "fill_tasks", list)()
        return tasks
