"""Applies batches to shards outside the event loop, in threads that each own a range of shards (Adam 3.3.1).

A batch is all queued updates of one shard. Gradients are applied in one pass over each shard, and if possible to all
shards in one call; factors of adjacent shards become one product.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import groupby
from queue import SimpleQueue
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from adamctl.kernels.array import FLOAT32
from adamctl.kernels.backend import choose
from adamctl.kernels.numeric.convert import Narrow, all_finite_narrow, widened
from adamctl.kernels.numeric.finite import all_finite, finite_check
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.factors import FactorUpdate, ShardUpdate, is_fused
from adamctl.kernels.rules.narrow import NarrowUpdate
from adamctl.kernels.rules.rule import Rule
from adamctl.kernels.threads import Binder
from adamctl.roles.ps.apply.batch_buffers import Prepared, rule_for
from adamctl.roles.ps.apply.fused import PlainGroup, Together, plain_groups
from adamctl.roles.ps.apply.load_meter import Work
from adamctl.roles.ps.apply.sum_parts import StepSums
from adamctl.roles.ps.apply.update_sources import factors_of, part_of
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.instructions import Apply, Compute
from adamctl.roles.ps.core.push import Source, Update
from adamctl.roles.ps.core.shard import Batch, Shard
from adamctl.wire.constants import ErrorCode, UpdateKind

_FACTORS = int(UpdateKind.FACTORS)
_FACTORS_NOT_FINITE = "the factors hold NaN or infinite values"
PRODUCT_BYTES_MAX = 4 << 20  # of one product of factors, unless one shard alone is larger

log = logging.getLogger(__name__)


class Applier:
    """What one apply thread does with batches; also usable without a thread."""

    def __init__(self, done: Work | None = None) -> None:
        """`done` counts what was applied and how long it took."""
        self._done = done or Work()
        self._factors = FactorUpdate()
        self._begun: tuple[object, object] = (None, None)  # the push and the activations last passed to `_factors`
        self._together = Together()
        self._narrow = NarrowUpdate()
        self._all_finite: Callable[[Array], bool] | None = None  # once kernels are loaded
        self._steps = StepSums()
        self._vectors = VectorApplier()
        self._wide = (np.empty(0, np.float32), np.empty(0, np.float32))

    def carry_out(self, instruction: Apply | Compute) -> None:
        """Does what an instruction says, and sets what its batches say their thread sets."""
        if isinstance(instruction, Compute):
            self._vectors.carry_out(instruction.batches)
        else:
            self.apply(instruction.job.rule, instruction.batches)

    def apply(self, rule: Rule, batches: list[Batch]) -> None:
        """Applies batches of one job; sets each update's code and each batch's `applied`, `target`, `new_state`."""
        plain: list[PlainGroup] = []
        left = batches
        try:
            plain, left = plain_groups(rule, batches)
        except Exception:  # one shard's failure must not affect the others
            log.exception("updates of %d shards could not be grouped; applying them one by one", len(batches))
        for group in plain:
            left += self._apply_plain(rule, group)
        self._apply_others(rule, left)

    def _apply_plain(self, rule: Rule, group: PlainGroup) -> list[Batch]:
        """Applies a group in one call; returns the batches whose updates must be handled one by one."""
        began_s = time.perf_counter()
        try:
            apply = self._together.prepare(rule, group)
        except Exception:
            log.exception("updates of %d shards could not be fused; applying them one by one", len(group.batches))
            return group.batches
        try:
            left = apply()
        except Exception:
            log.exception("updates of %d shards could not be applied", len(group.batches))
            _fail(group.batches)
            return []
        self._done.added += sum(batch.applied * batch.shard.size for batch in group.batches)
        self._done.adding_s += time.perf_counter() - began_s
        return left

    def _apply_others(self, rule: Rule, batches: list[Batch]) -> None:
        stop, done = 0, self._done
        for position, batch in enumerate(batches):
            if position < stop:
                continue
            stop, began_s = position + 1, time.perf_counter()
            try:
                if _has_factors(batch):
                    stop = _group_stop(batches, position, None if is_fused(rule) else PRODUCT_BYTES_MAX)
                    self._apply_group(rule, batches[position:stop])
                    done.multiplied += sum(_multiplied(one) for one in batches[position:stop])
                    done.multiplying_s += time.perf_counter() - began_s
                else:
                    self._apply_alone(rule, batch)
                    done.added += batch.applied * batch.shard.size
                    done.adding_s += time.perf_counter() - began_s
            except Exception:
                log.exception("updates of shard %d could not be applied", batch.shard.index)
                _fail(batches[position:stop])

    def _apply_group(self, rule: Rule, group: list[Batch]) -> None:
        """Applies updates of adjacent shards with the same sources: one product per update for all of them.

        A rule that sums the product in tiles needs no memory for it, and takes any number of shards together.
        """
        prepared = [Prepared(rule, batch) for batch in group]
        for number, shared in enumerate(group[0].updates):
            if _is_factors(shared):
                self._apply_factors(rule, number, prepared)
                continue
            for work in prepared:
                update = work.batch.updates[number]
                gradient = None if update.code or update.superseded else self._gradient(update, work.batch)
                if gradient is not None:
                    work.apply(_used(update, rule), [gradient], [update.push.learning_rate], self._narrow)
        for work in prepared:
            work.finish()

    def _apply_factors(self, rule: Rule, number: int, group: list[Prepared]) -> None:
        """Applies one update in factors to all shards of a group for which it is not refused."""
        updates = [work.batch.updates[number] for work in group]
        places = [place for place, update in enumerate(updates) if not (update.code or update.superseded)]
        if not places:
            return
        if not self._begin(rule, updates[0].source, [work.batch.shard for work in group]):
            for place in places:
                updates[place].code, updates[place].message = ErrorCode.NOT_FINITE, _FACTORS_NOT_FINITE
            return
        shards: list[ShardUpdate] = []
        for place in places:
            work = group[place]
            work.batch.begun = True
            shards.append((place, work.current, work.target, work.state))
        self._factors.apply(rule, shards, updates[0].push.learning_rate)
        for place in places:
            group[place].current = group[place].target
            group[place].batch.applied += 1

    def _begin(self, rule: Rule, source: Source | None, shards: list[Shard]) -> bool:
        """Prepares factors for adjacent shards; returns False if they are not finite."""
        assert source is not None
        errors, activations = self._wide_factors(*factors_of(source))
        finite = source.push.finite
        where = (source.header.activations_offset, activations.size, source.header.dtype)
        if where not in finite:
            finite[where] = all_finite(activations)
        if source.finite is None:
            source.finite = finite[where] and all_finite(errors)
        if source.finite:
            first = source.header.row_start
            bounds = [*(shard.row_start - first for shard in shards), shards[-1].row_stop - first]
            same = self._begun[0] is finite and self._begun[1] == where  # `finite` is this push's alone
            self._begun = (None, None)
            self._factors.begin(rule, errors, activations, bounds, same=same)
            self._begun = (finite, where)
        return source.finite

    def _apply_alone(self, rule: Rule, batch: Batch) -> None:
        """Applies gradients or deltas to one shard; consecutive ones of the same kind in one pass over its values."""
        if len(batch.updates) == 1 and batch.shard.steps is None:
            self._apply_one(rule, batch, batch.updates[0])
            return
        work = Prepared(rule, batch)
        if batch.shard.steps is None:
            found = [
                (_used(update, rule), gradient, update.push.learning_rate)
                for update in batch.updates
                if not update.code and (gradient := self._gradient(update, batch)) is not None
            ]
        else:
            whole = self._steps.of(batch.updates, lambda update: self._gradient(update, batch))
            found = [(_used(update, rule), gradient, update.push.learning_rate) for update, gradient in whole]
        for used, run in groupby(found, key=lambda one: one[0]):
            _, gradients, learning_rates = zip(*run, strict=True)
            work.apply(used, gradients, learning_rates, self._narrow)
        work.finish()

    def _apply_one(self, rule: Rule, batch: Batch, update: Update) -> None:
        """Like `_apply_alone` for a single update, the most frequent case, with less overhead."""
        gradient = None if update.code else self._gradient(update, batch)
        if gradient is not None:
            work = Prepared(rule, batch)
            work.apply(_used(update, rule), (gradient,), (update.push.learning_rate,), self._narrow)

    def _gradient(self, update: Update, batch: Batch) -> Array | Narrow | None:
        """Returns the shard's part of a gradient or delta; refuses the update and returns None if it is not finite."""
        if self._all_finite is None:
            self._all_finite = finite_check(choose())
        gradient = part_of(update, batch)
        if not (self._all_finite if gradient.dtype == FLOAT32 else all_finite_narrow)(gradient):
            update.code, update.message = ErrorCode.NOT_FINITE, "the gradient holds NaN or infinite values"
            return None
        return gradient

    def _wide_factors(self, *factors: Array | Narrow) -> tuple[Array, ...]:
        """Returns factors as float32; 16-bit ones are widened into memory that the next factors reuse."""
        return tuple(
            array if array.dtype == np.float32 else self._widened(place, array) for place, array in enumerate(factors)
        )

    def _widened(self, place: int, array: Narrow) -> Array:
        if self._wide[place].size < array.size:
            wide = np.empty(array.size, np.float32)
            self._wide = (wide, self._wide[1]) if place == 0 else (self._wide[0], wide)
        wide = self._wide[place][: array.size]
        widened(array.reshape(-1), wide)
        return wide.reshape(array.shape)


