"""One replica's state in memory: weights shared by all threads, and the slots in which gradients accrue.

Every thread reads and writes the weights without locks (Adam 3.2.2). The lock here guards only the assignment of slots,
a few instructions per step. A slot's memory is first written by the thread that owns it, so on a NUMA machine it lies
on that thread's node (`adamctl.kernels.threads`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from adamctl.kernels.backend import Backend
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array, Factors
from adamctl.kernels.partition.accruing import Accruing as FlightAccruing
from adamctl.kernels.partition.accruing import KeptFactors, SlotPlace
from adamctl.kernels.rules.factors import gradient_rows
from adamctl.kernels.segments import Words
from adamctl.kernels.step.network import Context
from adamctl.kernels.step.steps import Accruing
from adamctl.model.layout import ParameterLayout
from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.net.shared_memory import SharedMemory, array_bytes
from adamctl.roles.worker.core.following import Following
from adamctl.roles.worker.core.foresight import Foresight, Momentum, Way
from adamctl.roles.worker.core.slots import Base, Reapply, Slot, SlotCore, StepActions


def slots_in_step(replicas: int) -> int:
    """Returns how many gradients a replica may have, of so many in step.

    The parts of replicas that died are kept beside its own until their step is complete.
    """
    return max(SLOTS_PER_THREAD, replicas + 1)


class Vectors(Protocol):
    """What lays tensors out in flat vectors."""

    @property
    def backend(self) -> Backend: ...

    def views(self, flat: Array) -> list[Array]:
        """Returns one array per tensor of a flat vector."""
        ...


class Replica:
    """Weights, slots and accrued factors of one replica.

    Attributes:
        weights: flat vector of all parameters, shared by all threads.
        fetched: receives a pull before it is installed.
        snapshot: parameters of the current evaluation.
        factor_tensors: indices of the tensors whose factors are kept, to be pushed as such.
        updates_weights: updates the weights by a slot's gradient where there are no servers; None: it is pushed.
    """

    def __init__(
        self,
        network: Vectors,
        layout: ParameterLayout,
        threads: int,
        batch: int,
        n_push: int,
        n_fetch: int,
        factor_tensors: Sequence[int],
        applies_locally: bool,
        slots_per_thread: int = SLOTS_PER_THREAD,
        following: Following | None = None,
        foresight: Momentum | None = None,
        ranges: Sequence[slice] | None = None,
        freed: Callable[[], None] | None = None,
        rows: Mapping[int, tuple[int, int]] | None = None,
        skips: bool = False,
    ) -> None:
        """Args:
        foresight: how far weights are moved ahead of the fetched ones; with it, nothing is applied locally.
        ranges: the parts of the vectors that this process holds, None: all; it never touches the rest.
        freed: called, by any thread, when a slot may have become free.
        rows: of each factor tensor, those that this process holds, None: all.
        skips: a partition leaves out the gradients of tensors whose factors it keeps.
        """
        self._ranges = (slice(0, layout.flat_size),) if ranges is None else tuple(ranges)
        self.layout, self.factor_tensors = layout, tuple(factor_tensors)
        self._rows, self._skips = rows, skips
        self.updates_weights: Callable[[Slot], None] | None = None
        self.core = SlotCore(threads, slots_per_thread, n_push, n_fetch, applies_locally, following)
        self.applies_locally = applies_locally
        self.foresight = foresight
        self._before = np.zeros(layout.flat_size if foresight is not None else 0, np.float32)
        self._accrual = Accrual(network.backend)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._stopping = False
        self._freed = freed
        slots = threads * slots_per_thread
        kept = n_push * batch
        factored = [layout.tensors[index] for index in self.factor_tensors]
        shapes = [(kept, size) for tensor in factored for size in (tensor.shape[0], tensor.row_size)]
        flat_bytes = array_bytes(layout.flat_size)
        factor_bytes = sum(array_bytes(*shape) for shape in shapes)
        self.memory = SharedMemory((3 + slots) * flat_bytes + slots * factor_bytes)
        self.weights = self.memory.array(layout.flat_size)
        self.fetched = self.memory.array(layout.flat_size)
        self.snapshot = self.memory.array(layout.flat_size)
        self._gradients = [self.memory.array(layout.flat_size) for _ in range(slots)]
        self._gradient_views = [network.views(gradient) for gradient in self._gradients]
        self._filled = np.zeros(slots, np.int64)
        self._factors = [[self.memory.array(*shape) for shape in shapes] for _ in range(slots)]
        self.weight_views = network.views(self.weights)
        self.snapshot_views = network.views(self.snapshot)

    # --- compute threads ---------------------------------------------------------------------------------------------

    @property
    def accruing(self) -> Accruing | None:
        """Where native steps accrue; None if factors must be kept too."""
        if self.factor_tensors:
            return None
        return Accruing(self._accrual, self._gradients, self._filled, self.weights if self.applies_locally else None)

    def accruing_of(self, context: int, turn: Words | None = None) -> FlightAccruing:
        """Returns where the flights of a context of a partition accrue; each context has the slots of a thread.

        `turn`: flights are parts of batches, and accrue in turn: all contexts have the slots of the only thread.
        """
        context = 0 if turn is not None else context
        own = slice(*(self.core.slots_per_thread * (context + more) for more in (0, 1)))
        kept = [
            KeptFactors(
                index,
                self._rows_of(index),
                [arrays[2 * position] for arrays in self._factors[own]],
                [arrays[2 * position + 1] for arrays in self._factors[own]],
            )
            for position, index in enumerate(self.factor_tensors)
        ]
        weights = self.weights if self.applies_locally else None
        return FlightAccruing(self._gradients[own], weights, self._filled[own], kept, self._skips, turn)

    def _rows_of(self, tensor: int) -> tuple[int, int]:
        return (0, self.layout.tensors[tensor].shape[0]) if self._rows is None else self._rows[tensor]

    def try_step(self, thread: int, local_lr: float = 0.0) -> SlotPlace | None:
        """Returns where, among the thread's own slots, to accrue; None while all are in use."""
        with self._lock:
            goes_on = self.core.filling[thread] is not None
            slot = self.core.begin_step(thread, local_lr, time.monotonic())
            if slot is None:
                return None
            if not goes_on:  # else other flights may have accrued in it that are not counted yet
                self._filled[slot.index] = 0
            return SlotPlace(slot.index - thread * self.core.slots_per_thread, slot.examples)

    def begin_step(self, thread: int, local_lr: float = 0.0) -> Slot | None:
        """Returns the slot to accrue into, after waiting while all are in use; None when the replica is stopping."""
        slot = self.core.filling[thread]
        if slot is not None:  # no other thread takes it during a step, or does more than read it
            self._filled[slot.index] = slot.steps
            return slot
        with self._lock:
            while (slot := self.core.begin_step(thread, local_lr, time.monotonic())) is None:
                if self._stopping:
                    return None
                self._room.wait()
            self._filled[slot.index] = slot.steps
            return slot

    def end_step(
        self, thread: int, slot: Slot, context: Context, examples: int, lr: float, local_lr: float
    ) -> StepActions:
        """Accrues a step's gradient, applies it to the shared weights, and returns what to start in the background."""
        first = slot.steps == 0
        gradient = self._gradients[slot.index]
        if self.applies_locally:
            self._accrual.accrue_and_apply(gradient, self.weights, context.gradient, local_lr, first)
        else:
            self._accrual.accrue(gradient, context.gradient, first)
        if self.factor_tensors:
            self._keep_factors(slot, context)
        with self._lock:
            actions = self.core.end_step(thread, examples, lr, local_lr, 1, time.monotonic())
        return self._applied(actions)

    def end_native_steps(self, thread: int, steps: int, examples: int, lr: float, local_lr: float) -> StepActions:
        """Counts steps that were already accrued and applied, and returns what to start in the background."""
        with self._lock:
            actions = self.core.end_step(thread, examples, lr, local_lr, steps, time.monotonic())
        return self._applied(actions)

    def _applied(self, actions: StepActions) -> StepActions:
        """Without servers, updates the weights by what would be pushed; by the thread that computed it."""
        if self.updates_weights is None or actions.push is None:
            return actions
        self.updates_weights(actions.push)
        self.acknowledged(actions.push)
        return StepActions(None, False)

    def _keep_factors(self, slot: Slot, context: Context) -> None:
        arrays = self._factors[slot.index]
        for position, index in enumerate(self.factor_tensors):
            factors = context.factors(self.layout.tensors[index].layer)
            if factors is None:
                raise RuntimeError(f"layer of {self.layout.tensors[index].name} has no factors")
            stop = slot.examples + len(factors.errors)
            arrays[2 * position][slot.examples : stop] = factors.errors
            arrays[2 * position + 1][slot.examples : stop] = factors.activations

    # --- the event loop ----------------------------------------------------------------------------------------------

    def flush(self) -> list[Slot]:
        """Returns what is accrued and not yet being pushed. Call it only while no thread is in a step."""
        with self._room:
            return self.core.flush()

    def gradient(self, slot: Slot) -> Array:
        return self._gradients[slot.index]

    def gradient_views(self, slot: Slot) -> list[Array]:
        """Returns a slot's gradient as one array per tensor."""
        return self._gradient_views[slot.index]

    def factors(self, slot: Slot) -> dict[int, Factors]:
        """Returns the accrued factors of a slot by tensor index, one row per example."""
        arrays, rows = self._factors[slot.index], slot.examples
        return {
            index: Factors(arrays[2 * position][:rows], arrays[2 * position + 1][:rows])
            for position, index in enumerate(self.factor_tensors)
        }

    def multiply_factors(self, slot: Slot, index: int) -> None:
        """Computes a tensor's gradient from the slot's factors, in place of the accrued one."""
        factors = self.factors(slot)[index]
        first, stop = self._rows_of(index)
        out = self._gradient_views[slot.index][index][first:stop]
        gradient_rows(factors.errors, factors.activations, first, stop, out)

    def acknowledged(self, slot: Slot) -> None:
        with self._room:
            self.core.acknowledged(slot)
            self._room.notify_all()
        self._tell_freed()

    def contains(self, pushes: int) -> None:
        """Says that the weights contain so many pushes, where they are updated in place and nothing is fetched."""
        with self._room:
            self.core.base = Base(np.array([pushes], np.int64), np.array([pushes], np.int64))

    def fetch_started(self) -> None:
        with self._room:
            self.core.fetch_started()

    def install(self, base: Base) -> None:
        """Makes `fetched` the shared weights, with the replica's own work that it lacks applied again.

        Threads continue meanwhile: what they change during the copy may be lost or counted twice here, until the next
        fetch brings the servers' values (Adam 3.2.2 accepts the same between threads).
        """
        with self._room:
            # Steps write these flags meanwhile, without the interpreter lock: numpy's own search would raise an error.
            begun = [index for index, filled in enumerate(self._filled.tolist()) if filled]
            lacking = self.core.fetched(base, begun)
        if self.foresight is None:
            self._reapply(lacking)
        else:
            self._look_ahead(self.foresight.arrived(base.pushes))
        with self._room:
            self.core.installed(time.monotonic())
            self._room.notify_all()
        self._tell_freed()

    def _tell_freed(self) -> None:
        if self._freed is not None:
            self._freed()

    def _look_ahead(self, foresight: Foresight) -> None:
        if foresight.way is not Way.KEEP:
            factor = foresight.factor if foresight.way is Way.AHEAD else 0.0
            for part in self._ranges:
                self._accrual.look_ahead(self.weights[part], self.fetched[part], self._before[part], factor)

    def _reapply(self, lacking: Sequence[Reapply]) -> None:
        whole = [reapply.slot for reapply in lacking if reapply.shards is None]
        for part in self._ranges:
            weights, fetched = self.weights[part], self.fetched[part]
            if not whole:
                np.copyto(weights, fetched)
                continue
            first, *others = whole
            self._accrual.install(weights, fetched, self._gradients[first.index][part], first.local_learning_rate)
            for slot in others:
                self._accrual.subtract_scaled(weights, self._gradients[slot.index][part], slot.local_learning_rate)
        for reapply in lacking:
            if reapply.shards is not None:
                self._reapply_shards(reapply.slot, np.flatnonzero(reapply.shards))

    def _reapply_shards(self, slot: Slot, shards: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        gradient = self._gradients[slot.index]
        for index in shards:
            shard = self.layout.shards[index]
            part = slice(shard.offset, shard.offset + shard.size)
            self._accrual.subtract_scaled(self.weights[part], gradient[part], slot.local_learning_rate)

    def stop(self) -> None:
        """Wakes threads that wait for a slot."""
        with self._room:
            self._stopping = True
            self._room.notify_all()
