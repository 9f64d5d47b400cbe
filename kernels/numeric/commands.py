"""A round's commands on the shards of a job's vectors (DistBelief 4.2, appendix): the same bits everywhere.

The arithmetic is defined to the bit, so that it depends neither on the implementation nor on how a tensor's rows are
cut into shards:

- `Set`: each term is factor x element in float64, the first term plus the second and so on, rounded to float32 once.
  The accumulator's elements become float64 first (rounded above 2^53).
- A difference of two vectors is rounded to float32; `Apply` is float32 arithmetic, each operation rounded once.
- `dot` and `sum`: products of float32 are exact in float64; they are added for each tensor row in a fixed order
  (`exact_sums.row_sums`), and rows without error (`exact_sums.Totals`).
- `max_abs` finds NaN if there is one. Which NaN an operation makes is not defined, and no answer depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from adamctl.kernels.array import FLOAT32, Array
from adamctl.kernels.backend import choose, compiled_if
from adamctl.kernels.native import address_of
from adamctl.kernels.numeric import reference_commands
from adamctl.kernels.numeric.accumulate import INT64, Accumulator
from adamctl.kernels.numeric.exact_sums import LANES, Totals
from adamctl.kernels.numeric.round_steps import GRID_LEFT, GRID_RIGHT, PAIRS_MAX, RoundSteps, lay_out
from adamctl.model.commands import ACCUMULATOR, Command, Reduce, Set, check_commands

NO_ACCUMULATOR = (np.zeros(0, np.int64), 0.0)


class _Scratch:
    """What the compiled interpreter writes while it runs, for one thread."""

    def __init__(self, steps: RoundSteps, block: int, rows: int) -> None:
        vectors, sums = len(steps.names), GRID_LEFT * GRID_RIGHT
        self.blocks = np.empty((steps.blocks + 1, block), np.float32)
        self.addresses = [address_of(one) for one in self.blocks[:-1]]
        self.spare = address_of(self.blocks[-1])
        if steps.ones >= 0:
            self.blocks[steps.ones - vectors] = 1
        self.moves = np.array([1] * vectors + [0] * steps.blocks, np.int64)
        self.table = np.empty(len(self.moves) + 2 * PAIRS_MAX, np.int64)
        self.lanes = np.empty((len(steps.steps), sums, LANES))
        self.sums = np.empty((len(steps.steps), sums, rows))
        self.held = np.empty(len(steps.steps), np.int64)
        self.totals = np.empty(block)


class PreparedRound:
    """A round's commands, checked and laid out once for all shards.

    Attributes:
        reads: names of vectors that are read, without the accumulator.
        writes: names of vectors that are written.
        reads_accumulator: whether a `Set` reads the accumulator.
    """

    def __init__(self, commands: Sequence[Command], backend: str | None = None) -> None:
        """Raises ConfigurationError if a command is malformed; whether its vectors exist is not known here."""
        reads = {name for command in commands for name in _names(command)}
        writes = {command.target for command in commands if not isinstance(command, Reduce)}
        check_commands(commands, reads - {ACCUMULATOR}, writes - {ACCUMULATOR})
        self.commands = tuple(commands)
        self.reads = frozenset(reads - {ACCUMULATOR})
        self.writes = frozenset(writes)
        self.reads_accumulator = ACCUMULATOR in reads
        chosen = choose(backend)
        self._compiled, rules = compiled_if(chosen, "rounds"), compiled_if(chosen, "rules")
        self._address: Callable[[Array], int] = address_of if rules is None else rules.address
        self._steps = lay_out(self.commands, sorted(self.reads | self.writes))

    def new_totals(self) -> Totals:
        """Returns where a thread adds up what the reductions find on its shards."""
        return Totals([command.operation for command in self.commands if isinstance(command, Reduce)])

    def run(
        self, vectors: Mapping[str, Array], row_size: int, totals: Totals, accumulator: Accumulator | None = None
    ) -> None:
        """Carries out the commands on one shard, or on some of its rows; adds what reductions find to `totals`.

        vectors: [elements] float32 each, contiguous and disjoint, whole rows of `row_size` elements of one tensor.

        Raises:
            ValueError: a vector is missing or does not fit. Nothing has been changed then.
        """
        found = {name: self._vector(vectors, name) for name in self._steps.names}
        elements = self._check(found, row_size, accumulator)
        places = [self._address(vector) for vector in found.values()]
        self._check_disjoint(places, elements)
        if not elements:
            return
        if self._compiled is None:
            reference_commands.run(self.commands, found, row_size, accumulator, totals)
            return
        steps, scratch = self._steps, totals.scratch
        if scratch is None:
            scratch = totals.scratch = _Scratch(
                steps, self._compiled.BLOCK, self._compiled.ROWS_MAX + self._compiled.HELD
            )
        accumulated, scale = NO_ACCUMULATOR
        if self.reads_accumulator and accumulator is not None:
            accumulated, scale = accumulator.values, 2.0**-accumulator.fraction_bits
        self._compiled.run(
            steps.steps, steps.slots, steps.factors, np.array(places + scratch.addresses, np.int64), scratch.moves,
            accumulated, scale, elements, row_size,
            scratch.lanes, scratch.sums, scratch.held, scratch.totals, scratch.table, scratch.spare,
            totals.pairs, totals.digits, totals.additions, totals.others, totals.largest, totals.counts,
        )  # fmt: skip

    def _vector(self, vectors: Mapping[str, Array], name: str) -> Array:
        vector = vectors.get(name)
        if vector is None:
            raise ValueError(f"commands: expected the vector {name!r}; found {', '.join(sorted(vectors)) or 'none'}")
        if vector.dtype != FLOAT32 or vector.ndim != 1 or not vector.flags.c_contiguous:
            found = f"{vector.dtype} {list(vector.shape)} with strides {vector.strides}"
            raise ValueError(f"commands: expected {name!r} to be 1-D contiguous float32; found {found}")
        if name in self.writes and not vector.flags.writeable:
            raise ValueError(f"commands: {name!r} is to be written, and is read-only")
        return vector

    def _check(self, vectors: Mapping[str, Array], row_size: int, accumulator: Accumulator | None) -> int:
        """Returns the number of elements."""
        sizes = {name: vector.size for name, vector in vectors.items()}
        if self.reads_accumulator:
            if accumulator is None:
                raise ValueError("commands: expected an accumulator, which a command reads")
            values = accumulator.values
            if values.dtype != INT64 or values.ndim != 1 or not values.flags.c_contiguous:
                raise ValueError(f"commands: expected an accumulator of 1-D contiguous int64; found {values.dtype}")
            sizes[ACCUMULATOR] = values.size
        if len(set(sizes.values())) > 1:
            raise ValueError(f"commands: expected vectors of one length; found {sizes}")
        elements = next(iter(sizes.values()), 0)
        if row_size < 1 or elements % row_size:
            raise ValueError(f"commands: expected whole rows of {row_size} elements; found {elements} elements")
        return elements

    def _check_disjoint(self, places: list[int], elements: int) -> None:
        for (before, first), (after, second) in pairwise(sorted(zip(places, self._steps.names, strict=True))):
            if after - before < elements * FLOAT32.itemsize and not self.writes.isdisjoint((first, second)):
                raise ValueError(f"commands: {first!r} and {second!r} share memory, and one of them is written")


def _names(command: Command) -> list[str]:
    if isinstance(command, Set):
        return [name for _, name in command.terms]
    return [name for operand in command.operands for name in operand]