def _fail(batches: list[Batch]) -> None:
    for batch in batches:
        batch.failed(ErrorCode.INTERNAL, "the server failed while applying; see its log")


def _used(update: Update, rule: Rule) -> Rule:
    assert update.source is not None
    return rule_for(update.source, rule)


def _multiplied(batch: Batch) -> int:
    """Returns how many multiply-adds a batch's factors took."""
    examples = (update.source.header.examples for update in batch.updates if update.source and not update.code)
    return batch.shard.size * sum(examples)


def _has_factors(batch: Batch) -> bool:
    return any([_is_factors(update) for update in batch.updates])  # noqa: C419  a generator costs more


def _is_factors(update: Update) -> bool:
    return update.source is not None and update.source.header.kind == _FACTORS


def _group_stop(batches: list[Batch], start: int, bytes_max: int | None) -> int:
    """Returns the end of the longest run of adjacent shards with the same sources and at most `bytes_max` of values."""
    first = batches[start]
    filled_bytes = 4 * first.shard.size
    stop = start + 1
    while stop < len(batches):
        before, batch = batches[stop - 1], batches[stop]
        adjacent = batch.shard.tensor == first.shard.tensor and batch.shard.row_start == before.shard.row_stop
        filled_bytes += 4 * batch.shard.size
        full = bytes_max is not None and filled_bytes > bytes_max
        if not adjacent or full or len(batch.updates) != len(first.updates):
            break
        if any(ours.source is not theirs.source for ours, theirs in zip(batch.updates, first.updates, strict=True)):
            break
        stop += 1
    return stop


