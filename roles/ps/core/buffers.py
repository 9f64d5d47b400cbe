"""The arrays of a shard and who reads them, and what is known of a batch that changes them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from weakref import ref

from adamctl.kernels.operation import Array


class Values:
    """One buffer of a shard's values. It is not written while `readers` > 0 (sends or snapshots in flight)."""

    __slots__ = ("_shard", "array", "readers")

    def __init__(self, array: Array, shard: Any) -> None:
        """`shard`: a `Shard`, or None. It is not kept: it has these, and neither would be freed at once."""
        self.array = array
        self.readers = 0
        self._shard = None if shard is None else ref(shard)

    def release(self) -> None:
        """Ends one reader's use; a buffer that is no longer current is kept as the spare for the next version."""
        self.readers -= 1
        if self.readers or self._shard is None:
            return
        shard = self._shard()
        if shard is not None and self is not shard.values and shard.spare is None:
            shard.spare = self.array


class Scratch(Values):
    """One buffer of a scratch vector; when it is no longer current nothing is done with it."""

    __slots__ = ()

    def release(self) -> None:
        self.readers -= 1


class State:
    """A shard's state arrays of the rule. While they are read a batch works on copies.

    Attributes:
        readers: of these arrays.
        before: earlier states that share some of the arrays, and were being read when this one was made.
    """

    __slots__ = ("arrays", "before", "readers")

    def __init__(self, arrays: list[Array], before: Sequence[State] = ()) -> None:
        self.arrays = arrays
        self.readers = 0
        self.before = tuple(before)

    @property
    def is_read(self) -> bool:
        """Whether any of the arrays is being read."""
        return self.readers > 0 or (bool(self.before) and any([one.readers > 0 for one in self.before]))  # noqa: C419

    def followed_by(self, arrays: list[Array]) -> State:
        """Returns the next state, which shares some of these arrays."""
        return State(arrays, [one for one in (*self.before, self) if one.readers])

    def release(self) -> None:
        self.readers -= 1


class Lent(Values):
    """One array of a state, held for a reader."""

    __slots__ = ("_state",)

    def __init__(self, state: State, place: int) -> None:
        super().__init__(state.arrays[place], None)
        self._state = state
        state.readers += 1

    def release(self) -> None:
        self._state.release()


class Changing(Protocol):
    """A batch in progress.

    Attributes:
        in_place, copy_state: as in `Batch`.
        updates: updates of pushes in it.
    """

    in_place: bool
    copy_state: bool
    updates: Any
