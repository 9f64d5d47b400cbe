"""The common shape of a server's update rules: one pass over a range of one tensor's elements.

A rule is built once per job and holds no state of a shard; the shard's state arrays are passed to every
call. All arrays are 1-D contiguous float32 of equal length. `weights_out` may be `weights_in` itself (in
place) or another array (the server writes a new version while the old one is being sent); state is updated in
place. Several updates waiting for one shard are applied together, block by block, with the same bits as one after
another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from adamctl.kernels.array import FLOAT32
from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.operation import Array
from adamctl.model.rule import RuleConfig

ShardGradients: TypeAlias = "tuple[Array, Array, list[Array], Sequence[int], Sequence[float]]"
"""One shard's input: weights before and after (maybe the same), state, addresses of gradients, learning rates."""

BLOCK = 1 << 14  # elements: a block of each array, and a temporary, stay in a core's cache between numpy's passes


class Rule(ABC):
    """Applies gradients to weights.

    Attributes:
        name: as in `RuleConfig.name`.
        state_names: names of the rule's state, in the order of `state`: one number per element, or per shard
            (`shard_state`).
        shard_state: those of `state_names` that are one number per shard. Their array repeats that number for each
            element, with all elements at one address. So it takes no memory, is written to checkpoints like any other,
            and is restored by `restored_state`.
        scratch_names: names of vectors that are held beside the state where a shard is served.
        scratch_bytes: bytes per element that a server holds besides weights and state, in no copy and on no disk.
    """

    name: ClassVar[str]
    state_names: tuple[str, ...] = ()
    shard_state: ClassVar[tuple[str, ...]] = ()
    scratch_names: tuple[str, ...] = ()
    scratch_bytes: int = 0

    def __init__(self, config: RuleConfig, backend: str | None = None) -> None:
        self.config = config
        self.backend: Backend = choose(backend)
        compiled = compiled_if(self.backend, "rules")
        self._constants = np.array(self.constants(), np.float32)
        self._compiled: Any = None if compiled is None else getattr(compiled, self.compiled_name())
        self._address: Any = None if compiled is None else compiled.address

    @property
    def is_compiled(self) -> bool:
        """Whether `prepare_shards` can be used."""
        return self._compiled is not None

    @property
    def served_bytes(self) -> int:
        """Bytes of memory per element where a shard is served: weights, state and scratch."""
        return FLOAT32.itemsize * (1 + len(self.state_names)) + self.scratch_bytes

    def initial_state(self, size: int) -> list[Array]:
        """Returns the state of `size` elements before the first update: zeros."""
        return [
            _repeated(0, size) if name in self.shard_state else np.zeros(size, np.float32) for name in self.state_names
        ]

    def restored_state(self, state: Sequence[Array]) -> list[Array]:
        """Returns a shard's saved state, also if the shard is joined from parts of several others.

        Their numbers per shard may differ a little; the smallest is used, so Adam's next steps do not get larger.
        """
        return [
            _repeated(array.min(initial=np.inf) if array.size else 0, array.size) if name in self.shard_state else array
            for name, array in zip(self.state_names, state, strict=True)
        ]

    def copied_state(self, state: Sequence[Array]) -> list[Array]:
        """Returns a copy of a shard's state that can be updated while the original is being read."""
        return [
            _repeated(array[0] if array.size else 0, array.size) if name in self.shard_state else array.copy()
            for name, array in zip(self.state_names, state, strict=True)
        ]

    def apply(self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float) -> None:
        """Writes the updated weights and state; the gradient is only read.

        Raises:
            ValueError: lengths or types differ, or the number of state arrays is not the rule's.
        """
        self.apply_many(weights_in, weights_out, state, (gradient,), (lr,))

    def apply_many(
        self,
        weights_in: Array,
        weights_out: Array,
        state: list[Array],
        gradients: Sequence[Array],
        lrs: Sequence[float],
    ) -> None:
        """Applies each gradient with its learning rate, in order; reads and writes weights and state once.

        With no gradients nothing happens: `weights_out` is not written.

        Raises:
            ValueError: as `apply`, or the numbers of learning rates and gradients differ.
        """
        self.check(weights_in, weights_out, state, gradients, lrs)
        if not weights_in.size or not gradients:
            return
        updates = [self.numbers_of(lr, state, number) for number, lr in enumerate(lrs, 1)]
        self.apply_checked(weights_in, weights_out, state, gradients, updates)
        self.count(state, len(gradients))

    def prepare_shards(self, shards: Sequence[ShardGradients], spare: Array) -> Callable[[], list[bool]]:
        """Returns a function like `apply_many` for each shard, with gradients that need not be finite; compiled only.

        It applies all in one call, cannot fail, and returns for which shards a gradient, or the total result, holds NaN
        or infinite values. Their weights before and their state are unchanged and nothing is counted; separate memory
        for the weights after holds garbage. Gradients are contiguous float32 at unchecked addresses, one element per
        weight. `spare`: memory for as many elements as the largest shard has.

        Raises:
            ValueError: as `apply_many`, or `spare` is too short.
        """
        words: list[int] = []
        states: list[int] = []
        gradients: list[int] = []
        numbers: list[float] = []
        at, alike = self._address, not self.shard_state
        numbers_at: dict[float, tuple[float, ...]] = {}  # by rate, if they depend only on it
        for weights_in, weights_out, state, addresses, lrs in shards:
            self.check(weights_in, weights_out, state, (), ())
            if len(lrs) != len(addresses) or weights_in.size > spare.size:
                found = f"{len(addresses)} gradients, {len(lrs)} learning rates, {spare.size} elements of spare memory"
                raise ValueError(f"{self.name}: a shard of {weights_in.size} elements does not fit {found}")
            if not weights_in.size:
                addresses, lrs = (), ()  # there may be no state for their numbers
            words += (at(weights_in), at(weights_out), weights_in.size, len(addresses))
            states += (at(array) for array in self.per_element(state))
            gradients += addresses
            for number, lr in enumerate(lrs, 1):
                if lr not in numbers_at or not alike:
                    numbers_at[lr] = self.numbers_of(lr, state, number)
                numbers += numbers_at[lr]
        tables = [np.array(table, np.int64) for table in (words, states, gradients)]
        own, refused = np.array(numbers, np.float32), np.empty(len(shards), np.bool_)

        def apply() -> list[bool]:
            self._compiled(*tables, own, self._constants, at(spare), refused)
            found: list[bool] = refused.tolist()
            for (_, _, state, _, lrs), bad in zip(shards, found, strict=True):
                if not bad:
                    self.count(state, len(lrs))
            return found

        return apply

    def apply_checked(
        self,
        weights_in: Array,
        weights_out: Array,
        state: Sequence[Array],
        gradients: Sequence[Array],
        updates: Sequence[tuple[float, ...]],
    ) -> None:
        """As `apply_many` for a range of checked arrays, with `numbers_of` each update; it counts nothing."""
        if self._compiled is not None:
            self._apply_compiled(weights_in, weights_out, state, gradients, updates)
            return
        apply = self._apply_numexpr if self.backend == "numexpr" else self._apply_numpy
        for start in range(0, weights_in.size, BLOCK):
            part = slice(start, start + BLOCK)
            parts, source = [array[part] for array in state], weights_in
            for gradient, numbers in zip(gradients, updates, strict=True):
                apply(source[part], weights_out[part], parts, gradient[part], numbers)
                source = weights_out

    def check(
        self,
        weights_in: Array,
        weights_out: Array,
        state: Sequence[Array],
        gradients: Sequence[Array],
        lrs: Sequence[float],
    ) -> None:
        """Raises ValueError unless lengths, types and numbers of arrays are as `apply` requires."""
        shape, alike = weights_in.shape, len(state) == len(self.state_names)
        for array in (weights_in, weights_out, *gradients, *state):
            alike = alike and array.shape == shape
        if not alike:
            raise ValueError(
                f"{self.name}: expected weights, gradient and {len(self.state_names)} state arrays of one length; "
                f"found {[list(array.shape) for array in (weights_in, weights_out, *gradients, *state)]}"
            )
        if len(lrs) != len(gradients):
            raise ValueError(f"{self.name}: expected {len(gradients)} learning rates; found {len(lrs)}")
        for array in (weights_in, weights_out, *gradients, *self.per_element(state)):
            if array.dtype != FLOAT32 or array.ndim != 1 or not array.flags.c_contiguous:
                raise ValueError(
                    f"{self.name}: expected 1-D contiguous float32 arrays; "
                    f"found {array.dtype} {list(array.shape)} with strides {array.strides}"
                )

    def per_element(self, state: Sequence[Array]) -> list[Array]:
        """Returns the state arrays with one number per element."""
        if not self.shard_state:
            return list(state)
        return [array for name, array in zip(self.state_names, state, strict=True) if name not in self.shard_state]

    def _apply_compiled(
        self,
        weights_in: Array,
        weights_out: Array,
        state: Sequence[Array],
        gradients: Sequence[Array],
        updates: Sequence[tuple[float, ...]],
    ) -> None:
        at = self._address
        self._compiled(
            np.array((at(weights_in), at(weights_out), weights_in.size, len(gradients)), np.int64),
            np.array([at(array) for array in self.per_element(state)], np.int64),
            np.array([at(gradient) for gradient in gradients], np.int64),
            np.array(updates, np.float32).reshape(-1),
            self._constants,
            0,
            np.empty(1, np.bool_),
        )

    def compiled_name(self) -> str:
        """Returns the name of the function in `compiled.rules`."""
        return self.name

    def constants(self) -> tuple[float, ...]:
        """Returns the compiled rule's numbers shared by all updates."""
        return ()

    def numbers_of(self, lr: float, state: Sequence[Array], number: int) -> tuple[float, ...]:
        """Returns the numbers of one update, `number` from 1 among those applied together: (rate, keep)."""
        return lr, 1 - lr * self.config.weight_decay

    def count(self, state: Sequence[Array], updates: int) -> None:
        """Adds the number of applied updates to the shard's state."""
        return

    @abstractmethod
    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None: ...

    @abstractmethod
    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None: ...


def evaluate(expression: str, out: Array, arrays: dict[str, Array], scalars: dict[str, float]) -> None:
    """Evaluates a numexpr expression of float32 arrays and scalars into `out`, which may be one of the arrays."""
    import numexpr

    arguments = {**arrays, **{name: np.float32(value) for name, value in scalars.items()}}
    numexpr.evaluate(expression, local_dict=arguments, global_dict={}, out=out)


def _repeated(value: float, size: int) -> Array:
    """Returns an array of `size` elements that all share one place in memory."""
    return np.ndarray((size,), np.float32, np.array([value], np.float32), strides=(0,))


def address(array: Array) -> int:
    """Returns the address of an array's first element; keep the array as long as the address is used."""
    return int(array.__array_interface__["data"][0])
