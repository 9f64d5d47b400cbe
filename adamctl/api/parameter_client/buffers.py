"""Memory of a registered set of arrays: pulled values, and copies of values being pushed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.api.parameter_client.arrays import Arrays, Floats, NamedArrays, as_array
from adamctl.errors import AdamctlError, ConfigurationError, NotFiniteError, RemoteError
from adamctl.kernels.numeric.finite import BLOCK, all_finite
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.client.parameter_client import Base, PushSet, RefusedPart
from adamctl.wire.constants import ErrorCode, UpdateKind


@dataclass
class Staged:
    """A push ready to be sent; `buffer` holds its arrays and is reused afterwards; None if they are the caller's."""

    push: PushSet
    buffer: Floats | None


class RegisteredArrays:
    """One client's view of the arrays of a job.

    Attributes:
        flat: the values last pulled, in the order of the job's layout.
        numbers: name -> number of the tensor in the layout.
    """

    def __init__(
        self,
        layout: ParameterLayout,
        names: NamedArrays | None,
        rule: RuleConfig,
        learning_rate: float | None,
        new_array: Callable[[int], Floats],
    ) -> None:
        """Args:
        names: how arrays are nested; None: in a dict with the job's names.
        new_array: creates vectors of a given length that can be shared with servers on this machine.
        """
        self.layout = layout
        self._new_array = new_array
        self.flat: Floats = new_array(layout.flat_size)
        self.numbers = {tensor.name: number for number, tensor in enumerate(layout.tensors)}
        self._names = names or NamedArrays({tensor.name: np.empty(tensor.shape, "f4") for tensor in layout.tensors})
        self._rule, self._learning_rate = rule, learning_rate
        self._free: list[Floats] = []

    def view(self, name: str) -> Floats:
        """Returns the part of `flat` that is one array, in its registered shape."""
        return self._part(self.flat, name)

    def nested(self) -> Arrays:
        """Returns views of all arrays, nested as registered."""
        return self._names.nested(self.view)

    def targets(self, into: Arrays) -> list[tuple[str, NDArray[Any]]]:
        """Returns the arrays in `into` by name. Raises ConfigurationError: they do not match the registered ones."""
        return [self._target(name, given) for name, given in self._names.matched(into)]

    def _target(self, name: str, given: Any) -> tuple[str, NDArray[Any]]:
        target, shape = as_array(given, name), self._names.shapes[name]
        if target.shape != shape or not target.flags.writeable or target.dtype.kind != "f":
            found = f"{'' if target.flags.writeable else 'read-only '}{target.dtype} {list(target.shape)}"
            raise ConfigurationError(f"{name}: expected an array of floats of shape {list(shape)}; found {found}")
        if target is not given and not np.may_share_memory(target, as_array(given, name)):
            found = f"a {type(given).__name__}, of which NumPy makes a copy"
            raise ConfigurationError(f"{name}: expected an array that can be written to in place; found {found}")
        return name, target

    def _part(self, flat: Floats, name: str) -> Floats:
        tensor = self.layout.tensors[self.numbers[name]]
        return flat[tensor.offset : tensor.offset + tensor.size].reshape(self._names.shapes[name])

    def refusal(self, part: RefusedPart) -> AdamctlError:
        """Returns the error that says which array's push the servers have refused, and why."""
        name = self.layout.tensors[self.layout.shards[part.shard].tensor].name
        what = f"{name}: the servers refused a push: {part.message}"
        return NotFiniteError(what) if part.code == ErrorCode.NOT_FINITE else RemoteError(part.code, what)

    # --- values to be pushed -----------------------------------------------------------------------------------------

    def stage(
        self, values: Arrays, kind: UpdateKind, learning_rate: float | None, examples: int, copy: bool, base: Base
    ) -> Staged:
        """Checks and copies values to be pushed; thread-safe.

        Raises:
            ConfigurationError: names or shapes do not match the registered ones, or no learning rate is known.
            NotFiniteError: a value or the learning rate is NaN or infinite.
        """
        if self._rule.name == "add":
            kind = UpdateKind.DELTA
        rate = 0.0 if kind == UpdateKind.DELTA else self._rate(learning_rate)
        push = PushSet(self.layout, rate, examples=examples, base=base)
        staged = Staged(push, self._buffer() if copy else None)
        try:
            for name, value in self._names.matched(values):
                lent = self._lent(name, value, staged.buffer)
                (push.delta if kind == UpdateKind.DELTA else push.gradient)(self.numbers[name], lent)
        except BaseException:
            self.give_back(staged)
            raise
        return staged

    def _rate(self, learning_rate: float | None) -> float:
        rate = self._learning_rate if learning_rate is None else float(learning_rate)
        if rate is None:
            raise ConfigurationError("learning_rate: expected one here, or a rule with one in register")
        if not isfinite(rate):
            raise NotFiniteError(f"learning_rate: expected a finite number; found {rate}")
        return rate

    def _lent(self, name: str, value: Any, buffer: Floats | None) -> Floats:
        """Returns a copy of an array in `buffer`, or the array itself if there is none."""
        array, shape = as_array(value, name), self._names.shapes[name]
        if array.shape != shape:
            raise ConfigurationError(f"{name}: expected shape {list(shape)}; found {list(array.shape)}")
        if buffer is not None:
            lent = self._part(buffer, name)
            finite = _copy(array, lent)
        elif array.dtype != np.float32 or not array.flags.c_contiguous:
            contiguous = "contiguous" if array.flags.c_contiguous else "not contiguous"
            raise ConfigurationError(
                f"{name}: expected C-contiguous float32 with copy=False; found {array.dtype}, {contiguous}"
            )
        else:
            lent = array
            finite = all_finite(lent, "numpy")
        if not finite:
            raise NotFiniteError(f"{name}: expected finite values; found NaN or infinite ones, nothing was pushed")
        return lent

    def _buffer(self) -> Floats:
        try:
            return self._free.pop()
        except IndexError:
            return self._new_array(self.layout.flat_size)

    def give_back(self, staged: Staged) -> None:
        """Returns the buffer of a push whose arrays are no longer needed."""
        if staged.buffer is not None:
            self._free.append(staged.buffer)


def _copy(source: NDArray[Any], target: Floats) -> bool:
    """Copies into float32 and returns whether all values are finite there; block by block, while each is in cache."""
    if not source.flags.c_contiguous:
        source = np.ascontiguousarray(source)
    flat, copied = source.reshape(-1), target.reshape(-1)
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is what we check for
        for start in range(0, copied.size, BLOCK):
            block = copied[start : start + BLOCK]
            np.copyto(block, flat[start : start + BLOCK], casting="same_kind")
            # A finite sum means finite summands; a sum of large finite numbers may overflow, so check those one by one.
            finite = finite and (bool(np.isfinite(block.sum())) or bool(np.isfinite(block).all()))
    return finite
