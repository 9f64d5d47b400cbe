"""The order of a pass over a set too large to sort: blocks are permuted, and examples within windows of some blocks.

A block is what a source reads at once: a tar shard, a row group, 1,024 files. The order depends on the lengths of the
blocks, the seed and the pass, and on nothing else: not on how many data servers there are, and not on what was read
before. So (pass, start) is all of a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER, Indices, permutation

WINDOW_BLOCKS: Final = 64
_HELD_MAX: Final = 3
"""Passes and windows whose order is held: the one served, the one read ahead, and one that somebody else reads."""
_BLOCK_STREAM: Final = 0x424C_4F43 << 32  # "BLOC": the order of the blocks of a pass
_WINDOW_STREAM: Final = 0x5749_4E44 << 32  # "WIND": the order inside its windows


class Run(NamedTuple):
    """Examples that follow one another in a pass and lie in one window.

    `blocks` and `indices`, both [n]: example k is number `indices[k]` of block `blocks[k]`.
    """

    window: int
    blocks: Indices
    indices: Indices


class _Layout(NamedTuple):
    """The windows of one pass. `blocks` [B]: blocks in the order of the pass. `starts` [windows + 1]: positions."""

    pass_number: int
    blocks: Indices
    starts: Indices


class BlockOrder:
    """Finds the examples at any positions of any pass.

    It holds the order of the blocks of the last three passes asked for and the examples of the last three windows, 16
    bytes each. Threads may share it: what is held is replaced as a whole.
    """

    def __init__(self, lengths: Sequence[int] | Indices, seed: int, window_blocks: int = WINDOW_BLOCKS) -> None:
        """`lengths` [B]: how many examples each block has.

        Raises:
            ConfigurationError: there is no block, one has no examples, or a window would have no blocks.
        """
        self.lengths: Indices = np.array(lengths, np.int64)
        if problem := _problem(self.lengths, window_blocks):
            raise ConfigurationError(problem)
        self.seed = seed
        self.window_blocks = window_blocks
        self.examples = int(self.lengths.sum())
        self.windows = -(-len(self.lengths) // window_blocks)
        self._firsts: Indices = np.cumsum(self.lengths) - self.lengths
        self._layouts: tuple[_Layout, ...] = ()
        self._held: tuple[tuple[int, Run], ...] = ()

    def find(self, pass_number: int, start: int, stop: int) -> list[Run]:
        """Returns examples [start, stop) of a pass in its order, one run for each window they lie in.

        Raises:
            ValueError: not 0 <= start <= stop <= examples.
        """
        if not 0 <= start <= stop <= self.examples:
            raise ValueError(f"expected 0 <= start <= stop <= {self.examples}, found start {start} and stop {stop}")
        starts = self._layout_of(pass_number).starts
        runs = []
        while start < stop:
            window = int(np.searchsorted(starts, start, side="right")) - 1
            first, end = int(starts[window]), min(int(starts[window + 1]), stop)
            whole = self._window(pass_number, window)
            part = slice(start - first, end - first)
            runs.append(Run(window, whole.blocks[part], whole.indices[part]))
            start = end
        return runs

    def blocks_of(self, pass_number: int, window: int) -> Indices:
        """Returns the blocks that a window of a pass is made of, at most [window_blocks]: what to read ahead.

        Raises:
            ValueError: there is no such window.
        """
        if not 0 <= window < self.windows:
            raise ValueError(f"expected a window 0 .. {self.windows - 1}, found {window}")
        return self._layout_of(pass_number).blocks[window * self.window_blocks :][: self.window_blocks]

    def start(self, pass_number: int, window: int) -> int:
        """Returns the position in a pass of a window's first example."""
        return int(self._layout_of(pass_number).starts[window])

    def in_file_order(self, run: Run) -> Indices:
        """Returns the numbers [n] that a run's examples have when all blocks are counted through."""
        return self._firsts[run.blocks] + run.indices

    def _layout_of(self, pass_number: int) -> _Layout:
        for held in self._layouts:
            if held.pass_number == pass_number:
                return held
        blocks = self._permuted(len(self.lengths), _BLOCK_STREAM, pass_number, 0)
        lengths = np.add.reduceat(self.lengths[blocks], np.arange(0, len(blocks), self.window_blocks))
        layout = _Layout(pass_number, blocks, np.concatenate(([0], np.cumsum(lengths))))
        self._layouts = (layout, *self._layouts[: _HELD_MAX - 1])
        return layout

    def _window(self, pass_number: int, window: int) -> Run:
        for held_pass, held in self._held:
            if held_pass == pass_number and held.window == window:
                return held
        blocks = self.blocks_of(pass_number, window)
        ends = np.cumsum(self.lengths[blocks])
        drawn = self._permuted(int(ends[-1]), _WINDOW_STREAM, pass_number, window)
        places = np.repeat(np.arange(len(blocks)), self.lengths[blocks])[drawn]
        run = Run(window, blocks[places], drawn - (ends - self.lengths[blocks])[places])
        self._held = ((pass_number, run), *self._held[: _HELD_MAX - 1])
        return run

    def _permuted(self, count: int, stream: int, pass_number: int, part: int) -> Indices:
        if pass_number == FILE_ORDER:
            return np.arange(count, dtype=np.int64)
        return permutation(count, self.seed, stream ^ pass_number, part)


def _problem(lengths: Indices, window_blocks: int) -> str | None:
    if window_blocks < 1:
        return f"expected windows of at least 1 block, found {window_blocks}"
    if not len(lengths):
        return "expected at least one block of examples, found none: look whether the data's files are there"
    if lengths.min() < 1:
        number = int(np.argmax(lengths < 1))
        return f"expected at least one example in each block, found {lengths[number]} in block {number}: leave it out"
    return None