class ApplyInline:
    """Like `ApplyThreads`, but deterministic, on the event loop itself, for clusters inside one thread."""

    def __init__(self, completed: Callable[[Any], None]) -> None:
        self.busy_s = [0.0]
        self.works = (Work(),)
        self._loop = asyncio.get_running_loop()
        self._completed = completed
        self._applier = Applier(*self.works)

    def submit(self, instruction: Apply | Compute) -> None:
        self._applier.carry_out(instruction)
        self._loop.call_soon(self._completed, instruction)

    def stop(self) -> None:
        """Does nothing: there are no threads."""


class ApplyThreads:
    """Threads, each with its own queue, which holds at most one batch per shard.

    Attributes:
        busy_s: seconds that each thread has worked.
        works: what each thread has done.
    """

    def __init__(self, count: int, completed: Callable[[Any], None]) -> None:
        """`completed` is called on the running loop for every instruction that was carried out."""
        self.busy_s = [0.0] * count
        self.works = tuple(Work() for _ in range(count))
        self._loop = asyncio.get_running_loop()
        self._completed = completed
        self._queues: list[SimpleQueue[Apply | Compute | None]] = [SimpleQueue() for _ in range(count)]
        self._binder = Binder(count)
        self._blas_limit = threadpool_limits(1, user_api="blas")
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"apply-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, instruction: Apply | Compute) -> None:
        self._queues[instruction.thread].put(instruction)

    def stop(self) -> None:
        """Ends the threads after their queued work; waits a few seconds for each at most."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(5.0)
        self._blas_limit.restore_original_limits()

    def _work(self, number: int) -> None:
        self._binder.bind(number)
        queue, applier = self._queues[number], Applier(self.works[number])
        while (instruction := queue.get()) is not None:
            began = time.perf_counter()
            try:
                if self._binder.separates:
                    for batch in instruction.batches:
                        batch.bring_home(number)
                applier.carry_out(instruction)
            except Exception:  # before any update was applied: `Applier` handles failures of updates
                log.exception("batches of job %s could not be applied", instruction.job.name)
                for batch in instruction.batches:
                    batch.failed(ErrorCode.INTERNAL, "the server failed before applying; see its log")
            self.busy_s[number] += time.perf_counter() - began
            try:
                self._loop.call_soon_threadsafe(self._completed, instruction)
            except RuntimeError:  # the loop is closed: nothing waits for this any more
                return
            del instruction
