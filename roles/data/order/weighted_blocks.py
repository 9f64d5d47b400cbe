"""Passes by weight over a set too large to sort: block order whose windows repeat some examples and leave out others.

As in `sampling.WeightedPasses`, expected draws are laid end to end, and those are drawn that contain a point of a grid
of spacing 1. Here they lie in the order of the blocks of a pass, and within a window class by class. So each window's
part of a pass, and each example of it, is found from the blocks alone, and (pass, start) is still all of a position.
Which examples lie beside each other changes with the order of the blocks, so examples drawn less than once a pass do
not take turns from pass to pass: they are drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from adamctl.roles.data.core import FILE_ORDER, Indices, permutation
from adamctl.roles.data.order.block_order import WINDOW_BLOCKS, BlockOrder, Run
from adamctl.roles.data.order.sampling import ONE, Weights, expected_draws, grid_point
from adamctl.roles.data.readers.source import Labels

_MIXED_STREAM: Final = 0x5742_4D58 << 32  # "WBMX": the order within the classes of a window
_DRAWN_STREAM: Final = 0x5742_4452 << 32  # "WBDR": the order of what was drawn of it


class WeightedBlockOrder(BlockOrder):
    """Finds the examples at any positions of passes of n draws from n examples, each in proportion to its weight.

    An example with e expected draws comes floor(e) to ceil(e) times in a pass, and a class, in each window, as often as
    its sum says, to the next whole number. FILE_ORDER has each example once. It holds 8 bytes for each example.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Indices,
        seed: int,
        labels: Labels,
        weights: Weights,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        """
        Args:
            lengths: how many examples each block has, [B].
            labels, weights: of each example when all blocks are counted through, [n].

        Raises:
            ConfigurationError: as `BlockOrder`.
        """
        super().__init__(lengths, seed, window_blocks)
        self._labels, self._expected = labels, expected_draws(weights)
        self._of_blocks: Indices = np.add.reduceat(self._expected, self._firsts)

    def _starts(self, pass_number: int, blocks: Indices) -> Indices:
        if pass_number == FILE_ORDER:
            return super()._starts(pass_number, blocks)
        before = np.concatenate(([0], np.cumsum(self._of_blocks[blocks])))
        ends = np.minimum(np.arange(self.windows + 1) * self.window_blocks, len(blocks))
        return np.asarray((before[ends] + grid_point(self.seed, pass_number)) // ONE)

    def _draw(self, pass_number: int, window: int) -> Run:
        if pass_number == FILE_ORDER:
            return super()._draw(pass_number, window)
        blocks, first = self.blocks_of(pass_number, window), window * self.window_blocks
        before = int(self._of_blocks[self._layout_of(pass_number).blocks[:first]].sum())
        counted = np.concatenate(
            [np.arange(self._firsts[one], self._firsts[one] + self.lengths[one]) for one in blocks]
        )
        mixed = permutation(len(counted), self.seed, _MIXED_STREAM ^ pass_number, window)
        mixed = mixed[np.argsort(self._labels[counted[mixed]], kind="stable")]
        point = before + grid_point(self.seed, pass_number)
        ends = (np.cumsum(self._expected[counted[mixed]]) + point) // ONE
        counts = np.diff(ends, prepend=point // ONE)
        repeats = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        drawn = np.repeat(mixed, counts)
        order = permutation(len(drawn), self.seed, _DRAWN_STREAM ^ pass_number, window)
        return self._run(window, blocks, drawn[order], repeats[order])
