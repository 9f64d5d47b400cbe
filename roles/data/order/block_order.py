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

    `blocks` and `indices`, both [n]: example k is number `indices[k]` of block `blocks[k]`. `repeats` [n]: how often it
    was drawn before in this pass; None: never, as each is drawn once.
    """

    window: int
    blocks: Indices
    indices: Indices
    repeats: Indices | None = None

    def part(self, part: slice) -> Run:
        """Returns some of its examples."""
        repeats = None if self.repeats is None else self.repeats[part]
        return Run(self.window, self.blocks[part], self.indices[part], repeats)


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
            runs.append(whole.part(slice(start - first, end - first)))
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
        """Returns the position in a pass of a window's first example; of `windows`, where the pass ends."""
        return int(self._layout_of(pass_number).starts[window])

    def _layout_of(self, pass_number: int) -> _Layout:
        for held in self._layouts:
            if held.pass_number == pass_number:
                return held
        blocks = self._permuted(len(self.lengths), _BLOCK_STREAM, pass_number, 0)
        layout = _Layout(pass_number, blocks, self._starts(pass_number, blocks))
        self._layouts = (layout, *self._layouts[: _HELD_MAX - 1])
        return layout

    def _window(self, pass_number: int, window: int) -> Run:
        for held_pass, held in self._held:
            if held_pass == pass_number and held.window == window:
                return held
        run = self._draw(pass_number, window)
        self._held = ((pass_number, run), *self._held[: _HELD_MAX - 1])
        return run

    def _starts(self, pass_number: int, blocks: Indices) -> Indices:
        """Returns the position of each window of a pass with blocks in this order, and its end, [windows + 1]."""
        lengths = np.add.reduceat(self.lengths[blocks], np.arange(0, len(blocks), self.window_blocks))
        return np.concatenate(([0], np.cumsum(lengths)))

    def _draw(self, pass_number: int, window: int) -> Run:
        """Returns all that a pass has of a window, in its order."""
        blocks = self.blocks_of(pass_number, window)
        drawn = self._permuted(int(self.lengths[blocks].sum()), _WINDOW_STREAM, pass_number, window)
        return self._run(window, blocks, drawn)

    def _run(self, window: int, blocks: Indices, drawn: Indices, repeats: Indices | None = None) -> Run:
        """Returns examples of blocks by their numbers when these are counted through one after the other."""
        ends = np.cumsum(self.lengths[blocks])
        places = np.repeat(np.arange(len(blocks)), self.lengths[blocks])[drawn]
        return Run(window, blocks[places], drawn - (ends - self.lengths[blocks])[places], repeats)

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
