"""The blocks of a source, and which of them each split of a data set is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import FILE_ORDER, Indices, permutation
from adamctl.roles.data.order.block_order import BlockOrder
from adamctl.roles.data.order.ownership import Blocks, fetched_lengths
from adamctl.roles.data.order.sampling import Weights
from adamctl.roles.data.order.weighted_blocks import WeightedBlockOrder
from adamctl.roles.data.readers.source import (
    FILE_SPLITS,
    FileSplit,
    Labels,
    Source,
    held_out_by_groups,
    own_blocks,
)

BLOCK_EXAMPLES: Final = 1024
"""The length of the blocks of a source that does not say its own."""
SAMPLED_BLOCKS_MAX: Final = 64
_VALIDATION_STREAM: Final = 0x5642_4C4B << 32  # "VBLK": which blocks are held out


def block_lengths(source: Source, split: FileSplit) -> Indices:
    """Returns the lengths [B] of a source's blocks, in file order: its own, without empty ones, or 1,024 examples each.

    Raises:
        ConfigurationError: its own `blocks` do not add up to its examples.
    """
    examples = len(source.labels(split))
    lengths = own_blocks(source, split)
    if lengths is None:
        whole, rest = divmod(examples, BLOCK_EXAMPLES)
        return np.array([BLOCK_EXAMPLES] * whole + [rest] * (rest > 0), np.int64)
    if lengths.ndim != 1 or (len(lengths) and lengths.min() < 0) or int(lengths.sum()) != examples:
        raise ConfigurationError(
            f"{source.origin}: expected blocks of {examples} examples together, "
            f"found {len(lengths)} blocks of {int(lengths.sum())}; its reader has to be corrected"
        )
    return lengths[lengths > 0]


class Place(NamedTuple):
    """Examples that follow one another in a pass and lie in one window, which begins at position `first` of it.

    `blocks` and `indices`, both [n]: example k is the one at `indices[k]` of the set's block `blocks[k]`.
    """

    window: int
    first: int
    blocks: Indices
    indices: Indices

    def at(self, rows: Indices) -> Place:
        """Returns some of its examples."""
        return self._replace(blocks=self.blocks[rows], indices=self.indices[rows])


class SplitBlocks:
    """The blocks of one split, in file order, and the orders in which passes visit them.

    Attributes:
        file_split: the part of the files that they are in.
        numbers: [B], what the data set calls them: no two of its splits use the same number.
        starts: [B], the file index of each block's first example.
        lengths: [B].
    """

    def __init__(
        self, file_split: FileSplit, first_number: int, starts: Indices, lengths: Indices, seed: int, window_blocks: int
    ) -> None:
        self.file_split = file_split
        self.starts = starts
        self.lengths = lengths
        self.numbers = np.arange(first_number, first_number + len(lengths), dtype=np.int64)
        self.examples = int(lengths.sum())
        self._first_number = first_number
        # In the order of the files nothing is drawn, so that one block at a time is all that has to be in memory.
        self._shuffled = BlockOrder(lengths, seed, window_blocks) if len(lengths) else None
        self._in_files = BlockOrder(lengths, seed, 1) if len(lengths) else None

    def weigh(self, labels: Labels, weights: Weights) -> None:
        """Has passes draw examples by weight (`WeightedBlockOrder`); both [n] in the order of the files."""
        if isinstance(self._shuffled, BlockOrder):
            order = self._shuffled
            self._shuffled = WeightedBlockOrder(order.lengths, order.seed, labels, weights, order.window_blocks)

    def find(self, pass_number: int, start: int, stop: int) -> list[Place]:
        """Returns where examples [start, stop) of a pass are, one place for each window."""
        order = self._order(pass_number)
        return [
            Place(run.window, order.start(pass_number, run.window), run.blocks + self._first_number, run.indices)
            for run in order.find(pass_number, start, stop)
        ]

    def draws(self, pass_number: int, start: int, stop: int, file_examples: int) -> Indices:
        """Returns the file indices [stop - start] of these examples, plus `file_examples` for each repeat in a pass."""
        if start == stop:
            return np.empty(0, np.int64)
        found = []
        for run in self._order(pass_number).find(pass_number, start, stop):
            indices = self.starts[run.blocks] + run.indices
            found.append(indices if run.repeats is None else indices + run.repeats * file_examples)
        return np.concatenate(found)

    def members(self) -> Indices:
        """Returns the file indices [n] of all its examples, ascending."""
        return self.draws(FILE_ORDER, 0, self.examples, 0)

    def windows(self, pass_number: int) -> int:
        """Returns how many windows a pass has."""
        return self._order(pass_number).windows

    def window(self, pass_number: int, window: int) -> tuple[Indices, int]:
        """Returns the blocks that a window is made of, as the data set calls them, and how many examples it serves."""
        order = self._order(pass_number)
        blocks = order.blocks_of(pass_number, window)
        return blocks + self._first_number, order.start(pass_number, window + 1) - order.start(pass_number, window)

    def _order(self, pass_number: int) -> BlockOrder:
        order = self._in_files if pass_number == FILE_ORDER else self._shuffled
        if order is None:
            raise ValueError("this split has no examples")
        return order


def split_blocks(source: Source, validation: float, seed: int, window_blocks: int) -> dict[str, SplitBlocks]:
    """Returns the blocks of train, validation and test.

    Whole blocks are held out, drawn by the seed, so that neither split reads what the other one needs. The last one
    drawn is cut in two where that is needed to hold out as many examples as `split_validation` does.

    Raises:
        ConfigurationError: the blocks are wrong, or examples are held out by groups, which blocks may cut.
    """
    if held_out_by_groups(validation, source):
        raise ConfigurationError(
            f'data.order = "blocks": {source.origin} has examples that are held out together, such as those of one '
            'recording, and blocks may cut them; set it to "examples", or data.validation to 0'
        )
    lengths = block_lengths(source, "train")
    starts = np.cumsum(lengths) - lengths
    held_out = round(int(lengths.sum()) * validation)
    drawn = permutation(len(lengths), seed, _VALIDATION_STREAM)
    ends = np.cumsum(lengths[drawn])
    whole = int(np.searchsorted(ends, held_out, side="right"))
    chosen = np.sort(drawn[:whole])
    rest = np.sort(drawn[whole:])
    parts = [(starts[rest], lengths[rest]), (starts[chosen], lengths[chosen])]
    cut = held_out - (int(ends[whole - 1]) if whole else 0)
    if cut:
        block = int(drawn[whole])
        parts[0][0][rest == block] += cut
        parts[0][1][rest == block] -= cut
        place = int(np.searchsorted(chosen, block))
        parts[1] = np.insert(parts[1][0], place, starts[block]), np.insert(parts[1][1], place, cut)
    test = block_lengths(source, "test")
    parts.append((np.cumsum(test) - test, test))
    splits: dict[str, SplitBlocks] = {}
    number = 0
    for split, (firsts, counts) in zip(("train", "validation", "test"), parts, strict=True):
        file_split: FileSplit = FILE_SPLITS[split == "test"]
        splits[split] = SplitBlocks(file_split, number, firsts, counts, seed, window_blocks)
        number += len(counts)
    return splits


def shared_out(source: Source, split: SplitBlocks) -> Indices:
    """Returns for each block of a split, [B], the number of what one server owns whole: the block, or its file.

    Files that are fetched are owned whole where there are enough of them, so that no two servers fetch the same.
    """
    files = fetched_lengths(source, split.file_split)
    if files is None:
        return split.numbers
    return Blocks(len(source.labels(split.file_split)), lengths=files).of(split.starts)


def sample_of(split: SplitBlocks, examples_max: int, *, sequential: bool) -> Indices:
    """Returns file indices, ascending, of evenly spaced examples of a split, at most `examples_max`.

    Of a sequential source, at most SAMPLED_BLOCKS_MAX blocks are read for them.
    """
    if split.examples <= examples_max:
        return split.members()
    if not sequential:
        positions = np.arange(0, split.examples, -(-split.examples // examples_max))
        blocks = np.searchsorted(np.cumsum(split.lengths), positions, side="right")
        return split.starts[blocks] + positions - (np.cumsum(split.lengths) - split.lengths)[blocks]
    chosen = np.arange(0, len(split.lengths), -(-len(split.lengths) // SAMPLED_BLOCKS_MAX))
    most = max(1, examples_max // len(chosen))
    return np.concatenate([_evenly(int(split.starts[one]), int(split.lengths[one]), most) for one in chosen])


def _evenly(start: int, length: int, most: int) -> Indices:
    return np.arange(start, start + length, max(1, -(-length // most)), dtype=np.int64)


def window_problem(window_bytes: Sequence[int], room_bytes: int, window_blocks: int, origin: str) -> str | None:
    """Returns why a set cannot be visited in windows of so many blocks within `room_bytes`, or None.

    `window_bytes`: what the largest windows of 1, 2, 3, ... `window_blocks` blocks need.
    """
    if not window_bytes or window_bytes[-1] <= room_bytes:
        return None
    most = sum(size <= room_bytes for size in window_bytes)
    advice = f"set it to at most {most}" if most else "take smaller blocks of data"
    return (
        f"data.window_blocks = {window_blocks}: a window of {origin} needs up to {window_bytes[-1]:,} bytes, and this "
        f"data server has {room_bytes:,} bytes for it; {advice}, raise data.memory_share, or take a larger machine"
    )
