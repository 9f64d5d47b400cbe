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
from adamctl.roles.data.core import FILE_ORDER, SKIPPED, Indices, Range, translation_problem
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.order.ownership import Ownership, Share
from adamctl.roles.data.readers.source import Labels, Source, by_blocks, groups_of
from adamctl.roles.data.readers.targets import target_count, targets_of
from adamctl.roles.data.scaling import scaling_for
from adamctl.roles.data.sets.skipping import SkippingSource
from adamctl.roles.data.sets.visits import ExampleVisits, Visits
from adamctl.roles.data.streaming.visits import BlockVisits
from adamctl.roles.data.streaming.windows import Owned

_OWNERSHIPS_MAX: Final = 16


class OpenDataSet:
    """A source with its splits, scaling and decoded examples. Its methods may be called from several threads.

    Attributes:
        examples: train, validation and test mapped to their counts.
        class_examples: the training examples of each class.
        form: the size and type of one example, which are the source's: bytes stay bytes.
        scaling: what readers make of those values before they train on them.
        augmenter: what each pass does to training examples.
        files_state: what its files were when it was opened (`state_of`); empty: not known.
        readers: the connections that have opened or read it, and are there; guarded by its store.
        read_at_s: when it was last opened or read, on the monotonic clock.
    """

    def __init__(
        self,
        name: str,
        config: DataConfig,
        source: Source,
        seed: int,
        budget_bytes: int,
        share_bytes: int | None = None,
    ) -> None:
        """
        Args:
            budget_bytes: memory for examples that no other data set uses.
            share_bytes: what it would have alone; a set whose windows do not fit into that is refused. None: none is.

        Raises:
            ConfigurationError: there is nothing to train on, these examples cannot be translated, or do not fit.
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
        self.visits: Visits
        if by_blocks(config, source):
            self.visits = BlockVisits(config, source, seed, budget_bytes, share_bytes)
        else:
            self.visits = ExampleVisits(config, source, seed, budget_bytes)
        self.examples = dict(self.visits.examples)
        if not self.examples["train"]:
            raise ConfigurationError(f"expected training examples in {config.source!r}, found none")
        self.augmenter = Augmenter(
            config.augment, source.example_shape, source.dtype, seed, 0, source.value_max, config.translate,
            config.features.bands if source.format == "audio" else 0,
        )  # fmt: skip
        self.scaling = scaling_for(config.scale, source, self.visits.sample())
        self.class_examples = self._count_classes()
        self._ownerships: OrderedDict[tuple[str, ...], Ownership] = OrderedDict()
        self._owned_in: Share | None = None
        self._ownerships_lock = threading.Lock()  # guards the two above
        self.files_state = b""
        self.readers: set[int] = set()
        self.read_at_s = time.monotonic()

    @property
    def skipped(self) -> int:
        """Damaged examples that are left out so far (`data.on_error`)."""
        return 0 if self._skipping is None else self._skipping.skipped

    @property
    def size_bytes(self) -> int:
        """Memory that it may use at most."""
        return self.source.resident_bytes + self.visits.size_bytes

    @property
    def held_bytes(self) -> int:
        """Memory that it uses now."""
        return self.source.resident_bytes + self.visits.held_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes read from files so far: as the source counts them, else those of the values it was asked for."""
        counted = getattr(self.source, "read_bytes", None)
        if counted is not None:
            return int(counted)
        return self.source.stored_bytes if self.source.resident else self.visits.loaded_bytes

    def labels(self, split: str) -> Labels:
        """Returns the labels of a split in the order of its files."""
        return self.source.labels(self.visits.file_split(split))[self.visits.members(split)]

    def groups(self, split: str) -> Indices | None:
        """Returns which examples of a split belong together, in the order of its files, as `groups_of` says."""
        groups = groups_of(self.source, self.visits.file_split(split))
        return None if groups is None else groups[self.visits.members(split)]

    def _count_classes(self) -> tuple[int, ...]:
        labels = self.source.labels("train")
        counts = np.bincount(labels, minlength=len(self.classes))
        held_out = np.bincount(labels[self.visits.members("validation")], minlength=len(counts))
        return tuple((counts - held_out)[: len(self.classes)].tolist())

    def positions_of(self, wanted: Range, share: Share) -> Indices:
        """Returns the positions in a range, ascending, of the examples that a share of it has."""
        blocks, ownership = self.visits.blocks_of(wanted), self._ownership(share.servers)
        if share.rows:  # for this once, in place of another server: who owns what stays as it is
            rows = np.frombuffer(share.rows, np.int32).astype(np.int64)
            return rows[ownership.part(blocks[rows], share.server)]
        self._own(share, lambda numbers: numbers[ownership.part(numbers, share.server)])
        return ownership.part(blocks, share.server)

    def _ownership(self, servers: tuple[str, ...]) -> Ownership:
        with self._ownerships_lock:
            ownership = self._ownerships.get(servers)
            if ownership is None:
                ownership = self._ownerships[servers] = Ownership(self.name, servers)
                if len(self._ownerships) > _OWNERSHIPS_MAX:
                    self._ownerships.popitem(last=False)
            return ownership

    def _own(self, share: Share | None, owned: Owned) -> None:
        """Tells memory what this server owns, when that has changed; without a share it owns all."""
        if self._owned_in == share:
            return
        with self._ownerships_lock:
            if self._owned_in != share:
                self._owned_in = share
                self.visits.own(owned)

    def gather(
        self, wanted: Range, images: NDArray[Any], labels: NDArray[Any], positions: Indices | None = None
    ) -> None:
        """Writes a range into `images` [n, elements], C-contiguous, not scaled, and `labels`, both as `form` says.

        With `positions` [n], ascending, only the examples at these places of the range. In a shuffled pass over the
        training split each example is changed as the augmenter says; one that comes again in a pass is changed
        otherwise.

        Raises:
            DamagedDataError: a file cannot be decoded, and `data.on_error` does not say to skip it. A skipped
                example has the label SKIPPED.
        """
        draws = self.visits.draws(wanted)
        draws = draws if positions is None else draws[positions]
        file_split = self.visits.file_split(wanted.split)
        if positions is None:  # its reader knows of no other server
            self._own(None, lambda numbers: numbers)
        self.visits.gather(wanted, images, positions)
        if self.augmenter.changes and wanted.split == "train" and wanted.pass_number != FILE_ORDER:
            self.augmenter.apply(images, draws, wanted.pass_number)
        targets = targets_of(self.source, file_split)
        known = self.source.labels(file_split) if targets is None else targets
        indices = draws % len(known)
        np.take(known, indices, axis=0, out=labels, mode="clip")
        if self._skipping is not None:
            labels[self._skipping.damaged(file_split, indices)] = SKIPPED if targets is None else np.nan

    def ahead_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks that read and prepare what is needed next."""
        return self.visits.ahead_tasks()

    def fill_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks with which the source prepares examples before they are requested; most have none."""
        tasks: list[Callable[[], None]] = getattr(self.source, "fill_tasks", list)()
        return tasks
